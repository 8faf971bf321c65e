"""A connection over HTTP/2 with everything around it, and the client's side of it, written by hand."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import hpack

from gpuloom.runtime.clock import FakeClock, settle
from services.scheduler_extender import http2_frames as h2
from services.scheduler_extender.http import OpenConnections
from services.scheduler_extender.http2 import Http2Connection
from tests.unit.scheduler_extender.lines import Echo, Wire

Sent = tuple[int, int, int, bytes]
"""Kind, flags, stream, payload."""

START = h2.PREFACE + h2.frame(h2.SETTINGS, 0, 0)
NO_TABLE = b"\x20"
"""So a block begins in which the client says that it keeps none."""
ACK = h2.frame(h2.SETTINGS, h2.ACK, 0)


@dataclass
class Answer:
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    is_whole: bool = False

    @property
    def status(self) -> int:
        return int(self.headers[":status"])


class Http2Line:
    """`started`: the client has said hello. `beside`: a line that comes to the same port."""

    def __init__(self, started: bool = True, beside: "Http2Line | None" = None) -> None:
        self.clock: FakeClock = FakeClock() if beside is None else beside.clock
        self.echo = Echo()
        self.room: OpenConnections = OpenConnections() if beside is None else beside.room
        self.connection = Http2Connection(self.echo, self.room, self.clock)
        self.wire = Wire(self.connection)
        self.connection.connection_made(self.wire)
        if started:
            self.send(START)

    def send(self, *parts: bytes) -> None:
        for part in parts:
            if not self.wire.closing:
                self.connection.data_received(part)

    def settle_in(self) -> None:
        """The client sees our settings, and makes its first call by them."""
        flags = h2.END_HEADERS | h2.END_STREAM
        self.send(ACK, h2.frame(h2.HEADERS, flags, 1, NO_TABLE + a_block("/now")))

    async def finish(self) -> None:
        self.echo.go.set()
        await settle()

    async def after(self, delay_s: float) -> None:
        await self.clock.advance(delay_s)
        self.connection.expire(self.clock.monotonic())

    def hang_up(self) -> None:
        self.wire.closing = True
        self.connection.connection_lost(None)

    @property
    def frames(self) -> list[Sent]:
        return list(cut_frames(bytes(self.wire.sent)))

    @property
    def answers(self) -> dict[int, Answer]:
        return answers_in(self.frames)

    @property
    def statuses(self) -> dict[int, int]:
        return {stream: answer.status for stream, answer in self.answers.items()}

    @property
    def resets(self) -> list[tuple[int, int]]:
        """Stream and code."""
        return [
            (stream, h2.NUMBER.unpack(payload)[0])
            for kind, _, stream, payload in self.frames
            if kind == h2.RST_STREAM
        ]

    @property
    def farewells(self) -> list[tuple[int, int]]:
        """Last stream and code."""
        return [
            (h2.NUMBER.unpack(payload[:4])[0], h2.NUMBER.unpack(payload[4:8])[0])
            for kind, _, _, payload in self.frames
            if kind == h2.GOAWAY
        ]

    def payloads(self, kind: int) -> list[bytes]:
        return [payload for found, _, _, payload in self.frames if found == kind]


def cut_frames(sent: bytes) -> Iterator[Sent]:
    while sent:
        high, low, kind, flags, stream = h2.FRAME_HEAD.unpack_from(sent)
        end = h2.FRAME_HEAD.size + (high << 16 | low)
        assert len(sent) >= end
        yield kind, flags, stream, sent[h2.FRAME_HEAD.size : end]
        sent = sent[end:]


def answers_in(frames: Iterable[Sent]) -> dict[int, Answer]:
    decoder, answers = hpack.Decoder(), dict[int, Answer]()
    for kind, flags, stream, payload in frames:
        if kind == h2.HEADERS:
            assert stream not in answers
            answers[stream] = Answer({str(name): str(value) for name, value in decoder.decode(payload)})
        elif kind == h2.DATA:
            answers[stream].body += payload
        if kind in (h2.HEADERS, h2.DATA) and flags & h2.END_STREAM:
            answers[stream].is_whole = True
    return answers


def a_block(path: str, *headers: tuple[str, str], method: str = "POST") -> bytes:
    """As a client makes it that keeps no table."""
    fields = [(":method", method), (":scheme", "https"), (":path", path), (":authority", "x"), *headers]
    encoder = hpack.Encoder()
    encoder.header_table_size = 0
    return bytes(encoder.encode(fields)[1:])


def a_head(stream: int, path: str, *headers: tuple[str, str], flags: int = h2.END_HEADERS) -> bytes:
    return h2.frame(h2.HEADERS, flags, stream, a_block(path, *headers))


def a_part(stream: int, body: bytes, ends: bool = False, padding: int | None = None) -> bytes:
    flags = h2.END_STREAM if ends else 0
    if padding is None:
        return h2.frame(h2.DATA, flags, stream, body)
    return h2.frame(h2.DATA, flags | h2.PADDED, stream, bytes([padding]) + body + b"\0" * padding)


def a_call(stream: int, path: str, body: bytes = b"", *headers: tuple[str, str]) -> bytes:
    length = ("content-length", str(len(body)))
    if not body:
        return a_head(stream, path, length, *headers, flags=h2.END_HEADERS | h2.END_STREAM)
    return a_head(stream, path, length, *headers) + a_part(stream, body, ends=True)


def settings(**values: int) -> bytes:
    """By the names in http2_frames.py."""
    return h2.frame(
        h2.SETTINGS,
        0,
        0,
        b"".join(h2.SETTING.pack(getattr(h2, name), value) for name, value in values.items()),
    )


def a_ping(payload: bytes = b"12345678") -> bytes:
    return h2.frame(h2.PING, 0, 0, payload)
