"""One connection to the extender's port, byte by byte, as kube-scheduler keeps it."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from gpuloom.rpc.dev_ca import tls_files
from gpuloom.rpc.tls import CertificateSource, client_ssl_context
from tests.mesh.waiting import PATIENCE_S


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        assert self.status == 200, self.body
        return orjson.loads(self.body)


class Line:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def post(self, path: str, body: object) -> Answer:
        return await self.ask("POST", path, body if isinstance(body, bytes) else orjson.dumps(body))

    async def ask(self, method: str, path: str, body: bytes = b"") -> Answer:
        head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
        self._writer.write(head.encode() + body)
        async with asyncio.timeout(PATIENCE_S):
            return await self._answer()

    async def is_closed(self) -> bool:
        """Whether the server ends the connection after what it said."""
        async with asyncio.timeout(PATIENCE_S):
            return await self._reader.read() == b""

    async def _answer(self) -> Answer:
        head = (await self._reader.readuntil(b"\r\n\r\n")).decode()
        status, *lines = head.rstrip().split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        body = await self._reader.readexactly(int(headers["content-length"]))
        return Answer(int(status.split()[1]), headers, body)


@asynccontextmanager
async def a_line(port: int, tls: ssl.SSLContext | None) -> AsyncIterator[Line]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=tls)
    try:
        yield Line(reader, writer)
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()


def shown_by(folder: Path, caller: str) -> ssl.SSLContext:
    """TLS with the certificate of this caller."""
    return client_ssl_context(CertificateSource(tls_files(folder, caller), lambda outcome: None))


def showing_nothing(folder: Path) -> ssl.SSLContext:
    """TLS that believes the server, and shows no certificate itself."""
    return ssl.create_default_context(cafile=str(folder / "ca.crt"))
