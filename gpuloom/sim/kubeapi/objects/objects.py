"""What the server itself writes into objects: metadata, defaults of each kind, what an update may not touch.

Pure: time, uids and random suffixes are given in, and nothing passed in is changed.
"""

import base64
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import orjson

from gpuloom.sim.kubeapi.objects.pods import updated_pod_spec, with_pod_defaults
from gpuloom.sim.kubeapi.objects.quantities import amounts_as_text
from gpuloom.sim.kubeapi.objects.workloads import with_workload_defaults
from gpuloom.sim.kubeapi.resources import CRD_KEY, PDB_KEY, Resource
from gpuloom.sim.kubeapi.status import bad_request

Object = dict[str, Any]

GENERATE_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"
GENERATE_LENGTH = 5
_MAX_GENERATE_PREFIX = 63 - GENERATE_LENGTH
_SERVER_OWNED = ("uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "generation")
_MARKS = ("labels", "annotations")
_MARKED_BY_STATUS = ("nodes", "pods", PDB_KEY)
_DROPPED = ("managedFields", "selfLink")


@dataclass(frozen=True, slots=True)
class Birth:
    """What makes a new object unique."""

    uid: str
    timestamp: str
    random_suffix: Callable[[], str]


def copied(obj: Any) -> Any:
    """A deep copy through JSON: the store's objects are its own, whatever the caller does with his."""
    try:
        return orjson.loads(orjson.dumps(obj))
    except orjson.JSONEncodeError as error:
        raise bad_request(f"the object can't be stored as JSON: {error}") from error


def new_object(resource: Resource, obj: Object, namespace: str, birth: Birth) -> Object:
    """The object as it will be stored, before admission and validation. Raise 400 for an unfit body."""
    _require_kind(resource, obj)
    metadata = _given_metadata(obj)
    if metadata.pop("resourceVersion", None):
        raise bad_request("resourceVersion should not be set on objects to be created")
    if not metadata.get("name") and metadata.get("generateName"):
        metadata["name"] = metadata["generateName"][:_MAX_GENERATE_PREFIX] + birth.random_suffix()
    _place(resource, metadata, namespace)
    metadata["uid"] = birth.uid
    metadata["creationTimestamp"] = birth.timestamp
    if resource.has_status:
        metadata["generation"] = 1
    created = _headed(resource, obj, metadata)
    # Nodes register with their status; every other kind starts without one.
    if resource.has_status and resource.key != "nodes":
        created.pop("status", None)
    return with_defaults(resource, created, birth.timestamp)


def updated_object(resource: Resource, current: Object, obj: Object) -> Object:
    """The object after a write to the main resource: what the server owns, and the status, stay."""
    _require_kind(resource, obj)
    old_metadata = current["metadata"]
    metadata = _given_metadata(obj)
    metadata.update({key: old_metadata[key] for key in _SERVER_OWNED if key in old_metadata})
    metadata["resourceVersion"] = old_metadata["resourceVersion"]
    _place(resource, metadata, old_metadata.get("namespace", ""))
    updated = _headed(resource, obj, metadata)
    if resource.has_status:
        updated.pop("status", None)
        if "status" in current:
            updated["status"] = current["status"]
    if resource.key == "pods":
        return {**updated, "spec": updated_pod_spec(current, updated)}
    if resource.key == "secrets":
        return _with_decoded_secret(updated)
    return with_workload_defaults(resource.key, updated)


def with_status(resource: Resource, current: Object, obj: Object) -> Object:
    """The object after a write to its status subresource: the spec stays.

    Some kinds let labels and annotations change with it.
    """
    status = obj.get("status") or {}
    updated = _with_marks(current, obj) if resource.key in _MARKED_BY_STATUS else current
    if not status and "status" not in current:
        return updated
    updated = {**updated, "status": status}
    return _with_amounts_as_text(updated) if resource.key == "nodes" else updated


def _with_marks(current: Object, obj: Object) -> Object:
    given = _given_metadata(obj)
    metadata = {key: value for key, value in current["metadata"].items() if key not in _MARKS}
    return {**current, "metadata": metadata | {key: given[key] for key in _MARKS if given.get(key)}}


def with_generation(resource: Resource, old: Object, new: Object) -> Object:
    """Count a change of what is wanted; changes of metadata and status don't count."""
    if not resource.has_status or _wanted(old) == _wanted(new):
        return new
    generation = int(old["metadata"].get("generation", 0)) + 1
    return {**new, "metadata": {**new["metadata"], "generation": generation}}


def at_version(resource: Resource, obj: Object, version: str) -> Object:
    """The object as a client of this version of its group sees it."""
    wanted = resource.at(version)
    return obj if obj["apiVersion"] == wanted else {**obj, "apiVersion": wanted}


def completed(resource: Resource, obj: Object, *, strict: bool) -> Object:
    """A custom resource as its schema has it. Raise 400 for unknown fields that are not to be dropped."""
    if resource.schema is None:
        return obj
    complete, unknown = resource.schema.complete(obj)
    if strict and unknown:
        fields = ", ".join(f'unknown field "{field}"' for field in unknown)
        version = resource.versions[0]
        raise bad_request(
            f'{resource.kind} in version "{version}" cannot be handled as a {resource.kind}:'
            f" strict decoding error: {fields}"
        )
    return complete


def with_defaults(resource: Resource, obj: Object, timestamp: str) -> Object:
    if resource.key == CRD_KEY:
        return {**obj, "status": _definition_status(obj, timestamp)}
    fill = {
        "pods": with_pod_defaults,
        "nodes": _with_amounts_as_text,
        "namespaces": _with_namespace_defaults,
        "secrets": _with_decoded_secret,
        "persistentvolumeclaims": _with_pending_status,
    }.get(resource.key)
    return with_workload_defaults(resource.key, obj) if fill is None else fill(obj)


def _given_metadata(obj: Object) -> Object:
    """What the client may say: without the server's fields, and without the empty ones that mean nothing."""
    given = (obj.get("metadata") or {}).items()
    ignored = (*_DROPPED, *_SERVER_OWNED)
    return {key: value for key, value in given if key not in ignored and value not in (None, {}, [])}


def _headed(resource: Resource, obj: Object, metadata: Object) -> Object:
    rest = {key: value for key, value in obj.items() if key not in ("apiVersion", "kind", "metadata")}
    return {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata, **rest}


def _wanted(obj: Object) -> Object:
    return {key: value for key, value in obj.items() if key not in ("metadata", "status", "apiVersion")}


def _require_kind(resource: Resource, obj: Object) -> None:
    kind, api_version = obj.get("kind"), obj.get("apiVersion")
    if kind and kind != resource.kind:
        raise bad_request(f"the kind in the data ({kind}) does not match the expected kind ({resource.kind})")
    if api_version and api_version not in map(resource.at, resource.versions):
        raise bad_request(
            f"the API version in the data ({api_version}) does not match the expected API version"
            f" ({resource.api_version})"
        )


def _place(resource: Resource, metadata: Object, namespace: str) -> None:
    given = metadata.get("namespace")
    if not resource.namespaced:
        metadata.pop("namespace", None)
        return
    if given and given != namespace:
        raise bad_request(
            "the namespace of the provided object does not match the namespace sent on the request"
        )
    metadata["namespace"] = namespace


def _with_amounts_as_text(node: Object) -> Object:
    status = node.get("status") or {}
    amounts = {field: status.get(field) for field in ("capacity", "allocatable")}
    texts = {field: amounts_as_text(one) for field, one in amounts.items() if isinstance(one, dict)}
    return {**node, "status": {**status, **texts}} if texts else node


def _with_namespace_defaults(obj: Object) -> Object:
    metadata = obj["metadata"]
    labels = {**(metadata.get("labels") or {}), "kubernetes.io/metadata.name": metadata.get("name", "")}
    return {
        **obj,
        "metadata": {**metadata, "labels": labels},
        "spec": obj.get("spec") or {"finalizers": ["kubernetes"]},
        "status": {"phase": "Active"},
    }


def _with_pending_status(obj: Object) -> Object:
    return {**obj, "status": {"phase": "Pending"}}


def _with_decoded_secret(obj: Object) -> Object:
    texts = obj.get("stringData") or {}
    encoded = {key: base64.b64encode(text.encode()).decode() for key, text in texts.items()}
    secret = {**obj, "type": obj.get("type") or "Opaque"}
    secret.pop("stringData", None)
    if encoded:
        secret["data"] = {**(obj.get("data") or {}), **encoded}
    return secret


def _definition_status(obj: Object, timestamp: str) -> Object:
    spec = obj.get("spec") or {}
    conditions = [
        {
            "type": kind,
            "status": "True",
            "reason": reason,
            "message": message,
            "lastTransitionTime": timestamp,
        }
        for kind, reason, message in (
            ("NamesAccepted", "NoConflicts", "no conflicts found"),
            ("Established", "InitialNamesAccepted", "the initial names have been accepted"),
        )
    ]
    stored = [one.get("name") for one in spec.get("versions") or () if one.get("storage")]
    return {"conditions": conditions, "acceptedNames": spec.get("names") or {}, "storedVersions": stored}
