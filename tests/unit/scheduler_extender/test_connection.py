"""One connection, byte by byte: what is understood, what is answered, and in which order."""

import asyncio
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuloom.runtime.clock import settle
from services.scheduler_extender import framing
from services.scheduler_extender.framing import MAX_HEAD_BYTES
from tests.effort import examples
from tests.unit.scheduler_extender.lines import Line, a_chunked_post, a_post, answers_with, cut

SMALL_BODY_BYTES = 5000

bodies = st.binary(max_size=300)
good_requests = st.one_of(
    st.builds(a_post, st.sampled_from(("/now", "/later")), bodies),
    st.builds(a_chunked_post, st.sampled_from(("/now", "/later")), st.lists(bodies, max_size=5)),
    st.builds(lambda body: a_post("/now", body, "Expect: 100-continue"), bodies),
)
LAST_REQUESTS = {
    "nothing": b"",
    "closes": a_post("/now", b"body", "Connection: close") + b"more",
    "refused": a_post("/no", b"body"),
    "too large": a_post("/now", b"x" * (SMALL_BODY_BYTES + 1)),
    "too large in chunks": a_chunked_post("/now", [b"x" * 1000] * 6),
    "not posted": b"GET /now HTTP/1.1\r\n\r\n",
    "upgrade": a_post("/now", b"", "Upgrade: h2c", "Connection: Upgrade"),
    "two lengths": b"POST /now HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
    "too long a head": b"POST /now HTTP/1.1\r\nX: " + b"y" * 2 * MAX_HEAD_BYTES,
    "no HTTP": b"\x16\x03\x01\x02\x00 nonsense",
}


async def _played(parts: Sequence[bytes], prompt: bool) -> tuple[bytes, bool, list[tuple[str, str]]]:
    """What is sent, whether that was the end, and what was recorded. Prompt: nothing is kept waiting."""
    line = Line()
    for part in parts:
        line.send(part)
        if prompt:
            await line.finish()
    await line.finish()
    sent = bytes(line.wire.sent).replace(b"HTTP/1.1 100 Continue\r\n\r\n", b"")
    return sent, line.has_ended, line.echo.recorded


@settings(max_examples=examples(150))
@given(
    st.lists(good_requests, max_size=5),
    st.sampled_from(sorted(LAST_REQUESTS)),
    st.lists(st.integers(0, 100_000), max_size=12),
    st.booleans(),
)
def test_any_split_of_the_stream_gives_the_same_answers(
    requests: list[bytes], last: str, places: list[int], prompt: bool
) -> None:
    stream = b"".join(requests) + LAST_REQUESTS[last]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(framing, "MAX_BODY_BYTES", SMALL_BODY_BYTES)
        whole = asyncio.run(_played([stream], prompt=False))
        split = asyncio.run(_played(cut(stream, places), prompt))

    assert split == whole
    assert len(whole[2]) >= len(requests)


def test_a_stream_that_comes_byte_by_byte_gives_the_same_answers() -> None:
    stream = (
        a_post("/later", b"one") + a_chunked_post("/now", [b"two", b"three"], b"Sum: 1\r\n") + a_post("/no")
    )

    whole = asyncio.run(_played([stream], prompt=False))
    split = asyncio.run(_played([bytes([byte]) for byte in stream], prompt=True))

    assert split == whole
    assert [outcome for _, outcome in whole[2]] == ["ok", "ok", "forbidden"]


@settings(max_examples=examples(200))
@given(st.lists(st.one_of(st.binary(max_size=200), good_requests), max_size=6))
def test_random_bytes_are_answered_or_waited_for(parts: list[bytes]) -> None:
    async def play() -> Line:
        line = Line()
        line.send(*parts)
        await line.finish()
        return line

    line = asyncio.run(play())

    assert set(line.statuses) <= {100, 200, 400, 403, 405}
    assert line.has_ended or not {400, 403, 405} & set(line.statuses)


async def test_an_answer_is_one_write_with_its_length() -> None:
    line = Line()

    line.send(a_post("/now", b"body"))

    assert bytes(line.wire.sent) == answers_with(b"body")
    assert line.wire.writes == 1
    assert not line.wire.closing


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"POST /now HTTP/1.0\r\nContent-Length: 2\r\n\r\nab",
        a_post("/now", b"ab", "Connection: close"),
        a_post("/now", b"ab", "connection: Close"),
    ],
)
async def test_a_client_that_wants_no_second_call_is_hung_up_on(request_bytes: bytes) -> None:
    line = Line()

    line.send(request_bytes)

    assert bytes(line.wire.sent) == answers_with(b"ab", "close")
    assert line.wire.closing


async def test_an_old_client_that_asks_for_it_is_kept() -> None:
    line = Line()

    line.send(b"POST /now HTTP/1.0\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\nab")

    assert bytes(line.wire.sent) == answers_with(b"ab")
    assert not line.wire.closing


