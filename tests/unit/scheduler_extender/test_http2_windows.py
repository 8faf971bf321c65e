"""Windows of HTTP/2: a client gets new room in time, and no more is sent to it than it has room for."""

from services.scheduler_extender import http2_frames as h2
from tests.unit.scheduler_extender.http2_lines import Http2Line, a_call, a_head, a_part, settings


async def test_a_large_body_gets_new_room_in_time() -> None:
    line = Http2Line()
    part, count = b"x" * h2.FRAME_BYTES, 320
    room = {0: h2.CONNECTION_WINDOW_BYTES, 1: h2.STREAM_WINDOW_BYTES}

    line.send(a_head(1, "/now"))
    seen = len(line.frames)
    for number in range(count):
        room = {stream: left - len(part) for stream, left in room.items()}
        assert min(room.values()) >= 0
        line.wire.sent.clear()
        line.send(a_part(1, part, ends=number == count - 1))
        for kind, _, stream, payload in line.frames:
            if kind == h2.WINDOW_UPDATE:
                room[stream] += h2.NUMBER.unpack(payload)[0]

    assert seen
    assert line.echo.recorded == [("/now", "ok")]


async def test_a_large_answer_waits_for_the_windows_of_the_client() -> None:
    line = Http2Line(started=False)
    line.send(h2.PREFACE + settings(INITIAL_WINDOW_SIZE=1000))
    body = b"x" * 65_000

    line.send(a_call(1, "/now", body) + a_call(3, "/now", b"behind"))
    sent = [len(line.answers[1].body)]
    for stream, more in ((1, 500), (0, 100_000), (1, 60_000), (1, 30_000)):
        line.send(h2.window_update(stream, more))
        sent.append(len(line.answers[1].body))

    assert sent == [1000, 1500, 1500, 61_500, 65_002]
    assert line.answers[1].body == b"<" + body + b">"
    assert line.answers[1].is_whole
    assert line.answers[3].body == b"<behind>"


async def test_the_window_of_the_connection_counts_for_all_its_streams() -> None:
    line = Http2Line()
    line.send(a_call(1, "/now", b"x" * 40_000), a_call(3, "/now", b"x" * 40_000))
    sent = len(line.answers[3].body)

    line.send(h2.window_update(0, 20_000))

    assert sent == h2.FIRST_WINDOW_BYTES - 40_002
    assert line.answers[3].is_whole


async def test_a_change_of_settings_widens_and_narrows_what_is_being_answered() -> None:
    line = Http2Line(started=False)
    line.send(h2.PREFACE + settings(INITIAL_WINDOW_SIZE=1000))
    sent = []

    line.send(a_call(1, "/now", b"x" * 9_998))
    for window in (3000, 100, 3500, 20_000):
        sent.append(len(line.answers[1].body))
        line.send(settings(INITIAL_WINDOW_SIZE=window))

    assert sent == [1000, 3000, 3000, 3500]
    assert line.answers[1].is_whole


async def test_frames_are_as_long_as_the_client_takes_them() -> None:
    line = Http2Line()
    line.send(a_call(1, "/now", b"x" * 40_000))
    lengths = [len(part) for part in line.payloads(h2.DATA)]

    line.send(
        settings(MAX_FRAME_SIZE=50_000) + h2.window_update(0, 100_000), a_call(3, "/now", b"x" * 40_000)
    )

    assert lengths == [h2.LEAST_FRAME_BYTES, h2.LEAST_FRAME_BYTES, 40_002 - 2 * h2.LEAST_FRAME_BYTES]
    assert len(line.payloads(h2.DATA)[-1]) == 40_002


async def test_many_small_windows_are_no_flood() -> None:
    line = Http2Line(started=False)
    line.send(h2.PREFACE + settings(INITIAL_WINDOW_SIZE=0))

    line.send(a_call(1, "/now", b"x" * 2998), *[h2.window_update(1, 1)] * 3000)

    assert line.answers[1].is_whole


async def test_an_answer_that_was_given_up_midway_makes_room_for_the_next() -> None:
    line = Http2Line(started=False)
    line.send(h2.PREFACE + settings(INITIAL_WINDOW_SIZE=1000), a_call(1, "/now", b"x" * 5000))

    line.send(h2.reset(1, 8), a_call(3, "/now"))

    assert not line.answers[1].is_whole
    assert line.answers[3].is_whole
