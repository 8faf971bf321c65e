"""Calls that answer, calls that hang, and how many may."""

import threading
from collections.abc import Callable, Iterator
from typing import TypeVar

import pytest

from gpuloom.runtime.clock import FakeClock, SystemClock
from services.node_agent.nvml.lane import Lane, LaneLimits, wait_for
from tests.mesh.waiting import until

T = TypeVar("T")

LIMITS = LaneLimits(hang_after_s=10.0, max_abandoned=2, first_pause_s=30.0, pause_cap_s=60.0)


@pytest.fixture
def release() -> Iterator[threading.Event]:
    """Ends the jobs that hang on it, at the latest with the test."""
    event = threading.Event()
    yield event
    event.set()


def hanging(release: threading.Event) -> Callable[[], str]:
    def job() -> str:
        release.wait()
        return "late"

    return job


async def answer_of(lane: Lane[T], job: Callable[[], T]) -> T | None:
    await wait_for(SystemClock(), 10.0, lane.start(job))
    outcome = lane.take()
    return None if outcome is None else outcome.value


async def test_a_job_answers_from_its_own_thread() -> None:
    lane: Lane[str] = Lane("x", FakeClock(), LIMITS)

    assert await answer_of(lane, lambda: threading.current_thread().name) == "nvml-x"
    assert lane.take() is None


async def test_an_error_is_an_outcome() -> None:
    lane: Lane[str] = Lane("x", FakeClock(), LIMITS)

    def job() -> str:
        raise OSError("broken")

    await wait_for(SystemClock(), 10.0, lane.start(job))
    outcome = lane.take()

    assert outcome is not None
    assert isinstance(outcome.error, OSError)


async def test_a_late_answer_is_not_lost(release: threading.Event) -> None:
    lane: Lane[str] = Lane("x", FakeClock(), LIMITS)
    lane.start(hanging(release))

    assert lane.start(lambda: "second") is None
    release.set()
    await until(lambda: not lane.busy)

    assert await answer_of(lane, lambda: "second") == "late"
    assert await answer_of(lane, lambda: "second") == "second"


async def test_a_hung_job_is_given_up_and_after_a_pause_another_thread_goes_on(
    release: threading.Event,
) -> None:
    clock = FakeClock()
    lane: Lane[str] = Lane("x", clock, LIMITS)
    lane.start(hanging(release))
    await clock.advance(10.0)

    assert lane.start(lambda: "too early") is None
    assert lane.hung
    await clock.advance(30.0)

    assert await answer_of(lane, lambda: "fresh") == "fresh"


async def test_no_more_threads_hang_than_are_allowed(release: threading.Event) -> None:
    clock = FakeClock()
    lane: Lane[str] = Lane("x", clock, LIMITS)

    for _ in range(50):
        lane.start(hanging(release))
        await clock.advance(60.0)

    assert lane.hung_threads == LIMITS.max_abandoned
    assert lane.hung


async def test_when_the_hung_calls_return_the_lane_goes_on_at_once(release: threading.Event) -> None:
    clock = FakeClock()
    lane: Lane[str] = Lane("x", clock, LIMITS)
    lane.start(hanging(release))
    await clock.advance(10.0)
    lane.start(lambda: "too early")

    release.set()
    await until(lambda: lane.hung_threads == 0)

    assert await answer_of(lane, lambda: "fresh") == "fresh"
