"""To which nodes a pod can go, by its node selector, node affinity and tolerations. Pure.

A slice on another node would stay free, and its pod pending. What discovery does not tell of nodes counts as
fitting, and so does what depends on other pods.
"""

from dataclasses import dataclass
from functools import lru_cache

from gpuloom.codec.fields import JsonObject
from gpuloom.codec.node_labels import DESCRIPTIVE_LABELS
from gpuloom.codec.scheduling import schedulable_pod
from gpuloom.errors import InvalidRequestError
from gpuloom.model.snapshot import NodePlace
from gpuloom.placement.constraints.filters import may_go_to
from gpuloom.placement.constraints.objects import NodeTerm, SchedulableNode, SchedulablePod, Toleration


@dataclass(frozen=True, slots=True)
class Destination:
    """What a pod asks of its node; nothing of it: any node without taints that is not cordoned."""

    selector: tuple[tuple[str, str], ...] = ()
    terms: tuple[NodeTerm, ...] | None = None
    tolerations: tuple[Toleration, ...] = ()

    def admits(self, node_name: str, place: NodePlace) -> bool:
        return _admits(self, node_name, place)


ANYWHERE = Destination()


def destination_of(pod: JsonObject, untold: tuple[str, ...] = DESCRIPTIVE_LABELS) -> Destination | None:
    """None if it can't be read. `untold`: what labels begin with of which nothing is known."""
    try:
        read = schedulable_pod(dict(pod))
    except InvalidRequestError:
        return None
    selector = tuple(
        sorted((key, value) for key, value in read.node_selector.items() if not key.startswith(untold))
    )
    return Destination(selector, _told_terms(read.required_terms, untold), read.tolerations)


@lru_cache(maxsize=2048)
def _admits(destination: Destination, node_name: str, place: NodePlace) -> bool:
    pod = SchedulablePod(
        uid="",
        namespace="",
        name="",
        priority=0,
        requests={},
        node_selector=dict(destination.selector),
        required_terms=destination.terms,
        tolerations=destination.tolerations,
    )
    return may_go_to(
        pod, SchedulableNode(node_name, dict(place.labels), place.taints, place.unschedulable, {})
    )


def _told_terms(terms: tuple[NodeTerm, ...] | None, untold: tuple[str, ...]) -> tuple[NodeTerm, ...] | None:
    if terms is None:
        return None
    told = []
    for term in terms:
        left = NodeTerm(tuple(one for one in term.expressions if not one.key.startswith(untold)), term.fields)
        if left != term and not (left.expressions or left.fields):
            # An empty term matches nothing; one of which nothing is told may match any node.
            return None
        told.append(left)
    return tuple(told)
