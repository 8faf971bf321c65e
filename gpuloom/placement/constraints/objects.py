"""Pods and nodes as kube-scheduler's own filters see them: values, read by `codec/scheduling`.

Amounts are integers: CPU in thousandths, memory in bytes, every other resource in its own unit.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gpuloom.model.objects import LabelSelector
from gpuloom.model.snapshot import Taint

CPU = "cpu"
MEMORY = "memory"
PODS = "pods"

Amounts = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Toleration:
    """An empty key with Exists tolerates every taint, an empty effect every effect."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""


@dataclass(frozen=True, slots=True)
class NodeRequirement:
    """`operator` is In, NotIn, Exists, DoesNotExist, Gt or Lt; any other matches nothing."""

    key: str
    operator: str
    values: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NodeTerm:
    """All of it must match; an empty term matches nothing. `fields` are about the node's name."""

    expressions: tuple[NodeRequirement, ...] = ()
    fields: tuple[NodeRequirement, ...] = ()


@dataclass(frozen=True, slots=True)
class SpreadConstraint:
    """A topology spread constraint that must hold (DoNotSchedule). `selector` None matches no pod."""

    topology_key: str
    max_skew: int
    selector: LabelSelector | None
    min_domains: int = 1
    honors_affinity: bool = True
    honors_taints: bool = False


@dataclass(frozen=True, slots=True)
class PodTerm:
    """A required pod (anti-)affinity term. `namespaces` None: all of them."""

    topology_key: str
    selector: LabelSelector | None
    namespaces: frozenset[str] | None = frozenset()


@dataclass(frozen=True, slots=True)
class SchedulablePod:
    """`required_terms` are node selector terms of required affinity: one of them must match, if any."""

    uid: str
    namespace: str
    name: str
    priority: int
    requests: Amounts
    node_selector: Mapping[str, str]
    required_terms: tuple[NodeTerm, ...] | None
    tolerations: tuple[Toleration, ...]
    labels: Mapping[str, str] = field(default_factory=dict)
    terminating: bool = False
    spread: tuple[SpreadConstraint, ...] = ()
    affinity: tuple[PodTerm, ...] = ()
    anti_affinity: tuple[PodTerm, ...] = ()
    raw: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def minds_neighbours(self) -> bool:
        """Whether it depends on other pods where it may go."""
        return bool(self.spread or self.affinity or self.anti_affinity)


@dataclass(frozen=True, slots=True)
class SchedulableNode:
    name: str
    labels: Mapping[str, str]
    taints: tuple[Taint, ...]
    unschedulable: bool
    allocatable: Amounts


@dataclass(frozen=True, slots=True)
class NodeUse:
    """What runs on a node already."""

    requested: Amounts
    pods: int
