"""The cluster's devices at one version."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpuloom.model.node import NodeState
from gpuloom.model.version import StreamVersion


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """What is known of one node, and why not to use it if there is a reason."""

    state: NodeState
    untrusted_reasons: tuple[str, ...] = ()

    @property
    def trusted(self) -> bool:
        return not self.untrusted_reasons


@dataclass(frozen=True, slots=True)
class ClusterSnapshot:
    """All nodes by UID."""

    version: StreamVersion
    nodes: Mapping[str, NodeFacts] = field(default_factory=dict)
