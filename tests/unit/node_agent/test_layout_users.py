"""Who uses a GPU, before its layout is changed."""

import pytest

from gpuloom.runtime.clock import FakeClock
from services.node_agent.attribution.census import Census
from services.node_agent.layout.users import NodeUsers
from services.node_agent.node import Node
from services.node_agent.ports import ProcessOwner
from tests.unit.node_agent.builders import FakeMachine, a_gpu, a_process, a_reading, a_start, processes_on

SERVER = ProcessOwner("nvidia-cuda-mps")
AGENTS = ProcessOwner("nvidia-cuda-mps", "uid-agent")
ENDED = ProcessOwner("nvidia-cuda-mps", "uid-ended")


async def used_by(owner: ProcessOwner | None, host_problem: str = "") -> str:
    reading = processes_on(a_reading(a_gpu()), a_process(7))
    running = {} if owner is None else {7: owner}
    machine = FakeMachine(reading, uids={"agent": "uid-agent"}, running=running, host_problem=host_problem)
    node = Node(a_start(), FakeClock(), 60.0)
    # Before the first sample only processes count.
    users = NodeUsers(node, machine, machine, None, Census(machine, machine))  # type: ignore[arg-type]
    return (await users.of("GPU-a")).of_any()


@pytest.mark.parametrize("server", [SERVER, AGENTS])
async def test_a_server_of_mps_that_waits_for_clients_does_not_keep_its_gpu_shared(
    server: ProcessOwner,
) -> None:
    assert await used_by(server) == ""


@pytest.mark.parametrize("owner", [ProcessOwner("python3"), ENDED, None])
async def test_any_other_process_uses_the_gpu(owner: ProcessOwner | None) -> None:
    assert await used_by(owner) == "process 7"


async def test_where_processes_have_no_names_each_of_them_counts() -> None:
    assert await used_by(SERVER, "set hostPID") == "process 7"
