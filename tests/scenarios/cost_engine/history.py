"""A history that several processes can make windows of, and what it costs by the pure core alone.

The account here never sees the store: it knows the windows because it makes them.
"""

from datetime import UTC, datetime
from random import Random

from gpuloom.model.gpu import DeviceRef
from gpuloom.model.node import PodRef
from gpuloom.model.usage import DeviceUsage, UsageWindow
from services.cost_engine.core.attribution import IDLE, CostRow, NodeHour, UsageTotals, attribute
from services.cost_engine.core.intervals import (
    DAY_NS,
    HOUR_NS,
    UNITS_PER_GPU,
    Claim,
    NodeInterval,
    NodeTraits,
    PodIdentity,
    PodInterval,
)
from services.cost_engine.core.prices import Price, PriceBook, Source
from services.cost_engine.core.tracking import NodeChange, PodChange
from services.cost_engine.core.windows import PlacedWindow, rows_of
from services.cost_engine.store.store import FactChanges

MINUTE_NS = 60_000_000_000
START_NS = 20_400 * DAY_NS + 7 * HOUR_NS
HOURS = 3
WINDOWS = HOURS * 60
NODES = 4
NOW_NS = START_NS + HOURS * HOUR_NS
PRICE = Price("aws", "", "", "p4d.24xlarge", "on-demand", 21_957_642_001, 0, None, Source.CUSTOM)


def node_change(number: int) -> NodeChange:
    traits = NodeTraits(f"node-{number}", 8, provider="aws", instance_type="p4d.24xlarge")
    return NodeChange(NodeInterval(f"n{number}", START_NS, NOW_NS, traits), (START_NS, NOW_NS))


def pod_changes(number: int) -> list[PodChange]:
    found = []
    for place, milli in enumerate((1000, 250, 500, 333)):
        uid = f"n{number}-p{place}"
        start_ns = START_NS + place * 13 * MINUTE_NS
        claim = Claim(milli * UNITS_PER_GPU // 1000, 1, "share")
        interval = PodInterval(uid, f"n{number}", start_ns, NOW_NS - place * 7 * MINUTE_NS, claim)
        found.append(PodChange(interval, PodIdentity(uid, f"ns-{place}", uid), (start_ns, NOW_NS)))
    return found


def facts() -> FactChanges:
    pods = [change for number in range(NODES) for change in pod_changes(number)]
    return FactChanges([node_change(number) for number in range(NODES)], pods)


def window(number: int, sequence: int) -> UsageWindow:
    """The same, whoever makes it and how often."""
    chance = Random(f"{number}/{sequence}")
    start_ns = START_NS + (sequence - 1) * MINUTE_NS
    devices = []
    for change in pod_changes(number):
        pod = change.interval
        if pod.start_ns <= start_ns and start_ns + MINUTE_NS <= (pod.end_ns or NOW_NS):
            measured = chance.randrange(MINUTE_NS)
            milli = pod.claim.units * 1000 // UNITS_PER_GPU
            ref = PodRef(change.identity.namespace if change.identity else "", pod.pod_uid, pod.pod_uid)
            used = chance.randrange(measured + 1)
            devices.append(
                DeviceUsage(DeviceRef(f"GPU-{pod.pod_uid}"), ref, milli, MINUTE_NS, measured, used)
            )
    start = datetime.fromtimestamp(start_ns / 1e9, UTC)
    return UsageWindow(sequence, f"n{number}", start, MINUTE_NS, tuple(devices))


def account() -> dict[str, tuple[int, int, int, int]]:
    """Cost, used, idle and unknown by owner, over all hours."""
    book, sums = PriceBook([PRICE]), dict[str, tuple[int, int, int, int]]()
    for number in range(NODES):
        usage: dict[str, list[tuple[int, UsageTotals]]] = {}
        for sequence in range(1, WINDOWS + 1):
            made = window(number, sequence)
            start_ns = START_NS + (sequence - 1) * MINUTE_NS
            for row in rows_of(made, PlacedWindow(start_ns, start_ns + MINUTE_NS, False), f"n{number}"):
                usage.setdefault(row.pod_uid, []).append((start_ns, row.totals))
        pods = [change.interval for change in pod_changes(number)]
        for hour in range(HOURS):
            start_ns = START_NS + hour * HOUR_NS
            inside = {
                uid: [(at, totals) for at, totals in listed if start_ns <= at < start_ns + HOUR_NS]
                for uid, listed in usage.items()
            }
            problem = NodeHour(node_change(number).interval, start_ns, start_ns + HOUR_NS, pods, inside)
            for paid in attribute(problem, book):
                _add(sums, paid)
    return sums


def _add(sums: dict[str, tuple[int, int, int, int]], row: CostRow) -> None:
    owner = row.owner if row.owner != IDLE else IDLE
    cost, used, idle, unknown = sums.get(owner, (0, 0, 0, 0))
    sums[owner] = (cost + row.cost, used + row.used, idle + row.idle, unknown + row.unknown)
