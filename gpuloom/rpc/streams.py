"""Both ends of "the full state first, then versioned deltas".

The sender's end keeps one bounded queue per reader and gives up a reader that is too slow, rather than its
own memory; the reader's end decides whether a message continues what it has. Neither knows what a delta
means, and neither keeps the state itself.
"""

import asyncio
import secrets
from collections import deque
from dataclasses import dataclass
from types import TracebackType
from typing import Generic, Self, TypeVar

from gpuloom.errors import ConflictError, TooLargeError
from gpuloom.model.version import StreamVersion
from gpuloom.runtime.clock import Clock, deadline

Delta = TypeVar("Delta")


class ReaderTooSlowError(TooLargeError):
    """The reader fell too far behind; it opens the stream again and gets the full state."""


class StreamGapError(ConflictError):
    """The reader missed something; it drops what it has and opens the stream again."""


@dataclass(frozen=True, slots=True)
class Update(Generic[Delta]):
    """A delta, the version it builds on, and the version after it."""

    number: int
    after: int
    delta: Delta


class VersionedFeed(Generic[Delta]):
    """Numbers the changes of a state and hands them to every reader."""

    def __init__(self, clock: Clock, epoch: str | None = None, capacity: int = 256) -> None:
        """`capacity` is how many deltas a reader may be behind."""
        self.epoch = epoch or secrets.token_hex(8)
        self.number = 0
        self._clock = clock
        self._capacity = capacity
        self._readers: set[Subscription[Delta]] = set()

    def publish(self, delta: Delta) -> int:
        """Count a change that the sender's state already holds; returns the version after it."""
        update = Update(self.number + 1, self.number, delta)
        self.number = update.number
        for reader in tuple(self._readers):
            if not reader.offer(update):
                self._readers.discard(reader)
        return update.number

    def subscribe(self, heartbeat_s: float | None = None) -> "Subscription[Delta]":
        """Follow from the present version on; take the full state with it, without an await in between.

        Use it as a context manager. It yields None when nothing came for heartbeat_s.
        """
        reader = Subscription(self, self._clock, self._capacity, heartbeat_s)
        self._readers.add(reader)
        return reader

    def unsubscribe(self, reader: "Subscription[Delta]") -> None:
        self._readers.discard(reader)


class Subscription(Generic[Delta]):
    """One reader's queue: an async iterator of updates and, for silence, None."""

    def __init__(
        self, feed: VersionedFeed[Delta], clock: Clock, capacity: int, heartbeat_s: float | None
    ) -> None:
        self.epoch = feed.epoch
        self.number = feed.number
        """Where this reader stands: what a full state or a heartbeat sent to it must say."""
        self._feed = feed
        self._clock = clock
        self._capacity = capacity
        self._heartbeat_s = heartbeat_s
        self._queue: deque[Update[Delta]] = deque()
        self._arrived = asyncio.Event()
        self._too_slow = False
        self._closed = False

    def offer(self, update: Update[Delta]) -> bool:
        """Queue an update. False, and the end of this reader, if there is no room."""
        if len(self._queue) >= self._capacity:
            self._queue.clear()
            self._too_slow = True
        else:
            self._queue.append(update)
        self._arrived.set()
        return not self._too_slow

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Update[Delta] | None:
        if not self._has_news():
            await self._news()
        if self._too_slow:
            raise ReaderTooSlowError(f"more than {self._capacity} changes behind; read the full state again")
        if self._queue:
            update = self._queue.popleft()
            self.number = update.number
            return update
        if self._closed:
            raise StopAsyncIteration
        return None

    def close(self) -> None:
        """Stop following; an iteration that waits ends."""
        self._closed = True
        self._queue.clear()
        self._arrived.set()
        self._feed.unsubscribe(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _has_news(self) -> bool:
        return bool(self._queue) or self._too_slow or self._closed

    async def _news(self) -> None:
        self._arrived.clear()
        if self._heartbeat_s is None:
            await self._arrived.wait()
            return
        try:
            async with deadline(self._clock, self._heartbeat_s):
                await self._arrived.wait()
        except TimeoutError:
            return


class StreamCursor:
    """Where a reader stands in one stream. Make a new one each time the stream is opened."""

    def __init__(self) -> None:
        self.version: StreamVersion | None = None
        self._in_full_state = True

    def accept(self, epoch: str, number: int, after: int, is_full: bool) -> None:
        """Move on to this message's version. Raise StreamGapError if it does not continue what was read."""
        if is_full:
            self._accept_full(StreamVersion(epoch, number), after)
        else:
            self._accept_delta(StreamVersion(epoch, number), after)

    def _accept_full(self, version: StreamVersion, after: int) -> None:
        if after != 0:
            raise StreamGapError(f"a full state builds on nothing, this one on {after}")
        # A large state comes in parts of one version; anything else means the stream began anew.
        if not self._in_full_state or self.version not in (None, version):
            raise StreamGapError("a second full state in one stream")
        self.version = version

    def _accept_delta(self, version: StreamVersion, after: int) -> None:
        if self.version is None:
            raise StreamGapError("the stream did not begin with the full state")
        if version.epoch != self.version.epoch:
            raise StreamGapError("the sender has started anew")
        if after != self.version.number or version.number < after:
            raise StreamGapError(
                f"at version {self.version.number}, but the message leads from {after} to {version.number}"
            )
        self.version = version
        self._in_full_state = False
