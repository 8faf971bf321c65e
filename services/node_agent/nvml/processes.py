"""Who computes on a GPU. Listing holds the driver's lock for long, so it is asked for rarely."""

from dataclasses import dataclass

from services.node_agent.nvml.binding import Handle, nvml, optional
from services.node_agent.nvml.inventory import MIB

_WHOLE_GPU = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class ListedProcess:
    """`instance` is the driver's number of the MIG instance it computes on, None for the whole GPU."""

    pid: int
    instance: int | None
    memory_mib: int | None
    sm_ratio: float | None


def read_processes(handle: Handle) -> tuple[ListedProcess, ...] | None:
    """Processes that compute, those behind an MPS server too; None where the driver can't list them."""
    listed = optional(nvml.nvmlDeviceGetComputeRunningProcesses_v3, handle)
    if listed is None:
        return None
    clients = optional(nvml.nvmlDeviceGetMPSComputeRunningProcesses_v3, handle) or []
    # Newer drivers show an MPS client in both lists; it is one process.
    found = {(int(p.pid), instance_number(p.gpuInstanceId)): p.usedGpuMemory for p in [*clients, *listed]}
    ratios = {sample.pid: sample.smUtil / 100 for sample in _samples(handle)} if found else {}
    return tuple(
        ListedProcess(pid, instance, None if memory is None else int(memory) // MIB, ratios.get(pid))
        for (pid, instance), memory in sorted(found.items(), key=lambda item: (item[0][0], item[0][1] or 0))
    )


def instance_number(said: int | None) -> int | None:
    return None if said is None or said == _WHOLE_GPU else int(said)


def _samples(handle: Handle) -> list[Handle]:
    return optional(nvml.nvmlDeviceGetProcessUtilization, handle, 0) or []
