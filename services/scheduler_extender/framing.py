"""Bytes to requests: what of a request is kept, and when it is refused for its form or its size.

Framing is llhttp's, in its strict form. What a request means is decided by the `admit` it is given; nothing
is sent from here.
"""

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import httptools

from gpuloom.runtime.clock import Clock

_log = logging.getLogger(__name__)

MAX_BODY_BYTES = 64 * 1024 * 1024
"""With nodeCacheCapable false a call carries all Node objects."""
MAX_HEAD_BYTES = 32 * 1024
"""As much may come in a row without a byte of body: a head, or what follows the last chunk of a body.

A head that was sent ahead, right behind another request, may be up to twice as long before it is noticed.
"""


@dataclass(frozen=True, slots=True)
class Reply:
    """`outcome` is what the call is counted as. Whatever is not 200 also ends the connection."""

    status: int
    body: bytes
    outcome: str = "invalid"


CRASHED = Reply(500, b"internal error\n", "crashed")


@dataclass(frozen=True, slots=True)
class Caller:
    """Who is at the other end, or why that is not known."""

    name: str = ""
    problem: str = ""


@dataclass(slots=True)
class Call:
    """A request as far as it has come in."""

    caller: Caller
    started_s: float
    method: bytes = b""
    target: bytes = b""
    verb: str = ""
    keep_alive: bool = False
    awaits_continue: bool = False
    announced_bytes: int = 0
    body: bytes | bytearray = b""
    whole: bool = False
    refusal: Reply | None = None

    def add(self, part: bytes) -> None:
        """More of the body. Not a list of parts: in chunks of one byte it would take 40 times its size."""
        if not self.body:
            self.body = part
            return
        if isinstance(self.body, bytes):
            self.body = bytearray(self.body)
        self.body += part


class Requests:
    """Makes requests of bytes. Keeps no more of them than the bounds allow; does no I/O."""

    def __init__(self, caller: Caller, admit: Callable[[Call], Reply | None], clock: Clock) -> None:
        self.complete: deque[Call] = deque()
        self.over = False
        self._caller = caller
        self._admit = admit
        self._clock = clock
        self._parser: httptools.HttpRequestParser | None = httptools.HttpRequestParser(self)
        self._incoming: Call | None = None
        self._barren_bytes = 0
        self._fruitful = False

    @property
    def incoming(self) -> Call | None:
        """The request of which a part has come in, unless it was refused already."""
        return None if self.over else self._incoming

    def feed(self, data: memoryview) -> memoryview:
        """Read on; return what was not read yet.

        A piece is never longer than a head may still be. So a head is judged alike however it was cut, and
        at most one piece of what a client sends ahead becomes requests that wait.
        """
        if self.over or self._parser is None:
            return memoryview(b"")
        piece = data[: MAX_HEAD_BYTES - self._barren_bytes]
        self._fruitful = False
        try:
            self._parser.feed_data(piece)
        except httptools.HttpParserCallbackError:
            _log.exception("a request can't be read")
            self.refuse(CRASHED)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self.refuse(refusal(400, f"this is no HTTP that is understood here: {error}"))
        self._barren_bytes = 0 if self._fruitful else self._barren_bytes + len(piece)
        if self._barren_bytes >= MAX_HEAD_BYTES:
            self.refuse(refusal(431, f"the head is larger than {MAX_HEAD_BYTES} bytes"))
        return data[len(piece) :]

    def refuse(self, reply: Reply) -> None:
        """Nothing is read after this. The refusal has its turn after the calls that came before it."""
        if self.over:
            return
        call = self._incoming or self._begun()
        call.refusal = reply
        call.body = b""
        self.complete.append(call)
        self.over = True

    def forget(self) -> None:
        """Let go of everything: parser and requests hold each other, and garbage is seldom looked for."""
        self.over = True
        self.complete.clear()
        self._incoming = None
        self._parser = None

    def _begun(self) -> Call:
        return Call(self._caller, self._clock.monotonic())

    # From here on: what llhttp calls. After a refusal only the end of that very request still matters.

    def on_message_begin(self) -> None:
        if not self.over:
            self._incoming = self._begun()

    def on_url(self, url: bytes) -> None:
        if self._incoming is not None:
            self._incoming.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        call = self._incoming
        if call is None or call.method:
            return  # a trailer
        match name.lower():
            case b"content-length":
                call.announced_bytes = int(value)
            case b"expect":
                call.awaits_continue = value.lower() == b"100-continue"

    def on_headers_complete(self) -> None:
        call, parser = self._incoming, self._parser
        if self.over or call is None or parser is None:
            return
        self._fruitful = True
        call.method = parser.get_method()
        call.keep_alive = parser.should_keep_alive()
        if call.awaits_continue and parser.get_http_version() == "1.0":
            call.awaits_continue = False
        refused = self._admit(call)
        if refused is None and parser.should_upgrade():
            # llhttp takes everything after such a head for the other protocol, the body too.
            refused = refusal(400, "no other protocol is spoken here: leave out the Upgrade header")
        if refused is None and call.announced_bytes > MAX_BODY_BYTES:
            refused = too_large()
        if refused is not None:
            self.refuse(refused)

    def on_body(self, part: bytes) -> None:
        call = self._incoming
        if self.over or call is None:
            return
        self._fruitful = True
        if len(call.body) + len(part) > MAX_BODY_BYTES:
            self.refuse(too_large())
        else:
            call.add(part)

    def on_message_complete(self) -> None:
        call, self._incoming = self._incoming, None
        if call is None:
            return
        call.whole = True
        if not self.over:
            self._fruitful = True
            self.complete.append(call)


def too_large() -> Reply:
    return refusal(413, f"the body is larger than {MAX_BODY_BYTES} bytes")


def refusal(status: int, text: str) -> Reply:
    return Reply(status, text.encode() + b"\n")
