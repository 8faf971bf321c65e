"""Filters that look at one node: taints, selector and affinity, resources. Pure.

A node that is not ready keeps pods away by its taint alone, as in a real cluster. What depends on the pods of
other nodes is in `neighbours`. Texts are those of kube-scheduler.
"""

from collections.abc import Mapping

from gpuloom.model.snapshot import Taint
from gpuloom.placement.constraints.objects import (
    PODS,
    NodeRequirement,
    NodeTerm,
    NodeUse,
    SchedulableNode,
    SchedulablePod,
    Toleration,
)

UNSCHEDULABLE = "node(s) were unschedulable"
UNTOLERATED_TAINT = "node(s) had untolerated taint(s)"
AFFINITY_MISMATCH = "node(s) didn't match Pod's node affinity/selector"
TOO_MANY_PODS = "Too many pods"

_UNSCHEDULABLE_TAINT = Taint("node.kubernetes.io/unschedulable", "", "NoSchedule")
_HARD_EFFECTS = frozenset({"NoSchedule", "NoExecute"})


def refusals(pod: SchedulablePod, node: SchedulableNode, use: NodeUse) -> tuple[str, ...]:
    """Why the node does not take the pod; nothing if it does. The first filter that refuses speaks alone."""
    if _is_cordoned(pod, node):
        return (UNSCHEDULABLE,)
    if not tolerates_node(pod, node):
        return (UNTOLERATED_TAINT,)
    if not selects_node(pod, node):
        return (AFFINITY_MISMATCH,)
    return tuple(_insufficient(pod, node, use))


def may_go_to(pod: SchedulablePod, node: SchedulableNode) -> bool:
    """Whatever room there is."""
    return not _is_cordoned(pod, node) and tolerates_node(pod, node) and selects_node(pod, node)


def _is_cordoned(pod: SchedulablePod, node: SchedulableNode) -> bool:
    return node.unschedulable and not _tolerated(_UNSCHEDULABLE_TAINT, pod)


def tolerates_node(pod: SchedulablePod, node: SchedulableNode) -> bool:
    """Whether no taint of the node keeps the pod away."""
    return all(taint.effect not in _HARD_EFFECTS or _tolerated(taint, pod) for taint in node.taints)


def selects_node(pod: SchedulablePod, node: SchedulableNode) -> bool:
    """By the pod's node selector and its required node affinity."""
    if any(node.labels.get(key) != value for key, value in pod.node_selector.items()):
        return False
    if pod.required_terms is None:
        return True
    return any(_term_matches(term, node) for term in pod.required_terms)


def _tolerated(taint: Taint, pod: SchedulablePod) -> bool:
    return any(_tolerates(toleration, taint) for toleration in pod.tolerations)


def _tolerates(toleration: Toleration, taint: Taint) -> bool:
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.key and toleration.key != taint.key:
        return False
    if toleration.operator == "Exists":
        return True
    return bool(toleration.key) and toleration.value == taint.value


def _term_matches(term: NodeTerm, node: SchedulableNode) -> bool:
    if not term.expressions and not term.fields:
        return False
    return all(_matches(expression, node.labels) for expression in term.expressions) and all(
        _matches(expression, {"metadata.name": node.name}) for expression in term.fields
    )


def _matches(requirement: NodeRequirement, labels: Mapping[str, str]) -> bool:
    value = labels.get(requirement.key)
    match requirement.operator:
        case "In":
            return value is not None and value in requirement.values
        case "NotIn":
            return value not in requirement.values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt" | "Lt" as operator:
            return _compares(value, requirement.values, greater=operator == "Gt")
        case _:
            return False


def _compares(value: str | None, values: tuple[str, ...], *, greater: bool) -> bool:
    try:
        number, bound = int(value or ""), int(values[0])
    except (ValueError, IndexError):
        return False
    return number > bound if greater else number < bound


def _insufficient(pod: SchedulablePod, node: SchedulableNode, use: NodeUse) -> list[str]:
    reasons = [TOO_MANY_PODS] if use.pods + 1 > node.allocatable.get(PODS, 0) else []
    for name, wanted in sorted(pod.requests.items()):
        if wanted > node.allocatable.get(name, 0) - use.requested.get(name, 0):
            reasons.append(f"Insufficient {name}")
    return reasons
