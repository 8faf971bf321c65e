"""What a client may not do over HTTP/2: which of its mistakes end a stream, and which end the connection."""

import pytest

from gpuloom.runtime.clock import settle
from services.scheduler_extender import framing
from services.scheduler_extender import http2_frames as h2
from services.scheduler_extender.framing import MAX_HEAD_BYTES
from services.scheduler_extender.http2_streams import MAX_BARREN_FRAMES, MAX_CONTINUATIONS
from tests.unit.scheduler_extender.http2_lines import (
    ACK,
    NO_TABLE,
    START,
    Http2Line,
    a_block,
    a_call,
    a_head,
    a_part,
    a_ping,
    settings,
)

WHOLE = h2.END_HEADERS | h2.END_STREAM

CONNECTION_FAULTS = {
    "a frame that is too long": (
        h2.FRAME_HEAD.pack(1, 1, h2.DATA, 0, 1),
        h2.FRAME_SIZE_ERROR,
    ),
    "data on no stream": (a_part(0, b"x"), h2.PROTOCOL_ERROR),
    "data on a stream that was not opened": (a_part(5, b"x"), h2.PROTOCOL_ERROR),
    "data with more padding than data": (
        a_head(1, "/now") + h2.frame(h2.DATA, h2.PADDED, 1, b"\x05abc"),
        h2.PROTOCOL_ERROR,
    ),
    "padded data without a length": (
        a_head(1, "/now") + h2.frame(h2.DATA, h2.PADDED, 1, b""),
        h2.PROTOCOL_ERROR,
    ),
    "a head on no stream": (a_head(0, "/now"), h2.PROTOCOL_ERROR),
    "a head on a stream of the server": (a_head(2, "/now"), h2.PROTOCOL_ERROR),
    "a head on a stream that has ended": (a_call(1, "/now") + a_head(1, "/now"), h2.STREAM_CLOSED),
    "a head on an earlier stream": (a_call(3, "/now") + a_head(1, "/now"), h2.STREAM_CLOSED),
    "a head that can't be read": (h2.frame(h2.HEADERS, WHOLE, 1, b"\xff\xff\xff"), h2.COMPRESSION_ERROR),
    "a head with half a priority": (
        h2.frame(h2.HEADERS, WHOLE | h2.WITH_PRIORITY, 1, b"\0\0"),
        h2.FRAME_SIZE_ERROR,
    ),
    "a table in spite of our settings": (
        ACK
        + h2.frame(h2.HEADERS, WHOLE, 1, NO_TABLE + a_block("/now"))
        + h2.frame(h2.HEADERS, WHOLE, 3, b"\x3f\x01"),
        h2.COMPRESSION_ERROR,
    ),
    "our settings ignored": (ACK + a_call(1, "/now"), h2.COMPRESSION_ERROR),
    "a head that is interrupted": (
        h2.frame(h2.HEADERS, 0, 1, a_block("/now")) + a_ping(),
        h2.PROTOCOL_ERROR,
    ),
    "a head that goes on elsewhere": (
        h2.frame(h2.HEADERS, 0, 1, a_block("/now")) + h2.frame(h2.CONTINUATION, h2.END_HEADERS, 3),
        h2.PROTOCOL_ERROR,
    ),
    "a continuation of nothing": (h2.frame(h2.CONTINUATION, h2.END_HEADERS, 1), h2.PROTOCOL_ERROR),
    "settings of a stream": (h2.frame(h2.SETTINGS, 0, 1), h2.PROTOCOL_ERROR),
    "half a setting": (h2.frame(h2.SETTINGS, 0, 0, b"\0\0\0"), h2.FRAME_SIZE_ERROR),
    "an acknowledgement with settings": (
        h2.frame(h2.SETTINGS, h2.ACK, 0, h2.SETTING.pack(1, 1)),
        h2.FRAME_SIZE_ERROR,
    ),
    "push that is neither on nor off": (settings(ENABLE_PUSH=2), h2.PROTOCOL_ERROR),
    "frames that are too short": (settings(MAX_FRAME_SIZE=100), h2.PROTOCOL_ERROR),
    "frames that are too long": (settings(MAX_FRAME_SIZE=2**24), h2.PROTOCOL_ERROR),
    "a first window that is too large": (settings(INITIAL_WINDOW_SIZE=2**31), h2.FLOW_CONTROL_ERROR),
    "a first window that makes another too large": (
        a_head(1, "/now") + h2.window_update(1, 2**31 - 1 - 65_535) + settings(INITIAL_WINDOW_SIZE=65_536),
        h2.FLOW_CONTROL_ERROR,
    ),
    "a ping of a stream": (h2.frame(h2.PING, 0, 1, b"12345678"), h2.PROTOCOL_ERROR),
    "a short ping": (h2.frame(h2.PING, 0, 0, b"1234"), h2.FRAME_SIZE_ERROR),
    "a priority of nothing": (h2.frame(h2.PRIORITY, 0, 0, b"\0\0\0\0\0"), h2.PROTOCOL_ERROR),
    "a short priority": (h2.frame(h2.PRIORITY, 0, 1, b"\0"), h2.FRAME_SIZE_ERROR),
    "a reset of the connection": (h2.reset(0, 0), h2.PROTOCOL_ERROR),
    "a reset of a stream that was not opened": (h2.reset(1, 0), h2.PROTOCOL_ERROR),
    "a short reset": (h2.frame(h2.RST_STREAM, 0, 1, b"\0"), h2.FRAME_SIZE_ERROR),
    "a promise": (h2.frame(h2.PUSH_PROMISE, h2.END_HEADERS, 1, b"\0\0\0\x02"), h2.PROTOCOL_ERROR),
    "a farewell of a stream": (h2.frame(h2.GOAWAY, 0, 1, b"\0" * 8), h2.PROTOCOL_ERROR),
    "a window that grows by nothing": (h2.window_update(0, 0), h2.PROTOCOL_ERROR),
    "a window of a stream that was not opened": (h2.window_update(1, 1), h2.PROTOCOL_ERROR),
    "a window that is too large": (h2.window_update(0, 2**31 - 1), h2.FLOW_CONTROL_ERROR),
    "a short window": (h2.frame(h2.WINDOW_UPDATE, 0, 0, b"\0"), h2.FRAME_SIZE_ERROR),
}

