"""One kept connection to the API server: HTTP/1.1, one request at a time, written once.

It decides when an answer is complete and whether the connection can be used again. It never sends anything
twice and never guesses: what can't be read as the answer to the request under way breaks the connection.
"""

import asyncio
import errno
import ssl
import zlib
from collections.abc import Callable
from typing import cast

import httptools

# Beyond this the reader of an endless answer is behind, and the server has to wait.
_MAX_UNREAD_BYTES = 1 << 19
_MAX_HEAD_BYTES = 1 << 18
_GZIP = 16 + zlib.MAX_WBITS


class Answer:
    __slots__ = ("body", "body_bytes", "complete", "decoder", "ends_with_connection", "retry_after", "status")

    def __init__(self) -> None:
        self.status = 0
        """0 until the head has come."""
        self.retry_after = ""
        self.body: list[bytes] = []
        """What has come and was not taken yet."""
        self.body_bytes = 0
        self.complete = False
        self.ends_with_connection = True
        self.decoder: zlib._Decompress | None = None

    def take(self) -> bytes:
        taken = self.body[0] if len(self.body) == 1 else b"".join(self.body)
        self.body, self.body_bytes = [], 0
        return taken


class BrokenOffError(ConnectionError):
    """The connection ended before the answer did. `unanswered`: not a byte of it had come."""

    def __init__(self, problem: str, *, unanswered: bool) -> None:
        super().__init__(errno.ECONNRESET, problem)
        self.unanswered = unanswered


class Connection(asyncio.Protocol):
    """Made by a ConnectionPool; `ask`, `next_chunk` until it is empty or enough, then `end`."""

    def __init__(self, on_lost: Callable[["Connection"], None]) -> None:
        self.context: ssl.SSLContext | None = None
        """With whose certificates it was opened; None for plain HTTP."""
        self.idle_since_s = 0.0
        self.exchanges = 0
        self.lost = asyncio.get_running_loop().create_future()
        self._on_lost = on_lost
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._answer: Answer | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._streaming = False
        self._paused = False
        self._problem = ""
        self._head_bytes = 0

    @property
    def reusable(self) -> bool:
        return self._answer is None and not self._problem and self._transport is not None

    async def ask(self, request: bytes, *, whole: bool) -> Answer:
        """Send it once and return its answer, `whole` or as soon as its head has come.

        Raise BrokenOffError if there is none. However it ends, `end` must follow.
        """
        answer = self._send(request)
        self._streaming = not whole
        while not (answer.complete if whole else answer.status):
            await self._news(answer)
        return answer

    async def next_chunk(self, answer: Answer) -> bytes:
        """What has come since the last call, at least a byte; empty at the end of the answer."""
        if self._paused:
            self._resume()
        while not answer.body and not answer.complete:
            await self._news(answer)
        return answer.take()

    def rest(self) -> None:
        """Leave what comes to the system until the next chunk is asked for: reading it at once costs most."""
        if not self._paused:
            self._pause()

    def end(self) -> None:
        """Of this answer nothing more is wanted. If it has come to its end, the connection can go on."""
        complete = self._answer is None or self._answer.complete
        self._answer = None
        if self._problem or self._paused or not complete:
            self.abort()

    def abort(self) -> None:
        if not self._problem:
            self._problem = "the connection was closed"
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        answer = self._answer
        if answer is None:
            # Whatever it is, it must not be taken for the answer to the next request.
            self._break("the server spoke without being asked")
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._break("the answer is not HTTP")
        if not answer.status:
            self._head_bytes += len(data)
            if self._head_bytes > _MAX_HEAD_BYTES:
                self._break("the head of the answer is too large")
        if self._streaming and answer.body_bytes > _MAX_UNREAD_BYTES and not self._paused:
            self._pause()
        if answer.complete or self._streaming:
            self._wake()

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        answer = self._answer
        if answer is not None and answer.status and answer.ends_with_connection and error is None:
            answer.complete = True
        if not self._problem:
            self._problem = (getattr(error, "strerror", None) or "") if error is not None else ""
            self._problem = self._problem or "the server closed the connection"
        self._wake()
        self.lost.set_result(None)
        self._on_lost(self)

    def on_message_begin(self) -> None:
        if self._answer is None or self._answer.complete:
            self._break("the server answered more than it was asked")

    def on_header(self, name: bytes, value: bytes) -> None:
        answer = self._growing()
        if answer is None:
            return
        name = name.lower()
        if name in {b"content-length", b"transfer-encoding"}:
            answer.ends_with_connection = False
        elif name == b"retry-after":
            answer.retry_after = value.decode("latin-1")
        elif name == b"content-encoding" and value.lower() == b"gzip":
            answer.decoder = zlib.decompressobj(_GZIP)

    def on_headers_complete(self) -> None:
        answer, status = self._growing(), self._parser.get_status_code()
        # 1xx only announces the answer.
        if answer is not None and status >= 200:
            answer.status = status

    def on_body(self, body: bytes) -> None:
        answer = self._growing()
        if answer is None:
            return
        if answer.decoder is not None:
            try:
                body = answer.decoder.decompress(body)
            except zlib.error:
                self._break("the answer can't be decompressed")
                return
        if body:
            answer.body.append(body)
            answer.body_bytes += len(body)

    def on_message_complete(self) -> None:
        answer = self._growing()
        if answer is None or not answer.status:
            return
        if answer.decoder is not None and not answer.decoder.eof:
            self._break("the answer can't be decompressed")
            return
        answer.complete = True
        if not self._parser.should_keep_alive():
            self._problem = "the server closed the connection"

    def _growing(self) -> Answer | None:
        """The answer under way, if what comes next belongs to it."""
        answer = self._answer
        return None if answer is None or answer.complete or self._problem else answer

    def _send(self, request: bytes) -> Answer:
        if self._transport is None or not self.reusable:
            raise BrokenOffError(self._problem or "the connection is in use", unanswered=True)
        self._answer = answer = Answer()
        self._head_bytes = 0
        self.exchanges += 1
        self._transport.write(request)
        return answer

    async def _news(self, answer: Answer) -> None:
        """Return when more of the answer has come."""
        if self._problem:
            raise BrokenOffError(self._problem, unanswered=not (answer.status or self._head_bytes))
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _pause(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()
            self._paused = True

    def _resume(self) -> None:
        self._paused = False
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def _break(self, problem: str) -> None:
        self._problem = self._problem or problem
        self.abort()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
