"""Binding, eviction and scale. Decides their preconditions; each is one atomic write of the main object."""

from typing import Any

from gpuloom.sim.kubeapi.objects.objects import with_generation
from gpuloom.sim.kubeapi.objects.pods import with_condition
from gpuloom.sim.kubeapi.objects.validation import check_update
from gpuloom.sim.kubeapi.resources import Resource, ScalePaths
from gpuloom.sim.kubeapi.status import (
    FieldProblem,
    bad_request,
    conflict,
    invalid,
    require_precondition,
    stale,
    success,
    unknown_path,
)
from gpuloom.sim.kubeapi.storage.collection import Entry, Object
from gpuloom.sim.kubeapi.verbs.deletion import DeleteOptions
from gpuloom.sim.kubeapi.verbs.disruption import Disruptions
from gpuloom.sim.kubeapi.verbs.store import Store, WriteOptions


def bind(store: Store, namespace: str, name: str, binding: Any, *, dry_run: bool = False) -> Object:
    """Give the pod its node, and the Binding's labels and annotations, in one write.

    Raise 404 for a missing pod, 409 when a precondition fails or the pod is bound or going. Whether the node
    exists, or has room, is not this server's business.
    """
    node = _bound_node(name, binding)
    pods = store.registry.get("pods")
    entry = store.entry(pods, name, namespace)
    metadata = binding.get("metadata") or {}
    _require_bindable(entry, metadata, node)
    pod = entry.obj
    condition = {
        "type": "PodScheduled",
        "status": "True",
        "lastProbeTime": None,
        "lastTransitionTime": store.database.timestamp(),
    }
    status = pod.get("status") or {}
    conditions = with_condition(status.get("conditions") or [], condition)
    bound_metadata = dict(pod["metadata"])
    for field in ("annotations", "labels"):
        if metadata.get(field):
            bound_metadata[field] = {**(bound_metadata.get(field) or {}), **metadata[field]}
    bound = {
        **pod,
        "metadata": bound_metadata,
        "spec": {**pod["spec"], "nodeName": node},
        "status": {**status, "conditions": conditions},
    }
    store.replace(pods, entry, bound, WriteOptions(dry_run=dry_run))
    return success(code=201)


def evict(
    store: Store, disruptions: Disruptions, namespace: str, name: str, options: DeleteOptions
) -> Object:
    """Delete the pod if its budget allows it. Raise 404, 409 (preconditions), 429 (budget)."""
    pod = store.get("pods", name, namespace)
    _require_eviction_preconditions(pod, options)
    disruptions.require_evictable(pod)
    store.delete("pods", name, namespace=namespace, options=options)
    return success(code=201)


def read_scale(resource: Resource, obj: Object) -> Object:
    paths = _scale_paths(resource)
    metadata = obj["metadata"]
    shown = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
    status: Object = {"replicas": _whole(_lookup(obj, paths.status_replicas), 0)}
    selector = _selector_text(_lookup(obj, paths.selector))
    if selector:
        status["selector"] = selector
    return {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {key: metadata[key] for key in shown if key in metadata},
        "spec": {"replicas": _whole(_lookup(obj, paths.replicas), 0 if resource.custom else 1)},
        "status": status,
    }


def write_scale(store: Store, resource: Resource, entry: Entry, scale: Any, options: WriteOptions) -> Object:
    """Set the wanted replicas. Raise 409 for another resourceVersion, 422 for a negative number."""
    paths = _scale_paths(resource)
    if not isinstance(scale, dict) or not isinstance(scale.get("spec") or {}, dict):
        raise bad_request("the request body must be a Scale object")
    metadata = scale.get("metadata")
    asked_version = metadata.get("resourceVersion") if isinstance(metadata, dict) else None
    if asked_version and asked_version != str(entry.version):
        raise stale(resource.key, entry.key[1])
    replicas = (scale.get("spec") or {}).get("replicas", 0)
    if not isinstance(replicas, int) or isinstance(replicas, bool) or (replicas < 0 and not resource.custom):
        problem = FieldProblem("spec.replicas", f"Invalid value: {replicas}: must be a number of at least 0")
        raise invalid("autoscaling", "Scale", entry.key[1], [problem])
    scaled = _replaced(entry.obj, paths.replicas, replicas)
    check_update(store.registry, resource, entry.obj, scaled)
    if replicas < 0:
        place = "." + ".".join(paths.replicas)
        problem = FieldProblem(place, f"Invalid value: {replicas}: should be a non-negative integer")
        raise invalid(resource.group, resource.kind, entry.key[1], [problem])
    scaled = with_generation(resource, entry.obj, scaled)
    return read_scale(resource, store.replace(resource, entry, scaled, options))


