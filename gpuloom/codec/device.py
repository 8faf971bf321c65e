"""GPUs, links and their holders: proto <-> model. Decoding is the only validation of these messages.

What names or counts something is refused when it is out of an allocation's bounds: a device beyond them could
be chosen, but its record would not be believed. A text for people is cut short instead, because nobody's
devices should become unknown for a long explanation.
"""

import math
from collections.abc import Iterable

from gpuloom.codec.allocation import MAX_MEMORY_MIB, MAX_MIG_START, MIG_PROFILE
from gpuloom.errors import InvalidRequestError
from gpuloom.model.allocation import AllocatedDevice
from gpuloom.model.gpu import GPU_UUID, MILLI_PER_GPU, DeviceRef, Gpu, GpuHealth, GpuUsage, SharingMode
from gpuloom.model.mig import MigInstance, MigPlacement
from gpuloom.model.node import Holder, HolderSource, PodPresence, PodRef
from gpuloom.model.topology import MAX_GPUS_PER_NODE, PcieLevel, Topology
from gpuloom.v1 import types_pb2 as pb

MAX_NAME_LENGTH = 253
MAX_TEXT_LENGTH = 1024
MAX_HOLDERS_PER_NODE = 4096
MAX_HELD_DEVICES_PER_NODE = 8192
MAX_MIG_INSTANCES = 16
MAX_PIDS_PER_HOLDER = 4096
MAX_PODS_PER_NODE = 4096

_HEALTH = {
    pb.GPU_HEALTH_HEALTHY: GpuHealth.HEALTHY,
    pb.GPU_HEALTH_UNHEALTHY: GpuHealth.UNHEALTHY,
    pb.GPU_HEALTH_LOST: GpuHealth.LOST,
}
_HEALTH_TO_PROTO = {model: proto for proto, model in _HEALTH.items()}

_SHARING = {
    pb.SHARING_MODE_MPS: SharingMode.MPS,
    pb.SHARING_MODE_TIME_SLICING: SharingMode.TIME_SLICING,
}
_SHARING_TO_PROTO = {model: proto for proto, model in _SHARING.items()}

_SOURCE = {
    pb.HOLDER_SOURCE_KUBELET: HolderSource.KUBELET,
    pb.HOLDER_SOURCE_RUNTIME: HolderSource.RUNTIME,
    pb.HOLDER_SOURCE_PROCESS: HolderSource.PROCESS,
    pb.HOLDER_SOURCE_ENVIRONMENT: HolderSource.ENVIRONMENT,
    pb.HOLDER_SOURCE_CLAIM: HolderSource.CLAIM,
    pb.HOLDER_SOURCE_CGROUP: HolderSource.CGROUP,
}
_SOURCE_TO_PROTO = {model: proto for proto, model in _SOURCE.items()}

_LEVELS = {int(level) for level in PcieLevel}


def bounded(text: str, what: str) -> str:
    if len(text) > MAX_NAME_LENGTH:
        raise InvalidRequestError(f"{what} is longer than {MAX_NAME_LENGTH} characters")
    if "\0" in text:
        raise InvalidRequestError(f"{what} has a character 0")
    return text


def required(text: str, what: str) -> str:
    if not text:
        raise InvalidRequestError(f"{what} is empty")
    return bounded(text, what)


def shortened(text: str) -> str:
    return text if len(text) <= MAX_TEXT_LENGTH else text[: MAX_TEXT_LENGTH - 1] + "…"


def gpu_from_proto(message: pb.Gpu) -> Gpu:
    if GPU_UUID.fullmatch(message.uuid) is None:
        raise InvalidRequestError("a GPU without a UUID of the form GPU-…")
    if message.index >= MAX_GPUS_PER_NODE:
        raise InvalidRequestError(f"GPU index {message.index} is not below {MAX_GPUS_PER_NODE}")
    if len(message.mig_instances) > MAX_MIG_INSTANCES:
        raise InvalidRequestError(f"a GPU has at most {MAX_MIG_INSTANCES} MIG instances")
    return Gpu(
        uuid=message.uuid,
        index=message.index,
        model=bounded(message.model, "GPU model"),
        architecture=bounded(message.architecture, "GPU architecture"),
        memory_mib=_memory_mib(message.memory_mib, "a GPU"),
        health=_HEALTH.get(message.health, GpuHealth.UNKNOWN),
        health_reason=shortened(message.health_reason),
        pci_bus_id=bounded(message.pci_bus_id, "PCI bus id"),
        numa_node=message.numa_node if message.HasField("numa_node") else None,
        serial=bounded(message.serial, "GPU serial"),
        mig_enabled=message.mig_enabled,
        mig_instances=tuple(_instance_from_proto(instance) for instance in message.mig_instances),
        changing=shortened(message.changing),
        sharing=sharing_mode_from_proto(message.sharing),
        least_milli=min(message.least_milli, MILLI_PER_GPU),
    )


