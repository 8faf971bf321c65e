"""Which devices a pod's containers get on this machine. Pure.

On `nvidia` machines: at random among the free healthy ones, as a device plugin without preference does.
On `gpuloom` machines: exactly what the allocation says. Nothing is checked against other pods there, on
purpose: the audit finds a double booking only if the kubelet does not hide it.
Resource claims are not resolved: an annotation says what DRA drivers gave to a pod, on machines of any mode.
"""

import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from gpuloom.codec.allocation import decode_allocation
from gpuloom.errors import InvalidRequestError
from gpuloom.kube.objects import JsonObject, metadata_of
from gpuloom.kube.parse import quantity_value
from gpuloom.model.allocation import AllocatedDevice
from gpuloom.model.gpu import MILLI_PER_GPU, DeviceRef, Gpu
from gpuloom.model.node import NodeMode
from gpuloom.names import (
    ANNOTATION_ALLOCATION,
    RESOURCE_GPU_MEMORY_MIB,
    RESOURCE_GPU_MILLI,
    RESOURCE_NVIDIA_GPU,
    RESOURCE_NVIDIA_MIG_PREFIX,
)
from gpuloom.sim.machines.hardware import Hardware
from gpuloom.sim.machines.load import Faults
from gpuloom.sim.machines.machine import HostedClaim, HostedContainer, HostedPod

ANNOTATION_CLAIMS = "sim.gpuloom.dev/claims"
GPU_DRIVER = "gpu.nvidia.com"


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a pod is not started. `reason` is the pod's status.reason, `message` is for people."""

    reason: str
    message: str
    resource: str = ""
    requested: int = 0


@dataclass(frozen=True, slots=True)
class MachineView:
    """What the choice depends on besides the pod."""

    hardware: Hardware
    faults: Faults
    hosted: tuple[HostedPod, ...]

    def free_devices(self, resource: str) -> list[AllocatedDevice]:
        """As the device plugin sees it: of what a DRA driver gave it knows nothing."""
        held = {device.device for pod in self.hosted if not pod.exited for device in pod.given}
        return [
            device
            for device in self.hardware.plugin_devices().get(resource, ())
            if device.device not in held and device.device.gpu_uuid not in self.faults.gpus
        ]


def admit(pod: JsonObject, machine: MachineView, rng: random.Random) -> tuple[HostedContainer, ...] | Refusal:
    try:
        if machine.hardware.spec.mode is NodeMode.GPULOOM:
            containers = _existing(_from_allocation(pod), machine.hardware)
        else:
            containers = _from_plugin(pod, machine, rng)
        if isinstance(containers, Refusal) or not containers:
            return containers
        first, *others = containers
        return replace(first, claims=_claims(pod, machine.hardware)), *others
    except ValueError as error:
        return Refusal("InvalidPodSpec", str(error))


def _claims(pod: JsonObject, hardware: Hardware) -> tuple[HostedClaim, ...]:
    """What DRA drivers gave to the pod's first container: driver/device, with commas between."""
    text = str((metadata_of(pod).get("annotations") or {}).get(ANNOTATION_CLAIMS, ""))
    named = [entry.strip().partition("/") for entry in text.split(",") if entry.strip()]
    gpus = {f"gpu-{gpu.index}": gpu for gpu in hardware.gpus}
    return tuple(
        HostedClaim(driver, device, _held_by_claim(gpus.get(device) if driver == GPU_DRIVER else None))
        for driver, _, device in named
    )


def _held_by_claim(gpu: Gpu | None) -> AllocatedDevice | None:
    return None if gpu is None else AllocatedDevice(DeviceRef(gpu.uuid), MILLI_PER_GPU, gpu.memory_mib)


def _from_plugin(
    pod: JsonObject, machine: MachineView, rng: random.Random
) -> tuple[HostedContainer, ...] | Refusal:
    if gpuloom_resource := _gpuloom_resource(pod):
        return Refusal(
            f"OutOf{gpuloom_resource}",
            f"Node didn't have enough resource: {gpuloom_resource}",
            gpuloom_resource,
        )
    wanted = _effective_counts(pod)
    taken: dict[str, list[AllocatedDevice]] = {}
    for resource, count in wanted.items():
        free = machine.free_devices(resource)
        if count > len(free):
            return Refusal(
                "UnexpectedAdmissionError",
                f"Allocate failed due to requested number of devices unavailable for {resource}. "
                f"Requested: {count}, Available: {len(free)}",
                resource,
                count,
            )
        taken[resource] = rng.sample(free, count)
    return _hand_out(pod, taken)


