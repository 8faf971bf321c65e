"""Follows the usage windows of all nodes, for whoever keeps them.

Decides which agent is read when. The consumer keeps the cursors, together with what it makes of the windows,
so each window is taken once, whatever dies. A node that is up to date never waits for one that is behind:
those take turns, a few at a time and a few messages each.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field
from random import Random
from typing import Protocol, Self

from gpuloom.clients.agent_directory import AgentDirectory, AgentPlace
from gpuloom.clients.following import keep_following
from gpuloom.codec.device import shortened
from gpuloom.codec.usage import MAX_SPOOLS, position_from_proto, window_from_proto
from gpuloom.errors import InvalidRequestError
from gpuloom.model.usage import UsageBatch, UsageCursor, UsagePosition, UsageWindow
from gpuloom.rpc.channel import RpcChannel, open_stream
from gpuloom.rpc.environment import RpcEnvironment
from gpuloom.rpc.streams import StreamGapError
from gpuloom.runtime.backoff import Backoff
from gpuloom.runtime.clock import deadline
from gpuloom.v1.node_agent_pb2 import StreamUsageRequest, StreamUsageResponse
from gpuloom.v1.node_agent_pb2_grpc import NodeAgentServiceStub
from gpuloom.v1.usage_pb2 import UsageWindow as WindowMessage

_log = logging.getLogger(__name__)

Messages = AsyncIterator[StreamUsageResponse]


class UsageConsumer(Protocol):
    async def cursors(self) -> Iterable[UsageCursor]:
        """How far it has come: of each spool the cursor that it kept last."""

    async def take(self, batch: UsageBatch) -> None:
        """Keep the windows and `batch.cursor` in one transaction.

        If it raises a GpuloomError, nothing is taken for kept: the batch comes again.
        """


@dataclass(frozen=True, slots=True)
class FollowerOptions:
    """`catching_up`: so many agents that are behind are read at once. `turn`: messages until the next."""

    catching_up: int = 8
    turn: int = 16
    live: int = 8
    """How many batches of agents that are not behind are taken at once."""
    silence_s: float = 20.0
    first_backoff_s: float = 0.5
    backoff_cap_s: float = 15.0
    jitter: Random = field(default_factory=Random)


@dataclass(slots=True)
class NodeProgress:
    """How one node's reader stands. `behind`: windows that are there and were not taken yet, at least."""

    behind: int = 0
    live: bool = False
    problem: str = ""


