import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from prometheus_client import CollectorRegistry

from gpuloom.errors import UnavailableError
from gpuloom.runtime.app import App
from gpuloom.runtime.clock import FakeClock, settle
from gpuloom.runtime.lifecycle import Lifecycle
from gpuloom.runtime.settings import HttpConfig

LOOPBACK = HttpConfig(host="127.0.0.1", port=0, drain_timeout_s=8.0)


class Run:
    """One app on a fake clock; what happens is told in `events`."""

    def __init__(self, build: Callable[["Run"], Awaitable[None]]) -> None:
        self.clock = FakeClock()
        self.app = App("example", self.clock, CollectorRegistry())
        self.stop = asyncio.Event()
        self.building = asyncio.Event()
        self.events: list[str] = []

        async def build_app() -> None:
            self.building.set()
            await build(self)

        lifecycle = Lifecycle(
            self.app, build_app, LOOPBACK, self.stop, lambda: self.events.append("stopping")
        )
        self.task = asyncio.create_task(lifecycle.run())

    async def started(self) -> "Run":
        # Binding a port takes real turns of the loop, not a known number of them.
        await self.building.wait()
        await settle()
        return self

    async def stopped(self) -> int:
        self.stop.set()
        return await self.task

    async def ask(self, path: str) -> tuple[int, Any]:
        address = f"http://127.0.0.1:{self.app.http_port}{path}"
        async with aiohttp.ClientSession() as session, session.get(address) as response:
            return response.status, await response.json()

    @asynccontextmanager
    async def context(self, name: str) -> AsyncIterator[str]:
        self.events.append(f"open {name}")
        yield name
        self.events.append(f"close {name}")

    async def loop(self, name: str) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            self.events.append(f"end {name}")

    async def drain(self, name: str) -> None:
        self.events.append(f"drain {name}")


async def build_all(run: Run) -> None:
    assert await run.app.enter(run.context("first")) == "first"
    await run.app.enter(run.context("second"))
    for name in ("one", "two"):
        run.app.add_loop(name, lambda name=name: run.loop(name))  # type: ignore[misc]
        run.app.on_drain(name, lambda name=name: run.drain(name))  # type: ignore[misc]


async def test_a_stop_drains_then_ends_loops_then_closes_contexts_each_in_reverse_order() -> None:
    run = await Run(build_all).started()

    code = await run.stopped()

    assert code == 0
    assert run.events == [
        "open first",
        "open second",
        "stopping",
        "drain two",
        "drain one",
        "end two",
        "end one",
        "close second",
        "close first",
    ]


async def test_a_running_service_is_ready_and_alive() -> None:
    run = await Run(build_all).started()

    ready, live = await run.ask("/readyz"), await run.ask("/healthz")
    await run.stopped()

    assert ready == (200, {"status": "ok", "checks": {"lifecycle": {"ok": True}}})
    assert live == (200, {"status": "ok", "checks": {"event_loop": {"ok": True}}})


async def test_a_service_that_is_still_building_says_so() -> None:
    async def build(run: Run) -> None:
        run.app.add_readiness("kube", lambda: "pods are not synced")
        await asyncio.Event().wait()

    run = await Run(build).started()

    status, body = await run.ask("/readyz")
    await run.stopped()

    assert status == 503
    assert body["checks"] == {
        "lifecycle": {"ok": False, "reason": "starting"},
        "kube": {"ok": False, "reason": "pods are not synced"},
    }


async def test_readiness_says_draining_before_the_first_drain_is_called() -> None:
    seen: list[tuple[int, Any]] = []

    async def build(run: Run) -> None:
        async def look() -> None:
            seen.append(await run.ask("/readyz"))

        run.app.on_drain("look", look)

    run = await Run(build).started()
    await run.stopped()

    ((status, body),) = seen
    assert status == 503
    assert body["checks"]["lifecycle"] == {"ok": False, "reason": "draining"}


