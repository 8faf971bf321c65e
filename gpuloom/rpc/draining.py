"""Ending streams when a server drains: between two messages, never within one."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, TypeVar

from gpuloom.errors import NotReadyError

Message = TypeVar("Message")


async def next_unless(
    draining: asyncio.Future[None], messages: AsyncIterator[Message]
) -> tuple[Message] | None:
    """The next message, or None after the last. Raise NotReadyError once draining is done.

    Only the wait for a message is cut short: a write that is cancelled half-way would cost the stream its
    status, and the reader the reason.
    """
    following = asyncio.ensure_future(next_of(messages))
    try:
        await asyncio.wait((following, draining), return_when=asyncio.FIRST_COMPLETED)
    finally:
        await _stop(following)
    if following.cancelled():
        raise NotReadyError("draining")
    return following.result()


async def next_of(messages: AsyncIterator[Message]) -> tuple[Message] | None:
    async for message in messages:
        return (message,)
    return None


async def _stop(task: asyncio.Future[Any]) -> None:
    """Cancel and wait, so that the iterator behind it is at rest and can be closed."""
    if not task.done():
        task.cancel()
        await asyncio.wait((task,))
    if not task.cancelled():
        task.exception()  # seen, even if the caller is being cancelled and never asks
