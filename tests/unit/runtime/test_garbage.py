import asyncio
import gc
import weakref
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from gpuloom.runtime.clock import FakeClock, settle
from gpuloom.runtime.garbage import (
    ASK_INTERVAL_S,
    FULL_LOOK_INTERVAL_S,
    YOUNG_OBJECTS,
    keep_out_of_the_way,
)


class Knot:
    """Garbage once it is untied from us: it holds itself."""

    def __init__(self) -> None:
        self.itself = self


@asynccontextmanager
async def running(is_synced: Callable[[], bool], clock: FakeClock) -> AsyncIterator[None]:
    task = asyncio.create_task(keep_out_of_the_way(is_synced, clock))
    await settle()
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait({task})


async def test_what_is_there_when_synced_is_left_alone_and_nothing_before() -> None:
    clock, synced = FakeClock(), False

    async with running(lambda: synced, clock):
        before = gc.get_freeze_count()
        synced = True
        await clock.advance(ASK_INTERVAL_S)
        after = gc.get_freeze_count()

    assert before == 0
    assert after > 0


async def test_what_became_garbage_since_is_found_within_the_hour() -> None:
    clock, tied = FakeClock(), [Knot()]
    knot = weakref.ref(tied[0])

    async with running(lambda: True, clock):
        tied.clear()
        gc.collect()
        left_alone = knot() is not None
        await clock.advance(FULL_LOOK_INTERVAL_S)
        found = knot() is None

    assert left_alone
    assert found


async def test_python_looks_less_often_and_as_before_afterwards() -> None:
    clock, before = FakeClock(), gc.get_threshold()

    async with running(lambda: False, clock):
        during = gc.get_threshold()

    assert during[0] == YOUNG_OBJECTS > before[0]
    assert gc.get_threshold() == before
    assert gc.get_freeze_count() == 0


async def test_two_services_of_one_process_may_begin_and_end_in_any_order() -> None:
    clock, before = FakeClock(), gc.get_threshold()
    first = asyncio.create_task(keep_out_of_the_way(lambda: False, clock))
    await settle()

    async with running(lambda: False, clock):
        first.cancel()
        await asyncio.wait({first})
        during = gc.get_threshold()

    assert during[0] == YOUNG_OBJECTS
    assert gc.get_threshold() == before
