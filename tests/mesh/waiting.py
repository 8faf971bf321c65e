"""Waiting for what real sockets do in their own time."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

PATIENCE_S = 60.0
"""For what is to succeed: it only ends what would never end. A busy machine may stand still for seconds, and
then deadlines have passed though nothing is wrong."""

_LOOK_EVERY_S = 0.005


async def until(condition: Callable[[], object], timeout_s: float = PATIENCE_S) -> None:
    """Return as soon as the condition holds; fail if it takes longer, not counting what nobody could use."""
    for _ in range(int(timeout_s / _LOOK_EVERY_S)):
        if condition():
            return
        await asyncio.sleep(_LOOK_EVERY_S)
    raise AssertionError(f"not within {timeout_s:g} s")


@asynccontextmanager
async def running(work: Callable[[], Awaitable[None]]) -> AsyncIterator[asyncio.Task[None]]:
    """Run it beside the test, and end it with the block."""

    async def run() -> None:
        await work()

    task = asyncio.create_task(run())
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
