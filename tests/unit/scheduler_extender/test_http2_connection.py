"""One connection over HTTP/2, frame by frame: what is answered, in which order, and what ends it."""

import asyncio

import hpack
import pytest

from gpuloom.runtime.clock import settle
from services.scheduler_extender import http2_frames as h2
from services.scheduler_extender.http2_streams import MAX_STREAMS
from tests.unit.scheduler_extender.http2_lines import (
    ACK,
    START,
    Http2Line,
    a_block,
    a_call,
    a_head,
    a_part,
    a_ping,
)


async def test_a_server_says_first_that_it_wants_one_call_at_a_time() -> None:
    line = Http2Line(started=False)

    kind, flags, stream, payload = line.frames[0]
    announced = dict(h2.SETTING.iter_unpack(payload))

    assert (kind, flags, stream) == (h2.SETTINGS, 0, 0)
    assert announced[h2.MAX_CONCURRENT_STREAMS] == 1
    assert announced[h2.INITIAL_WINDOW_SIZE] >= 1024 * 1024
    assert announced[h2.HEADER_TABLE_SIZE] == 0


async def test_an_answer_is_one_write_with_its_length() -> None:
    line = Http2Line()
    line.settle_in()
    writes = line.wire.writes

    line.send(a_call(3, "/now", b"body"))

    answer = line.answers[3]
    assert (answer.body, answer.is_whole) == (b"<body>", True)
    assert answer.headers == {":status": "200", "content-type": "application/json", "content-length": "6"}
    assert line.wire.writes == writes + 1
    assert not line.wire.closing


async def test_an_ordinary_call_needs_no_other_frame() -> None:
    line = Http2Line()
    line.settle_in()
    line.send(h2.window_update(0, 10_000_000))
    before = len(line.frames)

    for stream in range(3, 203, 2):
        line.send(a_call(stream, "/now", b"x" * 13_000))

    kinds = {kind for kind, *_ in line.frames[before:]}
    assert len(line.answers) == 101
    assert kinds == {h2.HEADERS, h2.DATA}


async def test_settings_are_acknowledged() -> None:
    line = Http2Line(started=False)

    line.send(START)

    assert line.frames[-1] == (h2.SETTINGS, h2.ACK, 0, b"")


async def test_calls_opened_before_our_settings_were_seen_are_answered_one_after_the_other() -> None:
    line = Http2Line(started=False)

    line.send(START + a_call(1, "/later", b"first") + a_call(3, "/now", b"second"))
    await settle()
    before = dict(line.answers)
    await line.finish()

    assert before == {}
    assert list(line.answers) == [1, 3]
    assert line.answers[3].body == b"<second>"
    assert not line.wire.closing


async def test_the_call_that_is_whole_first_is_answered_first() -> None:
    line = Http2Line()

    line.send(a_head(1, "/now"), a_head(3, "/now"), a_part(3, b"b", ends=True), a_part(1, b"a", ends=True))

    assert list(line.answers) == [3, 1]


async def test_more_streams_than_there_is_room_for_are_refused() -> None:
    line = Http2Line()
    line.send(a_call(1, "/later"))

    line.send(*(a_call(stream, "/now", b"x") for stream in range(3, 2 * MAX_STREAMS + 5, 2)))
    refused = line.resets
    await line.finish()

    assert refused == [(stream, h2.REFUSED_STREAM) for stream in range(201, 205, 2)]
    assert set(line.statuses.values()) == {200}
    assert len(line.answers) == MAX_STREAMS


async def test_calls_in_one_piece_are_answered_however_many() -> None:
    line = Http2Line()
    streams = range(1, 1001, 2)

    line.send(b"".join(a_call(stream, "/now") for stream in streams))

    assert list(line.answers) == list(streams)


async def test_a_body_may_come_in_many_padded_parts() -> None:
    line = Http2Line()
    parts = [bytes([number]) * 500 for number in range(100)]

    line.send(a_head(1, "/now"), *(a_part(1, part, padding=number) for number, part in enumerate(parts)))
    line.send(a_part(1, b"", ends=True))

    assert line.answers[1].body == b"<" + b"".join(parts) + b">"


