"""Agents, discovery and a reader in one mesh over mutual TLS, on a simulated cluster."""

from pathlib import Path

import grpc
import pytest

from gpuloom.clients.agent_directory import AgentDirectory, AgentPlace
from gpuloom.codec.allocation import encode_allocation
from gpuloom.errors import NotAllowedError
from gpuloom.model.allocation import AllocatedDevice, Allocation
from gpuloom.model.gpu import DeviceRef
from gpuloom.model.node import HolderSource, NodeMode
from gpuloom.model.snapshot import ClosedGpu
from gpuloom.names import ANNOTATION_ALLOCATION
from gpuloom.rpc.channel import open_stream
from gpuloom.rpc.dev_ca import tls_files
from gpuloom.runtime.parsers import Address
from gpuloom.sim.kubeapi.verbs import subresources
from gpuloom.sim.kubeapi.verbs.deletion import DeleteOptions
from gpuloom.sim.kubeapi.verbs.store import STATUS
from gpuloom.sim.kubelet.devices import ANNOTATION_CLAIMS
from gpuloom.v1.discovery_pb2 import WatchClusterRequest
from gpuloom.v1.discovery_pb2_grpc import DiscoveryServiceStub
from services.discovery import app as discovery
from services.discovery.config import DiscoveryConfig
from services.discovery.core.cluster import NOT_HEARD, SILENT
from services.discovery.core.findings import Cause
from services.discovery.core.trust import REASONS
from tests.mesh.node_agent.builders import AGENT_TTL, Mesh, Service, a_kubelet_of, a_mesh, facts_of, trusted
from tests.mesh.node_agent.test_agent import a_babbler
from tests.mesh.waiting import until
from tests.unit.discovery.kubernetes_objects import an_agent_s_pod
from tests.unit.sim.builders import a_pod, hosted, whole

CONTAINER = {"name": "main", "image": "example.test/main"}
AT_ONCE = DeleteOptions(grace_s=0)


async def test_what_an_agent_sees_reaches_a_reader_of_discovery(tmp_path: Path) -> None:
    async with a_mesh(tmp_path) as mesh:
        machine = mesh.add_machine("n1")
        uid, uuid = mesh.node_uid("n1"), machine.hardware.gpus[5].uuid
        mesh.tell_agents(n1=(await mesh.start_agent("n1")).port)
        mirror = await mesh.mirror(await mesh.start_discovery(), "scheduler_extender")

        await until(lambda: trusted(mirror, uid))
        machine.write_hosted([hosted("train", whole(uuid))])
        await until(lambda: facts_of(mirror, uid).state.holders)

        state = facts_of(mirror, uid).state
        assert [gpu.uuid for gpu in state.gpus] == [gpu.uuid for gpu in machine.hardware.gpus]
        assert state.holders[0].devices == (DeviceRef(uuid),)
        assert state.usage == ()


async def test_an_agent_that_is_gone_costs_its_node_the_trust_until_it_is_back(tmp_path: Path) -> None:
    async with a_mesh(tmp_path) as mesh:
        mesh.add_machine("n1")
        uid, agent = mesh.node_uid("n1"), await mesh.start_agent("n1")
        port = agent.port
        mesh.tell_agents(n1=port)
        mirror = await mesh.mirror(await mesh.start_discovery())
        await until(lambda: trusted(mirror, uid))

        await agent.stop()
        await until(lambda: not trusted(mirror, uid))
        gone = facts_of(mirror, uid)
        await mesh.start_agent("n1", port)
        await until(lambda: trusted(mirror, uid))

        assert (gone.untrusted_reasons, len(gone.state.gpus)) == ((SILENT,), 8)


