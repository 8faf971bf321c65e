"""One follower per agent: connects, follows its stream, and comes back with backoff when it is lost.

Tells the model what it hears and nothing else; whether a silence matters is the model's to say.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from enum import Enum
from random import Random
from typing import Final

from gpuloom.errors import GpuloomError
from gpuloom.model.node import NodeState
from gpuloom.runtime.backoff import Backoff
from gpuloom.runtime.clock import Clock, deadline
from gpuloom.runtime.interruption import interrupted_by
from gpuloom.runtime.parsers import Address
from services.discovery.ports import AgentLink, Agents

_log = logging.getLogger(__name__)

# Long enough for a TLS handshake with an agent that is busy.
CONNECT_S = 5.0

Hear = Callable[[str, NodeState | None], None]


class _Marker(Enum):
    END = "end"


END: Final = _Marker.END


@dataclass(frozen=True, slots=True)
class FollowerSettings:
    """`silence_s`: a stream that says nothing for so long is opened anew, whatever the connection says.

    `connect_s` bounds a first answer: an address that swallows packets must not keep others waiting for long.
    """

    concurrent_connects: int
    silence_s: float
    connect_s: float = CONNECT_S
    first_backoff_s: float = 0.2
    backoff_cap_s: float = 5.0


@dataclass(slots=True)
class _Course:
    """How it goes with one agent. `answered`: it did so at the last try; the first is in good faith."""

    backoff: Backoff
    answered: bool = True
    heard_s: float = 0.0


class Followers:
    """Runs a follower for each agent it was told of, at the address it was told last."""

    def __init__(self, agents: Agents, hear: Hear, clock: Clock, settings: FollowerSettings) -> None:
        self._agents = agents
        self._hear = hear
        self._clock = clock
        self._settings = settings
        # Agents that did not answer last time queue apart: with many nodes down, those that are up would
        # else wait behind them for longer than their TTL.
        self._connecting = asyncio.Semaphore(settings.concurrent_connects)
        self._retrying = asyncio.Semaphore(settings.concurrent_connects)
        self._wanted: dict[str, Address] = {}
        self._changed: dict[str, None] = {}
        self._wake = asyncio.Event()
        self._random = Random()

    def follow(self, name: str, address: Address) -> None:
        """From now on follow the agent of this node there."""
        self._wanted[name] = address
        self._change(name)

    def forget(self, name: str) -> None:
        """From now on don't follow the agent of this node."""
        if self._wanted.pop(name, None) is not None:
            self._change(name)

    async def run(self) -> None:
        for name in self._wanted:
            self._change(name)
        running: dict[str, tuple[Address, asyncio.Task[None]]] = {}
        async with asyncio.TaskGroup() as group:
            while True:
                await self._wake.wait()
                self._wake.clear()
                changed, self._changed = self._changed, {}
                for name in changed:
                    address, before = self._wanted.get(name), running.get(name)
                    if before is not None and before[0] != address:
                        before[1].cancel()
                        del running[name]
                    if address is not None and name not in running:
                        running[name] = address, group.create_task(self._follow(name, address))

    def _change(self, name: str) -> None:
        self._changed[name] = None
        self._wake.set()

    async def _follow(self, name: str, address: Address) -> None:
        first_s, cap_s = self._settings.first_backoff_s, self._settings.backoff_cap_s
        course = _Course(Backoff(first_s, cap_s, self._random))
        async with self._agents.link(address) as link:
            while True:
                try:
                    await self._listen(name, link, course)
                    reason = "the stream ended"
                except (GpuloomError, TimeoutError) as error:
                    reason = str(error)
                fields = {"node": name, "agent": str(address), "reason": reason}
                _log.info("agent lost, trying again", extra=fields)
                await self._clock.sleep(course.backoff.next_delay_s())

    async def _listen(self, name: str, link: AgentLink, course: _Course) -> None:
        entrance = self._connecting if course.answered else self._retrying
        course.answered = False
        async with AsyncExitStack() as stream:
            # Connecting ends with the first message, which carries the whole state; the rest is cheap.
            async with entrance, deadline(self._clock, self._settings.connect_s):
                states = await stream.enter_async_context(link.states())
                news = await anext(states, END)
            if news is not END:
                course.answered = True
                _log.info("agent followed", extra={"node": name})
            course.heard_s = self._clock.monotonic()
            # One watch a stream, not one a message: a thousand agents speak all the time.
            async with interrupted_by(lambda: self._silence(course)) as silence:
                while news is not END:
                    course.heard_s = self._clock.monotonic()
                    self._hear(name, news)
                    news = await anext(states, END)
                    if news is not END:
                        course.backoff.reset()
        if silence.happened:
            raise TimeoutError(f"nothing heard for {self._settings.silence_s:g} s")

    async def _silence(self, course: _Course) -> None:
        """Return once nothing was heard for too long."""
        while (left_s := course.heard_s + self._settings.silence_s - self._clock.monotonic()) > 0:
            await self._clock.sleep(left_s)
