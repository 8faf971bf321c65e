"""One connection of kube-scheduler over HTTP/1.1: one call at a time, in the order they came.

Decides when is read on, and when a connection ends. What a call means, who may make it and what is counted is
decided by the `Calls` it is given; what a request is, by `framing.py`.

A connection has no timer: `expire` is called for all of them every few seconds.
"""

import asyncio
import math
from collections.abc import Coroutine
from http import HTTPStatus
from typing import Any, Protocol, cast

from gpuloom.runtime.clock import Clock
from services.scheduler_extender.framing import CRASHED, Call, Caller, Reply, Requests, refusal

REQUEST_S = 30.0
"""For a whole request, from its first byte."""
IDLE_S = 120.0
"""Go hangs up after 90 s. It must always be the client who does, or a call that was just sent is lost."""
TAKE_S = 30.0
"""For an answer to be taken by a client that reads slowly."""
LINGER_S = 2.0
"""While a request is refused that is still coming in. Closed at once, the refusal might not arrive."""

WRITE_BUFFER_BYTES = 64 * 1024

_OK_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\nConnection: %s\r\n\r\n"
)
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class Calls(Protocol):
    """What requests mean. Nothing here raises: a failure is a Reply too."""

    def caller_of(self, transport: asyncio.BaseTransport) -> Caller:
        """Asked once for a connection."""

    def admit(self, call: Call) -> Reply | None:
        """Asked at the head, before any of the body is kept. Sets `call.verb`, or refuses."""

    def answer(self, call: Call) -> Reply | Coroutine[Any, Any, Reply]:
        """Asked when the whole body is there."""

    def record(self, call: Call, reply: Reply, now_s: float) -> None:
        """Called once for every call, when its answer is known."""


class OpenConnection(Protocol):
    """What is done to a connection from outside, whichever HTTP it speaks."""

    def expire(self, now_s: float) -> None:
        """End what has taken too long."""

    def leave(self) -> None:
        """Close, at once unless a call is being answered."""

    def abort(self) -> None: ...


class Room(Protocol):
    """Keeps what must not be forgotten: the open connections, and the tasks that outlive them."""

    def enter(self, connection: OpenConnection) -> None: ...

    def leave(self, connection: OpenConnection) -> None: ...

    def keep(self, work: Coroutine[Any, Any, None]) -> None:
        """Run it to its end, whatever becomes of the connection."""


class Connection(asyncio.Protocol):
    """Reads on while nothing is being answered and the last answer was taken."""

    def __init__(self, calls: Calls, room: Room, clock: Clock) -> None:
        self._calls = calls
        self._room = room
        self._clock = clock
        self._transport: asyncio.Transport | None = None
        self._requests: Requests
        self._unread = memoryview(b"")
        self._answering = False
        self._stalled = False
        self._leaving = False
        self._lingering = False
        self._deadline_s = math.inf

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(WRITE_BUFFER_BYTES)
        self._requests = Requests(self._calls.caller_of(transport), self._calls.admit, self._clock)
        self._deadline_s = self._clock.monotonic() + IDLE_S
        self._room.enter(self)

    def connection_lost(self, error: Exception | None) -> None:
        """A bind that was begun goes on: the room keeps its task."""
        self._transport = None
        self._unread = memoryview(b"")
        self._requests.forget()
        self._room.leave(self)

    def data_received(self, data: bytes) -> None:
        if self._lingering or self._transport is None:
            return
        # Mostly there is nothing unread. If there is, reading was paused, and this is all that still comes.
        self._unread = memoryview(b"".join((self._unread, data)) if self._unread else data)
        if self._busy:
            self._transport.pause_reading()
        else:
            self._go_on()

    def pause_writing(self) -> None:
        self._stalled = True

    def resume_writing(self) -> None:
        self._stalled = False
        ending = self._lingering or self._transport is None or self._transport.is_closing()
        if not ending and not self._answering:
            self._deadline_s = self._clock.monotonic() + IDLE_S
            self._go_on()

    def expire(self, now_s: float) -> None:
        if self._transport is None or now_s < self._deadline_s:
            return
        if self._stalled or self._transport.is_closing():
            self._transport.abort()
        elif not self._lingering and self._requests.incoming is not None:
            self._requests.refuse(refusal(408, f"the request has not come within {REQUEST_S:g} s"))
            self._go_on()
        else:
            self._transport.close()

    def leave(self) -> None:
        self._leaving = True
        if self._transport is not None and not self._answering:
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    @property
    def _busy(self) -> bool:
        return self._answering or self._stalled

    def _go_on(self) -> None:
        """Answer what is complete, then read on, until something has to be waited for."""
        requests = self._requests
        while not self._busy and self._transport is not None and not self._transport.is_closing():
            if requests.complete:
                self._serve(requests.complete.popleft())
            elif self._unread:
                self._unread = requests.feed(self._unread)
            else:
                self._await_data(self._transport)
                return

    def _await_data(self, transport: asyncio.Transport) -> None:
        transport.resume_reading()
        call = self._requests.incoming
        if call is None:
            return
        self._deadline_s = call.started_s + REQUEST_S
        if call.awaits_continue and call.method:
            call.awaits_continue = False
            transport.write(_CONTINUE)

    def _serve(self, call: Call) -> None:
        answer = self._calls.answer(call) if call.refusal is None else call.refusal
        if isinstance(answer, Reply):
            self._finish(call, answer)
        else:
            self._answering = True
            self._deadline_s = math.inf
            self._room.keep(self._finish_later(call, answer))

    async def _finish_later(self, call: Call, answer: Coroutine[Any, Any, Reply]) -> None:
        reply = CRASHED
        try:
            reply = await answer
        finally:
            self._answering = False
            self._finish(call, reply)
        self._go_on()

    def _finish(self, call: Call, reply: Reply) -> None:
        now_s = self._clock.monotonic()
        self._calls.record(call, reply, now_s)
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        kept = reply.status == HTTPStatus.OK and call.keep_alive and not self._leaving
        # This may find at once that the client does not take it, and stall.
        transport.write(_encoded(reply, kept, without_body=call.method == b"HEAD"))
        self._deadline_s = now_s + (IDLE_S if kept and not self._stalled else TAKE_S)
        if kept:
            return
        self._unread = memoryview(b"")
        self._requests.forget()
        if call.whole:
            transport.close()
        else:
            self._linger(transport, now_s)

    def _linger(self, transport: asyncio.Transport, now_s: float) -> None:
        """Read what is still coming and throw it away, or the client's system might throw our answer away."""
        self._lingering = True
        self._deadline_s = now_s + LINGER_S
        transport.resume_reading()
        if transport.can_write_eof():
            transport.write_eof()


def _encoded(reply: Reply, kept: bool, without_body: bool) -> bytes:
    connection = b"keep-alive" if kept else b"close"
    if reply.status == HTTPStatus.OK:
        return _OK_HEAD % (len(reply.body), connection) + reply.body
    status = HTTPStatus(reply.status)
    lines = [
        f"HTTP/1.1 {reply.status} {status.phrase}",
        "Content-Type: text/plain; charset=utf-8",
        f"Content-Length: {len(reply.body)}",
        "Connection: close",
    ]
    if status is HTTPStatus.METHOD_NOT_ALLOWED:
        lines.append("Allow: POST")
    return "\r\n".join((*lines, "", "")).encode() + (b"" if without_body else reply.body)