async def test_an_nvidia_node_is_trusted_once_its_kubelet_answers(tmp_path: Path) -> None:
    async with a_mesh(tmp_path) as mesh:
        machine = mesh.add_machine("n1", NodeMode.NVIDIA)
        uid = mesh.node_uid("n1")
        mesh.tell_agents(n1=(await mesh.start_agent("n1")).port)
        mirror = await mesh.mirror(await mesh.start_discovery())
        await until(lambda: uid in mirror.snapshot().nodes and facts_of(mirror, uid).state.gpus)
        reason = REASONS[Cause.HOLDERS_UNKNOWN]
        await until(lambda: facts_of(mirror, uid).untrusted_reasons == (reason,))
        await until(lambda: "the kubelet does not answer (UNAVAILABLE)" in facts_of(mirror, uid).details)

        async with a_kubelet_of(machine):
            await until(lambda: trusted(mirror, uid))


async def test_a_node_is_closed_while_a_pod_has_a_gpu_by_a_resource_claim(tmp_path: Path) -> None:
    async with a_mesh(tmp_path) as mesh:
        machine = mesh.add_machine("n1", NodeMode.NVIDIA)
        uid, uuid = mesh.node_uid("n1"), machine.hardware.gpus[3].uuid
        mesh.tell_agents(n1=(await mesh.start_agent("n1")).port)
        mirror = await mesh.mirror(await mesh.start_discovery())
        claims = {ANNOTATION_CLAIMS: "gpu.nvidia.com/gpu-3, dra.net/eth1"}

        async with a_kubelet_of(machine) as kubelet:
            await until(lambda: trusted(mirror, uid))
            kubelet.admit(a_pod("claims", annotations=claims))
            await until(lambda: not trusted(mirror, uid))
            closed = facts_of(mirror, uid)
            kubelet.exit("uid-claims", killed=False)
            await until(lambda: trusted(mirror, uid))

        assert closed.untrusted_reasons == (REASONS[Cause.CLAIMED_GPU],)
        assert [(holder.source, holder.devices) for holder in closed.state.holders] == [
            (HolderSource.CLAIM, (DeviceRef(uuid),))
        ]


async def test_agents_are_found_by_the_addresses_of_their_nodes(tmp_path: Path) -> None:
    async with a_mesh(tmp_path) as mesh:
        mesh.add_machine("n1")
        uid, agent = mesh.node_uid("n1"), await mesh.start_agent("n1")
        by_node = {"DISCOVERY_AGENTS": "nodes", "DISCOVERY_AGENT_PORT": str(agent.port)}
        mirror = await mesh.mirror(await discovery_with(mesh, **by_node))
        await until(lambda: trusted(mirror, uid))

        mesh.api.store.delete("nodes", "n1")
        await until(lambda: uid not in mirror.snapshot().nodes)


async def test_agents_are_found_by_their_own_pods(tmp_path: Path) -> None:
    async with a_mesh(tmp_path) as mesh:
        mesh.add_machine("n1")
        uid, agent = mesh.node_uid("n1"), await mesh.start_agent("n1")
        mirror = await mesh.mirror(await discovery_with(mesh, DISCOVERY_AGENT_PORT=str(agent.port)))
        await until(lambda: uid in mirror.snapshot().nodes)
        without = facts_of(mirror, uid).untrusted_reasons
        directory = AgentDirectory(mirror)

        add_agent_pod(mesh, "agent-1", "n1")
        await until(lambda: trusted(mirror, uid))
        listed = dict(directory.places)
        mesh.api.store.delete("pods", "agent-1", namespace="gpuloom-system", options=AT_ONCE)
        await until(lambda: not directory.places)
        await until(lambda: not trusted(mirror, uid))

        assert without == (NOT_HEARD,)
        assert listed == {uid: AgentPlace("n1", Address("127.0.0.1", agent.port))}


