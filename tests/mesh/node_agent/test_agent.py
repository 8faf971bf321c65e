"""The agent as its build function makes it, over mutual TLS, and what discovery's adapter makes of it."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc import aio
from prometheus_client import CollectorRegistry

from gpuloom.clients.agents import read_agents_file
from gpuloom.codec.node import node_state_to_proto
from gpuloom.errors import GpuloomError, InvalidRequestError, NotAllowedError, NotReadyError, UnavailableError
from gpuloom.model.gpu import DeviceRef, GpuHealth
from gpuloom.model.node import Delivery, NodeMode, NodeState
from gpuloom.rpc.channel import RpcChannel, open_stream
from gpuloom.rpc.dev_ca import CertificateOrder, issue_development_certificates, tls_files
from gpuloom.rpc.environment import RpcEnvironment
from gpuloom.rpc.server import RpcServer
from gpuloom.rpc.tls import TlsFiles
from gpuloom.runtime.clock import FakeClock, SystemClock
from gpuloom.runtime.parsers import Address
from gpuloom.sim.machines.machine import Faults, GpuFault, end_machine
from gpuloom.v1 import node_agent_pb2 as pb
from gpuloom.v1.node_agent_pb2_grpc import (
    NodeAgentServiceStub,
    add_NodeAgentServiceServicer_to_server,
)
from gpuloom.v1.types_pb2 import Heartbeat, StreamVersion
from services.discovery.adapters.agents import GrpcAgents
from services.node_agent.agent import SERVICE
from services.node_agent.attribution.census import Census
from services.node_agent.attribution.listing import ProcessLister
from services.node_agent.metrics import AgentMetrics
from services.node_agent.node import Node
from services.node_agent.server import ALLOWED_CALLERS, NodeAgentServer
from tests.mesh.node_agent.builders import Mesh, Service, a_kubelet_of, a_mesh, no_usage
from tests.mesh.waiting import PATIENCE_S, until
from tests.unit.discovery.builders import a_state
from tests.unit.node_agent.builders import FakeMachine
from tests.unit.sim.builders import hosted, whole

HEARTBEAT_S = 4.0
INSECURE = RpcEnvironment(None, CollectorRegistry(), SystemClock())


async def test_the_state_of_a_machine_arrives_and_follows_it(tmp_path: Path) -> None:
    async with a_mesh(tmp_path) as mesh:
        machine = mesh.add_machine("n1")
        uuid = machine.hardware.gpus[0].uuid
        async with states_of(mesh, await mesh.start_agent("n1")) as states:
            settled = await first(states, lambda state: not state.holders_unknown_reason)
            machine.write_hosted([hosted("train", whole(uuid))])
            held = await first(states, lambda state: bool(state.holders))
            machine.write_faults(Faults({uuid: GpuFault(GpuHealth.UNHEALTHY, "XID 79")}))
            broken = await first(states, lambda state: state.gpus[0].health is not GpuHealth.HEALTHY)

        assert (settled.node_uid, settled.mode) == (mesh.node_uid("n1"), NodeMode.GPULOOM)
        assert settled.delivery is Delivery.NRI
        assert settled.topology == machine.hardware.topology
        assert [gpu.health for gpu in settled.gpus] == [GpuHealth.HEALTHY] * 8
        assert held.holders[0].devices == (DeviceRef(uuid),)
        assert broken.gpus[0].health_reason == "XID 79"


async def test_a_kubelet_that_goes_and_comes_back_is_believed_again(tmp_path: Path) -> None:
    async with a_mesh(tmp_path) as mesh:
        machine = mesh.add_machine("n1", NodeMode.NVIDIA)
        uuid = machine.hardware.gpus[0].uuid
        machine.write_hosted([hosted("train", whole(uuid))])
        async with states_of(mesh, await mesh.start_agent("n1")) as states:
            for _ in range(2):
                silent = await first(states, lambda state: "kubelet" in state.holders_unknown_reason)
                async with a_kubelet_of(machine):
                    told = await first(states, lambda state: not state.holders_unknown_reason)

                assert [gpu.health for gpu in silent.gpus] == [GpuHealth.HEALTHY] * 8
                assert [holder.devices for holder in told.holders] == [(DeviceRef(uuid),)]


async def test_an_agent_is_ready_once_it_has_looked_and_ends_cleanly(tmp_path: Path) -> None:
    async with a_mesh(tmp_path) as mesh:
        mesh.add_machine("n1")
        agent = await mesh.start_agent("n1")
        async with states_of(mesh, agent) as states:
            await first(states, lambda state: bool(state.gpus))
            ready = agent.not_ready()
            code = await agent.stop()
            with pytest.raises(GpuloomError):
                await first(states, lambda state: False)

        assert (ready, code) == ([], 0)


async def test_a_wrong_client_certificate_is_refused(tmp_path: Path) -> None:
    others = tmp_path / "others"
    issue_development_certificates(others, CertificateOrder(("discovery",)), SystemClock())
    stranger = TlsFiles(others / "discovery.crt", others / "discovery.key", tmp_path / "ca.crt")
    async with a_mesh(tmp_path) as mesh:
        mesh.add_machine("n1")
        agent = await mesh.start_agent("n1")

        with pytest.raises(UnavailableError):
            await watch_once(await mesh.channel(agent, "node_agent", stranger))


async def test_only_discovery_and_the_cli_may_watch_an_agent(tmp_path: Path) -> None:
    async with a_mesh(tmp_path) as mesh:
        mesh.add_machine("n1")
        agent = await mesh.start_agent("n1")

        with pytest.raises(NotAllowedError, match=r"^scheduler_extender may not call WatchState$"):
            await watch_once(await mesh.channel(agent, "node_agent", "scheduler_extender"))
        for caller in ("discovery", "cli"):
            message = await watch_once(await mesh.channel(agent, "node_agent", caller))
            assert message.full.node_name == "n1"


async def test_a_fleet_is_many_agents_each_at_its_own_address(tmp_path: Path) -> None:
    async with a_mesh(tmp_path) as mesh:
        names = ("n1", "n2")
        for name in names:
            mesh.add_machine(name)
        ports = dict(zip(names, free_ports(len(names)), strict=True))
        mesh.tell_agents(**ports)
        agents = await mesh.start_fleet(*names)

        found = {}
        for name in names:
            async with states_at(mesh, ports[name]) as states:
                found[name] = await first(states, lambda state: bool(state.gpus and state.node_uid))

        assert {name: state.node_name for name, state in found.items()} == {"n1": "n1", "n2": "n2"}
        assert {name: state.node_uid for name, state in found.items()} == {
            name: mesh.node_uid(name) for name in names
        }
        assert len(agents.servers) == 2


async def test_a_fleet_that_follows_has_an_agent_for_a_machine_as_long_as_it_is_there(tmp_path: Path) -> None:
    async with a_mesh(tmp_path) as mesh:
        mesh.add_machine("n1")
        mesh.tell_agents(n1=free_ports(1)[0])
        fleet = await mesh.start_fleet("n1", follow=True)

        mesh.add_machine("late")
        await until(lambda: "late" in read_agents_file(mesh.agents_file))
        port = read_agents_file(mesh.agents_file)["late"].port
        async with states_at(mesh, port) as states:
            found = await first(states, lambda state: bool(state.gpus and state.node_uid))
        end_machine(mesh.folder / "late")
        await until(lambda: "late" not in read_agents_file(mesh.agents_file))

        assert (found.node_name, found.node_uid) == ("late", mesh.node_uid("late"))
        assert not fleet.task.done()


async def test_a_fleet_without_an_address_for_a_node_does_not_start(tmp_path: Path) -> None:
    async with a_mesh(tmp_path) as mesh:
        mesh.add_machine("n1")

        with pytest.raises(InvalidRequestError, match="no address for node n1"):
            await mesh.start_fleet("n1")


async def test_an_agent_that_no_longer_looks_vouches_for_nothing() -> None:
    clock = FakeClock()
    node = Node(a_state(), clock, max_age_s=10.0)
    machine = FakeMachine()
    lister = ProcessLister(machine, Census(machine, machine))
    servicer = NodeAgentServer(node, lister, no_usage(), HEARTBEAT_S, AgentMetrics(CollectorRegistry()))

    async with an_agent(servicer) as channel:
        call = channel.stub(NodeAgentServiceStub).WatchState(pb.WatchStateRequest())
        async with open_stream(call) as messages:
            full = await anext(messages)
            kinds = [await next_kind(messages, clock) for _ in range(2)]
            with pytest.raises(NotReadyError, match="last sampled"):
                await next_kind(messages, clock)
        with pytest.raises(NotReadyError, match="last sampled"):
            await watch_once(channel)
        node.move_to(a_state())
        again = await watch_once(channel)

    assert full.WhichOneof("update") == "full"
    assert kinds == ["heartbeat", "heartbeat"]
    assert again.full.node_name == "n1"


A_FULL = pb.WatchStateResponse(
    version=StreamVersion(epoch="e1", number=1), full=node_state_to_proto(a_state())
)


@pytest.mark.parametrize(
    "message",
    [
        pytest.param(pb.WatchStateResponse(), id="no update"),
        pytest.param(A_FULL, id="a second full state"),
        pytest.param(
            pb.WatchStateResponse(
                version=StreamVersion(epoch="e1", number=9, after=8), heartbeat=Heartbeat()
            ),
            id="a gap",
        ),
        pytest.param(
            pb.WatchStateResponse(
                version=StreamVersion(epoch="e2", number=1, after=1), heartbeat=Heartbeat()
            ),
            id="another epoch",
        ),
        pytest.param(
            pb.WatchStateResponse(
                version=StreamVersion(epoch="e1", number=2, after=1),
                delta=pb.NodeStateDelta(removed_gpu_uuids=["GPU-a"], gpus=[{}]),  # type: ignore[list-item]
            ),
            id="a malformed delta",
        ),
    ],
)
async def test_an_agent_that_breaks_the_rules_of_the_stream_is_lost(message: pb.WatchStateResponse) -> None:
    heartbeat = pb.WatchStateResponse(
        version=StreamVersion(epoch="e1", number=1, after=1), heartbeat=Heartbeat()
    )
    server = RpcServer(INSECURE, "127.0.0.1", 0)
    servicer = ScriptedAgent(A_FULL, heartbeat, message)
    server.add(servicer, add_NodeAgentServiceServicer_to_server, SERVICE, ALLOWED_CALLERS)

    async with server, insecure_states(server.port) as states:
        heard = [await anext(states), await anext(states)]
        with pytest.raises(GpuloomError):
            await anext(states)

    assert heard == [a_state(), None]


async def test_bytes_that_are_no_message_lose_the_agent_and_nothing_else() -> None:
    async with a_babbler() as port, insecure_states(port) as states:
        with pytest.raises(GpuloomError, match="no message of the expected type"):
            await anext(states)


class ScriptedAgent(NodeAgentServer):
    """Says what it is told to say, whatever its node is like."""

    def __init__(self, *messages: pb.WatchStateResponse) -> None:
        self._messages = messages

    async def WatchState(
        self, request: pb.WatchStateRequest, context: Any
    ) -> AsyncIterator[pb.WatchStateResponse]:
        for message in self._messages:
            yield message
        await asyncio.Event().wait()


@asynccontextmanager
async def a_babbler(credentials: grpc.ServerCredentials | None = None) -> AsyncIterator[int]:
    """A server that answers WatchState with bytes that are no message; its port."""

    async def babble(_request: bytes, _context: Any) -> AsyncIterator[bytes]:
        yield b"\xff\xff\xff"
        await asyncio.Event().wait()

    server = aio.server()
    handlers: Any = {"WatchState": grpc.unary_stream_rpc_method_handler(babble)}
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(SERVICE.full_name, handlers)])
    if credentials is None:
        port = server.add_insecure_port("127.0.0.1:0")
    else:
        port = server.add_secure_port("127.0.0.1:0", credentials)
    await server.start()
    try:
        yield port
    finally:
        await server.stop(0)


@asynccontextmanager
async def an_agent(servicer: NodeAgentServer) -> AsyncIterator[RpcChannel]:
    server = RpcServer(INSECURE, "127.0.0.1", 0)
    server.add(servicer, add_NodeAgentServiceServicer_to_server, SERVICE, ALLOWED_CALLERS)
    async with server, RpcChannel(INSECURE, f"127.0.0.1:{server.port}", "node_agent") as channel:
        yield channel


@asynccontextmanager
async def insecure_states(port: int) -> AsyncIterator[AsyncIterator[NodeState | None]]:
    agents = GrpcAgents(INSECURE)
    async with agents.link(Address("127.0.0.1", port)) as link, link.states() as states:
        yield states


@asynccontextmanager
async def states_of(mesh: Mesh, agent: Service) -> AsyncIterator[AsyncIterator[NodeState | None]]:
    async with states_at(mesh, agent.port) as states:
        yield states


@asynccontextmanager
async def states_at(mesh: Mesh, port: int) -> AsyncIterator[AsyncIterator[NodeState | None]]:
    """What discovery hears from the agent there."""
    files = tls_files(mesh.folder, "discovery")
    agents = GrpcAgents(RpcEnvironment(files, CollectorRegistry(), SystemClock()))
    async with agents.link(Address("127.0.0.1", port)) as link, link.states() as states:
        yield states


async def first(states: AsyncIterator[NodeState | None], wanted: Callable[[NodeState], bool]) -> NodeState:
    async with asyncio.timeout(PATIENCE_S):
        async for state in states:
            if state is not None and wanted(state):
                return state
    raise AssertionError("the stream ended")


async def watch_once(channel: RpcChannel) -> pb.WatchStateResponse:
    call = channel.stub(NodeAgentServiceStub).WatchState(pb.WatchStateRequest())
    async with asyncio.timeout(PATIENCE_S), open_stream(call) as messages:
        return await anext(messages)


async def next_kind(messages: AsyncIterator[pb.WatchStateResponse], clock: FakeClock) -> str | None:
    """The next message after the agent waited for one heartbeat interval."""
    await until(lambda: any(not woken.done() for _, _, woken in clock._sleepers))
    await clock.advance(HEARTBEAT_S)
    return (await anext(messages)).WhichOneof("update")


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [int(each.getsockname()[1]) for each in sockets]
    for each in sockets:
        each.close()
    return ports
