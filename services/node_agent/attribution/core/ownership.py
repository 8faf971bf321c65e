"""Joins processes with what the host and Kubernetes say of them. Pure."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from gpuloom.model.gpu import DeviceRef
from gpuloom.model.node import PodRef
from gpuloom.model.process import GpuProcess
from services.node_agent.core.readings import Process
from services.node_agent.ports import PodDirectory, ProcessOwner

MPS_NAME = "nvidia-cuda-mps"
"""What the kernel keeps (15 characters) of nvidia-cuda-mps-server, the process through which others compute.

A process may call itself so. That hides it only if it computes on a card that it was not given, for which it
must be privileged, and then nothing on its node is hidden from it anyway.
"""


DeviceOrder = tuple[str, int, str]


@dataclass(frozen=True, slots=True)
class OwnedProcess:
    """A process with the pod that its control group names, known in Kubernetes or not.

    `pod` None: it is in no pod. `runs` False: it has ended, or the host's processes can't be seen.
    """

    process: GpuProcess
    pod: PodRef | None = None
    cgroup_uid: str = ""
    runs: bool = False
    infrastructure: bool = False


def own(
    processes: Iterable[Process], owners: Mapping[int, ProcessOwner], pods: PodDirectory
) -> tuple[OwnedProcess, ...]:
    """In the order of GPU, device and number."""
    owned = [_owned(process, owners.get(process.pid), pods) for process in processes]
    return tuple(sorted(owned, key=_order))


def device_order(device: DeviceRef) -> DeviceOrder:
    """A GPU before its instances."""
    if device.mig is None:
        return device.gpu_uuid, -1, ""
    return device.gpu_uuid, device.mig.start, device.mig.profile


def _owned(process: Process, owner: ProcessOwner | None, pods: PodDirectory) -> OwnedProcess:
    if owner is None:
        return OwnedProcess(_gpu_process(process, "", None, ""))
    if not owner.pod_uid:
        shown = _gpu_process(process, owner.name, None, "")
        return OwnedProcess(shown, runs=True, infrastructure=_is_mps(owner, lambda _uid: True))
    known = pods.pod_of(owner.pod_uid)
    container = owner.container or pods.container_of(owner.pod_uid, owner.container_id)
    return OwnedProcess(
        process=_gpu_process(process, owner.name, known, container),
        pod=known or PodRef("", "", owner.pod_uid),
        cgroup_uid=owner.pod_uid,
        runs=True,
        infrastructure=_is_mps(owner, pods.is_alive),
    )


def _is_mps(owner: ProcessOwner, is_alive: Callable[[str], bool]) -> bool:
    """The server of a pod that ended serves nobody any more, but still has the card."""
    return owner.name == MPS_NAME and is_alive(owner.pod_uid)


def _gpu_process(process: Process, name: str, pod: PodRef | None, container: str) -> GpuProcess:
    return GpuProcess(
        pid=process.pid,
        name=name,
        device=process.device,
        memory_mib=process.memory_mib,
        sm_ratio=process.sm_ratio,
        pod=pod,
        container=container,
    )


def _order(owned: OwnedProcess) -> tuple[DeviceOrder, int]:
    return device_order(owned.process.device), owned.process.pid