async def test_what_pods_were_given_is_shown_and_a_copied_allocation_closes_its_gpu(tmp_path: Path) -> None:
    async with a_mesh(tmp_path) as mesh:
        machine = mesh.add_machine("n1")
        uid, uuids = mesh.node_uid("n1"), [gpu.uuid for gpu in machine.hardware.gpus]
        mesh.tell_agents(n1=(await mesh.start_agent("n1")).port)
        mirror = await mesh.mirror(await mesh.start_discovery())
        await until(lambda: trusted(mirror, uid))

        honest = bind_pod(mesh, "honest", uid, uuids[0])
        await until(lambda: facts_of(mirror, uid).allocations)
        bind_pod(mesh, "copy", uid, uuids[3], owner=honest)
        await until(lambda: facts_of(mirror, uid).closed_gpus)
        closed = facts_of(mirror, uid)
        mesh.api.store.delete("pods", "copy", options=AT_ONCE)
        await until(lambda: not facts_of(mirror, uid).closed_gpus)

        assert [given.pod.uid for given in closed.allocations] == [honest]
        assert closed.trusted
        assert closed.closed_gpus == (ClosedGpu(uuids[3], REASONS[Cause.ALLOCATION_OF_ANOTHER_POD]),)
        assert f"{uuids[3]}: pod default/copy carries that of {honest}" in closed.details


async def test_a_pod_that_holds_what_it_was_not_given_closes_that_gpu_alone(tmp_path: Path) -> None:
    async with a_mesh(tmp_path) as mesh:
        machine = mesh.add_machine("n1")
        uid, uuids = mesh.node_uid("n1"), [gpu.uuid for gpu in machine.hardware.gpus]
        mesh.tell_agents(n1=(await mesh.start_agent("n1")).port)
        file = {"AGENTS_FILE": str(mesh.agents_file), "DISCOVERY_LAG_GRACE": "200ms"}
        mirror = await mesh.mirror(await discovery_with(mesh, **file))
        await until(lambda: trusted(mirror, uid))

        machine.write_hosted([hosted("stray", whole(uuids[2]))])
        await until(lambda: facts_of(mirror, uid).closed_gpus)
        closed = facts_of(mirror, uid)
        machine.write_hosted([])
        await until(lambda: not facts_of(mirror, uid).closed_gpus)

        assert closed.trusted
        assert closed.closed_gpus == (ClosedGpu(uuids[2], REASONS[Cause.HOLDER_WITHOUT_POD]),)


async def test_a_node_made_anew_under_its_name_is_trusted_as_the_new_one(tmp_path: Path) -> None:
    async with a_mesh(tmp_path) as mesh:
        mesh.add_machine("n1")
        old = mesh.node_uid("n1")
        mesh.tell_agents(n1=(await mesh.start_agent("n1")).port)
        mirror = await mesh.mirror(await mesh.start_discovery())
        await until(lambda: trusted(mirror, old))

        mesh.api.store.delete("nodes", "n1")
        mesh.add_machine("n1")
        await until(lambda: trusted(mirror, mesh.node_uid("n1")))

        assert set(mirror.snapshot().nodes) == {mesh.node_uid("n1")} != {old}


async def test_a_reader_survives_a_restart_of_discovery(tmp_path: Path) -> None:
    async with a_mesh(tmp_path) as mesh:
        mesh.add_machine("n1")
        uid = mesh.node_uid("n1")
        mesh.tell_agents(n1=(await mesh.start_agent("n1")).port)
        discovery = await mesh.start_discovery()
        port, mirror = discovery.port, await mesh.mirror(discovery)
        await until(lambda: trusted(mirror, uid))
        epoch = mirror.snapshot().version.epoch

        code = await discovery.stop()
        while_away = trusted(mirror, uid)
        await mesh.start_discovery(port)
        await until(lambda: mirror.snapshot().version.epoch != epoch and trusted(mirror, uid))

        assert (code, while_away) == (0, True)


