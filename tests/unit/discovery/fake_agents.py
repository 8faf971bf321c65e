"""Agents that say what a test tells them to, and remember who listens."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from gpuloom.model.node import NodeState
from gpuloom.runtime.clock import Clock
from gpuloom.runtime.parsers import Address

Word = NodeState | Exception | None
"""A state, an error that ends the stream, or None for "nothing changed"."""


class FakeStream:
    """One opened stream of one agent."""

    def __init__(self, address: Address, opened_s: float) -> None:
        self.address = address
        self.opened_s = opened_s
        self.open = True
        self.has_spoken = False
        # Bounded by the test, which says a handful of words.
        self._words: asyncio.Queue[tuple[Word] | None] = asyncio.Queue()

    def say(self, *words: Word) -> None:
        for word in words:
            self._words.put_nowait((word,))

    def end(self) -> None:
        self._words.put_nowait(None)

    async def words(self) -> AsyncIterator[NodeState | None]:
        while (said := await self._words.get()) is not None:
            (word,) = said
            if isinstance(word, Exception):
                raise word
            self.has_spoken = True
            yield word


class FakeAgents:
    """Every stream that was opened, oldest first. `greet` is what the agents at an address say at once."""

    def __init__(self, clock: Clock) -> None:
        self.streams: list[FakeStream] = []
        self.links: list[Address] = []
        self.greet: dict[Address, tuple[Word, ...]] = {}
        self._clock = clock

    @asynccontextmanager
    async def link(self, address: Address) -> AsyncIterator["FakeLink"]:
        self.links.append(address)
        try:
            yield FakeLink(self, address)
        finally:
            self.links.remove(address)

    def open(self, address: Address) -> FakeStream:
        stream = FakeStream(address, self._clock.monotonic())
        stream.say(*self.greet.get(address, ()))
        self.streams.append(stream)
        return stream

    def of(self, address: Address) -> list[FakeStream]:
        return [stream for stream in self.streams if stream.address == address]

    def connecting(self) -> int:
        return sum(stream.open and not stream.has_spoken for stream in self.streams)


class FakeLink:
    def __init__(self, agents: FakeAgents, address: Address) -> None:
        self._agents = agents
        self._address = address

    @asynccontextmanager
    async def states(self) -> AsyncIterator[AsyncIterator[NodeState | None]]:
        stream = self._agents.open(self._address)
        try:
            yield stream.words()
        finally:
            stream.open = False
