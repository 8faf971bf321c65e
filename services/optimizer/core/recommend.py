"""What to change, as a document that a person can apply. Pure.

Decides the form: a Deployment or StatefulSet gets a strategic merge patch of its container's resources. A
Job's or a bare pod's resources can't be changed, so these get a manifest of their own under another name.
"""

import copy
from dataclasses import dataclass
from typing import Any

from gpuloom.kube.objects import JsonObject
from gpuloom.names import (
    ANNOTATION_ALLOCATION,
    ANNOTATION_EPOCH,
    ANNOTATION_MIG_PROFILE,
    ANNOTATION_MPS_MEMORY,
    ANNOTATION_MPS_THREADS,
    ANNOTATION_VISIBLE_DEVICES,
    REQUIRED_PLUGINS_PREFIX,
    RESOURCE_GPU_MEMORY_MIB,
    RESOURCE_GPU_MILLI,
    RESOURCE_NVIDIA_GPU,
    RESOURCE_NVIDIA_MIG_PREFIX,
)
from services.optimizer.core.offers import Fit
from services.optimizer.core.workload import NEW_NAME_SUFFIX, Workload

_WRITTEN_BY_OTHERS = (
    ANNOTATION_ALLOCATION,
    ANNOTATION_EPOCH,
    ANNOTATION_MPS_MEMORY,
    ANNOTATION_MPS_THREADS,
    ANNOTATION_VISIBLE_DEVICES,
    REQUIRED_PLUGINS_PREFIX,
    "kubectl.kubernetes.io/",
)
PATCHED_KINDS = ("Deployment", "StatefulSet")
_MAX_NAME = 63
_KEPT_METADATA = ("namespace", "labels", "annotations")
_JOB_LABELS = (
    "controller-uid",
    "job-name",
    "batch.kubernetes.io/controller-uid",
    "batch.kubernetes.io/job-name",
)
_POD_FIELDS = ("nodeName", "hostname", "serviceAccount", "priority", "preemptionPolicy", "enableServiceLinks")


@dataclass(frozen=True, slots=True)
class Change:
    """`target`: Deployment/serve, or the new object's kind and name."""

    target: str
    is_patch: bool
    document: dict[str, Any]


def change_of(workload: Workload, fit: Fit, manifest: JsonObject | None) -> Change | None:
    """`manifest` is the Job's or the bare pod's own; without it there is nothing to copy."""
    if workload.owner.kind in PATCHED_KINDS:
        return Change(str(workload.owner), True, resource_patch(workload, fit))
    if manifest is None:
        return None
    new = new_manifest(workload, fit, manifest)
    return Change(f"{new['kind']}/{new['metadata']['name']}", False, new)


def resource_patch(workload: Workload, fit: Fit) -> dict[str, Any]:
    """Null takes away what was asked for before: a pod must not ask in two ways."""
    after = {name: str(amount) for name, amount in fit.resources}
    gone = {name: None for name in _asked_names(workload) if name not in after}
    resources = {"limits": {**gone, **after}, "requests": {**gone, **after}}
    container = {"name": workload.container, "resources": resources}
    template: dict[str, Any] = {"spec": {"containers": [container]}}
    if fit.mig_profile or workload.request.mig_profile:
        template["metadata"] = {"annotations": {ANNOTATION_MIG_PROFILE: fit.mig_profile or None}}
    return {"spec": {"template": template}}


def new_manifest(workload: Workload, fit: Fit, manifest: JsonObject) -> dict[str, Any]:
    new = {key: copy.deepcopy(manifest[key]) for key in ("apiVersion", "kind", "metadata", "spec")}
    old_name = str(new["metadata"].get("name", "pod"))
    new["metadata"] = _metadata(new["metadata"])
    new["metadata"]["name"] = old_name[: _MAX_NAME - len(NEW_NAME_SUFFIX)].rstrip("-.") + NEW_NAME_SUFFIX
    pod_spec, pod_metadata = new["spec"], new["metadata"]
    if new["kind"] == "Job":
        new["spec"].pop("selector", None)
        new["spec"].pop("manualSelector", None)
        template = new["spec"]["template"]
        pod_metadata = template["metadata"] = _metadata(template.get("metadata") or {})
        pod_spec = template["spec"]
    _set_profile(pod_metadata, fit)
    for field in _POD_FIELDS:
        pod_spec.pop(field, None)
    for container in pod_spec["containers"]:
        if container.get("name") == workload.container:
            _resize(container, _asked_names(workload), fit)
    _drop_injected(pod_spec)
    return new


def _metadata(metadata: JsonObject) -> dict[str, Any]:
    kept = {key: copy.deepcopy(metadata[key]) for key in _KEPT_METADATA if metadata.get(key)}
    labels = {key: text for key, text in kept.get("labels", {}).items() if key not in _JOB_LABELS}
    # What the scheduler or an agent wrote belongs to the old one.
    annotations = {
        key: text
        for key, text in kept.get("annotations", {}).items()
        if not key.startswith(_WRITTEN_BY_OTHERS)
    }
    return {
        **{key: kept[key] for key in ("namespace",) if key in kept},
        **({"labels": labels} if labels else {}),
        **({"annotations": annotations} if annotations else {}),
    }


def _set_profile(metadata: dict[str, Any], fit: Fit) -> None:
    annotations = {
        key: text for key, text in metadata.pop("annotations", {}).items() if key != ANNOTATION_MIG_PROFILE
    }
    if fit.mig_profile:
        annotations[ANNOTATION_MIG_PROFILE] = fit.mig_profile
    if annotations:
        metadata["annotations"] = annotations


def _resize(container: dict[str, Any], gone: list[str], fit: Fit) -> None:
    resources = container.setdefault("resources", {})
    for part in ("limits", "requests"):
        amounts = {name: amount for name, amount in (resources.get(part) or {}).items() if name not in gone}
        resources[part] = amounts | {name: str(amount) for name, amount in fit.resources}


def _drop_injected(pod_spec: dict[str, Any]) -> None:
    """The volume of the service account's token is added anew to each pod."""
    injected = {
        volume["name"]
        for volume in pod_spec.get("volumes") or ()
        if str(volume.get("name", "")).startswith("kube-api-access-")
    }
    if not injected:
        return
    pod_spec["volumes"] = [each for each in pod_spec["volumes"] if each["name"] not in injected]
    for container in (*pod_spec["containers"], *(pod_spec.get("initContainers") or ())):
        mounts = container.get("volumeMounts") or []
        container["volumeMounts"] = [each for each in mounts if each.get("name") not in injected]


def _asked_names(workload: Workload) -> list[str]:
    request = workload.request
    if request.authority == "gpuloom":
        return [RESOURCE_GPU_MILLI, RESOURCE_GPU_MEMORY_MIB]
    if request.mig_profile:
        return [RESOURCE_NVIDIA_MIG_PREFIX + request.mig_profile.replace("+", ".")]
    return [RESOURCE_NVIDIA_GPU]
