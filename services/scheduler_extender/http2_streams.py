"""HTTP/2 frames to calls: what of a call is kept, what a client may do, and what it is told for that.

Decides by RFC 9113 when a stream is reset and when a connection is over. Nothing is sent from here: what has
to be said is left in `said`. What a call means is decided by the `admit` it is given.

However little comes of a connection, it is bounded: open streams, bytes of all bodies together, and frames
since the last answer that bring no call forward.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from gpuloom.runtime.clock import Clock
from services.scheduler_extender import framing
from services.scheduler_extender import http2_frames as h2
from services.scheduler_extender.framing import MAX_HEAD_BYTES, Call, Caller, Reply, refusal, too_large
from services.scheduler_extender.http2_frames import Fault, Frames
from services.scheduler_extender.http2_heads import Heads, HeadTooLargeError, UnreadableHeadError

MAX_STREAMS = 100
"""Go opens so many before it has seen that we want one. Refused ones it tries again."""
MAX_CONTINUATIONS = 16
MAX_BARREN_FRAMES = 1000
"""Since the last answer. An idle client sends a ping twice a minute."""

_REMEMBERED_RESETS = 200


@dataclass(slots=True)
class StreamCall(Call):
    """`receivable_bytes` and `sendable_bytes` are what is left of the stream's windows."""

    stream: int = 0
    receivable_bytes: int = h2.STREAM_WINDOW_BYTES
    sendable_bytes: int = h2.FIRST_WINDOW_BYTES


@dataclass(slots=True)
class _PartialHead:
    stream: int
    ends_stream: bool
    started_s: float
    block: bytearray
    frames: int = 0


