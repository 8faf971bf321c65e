"""Which of the connections over HTTP/2 that nobody uses are kept."""

from services.scheduler_extender import http2_frames as h2
from services.scheduler_extender.http import KEPT_IDLE, SPARE_S
from tests.unit.scheduler_extender.http2_lines import Http2Line, a_block, a_call, a_head


def some_lines(count: int) -> list[Http2Line]:
    """To one port, at one time."""
    first = Http2Line()
    return [first, *(Http2Line(beside=first) for _ in range(count - 1))]


def left(lines: list[Http2Line]) -> list[bool]:
    return [bool(line.farewells) for line in lines]


async def test_idle_connections_beyond_a_few_are_let_go_after_a_while() -> None:
    lines = some_lines(KEPT_IDLE + 2)
    for line in lines:
        line.send(a_call(1, "/now"))
        await line.after(0.1)

    await lines[0].clock.advance(SPARE_S - 1.0)
    lines[0].room.thin_out(lines[0].clock.monotonic())
    early = left(lines)
    await lines[0].clock.advance(1.0)
    lines[0].room.thin_out(lines[0].clock.monotonic())

    assert not any(early)
    assert left(lines) == [True, True, *[False] * KEPT_IDLE]
    assert lines[0].farewells == [(1, h2.NO_ERROR)]


async def test_those_used_last_are_kept_whoever_came_first() -> None:
    lines = some_lines(KEPT_IDLE + 1)
    await lines[0].clock.advance(60.0)
    lines[0].send(a_call(1, "/now"))

    lines[0].room.thin_out(lines[0].clock.monotonic())

    assert sum(left(lines)) == 1
    assert not lines[0].farewells


async def test_a_connection_with_a_call_on_it_is_never_a_spare() -> None:
    answering, coming, beginning, *idle = some_lines(3 + KEPT_IDLE)
    answering.send(a_call(1, "/later"))
    coming.send(a_head(1, "/now"))
    beginning.send(h2.frame(h2.HEADERS, 0, 1, a_block("/now")))

    await answering.clock.advance(SPARE_S)
    answering.room.thin_out(answering.clock.monotonic())

    assert not any(left([answering, coming, beginning, *idle]))
    await answering.finish()
    assert answering.statuses == {1: 200}


async def test_a_call_that_crosses_the_farewell_of_a_spare_is_left_to_be_made_again() -> None:
    lines = some_lines(KEPT_IDLE + 1)
    await lines[0].clock.advance(SPARE_S)
    lines[0].room.thin_out(lines[0].clock.monotonic())
    (spare,) = (line for line in lines if line.farewells)

    spare.send(a_call(1, "/now"))
    spare.room.thin_out(spare.clock.monotonic())

    assert spare.farewells == [(0, h2.NO_ERROR)]
    assert spare.statuses == {}
    assert not spare.wire.closing
    assert sum(left(lines)) == 1