def gpu_to_proto(gpu: Gpu) -> pb.Gpu:
    return pb.Gpu(
        uuid=gpu.uuid,
        index=gpu.index,
        model=gpu.model,
        architecture=gpu.architecture,
        memory_mib=gpu.memory_mib,
        health=_HEALTH_TO_PROTO.get(gpu.health, pb.GPU_HEALTH_UNSPECIFIED),
        health_reason=gpu.health_reason,
        pci_bus_id=gpu.pci_bus_id,
        numa_node=gpu.numa_node,
        serial=gpu.serial,
        mig_enabled=gpu.mig_enabled,
        mig_instances=[_instance_to_proto(instance) for instance in gpu.mig_instances],
        changing=gpu.changing,
        sharing=sharing_mode_to_proto(gpu.sharing),
        least_milli=gpu.least_milli,
    )


def sharing_mode_from_proto(message: pb.SharingMode.ValueType) -> SharingMode:
    return _SHARING.get(message, SharingMode.NONE)


def sharing_mode_to_proto(mode: SharingMode) -> pb.SharingMode.ValueType:
    return _SHARING_TO_PROTO.get(mode, pb.SHARING_MODE_UNSPECIFIED)


def topology_from_proto(message: pb.Topology) -> Topology:
    try:
        return Topology(
            gpu_count=message.gpu_count,
            pcie=tuple(PcieLevel(level) if level in _LEVELS else PcieLevel.UNKNOWN for level in message.pcie),
            nvlinks=tuple(message.nvlinks),
            nvswitch=message.nvswitch,
        )
    except ValueError as error:
        raise InvalidRequestError(f"malformed topology: {error}") from None


def topology_to_proto(topology: Topology) -> pb.Topology:
    return pb.Topology(
        gpu_count=topology.gpu_count,
        pcie=[pb.PcieLevel.ValueType(level) for level in topology.pcie],
        nvlinks=topology.nvlinks,
        nvswitch=topology.nvswitch,
    )


def usage_from_proto(message: pb.GpuUsage) -> GpuUsage:
    return GpuUsage(
        gpu_uuid=required(message.gpu_uuid, "GPU UUID of a reading"),
        utilization_ratio=known_number(message.utilization_ratio)
        if message.HasField("utilization_ratio")
        else None,
        memory_used_mib=message.memory_used_mib if message.HasField("memory_used_mib") else None,
        power_w=known_number(message.power_w) if message.HasField("power_w") else None,
        temperature_c=known_number(message.temperature_c) if message.HasField("temperature_c") else None,
    )


def usage_to_proto(usage: GpuUsage) -> pb.GpuUsage:
    return pb.GpuUsage(
        gpu_uuid=usage.gpu_uuid,
        utilization_ratio=usage.utilization_ratio,
        memory_used_mib=usage.memory_used_mib,
        power_w=usage.power_w,
        temperature_c=usage.temperature_c,
    )


def holders_from_proto(messages: Iterable[pb.Holder]) -> tuple[Holder, ...]:
    holders = tuple(_holder_from_proto(message) for message in messages)
    if len(holders) > MAX_HOLDERS_PER_NODE:
        raise InvalidRequestError(f"a node has at most {MAX_HOLDERS_PER_NODE} holders")
    if sum(holder.count for holder in holders) > MAX_HELD_DEVICES_PER_NODE:
        raise InvalidRequestError(f"holders have at most {MAX_HELD_DEVICES_PER_NODE} devices of a node")
    return holders


def holder_to_proto(holder: Holder) -> pb.Holder:
    return pb.Holder(
        pod=pod_to_proto(holder.pod),
        container=holder.container,
        devices=[device_to_proto(device) for device in holder.devices],
        source=_SOURCE_TO_PROTO.get(holder.source, pb.HOLDER_SOURCE_UNSPECIFIED),
        pids=holder.pids,
        given=holder.given,
    )


def presence_from_proto(message: pb.PodPresence) -> PodPresence:
    if len(message.pod_uids) > MAX_PODS_PER_NODE:
        raise InvalidRequestError(f"a node has at most {MAX_PODS_PER_NODE} pods")
    return PodPresence(
        pod_uids=tuple(required(uid, "UID of a pod on the node") for uid in message.pod_uids),
        unknown_reason=shortened(message.unknown_reason),
        boot_id=bounded(message.boot_id, "boot id"),
        listed_at_ms=message.listed_at_ms,
    )


