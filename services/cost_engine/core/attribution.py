"""Splits the bill of one node in one hour among those who held its GPUs.

The bill comes from the node's time and price alone. Pods' time and shares split it into what was allocated to
each and what nobody held; usage splits what was allocated into used, idle and unknown. Each split is by
largest remainder in whole nano-dollars, so every level adds up to the one above it, exactly.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from gpuloom.model.money import split, split_by
from services.cost_engine.core.billing import bill_nano_usd
from services.cost_engine.core.intervals import UNITS_PER_GPU, Claim, NodeInterval, PodInterval, clipped
from services.cost_engine.core.prices import PriceBook, PricedAs, PriceSegment

IDLE = "__idle__"
"""Owner of what nobody held."""
HOST = "__host__"
"""Owner of the part of a node's price that is not for its GPUs."""
WHOLE_PERMILLE = 1000


@dataclass(frozen=True, slots=True)
class UsageTotals:
    """Of one pod in one stretch, over its devices: how long it was measured, and used at full share."""

    measured_ns: int = 0
    used_ns: int = 0
    energy_mj: int = 0


@dataclass(frozen=True, slots=True)
class CostRow:
    """What one owner pays for one stretch of one node. `cost` is used + idle + unknown for a pod.

    `baseline` is what the same time would have cost unshared and on demand, `on_demand` the same time and
    share on demand; both are `cost` where no on-demand price is known. `unit_ns` is GPU units times time.
    `unpriced_ns` is time for which there is no price: then the money is not known, not nothing.
    """

    owner: str
    price: PricedAs | None
    cost: int = 0
    used: int = 0
    idle: int = 0
    unknown: int = 0
    baseline: int = 0
    on_demand: int = 0
    unit_ns: int = 0
    unpriced_ns: int = 0
    energy_mj: int = 0


@dataclass(frozen=True, slots=True)
class NodeHour:
    """Everything that decides the cost of one interval of a node between two times.

    `usage` has, by pod, the beginning of each window and what was measured in it.
    """

    node: NodeInterval
    start_ns: int
    end_ns: int
    pods: Sequence[PodInterval] = ()
    usage: Mapping[str, Sequence[tuple[int, UsageTotals]]] = field(default_factory=dict)
    gpu_permille: int = WHOLE_PERMILLE


def attribute(hour: NodeHour, book: PriceBook) -> list[CostRow]:
    part = clipped(hour.node.start_ns, hour.node.end_ns, hour.start_ns, hour.end_ns)
    if part is None:
        return []
    segments = book.segments(hour.node.traits, *part)
    return [row for segment in segments for row in _attribute_segment(hour, segment, book)]


def bill_of(node: NodeInterval, start_ns: int, end_ns: int, book: PriceBook) -> int:
    """The node's bill alone, without looking at anybody on it."""
    part = clipped(node.start_ns, node.end_ns, start_ns, end_ns)
    if part is None:
        return 0
    return sum(
        bill_nano_usd(segment.price.nano_usd_per_hour, segment.start_ns, segment.end_ns)
        for segment in book.segments(node.traits, *part)
        if segment.price is not None
    )


def _attribute_segment(hour: NodeHour, segment: PriceSegment, book: PriceBook) -> list[CostRow]:
    held = _held(hour, segment.start_ns, segment.end_ns)
    price = segment.price
    if price is None:
        return _unpriced(hour.node, held)
    bill = bill_nano_usd(price.nano_usd_per_hour, segment.start_ns, segment.end_ns)
    gpu_bill, host_bill = split_by(bill, (hour.gpu_permille, WHOLE_PERMILLE - hour.gpu_permille))
    amounts = _split_among(gpu_bill, held)
    listed = book.on_demand(hour.node.traits, segment.start_ns)
    rates = (price if listed is None else listed).nano_usd_per_hour, price.nano_usd_per_hour
    rows = []
    for owner in sorted(held.weights):
        usage = _totals_within(hour.usage.get(owner, ()), segment)
        rows.append(_row(owner, price, amounts.get(owner, 0), (held, usage, rates)))
    if host_bill:
        on_demand = host_bill * rates[0] // rates[1]
        rows.append(CostRow(HOST, price, host_bill, baseline=on_demand, on_demand=on_demand))
    return rows


