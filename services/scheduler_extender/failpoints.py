"""Places where a test can hold this process up. None is set unless the configuration names it and allows it.

    GPULOOM_FAILPOINTS=bind-before-post=stop   the process stops itself (SIGSTOP) until somebody continues it
    GPULOOM_FAILPOINTS=bind-before-post=30s    this one step waits, everything else goes on

Each acts once.
"""

import logging
import os
import signal
from dataclasses import dataclass

from gpuloom.kube.client import PodBinding
from gpuloom.runtime.clock import Clock
from gpuloom.runtime.parsers import seconds
from services.scheduler_extender.ports import Binder

BIND_BEFORE_POST = "bind-before-post"
"""The devices are chosen and held and the lease was checked; the Binding is not sent yet."""

_STOP = "stop"
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Failpoint:
    """`delay_s` is None for a stop of the whole process."""

    name: str
    delay_s: float | None

    def __str__(self) -> str:
        return f"{self.name}={_STOP if self.delay_s is None else f'{self.delay_s:g}s'}"


def failpoint(raw: str) -> Failpoint:
    """Parse `name=stop` or `name=30s`."""
    name, _, action = raw.strip().partition("=")
    if name != BIND_BEFORE_POST:
        raise ValueError(f"must be {BIND_BEFORE_POST}=stop or {BIND_BEFORE_POST}=30s")
    return Failpoint(name, None if action == _STOP else seconds(action))


class HeldBinder:
    """A Binder that waits at the failpoint before its first Binding."""

    def __init__(self, binder: Binder, point: Failpoint, clock: Clock) -> None:
        self._binder = binder
        self._point: Failpoint | None = point
        self._clock = clock

    async def bind(self, binding: PodBinding, *, timeout_s: float) -> None:
        point, self._point = self._point, None
        if point is not None:
            _log.warning("held at a failpoint", extra={"failpoint": str(point), "pod": binding.pod})
            if point.delay_s is None:
                os.kill(os.getpid(), signal.SIGSTOP)
            else:
                await self._clock.sleep(point.delay_s)
        await self._binder.bind(binding, timeout_s=timeout_s)
