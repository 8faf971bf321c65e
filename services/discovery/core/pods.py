"""A pod on a node, as far as it says who was given what."""

from collections.abc import Iterable
from dataclasses import dataclass

from gpuloom.codec.allocation import believable
from gpuloom.codec.facts import MAX_ALLOCATIONS_PER_NODE
from gpuloom.model.allocation import Allocation
from gpuloom.model.node import PodRef
from gpuloom.model.snapshot import PodAllocation


@dataclass(frozen=True, slots=True)
class Asked:
    """How many devices of NVIDIA's plugin a pod asks for: by its lasting containers, and at most at a time.

    Both differ if an init container asks for more than the others; the kubelet does not list those.
    """

    lasting: int = 0
    most: int = 0


NOTHING = Asked()


@dataclass(frozen=True, slots=True)
class NodePod:
    """A pod that is bound to a node.

    `problem` says why its allocation can't be read; `asked` is None if its request can't be. A terminal pod
    has ended: it was given devices, and has no right to them any more.
    """

    ref: PodRef
    node_name: str
    terminal: bool = False
    allocation: Allocation | None = None
    problem: str = ""
    asked: Asked | None = NOTHING

    def given_on(self, node_uid: str) -> Allocation | None:
        """What this pod was given there, if that can be believed."""
        given = self.allocation
        return given if given is not None and not believable(given, self.ref.uid, node_uid) else None


def believed_allocations(pods: Iterable[NodePod], node_uid: str) -> tuple[PodAllocation, ...]:
    """What the pods that have not ended were given on this node, by pod UID; no more than a reader takes."""
    found = []
    for pod in sorted(pods, key=_by_uid):
        given = None if pod.terminal else pod.given_on(node_uid)
        if given is not None:
            found.append(PodAllocation(pod.ref, given.container, given.devices, given.advisory))
    return tuple(found[:MAX_ALLOCATIONS_PER_NODE])


def _by_uid(pod: NodePod) -> str:
    return pod.ref.uid
