"""Wakes pods that wait in kube-scheduler when there is room again.

kube-scheduler asks again about a refused pod only after an event of its own cluster, and room that comes back
by a device fact is none. Any change of a node is one, so one node is touched, at most once per interval,
however many nodes got room: each event makes kube-scheduler look at every waiting pod.

Only the leader writes. A standby keeps the newest of what it would have touched: whoever led before may have
gone before it got to it.
"""

import logging
from collections.abc import Callable

from gpuloom.errors import GpuloomError
from gpuloom.runtime.clock import Clock
from services.scheduler_extender.metrics import ExtenderMetrics
from services.scheduler_extender.ports import Marker
from services.scheduler_extender.state.cluster import ClusterState

_log = logging.getLogger(__name__)


class Waker:
    def __init__(
        self,
        state: ClusterState,
        marker: Marker,
        clock: Clock,
        metrics: ExtenderMetrics,
        may_write: Callable[[], bool] = lambda: True,
    ) -> None:
        self._state = state
        self._marker = marker
        self._clock = clock
        self._metrics = metrics
        self._may_write = may_write
        self._due: set[str] = set()

    async def run(self, interval_s: float) -> None:
        while True:
            await self._clock.sleep(interval_s)
            await self.wake()

    async def wake(self) -> None:
        reopened = self._state.take_reopened()
        if not self._may_write():
            self._due = reopened or self._due
            return
        self._due |= reopened
        if not self._due:
            return
        if not self._state.has_pending_pods():
            self._due.clear()
            return
        node_name = min(self._due)
        try:
            await self._marker.touch(node_name, self._clock.now().isoformat())
        except GpuloomError as error:
            _log.warning("pending pods not woken", extra={"node": node_name, "reason": str(error)})
            self._due.discard(node_name)
            return
        self._metrics.wake_ups.inc()
        self._due.clear()
