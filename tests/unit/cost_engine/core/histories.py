"""Random histories of nodes, pods, prices and usage, and what they cost hour by hour."""

from dataclasses import dataclass, field

from hypothesis import strategies as st

from services.cost_engine.core.attribution import HOST, IDLE, CostRow, NodeHour, UsageTotals, attribute
from services.cost_engine.core.grouping import Amounts, CostFact
from services.cost_engine.core.intervals import (
    HOUR_NS,
    UNITS_PER_GPU,
    Claim,
    NodeInterval,
    NodeTraits,
    PodIdentity,
    PodInterval,
    hours_between,
)
from services.cost_engine.core.prices import CAPACITY_TYPES, Price, PriceBook, Source

SECOND_NS = 1_000_000_000
START_NS = 490_000 * HOUR_NS
SPAN_NS = 5 * HOUR_NS


@dataclass(frozen=True)
class History:
    book: PriceBook
    nodes: tuple[NodeInterval, ...]
    pods: tuple[PodInterval, ...] = ()
    identities: dict[str, PodIdentity] = field(default_factory=dict)
    usage: dict[str, list[tuple[int, UsageTotals]]] = field(default_factory=dict)
    gpu_permille: int = 1000

    def rows(self) -> list[tuple[int, NodeInterval, CostRow]]:
        found = []
        for node in self.nodes:
            end_ns = START_NS + SPAN_NS if node.end_ns is None else node.end_ns
            pods = [pod for pod in self.pods if pod.node_uid == node.node_uid]
            for hour in hours_between(node.start_ns, end_ns):
                until = min(hour + HOUR_NS, START_NS + SPAN_NS)
                problem = NodeHour(node, hour, until, pods, self.usage, self.gpu_permille)
                found += [(hour, node, row) for row in attribute(problem, self.book)]
        return found

    def facts(self) -> list[CostFact]:
        return [
            CostFact(
                bucket_ns=hour,
                owner=row.owner,
                amounts=Amounts(
                    cost=row.cost,
                    used=row.used,
                    idle=row.idle,
                    unknown=row.unknown,
                    unallocated=row.cost if row.owner in (IDLE, HOST) else 0,
                ),
                pod=self.identities.get(row.owner),
                node=node.traits.name,
                pool=node.traits.pool,
                capacity_type=node.traits.capacity_type,
            )
            for hour, node, row in self.rows()
        ]


_times = st.integers(START_NS // SECOND_NS, (START_NS + SPAN_NS) // SECOND_NS).map(lambda s: s * SECOND_NS)
_names = st.sampled_from(["a", "b", "ml-x", "Ünïcode", "'; DROP TABLE pod; --", ""])


@st.composite
def prices(draw: st.DrawFn) -> Price:
    first, length = draw(_times), draw(st.none() | st.integers(1, SPAN_NS))
    valid_from = draw(st.sampled_from([0, first]))
    return Price(
        provider="aws",
        region=draw(st.sampled_from(["", "r1"])),
        zone=draw(st.sampled_from(["", "z1"])),
        instance_type=draw(st.sampled_from(["t1", "t2"])),
        capacity_type=draw(st.sampled_from(CAPACITY_TYPES)),
        nano_usd_per_hour=draw(st.integers(1, 100_000_000_000)),
        valid_from_ns=valid_from,
        valid_to_ns=None if length is None else valid_from + length,
        source=draw(st.sampled_from(list(Source))),
    )


@st.composite
def histories(draw: st.DrawFn) -> History:
    nodes = []
    for number in range(draw(st.integers(1, 3))):
        first, second = sorted((draw(_times), draw(_times)))
        traits = NodeTraits(
            name=f"node-{number}",
            gpu_count=draw(st.integers(1, 8)),
            provider=draw(st.sampled_from(["", "aws"])),
            region=draw(st.sampled_from(["", "r1", "r2"])),
            zone=draw(st.sampled_from(["", "z1"])),
            instance_type=draw(st.sampled_from(["t1", "t2"])),
            capacity_type=draw(st.sampled_from(["", *CAPACITY_TYPES])),
            pool=draw(st.sampled_from(["", "p1"])),
        )
        nodes.append(NodeInterval(f"n{number}", first, draw(st.sampled_from([None, second])), traits))
    pods, identities, usage = [], {}, {}
    for number in range(draw(st.integers(0, 8))):
        uid, (first, second) = f"u{number}", sorted((draw(_times), draw(_times)))
        claim = Claim(draw(st.integers(1, 4 * UNITS_PER_GPU)), draw(st.integers(1, 8)))
        node = draw(st.sampled_from(nodes)).node_uid
        pods.append(PodInterval(uid, node, first, draw(st.sampled_from([None, second])), claim))
        labels = draw(st.dictionaries(st.sampled_from(["team", "gpu-project"]), _names, max_size=2))
        identities[uid] = PodIdentity(uid, draw(_names) or "default", f"pod-{number}", labels)
        measured = draw(st.lists(st.integers(0, HOUR_NS), max_size=4))
        usage[uid] = [
            (draw(_times), UsageTotals(amount, draw(st.integers(0, 2 * HOUR_NS)))) for amount in measured
        ]
    book = PriceBook(draw(st.lists(prices(), max_size=6)))
    permille = draw(st.sampled_from([1000, 1000, 700, 0]))
    return History(book, tuple(nodes), tuple(pods), identities, usage, permille)
