"""Pods, nodes, facts and claims for the extender's tests: by keyword, with sensible rest."""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from gpuloom.catalog import load_catalog
from gpuloom.codec.allocation import encode_allocation
from gpuloom.model.allocation import AllocatedDevice, Allocation
from gpuloom.model.gpu import DeviceRef, Gpu, GpuHealth
from gpuloom.model.mig import MigInstance, MigPlacement
from gpuloom.model.node import (
    Delivery,
    Holder,
    HolderSource,
    NodeMode,
    NodeState,
    PodPresence,
    PodRef,
)
from gpuloom.model.snapshot import NodeFacts
from gpuloom.names import (
    ANNOTATION_ALLOCATION,
    RESOURCE_GPU_MEMORY_MIB,
    RESOURCE_GPU_MILLI,
    RESOURCE_NVIDIA_GPU,
)
from services.scheduler_extender.core.ledger.claims import ObservedPod
from services.scheduler_extender.core.objects.pods import observed_pod

JsonObject = dict[str, Any]

MODEL = "A100-SXM4-40GB"
MEMORY_MIB = 40_960


class HandClock:
    """Time that a test sets by hand; nothing waits on it."""

    def __init__(self) -> None:
        self.elapsed_s = 0.0

    def monotonic(self) -> float:
        return self.elapsed_s

    def now(self) -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=self.elapsed_s)

    async def sleep(self, delay_s: float) -> None:
        raise AssertionError(f"nothing here should wait, least of all {delay_s:g} s")


def a_gpu(
    uuid: str,
    index: int = 0,
    *,
    health: GpuHealth = GpuHealth.HEALTHY,
    slices: Iterable[tuple[str, int]] = (),
    memory_mib: int = MEMORY_MIB,
) -> Gpu:
    """With `slices` (profile, start) it is in MIG mode."""
    profiles = {profile.name: profile for profile in load_catalog().mig_profiles(MODEL)}
    instances = tuple(
        MigInstance(
            MigPlacement(start, name),
            profiles[name].memory_slices,
            profiles[name].memory_mib,
            f"MIG-{uuid}-{start}",
        )
        for name, start in slices
    )
    return Gpu(
        uuid,
        index,
        MODEL,
        "ampere",
        memory_mib,
        health,
        mig_enabled=bool(instances),
        mig_instances=instances,
    )


def a_state(
    name: str = "node",
    *gpus: Gpu,
    uid: str = "",
    mode: NodeMode = NodeMode.GPULOOM,
    holders: Iterable[Holder] = (),
    present: PodPresence | None = None,
) -> NodeState:
    """On it are `present`, or else those who hold something."""
    delivery = Delivery.NRI if mode is NodeMode.GPULOOM else Delivery.DEVICE_PLUGIN
    holding = tuple(holders)
    uids = {holder.pod.uid for holder in holding} - {""}
    presence = PodPresence(tuple(sorted(uids))) if present is None else present
    return NodeState(name, uid or f"uid-{name}", mode, delivery, gpus, holders=holding, presence=presence)


def some_facts(
    name: str = "node",
    *gpus: Gpu,
    uid: str = "",
    mode: NodeMode = NodeMode.GPULOOM,
    holders: Iterable[Holder] = (),
    untrusted: str = "",
    present: PodPresence | None = None,
) -> NodeFacts:
    state = a_state(name, *gpus, uid=uid, mode=mode, holders=holders, present=present)
    return NodeFacts(state, (untrusted,) if untrusted else ())


def a_ref(name: str = "pod", uid: str = "") -> PodRef:
    return PodRef("default", name, uid or f"uid-{name}")


def a_holder(pod: PodRef, *devices: str | DeviceRef, source: HolderSource = HolderSource.KUBELET) -> Holder:
    refs = tuple(DeviceRef(device) if isinstance(device, str) else device for device in devices)
    return Holder(pod, "main", refs, source)


def given(uuid: str, milli: int = 1000, memory_mib: int = MEMORY_MIB) -> AllocatedDevice:
    return AllocatedDevice(DeviceRef(uuid), milli, memory_mib)


def a_given_slice(uuid: str, profile: str, start: int) -> AllocatedDevice:
    return AllocatedDevice(DeviceRef(uuid, MigPlacement(start, profile)), 500, 20_096)


def an_allocation(
    pod: PodRef, *devices: AllocatedDevice, node_uid: str = "uid-node", advisory: bool = False
) -> Allocation:
    return Allocation(pod.uid, node_uid, "main", advisory, devices)


def gpuloom_share(milli: int, memory_mib: int | None = None) -> dict[str, str]:
    resources = {RESOURCE_GPU_MILLI: str(milli)}
    return resources if memory_mib is None else {**resources, RESOURCE_GPU_MEMORY_MIB: str(memory_mib)}


def nvidia_cards(count: int = 1) -> dict[str, str]:
    return {RESOURCE_NVIDIA_GPU: str(count)}


def a_pod(
    ref: PodRef | None = None,
    resources: Mapping[str, str] | None = None,
    *,
    node: str = "",
    phase: str = "Pending",
    version: int | str = 1,
    allocation: Allocation | str | None = None,
    annotations: Mapping[str, str] | None = None,
) -> JsonObject:
    """A pod as Kubernetes shows it; it asks for a whole GPULoom card unless told otherwise.

    Where its phase says so, it has ended by its kubelet's word.
    """
    ref = ref or a_ref()
    asked = dict(gpuloom_share(1000) if resources is None else resources)
    noted = dict(annotations or {})
    if allocation is not None:
        text = allocation if isinstance(allocation, str) else encode_allocation(allocation)
        noted[ANNOTATION_ALLOCATION] = text
    spec: JsonObject = {"containers": [{"name": "main", "resources": {"limits": asked, "requests": asked}}]}
    if node:
        spec["nodeName"] = node
    metadata: JsonObject = {"name": ref.name, "namespace": ref.namespace, "uid": ref.uid}
    return {
        "metadata": {**metadata, "resourceVersion": str(version), "annotations": noted},
        "spec": spec,
        "status": {"phase": phase, **(_ENDED if phase in ("Succeeded", "Failed") else {})},
    }


_ENDED: JsonObject = {
    "startTime": "2026-01-01T00:00:00Z",
    "containerStatuses": [{"name": "main", "state": {"terminated": {}}}],
}
"""What a kubelet writes with the phase, and nobody else."""


def an_observed_pod(pod: JsonObject) -> ObservedPod:
    observed = observed_pod(pod)
    assert observed is not None
    return observed


def a_node(name: str = "node", uid: str = "", version: int = 1, cpu: str = "64") -> JsonObject:
    return {
        "metadata": {"name": name, "uid": uid or f"uid-{name}", "resourceVersion": str(version)},
        "status": {"allocatable": {"cpu": cpu, "memory": "256Gi"}},
    }