def presence_to_proto(presence: PodPresence) -> pb.PodPresence:
    return pb.PodPresence(
        pod_uids=presence.pod_uids,
        unknown_reason=presence.unknown_reason,
        boot_id=presence.boot_id,
        listed_at_ms=presence.listed_at_ms,
    )


def pod_from_proto(message: pb.PodRef) -> PodRef:
    return PodRef(
        namespace=bounded(message.namespace, "namespace"),
        name=bounded(message.name, "pod name"),
        uid=bounded(message.uid, "pod UID"),
    )


def pod_to_proto(pod: PodRef) -> pb.PodRef:
    return pb.PodRef(uid=pod.uid, namespace=pod.namespace, name=pod.name)


def device_from_proto(message: pb.DeviceRef) -> DeviceRef:
    return DeviceRef(
        gpu_uuid=required(message.gpu_uuid, "GPU UUID of a device"),
        mig=placement_from_proto(message.mig) if message.HasField("mig") else None,
    )


def device_to_proto(device: DeviceRef) -> pb.DeviceRef:
    mig = None if device.mig is None else placement_to_proto(device.mig)
    return pb.DeviceRef(gpu_uuid=device.gpu_uuid, mig=mig)


def allocated_from_proto(message: pb.AllocatedDevice) -> AllocatedDevice:
    if not 1 <= message.milli <= MILLI_PER_GPU:
        raise InvalidRequestError(f"a device has 1 to {MILLI_PER_GPU} milli, not {message.milli}")
    return AllocatedDevice(
        device=device_from_proto(message.device), milli=message.milli, memory_mib=message.memory_mib
    )


def allocated_to_proto(allocated: AllocatedDevice) -> pb.AllocatedDevice:
    return pb.AllocatedDevice(
        device=device_to_proto(allocated.device), milli=allocated.milli, memory_mib=allocated.memory_mib
    )


def _holder_from_proto(message: pb.Holder) -> Holder:
    if not message.devices:
        raise InvalidRequestError("a holder without devices")
    if len(message.pids) > MAX_PIDS_PER_HOLDER:
        raise InvalidRequestError(f"a holder names at most {MAX_PIDS_PER_HOLDER} processes")
    return Holder(
        pod=pod_from_proto(message.pod),
        container=bounded(message.container, "container name"),
        devices=tuple(device_from_proto(device) for device in message.devices),
        source=_SOURCE.get(message.source, HolderSource.UNKNOWN),
        pids=tuple(message.pids),
        given=message.given,
    )


def _instance_from_proto(message: pb.MigInstance) -> MigInstance:
    if message.slices < 1:
        raise InvalidRequestError("a MIG instance covers at least one memory slice")
    if message.placement.start + message.slices > MAX_MIG_START + 1:
        raise InvalidRequestError(f"a MIG instance ends beyond memory slice {MAX_MIG_START}")
    if MIG_PROFILE.fullmatch(message.placement.profile) is None:
        raise InvalidRequestError("a MIG instance without a profile such as 1g.10gb")
    return MigInstance(
        placement=placement_from_proto(message.placement),
        slices=message.slices,
        memory_mib=_memory_mib(message.memory_mib, "a MIG instance"),
        uuid=bounded(message.uuid, "MIG UUID"),
        fault=shortened(message.fault),
        changing=shortened(message.changing),
    )


def _instance_to_proto(instance: MigInstance) -> pb.MigInstance:
    return pb.MigInstance(
        placement=placement_to_proto(instance.placement),
        slices=instance.slices,
        memory_mib=instance.memory_mib,
        uuid=instance.uuid,
        fault=instance.fault,
        changing=instance.changing,
    )


def placement_from_proto(message: pb.MigPlacement) -> MigPlacement:
    return MigPlacement(start=message.start, profile=required(message.profile, "MIG profile"))


def _memory_mib(amount: int, what: str) -> int:
    if amount > MAX_MEMORY_MIB:
        raise InvalidRequestError(f"{what} has at most {MAX_MEMORY_MIB} MiB of memory, not {amount}")
    return amount


def known_number(reading: float) -> float | None:
    """A reading that is no number is not known; it is for display and closes nothing."""
    return reading if math.isfinite(reading) else None


def placement_to_proto(placement: MigPlacement) -> pb.MigPlacement:
    return pb.MigPlacement(profile=placement.profile, start=placement.start)
