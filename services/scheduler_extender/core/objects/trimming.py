"""What the informers keep of pods and nodes. Pure.

A pod that waits is kept as it is: people ask why it waits. Of the many that are bound only what the ledger
and the host accounts read is kept, and what their containers ask for is one object for all that ask alike.
"""

from functools import lru_cache
from typing import Any

import orjson

from gpuloom.kube.objects import JsonObject, metadata_of, without_managed_fields

_IDENTITY = ("name", "namespace", "uid", "resourceVersion")
_METADATA = (*_IDENTITY, "deletionTimestamp")
_OURS = "gpuloom.dev/"
_SPEC = ("nodeName", "runtimeClassName", "overhead", "resources", "priority")
_KEEPS_APART = "podAntiAffinity"
_CONTAINERS = ("initContainers", "containers")
_STATUSES = ("initContainerStatuses", "containerStatuses")
_ENDED = ("Succeeded", "Failed")
_WORD_OF_KUBELET = ("startTime", *_STATUSES, "ephemeralContainerStatuses")
_KINDS_REMEMBERED = 4096
_LARGEST_REMEMBERED_BYTES = 16_384


def trim_pod(pod: JsonObject) -> JsonObject:
    """What is no pod as the API server would show it is kept as it is, for those who judge it."""
    metadata, spec, status = metadata_of(pod), pod.get("spec"), pod.get("status") or {}
    annotations, labels = metadata.get("annotations") or {}, metadata.get("labels") or {}
    if not isinstance(spec, dict) or not spec.get("nodeName"):
        return without_managed_fields(pod)
    if not all(isinstance(part, dict) for part in (annotations, labels, status)):
        return without_managed_fields(pod)
    kept: JsonObject = {key: metadata[key] for key in _METADATA if key in metadata}
    if ours := {key: value for key, value in annotations.items() if key.startswith(_OURS)}:
        kept["annotations"] = ours
    # Whoever plans for many pods asks which others they may be beside, and disruption budgets select by them.
    if labels:
        kept["labels"] = _one_of_a_kind(orjson.dumps(labels))
    if owners := metadata.get("ownerReferences"):
        kept["ownerReferences"] = _one_of_a_kind(orjson.dumps(owners))
    kept_spec = {key: spec[key] for key in _SPEC if key in spec}
    kept_spec |= {key: _shared(spec[key]) for key in _CONTAINERS if key in spec}
    affinity = spec.get("affinity")
    if isinstance(affinity, dict) and affinity.get(_KEEPS_APART):
        kept_spec["affinity"] = _one_of_a_kind(orjson.dumps({_KEEPS_APART: affinity[_KEEPS_APART]}))
    kept_status = {key: status[key] for key in ("phase", "startTime") if key in status}
    kept_status |= {key: _allocated(status[key]) for key in _STATUSES if _has_allocated(status.get(key))}
    if status.get("phase") in _ENDED:
        # Whether its kubelet says so as well.
        kept_status |= {key: _states(status[key]) for key in _WORD_OF_KUBELET if key in status}
    return {"metadata": kept, "spec": kept_spec, "status": kept_status}


def trim_node(node: JsonObject) -> JsonObject:
    """Which node it is, what pods may use of it, and what kube-scheduler's own filters look at."""
    metadata, spec, status = metadata_of(node), node.get("spec"), node.get("status")
    allocatable = status.get("allocatable") if isinstance(status, dict) else None
    trimmed: JsonObject = {
        "metadata": {key: metadata[key] for key in (*_IDENTITY, "labels") if key in metadata},
        "status": {"allocatable": allocatable},
    }
    if kept_spec := _picked(spec, ("taints", "unschedulable")):
        trimmed["spec"] = kept_spec
    return trimmed


def _shared(listed: Any) -> Any:
    if not isinstance(listed, list) or not all(isinstance(entry, dict) for entry in listed):
        return listed
    asked = [_picked(entry, ("name", "restartPolicy", "resources")) for entry in listed]
    return _one_of_a_kind(orjson.dumps(asked))


def _one_of_a_kind(text: bytes) -> Any:
    """What is larger than what workloads have is not remembered: it would stay when its pod has gone."""
    return _remembered(text) if len(text) <= _LARGEST_REMEMBERED_BYTES else orjson.loads(text)


@lru_cache(maxsize=_KINDS_REMEMBERED)
def _remembered(text: bytes) -> Any:
    return orjson.loads(text)


def _has_allocated(listed: Any) -> bool:
    """Statuses are kept where they say more than the containers do, or where they can't be read."""
    if not isinstance(listed, list):
        return listed is not None
    return any(not isinstance(entry, dict) or entry.get("allocatedResources") for entry in listed)


def _allocated(listed: Any) -> Any:
    if not isinstance(listed, list):
        return listed
    return [_picked(entry, ("name", "allocatedResources")) for entry in listed]


def _states(listed: Any) -> Any:
    """Of each container in which state it is, and what `_allocated` keeps."""
    if not isinstance(listed, list) or not all(isinstance(entry, dict) for entry in listed):
        return listed
    return [_picked(entry, ("name", "allocatedResources")) | _state(entry.get("state")) for entry in listed]


def _state(state: Any) -> JsonObject:
    return {"state": {kind: {} for kind in state} if isinstance(state, dict) else state}


def _picked(body: Any, keys: tuple[str, ...]) -> Any:
    return {key: body[key] for key in keys if key in body} if isinstance(body, dict) else body
