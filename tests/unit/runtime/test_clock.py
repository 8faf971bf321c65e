import asyncio
from datetime import timedelta

import pytest

from gpuloom.runtime.clock import FakeClock, SystemClock, deadline, settle


async def test_fake_time_stands_still_until_it_is_advanced() -> None:
    clock = FakeClock()
    before = clock.now()

    await clock.advance(2.5)

    assert clock.monotonic() == 2.5
    assert clock.now() - before == timedelta(seconds=2.5)


async def test_sleepers_wake_in_the_order_of_their_time_and_see_their_own_time() -> None:
    clock = FakeClock()
    woken: list[tuple[str, float]] = []

    async def sleeper(name: str, delay_s: float) -> None:
        await clock.sleep(delay_s)
        woken.append((name, clock.monotonic()))

    async with asyncio.TaskGroup() as group:
        for name, delay_s in (("late", 3.0), ("early", 1.0), ("also early", 1.0), ("now", 0.0)):
            group.create_task(sleeper(name, delay_s))
        await clock.advance(5)

    assert woken == [("now", 0.0), ("early", 1.0), ("also early", 1.0), ("late", 3.0)]


async def test_a_loop_that_sleeps_again_runs_as_often_as_it_would_in_real_time() -> None:
    clock = FakeClock()
    beats: list[float] = []

    async def beat() -> None:
        while True:
            await clock.sleep(2)
            beats.append(clock.monotonic())

    task = asyncio.create_task(beat())
    await clock.advance(7)
    task.cancel()

    assert beats == [2, 4, 6]


async def test_a_sleeper_waits_until_all_of_its_time_has_passed() -> None:
    clock = FakeClock()
    task = asyncio.create_task(clock.sleep(2))

    await clock.advance(1.9)
    early = task.done()
    await clock.advance(0.1)

    assert not early
    assert task.done()


async def test_a_cancelled_sleeper_does_not_disturb_the_others() -> None:
    clock = FakeClock()
    cancelled = asyncio.create_task(clock.sleep(1))
    other = asyncio.create_task(clock.sleep(1))
    await settle()

    cancelled.cancel()
    await clock.advance(1)

    assert cancelled.cancelled()
    assert other.done()


async def test_fake_time_never_goes_back() -> None:
    clock = FakeClock()
    await clock.advance(5)

    with pytest.raises(ValueError, match="never goes back"):
        await clock.advance(-1)

    await asyncio.gather(clock.advance(10), clock.advance(1))
    assert clock.monotonic() == 15


async def test_the_system_clock_moves_on_and_speaks_utc() -> None:
    clock = SystemClock()
    before = clock.monotonic()

    await clock.sleep(-1)

    assert clock.monotonic() >= before
    assert clock.now().utcoffset() == timedelta(0)


async def test_a_deadline_leaves_quick_work_alone() -> None:
    clock = FakeClock()

    async with deadline(clock, 1):
        await settle()
    await clock.advance(5)

    assert asyncio.current_task().cancelling() == 0  # type: ignore[union-attr]


async def test_work_beyond_its_deadline_raises_timeout_error() -> None:
    clock = FakeClock()
    task = asyncio.create_task(hang_with_deadline(clock, 3))

    await clock.advance(2.9)
    early = task.done()
    await clock.advance(0.1)

    assert not early
    with pytest.raises(TimeoutError, match="within 3 s"):
        await task


async def test_cancellation_from_outside_is_not_turned_into_a_timeout() -> None:
    clock = FakeClock()
    task = asyncio.create_task(hang_with_deadline(clock, 3))
    await settle()

    task.cancel()
    await settle()

    assert task.cancelled()


async def test_cancellation_from_outside_wins_over_a_deadline_at_the_same_moment() -> None:
    clock = FakeClock()

    async def slow_to_die() -> None:
        async with deadline(clock, 3):
            try:
                await asyncio.Event().wait()
            finally:
                await clock.sleep(5)

    task = asyncio.create_task(slow_to_die())
    await settle()
    task.cancel()
    await clock.advance(10)

    assert task.cancelled()


async def test_a_deadline_works_in_the_clean_up_of_a_cancelled_task() -> None:
    clock = FakeClock()
    outcome: list[str] = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            try:
                await hang_with_deadline(clock, 1)
            except TimeoutError:
                outcome.append("timeout")

    task = asyncio.create_task(work())
    await settle()
    task.cancel()
    await clock.advance(1)

    assert outcome == ["timeout"]
    assert task.cancelled()


async def test_only_the_inner_of_two_deadlines_fires_when_it_is_shorter() -> None:
    clock = FakeClock()
    outcome: list[str] = []

    async def nested() -> None:
        async with deadline(clock, 5):
            with pytest.raises(TimeoutError):
                await hang_with_deadline(clock, 1)
            outcome.append("inner")
            await clock.sleep(1)
            outcome.append("went on")

    task = asyncio.create_task(nested())
    await clock.advance(10)
    await task

    assert outcome == ["inner", "went on"]


async def test_an_error_of_the_work_passes_through_a_deadline() -> None:
    with pytest.raises(KeyError):
        async with deadline(FakeClock(), 1):
            raise KeyError("own")


async def test_work_that_answers_its_cancellation_with_an_error_leaves_no_cancellation_behind() -> None:
    clock = FakeClock()

    async def work() -> int:
        try:
            async with deadline(clock, 1):
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    raise ConnectionError("broken off") from None
        except ConnectionError:
            pass
        task = asyncio.current_task()
        return -1 if task is None else task.cancelling()

    task = asyncio.create_task(work())
    await clock.advance(1)

    assert await task == 0


async def hang_with_deadline(clock: FakeClock, timeout_s: float) -> None:
    async with deadline(clock, timeout_s):
        await asyncio.Event().wait()
