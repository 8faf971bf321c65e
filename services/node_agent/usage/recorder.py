"""Makes windows of what the sampler sees, and hands them to the spools, off the sampler's way.

A disk that hangs never stops the sampling: closed windows wait in a bounded queue, of which the oldest go.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Self

from gpuloom.model.gpu import DeviceRef
from gpuloom.model.usage import UsageWindow
from gpuloom.runtime.clock import Clock
from services.node_agent.core.picture import Picture
from services.node_agent.usage.core.integrator import Integrator
from services.node_agent.usage.core.sample import Moment, sample_of
from services.node_agent.usage.metrics import UsageMetrics
from services.node_agent.usage.spools import Spools

MAX_WAITING = 1024
HUNG_S = 30.0
_NS_PER_S = 1_000_000_000

GivenOf = Callable[[str], Mapping[DeviceRef, int]]
"""What the pod of a UID was given by its allocation: thousandths of devices; nothing if it is not known."""


class Recorder:
    """Use it as an async context manager: leaving it closes the open window and keeps it."""

    def __init__(
        self, integrator: Integrator, spools: Spools, given_of: GivenOf, clock: Clock, metrics: UsageMetrics
    ) -> None:
        self.spools = spools
        self._integrator = integrator
        self._given_of = given_of
        self._clock = clock
        self._metrics = metrics
        self._waiting: deque[UsageWindow] = deque()
        self._arrived = asyncio.Event()
        self._writing_since_s: float | None = None
        self._given: dict[str, Mapping[DeviceRef, int]] = {}
        self._closed = False
        self._append: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        await self.spools.open()
        self._metrics.watch(self.spools)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closed = True
        self._take(self._integrator.close())
        if self._append is not None:
            # The loop was cancelled while it wrote.
            await self._append
        await self._write()

    @property
    def problem(self) -> str:
        """Why windows are not safe on the disk now; empty if they are."""
        since_s = self._writing_since_s
        if since_s is not None and self._clock.monotonic() - since_s > HUNG_S:
            return "the disk for usage windows does not answer"
        return self.spools.problem

    def observe(self, picture: Picture) -> None:
        """The node was sampled just now."""
        if self._closed:
            return
        uids = {holder.pod.uid for holder in picture.state.holders}
        # A pod that Kubernetes does not show any more keeps what it was given for as long as it holds it.
        self._given = {
            uid: given for uid in uids if uid and (given := self._given_of(uid) or self._given.get(uid))
        }
        moment = Moment(round(picture.looked_at_s * _NS_PER_S), self._clock.now())
        self._take(self._integrator.add(sample_of(picture, self._given, moment)))

    async def run(self) -> None:
        while True:
            await self._arrived.wait()
            await self._write()

    def _take(self, windows: list[UsageWindow]) -> None:
        if not windows:
            return
        self._metrics.windows.inc(len(windows))
        self._waiting.extend(windows)
        while len(self._waiting) > MAX_WAITING:
            self._waiting.popleft()
            self._metrics.count_dropped(1)
        self._arrived.set()

    async def _write(self) -> None:
        self._arrived.clear()
        windows = list(self._waiting)
        self._waiting.clear()
        # What has begun to be written is written: nobody else may write to the same place meanwhile.
        self._append = asyncio.create_task(self._append_all(windows))
        await asyncio.shield(self._append)

    async def _append_all(self, windows: list[UsageWindow]) -> None:
        before = self.spools.dropped
        self._writing_since_s = self._clock.monotonic()
        try:
            await self.spools.append(windows)
        finally:
            self._writing_since_s = None
            self._metrics.count_dropped(self.spools.dropped - before)
