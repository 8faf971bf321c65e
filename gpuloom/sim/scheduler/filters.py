"""The in-tree filters: may this pod run on this node? Pure; the texts are kube-scheduler's.

A node that is not ready keeps pods away by its taint alone, as in a real cluster.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from gpuloom.kube.objects import JsonObject
from gpuloom.sim.scheduler.objects import PODS, Amounts, SchedulableNode, SchedulablePod

UNSCHEDULABLE = "node(s) were unschedulable"
UNTOLERATED_TAINT = "node(s) had untolerated taint(s)"
AFFINITY_MISMATCH = "node(s) didn't match Pod's node affinity/selector"
TOO_MANY_PODS = "Too many pods"

_UNSCHEDULABLE_TAINT: JsonObject = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
_HARD_EFFECTS = frozenset({"NoSchedule", "NoExecute"})


@dataclass(frozen=True, slots=True)
class NodeUse:
    """What runs on a node already."""

    requested: Amounts
    pods: int


def refusals(pod: SchedulablePod, node: SchedulableNode, use: NodeUse) -> tuple[str, ...]:
    """Why the node does not take the pod; nothing if it does. The first filter that refuses speaks alone."""
    if node.unschedulable and not _tolerated(_UNSCHEDULABLE_TAINT, pod):
        return (UNSCHEDULABLE,)
    if any(taint.get("effect") in _HARD_EFFECTS and not _tolerated(taint, pod) for taint in node.taints):
        return (UNTOLERATED_TAINT,)
    if not _selected(pod, node):
        return (AFFINITY_MISMATCH,)
    return tuple(_insufficient(pod, node, use))


def _tolerated(taint: JsonObject, pod: SchedulablePod) -> bool:
    return any(_tolerates(toleration, taint) for toleration in pod.tolerations)


def _tolerates(toleration: JsonObject, taint: JsonObject) -> bool:
    if toleration.get("effect") and toleration["effect"] != taint.get("effect"):
        return False
    if toleration.get("key") and toleration["key"] != taint.get("key"):
        return False
    if (toleration.get("operator") or "Equal") == "Exists":
        return True
    return bool(toleration.get("key")) and (toleration.get("value") or "") == (taint.get("value") or "")


def _selected(pod: SchedulablePod, node: SchedulableNode) -> bool:
    if any(node.labels.get(key) != value for key, value in pod.node_selector.items()):
        return False
    if pod.required_terms is None:
        return True
    return any(_term_matches(term, node) for term in pod.required_terms)


def _term_matches(term: JsonObject, node: SchedulableNode) -> bool:
    """An empty term matches nothing."""
    expressions, fields = term.get("matchExpressions") or (), term.get("matchFields") or ()
    if not expressions and not fields:
        return False
    return all(_matches(expression, node.labels) for expression in expressions) and all(
        _matches(expression, {"metadata.name": node.name}) for expression in fields
    )


def _matches(expression: JsonObject, labels: Mapping[str, str]) -> bool:
    value = labels.get(str(expression.get("key")))
    values = [str(entry) for entry in expression.get("values") or ()]
    match expression.get("operator"):
        case "In":
            return value is not None and value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt" | "Lt" as operator:
            return _compares(value, values, greater=operator == "Gt")
        case _:
            return False


def _compares(value: str | None, values: list[str], *, greater: bool) -> bool:
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
