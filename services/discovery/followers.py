"""One follower per agent: connects, follows its stream, and comes back with backoff when it is lost.

Tells the model what it hears and nothing else; whether a silence matters is the model's to say.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from enum import Enum
from random import Random
from typing import Final, Literal

from gpuloom.errors import GpuloomError
from gpuloom.model.node import NodeState
from gpuloom.runtime.backoff import Backoff
from gpuloom.runtime.clock import Clock, deadline
from gpuloom.runtime.parsers import Address
from services.discovery.ports import AgentLink, Agents

_log = logging.getLogger(__name__)

Hear = Callable[[str, NodeState | None], None]


class _Marker(Enum):
    END = "end"


END: Final = _Marker.END
End = Literal[_Marker.END]


@dataclass(frozen=True, slots=True)
class FollowerSettings:
    """`silence_s`: a stream that says nothing for so long is opened anew, whatever the connection says."""

    concurrent_connects: int
    silence_s: float
    first_backoff_s: float = 0.2
    backoff_cap_s: float = 5.0


class Followers:
    """Runs a follower for each agent it was told of, at the address it was told last."""

    def __init__(self, agents: Agents, hear: Hear, clock: Clock, settings: FollowerSettings) -> None:
        self._agents = agents
        self._hear = hear
        self._clock = clock
        self._settings = settings
        self._connecting = asyncio.Semaphore(settings.concurrent_connects)
        self._wanted: dict[str, Address] = {}
        self._changed = asyncio.Event()
        self._random = Random()

    def follow(self, name: str, address: Address) -> None:
        """From now on follow the agent of this node there."""
        self._wanted[name] = address
        self._changed.set()

    def forget(self, name: str) -> None:
        """From now on don't follow the agent of this node."""
        self._wanted.pop(name, None)
        self._changed.set()

    async def run(self) -> None:
        running: dict[str, tuple[Address, asyncio.Task[None]]] = {}
        async with asyncio.TaskGroup() as group:
            while True:
                self._changed.clear()
                for name, (address, task) in list(running.items()):
                    if self._wanted.get(name) != address:
                        task.cancel()
                        del running[name]
                for name, address in self._wanted.items():
                    if name not in running:
                        running[name] = address, group.create_task(self._follow(name, address))
                await self._changed.wait()

    async def _follow(self, name: str, address: Address) -> None:
        backoff = Backoff(self._settings.first_backoff_s, self._settings.backoff_cap_s, self._random)
        async with self._agents.link(address) as link:
            while True:
                try:
                    await self._listen(name, link, backoff)
                    reason = "the stream ended"
                except (GpuloomError, TimeoutError) as error:
                    reason = str(error)
                fields = {"node": name, "agent": str(address), "reason": reason}
                _log.info("agent lost, trying again", extra=fields)
                await self._clock.sleep(backoff.next_delay_s())

    async def _listen(self, name: str, link: AgentLink, backoff: Backoff) -> None:
        async with AsyncExitStack() as stream:
            # Connecting ends with the first message, which carries the whole state; the rest is cheap.
            async with self._connecting:
                states = await stream.enter_async_context(link.states())
                news = await self._next(states)
            if news is not END:
                _log.info("agent followed", extra={"node": name})
            while news is not END:
                self._hear(name, news)
                news = await self._next(states)
                if news is not END:
                    backoff.reset()

    async def _next(self, states: AsyncIterator[NodeState | None]) -> NodeState | End | None:
        async with deadline(self._clock, self._settings.silence_s):
            return await anext(states, END)