def _bound_node(name: str, binding: Any) -> str:
    if not isinstance(binding, dict):
        raise bad_request("the request body must be a Binding object")
    metadata, target = binding.get("metadata") or {}, binding.get("target") or {}
    if not isinstance(metadata, dict) or not isinstance(target, dict):
        raise bad_request("a Binding's metadata and target must be objects")
    for field in ("annotations", "labels"):
        values = metadata.get(field) or {}
        if not isinstance(values, dict) or not all(isinstance(value, str) for value in values.values()):
            raise bad_request(f"metadata.{field} of a Binding must map text to text")
    if metadata.get("name") and metadata["name"] != name:
        raise bad_request("name in URL does not match name in Binding object")
    if target.get("kind") not in (None, "", "Node"):
        problem = FieldProblem(
            "target.kind", f'Unsupported value: "{target["kind"]}": supported values: "Node"'
        )
        raise invalid("", "Binding", name, [problem])
    node = target.get("name")
    if not isinstance(node, str) or not node:
        problem = FieldProblem("target.name", "Required value", "FieldValueRequired")
        raise invalid("", "Binding", name, [problem])
    return node


def _require_bindable(entry: Entry, wanted: Object, node: str) -> None:
    pod, name = entry.obj, entry.key[1]
    require_precondition("pods/binding", pod["metadata"], "UID", wanted.get("uid"))
    if wanted.get("resourceVersion") and wanted["resourceVersion"] != str(entry.version):
        raise stale("pods/binding", name)
    if pod["metadata"].get("deletionTimestamp"):
        raise conflict("pods/binding", name, f"pod {name} is being deleted, cannot be assigned to a host")
    if pod["spec"].get("nodeName"):
        why = f"pod {name} is already assigned to node {pod['spec']['nodeName']!r}"
        raise conflict("pods/binding", name, why)
    if pod["spec"].get("schedulingGates"):
        raise conflict("pods/binding", name, f"pod {name} has non-empty .spec.schedulingGates")


def _require_eviction_preconditions(pod: Object, options: DeleteOptions) -> None:
    """Before the budget: an eviction that names another pod must not learn (or spend) this one's budget."""
    require_precondition("pods", pod["metadata"], "UID", options.uid)
    require_precondition("pods", pod["metadata"], "ResourceVersion", options.resource_version)


def _scale_paths(resource: Resource) -> ScalePaths:
    if resource.scale is None:
        raise unknown_path()
    return resource.scale


def _lookup(obj: Any, path: tuple[str, ...]) -> Any:
    for step in path:
        obj = obj.get(step) if isinstance(obj, dict) else None
    return obj


def _replaced(obj: Any, path: tuple[str, ...], value: int) -> Object:
    parent = obj if isinstance(obj, dict) else {}
    inner = value if len(path) == 1 else _replaced(parent.get(path[0]), path[1:], value)
    return {**parent, path[0]: inner}


def _whole(value: Any, default: int) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else default


def _selector_text(selector: Any) -> str:
    if isinstance(selector, str):
        return selector
    if not isinstance(selector, dict):
        return ""
    labels = selector.get("matchLabels", {}) if "matchLabels" in selector else selector
    plain = labels.items() if isinstance(labels, dict) else ()
    return ",".join(f"{key}={value}" for key, value in sorted(plain) if isinstance(value, str))
