"""How long a connection over HTTP/2 may take for what it does. Nobody waits here: the clock is ours."""

import pytest

from services.scheduler_extender import http2_frames as h2
from services.scheduler_extender.connection import IDLE_S, LINGER_S, REQUEST_S, TAKE_S
from tests.unit.scheduler_extender.http2_lines import (
    Http2Line,
    a_block,
    a_call,
    a_head,
    a_part,
    a_ping,
    settings,
)


async def test_a_request_has_a_time_to_come() -> None:
    line = Http2Line()
    await line.after(100.0)

    line.send(a_head(1, "/now"), a_part(1, b"x"))
    await line.after(REQUEST_S - 0.1)
    early = line.statuses
    await line.after(0.1)

    assert early == {}
    assert line.statuses == {1: 408}
    assert line.resets == [(1, h2.NO_ERROR)]
    assert line.echo.recorded == [("/now", "invalid")]
    assert not line.wire.closing

    line.send(a_part(1, b"x"))
    await line.after(LINGER_S)

    assert line.wire.closing


async def test_bytes_that_trickle_in_do_not_buy_time() -> None:
    line = Http2Line()

    line.send(a_head(1, "/now"))
    for _ in range(31):
        line.send(a_part(1, b"x"), a_ping())
        await line.after(1.0)

    assert line.statuses == {1: 408}


async def test_a_head_has_a_time_to_come() -> None:
    line = Http2Line()
    line.send(h2.frame(h2.HEADERS, 0, 1, a_block("/now")))

    await line.after(REQUEST_S - 0.1)
    kept = not line.farewells
    await line.after(0.1)

    assert kept
    assert line.farewells == [(0, h2.NO_ERROR)]


@pytest.mark.parametrize("called", [False, True])
async def test_an_idle_connection_is_kept_longer_than_go_keeps_it(called: bool) -> None:
    line = Http2Line()
    if called:
        await line.after(60.0)
        line.send(a_call(1, "/now"))

    await line.after(IDLE_S - 0.1)
    line.send(a_ping())
    kept = not line.farewells
    await line.after(0.1)

    assert kept
    assert [code for _, code in line.farewells] == [h2.NO_ERROR]


async def test_a_call_that_crosses_the_farewell_of_an_idle_connection_is_left_to_be_made_again() -> None:
    """Go does so with streams that the farewell does not name, if it can read it."""
    line = Http2Line()
    line.send(a_call(1, "/now"))
    await line.after(IDLE_S)

    line.send(a_call(3, "/now"))
    open_before = not line.wire.closing
    await line.after(LINGER_S)

    assert line.farewells == [(1, h2.NO_ERROR)]
    assert line.statuses == {1: 200}
    assert open_before
    assert line.wire.closing


async def test_a_call_that_is_being_answered_is_never_cut_off() -> None:
    line = Http2Line()
    line.send(a_call(1, "/later"))

    await line.after(1000.0)
    await line.finish()
    await line.after(IDLE_S - 0.1)

    assert line.statuses == {1: 200}
    assert not line.wire.closing


async def test_a_client_that_never_takes_its_answer_is_cut_off() -> None:
    line = Http2Line()
    line.wire.takes = False
    line.send(a_call(1, "/now"))

    await line.after(TAKE_S - 0.1)
    kept = not line.wire.closing
    await line.after(0.1)

    assert kept
    assert line.wire.aborted


async def test_a_client_that_never_opens_its_window_is_cut_off() -> None:
    line = Http2Line(started=False)
    line.send(h2.PREFACE + settings(INITIAL_WINDOW_SIZE=5), a_call(1, "/now", b"x" * 100))

    await line.after(TAKE_S - 0.1)
    line.send(h2.window_update(1, 1))
    kept = not line.wire.closing
    await line.after(0.1)

    assert kept
    assert line.wire.aborted


async def test_a_client_that_took_its_answer_late_is_idle_from_then_on() -> None:
    line = Http2Line(started=False)
    line.send(h2.PREFACE + settings(INITIAL_WINDOW_SIZE=5), a_call(1, "/now", b"x" * 100))
    await line.after(TAKE_S - 1.0)

    line.send(h2.window_update(1, 1000))
    await line.after(IDLE_S - 0.1)

    assert line.answers[1].is_whole
    assert not line.wire.closing


async def test_a_connection_that_can_not_be_closed_is_cut_off() -> None:
    line = Http2Line()
    line.send(a_call(1, "/no"))

    await line.after(TAKE_S)

    assert line.wire.aborted


async def test_a_refusal_waits_until_its_request_has_been_sent() -> None:
    """Closed while data is on its way, the client's system would drop the answer."""
    line = Http2Line()

    line.send(a_head(1, "/no"), a_part(1, b"x" * 50))
    open_before = not line.wire.closing
    line.send(a_part(1, b"x" * 50, ends=True), a_call(3, "/now"))
    await line.after(LINGER_S)

    assert open_before
    assert line.statuses == {1: 403}
    assert line.wire.closing