async def test_a_call_behind_another_waits_for_it() -> None:
    line = Line()

    line.send(a_post("/later", b"first") + a_post("/now", b"second"))
    line.send(a_post("/now", b"third"))
    await settle()

    assert not line.wire.sent
    assert not line.wire.reading

    await line.finish()

    assert bytes(line.wire.sent) == b"".join(map(answers_with, (b"first", b"second", b"third")))
    assert line.wire.reading


async def test_of_what_is_sent_ahead_little_is_read() -> None:
    line, small = Line(), a_post("/now")
    ahead = 256 * 1024 // len(small)

    line.send(a_post("/later") + small * ahead)
    waiting = len(line.connection._requests.complete)
    await line.finish()

    assert waiting <= MAX_HEAD_BYTES // len(small)
    assert line.statuses == [200] * (ahead + 1)


async def test_a_client_that_does_not_take_its_answer_gets_no_second() -> None:
    line = Line()
    line.wire.takes = False

    line.send(a_post("/now", b"first") + a_post("/now", b"second"))
    line.send(a_post("/now", b"third"))

    assert bytes(line.wire.sent) == answers_with(b"first")
    assert line.echo.answered == 1
    assert not line.wire.reading

    line.wire.take()

    assert bytes(line.wire.sent) == b"".join(map(answers_with, (b"first", b"second", b"third")))
    assert line.wire.reading


async def test_a_client_that_goes_away_does_not_stop_its_call() -> None:
    line = Line()
    line.send(a_post("/later", b"body"))
    await settle()

    line.hang_up()
    await line.finish()

    assert line.echo.recorded == [("/later", "ok")]
    assert not line.room.connections
    assert not line.wire.sent


async def test_calls_behind_one_whose_client_went_away_are_not_begun() -> None:
    line = Line()
    line.send(a_post("/later") + a_post("/now"))

    line.hang_up()
    await line.finish()

    assert line.echo.recorded == [("/later", "ok")]


async def test_who_asks_before_sending_a_body_is_told_to_go_on() -> None:
    line, request = Line(), a_post("/now", b"body", "Expect: 100-continue")

    line.send(request[:-4])
    told = bytes(line.wire.sent)
    line.send(b"body")

    assert told == b"HTTP/1.1 100 Continue\r\n\r\n"
    assert bytes(line.wire.sent) == told + answers_with(b"body")


async def test_who_asks_before_sending_a_body_may_be_refused_instead() -> None:
    line = Line()

    line.send(a_post("/no", b"body", "Expect: 100-continue")[:-4])

    assert line.statuses == [403]


async def test_who_asks_while_another_call_is_answered_is_told_in_turn() -> None:
    line = Line()

    line.send(a_post("/later") + a_post("/now", b"body", "Expect: 100-continue")[:-4])
    before = line.statuses
    await line.finish()

    assert before == []
    assert line.statuses == [200, 100]


async def test_an_old_client_is_never_told_to_go_on() -> None:
    line = Line()

    line.send(b"POST /now HTTP/1.0\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n", b"ab")

    assert bytes(line.wire.sent) == answers_with(b"ab", "close")


async def test_a_trailer_is_no_header() -> None:
    line, request = Line(), a_chunked_post("/now", [b"ab"], b"Expect: 100-continue\r\nSum: 1\r\n")

    line.send(request[:-6], request[-6:])

    assert bytes(line.wire.sent) == answers_with(b"ab")


async def test_a_refusal_of_a_head_request_has_no_body() -> None:
    line = Line()

    line.send(b"HEAD /now HTTP/1.1\r\n\r\n")

    assert line.statuses == [405]
    assert b"\r\nAllow: POST\r\n" in line.wire.sent
    assert line.wire.sent.endswith(b"\r\n\r\n")


@pytest.mark.parametrize("sent", [b"", a_post("/now"), a_post("/now", b"body")[:-1]])
async def test_leaving_closes_at_once_what_waits_for_the_client(sent: bytes) -> None:
    line = Line()
    line.send(sent)

    line.connection.leave()

    assert line.wire.closing


async def test_leaving_lets_the_call_that_is_being_answered_end() -> None:
    line = Line()
    line.send(a_post("/later", b"body") + a_post("/now"))

    line.connection.leave()
    open_before = not line.wire.closing
    await line.finish()

    assert open_before
    assert bytes(line.wire.sent) == answers_with(b"body", "close")
    assert line.wire.closing


async def test_a_call_that_is_cancelled_is_counted_and_answered() -> None:
    line = Line()
    line.send(a_post("/later"))
    await settle()

    for task in line.room._binds:
        task.cancel()
    await settle()

    assert line.echo.recorded == [("/later", "crashed")]
    assert line.statuses == [500]
    assert line.wire.closing


async def test_leaving_cuts_off_a_connection_that_does_not_close() -> None:
    line = Line()

    leaving = asyncio.create_task(line.room.close(line.clock, grace_s=2.0))
    await line.clock.advance(1.9)
    cut_off_early = line.wire.aborted
    await line.clock.advance(0.1)
    cut_off = line.wire.aborted
    line.hang_up()
    await leaving

    assert (cut_off_early, cut_off) == (False, True)
    assert not line.room.connections