class UsageFollower:
    def __init__(
        self,
        directory: AgentDirectory,
        environment: RpcEnvironment,
        consumer: UsageConsumer,
        options: FollowerOptions | None = None,
    ) -> None:
        self.progress: dict[str, NodeProgress] = {}
        """By node UID, of the agents that are followed now."""
        self._directory = directory
        self._consumer = consumer
        self._options = options or FollowerOptions()
        self._shared = _Shared(environment, consumer, self._options)
        self._readers: dict[str, asyncio.Task[None]] = {}
        self._changed = asyncio.Event()
        directory.on_change(lambda _uid, _place: self._changed.set())

    async def run(self) -> None:
        """Follow until cancelled."""
        # By spool alone: it is the same spool if its node comes back under another UID.
        for cursor in await self._consumer.cursors():
            self._shared.cursors[cursor.spool_id] = cursor.sequence
        followed: dict[str, AgentPlace] = {}
        try:
            while True:
                self._changed.clear()
                places = dict(self._directory.places)
                for uid in [uid for uid, place in followed.items() if places.get(uid) != place]:
                    await self._stop(uid)
                    del followed[uid]
                for uid, place in places.items():
                    if uid not in followed:
                        followed[uid] = place
                        self._start(uid, place)
                await self._wait()
        finally:
            for uid in tuple(self._readers):
                await self._stop(uid)

    async def _wait(self) -> None:
        """Until the agents are others. Raise what ended a reader: none ends by itself."""
        changed = asyncio.create_task(self._changed.wait())
        try:
            done, _ = await asyncio.wait(
                {changed, *self._readers.values()}, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            changed.cancel()
        for task in done - {changed}:
            task.result()

    def _start(self, uid: str, place: AgentPlace) -> None:
        self.progress[uid] = NodeProgress()
        reader = _Reader(self._shared, uid, place, self.progress[uid])
        self._readers[uid] = asyncio.create_task(reader.run(), name=f"usage {place.node_name}")

    async def _stop(self, uid: str) -> None:
        task = self._readers.pop(uid)
        del self.progress[uid]
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


class _Shared:
    """What the readers of one follower share."""

    def __init__(
        self, environment: RpcEnvironment, consumer: UsageConsumer, options: FollowerOptions
    ) -> None:
        self.environment = environment
        self.consumer = consumer
        self.options = options
        self.cursors: dict[str, int] = {}
        self.turns = asyncio.Semaphore(options.catching_up)
        # All nodes close their windows at the same moment.
        self.live_takes = asyncio.Semaphore(options.live)


class _Turn:
    """A turn to catch up; whoever has caught up gives it back and goes on."""

    def __init__(self, turns: asyncio.Semaphore) -> None:
        self._turns = turns
        self.held = False

    async def __aenter__(self) -> Self:
        await self._turns.acquire()
        self.held = True
        return self

    async def __aexit__(self, *_: object) -> None:
        self.release()

    def release(self) -> None:
        if self.held:
            self.held = False
            self._turns.release()


class _Reader:
    """One agent."""

    def __init__(self, shared: _Shared, uid: str, place: AgentPlace, progress: NodeProgress) -> None:
        self._shared = shared
        self._uid = uid
        self._place = place
        self._progress = progress
        self._spool_id = ""
        self._wanted = 0
        """The next window of that spool."""
        self._read_out: set[str] = set()
        """Spools that ended and gave all that they have."""

    async def run(self) -> None:
        options, environment = self._shared.options, self._shared.environment
        backoff = Backoff(options.first_backoff_s, options.backoff_cap_s, options.jitter)
        async with RpcChannel(environment, str(self._place.address), "node_agent") as channel:
            await keep_following(
                f"usage of {self._place.node_name}",
                lambda again: self._follow(channel, again),
                backoff,
                environment.clock,
            )

    async def _follow(self, channel: RpcChannel, backoff: Backoff) -> None:
        self._progress.live = False
        while await self._read_stream(channel, backoff):
            pass

    async def _read_stream(self, channel: RpcChannel, backoff: Backoff) -> bool:
        """One stream of one spool. True: go on with another one at once."""
        request = StreamUsageRequest(spool_id=self._spool_id, from_sequence=self._wanted)
        async with (
            _Turn(self._shared.turns) as turn,
            open_stream(channel.stub(NodeAgentServiceStub).StreamUsage(request)) as messages,
        ):
            spools = _positions(await self._next(messages))
            backoff.reset()
            target = self._target(spools)
            if target.spool_id != self._spool_id:
                self._spool_id = target.spool_id
                # What was gone before anybody wanted it is not missed.
                known = self._cursor(target.spool_id)
                self._wanted = known + 1 if known else target.first
                return True
            return await self._read_spool(messages, target, target is spools[-1], turn)

    async def _read_spool(self, messages: Messages, spool: UsagePosition, is_live: bool, turn: _Turn) -> bool:
        taken = 0
        while True:
            if is_live and self._wanted > spool.last:
                turn.release()
            self._note(spool, live=not turn.held)
            if turn.held and taken >= self._shared.options.turn:
                return True
            message = await self._next(messages)
            if message is None:
                if not is_live:
                    self._read_out.add(spool.spool_id)
                return not is_live
            if message.spools:
                here = [each for each in _positions(message) if each.spool_id == spool.spool_id]
                spool = here[0] if here else spool
            else:
                await self._take(message, live=not turn.held)
                taken += 1

    def _target(self, spools: list[UsagePosition]) -> UsagePosition:
        """The oldest spool with something to read, else the one that is written."""
        for spool in spools[:-1]:
            if spool.spool_id not in self._read_out and self._cursor(spool.spool_id) < spool.last:
                return spool
        return spools[-1]

    async def _take(self, message: StreamUsageResponse, *, live: bool) -> None:
        batch = self._batch(message)
        if live:
            async with self._shared.live_takes:
                await self._shared.consumer.take(batch)
        else:
            await self._shared.consumer.take(batch)
        self._shared.cursors[self._spool_id] = batch.cursor.sequence
        self._wanted = batch.cursor.sequence + 1
        if batch.missed:
            fields = {"node": self._place.node_name, "windows": batch.missed}
            _log.warning("usage windows are lost", extra=fields)

    def _batch(self, message: StreamUsageResponse) -> UsageBatch:
        """Raise StreamGapError if it does not continue what was read."""
        numbers = [window.sequence for window in message.windows]
        first = self._wanted + message.missed
        last = first + len(numbers) - 1
        if message.spool_id != self._spool_id or numbers != list(range(first, last + 1)):
            raise StreamGapError(f"usage windows {numbers[:1]} follow where {first} was expected")
        windows = [window for each in message.windows if (window := self._decoded(each)) is not None]
        missed = message.missed + len(numbers) - len(windows)
        cursor = UsageCursor(self._uid, self._spool_id, last)
        return UsageBatch(cursor, self._place.node_name, tuple(windows), missed)

    def _decoded(self, message: WindowMessage) -> UsageWindow | None:
        """A window that can't be understood is lost; those behind it are not."""
        try:
            return window_from_proto(message)
        except InvalidRequestError as error:
            fields = {"node": self._place.node_name, "window": message.sequence, "reason": str(error)}
            _log.warning("usage window not understood", extra=fields)
            return None

    def _cursor(self, spool_id: str) -> int:
        return self._shared.cursors.get(spool_id, 0)

    def _note(self, spool: UsagePosition, *, live: bool) -> None:
        self._progress.live = live
        self._progress.behind = max(0, spool.last - self._wanted + 1)

    async def _next(self, messages: Messages) -> StreamUsageResponse | None:
        async with deadline(self._shared.environment.clock, self._shared.options.silence_s):
            message = await anext(messages, None)
        if message is not None and not message.windows and not message.missed:
            self._progress.problem = shortened(message.problem)
        return message


def _positions(message: StreamUsageResponse | None) -> list[UsagePosition]:
    """Raise StreamGapError if this is no message that says where spools stand."""
    if message is None or not 0 < len(message.spools) <= MAX_SPOOLS:
        raise StreamGapError("the agent does not say which spools it has")
    return [position_from_proto(position) for position in message.spools]
