"""What the API server fills into a new pod: defaults, requests from limits, its quality of service. Pure."""

from typing import Any

from gpuloom.sim.kubeapi.objects.quantities import amounts_as_text, parse_quantity

Object = dict[str, Any]

_SPEC_DEFAULTS: Object = {
    "restartPolicy": "Always",
    "dnsPolicy": "ClusterFirst",
    "schedulerName": "default-scheduler",
    "terminationGracePeriodSeconds": 30,
    "enableServiceLinks": True,
    "preemptionPolicy": "PreemptLowerPriority",
    "securityContext": {},
}
_QOS_RESOURCES = ("cpu", "memory")
_NODE_PROBLEMS = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
_TOLERATED_S = 300


def with_pod_defaults(pod: Object) -> Object:
    given = {key: value for key, value in (pod.get("spec") or {}).items() if value is not None}
    spec = {**_SPEC_DEFAULTS, **given}
    for field in ("containers", "initContainers"):
        if field in spec:
            spec[field] = [_with_requests(container) for container in spec[field]]
    spec["tolerations"] = _with_default_tolerations(spec.get("tolerations") or [])
    conditions = _gated_condition() if spec.get("schedulingGates") else {}
    return {
        **pod,
        "spec": spec,
        "status": {"phase": "Pending", "qosClass": quality_of_service(spec), **conditions},
    }


def updated_pod_spec(current: Object, updated: Object) -> Object:
    """The spec of a written pod with what the server had filled in, so that a bare manifest is no change."""
    spec: Object = with_pod_defaults(updated)["spec"]
    kept = ("priority", "priorityClassName", "preemptionPolicy")
    given = updated.get("spec") or {}
    return {
        **spec,
        **{key: current["spec"][key] for key in kept if key in current["spec"] and key not in given},
    }


def with_priority(pod: Object, priority_class: Object | None) -> Object:
    """The pod with the priority of its class; without one its priority is 0."""
    spec = {**pod["spec"], "priority": 0}
    if priority_class is not None:
        spec["priorityClassName"] = priority_class["metadata"]["name"]
        spec["priority"] = int(priority_class.get("value", 0))
        spec["preemptionPolicy"] = priority_class.get("preemptionPolicy") or "PreemptLowerPriority"
    return {**pod, "spec": spec}


def quality_of_service(spec: Object) -> str:
    """Guaranteed, Burstable or BestEffort, by the CPU and memory of all containers."""
    containers = [*(spec.get("containers") or ()), *(spec.get("initContainers") or ())]
    amounts = [container.get("resources") or {} for container in containers]
    if not any(_amounts(one, kind) for one in amounts for kind in ("requests", "limits")):
        return "BestEffort"
    if all(_is_guaranteed(one) for one in amounts):
        return "Guaranteed"
    return "Burstable"


def is_terminal(pod: Object) -> bool:
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")


def is_ready(pod: Object) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return any(one.get("type") == "Ready" and one.get("status") == "True" for one in conditions)


def with_condition(conditions: list[Object], condition: Object) -> list[Object]:
    """The conditions with this one in place of the one of its type."""
    return [*(one for one in conditions if one.get("type") != condition["type"]), condition]


def _with_requests(container: Object) -> Object:
    given = container.get("resources") or {}
    limits = amounts_as_text(given.get("limits") or {})
    requests = {**limits, **amounts_as_text(given.get("requests") or {})}
    resources = {**given, "limits": limits, "requests": requests}
    return {**container, "resources": {key: value for key, value in resources.items() if value}}


def _with_default_tolerations(tolerations: list[Object]) -> list[Object]:
    added = [
        {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": _TOLERATED_S}
        for key in _NODE_PROBLEMS
        if not any(_covers(toleration, key) for toleration in tolerations)
    ]
    return [*tolerations, *added]


def _covers(toleration: Object, key: str) -> bool:
    return toleration.get("key") in (key, "", None) and toleration.get("effect") in ("NoExecute", "", None)


def _gated_condition() -> Object:
    message = "Scheduling is blocked due to non-empty scheduling gates"
    condition = {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated", "message": message}
    return {"conditions": [condition]}


def _amounts(resources: Object, kind: str) -> Object:
    given = resources.get(kind) or {}
    return {name: given[name] for name in _QOS_RESOURCES if parse_quantity(given.get(name))}


def _is_guaranteed(resources: Object) -> bool:
    limits, requests = _amounts(resources, "limits"), _amounts(resources, "requests")
    return set(limits) == set(_QOS_RESOURCES) and all(
        parse_quantity(limits[name]) == parse_quantity(requests.get(name)) for name in _QOS_RESOURCES
    )
