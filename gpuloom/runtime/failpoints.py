"""Named places in code where a test can hold a process up, break it, or let a step fail.

    GPULOOM_FAILPOINTS=bind-before-post=stop    the process stops itself (SIGSTOP) until somebody continues it
    GPULOOM_FAILPOINTS=bind-before-post=30s     this one step waits, everything else goes on
    GPULOOM_FAILPOINTS=bind-before-post=crash   the process is gone at once (SIGKILL), nothing is cleaned up
    GPULOOM_FAILPOINTS=bind-before-post=error   this one step fails as if what it calls could not be reached

Each acts once, at the first time that the code comes by. None is set unless the configuration names it and
allows it, and a service refuses names that it does not have.
"""

import logging
import os
import signal
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from gpuloom.errors import UnavailableError
from gpuloom.runtime.clock import Clock
from gpuloom.runtime.config import group, setting
from gpuloom.runtime.parsers import boolean, comma_list, seconds

_log = logging.getLogger(__name__)


class Action(StrEnum):
    STOP = "stop"
    CRASH = "crash"
    ERROR = "error"
    DELAY = "delay"


_SIGNALS = {Action.STOP: signal.SIGSTOP, Action.CRASH: signal.SIGKILL}


@dataclass(frozen=True, slots=True)
class Failpoint:
    """`delay_s` is that of a delay."""

    name: str
    action: Action
    delay_s: float = 0.0

    def __str__(self) -> str:
        return f"{self.name}={f'{self.delay_s:g}s' if self.action is Action.DELAY else self.action}"


@dataclass(frozen=True)
class FailpointsConfig:
    points: tuple[Failpoint, ...] = setting(
        "GPULOOM_FAILPOINTS",
        default=(),
        parse=comma_list(lambda raw: failpoint(raw, ())),
        help="For tests: what happens where in this process",
    )
    allowed: bool = setting(
        "GPULOOM_FAILPOINTS_ALLOWED",
        default=False,
        parse=boolean,
        help="Must be true for GPULOOM_FAILPOINTS to be accepted",
    )

    def problems(self) -> Iterable[str]:
        if self.points and not self.allowed:
            yield "GPULOOM_FAILPOINTS is for tests only and needs GPULOOM_FAILPOINTS_ALLOWED=true"


def failpoints_group(*names: str) -> FailpointsConfig:
    """Declare the field of a service's configuration that holds these settings; `names` are its points."""

    @dataclass(frozen=True)
    class Config(FailpointsConfig):
        points: tuple[Failpoint, ...] = setting(
            "GPULOOM_FAILPOINTS",
            default=(),
            parse=comma_list(lambda raw: failpoint(raw, names)),
            help=f"For tests: what happens where: NAME=stop, crash, error or 30s; names: {', '.join(names)}",
        )

    return group(Config)


def failpoint(raw: str, names: Iterable[str]) -> Failpoint:
    """Parse `name=stop` or `name=30s`. Raise ValueError for a name that is not among these."""
    name, _, action = raw.strip().partition("=")
    if name not in names or not action:
        known = " or ".join(names) or "nothing: there are none here"
        raise ValueError(f"must be NAME=stop, NAME=crash, NAME=error or NAME=30s, and NAME must be {known}")
    if action in (Action.STOP, Action.CRASH, Action.ERROR):
        return Failpoint(name, Action(action))
    return Failpoint(name, Action.DELAY, seconds(action))


class Failpoints:
    """The points that are set. Code comes by them with `reach`, which costs nothing where none is."""

    def __init__(self, points: Iterable[Failpoint], clock: Clock) -> None:
        self._pending = list(points)
        self._clock = clock

    async def reach(self, name: str) -> None:
        """Do what is set for this point, once. Raise UnavailableError if that is an error."""
        point = next((point for point in self._pending if point.name == name), None)
        if point is None:
            return
        self._pending.remove(point)
        _log.warning("failpoint reached", extra={"failpoint": str(point)})
        match point.action:
            case Action.DELAY:
                await self._clock.sleep(point.delay_s)
            case Action.ERROR:
                raise UnavailableError(f"failpoint {name}")
            case Action.STOP | Action.CRASH:
                os.kill(os.getpid(), _SIGNALS[point.action])
