"""What one connection may take of room and time. Nobody waits here: the clock is ours."""

import pytest

from services.scheduler_extender import framing
from services.scheduler_extender.connection import IDLE_S, LINGER_S, REQUEST_S, TAKE_S
from services.scheduler_extender.framing import MAX_HEAD_BYTES
from tests.unit.scheduler_extender.lines import Line, a_chunked_post, a_post


@pytest.mark.parametrize("more", [0, 1])
@pytest.mark.parametrize("size", [1000, MAX_HEAD_BYTES - 1, 10 * MAX_HEAD_BYTES])
async def test_a_head_has_a_bound_however_it_comes(more: int, size: int) -> None:
    start, end = b"POST /now HTTP/1.1\r\nContent-Length: 2\r\nX: ", b"\r\n\r\nab"
    stream = start + b"y" * (MAX_HEAD_BYTES + more - len(start) - 4) + end
    line = Line()

    line.send(*(stream[place : place + size] for place in range(0, len(stream), size)))

    assert line.statuses == [431 if more else 200]


async def test_line_breaks_without_end_are_no_head() -> None:
    line = Line()

    line.send(*[b"\r\n" * 1000] * 40)

    assert line.statuses == [431]


async def test_what_follows_the_last_chunk_has_a_bound() -> None:
    line = Line()

    line.send(a_chunked_post("/now", [b"x"])[:-2], *[b"T: " + b"y" * 1000] * 100)

    assert line.statuses == [431]
    assert line.has_ended


async def test_a_body_that_is_announced_too_large_is_refused_at_its_head() -> None:
    line, head = Line(), f"POST /now HTTP/1.1\r\nContent-Length: {framing.MAX_BODY_BYTES + 1}\r\n\r\n"

    line.send(head.encode(), *[b"x" * 60_000] * 50)

    assert line.statuses == [413]
    assert line.echo.recorded == [("/now", "invalid")]
    assert line.wire.half_closed
    assert not line.connection._unread


async def test_a_body_in_chunks_is_refused_as_soon_as_it_is_too_large(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(framing, "MAX_BODY_BYTES", 10_000)
    fits, over = [b"x" * 1000] * 10, [b"x" * 1000] * 11
    line = Line()

    line.send(a_chunked_post("/now", fits), a_chunked_post("/now", over)[:-100])

    assert line.statuses == [200, 413]
    assert line.has_ended


async def test_a_body_of_small_chunks_takes_no_more_room_than_a_whole_one() -> None:
    line = Line()

    line.send(a_chunked_post("/now", [b"x"] * 50_000)[:-10])
    incoming = line.connection._requests.incoming

    assert incoming is not None
    assert isinstance(incoming.body, bytearray)
    assert len(incoming.body) >= 49_000


async def test_a_refusal_waits_until_its_request_has_been_sent() -> None:
    """Closed while data is on its way, the client's system would drop the answer."""
    line = Line()

    line.send(a_post("/no", b"x" * 100)[:-50])

    assert line.statuses == [403]
    assert not line.wire.closing

    line.send(b"x" * 50, a_post("/now"))
    await line.after(LINGER_S)

    assert line.statuses == [403]
    assert line.wire.closing


async def test_a_request_has_a_time_to_come() -> None:
    line = Line()
    await line.after(100.0)

    line.send(a_post("/now", b"body")[:-1])
    await line.after(REQUEST_S - 0.1)
    early = line.statuses
    await line.after(0.1)

    assert early == []
    assert line.statuses == [408]
    assert line.echo.recorded == [("/now", "invalid")]

    await line.after(LINGER_S)

    assert line.wire.closing


async def test_bytes_that_trickle_in_do_not_buy_time() -> None:
    line = Line()

    for byte in a_post("/now", b"body")[:-1]:
        line.send(bytes([byte]))
        await line.after(1.0)

    assert line.statuses == [408]


async def test_an_idle_connection_is_kept_longer_than_go_keeps_it() -> None:
    line = Line()
    await line.after(60.0)
    line.send(a_post("/now"))

    await line.after(IDLE_S - 0.1)
    kept = not line.wire.closing
    await line.after(0.1)

    assert IDLE_S > 90.0
    assert kept
    assert line.wire.closing
    assert line.statuses == [200]


async def test_a_call_that_is_being_answered_is_never_cut_off() -> None:
    line = Line()
    line.send(a_post("/later"))

    await line.after(1000.0)
    await line.finish()
    await line.after(IDLE_S - 0.1)

    assert line.statuses == [200]
    assert not line.wire.closing


async def test_a_client_that_never_takes_its_answer_is_cut_off() -> None:
    line = Line()
    line.wire.takes = False
    line.send(a_post("/now"))

    await line.after(TAKE_S - 0.1)
    kept = not line.wire.closing
    await line.after(0.1)

    assert kept
    assert line.wire.aborted


async def test_a_connection_that_can_not_be_closed_is_cut_off() -> None:
    line = Line()
    line.send(a_post("/now", b"", "Connection: close"))

    await line.after(TAKE_S)

    assert line.wire.aborted
