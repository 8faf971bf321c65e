"""API, kubelets and scheduler together, with a small extender: real HTTP and gRPC, time ten times as fast."""

import asyncio
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
import orjson
from aiohttp import web

from gpuloom.codec.allocation import encode_allocation
from gpuloom.errors import ConflictError
from gpuloom.kube.access import KubeAccess
from gpuloom.kube.client import DeleteOptions, KubeClient, PodBinding
from gpuloom.kube.resources import EVENTS, LEASES, NAMESPACES, NODES, PODS
from gpuloom.kubelet import podresources_pb2 as pb
from gpuloom.kubelet.podresources_pb2_grpc import PodResourcesListerStub
from gpuloom.model.allocation import Allocation
from gpuloom.model.node import NodeMode
from gpuloom.names import ANNOTATION_ALLOCATION
from gpuloom.runtime.clock import SystemClock
from gpuloom.sim.kubeapi import SimKubeApi
from gpuloom.sim.kubelet.host import Behaviour
from gpuloom.sim.kubelet.process import KubeletProcess, KubeletSettings
from gpuloom.sim.machines.audit import audit
from gpuloom.sim.machines.journal import EntryKind, read_journal
from gpuloom.sim.machines.machine import Machine
from gpuloom.sim.scheduler.extender import ExtenderSettings, HttpExtender
from gpuloom.sim.scheduler.loop import SchedulerSettings
from gpuloom.sim.scheduler.process import run_scheduler
from tests.unit.sim.builders import a_machine, a_pod, whole

SPEED = 10.0
PATIENCE_S = 20.0
MANAGED = frozenset({"nvidia.com/gpu", "gpuloom.dev/gpu-milli", "gpuloom.dev/gpu-memory-mib"})


class FastClock:
    """Real time, only faster: what is simulated waits a tenth, what is real (HTTP) is not hurried."""

    def monotonic(self) -> float:
        return time.monotonic() * SPEED

    def now(self) -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=self.monotonic())

    async def sleep(self, delay_s: float) -> None:
        await asyncio.sleep(max(0.0, delay_s) / SPEED)


@dataclass
class SmallExtender:
    """Accepts nodes of the right mode, gives the next free card, binds through the API."""

    client: KubeClient
    machines: dict[str, Machine]
    hold_first_bind: asyncio.Event | None = None
    bind_calls: list[str] = field(default_factory=list)
    refused_binds: int = 0
    cards_given: int = 0

    async def filter(self, request: web.Request) -> web.Response:
        body = orjson.loads(await request.read())
        wanted = _mode_of(body["Pod"])
        fits = {name: self.machines[name].spec.mode is wanted for name in body["NodeNames"]}
        failed = {name: "wrong mode" for name, fit in fits.items() if not fit}
        return _answer({"NodeNames": [name for name, fit in fits.items() if fit], "FailedNodes": failed})

    async def prioritize(self, request: web.Request) -> web.Response:
        body = orjson.loads(await request.read())
        return _answer([{"Host": name, "Score": 0} for name in body["NodeNames"]])

    async def bind(self, request: web.Request) -> web.Response:
        body = orjson.loads(await request.read())
        self.bind_calls.append(body["PodName"])
        if self.hold_first_bind is not None and len(self.bind_calls) == 1:
            await self.hold_first_bind.wait()
        binding = PodBinding(
            body["PodNamespace"], body["PodName"], body["Node"], body["PodUID"], None, self._allocation(body)
        )
        try:
            await self.client.bind(binding)
        except ConflictError as error:
            self.refused_binds += 1
            return _answer({"Error": str(error)})
        return _answer({"Error": ""})

    def _allocation(self, body: dict[str, str]) -> dict[str, str]:
        machine = self.machines[body["Node"]]
        if machine.spec.mode is not NodeMode.GPULOOM:
            return {}
        gpu = machine.hardware.gpus[self.cards_given]
        self.cards_given += 1
        record = Allocation(body["PodUID"], "node-uid", "main", False, (whole(gpu.uuid, gpu.memory_mib),))
        return {ANNOTATION_ALLOCATION: encode_allocation(record)}


