"""Asks the node planner for nodes ahead: pods of a target that was just scaled up are bought for at once.

A pod that GPUs are missing for usually waits minutes before a node is bought, because most pods find a place
by themselves. Replicas that a service needs now, or will need when they have started, do not.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import timedelta

from gpuloom.runtime.clock import Clock
from services.autoscaler.core.buying.pending import PendingPod
from services.autoscaler.inference.core.selectors import matches

HASTENED_S = 600.0
LONG_AGO = timedelta(days=1)


class HastyPods:
    """Pods of targets that were scaled up within the last minutes. A NodePlanner.

    `labels_of`: labels of a pod, by namespace and name.
    """

    def __init__(self, clock: Clock, labels_of: Callable[[str, str], Mapping[str, str]]) -> None:
        self._clock = clock
        self._labels_of = labels_of
        self._until_s: dict[tuple[str, str], float] = {}

    def hasten(self, namespace: str, selector: str) -> None:
        self._until_s[namespace, selector] = self._clock.monotonic() + HASTENED_S

    def due(self, pods: list[PendingPod]) -> list[PendingPod]:
        """The same pods; those of such targets as if they had waited long enough."""
        now_s = self._clock.monotonic()
        self._until_s = {key: until for key, until in self._until_s.items() if until > now_s}
        if not self._until_s:
            return pods
        return [replace(pod, since=pod.since - LONG_AGO) if self._is_hasty(pod) else pod for pod in pods]

    def _is_hasty(self, pod: PendingPod) -> bool:
        labels = self._labels_of(pod.ref.namespace, pod.ref.name)
        return any(
            namespace == pod.ref.namespace and matches(selector, labels)
            for namespace, selector in self._until_s
        )
