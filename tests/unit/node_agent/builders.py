"""Small cards, readings and parts of a machine that say what a test tells them to."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from gpuloom.errors import UnavailableError
from gpuloom.model.gpu import DeviceRef, Gpu, GpuHealth, GpuUsage
from gpuloom.model.mig import MigPlacement
from gpuloom.model.node import Delivery, Holder, HolderSource, NodeMode, NodeState, PodPresence, PodRef
from gpuloom.model.topology import PcieLevel, Topology
from services.node_agent.core.readings import DriverReading, Process
from services.node_agent.core.state import Observation, first_state
from services.node_agent.ports import NamedPod, PodDevices, PodNames, ProcessOwner

PAIR = Topology(2, (PcieLevel.PIX,), (0,))


def a_gpu(uuid: str = "GPU-a", index: int = 0, **changes: Any) -> Gpu:
    return replace(Gpu(uuid, index, "T4", "turing", 15360, GpuHealth.HEALTHY), **changes)


def a_reading(*gpus: Gpu, utilization: float = 0.0, topology: Topology | None = PAIR) -> DriverReading:
    usage = tuple(GpuUsage(gpu.uuid, utilization_ratio=utilization) for gpu in gpus)
    return DriverReading(gpus, usage, topology)


def a_process(pid: int, uuid: str = "GPU-a", mig: MigPlacement | None = None) -> Process:
    return Process(pid, DeviceRef(uuid, mig), 512, 0.25)


def processes_on(reading: DriverReading, *processes: Process) -> DriverReading:
    """The same reading with these processes; every GPU of it tells its own."""
    lists = {
        gpu.uuid: tuple(each for each in processes if each.device.gpu_uuid == gpu.uuid)
        for gpu in reading.gpus
    }
    return replace(reading, processes=lists)


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
    """Driver, kubelet, runtime, host and pod directory in one; a part with a problem does not answer.

    `uids` are those of the pods of namespace team-a that have not ended, by name, `over` those of pods that
    have; `gone` is what is still known of pods by UID. `containers_run` are names of pods that surely run.
    `present` are UIDs of pods that have control groups beside those that run.
    """

    reading: DriverReading = field(default_factory=lambda: a_reading(a_gpu()))
    driver_problem: str = ""
    kubelet_pods: tuple[PodDevices, ...] = ()
    kubelet_problem: str = ""
    runtime_holders: tuple[Holder, ...] = ()
    runtime_problem: str = ""
    unsynced: str = ""
    uids: dict[str, str] = field(default_factory=dict)
    over: dict[str, str] = field(default_factory=dict)
    gone: dict[str, PodRef] = field(default_factory=dict)
    running: dict[int, ProcessOwner] = field(default_factory=dict)
    host_problem: str = ""
    unanswered: dict[str, str] = field(default_factory=dict)
    containers_run: set[str] = field(default_factory=set)
    present: set[str] = field(default_factory=set)
    groups_problem: str = ""
    uptime_ms: int = 0

    async def read(self) -> DriverReading:
        _answer_or_not(self.driver_problem)
        return self.reading

    async def list_processes(self) -> tuple[tuple[Process, ...], dict[str, str]]:
        _answer_or_not(self.driver_problem)
        return tuple(each for found in self.reading.processes.values() for each in found), self.unanswered

    async def owners(self, pids: Iterable[int]) -> Mapping[int, ProcessOwner]:
        _answer_or_not(self.host_problem)
        return {pid: self.running[pid] for pid in pids if pid in self.running}

    async def pod_devices(self) -> tuple[PodDevices, ...]:
        _answer_or_not(self.kubelet_problem)
        return self.kubelet_pods

    async def holders(self) -> tuple[Holder, ...]:
        _answer_or_not(self.runtime_problem)
        return self.runtime_holders

    async def presence(self) -> PodPresence:
        _answer_or_not(self.groups_problem)
        running = {holder.pod.uid for holder in self.runtime_holders}
        running |= {owner.pod_uid for owner in self.running.values()}
        self.uptime_ms += 1
        uids = sorted((running | self.present) - {""})
        return PodPresence(tuple(uids), boot_id="boot-1", listed_at_ms=self.uptime_ms)

    def unsynced_reason(self) -> str:
        return self.unsynced

    def node_uid(self) -> str:
        return "" if self.unsynced else "uid-n1"

    def names(self) -> PodNames:
        alive = {
            ("team-a", name): NamedPod(uid, runs=name in self.containers_run)
            for name, uid in self.uids.items()
        }
        return alive | {("team-a", name): NamedPod(uid, over=True) for name, uid in self.over.items()}

    def pod_of(self, uid: str) -> PodRef | None:
        named = [*self.uids.items(), *self.over.items()]
        found = [PodRef("team-a", name, known) for name, known in named if known == uid]
        return found[0] if found else self.gone.get(uid)

    def container_of(self, uid: str, container_id: str) -> str:
        return "main" if self.pod_of(uid) and container_id == "id-main" else ""

    def is_alive(self, uid: str) -> bool:
        return uid in self.uids.values()


def _answer_or_not(problem: str) -> None:
    if problem:
        raise UnavailableError(problem)
