"""One node as its agent sees it, and who holds its devices."""

from dataclasses import dataclass
from enum import StrEnum

from gpuloom.model.gpu import DeviceRef, Gpu, GpuUsage
from gpuloom.model.spot import SpotNotice
from gpuloom.model.topology import Topology


class NodeMode(StrEnum):
    """Who gives out the GPUs of a node."""

    UNKNOWN = "unknown"
    NVIDIA = "nvidia"
    GPULOOM = "gpuloom"


class Delivery(StrEnum):
    """How devices reach a container."""

    UNKNOWN = "unknown"
    NONE = "none"
    DEVICE_PLUGIN = "device-plugin"
    NRI = "nri"
    ENV = "env"


class HolderSource(StrEnum):
    """How the agent knows that somebody holds a device."""

    UNKNOWN = "unknown"
    KUBELET = "kubelet"
    RUNTIME = "runtime"
    PROCESS = "process"
    ENVIRONMENT = "environment"
    CLAIM = "claim"
    CGROUP = "cgroup"

    @property
    def mode(self) -> NodeMode:
        """In which devices are given this way; UNKNOWN if it does not tell, or if no mode gives them so."""
        if self is HolderSource.KUBELET:
            return NodeMode.NVIDIA
        is_ours = self in (HolderSource.RUNTIME, HolderSource.ENVIRONMENT)
        return NodeMode.GPULOOM if is_ours else NodeMode.UNKNOWN


@dataclass(frozen=True, slots=True, order=True)
class PodRef:
    """A pod by identity and by name; uid is empty for a process outside any pod."""

    namespace: str
    name: str
    uid: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class Holder:
    """Somebody who has devices right now, as the node sees it.

    `pids` are the processes by which it is known, if it is known by them alone. `given` is how many devices
    the kubelet gave where that is not the number of `devices`: several replicas of one GPU, which is shared
    by time, are that GPU.
    """

    pod: PodRef
    container: str
    devices: tuple[DeviceRef, ...]
    source: HolderSource
    pids: tuple[int, ...] = ()
    given: int = 0

    @property
    def count(self) -> int:
        """How many devices it holds, as its request counts them."""
        return max(self.given, len(self.devices))


@dataclass(frozen=True, slots=True)
class PodPresence:
    """Which pods are on a node, by their control groups: also one of which no container runs right now.

    `unknown_reason` is empty when `pod_uids` are all of them; else they are those last known, and nothing may
    be concluded from a pod's absence. `boot_id` is the kernel's, and `listed_at_ms` counts from that boot:
    of two lists of one boot the later one is newer, whichever was heard first. 0: not known.
    """

    pod_uids: tuple[str, ...] = ()
    unknown_reason: str = ""
    boot_id: str = ""
    listed_at_ms: int = 0

    def is_newer_than(self, other: "PodPresence") -> bool:
        """Whether that is certain."""
        return self.boot_id == other.boot_id and 0 < other.listed_at_ms < self.listed_at_ms


UNTOLD_PRESENCE = PodPresence(unknown_reason="the agent does not say which pods are on its node")


@dataclass(frozen=True, slots=True)
class NodeState:
    """Everything one agent says about its node.

    `holders_unknown_reason` is empty when `holders` is complete; else nothing may be concluded from
    somebody's absence in it. `driver_problem` is empty when the GPUs can be read.
    """

    node_name: str
    node_uid: str
    mode: NodeMode
    delivery: Delivery
    gpus: tuple[Gpu, ...] = ()
    topology: Topology | None = None
    holders: tuple[Holder, ...] = ()
    holders_unknown_reason: str = ""
    usage: tuple[GpuUsage, ...] = ()
    spot: SpotNotice | None = None
    driver_problem: str = ""
    presence: PodPresence = UNTOLD_PRESENCE
