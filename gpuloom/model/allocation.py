"""What a pod was given: the record that a Binding carries to the pod."""

from dataclasses import dataclass

from gpuloom.model.gpu import DeviceRef
from gpuloom.model.node import NodeMode

ALLOCATION_VERSION = 1


@dataclass(frozen=True, slots=True)
class AllocatedDevice:
    """A device or a share of one. A whole GPU has milli 1000 and all its memory."""

    device: DeviceRef
    milli: int
    memory_mib: int


@dataclass(frozen=True, slots=True)
class Allocation:
    """Believed only for the pod UID and node UID it names.

    `advisory`: the kubelet's device plugin makes the choice; the devices here are a prediction.
    """

    pod_uid: str
    node_uid: str
    container: str
    advisory: bool
    devices: tuple[AllocatedDevice, ...]

    @property
    def mode(self) -> NodeMode:
        """That of the nodes on which such a record is made: predictions only where the plugin chooses."""
        return NodeMode.NVIDIA if self.advisory else NodeMode.GPULOOM