def _row(
    owner: str, price: PricedAs, cost: int, context: tuple["_Held", UsageTotals, tuple[int, int]]
) -> CostRow:
    held, usage, (listed_rate, rate) = context
    unit_ns, whole_ns = held.weights[owner]
    on_demand = cost * listed_rate // rate
    if owner == IDLE:
        return CostRow(IDLE, price, cost, baseline=on_demand, on_demand=on_demand, unit_ns=unit_ns)
    used, idle, unknown = _by_usage(cost, held.device_ns[owner], usage)
    baseline = on_demand * whole_ns // unit_ns if unit_ns else on_demand
    return CostRow(
        owner, price, cost, used, idle, unknown, baseline, on_demand, unit_ns, energy_mj=usage.energy_mj
    )


@dataclass(frozen=True, slots=True)
class _Cell:
    """A stretch in which nobody came or went: who held how many units of the whole capacity."""

    duration_ns: int
    units: Mapping[str, int]
    """Of every holder, and of IDLE."""


@dataclass(frozen=True, slots=True)
class _Held:
    cells: tuple[_Cell, ...]
    weights: Mapping[str, tuple[int, int]]
    """By owner: units times time that are paid for, and the same if its devices had been whole GPUs."""
    device_ns: Mapping[str, int]


def _held(hour: NodeHour, start_ns: int, end_ns: int) -> _Held:
    present = [
        (pod, part)
        for pod in hour.pods
        if (part := clipped(pod.start_ns, pod.end_ns, start_ns, end_ns)) is not None
    ]
    cuts = sorted({start_ns, end_ns, *(time for _, part in present for time in part)})
    cells: list[_Cell] = []
    weights: dict[str, tuple[int, int]] = {}
    device_ns: dict[str, int] = {}
    capacity = hour.node.traits.capacity_units
    for first, last in pairwise(cuts):
        holding: dict[str, Claim] = {}
        for pod, (came, left) in present:
            if came <= first and last <= left:
                holding[pod.pod_uid] = pod.claim
        duration_ns = last - first
        units = _units(holding, capacity)
        cells.append(_Cell(duration_ns, units))
        for owner, amount in units.items():
            devices = holding[owner].devices if owner != IDLE else 0
            whole = max(amount, devices * UNITS_PER_GPU)
            paid, unshared = weights.get(owner, (0, 0))
            weights[owner] = (paid + amount * duration_ns, unshared + whole * duration_ns)
            device_ns[owner] = device_ns.get(owner, 0) + devices * duration_ns
    return _Held(tuple(cells), weights, device_ns)


def _units(holding: Mapping[str, Claim], capacity: int) -> dict[str, int]:
    """What each holds. More than there is means that devices are shared: then each has its part of it."""
    units = {owner: holding[owner].units for owner in sorted(holding)}
    claimed = sum(units.values())
    if claimed > capacity:
        return split(capacity, units)
    return {**units, IDLE: capacity - claimed} if claimed < capacity or not units else units


def _split_among(amount: int, held: _Held) -> dict[str, int]:
    by_cell = split_by(amount, [cell.duration_ns for cell in held.cells])
    found: dict[str, int] = {}
    for cell, part in zip(held.cells, by_cell, strict=True):
        for owner, share in split(part, cell.units).items():
            found[owner] = found.get(owner, 0) + share
    return found


def _by_usage(cost: int, device_ns: int, usage: UsageTotals) -> tuple[int, int, int]:
    """Used, idle, unknown. What was measured beyond the time that the pod held anything is not counted."""
    if device_ns == 0:
        return 0, 0, cost
    measured = min(usage.measured_ns, device_ns)
    used = min(usage.used_ns, measured)
    parts = split_by(cost, (used, measured - used, device_ns - measured))
    return parts[0], parts[1], parts[2]


def _totals_within(usage: Iterable[tuple[int, UsageTotals]], segment: PriceSegment) -> UsageTotals:
    measured = used = energy = 0
    for start_ns, totals in usage:
        if segment.start_ns <= start_ns < segment.end_ns:
            measured += totals.measured_ns
            used += totals.used_ns
            energy += totals.energy_mj
    return UsageTotals(measured, used, energy)


def _unpriced(node: NodeInterval, held: _Held) -> list[CostRow]:
    capacity = max(1, node.traits.capacity_units)
    return [
        CostRow(owner, None, unit_ns=unit_ns, unpriced_ns=max(1, unit_ns // capacity))
        for owner, (unit_ns, _) in sorted(held.weights.items())
    ]