@pytest.mark.parametrize("ending", ["returns", "raises", "is cancelled"])
async def test_the_death_of_a_loop_ends_the_service_and_names_the_loop(
    ending: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def build(run: Run) -> None:
        async def dying() -> None:
            await run.clock.sleep(5)
            if ending == "raises":
                raise UnavailableError("discovery is gone")
            if ending == "is cancelled":
                raise asyncio.CancelledError

        await build_all(run)
        run.app.add_loop("mirror", dying)

    run = await Run(build).started()
    await run.clock.advance(5)
    code = await run.task

    (record,) = [record for record in caplog.records if record.levelname == "CRITICAL"]
    reasons = {
        "returns": "it returned",
        "raises": "UnavailableError: discovery is gone",
        "is cancelled": "it was cancelled",
    }
    assert code == 1
    assert record.__dict__["loop"] == "mirror"
    assert record.__dict__["reason"] == reasons[ending]
    assert run.events[-7:] == [
        "stopping", "drain two", "drain one", "end two", "end one", "close second", "close first",
    ]  # fmt: skip


async def test_a_drain_that_hangs_is_abandoned_when_its_time_is_up(caplog: pytest.LogCaptureFixture) -> None:
    async def build(run: Run) -> None:
        await build_all(run)
        run.app.on_drain("stuck", asyncio.Event().wait)  # type: ignore[arg-type]

    run = await Run(build).started()
    run.stop.set()
    await run.clock.advance(7.9)
    before = list(run.events)
    await run.clock.advance(0.1)
    code = await run.task

    assert code == 0
    assert before[-1] == "stopping"
    assert run.events[-6:] == ["drain two", "drain one", "end two", "end one", "close second", "close first"]
    assert [record.__dict__["drain"] for record in caplog.records if "abandoned" in record.message] == [
        "stuck"
    ]


async def test_a_drain_that_fails_does_not_keep_the_others_from_draining() -> None:
    async def build(run: Run) -> None:
        async def failing() -> None:
            raise ConnectionError("peer is gone")

        await build_all(run)
        run.app.on_drain("failing", failing)

    run = await Run(build).started()
    code = await run.stopped()

    assert code == 0
    assert run.events[-6:] == ["drain two", "drain one", "end two", "end one", "close second", "close first"]


async def test_a_loop_that_ignores_its_cancellation_does_not_hold_up_the_stop() -> None:
    released = asyncio.Event()

    async def build(run: Run) -> None:
        async def stubborn() -> None:
            while not released.is_set():
                try:
                    await released.wait()
                except asyncio.CancelledError:
                    continue

        await build_all(run)
        run.app.add_loop("stubborn", stubborn)

    run = await Run(build).started()
    run.stop.set()
    await run.clock.advance(8.5)
    code = await run.task
    released.set()
    await settle()

    assert code == 0
    assert run.events[-2:] == ["close second", "close first"]


async def test_a_context_that_fails_or_hangs_does_not_keep_the_others_open() -> None:
    async def build(run: Run) -> None:
        @asynccontextmanager
        async def failing() -> AsyncIterator[None]:
            yield
            raise ConnectionError("lease is gone")

        @asynccontextmanager
        async def hanging() -> AsyncIterator[None]:
            yield
            await asyncio.Event().wait()

        await build_all(run)
        await run.app.enter(failing())
        await run.app.enter(hanging())

    run = await Run(build).started()
    run.stop.set()
    await run.clock.advance(10)
    code = await run.task

    assert code == 0
    assert run.events[-2:] == ["close second", "close first"]


async def test_a_stop_during_build_ends_it_and_closes_what_was_open() -> None:
    async def build(run: Run) -> None:
        await build_all(run)
        await asyncio.Event().wait()

    run = await Run(build).started()
    code = await run.stopped()

    assert code == 0
    assert run.events == ["open first", "open second", "stopping", "close second", "close first"]


async def test_a_failure_in_build_is_raised_after_everything_is_closed() -> None:
    async def build(run: Run) -> None:
        await build_all(run)
        raise UnavailableError("no certificate")

    run = Run(build)
    with pytest.raises(UnavailableError, match="no certificate"):
        await run.task

    assert run.events == ["open first", "open second", "stopping", "close second", "close first"]


async def test_contexts_are_closed_by_the_task_that_opened_them() -> None:
    """A TaskGroup cannot be left by another task than the one that entered it."""

    async def build(run: Run) -> None:
        group = await run.app.enter(asyncio.TaskGroup())
        group.create_task(settle())

    run = await Run(build).started()

    assert await run.stopped() == 0


async def test_no_task_is_left_behind() -> None:
    run = await Run(build_all).started()

    await run.stopped()
    await settle()

    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_name_is_registered_once_and_a_loop_only_during_build() -> None:
    run = await Run(build_all).started()

    with pytest.raises(ValueError, match="drain one is registered twice"):
        run.app.on_drain("one", settle)
    with pytest.raises(RuntimeError, match="loop late added after build"):
        run.app.add_loop("late", settle)
    with pytest.raises(ValueError, match="service name"):
        App("Bad-Name", run.clock, CollectorRegistry())
    await run.stopped()