@dataclass
class Cluster:
    api: SimKubeApi
    client: KubeClient
    machines: dict[str, Machine]
    directory: Path
    extender: SmallExtender

    async def create(self, name: str, resources: dict[str, str], **annotations: str) -> None:
        noted = {f"sim.gpuloom.dev/{key}": value for key, value in annotations.items()}
        pod = a_pod(name, resources, annotations=noted, terminationGracePeriodSeconds=2)
        del pod["metadata"]["uid"], pod["status"]
        pod["spec"]["containers"][0]["image"] = "registry.example.com/test:1"
        await self.client.create(PODS, pod)

    async def offer_shares_as_discovery_does(self, node: str) -> None:
        async def registered() -> bool:
            return any(item["metadata"]["name"] == node for item in (await self.client.list(NODES)).items)

        await eventually(registered, f"{node} registered")
        patch = {"status": {"allocatable": {"gpuloom.dev/gpu-milli": "8000"}}}
        await self.client.patch_status(NODES, node, None, patch)

    async def phase(self, name: str) -> str:
        pods = {pod["metadata"]["name"]: pod for pod in (await self.client.list(PODS)).items}
        return str(pods[name]["status"]["phase"]) if name in pods else "gone"

    async def reaches(self, name: str, phase: str) -> None:
        async def reached() -> bool:
            return await self.phase(name) == phase

        await eventually(reached, f"{name} {phase}")


@contextmanager
def short_directory() -> Iterator[Path]:
    """pytest's own directories are too deep for a unix socket."""
    with tempfile.TemporaryDirectory(prefix="gl-") as path:
        yield Path(path)


@asynccontextmanager
async def a_cluster(*, scheduler: bool = True, hold: asyncio.Event | None = None) -> AsyncIterator[Cluster]:
    async with AsyncExitStack() as stack:
        directory = stack.enter_context(short_directory())
        machines = {
            node: a_machine(directory, node, mode)
            for node, mode in (("n1", NodeMode.NVIDIA), ("g1", NodeMode.GPULOOM))
        }
        api = await stack.enter_async_context(SimKubeApi())
        client = await stack.enter_async_context(KubeClient(KubeAccess(api.url), SystemClock()))
        extender = SmallExtender(client, machines, hold)
        await _ensure_namespace(client, "team-a")
        if scheduler:
            url = await stack.enter_async_context(_served(extender))
            await stack.enter_async_context(_scheduling(client, url))
        yield Cluster(api, client, machines, directory, extender)


@asynccontextmanager
async def kubelet(cluster: Cluster) -> AsyncIterator[None]:
    settings = KubeletSettings(cluster.directory, Behaviour(seed=5))
    async with background(KubeletProcess(cluster.client, settings, FastClock()).run()):
        yield


@asynccontextmanager
async def _scheduling(client: KubeClient, url: str) -> AsyncIterator[None]:
    reach = ExtenderSettings(url, filter_timeout_s=20.0, bind_timeout_s=5.0)
    async with (
        HttpExtender(reach, FastClock()) as extender,
        background(run_scheduler(client, extender, SchedulerSettings(MANAGED), FastClock())),
    ):
        yield


@asynccontextmanager
async def _served(extender: SmallExtender) -> AsyncIterator[str]:
    app = web.Application()
    for verb in ("filter", "prioritize", "bind"):
        app.router.add_post(f"/scheduler/{verb}", getattr(extender, verb))
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/scheduler"
    finally:
        await runner.cleanup()


@asynccontextmanager
async def background(work: Any) -> AsyncIterator[None]:
    task = asyncio.ensure_future(work)
    try:
        yield
    finally:
        task.cancel()
        outcome = (await asyncio.gather(task, return_exceptions=True))[0]
        assert isinstance(outcome, asyncio.CancelledError), outcome


