"""Work that comes to its end though whoever asked for it has left: a caller's time may be up at any point.

It decides nothing about how long that takes: give it only work that is bounded by itself.
"""

import asyncio
import contextvars
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def finished(work: Coroutine[Any, Any, T]) -> T:
    """Its outcome. If the waiting task is cancelled, that takes effect once the work has ended."""
    # Not in the caller's context: its deadline is not that of the work.
    task = asyncio.create_task(work, context=contextvars.Context())
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is None:
        return task.result()
    if not task.cancelled():
        task.exception()  # seen, though nobody is there any more to be told
    raise cancelled
