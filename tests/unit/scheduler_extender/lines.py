"""A connection of the extender's port with everything around it: its transport and its clock are ours."""

import asyncio
import itertools
import re
from collections.abc import Coroutine, Iterable
from typing import Any

from gpuloom.runtime.clock import FakeClock, settle
from services.scheduler_extender.connection import Connection
from services.scheduler_extender.framing import Call, Caller, Reply
from services.scheduler_extender.http import OpenConnections

_STATUS = re.compile(rb"HTTP/1\.1 (\d+) ")


class Wire(asyncio.Transport):
    """In the place of a socket. `takes` is whether the other end reads."""

    def __init__(self, protocol: asyncio.Protocol) -> None:
        super().__init__()
        self.takes = True
        self.sent = bytearray()
        self.writes = 0
        self.reading = True
        self.closing = False
        self.aborted = False
        self.half_closed = False
        self._protocol = protocol

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert not self.closing
        self.sent += data
        self.writes += 1
        if not self.takes:
            self._protocol.pause_writing()

    def take(self) -> None:
        self.takes = True
        self._protocol.resume_writing()

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        self.closing = True

    def abort(self) -> None:
        self.closing = self.aborted = True

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.half_closed = True

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_extra_info(self, name: str, default: object = None) -> object:
        return default


class Echo:
    """Answers with the body that was sent: /now at once, /later when it is let go. /no is refused."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.recorded: list[tuple[str, str]] = []
        self.answered = 0

    def caller_of(self, transport: asyncio.BaseTransport) -> Caller:
        return Caller("somebody")

    def admit(self, call: Call) -> Reply | None:
        if call.target == b"/no":
            return Reply(403, b"no\n", "forbidden")
        if call.method != b"POST":
            return Reply(405, b"post\n")
        call.verb = call.target.decode(errors="replace")
        return None

    def answer(self, call: Call) -> Reply | Coroutine[Any, Any, Reply]:
        self.answered += 1
        reply = Reply(200, b"<" + bytes(call.body) + b">", "ok")
        return self._later(reply) if call.verb == "/later" else reply

    def record(self, call: Call, reply: Reply, now_s: float) -> None:
        self.recorded.append((call.verb, reply.outcome))

    async def _later(self, reply: Reply) -> Reply:
        await self.go.wait()
        return reply


class Line:
    """A connection with everything around it."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.echo = Echo()
        self.room = OpenConnections()
        self.connection = Connection(self.echo, self.room, self.clock)
        self.wire = Wire(self.connection)
        self.connection.connection_made(self.wire)

    def send(self, *parts: bytes) -> None:
        for part in parts:
            if not self.wire.closing:
                self.connection.data_received(part)

    async def finish(self) -> None:
        """Let go what waits, as often as something new comes to wait."""
        self.echo.go.set()
        await settle()

    async def after(self, delay_s: float) -> None:
        await self.clock.advance(delay_s)
        self.connection.expire(self.clock.monotonic())

    @property
    def statuses(self) -> list[int]:
        return [int(status) for status in _STATUS.findall(bytes(self.wire.sent))]

    @property
    def has_ended(self) -> bool:
        return self.wire.closing or self.wire.half_closed

    def hang_up(self) -> None:
        self.wire.closing = True
        self.connection.connection_lost(None)


def a_post(path: str, body: bytes = b"", *headers: str) -> bytes:
    lines = (f"POST {path} HTTP/1.1", "Host: x", f"Content-Length: {len(body)}", *headers)
    return "\r\n".join((*lines, "", "")).encode() + body


def a_chunked_post(path: str, chunks: Iterable[bytes], trailer: bytes = b"") -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
    return head + b"".join(b"%x\r\n%s\r\n" % (len(c), c) for c in chunks if c) + b"0\r\n" + trailer + b"\r\n"


def answers_with(body: bytes, connection: str = "keep-alive") -> bytes:
    head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body) + 2}\r\n"
    return f"{head}Connection: {connection}\r\n\r\n".encode() + b"<" + body + b">"


def cut(stream: bytes, places: Iterable[int]) -> list[bytes]:
    edges = [0, *sorted({place % (len(stream) + 1) for place in places}), len(stream)]
    return [stream[start:end] for start, end in itertools.pairwise(edges) if start < end]
