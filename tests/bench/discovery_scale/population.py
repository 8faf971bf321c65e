"""What the cluster is made of: alike machines of 8 GPUs, and pods that share their cards. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from gpuloom.codec.allocation import encode_allocation
from gpuloom.kube.objects import JsonObject
from gpuloom.model.allocation import AllocatedDevice, Allocation
from gpuloom.model.gpu import MILLI_PER_GPU, DeviceRef, Gpu
from gpuloom.model.node import NodeMode
from gpuloom.names import ANNOTATION_ALLOCATION, RESOURCE_GPU_MILLI
from gpuloom.sim.machines.hardware import MachineSpec

NAMESPACE = "team"
CONTAINER = "main"
GPUS_PER_NODE = 8

_VARIABLES = 20
_CONDITIONS = ("PodScheduled", "Initialized", "ContainersReady", "Ready")
_SINCE = "2026-01-01T00:00:00Z"


@dataclass(frozen=True, slots=True)
class Size:
    """How large the cluster is, and in how many processes its agents and its readers run."""

    nodes: int
    pods: int
    fleets: int
    readers: int

    def pods_on(self, index: int) -> int:
        """Of the node with that number; as even as can be."""
        return self.pods // self.nodes + (index < self.pods % self.nodes)

    def shrunk_to(self, nodes: int) -> "Size":
        """As many pods a node and nodes a process, as far as that goes."""
        pods = self.pods * nodes // self.nodes
        return Size(nodes, pods, max(1, round(self.fleets * nodes / self.nodes)), self.readers)


def machine_specs(count: int) -> tuple[MachineSpec, ...]:
    return tuple(
        MachineSpec(
            node=f"node-{index + 1:04d}",
            mode=NodeMode.GPULOOM,
            gpu_model="H100-SXM5-80GB",
            gpu_count=GPUS_PER_NODE,
            topology="hgx-h100",
            cpu_cores=192,
            memory_gib=2048,
            instance_type="p5.48xlarge",
            zone=f"zone-{index % 3}",
        )
        for index in range(count)
    )


def shares(gpus: Sequence[Gpu], count: int) -> list[AllocatedDevice]:
    """One for each of so many pods, dealt out card by card; who share a card have equal parts of it."""
    dealt = [index % len(gpus) for index in range(count)]
    return [
        AllocatedDevice(
            DeviceRef(gpus[place].uuid),
            MILLI_PER_GPU // dealt.count(place),
            gpus[place].memory_mib // dealt.count(place),
        )
        for place in dealt
    ]


def pod_object(name: str, node: str, share: AllocatedDevice) -> JsonObject:
    """As large as pods mostly are, because whoever lists them must read all of it."""
    limits = {RESOURCE_GPU_MILLI: str(share.milli), "cpu": "8", "memory": "64Gi"}
    container = {
        "name": CONTAINER,
        "image": "registry.example.test/research/trainer:2026.11",
        "command": ["python", "-m", "trainer", "--config", f"/etc/trainer/{name}.yaml"],
        "env": [{"name": f"TRAINER_OPTION_{number}", "value": "x" * 60} for number in range(_VARIABLES)],
        "resources": {"limits": limits, "requests": limits},
        "volumeMounts": [{"name": "data", "mountPath": "/data"}, {"name": "cache", "mountPath": "/cache"}],
    }
    volumes: list[JsonObject] = [{"name": volume, "emptyDir": {}} for volume in ("data", "cache")]
    labels = {"app": "trainer", "team": "research", "job-name": name}
    return {
        "metadata": {"name": name, "namespace": NAMESPACE, "labels": labels},
        "spec": {"nodeName": node, "containers": [container], "volumes": volumes},
    }


def with_allocation(pod: JsonObject, node_uid: str, share: AllocatedDevice) -> JsonObject:
    """The pod as its Binding left it."""
    metadata = pod["metadata"]
    given = Allocation(metadata["uid"], node_uid, CONTAINER, advisory=False, devices=(share,))
    annotations = {ANNOTATION_ALLOCATION: encode_allocation(given)}
    return {**pod, "metadata": {**metadata, "annotations": annotations}}


def running_status(pod_uid: str) -> JsonObject:
    state = {"running": {"startedAt": _SINCE}}
    status = {"name": CONTAINER, "containerID": f"containerd://{pod_uid}", "ready": True, "state": state}
    conditions = [{"type": kind, "status": "True", "lastTransitionTime": _SINCE} for kind in _CONDITIONS]
    return {"phase": "Running", "conditions": conditions, "containerStatuses": [status]}
