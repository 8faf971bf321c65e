"""One node, some pods, an hour."""

from services.cost_engine.core.attribution import CostRow, NodeHour, UsageTotals, attribute
from services.cost_engine.core.intervals import (
    HOUR_NS,
    UNITS_PER_GPU,
    Claim,
    NodeInterval,
    NodeTraits,
    PodInterval,
)
from services.cost_engine.core.prices import ON_DEMAND, Price, PriceBook, Source

START_NS = 495_000 * HOUR_NS


def a_price(
    name: str = "g4dn.xlarge",
    usd_nano: int = 526_000_000,
    *,
    kind: str = ON_DEMAND,
    source: Source = Source.AWS,
    place: tuple[str, str] = ("", ""),
    since_ns: int = 0,
    until_ns: int | None = None,
) -> Price:
    return Price("aws", *place, name, kind, usd_nano, since_ns, until_ns, source)


def some_traits(name: str = "g4dn.xlarge", gpus: int = 1, **more: object) -> NodeTraits:
    return NodeTraits(name="n", gpu_count=gpus, provider="aws", instance_type=name, **more)  # type: ignore[arg-type]


def a_pod(uid: str, milli: int = 1000, devices: int = 1, end_ns: int | None = None) -> PodInterval:
    claim = Claim(milli * UNITS_PER_GPU // 1000, devices)
    return PodInterval(uid, "n1", START_NS, end_ns, claim)


def an_hour(
    traits: NodeTraits,
    pods: list[PodInterval],
    prices: list[Price],
    usage: dict[str, UsageTotals] | None = None,
) -> dict[str, CostRow]:
    """By owner, for the hour from START_NS on."""
    node = NodeInterval("n1", START_NS, None, traits)
    used = {uid: [(START_NS, totals)] for uid, totals in (usage or {}).items()}
    problem = NodeHour(node, START_NS, START_NS + HOUR_NS, pods, used)
    return {row.owner: row for row in attribute(problem, PriceBook(prices))}
