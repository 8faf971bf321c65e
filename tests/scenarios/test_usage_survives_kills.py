"""An agent process that is killed again and again, and a consumer that misses and doubles nothing."""

import asyncio
import os
import random
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gpuloom.sim.mesh.plan import clean_environment
from gpuloom.sim.processes.ports import free_ports
from tests.mesh.clients.usage_keeper import Keeper, following
from tests.mesh.node_agent.builders import Mesh, a_mesh
from tests.mesh.waiting import until
from tests.unit.sim.builders import hosted, whole

KILLS = 4
LEAST_WINDOWS = 2


@pytest.mark.timeout(400)
async def test_a_killed_agent_goes_on_where_its_spool_ends(tmp_path: Path) -> None:
    async with a_mesh(tmp_path) as mesh:
        machine = mesh.add_machine("n1")
        machine.write_hosted([hosted("train", whole(machine.hardware.gpus[0].uuid))])
        await mesh.start_kubelet("n1")
        (port,) = free_ports(1, random.Random())
        mesh.tell_agents(n1=port)
        discovery = await mesh.start_discovery()
        keeper = Keeper()
        async with following(mesh, discovery, keeper):
            for _ in range(KILLS):
                before = taken(keeper)
                async with an_agent_process(mesh, port):
                    await until(lambda before=before: taken(keeper) >= before + LEAST_WINDOWS, timeout_s=30)  # type: ignore[misc]

        windows = [window for found in keeper.windows.values() for window in found]
        energy = [usage.energy_mj for window in windows for usage in window.devices if usage.pod is not None]
        assert keeper.missed == 0
        assert keeper.all_once()
        # Wherever the kill fell, windows neither overlap nor come in another order.
        ends = [window.start.timestamp() + window.duration_ns / 1e9 for window in windows]
        starts = [window.start.timestamp() for window in windows]
        assert all(start >= end - 0.01 for start, end in zip(starts[1:], ends, strict=False))
        # The card's counter outlives the agent: no window has the energy of all the time before it.
        assert all(amount is not None and amount < 1_000_000 for amount in energy)


def taken(keeper: Keeper) -> int:
    return sum(len(windows) for windows in keeper.windows.values())


@asynccontextmanager
async def an_agent_process(mesh: Mesh, port: int) -> AsyncIterator[None]:
    """Killed without warning at the end of the block."""
    settings = mesh.shared_settings("node_agent") | mesh.agent_settings("n1", port)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "services.node_agent"),
        env=clean_environment(os.environ) | settings,
        stderr=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
    )
    try:
        yield
    finally:
        process.send_signal(signal.SIGKILL)
        await process.wait()
