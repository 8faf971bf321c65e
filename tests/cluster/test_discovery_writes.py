"""Discovery's replicas on a real API server, as processes under their own account, with scripted agents."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import orjson
import pytest

from gpuloom.errors import ConflictError
from gpuloom.kube.client import KubeClient
from gpuloom.kube.listing import EventType, Selection
from gpuloom.kube.objects import JsonObject, uid_of
from gpuloom.kube.resources import EVENTS, LEASES, NODES
from gpuloom.model.node import NodeMode
from gpuloom.model.spot import SpotNotice, SpotNoticeKind
from gpuloom.rpc.dev_ca import CertificateOrder, issue_development_certificates, tls_files
from gpuloom.runtime.clock import SystemClock, deadline
from gpuloom.sim.processes.ports import free_ports
from tests.cluster.fake_nodes import FakeNode, create_nodes
from tests.cluster.shared import SharedControlPlane, account_of
from tests.scenarios.discovery.agents import HOST, Script, a_state, serving_agents, with_lost_gpu
from tests.scenarios.discovery.processes import ReplicaProcess, Surroundings, a_replica, the_elected

pytestmark = [pytest.mark.real, pytest.mark.timeout(400)]

CLOCK = SystemClock()
ACCOUNT = account_of("discovery")
OURS, PLUGGED, CONTESTED = "writes-ours", "writes-plugged", "writes-contested"
END = SpotNotice(SpotNoticeKind.INTERRUPTION, datetime(2026, 3, 1, 12, tzinfo=UTC), "aws", "terminate")
SPOT_ANNOTATIONS = {
    "gpuloom.dev/spot-notice": "aws",
    "gpu-autoscaler.io/spot-interruption-warning": "true",
    "gpu-autoscaler.io/spot-termination-time": "2026-03-01T12:00:00Z",
}
REPORTS = 30


@dataclass
class Stage:
    """Two replicas that are ready, three nodes, and a script for their agents."""

    shared: SharedControlPlane
    admin: KubeClient
    script: Script
    replicas: tuple[ReplicaProcess, ReplicaProcess]

    async def node(self, name: str) -> JsonObject:
        return await self.admin.get(NODES, name)

    async def node_once(self, name: str, holds: Callable[[JsonObject], object]) -> JsonObject:
        """The node, as soon as this holds of it."""
        async with deadline(CLOCK, 20.0):
            while not holds(node := await self.node(name)):
                await CLOCK.sleep(0.05)
        return node

    def denied_calls(self) -> list[str]:
        lines = [line for replica in self.replicas for line in replica.log().splitlines()]
        return [line for line in lines if "answered 403" in line]


@pytest.fixture
async def stage(shared_control_plane: SharedControlPlane, tmp_path: Path) -> AsyncIterator[Stage]:
    issue_development_certificates(tmp_path, CertificateOrder(("discovery", "node_agent")), CLOCK)
    async with AsyncExitStack() as stack:
        admin = await stack.enter_async_context(shared_control_plane.client())
        script = await stack.enter_async_context(scripted_nodes(admin))
        ports = await stack.enter_async_context(serving_agents(script, tls_files(tmp_path, "node_agent")))
        agents_file = tmp_path / "agents.json"
        agents_file.write_bytes(orjson.dumps({name: f"{HOST}:{port}" for name, port in ports.items()}))
        kubeconfig = await shared_control_plane.plane.service_account_kubeconfig(*ACCOUNT)
        around = Surroundings(tmp_path, kubeconfig, agents_file)
        free = free_ports(4, random.Random())
        one = await stack.enter_async_context(a_replica(around, "one", (free[0], free[1])))
        two = await stack.enter_async_context(a_replica(around, "two", (free[2], free[3])))
        await the_elected(one, two)
        yield Stage(shared_control_plane, admin, script, (one, two))


@asynccontextmanager
async def scripted_nodes(admin: KubeClient) -> AsyncIterator[Script]:
    plugged = {"nvidia.com/gpu": "8"}
    nodes = [FakeNode(OURS), FakeNode(PLUGGED, plugged), FakeNode(CONTESTED, plugged)]
    await create_nodes(admin, nodes)
    try:
        script = Script()
        for node in nodes:
            script.say(a_state(node.name, uid_of(await admin.get(NODES, node.name))))
        script.change(PLUGGED, mode=NodeMode.NVIDIA)
        yield script
    finally:
        for node in nodes:
            await admin.delete(NODES, node.name)
        await admin.delete(LEASES, "gpuloom-discovery", ACCOUNT[0])


async def test_what_agents_say_stands_on_their_nodes_and_goes_with_its_cause(stage: Stage) -> None:
    node = await stage.node_once(OURS, is_healthy)
    plugged = await stage.node_once(PLUGGED, is_healthy)

    stage.script.say(replace(with_lost_gpu(stage.script.states[OURS], 3), spot=END))
    warned = await stage.node_once(OURS, lambda node: condition(node).get("status") == "False")
    stage.script.say(a_state(OURS, uid_of(node)))
    cleared = await stage.node_once(OURS, is_healthy)

    assert node["metadata"]["labels"]["gpuloom.dev/mode"] == "gpuloom"
    for field in ("capacity", "allocatable"):
        assert node["status"][field]["gpuloom.dev/gpu-milli"] == "8k"
        assert node["status"][field]["gpuloom.dev/gpu-memory-mib"] == str(8 * 40_960)
        assert node["status"][field]["cpu"] == "64"
        assert "gpuloom.dev/gpu-milli" not in plugged["status"][field]
    assert plugged["metadata"]["labels"]["gpuloom.dev/mode"] == "nvidia"
    assert condition(warned)["message"] == f"GPU 3 (GPU-{OURS}-3) lost: XID 79"
    assert SPOT_ANNOTATIONS.items() <= warned["metadata"]["annotations"].items()
    assert warned["status"]["capacity"] == node["status"]["capacity"]
    assert not SPOT_ANNOTATIONS.keys() & cleared["metadata"].get("annotations", {}).keys()
    assert stage.denied_calls() == []


async def test_what_somebody_takes_away_is_put_back_and_what_is_theirs_stays(stage: Stage) -> None:
    stage.script.change(OURS, spot=END)
    await stage.node_once(OURS, is_complete)
    gone = dict.fromkeys(("gpuloom.dev/gpu-milli", "gpuloom.dev/gpu-memory-mib"))
    marks = {"labels": {"gpuloom.dev/mode": None, "theirs": "yes"}, "annotations": {"theirs": "yes"}}

    await stage.admin.patch(NODES, OURS, None, {"metadata": marks})
    await stage.admin.patch(NODES, OURS, None, {"metadata": {"annotations": dict.fromkeys(SPOT_ANNOTATIONS)}})
    await stage.admin.patch_status(NODES, OURS, None, {"status": {"capacity": gone, "allocatable": gone}})
    await put_conditions(stage, [{"type": "Ready", "status": "True", "reason": "Theirs"}])
    node = await stage.node_once(OURS, is_complete)

    labels = node["metadata"]["labels"]
    assert (labels["theirs"], node["metadata"]["annotations"]["theirs"]) == ("yes", "yes")
    assert {entry["reason"] for entry in node["status"]["conditions"]} == {"Theirs", "AllGpusHealthy"}
    assert stage.denied_calls() == []


async def test_what_a_kubelet_reports_between_our_writes_is_never_lost(stage: Stage) -> None:
    """A kubelet patches the list of conditions entry by entry, without a version; discovery replaces it."""
    listed = await stage.node_once(OURS, is_healthy)
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        seen = group.create_task(watched_reports(stage, listed["metadata"]["resourceVersion"]))
        changing = group.create_task(keep_changing(stage.script, stop))
        for number in range(1, REPORTS):
            await report_as_kubelet(stage, number)
        stop.set()
        await changing
        await report_as_kubelet(stage, REPORTS)
        reports = await seen
    node = await stage.node_once(OURS, is_healthy)

    assert len(reports) > REPORTS + 5
    assert reports == sorted(reports)
    assert {entry["type"] for entry in node["status"]["conditions"]} == {
        "Ready",
        "MemoryPressure",
        "GpusHealthy",
    }
    assert stage.denied_calls() == []


async def test_distrust_is_told_once_by_an_event_that_says_what_to_do(stage: Stage) -> None:
    node = await stage.node_once(CONTESTED, is_healthy)
    about = Selection(field_selector=f"involvedObject.uid={uid_of(node)}")

    async def events() -> tuple[JsonObject, ...]:
        return tuple((await stage.admin.list(EVENTS, about)).items)

    await becomes(events)
    told = await events()

    assert [event["reason"] for event in told] == ["TwoAuthorities"]
    assert told[0]["type"] == "Warning"
    assert told[0]["source"]["component"] == "gpuloom-discovery"
    assert told[0]["message"] == (
        "The GPUs of this node are not given out: the node offers GPUs that its agent does not give out: two "
        "authorities could give one card (the agent works in mode gpuloom, and the node offers nvidia.com "
        "GPUs). Let one give out the GPUs: take NVIDIA's device plugin off this node, or set "
        "GPULOOM_AGENT_MODE=nvidia for its agent."
    )
    assert stage.denied_calls() == []


def condition(node: JsonObject) -> JsonObject:
    conditions = node["status"].get("conditions") or ()
    return next((entry for entry in conditions if entry["type"] == "GpusHealthy"), {})


def is_healthy(node: JsonObject) -> bool:
    return condition(node).get("status") == "True"


def is_complete(node: JsonObject) -> bool:
    """Whether everything of ours is there, the spot notice too."""
    metadata, status = node["metadata"], node["status"]
    return (
        is_healthy(node)
        and metadata["labels"].get("gpuloom.dev/mode") == "gpuloom"
        and SPOT_ANNOTATIONS.items() <= metadata.get("annotations", {}).items()
        and all("gpuloom.dev/gpu-milli" in status[field] for field in ("capacity", "allocatable"))
        and all("gpuloom.dev/gpu-memory-mib" in status[field] for field in ("capacity", "allocatable"))
    )


async def put_conditions(stage: Stage, conditions: list[JsonObject]) -> None:
    """Replace the whole list, as somebody careless does."""
    while True:
        node = await stage.node(OURS)
        version = node["metadata"]["resourceVersion"]
        patch = {"status": {"conditions": conditions}}
        try:
            await stage.admin.patch_status(NODES, OURS, None, patch, resource_version=version)
        except ConflictError:
            continue
        return


async def keep_changing(script: Script, stop: asyncio.Event) -> None:
    """A GPU is lost and comes back all the time. It is back in the end."""
    state = script.states[OURS]
    while not stop.is_set():
        script.say(with_lost_gpu(state, 3))
        await CLOCK.sleep(0.05)
        script.say(state)
        await CLOCK.sleep(0.05)


async def report_as_kubelet(stage: Stage, number: int) -> None:
    """With the kind of patch that a kubelet sends."""
    entry = {"type": "MemoryPressure", "status": "False", "reason": f"Report{number}"}
    patch = orjson.dumps({"status": {"conditions": [entry]}}).decode()
    plane = stage.shared.plane
    process = await asyncio.create_subprocess_exec(
        *(str(plane.binaries.path("kubectl")), "--kubeconfig", str(plane.admin_kubeconfig)),
        *("patch", "node", OURS, "--subresource=status", "--type=strategic", "-p", patch),
        stdout=asyncio.subprocess.DEVNULL,
        env={"HOME": str(plane.directory)},
    )
    assert await process.wait() == 0


async def watched_reports(stage: Stage, version: str) -> list[int]:
    """The number of the kubelet's report at every change of the node from then on, up to the last one."""
    mine = Selection(field_selector=f"metadata.name={OURS}")
    numbers = [0]
    async with deadline(CLOCK, 60.0), aclosing(stage.admin.watch(NODES, version, mine)) as events:
        async for event in events:
            if event.type is EventType.MODIFIED:
                numbers.append(report_of(event.object))
            if numbers[-1] == REPORTS:
                break
    return numbers


def report_of(node: JsonObject) -> int:
    """0 if the node does not have any, as before the first."""
    reasons = [entry["reason"] for entry in node["status"]["conditions"] if entry["type"] == "MemoryPressure"]
    return int(reasons[0].removeprefix("Report")) if reasons else 0


async def becomes(holds: Callable[[], Awaitable[object]], within_s: float = 120.0) -> None:
    async with deadline(CLOCK, within_s):
        while not await holds():
            await CLOCK.sleep(0.1)
