"""How a reader follows a stream for as long as its process lives, through restarts of the sender."""

import logging
from collections.abc import Awaitable, Callable

from gpuloom.errors import GpuloomError
from gpuloom.runtime.backoff import Backoff
from gpuloom.runtime.clock import Clock

_log = logging.getLogger(__name__)


async def keep_following(
    sender: str, follow: Callable[[Backoff], Awaitable[None]], backoff: Backoff, clock: Clock
) -> None:
    """Follow again and again until cancelled; `follow` resets the backoff when the stream gives something."""
    while True:
        try:
            await follow(backoff)
            reason = "the stream ended"
        except (GpuloomError, TimeoutError) as error:
            reason = str(error)
        _log.info("stream lost, trying again", extra={"sender": sender, "reason": reason})
        await clock.sleep(backoff.next_delay_s())
