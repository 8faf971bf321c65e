"""The agent's adapters: a kubelet on a real unix socket, a simulated machine."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from grpc import StatusCode, aio, method_handlers_generic_handler, unary_unary_rpc_method_handler
from hypothesis import given
from hypothesis import strategies as st

from gpuloom.codec.node import node_state_from_proto, node_state_to_proto
from gpuloom.errors import InvalidRequestError, UnavailableError
from gpuloom.kubelet import podresources_pb2 as pb
from gpuloom.kubelet.podresources_pb2_grpc import (
    PodResourcesListerServicer,
    add_PodResourcesListerServicer_to_server,
)
from gpuloom.model.allocation import AllocatedDevice
from gpuloom.model.gpu import DeviceRef, GpuHealth
from gpuloom.model.mig import MigPlacement
from gpuloom.model.node import HolderSource, NodeMode, PodRef
from gpuloom.model.wiring import NvLinkRemote
from gpuloom.runtime.clock import FakeClock, SystemClock
from gpuloom.sim.kubelet.host import Behaviour, Host
from gpuloom.sim.kubelet.podresources import PodResourcesServer
from gpuloom.sim.machines.machine import Faults, GpuFault, Machine
from services.node_agent.adapters.kubelet import PodResourcesKubelet, devices_by_pod
from services.node_agent.adapters.simulated import SimulatedDriver, SimulatedProcessTable, SimulatedRuntime
from services.node_agent.agent import _gpu_claims, open_machine
from services.node_agent.attribution.core.holders import Listing, kubelet_holders
from services.node_agent.core.claims import GpuClaims
from services.node_agent.nvml.core.device_ids import device_of
from services.node_agent.ports import PodDevices, ProcessOwner
from tests.strategies import hostile
from tests.unit.node_agent.builders import a_start
from tests.unit.sim.builders import a_machine, a_spec, hosted, share, whole


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
async def a_babbling_kubelet(socket: Path, answers: list[bytes]) -> AsyncIterator[None]:
    """A kubelet that answers with the bytes in `answers`, messages or not."""

    async def babble(_request: bytes, _context: Any) -> bytes:
        return answers[0]

    server = aio.server()
    handlers: Any = {"List": unary_unary_rpc_method_handler(babble)}
    server.add_generic_rpc_handlers([method_handlers_generic_handler("v1.PodResourcesLister", handlers)])
    server.add_insecure_port(f"unix://{socket}")
    await server.start()
    try:
        yield
    finally:
        await server.stop(0)


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


async def test_the_kubelet_tells_which_gpus_were_claimed_and_other_devices_of_claims_are_nobody_s(
    tmp_path: Path,
) -> None:
    machine = Machine.create(tmp_path / "n1", a_spec())
    first, second = machine.hardware.gpus[:2]
    pod = a_pod_with("train", **{"nvidia.com/gpu": [first.uuid]})
    for driver, device in (("dra.net", "eth1"), ("gpu.nvidia.com", "gpu-1"), ("gpu.nvidia.com", "gpu-99")):
        given_device = pb.ClaimResource(driver_name=driver, pool_name="n1", device_name=device)
        pod.containers[0].dynamic_resources.add(claim_name=device, claim_resources=[given_device])
    web = a_pod_with("web")
    web.containers[0].dynamic_resources.add(claim_resources=[pb.ClaimResource(driver_name="dra.net")])
    socket = machine.socket_path

    async with (
        a_kubelet(socket, Lister(pod, web)),
        PodResourcesKubelet(socket, _gpu_claims(machine)) as kubelet,
    ):
        (found,) = await kubelet.pod_devices()

    assert found.devices == (DeviceRef(first.uuid),)
    assert set(found.claimed) == {DeviceRef(second.uuid), DeviceRef("gpu.nvidia.com/n1/gpu-99")}


async def test_mig_devices_are_known_by_their_place_and_strangers_are_not_lost(tmp_path: Path) -> None:
    machine = Machine.create(tmp_path / "n1", a_spec(mig=True))
    gpu = machine.hardware.gpus[0]
    pod = a_pod_with("train", **{"nvidia.com/mig-1g.5gb": [gpu.mig_instances[1].uuid, "MIG-unknown"]})
    socket = machine.socket_path

    async with (
        a_kubelet(socket, Lister(pod)),
        PodResourcesKubelet(socket, _gpu_claims(machine)) as kubelet,
    ):
        (found,) = await kubelet.pod_devices()

    assert found.devices == (DeviceRef(gpu.uuid, MigPlacement(4, "1g.5gb")), DeviceRef("MIG-unknown"))


async def test_replicas_and_slices_are_the_devices_behind_them_each_once_and_are_counted(
    tmp_path: Path,
) -> None:
    machine = Machine.create(tmp_path / "n1", a_spec(mig=True))
    cut, whole_gpu = machine.hardware.gpus[:2]
    ids = [f"{whole_gpu.uuid}::3", f"{whole_gpu.uuid}::0", cut.mig_instances[0].uuid]
    pod = a_pod_with("train", **{"nvidia.com/gpu": ids})
    socket = machine.socket_path

    async with (
        a_kubelet(socket, Lister(pod)),
        PodResourcesKubelet(socket, _gpu_claims(machine)) as kubelet,
    ):
        (found,) = await kubelet.pod_devices()

    assert set(found.devices) == {DeviceRef(whole_gpu.uuid), DeviceRef(cut.uuid, MigPlacement(0, "3g.20gb"))}
    assert len(found.devices) == 2
    assert found.given == 3


async def test_whatever_order_the_kubelet_lists_devices_in_they_come_in_one(tmp_path: Path) -> None:
    socket = tmp_path / "kubelet.sock"
    answers: list[PodDevices] = []
    for ids in (["GPU-b", "GPU-a"], ["GPU-a", "GPU-b"]):
        async with (
            a_kubelet(socket, Lister(a_pod_with("train", **{"nvidia.com/gpu": ids}))),
            PodResourcesKubelet(socket) as kubelet,
        ):
            answers += await kubelet.pod_devices()

    assert answers[0] == answers[1]


@pytest.mark.parametrize(
    "pod",
    [
        a_pod_with("", **{"nvidia.com/gpu": ["GPU-a"]}),
        a_pod_with("x" * 254, **{"nvidia.com/gpu": ["GPU-a"]}),
        a_pod_with("train", **{"nvidia.com/gpu": [""]}),
        a_pod_with("train", **{"nvidia.com/gpu": [f"GPU-{number}" for number in range(9000)]}),
    ],
    ids=["no name", "a long name", "no id", "too many"],
)
async def test_an_answer_that_can_not_be_is_no_answer(tmp_path: Path, pod: pb.PodResources) -> None:
    socket = tmp_path / "kubelet.sock"

    async with a_kubelet(socket, Lister(pod)), PodResourcesKubelet(socket) as kubelet:
        with pytest.raises(UnavailableError, match="can't be"):
            await kubelet.pod_devices()


async def test_bytes_that_are_no_message_are_no_answer(tmp_path: Path) -> None:
    socket, answers = tmp_path / "kubelet.sock", [b""]

    async with a_babbling_kubelet(socket, answers), PodResourcesKubelet(socket) as kubelet:
        empty = await kubelet.pod_devices()
        for answers[0] in (b"\xff", b"\x0a\xff\xff\xff\xff\x0f", b"\x0a\x03\x0a\x01\xff"):
            with pytest.raises(UnavailableError):
                await kubelet.pod_devices()

    assert empty == ()


def gpu_answers() -> st.SearchStrategy[pb.ListPodResourcesResponse]:
    """Answers with any content, of which every resource is one of GPUs."""

    def of_gpus(answer: pb.ListPodResourcesResponse) -> pb.ListPodResourcesResponse:
        for pod in answer.pod_resources:
            for container in pod.containers:
                for given_devices in container.devices:
                    given_devices.resource_name = "nvidia.com/gpu"
                for claim in container.dynamic_resources:
                    for device in claim.claim_resources:
                        device.driver_name = "gpu.nvidia.com"
        return answer

    return hostile(pb.ListPodResourcesResponse).map(of_gpus)


@given(gpu_answers() | hostile(pb.ListPodResourcesResponse))
def test_whatever_a_kubelet_lists_readers_of_the_state_take_it_or_it_is_refused(
    answer: pb.ListPodResourcesResponse,
) -> None:
    try:
        entries = devices_by_pod(answer, GpuClaims(lambda device_id: device_of(device_id, {})))
    except UnavailableError:
        return
    state = replace(a_start(), holders=kubelet_holders(Listing(entries, {}, {}), ()))

    assert node_state_from_proto(node_state_to_proto(state)) == state


async def test_a_kubelet_that_is_not_there_is_unavailable(tmp_path: Path) -> None:
    async with PodResourcesKubelet(tmp_path / "nobody.sock") as kubelet:
        with pytest.raises(UnavailableError, match=r"the kubelet does not answer \(UNAVAILABLE\)"):
            await kubelet.pod_devices()


async def test_a_kubelet_that_refuses_is_unavailable(tmp_path: Path) -> None:
    socket = tmp_path / "kubelet.sock"

    async with a_kubelet(socket, Lister(refuse=True)), PodResourcesKubelet(socket) as kubelet:
        with pytest.raises(UnavailableError, match="RESOURCE_EXHAUSTED"):
            await kubelet.pod_devices()


async def test_a_kubelet_that_goes_and_comes_back_is_asked_again(tmp_path: Path) -> None:
    socket = tmp_path / "kubelet.sock"
    lister = Lister(a_pod_with("train", **{"nvidia.com/gpu": ["GPU-a"]}))

    async with PodResourcesKubelet(socket) as kubelet:
        async with a_kubelet(socket, lister):
            before = await answer_within(kubelet, 5.0)
        with pytest.raises(UnavailableError):
            await kubelet.pod_devices()
        async with a_kubelet(socket, lister):
            after = await answer_within(kubelet, 5.0)

    assert before == after


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

    async with PodResourcesKubelet(machine.socket_path, _gpu_claims(machine)) as kubelet:
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


async def test_a_simulated_machine_tells_its_processes_and_whose_they_are(tmp_path: Path) -> None:
    machine = a_machine(tmp_path, mode=NodeMode.GPULOOM)
    first, second = (gpu.uuid for gpu in machine.hardware.gpus[:2])
    machine.write_hosted([hosted("one", share(first, 500, 20480)), hosted("two", share(first, 500, 20480))])
    machine.write_faults(Faults({second: GpuFault(GpuHealth.LOST, "gone")}))
    driver = SimulatedDriver(machine, FakeClock())

    reading = await driver.read()
    processes, unanswered = await driver.list_processes()
    owners = await SimulatedProcessTable(machine).owners({process.pid for process in processes})

    assert reading.processes[first] == processes
    assert second not in reading.processes
    assert unanswered == {second: "gone"}
    assert sum(process.sm_ratio or 0 for process in processes) == pytest.approx(
        reading.samples[first].utilization_ratio, abs=0.002
    )
    assert set(owners.values()) == {
        ProcessOwner("python3", "uid-one", container="main"),
        ProcessOwner("python3", "uid-two", container="main"),
    }


async def test_a_simulated_machine_is_wired_as_its_topology_says(tmp_path: Path) -> None:
    reading = await SimulatedDriver(a_machine(tmp_path), FakeClock()).read()

    assert [wiring.index for wiring in reading.wiring] == list(range(8))
    assert {link.remote for wiring in reading.wiring for link in wiring.links} == {NvLinkRemote.SWITCH}


async def test_a_simulated_gpu_counts_no_errors_but_the_xid_of_its_fault(tmp_path: Path) -> None:
    machine = a_machine(tmp_path)
    first, second, *_ = (gpu.uuid for gpu in machine.hardware.gpus)
    machine.write_faults(Faults({second: GpuFault(GpuHealth.UNHEALTHY, "XID 79, fell off the bus")}))

    reading = await SimulatedDriver(machine, FakeClock()).read()

    sample = reading.samples[first]
    assert (sample.ecc_uncorrected_volatile, sample.row_remap_failed) == (0, False)
    assert (sample.counters.power_violation_ns, sample.counters.nvlink_crc_data_errors) == (0, 0)
    # Cards that remap rows retire no pages.
    assert sample.counters.retired_pages_corrected is None
    assert reading.xids_heard == {gpu.uuid for gpu in machine.hardware.gpus}
    assert reading.last_xids == {DeviceRef(second): 79}


async def test_simulated_slices_have_memory_of_their_own(tmp_path: Path) -> None:
    machine = Machine.create(tmp_path / "n1", a_spec(mig=True))
    gpu = machine.hardware.gpus[0]
    device = DeviceRef(gpu.uuid, gpu.mig_instances[0].placement)
    machine.write_hosted([hosted("train", AllocatedDevice(device, 500, 20000))])

    reading = await SimulatedDriver(machine, FakeClock()).read()

    used = [instance.memory_used_mib for instance in reading.instances.values()]
    assert used == [10000, 0, 0]
    assert reading.processes[gpu.uuid][0].sm_ratio is None


async def test_energy_is_counted_from_power_and_time(tmp_path: Path) -> None:
    machine, clock = a_machine(tmp_path), FakeClock()
    driver = SimulatedDriver(machine, clock)
    uuid = machine.hardware.gpus[0].uuid

    await clock.advance(10.0)
    first = (await driver.read()).samples[uuid]
    await clock.advance(10.0)
    second = (await driver.read()).samples[uuid]

    assert first.power_w is not None
    assert first.energy_j == pytest.approx(first.power_w * 10)
    assert second.energy_j == pytest.approx(first.power_w * 20)


async def test_cards_go_on_counting_energy_while_the_agent_is_away(tmp_path: Path) -> None:
    machine, clock = a_machine(tmp_path), FakeClock()
    before = SimulatedDriver(machine, clock)
    await clock.advance(10.0)
    await before.read()

    await clock.advance(30.0)
    sample = (await SimulatedDriver(machine, clock).read()).samples[machine.hardware.gpus[0].uuid]

    assert sample.power_w is not None
    assert sample.energy_j == pytest.approx(sample.power_w * 40)


async def test_a_machine_whose_files_are_malformed_is_unavailable(tmp_path: Path) -> None:
    machine = a_machine(tmp_path)
    (machine.directory / "containers.json").write_text("{")

    with pytest.raises(UnavailableError, match="malformed"):
        await SimulatedDriver(machine, FakeClock()).read()
    with pytest.raises(UnavailableError, match="malformed"):
        await SimulatedRuntime(machine).holders()
    with pytest.raises(UnavailableError, match="malformed"):
        await SimulatedProcessTable(machine).owners([1])


def test_an_agent_refuses_the_machine_of_another_node(tmp_path: Path) -> None:
    a_machine(tmp_path, "n1")

    with pytest.raises(InvalidRequestError, match="is n1, not n2"):
        open_machine(tmp_path / "n1", "n2")


async def answer_within(kubelet: PodResourcesKubelet, timeout_s: float) -> tuple[PodDevices, ...]:
    async with asyncio.timeout(timeout_s):
        for _ in range(1000):
            try:
                return await kubelet.pod_devices()
            except UnavailableError:
                await asyncio.sleep(0.02)
    raise AssertionError("unreachable")
