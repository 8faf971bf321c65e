"""Pods and nodes for kube-scheduler's own filters, from Kubernetes' JSON.

The API server has checked these objects; what is malformed all the same is refused, never guessed at.
Namespace selectors of pod affinity count as "all namespaces": labels of namespaces are not known here.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from gpuloom.errors import InvalidRequestError
from gpuloom.kube.parse import quantity_milli, quantity_value
from gpuloom.model.objects import LabelRequirement, LabelSelector, SelectorOperator
from gpuloom.model.snapshot import Taint
from gpuloom.placement.constraints.objects import (
    CPU,
    Amounts,
    NodeRequirement,
    NodeTerm,
    PodTerm,
    SchedulableNode,
    SchedulablePod,
    SpreadConstraint,
    Toleration,
)

Json = Mapping[str, Any]

_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def schedulable_pod(raw: dict[str, Any]) -> SchedulablePod:
    """Raise InvalidRequestError for a pod that can't be read."""
    try:
        return _pod(raw)
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        raise InvalidRequestError(f"the pod can't be read: {error}") from None


def schedulable_node(raw: Json) -> SchedulableNode:
    """Raise InvalidRequestError for a node that can't be read."""
    try:
        return _node(raw)
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        raise InvalidRequestError(f"the node can't be read: {error}") from None


def label_selector(raw: Json | None) -> LabelSelector | None:
    """None, which selects nothing, stays None. Raise InvalidRequestError for one that can't be read."""
    try:
        return _selector({"labelSelector": raw}, {})
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        raise InvalidRequestError(f"the selector can't be read: {error}") from None


def effective_requests(spec: Json) -> dict[str, int]:
    """Containers and sidecars add up; an init container needs its own beside the sidecars before it."""
    running: dict[str, int] = {}
    for container in spec.get("containers") or ():
        _add(running, container_requests(container))
    sidecars: dict[str, int] = {}
    peak: dict[str, int] = {}
    for container in spec.get("initContainers") or ():
        wanted = container_requests(container)
        if container.get("restartPolicy") == "Always":
            _add(sidecars, wanted)
            _raise_to(peak, sidecars)
        else:
            alone = dict(sidecars)
            _add(alone, wanted)
            _raise_to(peak, alone)
    _add(running, sidecars)
    _raise_to(running, peak)
    _add(running, _amounts(spec.get("overhead") or {}))
    return {name: amount for name, amount in running.items() if amount > 0}


def container_requests(container: Json) -> dict[str, int]:
    """A resource with a limit but no request requests its limit."""
    resources = container.get("resources") or {}
    return _amounts({**(resources.get("limits") or {}), **(resources.get("requests") or {})})


def _pod(raw: dict[str, Any]) -> SchedulablePod:
    metadata, spec = raw.get("metadata") or {}, raw.get("spec") or {}
    affinity = spec.get("affinity") or {}
    required = (affinity.get("nodeAffinity") or {}).get(_REQUIRED)
    labels = dict(metadata.get("labels") or {})
    return SchedulablePod(
        uid=metadata.get("uid") or "",
        namespace=metadata.get("namespace") or "",
        name=metadata.get("name") or "",
        priority=int(spec.get("priority") or 0),
        requests=effective_requests(spec),
        node_selector=dict(spec.get("nodeSelector") or {}),
        required_terms=None if required is None else _node_terms(required),
        tolerations=tuple(map(_toleration, spec.get("tolerations") or ())),
        labels=labels,
        terminating=bool(metadata.get("deletionTimestamp")),
        spread=tuple(_spread(spec.get("topologySpreadConstraints") or (), labels)),
        affinity=_pod_terms(affinity.get("podAffinity"), labels),
        anti_affinity=_pod_terms(affinity.get("podAntiAffinity"), labels),
        raw=raw,
    )


def _node(raw: Json) -> SchedulableNode:
    metadata = raw.get("metadata") or {}
    spec, status = raw.get("spec") or {}, raw.get("status") or {}
    return SchedulableNode(
        name=metadata.get("name") or "",
        labels=dict(metadata.get("labels") or {}),
        taints=tuple(map(_taint, spec.get("taints") or ())),
        unschedulable=bool(spec.get("unschedulable")),
        allocatable=_amounts(status.get("allocatable") or status.get("capacity") or {}),
    )


def _taint(taint: Json) -> Taint:
    return Taint(taint.get("key") or "", taint.get("value") or "", taint.get("effect") or "")


def _toleration(toleration: Json) -> Toleration:
    return Toleration(
        toleration.get("key") or "",
        toleration.get("operator") or "Equal",
        toleration.get("value") or "",
        toleration.get("effect") or "",
    )


def _node_terms(required: Json) -> tuple[NodeTerm, ...]:
    return tuple(
        NodeTerm(
            tuple(map(_requirement, term.get("matchExpressions") or ())),
            tuple(map(_requirement, term.get("matchFields") or ())),
        )
        for term in required.get("nodeSelectorTerms") or ()
    )


def _requirement(expression: Json) -> NodeRequirement:
    return NodeRequirement(
        str(expression.get("key")),
        str(expression.get("operator")),
        tuple(str(value) for value in expression.get("values") or ()),
    )


def _spread(constraints: Iterable[Json], labels: Mapping[str, str]) -> Iterable[SpreadConstraint]:
    for constraint in constraints:
        if constraint.get("whenUnsatisfiable") == "DoNotSchedule":
            yield SpreadConstraint(
                topology_key=constraint["topologyKey"],
                max_skew=int(constraint["maxSkew"]),
                selector=_selector(constraint, labels),
                min_domains=int(constraint.get("minDomains") or 1),
                honors_affinity=(constraint.get("nodeAffinityPolicy") or "Honor") == "Honor",
                honors_taints=constraint.get("nodeTaintsPolicy") == "Honor",
            )


def _pod_terms(affinity: Json | None, labels: Mapping[str, str]) -> tuple[PodTerm, ...]:
    terms = (affinity or {}).get(_REQUIRED) or ()
    return tuple(
        PodTerm(
            term["topologyKey"],
            _selector(term, labels),
            None if term.get("namespaceSelector") is not None else frozenset(term.get("namespaces") or ()),
        )
        for term in terms
    )


def _selector(term: Json, labels: Mapping[str, str]) -> LabelSelector | None:
    """With what the pod's own labels add by matchLabelKeys and mismatchLabelKeys."""
    selector = term.get("labelSelector")
    if selector is None:
        return None
    expressions = [
        LabelRequirement(
            expression["key"],
            SelectorOperator(expression["operator"]),
            tuple(expression.get("values") or ()),
        )
        for expression in selector.get("matchExpressions") or ()
    ]
    for keys, operator in (
        ("matchLabelKeys", SelectorOperator.IN),
        ("mismatchLabelKeys", SelectorOperator.NOT_IN),
    ):
        expressions += [
            LabelRequirement(key, operator, (labels[key],)) for key in term.get(keys) or () if key in labels
        ]
    return LabelSelector(dict(selector.get("matchLabels") or {}), tuple(expressions))


def _amounts(quantities: Json) -> dict[str, int]:
    return {
        name: quantity_milli(text) if name == CPU else quantity_value(text)
        for name, text in quantities.items()
    }


def _add(total: dict[str, int], more: Amounts) -> None:
    for name, amount in more.items():
        total[name] = total.get(name, 0) + amount


def _raise_to(total: dict[str, int], floor: Amounts) -> None:
    for name, amount in floor.items():
        total[name] = max(total.get(name, 0), amount)
