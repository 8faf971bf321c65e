"""A node's wiring and its processes, asked of an agent over gRPC."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from gpuloom.codec.machine import processes_answer_from_proto, topology_answer_from_proto
from gpuloom.errors import DeadlineError, NotAllowedError, NotFoundError, NotReadyError, UnavailableError
from gpuloom.model.gpu import DeviceRef, GpuHealth
from gpuloom.model.node import NodeMode, PodRef
from gpuloom.model.process import GpuProcess
from gpuloom.model.topology import Topology
from gpuloom.model.wiring import GpuWiring, NvLinkRemote
from gpuloom.rpc.channel import RpcChannel
from gpuloom.rpc.environment import RpcEnvironment
from gpuloom.rpc.server import RpcServer
from gpuloom.runtime.clock import FakeClock, SystemClock
from gpuloom.sim.machines.machine import Faults, GpuFault
from gpuloom.v1 import node_agent_pb2 as pb
from gpuloom.v1.node_agent_pb2_grpc import NodeAgentServiceStub, add_NodeAgentServiceServicer_to_server
from services.node_agent.agent import SERVICE
from services.node_agent.attribution.census import Census
from services.node_agent.attribution.listing import ProcessLister
from services.node_agent.core.readings import Process
from services.node_agent.core.state import next_state
from services.node_agent.metrics import AgentMetrics
from services.node_agent.node import Node
from services.node_agent.ports import ProcessOwner
from services.node_agent.server import ALLOWED_CALLERS, NodeAgentServer
from tests.mesh.node_agent.builders import Service, a_mesh, no_usage
from tests.mesh.waiting import PATIENCE_S, until
from tests.unit.node_agent.builders import (
    PAIR,
    FakeMachine,
    a_gpu,
    a_look,
    a_process,
    a_reading,
    a_start,
    processes_on,
)
from tests.unit.sim.builders import hosted, whole

INSECURE = RpcEnvironment(None, CollectorRegistry(), SystemClock())
BOTH = a_reading(a_gpu("GPU-a", 0), a_gpu("GPU-b", 1))

Wired = tuple[Topology | None, tuple[GpuWiring, ...]]
Listed = tuple[tuple[GpuProcess, ...], dict[str, str]]


async def topology_of(channel: RpcChannel) -> Wired:
    stub = channel.stub(NodeAgentServiceStub)
    return topology_answer_from_proto(await stub.GetTopology(pb.GetTopologyRequest(), timeout=PATIENCE_S))


async def processes_of(channel: RpcChannel, gpu_uuid: str = "", timeout_s: float = PATIENCE_S) -> Listed:
    stub = channel.stub(NodeAgentServiceStub)
    request = pb.ListProcessesRequest(gpu_uuid=gpu_uuid)
    return processes_answer_from_proto(await stub.ListProcesses(request, timeout=timeout_s))


async def ready(agent: Service) -> None:
    await until(lambda: not agent.not_ready())


@pytest.mark.parametrize("mode", [NodeMode.GPULOOM, NodeMode.NVIDIA])
async def test_an_agent_tells_wiring_and_processes_of_its_machine(tmp_path: Path, mode: NodeMode) -> None:
    async with a_mesh(tmp_path) as mesh:
        machine = mesh.add_machine("n1", mode)
        first, second = (gpu.uuid for gpu in machine.hardware.gpus[:2])
        machine.write_hosted([hosted("train", whole(first)), hosted("tune", whole(second))])
        machine.write_faults(Faults({second: GpuFault(GpuHealth.LOST, "XID 79")}))
        agent = await mesh.start_agent("n1")
        await ready(agent)
        channel = await mesh.channel(agent, "node_agent", "discovery")

        topology, gpus = await topology_of(channel)
        processes, unanswered = await processes_of(channel)

    assert topology == machine.hardware.topology
    assert [gpu.gpu_uuid for gpu in gpus] == [gpu.uuid for gpu in machine.hardware.gpus]
    assert {link.remote for link in gpus[0].links} == {NvLinkRemote.SWITCH}
    assert [(each.device, each.name, each.container) for each in processes] == [
        (DeviceRef(first), "python3", "main")
    ]
    assert unanswered == {second: "XID 79"}


async def test_only_discovery_and_the_cli_may_ask(tmp_path: Path) -> None:
    async with a_mesh(tmp_path) as mesh:
        mesh.add_machine("n1")
        agent = await mesh.start_agent("n1")
        await ready(agent)
        stranger = await mesh.channel(agent, "node_agent", "scheduler_extender")

        with pytest.raises(NotAllowedError):
            await topology_of(stranger)
        with pytest.raises(NotAllowedError):
            await processes_of(stranger)
        assert (await processes_of(await mesh.channel(agent, "node_agent", "cli"))) == ((), {})


@dataclass
class SlowMachine(FakeMachine):
    asked: int = 0
    released: asyncio.Event = field(default_factory=asyncio.Event)

    async def list_processes(self) -> tuple[tuple[Process, ...], dict[str, str]]:
        self.asked += 1
        await self.released.wait()
        return await super().list_processes()


@dataclass
class Stage:
    node: Node
    clock: FakeClock
    channel: RpcChannel


@asynccontextmanager
async def an_agent_of(machine: FakeMachine) -> AsyncIterator[Stage]:
    """An agent that has not looked yet."""
    clock = FakeClock()
    node = Node(a_start(), clock, max_age_s=10.0)
    server = RpcServer(INSECURE, "127.0.0.1", 0)
    async with ProcessLister(machine, Census(machine, machine)) as lister:
        servicer = NodeAgentServer(node, lister, no_usage(), 5.0, AgentMetrics(CollectorRegistry()))
        server.add(servicer, add_NodeAgentServiceServicer_to_server, SERVICE, ALLOWED_CALLERS)
        async with server, RpcChannel(INSECURE, f"127.0.0.1:{server.port}", "node_agent") as channel:
            yield Stage(node, clock, channel)


def look(stage: Stage, machine: FakeMachine) -> None:
    seen = a_look(machine.reading)
    stage.node.move_to(next_state(stage.node.state, seen), machine.reading)


async def test_before_the_first_look_and_long_after_the_last_nothing_is_told() -> None:
    machine = FakeMachine(BOTH)
    async with an_agent_of(machine) as stage:
        for call in (topology_of, processes_of):
            with pytest.raises(NotReadyError, match="not been sampled yet"):
                await call(stage.channel)
        look(stage, machine)
        told = await topology_of(stage.channel)
        await stage.clock.advance(11.0)
        for call in (topology_of, processes_of):
            with pytest.raises(NotReadyError, match="last sampled"):
                await call(stage.channel)

    assert told == (PAIR, ())


async def test_processes_of_one_gpu_are_told_alone() -> None:
    machine = FakeMachine(
        processes_on(BOTH, a_process(7), a_process(8, "GPU-b")),
        uids={"train": "uid-train"},
        running={7: ProcessOwner("python3", "uid-train", "id-main"), 8: ProcessOwner("miner")},
        unanswered={"GPU-b": "it hangs"},
    )
    async with an_agent_of(machine) as stage:
        look(stage, machine)
        all_of_them, unanswered = await processes_of(stage.channel)
        of_one = await processes_of(stage.channel, "GPU-a")
        with pytest.raises(NotFoundError):
            await processes_of(stage.channel, "GPU-x")

    train, miner = all_of_them
    assert train.pod == PodRef("team-a", "train", "uid-train")
    assert (miner.name, miner.pod) == ("miner", None)
    assert unanswered == {"GPU-b": "it hangs"}
    assert of_one == ((train,), {})


async def test_callers_share_one_listing_and_each_keeps_its_deadline() -> None:
    machine = SlowMachine(processes_on(BOTH, a_process(7)))
    async with an_agent_of(machine) as stage:
        look(stage, machine)
        patient = asyncio.create_task(processes_of(stage.channel))
        with pytest.raises(DeadlineError):
            await processes_of(stage.channel, timeout_s=0.2)
        machine.released.set()
        processes, _ = await patient

    assert machine.asked == 1
    assert [each.pid for each in processes] == [7]


async def test_a_driver_that_is_down_is_said_to_be_down() -> None:
    machine = FakeMachine(BOTH)
    async with an_agent_of(machine) as stage:
        look(stage, machine)
        machine.driver_problem = "the driver does not answer"

        with pytest.raises(UnavailableError, match="the driver does not answer"):
            await processes_of(stage.channel)
