"""Work that comes to its end though its caller is gone."""

import asyncio
from contextvars import ContextVar

import pytest

from gpuloom.errors import ConflictError
from gpuloom.runtime.finishing import finished

whose: ContextVar[str] = ContextVar("whose", default="nobody's")


class Work:
    def __init__(self, outcome: Exception | None = None) -> None:
        self.go_on = asyncio.Event()
        self.done = False
        self.context = ""
        self._outcome = outcome

    async def run(self) -> str:
        await self.go_on.wait()
        self.done, self.context = True, whose.get()
        if self._outcome is not None:
            raise self._outcome
        return "an outcome"


async def test_it_gives_the_outcome() -> None:
    work = Work()
    work.go_on.set()
    whose.set("the caller's")

    assert await finished(work.run()) == "an outcome"
    assert work.context == "nobody's"


async def test_it_raises_what_the_work_raises() -> None:
    work = Work(ConflictError("taken"))
    work.go_on.set()

    with pytest.raises(ConflictError, match="taken"):
        await finished(work.run())


@pytest.mark.parametrize("outcome", [None, ConflictError("taken")])
async def test_a_caller_that_is_cancelled_waits_for_the_end(outcome: Exception | None) -> None:
    work = Work(outcome)
    caller = asyncio.create_task(finished(work.run()))
    for _ in range(3):
        await asyncio.sleep(0)
        caller.cancel()

    await asyncio.wait({caller}, timeout=0)
    left_early = caller.done()
    work.go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await caller

    assert not left_early
    assert work.done


async def test_work_that_is_cancelled_itself_ends_the_wait() -> None:
    async def cancelled() -> None:
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await finished(cancelled())