async def eventually(holds: Callable[[], Any], what: str) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not await holds():
        assert time.monotonic() < deadline_s, f"never happened: {what}"
        await asyncio.sleep(0.02)


async def _ensure_namespace(client: KubeClient, name: str) -> None:
    try:
        await client.create(NAMESPACES, {"metadata": {"name": name}})
    except ConflictError:
        return


def _mode_of(pod: dict[str, Any]) -> NodeMode:
    limits = pod["spec"]["containers"][0]["resources"]["limits"]
    return NodeMode.NVIDIA if "nvidia.com/gpu" in limits else NodeMode.GPULOOM


def _answer(document: object) -> web.Response:
    return web.Response(body=orjson.dumps(document), content_type="application/json")


async def listed_devices(machine: Machine) -> dict[str, list[str]]:
    async with grpc.aio.insecure_channel(f"unix://{machine.socket_path}") as channel:
        answer = await PodResourcesListerStub(channel).List(pb.ListPodResourcesRequest(), timeout=5)
    return {
        pod.name: [device for c in pod.containers for entry in c.devices for device in entry.device_ids]
        for pod in answer.pod_resources
    }


async def test_pods_of_both_modes_run_and_end_through_scheduler_and_extender() -> None:
    async with a_cluster() as cluster, kubelet(cluster):
        await cluster.offer_shares_as_discovery_does("g1")
        await cluster.create("train", {"nvidia.com/gpu": "2"}, duration="4s")
        await cluster.create("serve", {"gpuloom.dev/gpu-milli": "1000"}, duration="4s", outcome="failed")
        await cluster.create("plain", {"cpu": "1"})
        await cluster.create("wide", {"nvidia.com/gpu": "9"})

        await cluster.reaches("train", "Succeeded")
        await cluster.reaches("serve", "Failed")
        await cluster.reaches("plain", "Running")
        nodes = (await cluster.client.list(NODES)).items
        leases = (await cluster.client.list(LEASES)).items
        wide = await cluster.client.get(PODS, "wide", "team-a")

        async def has_event() -> bool:
            events = (await cluster.client.list(EVENTS)).items
            return any(event["reason"] == "FailedScheduling" for event in events)

        await eventually(has_event, "an event about the pod that fits nowhere")
        report = audit(cluster.directory)

    condition = next(c for c in wide["status"]["conditions"] if c["type"] == "PodScheduled")
    assert (report.clean, report.starts, report.ends) == (True, 2, 2)
    assert {node["metadata"]["name"] for node in nodes} == {"n1", "g1"}
    assert {lease["metadata"]["name"] for lease in leases} == {"n1", "g1"}
    assert condition["message"] == "0/2 nodes are available: 2 Insufficient nvidia.com/gpu."


async def test_podresources_comes_late_and_tells_the_cards_that_are_held() -> None:
    async with a_cluster() as cluster, kubelet(cluster):
        machine = cluster.machines["n1"]
        await cluster.create("train", {"nvidia.com/gpu": "3"})
        await cluster.reaches("train", "Running")
        held = {device.device.gpu_uuid for c in machine.containers() for device in c.devices}
        due_s = machine.hosted()[0].publishes_at_s
        shown_early: dict[str, list[str]] = {}

        async def is_shown() -> bool:
            listed = await listed_devices(machine)
            # Judged by the time after the answer, so a slow test machine can't make it wrong.
            if FastClock().now().timestamp() < due_s:
                shown_early.update(listed)
            return "train" in listed

        await eventually(is_shown, "PodResources shows the pod")
        shown = await listed_devices(machine)

    assert shown_early == {}
    assert len(held) == 3
    assert set(shown["train"]) == held


