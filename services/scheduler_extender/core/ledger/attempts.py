"""A bind under way: what it holds until its outcome is observed. Pure."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from gpuloom.model.allocation import Allocation
from gpuloom.model.node import PodRef

AttemptKey = tuple[str, str]
"""Pod UID and node UID."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """A Binding that was or will be sent: this pod, this node, these devices.

    `cpu_milli` and `memory_bytes` are what the pod asks of the node beside its devices; `annotations` are
    what its Binding carries. `sent` counts, by the pod's resourceVersion, the Bindings that were sent and not
    refused: each of them may have been applied, or may still be.
    """

    pod: PodRef
    node_name: str
    allocation: Allocation
    cpu_milli: int = 0
    memory_bytes: int = 0
    annotations: Mapping[str, str] = field(default_factory=dict, compare=False)
    sent: Counter[str] = field(default_factory=Counter, compare=False)

    @property
    def key(self) -> AttemptKey:
        return self.pod.uid, self.allocation.node_uid