MALFORMED_HEADS = {
    "no method": [(":scheme", "https"), (":path", "/now")],
    "no path": [(":method", "POST"), (":scheme", "https")],
    "an empty path": [(":method", "POST"), (":scheme", "https"), (":path", "")],
    "two paths": [(":method", "POST"), (":scheme", "https"), (":path", "/now"), (":path", "/now")],
    "an unknown pseudo-header": [(":method", "POST"), (":scheme", "https"), (":path", "/now"), (":x", "y")],
    "a pseudo-header behind others": [
        (":method", "POST"),
        (":scheme", "https"),
        ("a", "b"),
        (":path", "/now"),
    ],
}
MALFORMED_FIELDS = {
    "a capital letter": ("Big", "x"),
    "an empty name": ("", "x"),
    "a blank in a name": ("a b", "x"),
    "a line break": ("a", "x\r\ny"),
    "a header of HTTP/1.1": ("connection", "close"),
    "chunks": ("transfer-encoding", "chunked"),
    "trailers of another kind": ("te", "gzip"),
    "a length that is none": ("content-length", "-1"),
    "an empty length": ("content-length", ""),
}


@pytest.mark.parametrize("name", CONNECTION_FAULTS)
async def test_a_mistake_of_the_connection_ends_it_with_its_code(name: str) -> None:
    sent, code = CONNECTION_FAULTS[name]
    line = Http2Line()

    line.send(sent)

    assert [found for _, found in line.farewells] == [code]
    assert line.wire.closing


@pytest.mark.parametrize("start", [b"POST /now HTTP/1.1\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nXX", b"\0"])
async def test_who_does_not_begin_as_http2_does_is_hung_up_on(start: bytes) -> None:
    line = Http2Line(started=False)

    line.send(start)

    assert line.farewells == [(0, h2.PROTOCOL_ERROR)]
    assert line.wire.closing


@pytest.mark.parametrize("first", [a_ping(), ACK, a_call(1, "/now")])
async def test_settings_come_first(first: bytes) -> None:
    line = Http2Line(started=False)

    line.send(h2.PREFACE + first)

    assert line.farewells == [(0, h2.PROTOCOL_ERROR)]


async def test_calls_that_came_before_a_mistake_are_answered() -> None:
    line = Http2Line(started=False)

    line.send(START + a_call(1, "/now") + a_part(0, b"x") + a_call(3, "/now"))

    assert line.statuses == {1: 200}
    assert line.farewells == [(1, h2.PROTOCOL_ERROR)]


async def test_a_mistake_does_not_stop_a_bind() -> None:
    line = Http2Line()
    line.send(a_call(1, "/later"))
    await settle()

    line.send(a_part(0, b"x"))
    closed = line.wire.closing
    await line.finish()

    assert closed
    assert line.echo.recorded == [("/later", "ok")]