def _existing(
    containers: tuple[HostedContainer, ...] | Refusal, hardware: Hardware
) -> tuple[HostedContainer, ...] | Refusal:
    """A slice that is not there now can't be given."""
    for container in () if isinstance(containers, Refusal) else containers:
        for held in container.devices:
            if not hardware.has(held.device):
                text = f"the GPU has no MIG instance {held.device.mig}"
                return Refusal("CreateContainerError", text, RESOURCE_GPU_MILLI)
    return containers


def _from_allocation(pod: JsonObject) -> tuple[HostedContainer, ...] | Refusal:
    names = [str(container.get("name")) for container in _containers(pod)]
    nvidia = _effective_counts(pod)
    if nvidia:
        resource, count = next(iter(nvidia.items()))
        return Refusal(
            "UnexpectedAdmissionError", f"no device plugin offers {resource} here", resource, count
        )
    resource = _gpuloom_resource(pod)
    if not resource:
        return tuple(HostedContainer(name) for name in names)
    text = (metadata_of(pod).get("annotations") or {}).get(ANNOTATION_ALLOCATION)
    if not text:
        return Refusal("CreateContainerError", f"annotation {ANNOTATION_ALLOCATION} is missing", resource)
    try:
        allocation = decode_allocation(text)
    except InvalidRequestError as error:
        return Refusal("CreateContainerError", f"annotation {ANNOTATION_ALLOCATION}: {error}", resource)
    if allocation.container not in names:
        message = (
            f"annotation {ANNOTATION_ALLOCATION} names container {allocation.container!r}, not in the pod"
        )
        return Refusal("CreateContainerError", message, resource)
    return tuple(
        HostedContainer(name, allocation.devices if name == allocation.container else ()) for name in names
    )


def _hand_out(pod: JsonObject, taken: Mapping[str, list[AllocatedDevice]]) -> tuple[HostedContainer, ...]:
    """Each container takes its count; what only init containers asked for stays with the first container."""
    hosted = []
    for container in _containers(pod):
        devices: list[AllocatedDevice] = []
        for resource, count in _counts(container).items():
            devices += taken[resource][:count]
            del taken[resource][:count]
        hosted.append(HostedContainer(str(container.get("name")), tuple(devices)))
    rest = tuple(device for devices in taken.values() for device in devices)
    if rest and hosted:
        hosted[0] = HostedContainer(hosted[0].name, hosted[0].devices + rest)
    return tuple(hosted)


def _effective_counts(pod: JsonObject) -> dict[str, int]:
    """Device-plugin resources of the pod: containers add up, init containers reuse what comes after them."""
    total: dict[str, int] = {}
    for container in _containers(pod):
        for resource, count in _counts(container).items():
            total[resource] = total.get(resource, 0) + count
    for container in _list(pod, "initContainers"):
        if container.get("restartPolicy") != "Always":
            for resource, count in _counts(container).items():
                total[resource] = max(total.get(resource, 0), count)
    return total


def _counts(container: JsonObject) -> dict[str, int]:
    return {
        name: quantity_value(amount)
        for name, amount in _resources(container).items()
        if name == RESOURCE_NVIDIA_GPU or name.startswith(RESOURCE_NVIDIA_MIG_PREFIX)
        if quantity_value(amount) > 0
    }


def _gpuloom_resource(pod: JsonObject) -> str:
    """The first GPULoom resource the pod asks for, or nothing."""
    for container in (*_containers(pod), *_list(pod, "initContainers")):
        for name in (RESOURCE_GPU_MILLI, RESOURCE_GPU_MEMORY_MIB):
            if quantity_value(_resources(container).get(name, 0)) > 0:
                return name
    return ""


def _containers(pod: JsonObject) -> list[JsonObject]:
    """Containers that run for the pod's life: sidecars are init containers that never end."""
    sidecars = [entry for entry in _list(pod, "initContainers") if entry.get("restartPolicy") == "Always"]
    return sidecars + _list(pod, "containers")


def _list(pod: JsonObject, field: str) -> list[JsonObject]:
    return list((pod.get("spec") or {}).get(field) or ())


def _resources(container: JsonObject) -> Mapping[str, str]:
    resources = container.get("resources") or {}
    return {**(resources.get("requests") or {}), **(resources.get("limits") or {})}


def unhealthy_devices(hardware: Hardware, faults: Faults, resource: str) -> Iterable[DeviceRef]:
    """Devices that the plugin takes out of the node's allocatable count."""
    return (
        device.device
        for device in hardware.plugin_devices().get(resource, ())
        if device.device.gpu_uuid in faults.gpus
    )
