"""One connection of kube-scheduler over HTTP/2: one call at a time, in the order in which they were whole.

Decides when a call is answered, how much of an answer is sent at once, and when a connection ends. What a
client may do is decided by `http2_streams.py`; the times are those of HTTP/1.1.

It is always read on, also while a call is being answered: Go leaves a connection on which its pings are not
answered. How much may come is bounded there.
"""

import asyncio
import math
from collections.abc import Coroutine
from http import HTTPStatus
from typing import Any, cast

from gpuloom.runtime.clock import Clock
from services.scheduler_extender import http2_frames as h2
from services.scheduler_extender.connection import (
    IDLE_S,
    LINGER_S,
    REQUEST_S,
    TAKE_S,
    WRITE_BUFFER_BYTES,
    Calls,
    Room,
)
from services.scheduler_extender.framing import CRASHED, Reply, refusal
from services.scheduler_extender.http2_streams import StreamCall, Streams

_GREETING = h2.greeting()


class Http2Connection(asyncio.Protocol):
    """Answers the next call when the last answer was taken."""

    def __init__(self, calls: Calls, room: Room, clock: Clock) -> None:
        self._calls = calls
        self._room = room
        self._clock = clock
        self._transport: asyncio.Transport | None = None
        self._requests: Streams
        self._answering: StreamCall | None = None
        # An answer of which a part waits for the client's windows.
        self._sending: StreamCall | None = None
        self._unsent = memoryview(b"")
        self._stalled = False
        self._leaving = False
        self._ended = False
        # Something may still be on its way: the rest of a refused call, or a call to what was idle.
        self._lingering = False
        self._idle_until_s = math.inf
        self._deadline_s = math.inf

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(WRITE_BUFFER_BYTES)
        self._requests = Streams(self._calls.caller_of(transport), self._calls.admit, self._clock)
        self._deadline_s = self._idle_until_s = self._clock.monotonic() + IDLE_S
        self._room.enter(self)
        self._transport.write(_GREETING)

    def connection_lost(self, error: Exception | None) -> None:
        """A bind that was begun goes on: the room keeps its task."""
        self._transport = None
        self._ended = True
        self._forget()
        self._room.leave(self)

    def data_received(self, data: bytes) -> None:
        if not self._ended:
            self._requests.feed(data)
            self._go_on()

    def pause_writing(self) -> None:
        self._stalled = True

    def resume_writing(self) -> None:
        self._stalled = False
        if not self._ended:
            self._idle_until_s = self._clock.monotonic() + IDLE_S
            self._go_on()

    def expire(self, now_s: float) -> None:
        if self._transport is None or now_s < self._deadline_s:
            return
        late = self._requests.incoming
        if self._stalled or self._sending is not None or self._transport.is_closing():
            self._transport.abort()
        elif self._ended:
            self._transport.close()
        elif late is None:
            self.retire()
        else:
            self._requests.refuse(late, refusal(408, f"the request has not come within {REQUEST_S:g} s"))
            self._go_on()

    @property
    def idle_since_s(self) -> float | None:
        """Since when nothing is asked, answered or coming in; None while something is."""
        unused = not self._busy and not self._leaving and not self._requests.open
        return self._idle_until_s - IDLE_S if unused and self._requests.awaited_since_s is None else None

    def retire(self) -> None:
        """Leave, for want of calls. One that is on its way just now finds the farewell, and is made anew."""
        self._lingering = True
        self.leave()

    def leave(self) -> None:
        """Calls that were not begun are refused, so that they are made again elsewhere."""
        if self._transport is None or self._ended or self._transport.is_closing():
            return
        requests = self._requests
        for stream in tuple(requests.open):
            if requests.open[stream] not in (self._answering, self._sending):
                requests.reset(stream, h2.REFUSED_STREAM)
        self._say_farewell(h2.NO_ERROR)
        self._end_if_left()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    @property
    def _busy(self) -> bool:
        return self._answering is not None or self._stalled or self._sending is not None or self._ended

    def _go_on(self) -> None:
        """Read what has come, and answer what is whole, until something has to be waited for."""
        requests, transport = self._requests, self._transport
        if transport is None or transport.is_closing():
            return
        more = True
        while more and not self._ended:
            more = requests.read()
            if self._answering is not None and self._answering.stream not in requests.open:
                # The client gave it up. It goes on, and the next one need not wait for it.
                self._answering = None
            if self._sending is not None:
                self._send_on(transport, self._sending)
            while requests.complete and not self._busy:
                self._serve(requests.complete.popleft())
        if requests.fault is not None and not self._ended:
            self._say_farewell(requests.fault.code, str(requests.fault))
            self._end()
        if requests.said and not self._ended:
            self._speak(transport)
        self._end_if_left()
        if not self._busy:
            since_s = requests.awaited_since_s
            self._deadline_s = self._idle_until_s if since_s is None else since_s + REQUEST_S

    def _serve(self, call: StreamCall) -> None:
        answer = self._calls.answer(call) if call.refusal is None else call.refusal
        if isinstance(answer, Reply):
            self._finish(call, answer)
        else:
            self._answering = call
            self._deadline_s = math.inf
            self._room.keep(self._finish_later(call, answer))

    async def _finish_later(self, call: StreamCall, answer: Coroutine[Any, Any, Reply]) -> None:
        reply = CRASHED
        try:
            reply = await answer
        finally:
            if self._answering is call:
                self._answering = None
            self._finish(call, reply)
        if not self._ended:
            self._go_on()

    def _finish(self, call: StreamCall, reply: Reply) -> None:
        now_s = self._clock.monotonic()
        self._calls.record(call, reply, now_s)
        transport = self._transport
        # A client that reset the stream wants no answer.
        if transport is None or transport.is_closing() or call.stream not in self._requests.open:
            return
        self._requests.barren_frames = 0
        self._send(transport, call, reply)
        self._idle_until_s = now_s + IDLE_S
        self._deadline_s = now_s + TAKE_S
        if reply.status != HTTPStatus.OK:
            self._say_farewell(h2.NO_ERROR)
            self._end_if_left()

    def _send(self, transport: asyncio.Transport, call: StreamCall, reply: Reply) -> None:
        requests, stream, body = self._requests, call.stream, reply.body
        size = len(body)
        if not size or call.method == b"HEAD":
            transport.write(h2.answer_head(stream, reply, ends=True))
        elif size <= requests.frame_bytes and size <= min(requests.sendable_bytes, call.sendable_bytes):
            requests.sendable_bytes -= size
            head, data_head = h2.answer_head(stream, reply, ends=False), h2.data_head(stream, size, ends=True)
            transport.write(b"%b%b%b" % (head, data_head, body))
        else:
            self._sending, self._unsent = call, memoryview(body)
            transport.write(h2.answer_head(stream, reply, ends=False))
            self._send_on(transport, call)
            return
        self._close(call)

    def _send_on(self, transport: asyncio.Transport, call: StreamCall) -> None:
        """Send as much as the client has room for."""
        requests = self._requests
        parts: list[bytes | memoryview] = []
        while self._unsent and call.stream in requests.open:
            size = min(len(self._unsent), requests.frame_bytes, requests.sendable_bytes, call.sendable_bytes)
            if size <= 0:
                break
            parts += (h2.data_head(call.stream, size, ends=size == len(self._unsent)), self._unsent[:size])
            self._unsent = self._unsent[size:]
            requests.sendable_bytes -= size
            call.sendable_bytes -= size
        if parts:
            requests.barren_frames = 0
            transport.write(b"".join(parts))
        if self._unsent and call.stream in requests.open:
            return
        self._sending, self._unsent = None, memoryview(b"")
        self._close(call)
        self._idle_until_s = self._clock.monotonic() + IDLE_S

    def _close(self, call: StreamCall) -> None:
        if call.whole:
            self._requests.close(call)
        else:
            # The client need not send the rest.
            self._lingering = True
            self._requests.reset(call.stream, h2.NO_ERROR)

    def _say_farewell(self, code: int, reason: str = "") -> None:
        """No more calls are taken. Those that have begun to come are still answered, unless all is over."""
        requests = self._requests
        if self._transport is not None and not (self._leaving and code == h2.NO_ERROR):
            self._leaving = True
            requests.take_no_more()
            requests.said += h2.go_away(requests.last_stream, code, reason)
            self._speak(self._transport)

    def _speak(self, transport: asyncio.Transport) -> None:
        said = bytes(self._requests.said)
        self._requests.said.clear()
        transport.write(said)

    def _end_if_left(self) -> None:
        if self._leaving and not self._ended and not self._requests.open:
            self._end()

    def _end(self) -> None:
        """Close; but read for a while what is still coming, or what was said last might not arrive."""
        transport = self._transport
        if transport is None:
            return
        if self._requests.said:
            self._speak(transport)
        self._ended = True
        self._forget()
        self._deadline_s = self._clock.monotonic() + (LINGER_S if self._lingering else TAKE_S)
        if not self._lingering:
            transport.close()

    def _forget(self) -> None:
        """Let go of what was kept of bodies and answers."""
        self._requests.end()
        self._requests.complete.clear()
        self._requests.open.clear()
        self._sending, self._unsent = None, memoryview(b"")
