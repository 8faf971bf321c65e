"""HTTP/2 as bytes: how frames are cut and checked for their form, and how those are made that are sent.

An answer's head is written by hand: it names no entry of a table that both ends would have to keep. What a
frame means is decided by `http2_streams.py`.
"""

import struct
from http import HTTPStatus

from services.scheduler_extender.framing import MAX_HEAD_BYTES, Reply

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS = range(5)
PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(5, 10)

ACK = END_STREAM = 0x1
END_HEADERS = 0x4
PADDED = 0x8
WITH_PRIORITY = 0x20

NO_ERROR = 0x0
PROTOCOL_ERROR = 0x1
FLOW_CONTROL_ERROR = 0x3
STREAM_CLOSED = 0x5
FRAME_SIZE_ERROR = 0x6
REFUSED_STREAM = 0x7
COMPRESSION_ERROR = 0x9
ENHANCE_YOUR_CALM = 0xB

HEADER_TABLE_SIZE, ENABLE_PUSH, MAX_CONCURRENT_STREAMS, INITIAL_WINDOW_SIZE, MAX_FRAME_SIZE = range(1, 6)
MAX_HEADER_LIST_SIZE = 6

HIGHEST_WINDOW = HIGHEST_STREAM = 2**31 - 1
FIRST_WINDOW_BYTES = 65_535
"""Of a connection, and of its streams until the other end says otherwise."""
LEAST_FRAME_BYTES, MOST_FRAME_BYTES = 2**14, 2**24 - 1

FRAME_BYTES = 64 * 1024
"""The longest that is read. More would spare little: Go fills a frame with a whole body if it may."""
STREAM_WINDOW_BYTES = 1024 * 1024
CONNECTION_WINDOW_BYTES = 16 * 1024 * 1024
"""Both are topped up when half is used, so an ordinary call needs no frame for that."""

FRAME_HEAD = struct.Struct(">BHBBL")
"""The length is of three bytes."""
SETTING = struct.Struct(">HL")
NUMBER = struct.Struct(">L")

# Literals that are not kept, with names of the static table: content-type 31, content-length 28, allow 22.
_OK = b"\x88\x0f\x10\x10application/json\x0f\x0d"
_OTHER = b"\x08\x03%d\x0f\x10\x19text/plain; charset=utf-8%s\x0f\x0d"
_ALLOW = b"\x0f\x07\x04POST"

_SIZES = {PRIORITY: 5, RST_STREAM: 4, PING: 8, WINDOW_UPDATE: 4}
_OF_THE_CONNECTION = frozenset((SETTINGS, PING, GOAWAY))


