"""What was saved against unshared GPUs on demand, by what saved it. The parts add up to the difference.

Only what the cost rows show is counted: how a node was paid for, and how its GPUs were cut. What never ran is
no saving here.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from services.cost_engine.core.grouping import CostFact
from services.cost_engine.core.prices import ON_DEMAND, Quality

RECOMMENDATION = "recommendation"
_SHARED = {"mig": "mig", "share": "sharing", "timeslicing": "timeslicing", "whole": "sharing", "": "sharing"}


@dataclass(frozen=True, slots=True)
class MechanismSaving:
    mechanism: str
    nano_usd: int
    estimated: bool


@dataclass(frozen=True, slots=True)
class Savings:
    baseline: int
    actual: int
    mechanisms: tuple[MechanismSaving, ...]


def savings_of(facts: Iterable[CostFact]) -> Savings:
    baseline = actual = 0
    saved: dict[str, int] = {}
    estimated: set[str] = set()
    for fact in facts:
        amounts = fact.amounts
        baseline += amounts.baseline
        actual += amounts.cost
        shared, paid = amounts.baseline - amounts.on_demand, amounts.on_demand - amounts.cost
        by_sharing = RECOMMENDATION if fact.pod and fact.pod.optimized else _SHARED[fact.mechanism]
        by_price = fact.capacity_type if fact.capacity_type != ON_DEMAND else "price"
        for mechanism, amount in ((by_sharing, shared), (by_price, paid)):
            if amount:
                saved[mechanism] = saved.get(mechanism, 0) + amount
                if fact.quality in (Quality.ESTIMATED, Quality.STALE):
                    estimated.add(mechanism)
    listed = (MechanismSaving(name, saved[name], name in estimated) for name in sorted(saved))
    return Savings(baseline, actual, tuple(listed))


def monthly(nano_usd_per_hour: int, hours_per_month: int) -> int:
    return nano_usd_per_hour * hours_per_month
