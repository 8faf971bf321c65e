"""Changes as server-sent events.

A client has no queue: when it can take more it gets what differs from the version that it has, so a slow one
skips what lay between. One that takes nothing for a while is cut off, and comes back with the version it had.
"""

from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import orjson
from aiohttp import web

from gpuloom.errors import GpuloomError
from gpuloom.runtime.clock import Clock, deadline
from services.console.aggregator import Aggregator
from services.console.core.sight import Sight
from services.console.core.state import Delta
from services.console.metrics import ConsoleMetrics
from services.console.web.access import Viewer

PACE_S = 0.5
"""Between two events of a client at least."""
HEARTBEAT_S = 10.0
SLOW_S = 15.0
REVIEW_S = 30.0
"""So often it is asked whether somebody may still look."""
MOST_ENCODED = 16
_ALL_EVENT, _ALL = -1, -2
"""Where no version is: everything as an event, and by itself."""
BEAT = b"event: beat\ndata: {}\n\n"
"""An event and not a comment, because of comments a page's script is told nothing."""

Review = Callable[[], Awaitable[Viewer | None]]


class Encoder:
    """What goes out as bytes. Clients that have the same version and see the same share one encoding."""

    def __init__(self, aggregator: Aggregator) -> None:
        self._aggregator = aggregator
        self._encoded: OrderedDict[tuple[int, int, Sight], bytes] = OrderedDict()

    def event(self, after: int | None, sight: Sight) -> bytes:
        """What differs from version `after`; None, or one that is too old, gives everything."""
        return self._once(_ALL_EVENT if after is None else after, sight, lambda: self._event(after, sight))

    def _once(self, what: int, sight: Sight, make: Callable[[], bytes]) -> bytes:
        key = (what, self._aggregator.state.version, sight)
        found = self._encoded.get(key)
        if found is not None:
            self._encoded.move_to_end(key)
            return found
        made = make()
        self._encoded[key] = made
        if len(self._encoded) > MOST_ENCODED:
            self._encoded.popitem(last=False)
        return made

    def _event(self, after: int | None, sight: Sight) -> bytes:
        delta = None
        if after is not None:
            delta = self._aggregator.state.since(after, self._aggregator.mask(sight))
        return self._full(sight) if delta is None else self._delta(delta)

    def version(self, number: int) -> str:
        return f"{self._aggregator.epoch}.{number}"

    def number(self, version: str) -> int | None:
        """Of a version of this run; None of any other."""
        epoch, _, number = version.partition(".")
        if epoch != self._aggregator.epoch or not number.isdecimal() or len(number) > 15:
            return None
        return int(number)

    def snapshot(self, sight: Sight) -> bytes:
        return self._once(_ALL, sight, lambda: self._snapshot(sight))

    def _snapshot(self, sight: Sight) -> bytes:
        state = self._aggregator.state
        body = {"version": self.version(state.version), "sections": state.full(self._aggregator.mask(sight))}
        return orjson.dumps(body)

    def _full(self, sight: Sight) -> bytes:
        return _event("full", self.version(self._aggregator.state.version), self.snapshot(sight))

    def _delta(self, delta: Delta) -> bytes:
        version = self.version(delta.version)
        body = {
            "after": self.version(delta.after),
            "version": version,
            "set": delta.changed,
            "gone": delta.gone,
        }
        return _event("delta", version, orjson.dumps(body))


@dataclass(slots=True)
class Stream:
    """One client that watches."""

    encoder: Encoder
    aggregator: Aggregator
    clock: Clock
    metrics: ConsoleMetrics
    review: Review

    async def send(self, response: web.StreamResponse, viewer: Viewer, after: int | None) -> str:
        """Until the client leaves or is cut off; says which."""
        reviewed_s = self.clock.monotonic()
        sight, state = viewer.sight, self.aggregator.state
        while True:
            version = state.version
            if after != version:
                event = self.encoder.event(after, sight)
                if not await self._write(response, event):
                    return "slow"
                after = version
            await self.clock.sleep(PACE_S)
            idle = state.version == after and not await self._changed()
            if idle and not await self._write(response, BEAT):
                return "slow"
            if self.clock.monotonic() - reviewed_s >= REVIEW_S:
                reviewed_s = self.clock.monotonic()
                again = await self._viewer(viewer)
                if again is None:
                    return "refused"
                if again.sight != sight:
                    sight, after = again.sight, None

    async def _changed(self) -> bool:
        try:
            async with deadline(self.clock, HEARTBEAT_S):
                await self.aggregator.wait_changed()
        except TimeoutError:
            return False
        return True

    async def _viewer(self, last: Viewer) -> Viewer | None:
        """While Kubernetes can't be asked whoever looks goes on looking."""
        try:
            return await self.review()
        except GpuloomError:
            return last

    async def _write(self, response: web.StreamResponse, event: bytes) -> bool:
        self.metrics.sent_bytes.inc(len(event))
        try:
            async with deadline(self.clock, SLOW_S):
                await response.write(event)
        except TimeoutError:
            return False
        return True


def _event(kind: str, version: str, body: bytes) -> bytes:
    return b"".join((b"id: ", version.encode(), b"\nevent: ", kind.encode(), b"\ndata: ", body, b"\n\n"))
