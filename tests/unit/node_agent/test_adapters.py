"""The agent's adapters: a kubelet on a real unix socket, an informer's pods, a simulated machine."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from grpc import StatusCode, aio

from gpuloom.errors import InvalidRequestError, UnavailableError
from gpuloom.kube.informer import Informer
from gpuloom.kube.listing import EventType, Listing, Selection, WatchEvent
from gpuloom.kube.resources import NODES, PODS, Resource
from gpuloom.kubelet import podresources_pb2 as pb
from gpuloom.kubelet.podresources_pb2_grpc import (
    PodResourcesListerServicer,
    add_PodResourcesListerServicer_to_server,
)
from gpuloom.model.gpu import DeviceRef, GpuHealth
from gpuloom.model.mig import MigPlacement
from gpuloom.model.node import HolderSource, NodeMode, PodRef
from gpuloom.runtime.clock import FakeClock, SystemClock, settle
from gpuloom.sim.kubelet.host import Behaviour, Host
from gpuloom.sim.kubelet.podresources import PodResourcesServer
from gpuloom.sim.machine import Machine
from services.node_agent.adapters.kubelet import PodResourcesKubelet
from services.node_agent.adapters.kubernetes import MAX_SILENCE_S, InformedPods
from services.node_agent.adapters.simulated import SimulatedDriver, SimulatedRuntime
from services.node_agent.agent import _device_ids, open_machine
from services.node_agent.ports import PodDevices
from tests.unit.sim.builders import a_machine, a_spec, hosted, whole


class Lister(PodResourcesListerServicer):
    def __init__(self, *pods: pb.PodResources, refuse: bool = False) -> None:
        self._pods = pods
        self._refuse = refuse

    async def List(self, request: Any, context: Any) -> pb.ListPodResourcesResponse:
        if self._refuse:
            await context.abort(StatusCode.RESOURCE_EXHAUSTED, "asked too often")
        return pb.ListPodResourcesResponse(pod_resources=self._pods)

    async def Get(self, request: Any, context: Any) -> pb.GetPodResourcesResponse:
        raise AssertionError("the agent lists")

    async def GetAllocatableResources(self, request: Any, context: Any) -> pb.AllocatableResourcesResponse:
        raise AssertionError("the agent lists")


@asynccontextmanager
async def a_kubelet(socket: Path, lister: Lister) -> AsyncIterator[None]:
    server = aio.server()
    add_PodResourcesListerServicer_to_server(lister, server)
    server.add_insecure_port(f"unix://{socket}")
    await server.start()
    try:
        yield
    finally:
        await server.stop(0)


def a_pod_with(name: str, **devices: Sequence[str]) -> pb.PodResources:
    given = [pb.ContainerDevices(resource_name=name, device_ids=ids) for name, ids in devices.items()]
    main = pb.ContainerResources(name="main", devices=given)
    return pb.PodResources(
        namespace="team-a", name=name, containers=[main, pb.ContainerResources(name="side")]
    )


async def test_the_kubelet_tells_which_gpus_a_container_was_given(tmp_path: Path) -> None:
    socket = tmp_path / "kubelet.sock"
    pod = a_pod_with("train", **{"nvidia.com/gpu": ["GPU-a", "GPU-b"], "vendor.example/nic": ["nic-0"]})

    async with a_kubelet(socket, Lister(pod, a_pod_with("web"))), PodResourcesKubelet(socket) as kubelet:
        devices = await kubelet.pod_devices()

    assert devices == (PodDevices("team-a", "train", "main", (DeviceRef("GPU-a"), DeviceRef("GPU-b"))),)


async def test_mig_devices_are_known_by_their_place_and_strangers_are_not_lost(tmp_path: Path) -> None:
    machine = Machine.create(tmp_path / "n1", a_spec(mig=True))
    gpu = machine.hardware.gpus[0]
    pod = a_pod_with("train", **{"nvidia.com/mig-1g.5gb": [gpu.mig_instances[1].uuid, "MIG-unknown"]})
    socket = machine.socket_path

    async with (
        a_kubelet(socket, Lister(pod)),
        PodResourcesKubelet(socket, _device_ids(machine)) as kubelet,
    ):
        (found,) = await kubelet.pod_devices()

    assert found.devices == (DeviceRef(gpu.uuid, MigPlacement(4, "1g.5gb")), DeviceRef("MIG-unknown"))


async def test_a_kubelet_that_is_not_there_is_unavailable(tmp_path: Path) -> None:
    async with PodResourcesKubelet(tmp_path / "nobody.sock") as kubelet:
        with pytest.raises(UnavailableError, match=r"the kubelet does not answer \(UNAVAILABLE\)"):
            await kubelet.pod_devices()


async def test_a_kubelet_that_refuses_is_unavailable(tmp_path: Path) -> None:
    socket = tmp_path / "kubelet.sock"

    async with a_kubelet(socket, Lister(refuse=True)), PodResourcesKubelet(socket) as kubelet:
        with pytest.raises(UnavailableError, match="RESOURCE_EXHAUSTED"):
            await kubelet.pod_devices()


async def test_a_kubelet_that_was_restarted_answers_again_soon(tmp_path: Path) -> None:
    socket = tmp_path / "kubelet.sock"
    lister = Lister(a_pod_with("train", **{"nvidia.com/gpu": ["GPU-a"]}))

    async with PodResourcesKubelet(socket) as kubelet:
        for _ in range(3):
            with pytest.raises(UnavailableError):
                await kubelet.pod_devices()
        async with a_kubelet(socket, lister):
            found = await answer_within(kubelet, 5.0)

    assert [entry.name for entry in found] == ["train"]


async def test_the_simulated_kubelet_speaks_the_same_api(tmp_path: Path) -> None:
    machine = a_machine(tmp_path)
    uuid = machine.hardware.gpus[3].uuid
    machine.write_hosted([hosted("train", whole(uuid))])
    host = Host(machine, Behaviour(), SystemClock())
    server = PodResourcesServer(host)
    await server.start()

    async with PodResourcesKubelet(machine.socket_path, _device_ids(machine)) as kubelet:
        devices = await kubelet.pod_devices()
    await server.stop()
    host.close()

    assert devices == (PodDevices("team-a", "train", "main", (DeviceRef(uuid),)),)


async def test_a_simulated_machine_is_driver_and_runtime(tmp_path: Path) -> None:
    machine = a_machine(tmp_path, mode=NodeMode.GPULOOM)
    uuid = machine.hardware.gpus[0].uuid
    machine.write_hosted([hosted("train", whole(uuid))])

    reading = await SimulatedDriver(machine, FakeClock()).read()
    (holder,) = await SimulatedRuntime(machine).holders()

    assert [gpu.health for gpu in reading.gpus] == [GpuHealth.HEALTHY] * 8
    assert reading.topology == machine.hardware.topology
    assert (holder.pod, holder.source) == (PodRef("team-a", "train", "uid-train"), HolderSource.RUNTIME)
    assert holder.devices == (DeviceRef(uuid),)


async def test_a_machine_whose_files_are_malformed_is_unavailable(tmp_path: Path) -> None:
    machine = a_machine(tmp_path)
    (machine.directory / "containers.json").write_text("{")

    with pytest.raises(UnavailableError, match="malformed"):
        await SimulatedDriver(machine, FakeClock()).read()
    with pytest.raises(UnavailableError, match="malformed"):
        await SimulatedRuntime(machine).holders()


def test_an_agent_refuses_the_machine_of_another_node(tmp_path: Path) -> None:
    a_machine(tmp_path, "n1")

    with pytest.raises(InvalidRequestError, match="is n1, not n2"):
        open_machine(tmp_path / "n1", "n2")


class OneList:
    """An API that lists what there is and then says nothing more, or never answers at all."""

    def __init__(self, *objects: dict[str, Any], answers: bool = True) -> None:
        self._objects = objects
        self._answers = answers

    async def list(self, resource: Resource, selection: Selection) -> Listing:
        if not self._answers:
            raise UnavailableError("no connection")
        return Listing(self._objects, "1")

    async def watch(
        self, resource: Resource, resource_version: str, selection: Selection, **times: float
    ) -> AsyncIterator[WatchEvent]:
        await asyncio.Event().wait()
        yield WatchEvent(EventType.BOOKMARK, {})


def a_pod(name: str = "train", node: str | None = "n1", phase: str = "Running") -> dict[str, Any]:
    return {
        "metadata": {"namespace": "team-a", "name": name, "uid": f"uid-{name}", "resourceVersion": "1"},
        "spec": {} if node is None else {"nodeName": node},
        "status": {"phase": phase},
    }


A_NODE = {"metadata": {"name": "n1", "uid": "uid-n1", "resourceVersion": "1"}}


@asynccontextmanager
async def a_directory(nodes: OneList, pods: OneList, clock: FakeClock) -> AsyncIterator[InformedPods]:
    informers = Informer(nodes, NODES, clock), Informer(pods, PODS, clock)  # type: ignore[arg-type]
    tasks = [asyncio.create_task(informer.run()) for informer in informers]
    await settle()
    try:
        yield InformedPods("n1", *informers)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_running_pod_of_this_node_is_identified() -> None:
    async with a_directory(OneList(A_NODE), OneList(a_pod()), FakeClock()) as directory:
        assert directory.unsynced_reason() == ""
        assert directory.node_uid() == "uid-n1"
        assert directory.uid_of("team-a", "train") == "uid-train"


@pytest.mark.parametrize(
    "pod",
    [
        a_pod(phase="Succeeded"),
        a_pod(phase="Failed"),
        a_pod(node="n2"),
        a_pod(node=None),
        a_pod("other"),
    ],
)
async def test_a_pod_that_ended_or_is_elsewhere_is_not_identified(pod: dict[str, Any]) -> None:
    async with a_directory(OneList(A_NODE), OneList(pod), FakeClock()) as directory:
        assert directory.uid_of("team-a", "train") == ""


async def test_nobody_is_known_before_nodes_and_pods_are_listed() -> None:
    silent, speaking = OneList(answers=False), OneList(A_NODE)
    for nodes, pods in ((silent, OneList(a_pod())), (speaking, silent)):
        async with a_directory(nodes, pods, FakeClock()) as directory:
            assert directory.unsynced_reason() == "pods are not listed yet"
    async with a_directory(silent, silent, FakeClock()) as directory:
        assert directory.node_uid() == ""


async def test_an_api_that_fell_silent_makes_names_worthless() -> None:
    clock = FakeClock()
    async with a_directory(OneList(A_NODE), OneList(a_pod()), clock) as directory:
        await clock.advance(MAX_SILENCE_S)
        in_time = directory.unsynced_reason()
        await clock.advance(1.0)

        assert (in_time, directory.unsynced_reason()) == ("", "the Kubernetes API is silent")


async def answer_within(kubelet: PodResourcesKubelet, timeout_s: float) -> tuple[PodDevices, ...]:
    async with asyncio.timeout(timeout_s):
        for _ in range(1000):
            try:
                return await kubelet.pod_devices()
            except UnavailableError:
                await asyncio.sleep(0.02)
    raise AssertionError("unreachable")
