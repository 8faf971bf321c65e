"""What a simulated machine is made of: its description and the GPUs that follow from it.

Pure: the same description gives the same UUIDs, PCI addresses and links on every run. It never says what
runs on the machine or how it feels; that is `load`.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpuloom.catalog import Catalog, GpuModel
from gpuloom.catalog.entries import mig_resource
from gpuloom.errors import InvalidRequestError
from gpuloom.model.allocation import AllocatedDevice
from gpuloom.model.gpu import MILLI_PER_GPU, DeviceRef, Gpu
from gpuloom.model.mig import MigInstance, MigPlacement, MigProfile
from gpuloom.model.node import NodeMode
from gpuloom.model.topology import PcieLevel, Topology
from gpuloom.names import RESOURCE_NVIDIA_GPU

GpuLayout = tuple[MigPlacement, ...]


@dataclass(frozen=True, slots=True)
class MachineSpec:
    """A machine to build.

    `mig` gives, per GPU index, the MIG instances on it; None leaves that GPU out of MIG mode, and a tuple
    shorter than the GPU count leaves the rest out of it.
    """

    node: str
    mode: NodeMode
    gpu_model: str
    gpu_count: int
    topology: str
    cpu_cores: int
    memory_gib: int
    instance_type: str = "simulated"
    zone: str = "zone-a"
    labels: tuple[tuple[str, str], ...] = ()
    mig: tuple[GpuLayout | None, ...] = ()
    seed: int = 0
    provider_id: str = ""
    """By which a cloud knows the machine; empty if no cloud has launched it."""


@dataclass(frozen=True, slots=True)
class Hardware:
    """A built machine."""

    spec: MachineSpec
    gpus: tuple[Gpu, ...]
    topology: Topology
    power_limit_w: float

    @property
    def memory_mib(self) -> int:
        return sum(gpu.memory_mib for gpu in self.gpus)

    def plugin_devices(self) -> Mapping[str, tuple[AllocatedDevice, ...]]:
        """What NVIDIA's device plugin would advertise here, by resource name."""
        devices: dict[str, list[AllocatedDevice]] = {}
        for gpu in self.gpus:
            for device in _plugin_devices(gpu):
                devices.setdefault(plugin_resource(device.device), []).append(device)
        return {resource: tuple(found) for resource, found in devices.items()}

    def has(self, device: DeviceRef) -> bool:
        """Whether a slice is there now. Of a whole GPU nothing is said."""
        places = (
            one.placement for gpu in self.gpus if gpu.uuid == device.gpu_uuid for one in gpu.mig_instances
        )
        return device.mig is None or device.mig in places

    def device_id(self, device: DeviceRef) -> str:
        """The id by which NVIDIA's device plugin knows the device: the GPU's or the MIG instance's UUID."""
        if device.mig is None:
            return device.gpu_uuid
        return next(
            instance.uuid
            for gpu in self.gpus
            if gpu.uuid == device.gpu_uuid
            for instance in gpu.mig_instances
            if instance.placement == device.mig
        )


def plugin_resource(device: DeviceRef) -> str:
    if device.mig is None:
        return RESOURCE_NVIDIA_GPU
    return mig_resource(device.mig.profile)


def assemble(spec: MachineSpec, catalog: Catalog) -> Hardware:
    """Raise InvalidRequestError if the parts don't fit together, NotFoundError if the catalogue lacks one."""
    model = catalog.gpu(spec.gpu_model)
    shape = catalog.shape(spec.topology)
    count = shape.topology.gpu_count
    if count != spec.gpu_count:
        raise InvalidRequestError(
            f"machine {spec.node}: topology {spec.topology} is for {count} GPUs, not {spec.gpu_count}"
        )
    if len(spec.mig) > spec.gpu_count:
        raise InvalidRequestError(f"machine {spec.node}: a MIG layout for a GPU that is not there")
    gpus = tuple(_gpu(spec, index, model, shape.numa[index]) for index in range(count))
    return Hardware(spec, gpus, shape.topology, float(model.power_w))


def hardware_to_json(hardware: Hardware) -> dict[str, Any]:
    spec = hardware.spec
    return {
        "node": spec.node,
        "mode": spec.mode.value,
        "gpuModel": spec.gpu_model,
        "topologyName": spec.topology,
        "cpuCores": spec.cpu_cores,
        "memoryGib": spec.memory_gib,
        "instanceType": spec.instance_type,
        "zone": spec.zone,
        "labels": dict(spec.labels),
        "seed": spec.seed,
        "providerId": spec.provider_id,
        "powerLimitW": hardware.power_limit_w,
        "gpus": [gpu_to_json(gpu) for gpu in hardware.gpus],
        "topology": {
            "pcie": [level.name for level in hardware.topology.pcie],
            "nvlinks": list(hardware.topology.nvlinks),
            "nvswitch": hardware.topology.nvswitch,
        },
    }


