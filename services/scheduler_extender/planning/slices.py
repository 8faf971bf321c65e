"""Planning in turns of a millisecond, so that kube-scheduler's calls hardly notice."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from gpuloom.placement.gangs.sites import Steps
from gpuloom.runtime.clock import Clock

TURN_S = 0.001

Result = TypeVar("Result")


async def in_slices(work: Steps[Result], clock: Clock) -> Result:
    ends_s = clock.monotonic() + TURN_S
    while True:
        try:
            next(work)
        except StopIteration as done:
            result: Result = done.value
            return result
        if clock.monotonic() >= ends_s:
            await clock.sleep(0.0)
            ends_s = clock.monotonic() + TURN_S


async def at_once(work: Sequence[Callable[[], Awaitable[Result]]]) -> Sequence[Result]:
    """All of them begin before anybody else runs."""
    return await asyncio.gather(*(each() for each in work))
