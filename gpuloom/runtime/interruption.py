"""Cutting a piece of work short, from inside the task that runs it.

It decides whether a cancellation was ours (then it ends here) or came from outside (then it goes on). It
never waits for anything but the work itself: work that ignores its cancellation is not left behind.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass


@dataclass(slots=True)
class Interruption:
    """Whether the body was cut short. False if it came to its end, even if only just."""

    happened: bool = False


@asynccontextmanager
async def interrupted_by(wait: Callable[[], Awaitable[object]]) -> AsyncIterator[Interruption]:
    """Run the body; if `wait()` returns first, cancel the body and carry on after it."""
    task = asyncio.current_task()
    if task is None:
        raise RuntimeError("interrupted_by() needs a running task")
    # Not zero when the body is the clean-up of a task that is being cancelled already.
    cancellations_before = task.cancelling()
    interruption = Interruption()
    cancelled_by_us = False

    async def watch() -> None:
        nonlocal cancelled_by_us
        await wait()
        cancelled_by_us = True
        task.cancel()

    watcher = asyncio.create_task(watch())
    ours_alone = False
    try:
        try:
            yield interruption
        finally:
            watcher.cancel()
            if cancelled_by_us:
                # Taken back however the body ended, or the next wait of this task would pay for it.
                ours_alone = task.uncancel() <= cancellations_before
    except asyncio.CancelledError:
        if not ours_alone:
            raise
        interruption.happened = True