class Fault(Exception):  # noqa: N818 (it is the client's)
    """The connection can't go on. `code` is of RFC 9113."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code


class Frames:
    """Cuts bytes into frames. Keeps what has come of the next one, and no more."""

    def __init__(self) -> None:
        self._greeted = False
        self._unread = b""
        self._at = 0
        self._incomplete = bytearray()
        self._needed_bytes = len(PREFACE)

    @property
    def has_more(self) -> bool:
        return self._at < len(self._unread)

    def feed(self, data: bytes) -> None:
        """To be called when there is no more."""
        if self._incomplete:
            # Not joined again at every piece: a frame that comes byte by byte would cost its length squared.
            self._incomplete += data
            if len(self._incomplete) < self._needed_bytes:
                return
            data = bytes(self._incomplete)
            self._incomplete.clear()
        self._unread, self._at = data, 0

    def next(self) -> tuple[int, int, int, bytes] | None:
        """Kind, flags, stream and payload, or None until more has come. Raise Fault."""
        if not self._greeted and not self._read_preface():
            return None
        data, at = self._unread, self._at
        start, end = at + FRAME_HEAD.size, len(data)
        if start > end:
            self._keep(FRAME_HEAD.size)
            return None
        high, low, kind, flags, stream = FRAME_HEAD.unpack_from(data, at)
        after = start + (high << 16 | low)
        if after - start > FRAME_BYTES:
            raise Fault(FRAME_SIZE_ERROR, f"a frame is longer than {FRAME_BYTES} bytes")
        if after > end:
            self._keep(after - at)
            return None
        self._at = after
        return kind, flags, stream & HIGHEST_STREAM, data[start:after]

    def forget(self) -> None:
        self._unread, self._at = b"", 0
        self._incomplete.clear()

    def _read_preface(self) -> bool:
        start = self._unread[: len(PREFACE)]
        if not PREFACE.startswith(start):
            raise Fault(PROTOCOL_ERROR, "this is not HTTP/2")
        if len(start) < len(PREFACE):
            self._keep(len(PREFACE))
            return False
        self._greeted, self._at = True, len(PREFACE)
        return True

    def _keep(self, needed_bytes: int) -> None:
        if self._at < len(self._unread):
            self._incomplete += self._unread[self._at :]
        self._needed_bytes = needed_bytes
        self._unread, self._at = b"", 0


def check(kind: int, flags: int, stream: int, size: int) -> None:
    """Raise Fault if a frame can't be what it says it is, whatever came before it."""
    if kind in _OF_THE_CONNECTION and stream:
        raise Fault(PROTOCOL_ERROR, "what is said of the connection belongs to no stream")
    if kind in (PRIORITY, RST_STREAM) and not stream:
        raise Fault(PROTOCOL_ERROR, "what is said of a stream belongs to one")
    if kind in _SIZES and size != _SIZES[kind]:
        raise Fault(FRAME_SIZE_ERROR, f"such a frame has {_SIZES[kind]} bytes")
    if kind == SETTINGS and (size % SETTING.size or (flags & ACK and size)):
        raise Fault(FRAME_SIZE_ERROR, f"a setting has {SETTING.size} bytes")


def unpadded(payload: bytes) -> bytes:
    if not payload or payload[0] >= len(payload):
        raise Fault(PROTOCOL_ERROR, "there is more padding than frame")
    return payload[1 : len(payload) - payload[0]]


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    size = len(payload)
    return FRAME_HEAD.pack(size >> 16, size & 0xFFFF, kind, flags, stream) + payload


def greeting() -> bytes:
    """What a server says first.

    One stream at a time: a client opens a connection for each call under way, and keeps it. No table of
    headers: so equal heads are equal bytes, and are read once (`http2_heads.py`).
    """
    announced = {
        HEADER_TABLE_SIZE: 0,
        MAX_CONCURRENT_STREAMS: 1,
        INITIAL_WINDOW_SIZE: STREAM_WINDOW_BYTES,
        MAX_FRAME_SIZE: FRAME_BYTES,
        MAX_HEADER_LIST_SIZE: MAX_HEAD_BYTES,
    }
    settings = b"".join(SETTING.pack(name, value) for name, value in announced.items())
    return frame(SETTINGS, 0, 0, settings) + window_update(0, CONNECTION_WINDOW_BYTES - FIRST_WINDOW_BYTES)


def window_update(stream: int, more_bytes: int) -> bytes:
    return frame(WINDOW_UPDATE, 0, stream, NUMBER.pack(more_bytes))


def reset(stream: int, code: int) -> bytes:
    return frame(RST_STREAM, 0, stream, NUMBER.pack(code))


def go_away(last_stream: int, code: int, reason: str = "") -> bytes:
    return frame(GOAWAY, 0, 0, NUMBER.pack(last_stream) + NUMBER.pack(code) + reason.encode())


def answer_head(stream: int, reply: Reply, ends: bool) -> bytes:
    """`ends`: no body follows."""
    if reply.status == HTTPStatus.OK:
        block = _OK
    else:
        allow = _ALLOW if reply.status == HTTPStatus.METHOD_NOT_ALLOWED else b""
        block = _OTHER % (reply.status, allow)
    length = b"%d" % len(reply.body)
    size = len(block) + 1 + len(length)
    flags = END_HEADERS | END_STREAM if ends else END_HEADERS
    return b"%b%b%c%b" % (FRAME_HEAD.pack(0, size, HEADERS, flags, stream), block, len(length), length)


def data_head(stream: int, size: int, ends: bool) -> bytes:
    return FRAME_HEAD.pack(size >> 16, size & 0xFFFF, DATA, END_STREAM if ends else 0, stream)
