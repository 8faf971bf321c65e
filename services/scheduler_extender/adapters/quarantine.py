"""Tells the quarantine what became of Bindings, and wakes kube-scheduler when a hold ends."""

import logging
from collections.abc import Callable
from dataclasses import dataclass

from gpuloom.errors import (
    ConflictError,
    GpuloomError,
    InvalidRequestError,
    NotAllowedError,
    NotFoundError,
)
from gpuloom.kube.client import PodBinding
from gpuloom.runtime.clock import Clock
from services.scheduler_extender.core.verbs.quarantine import Quarantine, Workload, workload_of
from services.scheduler_extender.inquiries.inquiries import Observed, names_of
from services.scheduler_extender.ports import Binder, Marker, Pods

_REFUSALS = (ConflictError, InvalidRequestError, NotAllowedError)

_log = logging.getLogger(__name__)


class WatchedBinder:
    """A Binder whose outcomes are counted."""

    def __init__(self, binder: Binder, quarantine: Quarantine, pods: Pods, clock: Clock) -> None:
        self._binder = binder
        self._quarantine = quarantine
        self._pods = pods
        self._clock = clock

    async def bind(self, binding: PodBinding, *, timeout_s: float) -> None:
        # Asked before: of a pod that is bound, its controller may no longer be kept.
        workload = self._workload(binding)
        try:
            await self._binder.bind(binding, timeout_s=timeout_s)
        except NotFoundError:
            # The pod is gone, which is nobody's fault.
            raise
        except GpuloomError as error:
            self._note_failure(binding, workload, error)
            raise
        self._quarantine.succeeded(workload, self._clock.monotonic())

    def _note_failure(self, binding: PodBinding, workload: Workload, error: GpuloomError) -> None:
        now_s = self._clock.monotonic()
        hold = self._quarantine.failed(workload, now_s, refused=isinstance(error, _REFUSALS))
        if hold is not None:
            fields = {
                "pod": f"{binding.namespace}/{binding.pod}",
                "controller_uid": workload.controller_uid,
                "failures": hold.failures,
                "for_s": round(hold.until_s - now_s, 1),
                "reason": str(error),
            }
            _log.warning("workload quarantined", extra=fields)

    def _workload(self, binding: PodBinding) -> Workload:
        pod = self._pods.by_uid(binding.uid or "")
        return workload_of(pod) if pod is not None else Workload(binding.uid or "")


@dataclass(frozen=True, slots=True)
class ReleaseWatch:
    """kube-scheduler asks again about a refused pod only after an event, so the end of a hold makes one.

    Only the leader has workloads on hold, and only it may write.
    """

    quarantine: Quarantine
    marker: Marker
    clock: Clock
    nodes: Observed
    may_write: Callable[[], bool]

    async def run(self, interval_s: float) -> None:
        while True:
            await self.clock.sleep(interval_s)
            await self.look()

    async def look(self) -> None:
        released = self.quarantine.take_released(self.clock.monotonic())
        names = names_of(self.nodes) if released and self.may_write() else []
        if not names:
            return
        node_name = min(names)
        try:
            await self.marker.touch(node_name, self.clock.now().isoformat())
        except GpuloomError as error:
            _log.warning("released workload not woken", extra={"node": node_name, "reason": str(error)})