async def test_a_head_may_be_continued() -> None:
    line, block = Http2Line(), a_block("/now", ("x-long", "y" * 100))

    line.send(
        h2.frame(h2.HEADERS, 0, 1, block[:10])
        + h2.frame(h2.CONTINUATION, 0, 1, block[10:20])
        + h2.frame(h2.CONTINUATION, h2.END_HEADERS, 1, block[20:])
        + a_part(1, b"body", ends=True)
    )

    assert line.answers[1].body == b"<body>"


async def test_padding_and_priority_of_a_head_mean_nothing() -> None:
    line, block = Http2Line(), a_block("/now")
    flags = h2.END_HEADERS | h2.END_STREAM | h2.PADDED | h2.WITH_PRIORITY

    line.send(h2.frame(h2.HEADERS, flags, 1, b"\x03" + b"\0\0\0\0\x10" + block + b"\0\0\0"))

    assert line.statuses == {1: 200}


async def test_a_trailer_is_no_header() -> None:
    line = Http2Line()
    trailer = hpack.Encoder().encode([("content-length", "77")])

    line.send(a_head(1, "/now"), a_part(1, b"ab"))
    line.send(h2.frame(h2.HEADERS, h2.END_HEADERS | h2.END_STREAM, 1, trailer))

    assert line.answers[1].body == b"<ab>"


async def test_a_client_may_keep_a_table_until_it_has_seen_our_settings() -> None:
    line, encoder = Http2Line(), hpack.Encoder()
    fields = [(":method", "POST"), (":scheme", "https"), (":path", "/now"), ("x-kept", "in the table")]
    flags = h2.END_HEADERS | h2.END_STREAM

    line.send(*(h2.frame(h2.HEADERS, flags, stream, encoder.encode(fields)) for stream in (1, 3)))
    encoder.header_table_size = 0
    line.send(ACK)
    line.send(*(h2.frame(h2.HEADERS, flags, stream, encoder.encode(fields)) for stream in (5, 7, 9)))

    assert line.statuses == dict.fromkeys((1, 3, 5, 7, 9), 200)


async def test_what_nobody_has_heard_of_is_ignored() -> None:
    line = Http2Line()
    frames = (
        h2.frame(0xFE, 0xFF, 7, b"?"),
        h2.frame(h2.PRIORITY, 0, 9, b"\0\0\0\0\x10"),
        h2.frame(h2.SETTINGS, 0, 0, h2.SETTING.pack(0x99, 1)),
        h2.go_away(0, h2.NO_ERROR),
        h2.frame(h2.PING, h2.ACK, 0, b"12345678"),
    )

    line.send(*frames, a_call(1, "/now"))

    assert line.statuses == {1: 200}
    assert not line.wire.closing


async def test_a_ping_is_answered_while_a_call_is() -> None:
    line = Http2Line()
    line.send(a_call(1, "/later"))
    await settle()

    line.send(a_ping(b"are you?"))

    assert line.frames[-1] == (h2.PING, h2.ACK, 0, b"are you?")
    assert not line.answers


async def test_a_ping_is_answered_to_a_client_that_does_not_take_its_answer() -> None:
    line = Http2Line()
    line.wire.takes = False
    line.send(a_call(1, "/now"), a_call(3, "/now"))

    line.send(a_ping())
    line.wire.take()

    kinds = [kind for kind, *_ in line.frames]
    assert kinds[-5:] == [h2.HEADERS, h2.DATA, h2.PING, h2.HEADERS, h2.DATA]


async def test_a_call_that_was_given_up_while_it_waits_is_not_answered() -> None:
    line = Http2Line()
    line.send(a_call(1, "/later") + a_call(3, "/now") + a_call(5, "/now"))

    line.send(h2.reset(3, 8))
    await line.finish()

    assert line.echo.recorded == [("/later", "ok"), ("/now", "ok")]
    assert list(line.answers) == [1, 5]


