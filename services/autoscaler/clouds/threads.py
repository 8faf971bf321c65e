"""Blocking SDKs off the event loop: a few threads for each cloud, and a deadline for every call."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from gpuloom.runtime.clock import Clock, deadline
from services.autoscaler.core.lifecycle.machines import FailureKind
from services.autoscaler.ports import CloudError

Result = TypeVar("Result")

THREADS = 4
DEFAULT_TIMEOUT_S = 30.0


class Threads:
    """The SDKs' own timeouts end a call that hangs; the deadline here only frees the caller."""

    def __init__(self, name: str, clock: Clock, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix=name)
        self._clock = clock
        self._timeout_s = timeout_s

    async def run(self, call: Callable[[], Result]) -> Result:
        try:
            async with deadline(self._clock, self._timeout_s):
                return await asyncio.get_running_loop().run_in_executor(self._pool, call)
        except TimeoutError:
            text = f"the cloud did not answer within {self._timeout_s:g} s"
            raise CloudError(FailureKind.UNKNOWN, text) from None

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