async def test_discovery_serves_nobody_until_its_agents_had_their_chance(tmp_path: Path) -> None:
    async with a_mesh(tmp_path) as mesh:
        mesh.add_machine("n1")
        mesh.tell_agents(n1=1)
        discovery = await mesh.start_discovery()
        mirror = await mesh.mirror(discovery)
        early = discovery.not_ready(), mirror.synced

        await mirror.wait_synced()

        assert early[0]
        assert not early[1]
        assert discovery.not_ready() == []
        assert not trusted(mirror, mesh.node_uid("n1"))


async def test_one_agent_that_babbles_leaves_discovery_and_the_others_alone(tmp_path: Path) -> None:
    async with a_mesh(tmp_path) as mesh:
        mesh.add_machine("n1")
        mesh.add_machine("n2")
        files = tls_files(tmp_path, "node_agent")
        pair = (files.key_file.read_bytes(), files.cert_file.read_bytes())
        credentials = grpc.ssl_server_credentials([pair], files.ca_file.read_bytes(), True)
        async with a_babbler(credentials) as port:
            mesh.tell_agents(n1=(await mesh.start_agent("n1")).port, n2=port)
            discovery = await mesh.start_discovery()
            mirror = await mesh.mirror(discovery)

            await until(lambda: trusted(mirror, mesh.node_uid("n1")))

            assert not discovery.task.done()
            assert not trusted(mirror, mesh.node_uid("n2"))


async def test_a_service_that_is_not_listed_may_not_read_discovery(tmp_path: Path) -> None:
    async with a_mesh(tmp_path) as mesh:
        channel = await mesh.channel(await mesh.start_discovery(), "discovery", "node_agent")
        call = channel.stub(DiscoveryServiceStub).WatchCluster(WatchClusterRequest())

        async with open_stream(call) as messages:
            with pytest.raises(NotAllowedError, match=r"^node_agent may not call WatchCluster$"):
                await anext(messages)


async def discovery_with(mesh: Mesh, **settings: str) -> Service:
    """Discovery with these settings, and times that suit a test."""
    own = {
        "DISCOVERY_AGENT_TTL": AGENT_TTL,
        "AGENT_HEARTBEAT_INTERVAL": "100ms",
        "DISCOVERY_PUBLISH_INTERVAL": "20ms",
        "DISCOVERY_HEARTBEAT_INTERVAL": "200ms",
        "GRPC_HOST": "127.0.0.1",
        "GRPC_PORT": "0",
        **settings,
    }
    given = {f"GPULOOM_{name}": value for name, value in own.items()}
    return await mesh._start("discovery", DiscoveryConfig, discovery.build, given)


def add_agent_pod(mesh: Mesh, name: str, node: str) -> None:
    """An agent's pod as its DaemonSet would make it, and the address that the kubelet reports."""
    mesh.api.store.create("namespaces", {"metadata": {"name": "gpuloom-system"}})
    pod = an_agent_s_pod(name, node, "127.0.0.1")
    labels = pod["metadata"]["labels"]
    created = mesh.api.store.create(
        "pods",
        {
            "metadata": {"name": name, "namespace": "gpuloom-system", "labels": labels},
            "spec": {"nodeName": node, "containers": [CONTAINER]},
        },
    )
    mesh.api.store.update("pods", {**created, "status": pod["status"]}, STATUS)


def bind_pod(mesh: Mesh, name: str, node_uid: str, gpu_uuid: str, owner: str = "") -> str:
    """A pod on n1 that carries an allocation of this GPU, its own or somebody's; its UID."""
    pod = {"metadata": {"name": name}, "spec": {"containers": [CONTAINER]}}
    uid = str(mesh.api.store.create("pods", pod)["metadata"]["uid"])
    device = AllocatedDevice(DeviceRef(gpu_uuid), 1000, 0)
    given = encode_allocation(Allocation(owner or uid, node_uid, "main", False, (device,)))
    binding = {
        "metadata": {"name": name, "annotations": {ANNOTATION_ALLOCATION: given}},
        "target": {"kind": "Node", "name": "n1"},
    }
    subresources.bind(mesh.api.store, "default", name, binding)
    return uid
