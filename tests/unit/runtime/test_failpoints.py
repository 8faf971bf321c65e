"""Places where a test can hold a process up."""

import asyncio
import signal
import subprocess
import sys
from dataclasses import dataclass

import pytest

from gpuloom.errors import UnavailableError
from gpuloom.runtime.clock import FakeClock
from gpuloom.runtime.config import ConfigError, describe, load_config
from gpuloom.runtime.failpoints import Action, Failpoint, Failpoints, FailpointsConfig, failpoints_group

ALLOWED = {"GPULOOM_FAILPOINTS_ALLOWED": "true"}


@dataclass(frozen=True)
class Config:
    failpoints: FailpointsConfig = failpoints_group("before-write", "after-write")


def test_failpoints_are_read_as_they_are_written() -> None:
    raw = "before-write=stop,after-write=1500ms,before-write=crash,after-write=error"

    points = load_config(Config, {"GPULOOM_FAILPOINTS": raw, **ALLOWED}).failpoints.points

    assert points == (
        Failpoint("before-write", Action.STOP),
        Failpoint("after-write", Action.DELAY, 1.5),
        Failpoint("before-write", Action.CRASH),
        Failpoint("after-write", Action.ERROR),
    )
    assert str(points[1]) == "after-write=1.5s"


@pytest.mark.parametrize("raw", ["before-write", "before-write=", "elsewhere=stop", "=stop", "stop"])
def test_what_is_no_failpoint_of_the_service_is_refused(raw: str) -> None:
    with pytest.raises(ConfigError, match="before-write or after-write"):
        load_config(Config, {"GPULOOM_FAILPOINTS": raw, **ALLOWED})


def test_failpoints_need_to_be_allowed_and_there_are_none_by_default() -> None:
    with pytest.raises(ConfigError, match="GPULOOM_FAILPOINTS_ALLOWED"):
        load_config(Config, {"GPULOOM_FAILPOINTS": "before-write=stop"})

    assert load_config(Config, {}).failpoints.points == ()
    assert "before-write, after-write" in describe(Config)


async def test_a_delay_holds_the_first_who_comes_by_and_no_other() -> None:
    clock = FakeClock()
    failpoints = Failpoints([Failpoint("before-write", Action.DELAY, 30.0)], clock)

    first = asyncio.create_task(failpoints.reach("before-write"))
    await clock.advance(29.0)
    await failpoints.reach("before-write")
    await failpoints.reach("after-write")
    held = not first.done()
    await clock.advance(1.0)
    await first

    assert held


async def test_an_error_fails_one_step() -> None:
    failpoints = Failpoints([Failpoint("before-write", Action.ERROR)], FakeClock())

    with pytest.raises(UnavailableError, match="before-write"):
        await failpoints.reach("before-write")
    await failpoints.reach("before-write")


def test_a_crash_leaves_no_time_to_clean_up() -> None:
    program = """
import asyncio
from gpuloom.runtime.clock import SystemClock
from gpuloom.runtime.failpoints import Action, Failpoint, Failpoints
try:
    asyncio.run(Failpoints([Failpoint("here", Action.CRASH)], SystemClock()).reach("here"))
finally:
    print("cleaned up")
"""

    ended = subprocess.run(  # noqa: S603 - our own program
        [sys.executable, "-c", program], capture_output=True, timeout=30, check=False
    )

    assert (ended.returncode, ended.stdout) == (-signal.SIGKILL, b"")
