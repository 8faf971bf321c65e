"""Small machines, pods and nodes for the tests of the simulated cluster."""

from pathlib import Path
from typing import Any

from gpuloom.catalog import load_catalog
from gpuloom.codec.allocation import encode_allocation
from gpuloom.model.allocation import AllocatedDevice, Allocation
from gpuloom.model.gpu import DeviceRef
from gpuloom.model.mig import MigPlacement
from gpuloom.model.node import NodeMode, PodRef
from gpuloom.names import ANNOTATION_ALLOCATION
from gpuloom.sim.machines.hardware import Hardware, MachineSpec, assemble
from gpuloom.sim.machines.load import LoadProfile
from gpuloom.sim.machines.machine import HostedContainer, HostedPod, Machine

MIG_LAYOUT = (MigPlacement(0, "3g.20gb"), MigPlacement(4, "1g.5gb"), MigPlacement(5, "1g.5gb"))


def a_spec(node: str = "n1", mode: NodeMode = NodeMode.NVIDIA, *, mig: bool = False) -> MachineSpec:
    return MachineSpec(
        node=node,
        mode=mode,
        gpu_model="A100-SXM4-40GB",
        gpu_count=8,
        topology="hgx-a100",
        cpu_cores=96,
        memory_gib=1152,
        mig=(MIG_LAYOUT, *[None] * 7) if mig else (),
    )


def hardware(mode: NodeMode = NodeMode.NVIDIA, *, mig: bool = False) -> Hardware:
    return assemble(a_spec(mode=mode, mig=mig), load_catalog())


def a_machine(machines_dir: Path, node: str = "n1", mode: NodeMode = NodeMode.NVIDIA) -> Machine:
    return Machine.create(machines_dir / node, a_spec(node, mode))


def a_ref(name: str = "p1") -> PodRef:
    return PodRef("team-a", name, f"uid-{name}")


def whole(gpu_uuid: str, memory_mib: int = 40960) -> AllocatedDevice:
    return AllocatedDevice(DeviceRef(gpu_uuid), 1000, memory_mib)


def share(gpu_uuid: str, milli: int, memory_mib: int) -> AllocatedDevice:
    return AllocatedDevice(DeviceRef(gpu_uuid), milli, memory_mib)


def hosted(name: str, *devices: AllocatedDevice, load: float = 0.5, **changes: Any) -> HostedPod:
    times: dict[str, Any] = {"starts_at_s": 0.0, "publishes_at_s": 0.0} | changes
    return HostedPod(
        pod=a_ref(name),
        containers=(HostedContainer("main", devices),),
        load=LoadProfile(load, 0.5, seed=1),
        **times,
    )


def a_pod(name: str = "p1", resources: dict[str, str] | None = None, **more: Any) -> dict[str, Any]:
    """`more`: annotations, node, phase, priority, and any field of the spec."""
    annotations, node = more.pop("annotations", {}), more.pop("node", None)
    phase, uid = more.pop("phase", "Pending"), more.pop("uid", f"uid-{name}")
    spec: dict[str, Any] = {
        "containers": [{"name": "main", "resources": {"limits": resources or {}}}],
        **more,
    }
    if node:
        spec["nodeName"] = node
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "team-a", "uid": uid, "annotations": annotations},
        "spec": spec,
        "status": {"phase": phase},
    }


def a_node(name: str = "n1", allocatable: dict[str, str] | None = None, **more: Any) -> dict[str, Any]:
    """`more`: labels, annotations, and any field of the spec."""
    labels, annotations = more.pop("labels", {}), more.pop("annotations", {})
    resources = {"cpu": "8", "memory": "64Gi", "pods": "110", **(allocatable or {})}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "uid": f"uid-{name}", "labels": labels, "annotations": annotations},
        "spec": more,
        "status": {"capacity": resources, "allocatable": resources},
    }


def an_allocation_annotation(*devices: AllocatedDevice, container: str = "main") -> dict[str, str]:
    record = Allocation("uid-p1", "uid-n1", container, advisory=False, devices=devices)
    return {ANNOTATION_ALLOCATION: encode_allocation(record)}
