"""Faults on request: refusals, delays and dropped connections, before or after a request is applied.

Tests use them to make a bind fail, or time out after it has been applied. Without rules they cost nothing.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal

from gpuloom.runtime.clock import Clock
from gpuloom.sim.kubeapi.status import ApiError

When = Literal["before", "after"]
ANY = "*"


class ConnectionDropped(Exception):  # noqa: N818 (an outcome the test asked for, not an error)
    """The client is to see its connection cut instead of an answer."""


class Hold:
    """Requests that wait until the test lets them go, or until their time is over."""

    def __init__(self, clock: Clock, delay_s: float | None) -> None:
        self.held = 0  # how many requests have come here so far
        self._clock = clock
        self._delay_s = delay_s
        self._arrived = asyncio.Condition()
        self._released = asyncio.Event()

    def release(self) -> None:
        self._released.set()

    async def reached(self, count: int = 1) -> None:
        """Return once this many requests have come here."""
        async with self._arrived:
            await self._arrived.wait_for(lambda: self.held >= count)

    async def wait(self) -> None:
        async with self._arrived:
            self.held += 1
            self._arrived.notify_all()
        if self._delay_s is None:
            await self._released.wait()
            return
        waits = [
            asyncio.create_task(self._released.wait()),
            asyncio.create_task(self._clock.sleep(self._delay_s)),
        ]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in waits:
                one.cancel()


@dataclass(slots=True)
class _Rule:
    method: str
    path: re.Pattern[str]
    when: When
    times: int
    act: Callable[[], Awaitable[None]]

    def matches(self, when: When, method: str, path: str) -> bool:
        right_time = self.when == when and self.method in (ANY, method)
        return right_time and self.path.search(path) is not None


class Faults:
    """Rules are used up in the order in which they were given; all that match a request apply to it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._rules: list[_Rule] = []

    @property
    def idle(self) -> bool:
        return not self._rules

    def fail_next(
        self, method: str, path_regex: str, status: int = 500, times: int = 1, *, when: When = "before"
    ) -> None:
        """Answer the next matching requests with this status; with "after" they were applied all the same."""

        async def fail() -> None:
            raise ApiError(status, "injected fault", details={"causes": [{"reason": "InjectedFault"}]})

        self._rules.append(_Rule(method, re.compile(path_regex), when, times, fail))

    def delay_next(
        self,
        method: str,
        path_regex: str,
        delay_s: float | None = None,
        times: int = 1,
        *,
        when: When = "before",
    ) -> Hold:
        """Hold the next matching requests for `delay_s` (None: until released)."""
        hold = Hold(self._clock, delay_s)
        self._rules.append(_Rule(method, re.compile(path_regex), when, times, hold.wait))
        return hold

    def drop_next(self, method: str, path_regex: str, times: int = 1, *, when: When = "before") -> None:
        """Cut the connection of the next matching requests instead of answering."""

        async def drop() -> None:
            raise ConnectionDropped

        self._rules.append(_Rule(method, re.compile(path_regex), when, times, drop))

    def clear(self) -> None:
        self._rules.clear()

    async def strike(self, when: When, method: str, path: str) -> None:
        """Do to this request what was asked for: wait, raise ApiError or ConnectionDropped, or nothing."""
        matching = [rule for rule in self._rules if rule.matches(when, method, path)]
        for rule in matching:
            if rule.times <= 0:
                continue
            rule.times -= 1
            if rule.times == 0:
                self._rules.remove(rule)
            await rule.act()