@pytest.mark.parametrize("name", MALFORMED_HEADS)
async def test_a_malformed_head_ends_its_stream(name: str) -> None:
    line = Http2Line()
    block = b"".join(_literal(*pair) for pair in MALFORMED_HEADS[name])

    line.send(h2.frame(h2.HEADERS, WHOLE, 1, block), a_call(3, "/now"))

    assert line.resets == [(1, h2.PROTOCOL_ERROR)]
    assert line.statuses == {3: 200}


@pytest.mark.parametrize("name", MALFORMED_FIELDS)
async def test_a_malformed_header_ends_its_stream(name: str) -> None:
    line = Http2Line()
    block = a_block("/now") + _literal(*MALFORMED_FIELDS[name])

    line.send(h2.frame(h2.HEADERS, WHOLE, 1, block), a_call(3, "/now"))

    assert line.resets == [(1, h2.PROTOCOL_ERROR)]
    assert line.statuses == {3: 200}


STREAM_FAULTS = {
    "a body shorter than announced": (
        a_head(1, "/now", ("content-length", "5")) + a_part(1, b"four", ends=True),
        h2.PROTOCOL_ERROR,
    ),
    "no body though announced": (
        a_head(1, "/now", ("content-length", "5"), flags=WHOLE),
        h2.PROTOCOL_ERROR,
    ),
    "a body longer than announced": (
        a_head(1, "/now", ("content-length", "3")) + a_part(1, b"four"),
        h2.PROTOCOL_ERROR,
    ),
    "two lengths": (
        a_head(1, "/now", ("content-length", "3"), ("content-length", "4"), flags=WHOLE),
        h2.PROTOCOL_ERROR,
    ),
    "a trailer that is not the end": (a_head(1, "/now") + a_head(1, "/now"), h2.PROTOCOL_ERROR),
    "a trailer with a path": (a_head(1, "/now") + a_head(1, "/now", flags=WHOLE), h2.PROTOCOL_ERROR),
    "a window that grows by nothing": (a_head(1, "/now") + h2.window_update(1, 0), h2.PROTOCOL_ERROR),
    "a window that is too large": (
        a_head(1, "/now") + h2.window_update(1, 2**31 - 1),
        h2.FLOW_CONTROL_ERROR,
    ),
    "data behind the end": (a_call(1, "/now") + a_part(1, b"x"), h2.STREAM_CLOSED),
}


@pytest.mark.parametrize("name", STREAM_FAULTS)
async def test_a_mistake_of_a_stream_ends_only_that(name: str) -> None:
    sent, code = STREAM_FAULTS[name]
    line = Http2Line()

    line.send(sent, a_call(3, "/now"))

    assert line.resets == [(1, code)]
    assert line.statuses[3] == 200
    assert not line.wire.closing


async def test_what_is_on_its_way_to_a_stream_that_was_reset_is_no_mistake() -> None:
    line = Http2Line()
    line.send(a_head(1, "/now", ("content-length", "3")) + a_part(1, b"four"))

    line.send(a_part(1, b"more"), a_head(1, "/now", flags=WHOLE), h2.window_update(1, 5), h2.reset(1, 8))
    line.send(a_call(3, "/now"))

    assert line.resets == [(1, h2.PROTOCOL_ERROR)]
    assert line.statuses == {3: 200}


async def test_data_to_a_call_that_is_being_answered_ends_its_stream() -> None:
    line = Http2Line()
    line.send(a_call(1, "/later"))
    await settle()

    line.send(a_part(1, b"more"))
    await line.finish()

    assert line.resets == [(1, h2.STREAM_CLOSED)]
    assert not line.answers
    assert line.echo.recorded == [("/later", "ok")]


async def test_more_than_the_window_of_a_stream_ends_it() -> None:
    line = Http2Line()
    line.connection._requests.open.clear()
    line.send(a_head(1, "/now"))
    line.connection._requests.open[1].receivable_bytes = 10

    line.send(a_part(1, b"x" * 11))

    assert line.resets == [(1, h2.FLOW_CONTROL_ERROR)]


async def test_a_client_may_not_send_what_it_has_no_room_for() -> None:
    line = Http2Line()
    line.connection._requests._receivable_bytes = 10

    line.send(a_head(1, "/now"), a_part(1, b"x" * 11))

    assert [code for _, code in line.farewells] == [h2.FLOW_CONTROL_ERROR]


