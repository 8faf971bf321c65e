"""Waiting for news, but not for ever."""

import asyncio

from gpuloom.runtime.clock import Clock, deadline


async def wait_changed(changed: asyncio.Event, clock: Clock, timeout_s: float | None) -> None:
    """Return when the event is set or the time is up; None waits for the event alone."""
    if timeout_s is None:
        await changed.wait()
        return
    try:
        async with deadline(clock, timeout_s):
            await changed.wait()
    except TimeoutError:
        return
