"""Who leaves a node, and when: low, then medium, then high priority, within the time there is. Pure.

Without a deadline each class goes when the one before it is gone. With one (a spot notice) a class goes at
the latest at its part of the notice, training last and with the most time. Whether a PodDisruptionBudget
allows it the API server decides, at every eviction.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from gpuloom.model.node import PodRef

ANNOTATION_PRIORITY = "gpu-autoscaler.io/eviction-priority"
LABEL_WORKLOAD_TYPE = "gpu-autoscaler.io/workload-type"
ANNOTATION_NO_DISRUPT = "gpuloom.dev/no-disrupt"
ANNOTATION_CHECKPOINT_REQUESTED = "gpuloom.dev/checkpoint-requested"
ANNOTATION_CHECKPOINT_TIME = "gpuloom.dev/checkpoint-time"
ANNOTATION_CORDONED = "gpuloom.dev/cordoned-by"

SHORTEST_GRACE_S = 1.0


class EvictionPriority(StrEnum):
    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"


_OF_TYPE = {
    **dict.fromkeys(("dev", "development", "batch", "interactive"), EvictionPriority.LOW),
    **dict.fromkeys(("inference", "serving"), EvictionPriority.MEDIUM),
    **dict.fromkeys(("training", "critical"), EvictionPriority.HIGH),
}
_LATEST = {EvictionPriority.LOW: 0.0, EvictionPriority.MEDIUM: 0.15, EvictionPriority.HIGH: 0.4}
"""The part of a notice after which a class is asked to leave at the latest."""


@dataclass(frozen=True, slots=True)
class Tenant:
    """A pod on a node that is drained. `daemon`: it belongs to the node and stays. `bare`: nobody makes it
    anew elsewhere."""

    ref: PodRef
    priority: EvictionPriority = EvictionPriority.MEDIUM
    grace_s: float = 30.0
    leaving: bool = False
    daemon: bool = False
    bare: bool = False
    uses_gpu: bool = True


@dataclass(frozen=True, slots=True)
class Eviction:
    tenant: Tenant
    grace_s: float
    """Never longer than is left of the notice."""


def eviction_priority(annotations: Mapping[str, str], labels: Mapping[str, str]) -> EvictionPriority:
    """By annotation, else by the kind of work; what says nothing is in the middle."""
    given = annotations.get(ANNOTATION_PRIORITY, "")
    if given in set(EvictionPriority):
        return EvictionPriority(given)
    kind = labels.get(LABEL_WORKLOAD_TYPE) or annotations.get(LABEL_WORKLOAD_TYPE) or ""
    return _OF_TYPE.get(kind, EvictionPriority.MEDIUM)


def evictions(
    tenants: Iterable[Tenant], since: datetime, deadline: datetime | None, now: datetime
) -> list[Eviction]:
    """Whom to ask to leave now."""
    present = [one for one in tenants if not one.daemon]
    due = [priority for priority in EvictionPriority if _is_due(priority, present, since, deadline, now)]
    return [
        Eviction(one, _grace_s(one, deadline, now))
        for one in sorted(present, key=_order)
        if one.priority in due and not one.leaving
    ]


def is_drained(tenants: Iterable[Tenant]) -> bool:
    """Nothing is left but what belongs to the node."""
    return all(one.daemon for one in tenants)


def _is_due(
    priority: EvictionPriority,
    present: Sequence[Tenant],
    since: datetime,
    deadline: datetime | None,
    now: datetime,
) -> bool:
    ranks = list(EvictionPriority)
    before = ranks[: ranks.index(priority)]
    if not any(one.priority in before for one in present):
        return True
    if deadline is None:
        return False
    notice = max(deadline - since, timedelta(0))
    return now >= since + notice * _LATEST[priority]


def _grace_s(tenant: Tenant, deadline: datetime | None, now: datetime) -> float:
    if deadline is None:
        return tenant.grace_s
    return max(SHORTEST_GRACE_S, min(tenant.grace_s, (deadline - now).total_seconds()))


def _order(tenant: Tenant) -> tuple[int, PodRef]:
    return (list(EvictionPriority).index(tenant.priority), tenant.ref)
