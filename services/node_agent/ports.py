"""What the agent needs from the machine it runs on."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from gpuloom.model.gpu import DeviceRef
from gpuloom.model.node import Holder, PodPresence, PodRef
from services.node_agent.core.readings import DriverReading, Process


class GpuDriver(Protocol):
    async def read(self) -> DriverReading:
        """Never raises for one broken GPU; raises UnavailableError if the driver itself does not answer."""

    async def list_processes(self) -> tuple[tuple[Process, ...], dict[str, str]]:
        """Ask now who computes. Also the GPUs that did not answer soon, by UUID, with the reason.

        Raise UnavailableError if the driver itself does not answer.
        """


@dataclass(frozen=True, slots=True)
class PodDevices:
    """Devices that a container got through the kubelet; a pod is named, not identified, here.

    `devices` were given by device plugins, `claimed` ones by DRA drivers. `given` is how many the plugin
    counts, 0 if as many as `devices`: replicas of a GPU are one here.
    """

    namespace: str
    name: str
    container: str
    devices: tuple[DeviceRef, ...]
    claimed: tuple[DeviceRef, ...] = ()
    given: int = 0

    @property
    def all_devices(self) -> tuple[DeviceRef, ...]:
        return self.devices + self.claimed


class Kubelet(Protocol):
    async def pod_devices(self) -> tuple[PodDevices, ...]:
        """What device plugins and DRA drivers gave. Raise UnavailableError if the kubelet does not answer."""


class Runtime(Protocol):
    async def holders(self) -> tuple[Holder, ...]:
        """Containers that run with devices which the agent delivered. Raise UnavailableError if not known."""


@dataclass(frozen=True, slots=True)
class ProcessOwner:
    """What the host tells of a process: its name, and the pod and container of its control group.

    `pod_uid` is empty for a process outside any pod, `container_id` too if it is not told. `container` is the
    container's name where the host knows even that.
    """

    name: str
    pod_uid: str = ""
    container_id: str = ""
    container: str = ""


class ProcessTable(Protocol):
    async def owners(self, pids: Iterable[int]) -> Mapping[int, ProcessOwner]:
        """Owners of those that still run. Raise UnavailableError if the host's processes can't be seen."""


class PodGroups(Protocol):
    async def presence(self) -> PodPresence:
        """Which pods are on the node, by their control groups. Raise UnavailableError if it can't be seen."""


@dataclass(frozen=True, slots=True)
class NamedPod:
    """The pod that has a name on this node now.

    `uid` is empty while it is not certain that the kubelet means this one: a pod of the same name was here
    before, and the kubelet has not said yet that it took this one in. `over`: it has ended by its kubelet's
    word, so that no container of it runs or will. `runs`: its kubelet says that some container runs.
    """

    uid: str
    over: bool = False
    runs: bool = False


PodNames = Mapping[tuple[str, str], NamedPod]
"""By namespace and name."""


class PodDirectory(Protocol):
    """The pods of this node, as Kubernetes shows them."""

    def unsynced_reason(self) -> str:
        """Why the directory can't be used now; empty if it can."""

    def node_uid(self) -> str:
        """UID of this node; empty while it is not known."""

    def names(self) -> PodNames:
        """The pods by name, as of now: the answer does not change when the pods do."""

    def pod_of(self, uid: str) -> PodRef | None:
        """The pod of this UID here, ended or not. A static pod is also known by the hash of its manifest."""

    def container_of(self, uid: str, container_id: str) -> str:
        """Name of that pod's container with this id, empty if it is not known yet."""

    def is_alive(self, uid: str) -> bool:
        """Whether this pod is here and has not ended."""
