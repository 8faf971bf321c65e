"""The console of a running mesh: what it shows while it, or whom it asks, is killed."""

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import pytest

from gpuloom.runtime.clock import SystemClock, deadline
from gpuloom.sim.embedded import open_mesh
from gpuloom.sim.mesh.plan import MeshOptions
from tests.unit.console.pages import next_event

CLOCK = SystemClock()
LONGEST_WAIT_S = 150.0
SOURCES = frozenset(
    {
        *("discovery", "ledger", "scheduler_extender", "mig_controller", "autoscaler", "cost_engine"),
        *("costs", "optimizer", "controller", "planning"),
    }
)


async def sections(session: aiohttp.ClientSession) -> dict[str, Any]:
    """Empty while nobody answers."""
    try:
        async with session.get("/api/state") as answer:
            assert answer.status == 200
            return dict(orjson.loads(await answer.read())["sections"])
    except aiohttp.ClientConnectionError:
        return {}


async def eventually(session: aiohttp.ClientSession, holds: Callable[[dict[str, Any]], bool]) -> None:
    async with deadline(CLOCK, LONGEST_WAIT_S):
        while not holds(await sections(session)):
            await CLOCK.sleep(0.2)


def all_are_heard(shown: dict[str, Any]) -> bool:
    sources = shown.get("sources", {})
    assert not sources or set(sources) == SOURCES
    return bool(sources) and all(source["ok"] for source in sources.values()) and len(shown["nodes"]) == 3


@pytest.mark.real
@pytest.mark.timeout(600)
async def test_a_console_comes_back_whole_and_shows_who_is_away(run_directory: Path) -> None:
    async with open_mesh(MeshOptions(nodes=3, seed=1, pods_per_minute=60), run_directory, CLOCK) as mesh:
        await mesh.start()
        url = mesh.plan.console_url
        async with aiohttp.ClientSession(url, connector=aiohttp.TCPConnector(ssl=False)) as session:
            await eventually(session, all_are_heard)
            await eventually(session, lambda shown: bool(shown.get("decisions")))
            async with session.get("/api/events") as stream:
                _, version, _ = await next_event(stream)
                kind, _, delta = await next_event(stream)
                assert (kind, delta["after"]) == ("delta", version)

            await killed(mesh.supervisor, "console")
            await eventually(session, all_are_heard)
            async with session.get("/api/events", headers={"Last-Event-ID": version}) as stream:
                assert (await next_event(stream))[0] == "full"

            mesh.supervisor.kill("optimizer", signal.SIGSTOP)
            await eventually(session, lambda shown: not shown["sources"]["optimizer"]["ok"])
            mesh.supervisor.kill("optimizer", signal.SIGCONT)
            await killed(mesh.supervisor, "discovery")
            await eventually(session, all_are_heard)


async def killed(supervisor: Any, process: str) -> None:
    """Return when it was started again."""
    restarts = supervisor.restarts(process)
    supervisor.kill(process)
    await waited(lambda: supervisor.restarts(process) > restarts)


async def waited(holds: Callable[[], bool]) -> None:
    async with deadline(CLOCK, LONGEST_WAIT_S):
        while not holds():
            await CLOCK.sleep(0.1)