async def test_a_call_that_was_given_up_before_it_was_whole_is_forgotten() -> None:
    line = Http2Line()
    line.send(a_head(1, "/now"), a_part(1, b"x" * 1000))

    line.send(h2.reset(1, 8), a_call(3, "/now"))

    assert line.statuses == {3: 200}
    assert line.connection._requests._held_bytes == 0


async def test_a_bind_that_was_given_up_goes_on_and_keeps_nobody_waiting() -> None:
    line = Http2Line()
    line.send(a_call(1, "/later"))
    await settle()

    line.send(h2.reset(1, 8), a_call(3, "/now"))
    served = dict(line.statuses)
    await line.finish()

    assert served == {3: 200}
    assert line.echo.recorded == [("/now", "ok"), ("/later", "ok")]
    assert line.statuses == {3: 200}
    assert not line.wire.closing


async def test_whatever_is_not_200_ends_the_connection_after_its_answer() -> None:
    line = Http2Line()

    line.send(a_call(1, "/no"))

    assert line.statuses == {1: 403}
    assert line.answers[1].body == b"no\n"
    assert line.farewells == [(1, h2.NO_ERROR)]
    assert line.frames[-1][0] == h2.GOAWAY
    assert line.wire.closing


async def test_calls_that_had_begun_to_come_are_answered_before_the_connection_ends() -> None:
    line = Http2Line()
    line.send(a_head(1, "/now"), a_call(3, "/no"))
    open_before = not line.wire.closing

    line.send(a_call(5, "/now"), a_part(1, b"a", ends=True))

    assert open_before
    assert line.statuses == {3: 403, 1: 200}
    assert line.farewells == [(3, h2.NO_ERROR)]
    assert line.wire.closing


@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_a_verb_is_only_posted(method: str) -> None:
    line = Http2Line()

    line.send(h2.frame(h2.HEADERS, h2.END_HEADERS | h2.END_STREAM, 1, a_block("/now", method=method)))

    answer = line.answers[1]
    assert (answer.status, answer.headers["allow"]) == (405, "POST")
    assert answer.body == (b"" if method == "HEAD" else b"post\n")
    assert answer.is_whole


@pytest.mark.parametrize("sent", [b"", a_call(1, "/now"), a_head(1, "/now")])
async def test_leaving_closes_at_once_what_waits_for_the_client(sent: bytes) -> None:
    line = Http2Line()
    line.send(sent)

    line.connection.leave()

    assert [code for _, code in line.farewells] == [h2.NO_ERROR]
    assert line.wire.closing


async def test_leaving_lets_the_call_that_is_being_answered_end() -> None:
    line = Http2Line()
    line.send(a_call(1, "/later") + a_call(3, "/now"))
    await settle()

    line.connection.leave()
    told, open_before = line.farewells, not line.wire.closing
    line.send(a_call(5, "/now"))
    await line.finish()

    assert (told, open_before) == ([(3, h2.NO_ERROR)], True)
    assert line.resets == [(3, h2.REFUSED_STREAM)]
    assert line.statuses == {1: 200}
    assert line.wire.closing
    assert line.echo.recorded == [("/later", "ok")]


async def test_a_client_that_goes_away_does_not_stop_its_call() -> None:
    line = Http2Line()
    line.send(a_call(1, "/later") + a_call(3, "/now"))
    await settle()

    line.hang_up()
    await line.finish()

    assert line.echo.recorded == [("/later", "ok")]
    assert not line.room.connections


async def test_a_call_that_is_cancelled_is_counted_and_answered() -> None:
    line = Http2Line()
    line.send(a_call(1, "/later"))
    await settle()

    for task in line.room._binds:
        task.cancel()
    await settle()

    assert line.echo.recorded == [("/later", "crashed")]
    assert line.statuses == {1: 500}
    assert line.wire.closing


async def test_leaving_cuts_off_a_connection_that_does_not_close() -> None:
    line = Http2Line()

    leaving = asyncio.create_task(line.room.close(line.clock, grace_s=2.0))
    await line.clock.advance(2.0)
    cut_off = line.wire.aborted
    line.hang_up()
    await leaving

    assert cut_off
    assert not line.room.connections
