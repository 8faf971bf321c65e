"""Counts the calls on one connection, so that a connection to be replaced is closed only when idle."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager


class ActiveCalls:
    def __init__(self) -> None:
        self._count = 0
        self._idle = asyncio.Event()
        self._idle.set()

    def begin(self) -> None:
        self._count += 1
        self._idle.clear()

    def end(self) -> None:
        self._count -= 1
        if self._count == 0:
            self._idle.set()

    @contextmanager
    def one(self) -> Iterator[None]:
        self.begin()
        try:
            yield
        finally:
            self.end()

    async def idle(self) -> None:
        await self._idle.wait()
