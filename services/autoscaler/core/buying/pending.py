"""Pods that wait for GPUs: since when, how urgent, in which gang, and on which tier they belong. Pure."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from gpuloom.model.node import PodRef
from gpuloom.model.policies import CapacityType
from gpuloom.model.request import PodRequest
from gpuloom.placement.constraints.objects import SchedulablePod

URGENT_PRIORITY = 1_000_000
"""The PriorityClass of a GPUWorkload of priority high."""
URGENT_TIMEOUT_S = 30.0


class Worth(StrEnum):
    """CRITICAL prefers on-demand, ALWAYS_ON prefers reserved, FLEXIBLE takes the tier that is due."""

    FLEXIBLE = "flexible"
    CRITICAL = "critical"
    ALWAYS_ON = "always-on"


TIER_ORDER = {
    Worth.CRITICAL: (CapacityType.ON_DEMAND, CapacityType.RESERVED, CapacityType.SPOT),
    Worth.ALWAYS_ON: (CapacityType.RESERVED, CapacityType.ON_DEMAND, CapacityType.SPOT),
}


@dataclass(frozen=True, slots=True)
class PendingPod:
    """`since`: when it could not be scheduled first. `gang_size` 0: it is in none."""

    ref: PodRef
    request: PodRequest
    pod: SchedulablePod
    since: datetime
    worth: Worth = Worth.FLEXIBLE
    gang: str = ""
    gang_size: int = 0

    @property
    def urgent(self) -> bool:
        return self.pod.priority >= URGENT_PRIORITY


@dataclass(frozen=True, slots=True)
class Unit:
    """What is placed whole or not at all: one pod, or a gang."""

    name: str
    pods: tuple[PendingPod, ...]

    @property
    def priority(self) -> int:
        return max(one.pod.priority for one in self.pods)


def is_due(pod: PendingPod, timeout_s: float, now: datetime) -> bool:
    """Whether it has waited long enough to buy a node for it."""
    wait_s = min(timeout_s, URGENT_TIMEOUT_S) if pod.urgent else timeout_s
    return now - pod.since >= timedelta(seconds=wait_s)


def due_pods(pods: Iterable[PendingPod], timeout_s: float, now: datetime) -> list[PendingPod]:
    """Those that waited long enough, and the rest of their gangs: a gang is bought for as a whole."""
    listed = list(pods)
    due = {one.ref.uid for one in listed if is_due(one, timeout_s, now)}
    gangs = {(one.ref.namespace, one.gang) for one in listed if one.gang and one.ref.uid in due}
    return [
        one for one in listed if one.ref.uid in due or (one.gang and (one.ref.namespace, one.gang) in gangs)
    ]


def units_of(pods: Iterable[PendingPod]) -> tuple[list[Unit], list[tuple[PendingPod, str]]]:
    """Gangs and single pods, the most urgent and largest first, and the pods of gangs that are not whole."""
    gangs: defaultdict[tuple[str, str], list[PendingPod]] = defaultdict(list)
    units: list[Unit] = []
    left_out: list[tuple[PendingPod, str]] = []
    for pod in pods:
        if pod.gang:
            gangs[pod.ref.namespace, pod.gang].append(pod)
        else:
            units.append(Unit(str(pod.ref), (pod,)))
    for (namespace, name), members in sorted(gangs.items()):
        missing = max(one.gang_size for one in members) - len(members)
        if missing > 0:
            reason = f"{missing} pods of its gang {name} are not there yet"
            left_out.extend((one, reason) for one in members)
        else:
            units.append(Unit(f"{namespace}/{name}", tuple(sorted(members, key=lambda one: one.ref))))
    return sorted(units, key=_order), left_out


def _order(unit: Unit) -> tuple[int, int, int, str]:
    return (
        -unit.priority,
        -_gpu_milli(unit.pods),
        -sum(one.request.cpu_milli for one in unit.pods),
        unit.name,
    )


def _gpu_milli(pods: Sequence[PendingPod]) -> int:
    return sum(one.request.gpu.count * one.request.gpu.milli for one in pods)
