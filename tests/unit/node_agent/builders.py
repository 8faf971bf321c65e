"""Small cards, readings and parts of a machine that say what a test tells them to."""

from dataclasses import dataclass, field, replace
from typing import Any

from gpuloom.errors import UnavailableError
from gpuloom.model.gpu import DeviceRef, Gpu, GpuHealth, GpuUsage
from gpuloom.model.node import Delivery, Holder, HolderSource, NodeMode, NodeState, PodRef
from gpuloom.model.topology import PcieLevel, Topology
from services.node_agent.ports import PodDevices
from services.node_agent.readings import DriverReading
from services.node_agent.state import Observation, first_state

PAIR = Topology(2, (PcieLevel.PIX,), (0,))


def a_gpu(uuid: str = "GPU-a", index: int = 0, **changes: Any) -> Gpu:
    return replace(Gpu(uuid, index, "T4", "turing", 15360, GpuHealth.HEALTHY), **changes)


def a_reading(*gpus: Gpu, utilization: float = 0.0, topology: Topology | None = PAIR) -> DriverReading:
    usage = tuple(GpuUsage(gpu.uuid, utilization_ratio=utilization) for gpu in gpus)
    return DriverReading(gpus, usage, topology)


def a_holder(name: str = "train", *uuids: str, source: HolderSource = HolderSource.RUNTIME) -> Holder:
    devices = tuple(DeviceRef(uuid) for uuid in uuids or ("GPU-a",))
    return Holder(PodRef("team-a", name, f"uid-{name}"), "main", devices, source)


def pod_devices(name: str = "train", *uuids: str) -> PodDevices:
    return PodDevices("team-a", name, "main", tuple(DeviceRef(uuid) for uuid in uuids))


def a_look(driver: DriverReading | None, **changes: Any) -> Observation:
    return replace(Observation("uid-n1", driver, "", (), ""), **changes)


def a_start(mode: NodeMode = NodeMode.NVIDIA) -> NodeState:
    return first_state("n1", mode, Delivery.DEVICE_PLUGIN if mode is NodeMode.NVIDIA else Delivery.NRI)


@dataclass
class FakeMachine:
    """Driver, kubelet, runtime and pod directory in one; a part with a problem does not answer."""

    reading: DriverReading = field(default_factory=lambda: a_reading(a_gpu()))
    driver_problem: str = ""
    kubelet_pods: tuple[PodDevices, ...] = ()
    kubelet_problem: str = ""
    runtime_holders: tuple[Holder, ...] = ()
    runtime_problem: str = ""
    unsynced: str = ""
    uids: dict[str, str] = field(default_factory=dict)

    async def read(self) -> DriverReading:
        _answer_or_not(self.driver_problem)
        return self.reading

    async def pod_devices(self) -> tuple[PodDevices, ...]:
        _answer_or_not(self.kubelet_problem)
        return self.kubelet_pods

    async def holders(self) -> tuple[Holder, ...]:
        _answer_or_not(self.runtime_problem)
        return self.runtime_holders

    def unsynced_reason(self) -> str:
        return self.unsynced

    def node_uid(self) -> str:
        return "" if self.unsynced else "uid-n1"

    def uid_of(self, namespace: str, name: str) -> str:
        return self.uids.get(name, "")


def _answer_or_not(problem: str) -> None:
    if problem:
        raise UnavailableError(problem)
