"""A node as Kubernetes shows it, as far as discovery needs it."""

from dataclasses import dataclass, field

from gpuloom.model.node import NodeMode
from gpuloom.model.snapshot import NodePlace


@dataclass(frozen=True, slots=True)
class ClusterNode:
    """`mode` is its label, UNKNOWN if it has none; `labelled_gpus`: a label says that there are GPUs.

    The label is for people and selectors: discovery itself writes it, after what the agent says. So one that
    is missing or lags behind is never held against the node.
    """

    name: str
    uid: str
    mode: NodeMode = NodeMode.UNKNOWN
    offers_nvidia: bool = False
    offers_gpuloom: bool = False
    labelled_gpus: bool = False
    place: NodePlace = field(default_factory=NodePlace)

    @property
    def has_gpus(self) -> bool:
        """Whether anything in Kubernetes says so."""
        return (
            self.offers_nvidia
            or self.offers_gpuloom
            or self.labelled_gpus
            or self.mode is not NodeMode.UNKNOWN
        )