def hardware_from_json(document: Mapping[str, Any]) -> Hardware:
    """Raise KeyError, TypeError or ValueError if it is not a machine."""
    gpus = tuple(gpu_from_json(gpu) for gpu in document["gpus"])
    links = document["topology"]
    spec = MachineSpec(
        node=str(document["node"]),
        mode=NodeMode(document["mode"]),
        gpu_model=str(document["gpuModel"]),
        gpu_count=len(gpus),
        topology=str(document["topologyName"]),
        cpu_cores=int(document["cpuCores"]),
        memory_gib=int(document["memoryGib"]),
        instance_type=str(document["instanceType"]),
        zone=str(document["zone"]),
        labels=tuple(sorted(document["labels"].items())),
        mig=tuple(_layout(gpu) for gpu in gpus) if any(gpu.mig_enabled for gpu in gpus) else (),
        seed=int(document["seed"]),
        provider_id=str(document.get("providerId", "")),
    )
    topology = Topology(
        gpu_count=len(gpus),
        pcie=tuple(PcieLevel[name] for name in links["pcie"]),
        nvlinks=tuple(int(count) for count in links["nvlinks"]),
        nvswitch=bool(links["nvswitch"]),
    )
    return Hardware(spec, gpus, topology, float(document["powerLimitW"]))


def _gpu(spec: MachineSpec, index: int, model: GpuModel, numa_node: int | None) -> Gpu:
    layout = spec.mig[index] if index < len(spec.mig) else None
    profiles = {profile.name: profile for profile in model.mig_profiles}
    return Gpu(
        uuid=_uuid("GPU", spec, index),
        index=index,
        model=model.name,
        architecture=model.architecture,
        memory_mib=model.memory_mib,
        pci_bus_id=f"00000000:{0x10 + 8 * index:02X}:00.0",
        numa_node=numa_node,
        serial=str(int(_digest(spec, f"serial-{index}")[:10], 16)),
        mig_enabled=layout is not None,
        mig_instances=tuple(_instance(spec, index, place, profiles) for place in layout or ()),
    )


def _plugin_devices(gpu: Gpu) -> list[AllocatedDevice]:
    if not gpu.mig_enabled:
        return [AllocatedDevice(DeviceRef(gpu.uuid), MILLI_PER_GPU, gpu.memory_mib)]
    return [
        AllocatedDevice(
            DeviceRef(gpu.uuid, instance.placement),
            min(MILLI_PER_GPU, -(-MILLI_PER_GPU * instance.memory_mib // gpu.memory_mib)),
            instance.memory_mib,
        )
        for instance in gpu.mig_instances
    ]


def _layout(gpu: Gpu) -> GpuLayout | None:
    return tuple(instance.placement for instance in gpu.mig_instances) if gpu.mig_enabled else None


def _instance(
    spec: MachineSpec, index: int, place: MigPlacement, profiles: Mapping[str, MigProfile]
) -> MigInstance:
    profile = profiles.get(place.profile)
    if profile is None or place.start not in profile.starts:
        raise InvalidRequestError(
            f"machine {spec.node}: {spec.gpu_model} has no MIG profile {place.profile} at {place.start}"
        )
    uuid = instance_uuid(spec, f"{index}-{place.profile}-{place.start}")
    return MigInstance(place, profile.memory_slices, profile.memory_mib, uuid)


def instance_uuid(spec: MachineSpec, part: str) -> str:
    return _uuid("MIG", spec, part)


def _uuid(prefix: str, spec: MachineSpec, part: object) -> str:
    digest = _digest(spec, f"{prefix}-{part}")
    return f"{prefix}-{digest[:8]}-{digest[8:12]}-{digest[12:16]}-{digest[16:20]}-{digest[20:32]}"


def _digest(spec: MachineSpec, part: str) -> str:
    return hashlib.sha256(f"{spec.seed}/{spec.node}/{part}".encode()).hexdigest()


def gpu_to_json(gpu: Gpu) -> dict[str, Any]:
    return {
        "uuid": gpu.uuid,
        "index": gpu.index,
        "model": gpu.model,
        "architecture": gpu.architecture,
        "memoryMib": gpu.memory_mib,
        "pciBusId": gpu.pci_bus_id,
        "numaNode": gpu.numa_node,
        "serial": gpu.serial,
        "migEnabled": gpu.mig_enabled,
        "migInstances": [
            {
                "profile": instance.placement.profile,
                "start": instance.placement.start,
                "slices": instance.slices,
                "memoryMib": instance.memory_mib,
                "uuid": instance.uuid,
            }
            for instance in gpu.mig_instances
        ],
    }


def gpu_from_json(document: Mapping[str, Any]) -> Gpu:
    return Gpu(
        uuid=str(document["uuid"]),
        index=int(document["index"]),
        model=str(document["model"]),
        architecture=str(document["architecture"]),
        memory_mib=int(document["memoryMib"]),
        pci_bus_id=str(document["pciBusId"]),
        numa_node=document["numaNode"],
        serial=str(document["serial"]),
        mig_enabled=bool(document["migEnabled"]),
        mig_instances=tuple(
            MigInstance(
                MigPlacement(int(instance["start"]), str(instance["profile"])),
                int(instance["slices"]),
                int(instance["memoryMib"]),
                str(instance["uuid"]),
            )
            for instance in document["migInstances"]
        ),
    )
