import asyncio

import pytest

from gpuloom.runtime.clock import FakeClock, settle
from gpuloom.runtime.deadlines import Deadlines


async def wait_for_ever(deadlines: Deadlines, timeout_s: float) -> None:
    with deadlines.within(timeout_s):
        await asyncio.Event().wait()


async def test_a_wait_ends_when_its_time_is_up_and_not_before() -> None:
    clock = FakeClock()
    deadlines = Deadlines(clock)
    waiting = asyncio.create_task(wait_for_ever(deadlines, 5.0))
    await clock.advance(4.9)
    early = waiting.done()
    await clock.advance(0.1)

    with pytest.raises(TimeoutError):
        await waiting
    await deadlines.close()

    assert not early


async def test_a_shorter_wait_does_not_stand_behind_a_longer_one() -> None:
    clock = FakeClock()
    deadlines = Deadlines(clock)
    longer = asyncio.create_task(wait_for_ever(deadlines, 30.0))
    await settle()
    shorter = asyncio.create_task(wait_for_ever(deadlines, 0.3))
    await clock.advance(0.3)
    ended = (shorter.done(), longer.done())
    await clock.advance(29.7)

    results = await asyncio.gather(shorter, longer, return_exceptions=True)
    await deadlines.close()

    assert ended == (True, False)
    assert [type(result) for result in results] == [TimeoutError, TimeoutError]


async def test_waits_that_come_one_after_the_other_each_have_their_whole_time() -> None:
    clock = FakeClock()
    deadlines = Deadlines(clock)
    for _ in range(7):
        with deadlines.within(1.0):
            await clock.advance(0.7)
    waiting = asyncio.create_task(wait_for_ever(deadlines, 1.0))
    await clock.advance(0.9)
    early = waiting.done()
    await clock.advance(0.1)

    with pytest.raises(TimeoutError):
        await waiting
    await deadlines.close()

    assert not early


async def test_a_cancellation_from_elsewhere_stays_one() -> None:
    deadlines = Deadlines(FakeClock())
    waiting = asyncio.create_task(wait_for_ever(deadlines, 5.0))
    await settle()
    waiting.cancel()

    with pytest.raises(asyncio.CancelledError):
        await waiting
    await deadlines.close()


async def test_who_was_cut_short_can_wait_again() -> None:
    clock = FakeClock()
    deadlines = Deadlines(clock)

    async def wait_twice() -> str:
        try:
            await wait_for_ever(deadlines, 1.0)
        except TimeoutError:
            await asyncio.sleep(0)
        return "went on"

    waiting = asyncio.create_task(wait_twice())
    await clock.advance(1.0)
    said = await waiting
    await deadlines.close()

    assert said == "went on"


async def test_work_that_ends_in_spite_of_its_deadline_keeps_its_result() -> None:
    clock = FakeClock()
    deadlines = Deadlines(clock)

    async def stubborn() -> str:
        said = ""
        with deadlines.within(1.0):
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                said = "done"
        return said

    working = asyncio.create_task(stubborn())
    await clock.advance(1.0)
    said = await working
    await deadlines.close()

    assert said == "done"