class Streams:
    """Makes calls of bytes, and keeps the windows of both directions."""

    def __init__(self, caller: Caller, admit: Callable[[Call], Reply | None], clock: Clock) -> None:
        self.complete: deque[StreamCall] = deque()
        # From the head until the answer is sent, or the stream is reset.
        self.open: dict[int, StreamCall] = {}
        self.said = bytearray()
        self.over = False
        self.fault: Fault | None = None
        self.last_stream = 0
        self.barren_frames = 0
        self.sendable_bytes = h2.FIRST_WINDOW_BYTES
        self.frame_bytes = h2.LEAST_FRAME_BYTES
        self._first_sendable_bytes = h2.FIRST_WINDOW_BYTES
        self._receivable_bytes = h2.CONNECTION_WINDOW_BYTES
        self._held_bytes = 0
        self._last_seen = 0
        self._caller = caller
        self._admit = admit
        self._clock = clock
        self._heads = Heads()
        self._partial_head: _PartialHead | None = None
        self._reset: deque[int] = deque(maxlen=_REMEMBERED_RESETS)
        self._frames = Frames()
        self._settled = False
        self._takes_more = True

    @property
    def incoming(self) -> StreamCall | None:
        """The oldest call of which a part is still to come, unless it was refused already."""
        if self.over:
            return None
        return next((call for call in self.open.values() if not call.whole and call.refusal is None), None)

    @property
    def awaited_since_s(self) -> float | None:
        """When that began to come of which the rest is waited for."""
        if self._partial_head is not None and not self.open:
            return self._partial_head.started_s
        call = self.incoming
        return None if call is None else call.started_s

    def feed(self, data: bytes) -> None:
        """Take what has come. It is read by `read`."""
        if not self.over:
            self._frames.feed(data)

    def read(self) -> bool:
        """Read on, at most until a call is whole. Return whether there is more to read."""
        frames = self._frames
        try:
            while not self.over and (found := frames.next()) is not None:
                self._take(*found)
                if self.complete:
                    return frames.has_more
        except Fault as fault:
            self.end()
            self.fault = fault
        return False

    def refuse(self, call: StreamCall, reply: Reply) -> None:
        """The refusal has its turn after the calls that came before it."""
        call.refusal = reply
        self._held_bytes -= len(call.body)
        call.body = b""
        self.complete.append(call)

    def close(self, call: StreamCall) -> None:
        if self.open.pop(call.stream, None) is not None:
            self._held_bytes -= len(call.body)

    def reset(self, stream: int, code: int) -> None:
        """End this stream, and neither answer it nor complain about what is still on its way."""
        self.said += h2.reset(stream, code)
        self._reset.append(stream)
        self._drop(stream)

    def take_no_more(self) -> None:
        """Streams that are opened from now on are ignored: the client was told."""
        self._takes_more = False

    def end(self) -> None:
        """Read nothing any more."""
        self.over = True
        self._frames.forget()
        self._partial_head = None

    def _take(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if not self._settled:
            if kind != h2.SETTINGS or flags & h2.ACK:
                raise Fault(h2.PROTOCOL_ERROR, "settings come first")
            self._settled = True
        if self._partial_head is not None and kind != h2.CONTINUATION:
            raise Fault(h2.PROTOCOL_ERROR, "a head is not interrupted")
        match kind:
            case h2.HEADERS:
                self._take_headers(flags, stream, payload)
            case h2.DATA:
                self._take_data(flags, stream, payload)
            case h2.CONTINUATION:
                self._take_continuation(flags, stream, payload)
            case h2.PUSH_PROMISE:
                raise Fault(h2.PROTOCOL_ERROR, "a client promises nothing")
            case _:
                self._take_control(kind, flags, stream, payload)

    def _take_headers(self, flags: int, stream: int, payload: bytes) -> None:
        if not stream & 1:
            raise Fault(h2.PROTOCOL_ERROR, f"a client has no stream {stream}")
        if flags & h2.PADDED:
            payload = h2.unpadded(payload)
        if flags & h2.WITH_PRIORITY:
            if len(payload) < 5:
                raise Fault(h2.FRAME_SIZE_ERROR, "a priority has five bytes")
            payload = payload[5:]
        ends_stream = bool(flags & h2.END_STREAM)
        if flags & h2.END_HEADERS:
            self._take_head(stream, ends_stream, payload)
        else:
            started_s = self._clock.monotonic()
            self._partial_head = _PartialHead(stream, ends_stream, started_s, bytearray(payload))

    def _take_continuation(self, flags: int, stream: int, payload: bytes) -> None:
        head = self._partial_head
        if head is None or stream != head.stream:
            raise Fault(h2.PROTOCOL_ERROR, "there is no head to continue")
        head.block += payload
        head.frames += 1
        if head.frames > MAX_CONTINUATIONS:
            raise Fault(h2.ENHANCE_YOUR_CALM, f"a head has at most {MAX_CONTINUATIONS} continuations")
        if flags & h2.END_HEADERS or len(head.block) > MAX_HEAD_BYTES:
            self._partial_head = None
            self._take_head(stream, head.ends_stream, bytes(head.block))

    def _take_head(self, stream: int, ends_stream: bool, block: bytes) -> None:
        is_new = stream > self._last_seen
        self._last_seen = max(stream, self._last_seen)
        try:
            if len(block) > MAX_HEAD_BYTES:
                raise HeadTooLargeError
            if is_new:
                self._open(stream, ends_stream, block)
            else:
                self._take_trailer(stream, ends_stream, block)
        except HeadTooLargeError:
            if not is_new or not self._takes_more:
                raise Fault(h2.ENHANCE_YOUR_CALM, "a head is too large") from None
            # What it said of the table is lost, so nothing behind it can be read.
            self.refuse(self._begun(stream), refusal(431, f"the head is larger than {MAX_HEAD_BYTES} bytes"))
            self.end()
        except UnreadableHeadError as error:
            raise Fault(h2.COMPRESSION_ERROR, f"a head can't be read: {error}") from None

    def _open(self, stream: int, ends_stream: bool, block: bytes) -> None:
        head = self._heads.read(block)
        if not self._takes_more:
            self._reset.append(stream)
            self._count_barren()
            return
        if head is None:
            self._complain(stream, h2.PROTOCOL_ERROR)
            return
        if len(self.open) >= MAX_STREAMS:
            self._complain(stream, h2.REFUSED_STREAM)
            return
        call = self._begun(stream)
        call.method, call.target, call.announced_bytes = head
        refused = self._admit(call)
        if refused is None and call.announced_bytes > framing.MAX_BODY_BYTES:
            refused = too_large()
        if refused is not None:
            call.whole = ends_stream
            self.refuse(call, refused)
        elif ends_stream:
            self._finish(call)

    def _begun(self, stream: int) -> StreamCall:
        call = StreamCall(self._caller, self._clock.monotonic(), keep_alive=True, stream=stream)
        call.sendable_bytes = self._first_sendable_bytes
        self.open[stream] = call
        self.last_stream = stream
        return call

    def _take_trailer(self, stream: int, ends_stream: bool, block: bytes) -> None:
        well_formed = self._heads.read_trailer(block)
        call = self.open.get(stream)
        if call is None or call.whole:
            if call is None and stream in self._reset:
                self._count_barren()
                return
            raise Fault(h2.STREAM_CLOSED, f"stream {stream} has ended")
        if not ends_stream or not well_formed:
            self._complain(stream, h2.PROTOCOL_ERROR)
        else:
            self._finish(call)

    def _take_data(self, flags: int, stream: int, payload: bytes) -> None:
        size = len(payload)
        self._receivable_bytes -= size
        if self._receivable_bytes < h2.CONNECTION_WINDOW_BYTES // 2:
            if self._receivable_bytes < 0:
                raise Fault(h2.FLOW_CONTROL_ERROR, "more was sent than there is room for")
            self.said += h2.window_update(0, h2.CONNECTION_WINDOW_BYTES - self._receivable_bytes)
            self._receivable_bytes = h2.CONNECTION_WINDOW_BYTES
        if flags & h2.PADDED:
            payload = h2.unpadded(payload)
        call = self.open.get(stream)
        if call is None or call.whole:
            self._take_stray_data(stream, call)
            return
        call.receivable_bytes -= size
        if not payload and not flags & h2.END_STREAM:
            self._count_barren()
        if call.receivable_bytes < 0:
            self._complain(stream, h2.FLOW_CONTROL_ERROR)
        elif not payload or call.refusal is not None or self._keep(call, payload):
            if flags & h2.END_STREAM:
                self._finish(call)
            elif call.receivable_bytes < h2.STREAM_WINDOW_BYTES // 2:
                self.said += h2.window_update(stream, h2.STREAM_WINDOW_BYTES - call.receivable_bytes)
                call.receivable_bytes = h2.STREAM_WINDOW_BYTES

    def _take_stray_data(self, stream: int, call: StreamCall | None) -> None:
        self._expect_known(stream)
        if call is None and stream in self._reset:
            self._count_barren()
        else:
            self._complain(stream, h2.STREAM_CLOSED)

    def _keep(self, call: StreamCall, part: bytes) -> bool:
        """Return whether the call goes on."""
        size = len(call.body) + len(part)
        if size > call.announced_bytes >= 0:
            self._complain(call.stream, h2.PROTOCOL_ERROR)
            return False
        if size > framing.MAX_BODY_BYTES:
            self.refuse(call, too_large())
            return True
        if self._held_bytes + len(part) > framing.MAX_BODY_BYTES:
            # Others have the room that one call may have.
            self._complain(call.stream, h2.REFUSED_STREAM)
            return False
        self._held_bytes += len(part)
        call.add(part)
        return True

    def _finish(self, call: StreamCall) -> None:
        call.whole = True
        if call.refusal is not None:
            return
        if call.announced_bytes not in (-1, len(call.body)):
            self._complain(call.stream, h2.PROTOCOL_ERROR)
            return
        self.complete.append(call)

    def _take_control(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        """Of a priority, a farewell, and what nobody has heard of, nothing but its form matters."""
        h2.check(kind, flags, stream, len(payload))
        self._count_barren()
        if kind == h2.WINDOW_UPDATE:
            self._widen(stream, h2.NUMBER.unpack(payload)[0] & h2.HIGHEST_WINDOW)
        elif kind == h2.PING and not flags & h2.ACK:
            self.said += h2.frame(h2.PING, h2.ACK, 0, payload)
        elif kind == h2.SETTINGS:
            self._take_settings(flags, payload)
        elif kind == h2.RST_STREAM:
            self._expect_known(stream)
            self._drop(stream)

    def _widen(self, stream: int, more_bytes: int) -> None:
        if stream == 0:
            self.sendable_bytes += more_bytes
            if not more_bytes:
                raise Fault(h2.PROTOCOL_ERROR, "a window does not grow by nothing")
            if self.sendable_bytes > h2.HIGHEST_WINDOW:
                raise _too_wide()
            return
        self._expect_known(stream)
        call = self.open.get(stream)
        if call is None:
            return
        call.sendable_bytes += more_bytes
        if not more_bytes:
            self._complain(stream, h2.PROTOCOL_ERROR)
        elif call.sendable_bytes > h2.HIGHEST_WINDOW:
            self._complain(stream, h2.FLOW_CONTROL_ERROR)

    def _take_settings(self, flags: int, payload: bytes) -> None:
        if flags & h2.ACK:
            self._heads.forbid_table()
            return
        for name, value in h2.SETTING.iter_unpack(payload):
            self._set(name, value)
        self.said += h2.frame(h2.SETTINGS, h2.ACK, 0)

    def _set(self, name: int, value: int) -> None:
        if name == h2.ENABLE_PUSH and value > 1:
            raise Fault(h2.PROTOCOL_ERROR, "push is on or off")
        if name == h2.MAX_FRAME_SIZE:
            if not h2.LEAST_FRAME_BYTES <= value <= h2.MOST_FRAME_BYTES:
                raise Fault(h2.PROTOCOL_ERROR, "there is no such size of a frame")
            self.frame_bytes = value
        if name == h2.INITIAL_WINDOW_SIZE:
            grown_bytes = value - self._first_sendable_bytes
            self._first_sendable_bytes = value
            for call in self.open.values():
                call.sendable_bytes += grown_bytes
            largest = max((call.sendable_bytes for call in self.open.values()), default=value)
            if max(value, largest) > h2.HIGHEST_WINDOW:
                raise _too_wide()

    def _expect_known(self, stream: int) -> None:
        if not stream & 1 or stream > self._last_seen:
            raise Fault(h2.PROTOCOL_ERROR, f"stream {stream} was not opened")

    def _complain(self, stream: int, code: int) -> None:
        self._count_barren()
        self.reset(stream, code)

    def _drop(self, stream: int) -> None:
        call = self.open.get(stream)
        if call is not None:
            self.close(call)
            if call in self.complete:
                self.complete.remove(call)

    def _count_barren(self) -> None:
        self.barren_frames += 1
        if self.barren_frames > MAX_BARREN_FRAMES:
            raise Fault(h2.ENHANCE_YOUR_CALM, "too many frames that bring no call forward")


def _too_wide() -> Fault:
    return Fault(h2.FLOW_CONTROL_ERROR, "a window is too large")
