"""What the agent needs from the machine it runs on."""

from dataclasses import dataclass
from typing import Protocol

from gpuloom.model.gpu import DeviceRef, Gpu, GpuUsage
from gpuloom.model.node import Holder
from gpuloom.model.topology import Topology


@dataclass(frozen=True, slots=True)
class DriverReading:
    """What the GPU driver says now. A GPU that stopped answering is in `gpus` with health LOST."""

    gpus: tuple[Gpu, ...]
    usage: tuple[GpuUsage, ...]
    topology: Topology | None


class GpuDriver(Protocol):
    async def read(self) -> DriverReading:
        """Never raises for one broken GPU; raises UnavailableError if the driver itself does not answer."""


@dataclass(frozen=True, slots=True)
class PodDevices:
    """Devices that the kubelet gave to a container; a pod is named, not identified, here."""

    namespace: str
    name: str
    container: str
    devices: tuple[DeviceRef, ...]


class Kubelet(Protocol):
    async def pod_devices(self) -> tuple[PodDevices, ...]:
        """What the device plugins gave. Raise UnavailableError if the kubelet does not answer."""


class Runtime(Protocol):
    async def holders(self) -> tuple[Holder, ...]:
        """Containers that run with devices which the agent delivered. Raise UnavailableError if not known."""


class PodDirectory(Protocol):
    """The pods of this node, as Kubernetes shows them."""

    def unsynced_reason(self) -> str:
        """Why the directory can't be used now; empty if it can."""

    def node_uid(self) -> str:
        """UID of this node; empty while it is not known."""

    def uid_of(self, namespace: str, name: str) -> str:
        """UID of the one pod of this name here that has not ended; empty if there is not exactly one."""
