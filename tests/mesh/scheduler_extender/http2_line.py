"""One connection to the extender's port over HTTP/2, spoken by a client that is not ours."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import orjson

from tests.mesh.scheduler_extender.line import shown_by
from tests.unit.scheduler_extender.http2_client import Http2Client
from tests.unit.scheduler_extender.http2_lines import Answer

_PATIENCE_S = 15.0


class Http2TlsLine:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.client = Http2Client()
        self._reader = reader
        self._writer = writer

    @property
    def protocol(self) -> str | None:
        """That TLS agreed on."""
        tls: ssl.SSLObject = self._writer.get_extra_info("ssl_object")
        return tls.selected_alpn_protocol()

    async def post(self, path: str, body: object) -> Answer:
        return await self.answer_to(self.ask(path, body))

    def ask(self, path: str, body: object) -> int:
        stream = self.client.ask(path, body if isinstance(body, bytes) else orjson.dumps(body))
        self._writer.write(self.client.say())
        return stream

    async def answer_to(self, stream: int) -> Answer:
        async with asyncio.timeout(_PATIENCE_S):
            while not self.client.answers[stream].is_whole:
                await self._hear()
        return self.client.answers[stream]

    async def is_closed(self) -> bool:
        """Whether the server says farewell and ends the connection."""
        async with asyncio.timeout(_PATIENCE_S):
            while await self._hear():
                pass
        return self.client.left

    async def hears_farewell(self) -> bool:
        async with asyncio.timeout(_PATIENCE_S):
            while not self.client.left and await self._hear():
                pass
        return self.client.left

    async def _hear(self) -> bool:
        data = await self._reader.read(65_536)
        self.client.hear(data)
        if data:
            self._writer.write(self.client.say())
        return bool(data)


@asynccontextmanager
async def an_http2_line(port: int, tls: ssl.SSLContext) -> AsyncIterator[Http2TlsLine]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=tls)
    try:
        yield Http2TlsLine(reader, writer)
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()


def offering(folder: Path, *protocols: str) -> ssl.SSLContext:
    """kube-scheduler's certificate, and these protocols."""
    tls = shown_by(folder, "kube_scheduler")
    if protocols:
        tls.set_alpn_protocols(list(protocols))
    return tls