async def test_a_bind_that_is_late_is_asked_again_and_starts_the_pod_once() -> None:
    hold = asyncio.Event()
    async with a_cluster(hold=hold) as cluster, kubelet(cluster):
        await cluster.offer_shares_as_discovery_does("g1")
        await cluster.create("serve", {"gpuloom.dev/gpu-milli": "1000"})
        await cluster.reaches("serve", "Running")

        hold.set()

        async def late_bind_was_refused() -> bool:
            return cluster.extender.refused_binds > 0

        await eventually(late_bind_was_refused, "the late bind is refused")
        entries = read_journal(cluster.machines["g1"].journal_path).entries
        report = audit(cluster.directory)

    assert len(cluster.extender.bind_calls) > 1
    assert [entry.kind for entry in entries] == [EntryKind.START]
    assert report.clean


async def test_deletion_frees_the_card_after_the_container_is_gone() -> None:
    async with a_cluster() as cluster, kubelet(cluster):
        machine = cluster.machines["n1"]
        for name in ("graceful", "forced"):
            await cluster.create(name, {"nvidia.com/gpu": "1"})
            await cluster.reaches(name, "Running")

        await cluster.client.delete(PODS, "graceful", "team-a", DeleteOptions(grace_period_s=30))
        await cluster.client.delete(PODS, "forced", "team-a", DeleteOptions(grace_period_s=0))
        await cluster.reaches("graceful", "gone")

        async def is_empty() -> bool:
            return not machine.hosted()

        await eventually(is_empty, "nothing is left on the machine")
        entries = read_journal(machine.journal_path).entries
        report = audit(cluster.directory)

    assert sorted(entry.kind for entry in entries) == ["end", "end", "start", "start"]
    assert report.clean


async def test_a_deleted_node_object_is_made_again() -> None:
    async with a_cluster(scheduler=False) as cluster, kubelet(cluster):

        async def has_node() -> bool:
            return "n1" in {node["metadata"]["name"] for node in (await cluster.client.list(NODES)).items}

        await eventually(has_node, "the node registers")
        await cluster.client.delete(NODES, "n1")

        await eventually(has_node, "the node registers again")


async def test_a_kubelet_killed_with_sigkill_loses_nothing_and_starts_nothing_twice() -> None:
    async with a_cluster(scheduler=False) as cluster:
        machine = cluster.machines["n1"]
        first = await _kubelet_process(cluster)
        for name in ("stays", "vanishes"):
            await cluster.create(name, {"nvidia.com/gpu": "3"})
            await cluster.client.bind(PodBinding("team-a", name, "n1"))
            await cluster.reaches(name, "Running")
        before = {container.pod.name: container.devices for container in machine.containers()}

        first.send_signal(signal.SIGKILL)
        await first.wait()
        await cluster.client.delete(PODS, "vanishes", "team-a", DeleteOptions(grace_period_s=0))
        await cluster.create("comes", {"nvidia.com/gpu": "2"})
        await cluster.client.bind(PodBinding("team-a", "comes", "n1"))
        second = await _kubelet_process(cluster)
        await cluster.reaches("comes", "Running")

        async def vanished() -> bool:
            return any(entry.kind is EntryKind.END for entry in read_journal(machine.journal_path).entries)

        await eventually(vanished, "the container of the deleted pod is gone")
        after = {container.pod.name: container.devices for container in machine.containers()}
        entries = read_journal(machine.journal_path).entries
        report = audit(cluster.directory)
        second.terminate()
        exit_code = await second.wait()

    assert after.keys() == {"stays", "comes"}
    assert after["stays"] == before["stays"]
    assert sorted((entry.kind.value, entry.pod.name) for entry in entries) == [
        ("end", "vanishes"),
        ("start", "comes"),
        ("start", "stays"),
        ("start", "vanishes"),
    ]
    assert report.clean
    assert exit_code == 0


async def _kubelet_process(cluster: Cluster) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "gpuloom.sim.kubelet",
        "--api",
        cluster.api.url,
        "--machines",
        str(cluster.directory),
        "--max-publish-delay",
        "1s",
        stderr=asyncio.subprocess.DEVNULL,
    )