FLOODS = {
    "pings": a_ping(),
    "settings": h2.frame(h2.SETTINGS, 0, 0),
    "priorities": h2.frame(h2.PRIORITY, 0, 3, b"\0\0\0\0\x10"),
    "windows": h2.window_update(0, 1),
    "nonsense": h2.frame(0xEE, 0, 0, b"?"),
    "empty data": a_part(1, b""),
    "padding": a_part(1, b"", padding=255),
}


@pytest.mark.parametrize("name", FLOODS)
async def test_a_flood_ends_the_connection(name: str) -> None:
    line = Http2Line()
    line.send(a_head(1, "/now"))

    line.send(*[FLOODS[name]] * (MAX_BARREN_FRAMES + 10))

    assert [code for _, code in line.farewells] == [h2.ENHANCE_YOUR_CALM]
    assert line.wire.closing


async def test_streams_that_are_opened_only_to_be_given_up_are_a_flood() -> None:
    line = Http2Line()
    line.send(a_call(1, "/later"))

    for stream in range(3, 2 * MAX_BARREN_FRAMES + 9, 2):
        line.send(a_call(stream, "/now"), h2.reset(stream, 8))

    assert [code for _, code in line.farewells] == [h2.ENHANCE_YOUR_CALM]
    assert line.echo.answered == 1


async def test_an_answer_ends_a_flood() -> None:
    line = Http2Line()

    for stream in (1, 3, 5):
        line.send(*[a_ping()] * (MAX_BARREN_FRAMES - 10), a_call(stream, "/now"))

    assert line.statuses == {1: 200, 3: 200, 5: 200}


async def test_a_head_has_few_continuations() -> None:
    line = Http2Line()

    line.send(h2.frame(h2.HEADERS, 0, 1), *[h2.frame(h2.CONTINUATION, 0, 1)] * (MAX_CONTINUATIONS + 1))

    assert [code for _, code in line.farewells] == [h2.ENHANCE_YOUR_CALM]


@pytest.mark.parametrize("more", [0, 1])
async def test_a_head_has_a_bound(more: int) -> None:
    line, counted = Http2Line(), 4 * 32 + len(":methodPOST:schemehttps:path/now:authorityx")
    block = a_block("/now") + _literal("x", "y" * (MAX_HEAD_BYTES - counted - 33 + more))

    line.send(h2.frame(h2.HEADERS, WHOLE, 1, block))

    assert line.statuses == {1: 431 if more else 200}


async def test_a_head_in_pieces_has_the_same_bound() -> None:
    line = Http2Line()

    line.send(h2.frame(h2.HEADERS, 0, 1, a_block("/now")))
    line.send(*[h2.frame(h2.CONTINUATION, 0, 1, b"x" * 5000)] * 8)

    assert line.statuses == {1: 431}
    assert line.farewells == [(1, h2.NO_ERROR)]


async def test_a_body_that_is_announced_too_large_is_refused_at_its_head() -> None:
    line = Http2Line()

    line.send(a_head(1, "/now", ("content-length", str(framing.MAX_BODY_BYTES + 1))))

    assert line.statuses == {1: 413}
    assert line.resets == [(1, h2.NO_ERROR)]
    assert line.echo.recorded == [("/now", "invalid")]


async def test_a_body_is_refused_as_soon_as_it_is_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(framing, "MAX_BODY_BYTES", 10_000)
    line = Http2Line()

    line.send(a_call(1, "/now", b"x" * 10_000), a_head(3, "/now"), *[a_part(3, b"x" * 1000)] * 11)

    assert line.statuses == {1: 200, 3: 413}


async def test_all_bodies_together_have_the_bound_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(framing, "MAX_BODY_BYTES", 10_000)
    line = Http2Line()

    line.send(a_head(1, "/now"), a_head(3, "/now"), a_part(1, b"x" * 6000), a_part(3, b"x" * 6000))
    line.send(a_part(1, b"", ends=True), a_call(5, "/now", b"x" * 9000))

    assert line.resets == [(3, h2.REFUSED_STREAM)]
    assert line.statuses == {1: 200, 5: 200}


def _literal(name: str, value: str) -> bytes:
    """A header as it is, which hpack would not write."""
    return b"\0" + _text(name) + _text(value)


def _text(text: str) -> bytes:
    size, encoded = len(text), bytearray()
    if size < 127:
        return bytes([size]) + text.encode()
    encoded.append(127)
    size -= 127
    while size >= 128:
        encoded.append(size % 128 + 128)
        size //= 128
    return bytes([*encoded, size]) + text.encode()
