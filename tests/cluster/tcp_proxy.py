"""A port that passes bytes on to another one and can break all its connections at once."""

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Self

from gpuloom.sim.processes.ports import HOST

_CHUNK_BYTES = 64 * 1024


class TcpProxy:
    """Async context manager. `port` is its own, `target` the port of loopback that it passes on to.

    A target that is asked for at every connection may be None: then nobody answers.
    """

    def __init__(self, target: int | Callable[[], int | None]) -> None:
        self.port = 0
        self._target: Callable[[], int | None] = target if callable(target) else lambda: target
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, HOST, 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._server is not None:
            self._server.close()
        self.break_connections()
        if self._connections:
            await asyncio.wait(self._connections)

    def break_connections(self) -> None:
        """Without a farewell, as a network does it."""
        for writer in self._writers:
            writer.transport.abort()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is not None:
            self._connections.add(task)
            task.add_done_callback(self._connections.discard)
        target = self._target()
        if target is None:
            writer.transport.abort()
            return
        try:
            other_reader, other_writer = await asyncio.open_connection(HOST, target)
        except OSError:
            writer.transport.abort()
            return
        pair = {writer, other_writer}
        self._writers |= pair
        try:
            await asyncio.gather(_pass_on(reader, other_writer), _pass_on(other_reader, writer))
        finally:
            for one in pair:
                one.transport.abort()
            self._writers -= pair


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while chunk := await reader.read(_CHUNK_BYTES):
            writer.write(chunk)
            await writer.drain()
    except OSError:
        pass
    # Whichever side ends, both do: a TLS connection has no use for half of one.
    writer.transport.abort()
