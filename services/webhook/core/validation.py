"""What the schemas of custom resources can't say, because it depends on what is installed here."""

from collections.abc import Callable, Mapping
from typing import Any

from gpuloom.catalog import load_catalog
from gpuloom.codec.custom.autoscaling import autoscaling_policy
from gpuloom.codec.custom.budget import cost_budget
from gpuloom.codec.custom.claims import gpu_hold, gpu_node_claim, gpu_reservation
from gpuloom.codec.custom.inference import inference_policy
from gpuloom.codec.custom.sharing import gpu_node_config, gpu_sharing_policy
from gpuloom.codec.custom.workload import gpu_workload
from gpuloom.codec.pod import pod_request
from gpuloom.errors import InvalidRequestError

Json = Mapping[str, Any]
Check = Callable[[Json, frozenset[str]], str | None]


def problem_of(kind: str, obj: Json, strategies: frozenset[str]) -> str | None:
    """Why this object can't work here; None if it can, or if its kind is not checked."""
    read = _READERS.get(kind)
    if read is None:
        return None
    try:
        # What its controller could not read would never do anything; the status is not the user's.
        read({**_IDENTITY, **obj, "metadata": _metadata(obj), "status": {}})
    except InvalidRequestError as error:
        return str(error)
    check = _CHECKS.get(kind)
    return None if check is None else check(obj.get("spec") or {}, strategies)


def wrong_request(pod: Json) -> str | None:
    """Why what the pod asks for has no clear meaning, with the right form; None if it has one."""
    metadata = {"name": "pod", "namespace": "default", "uid": "", **(pod.get("metadata") or {})}
    try:
        pod_request({**pod, "metadata": metadata})
    except InvalidRequestError as error:
        return str(error)
    return None


def _metadata(obj: Json) -> Json:
    """At admission of a new object some of it is not there yet."""
    given = obj.get("metadata")
    known = given if isinstance(given, dict) else {}
    name = known.get("name") or known.get("generateName") or "new"
    return {"uid": "new", "namespace": "default", "generation": 1, **known, "name": str(name).rstrip("-.")}


def _workload(spec: Json, strategies: frozenset[str]) -> str | None:
    strategy = spec.get("schedulingStrategy", "leastLoaded")
    if strategies and strategy not in strategies:
        known = ", ".join(sorted(strategies))
        return f"spec.schedulingStrategy: there is no strategy {strategy}; installed are {known}"
    return _known_profile(spec.get("migProfile"), "spec.migProfile")


def _sharing_policy(spec: Json, strategies: frozenset[str]) -> str | None:
    return _known_profile((spec.get("migConfig") or {}).get("profile"), "spec.migConfig.profile")


def _node_config(spec: Json, strategies: frozenset[str]) -> str | None:
    for profile in spec.get("migProfiles") or ():
        name = profile if isinstance(profile, str) else (profile or {}).get("profile")
        problem = _known_profile(name, "spec.migProfiles")
        if problem:
            return problem
    return None


def _autoscaling_policy(spec: Json, strategies: frozenset[str]) -> str | None:
    for pool in spec.get("nodePools") or ():
        gpu = pool.get("gpuType")
        if gpu and load_catalog().find_gpu(gpu) is None:
            return f"spec.nodePools: gpuType {gpu} is not known; write e.g. nvidia-a100-80gb"
    return None


def _known_profile(profile: object, where: str) -> str | None:
    if not isinstance(profile, str) or load_catalog().mig_milli(profile):
        return None
    return f"{where}: no GPU model that GPULoom knows has the MIG profile {profile}"


_IDENTITY: Json = {"apiVersion": "", "kind": ""}
_READERS: Mapping[str, Callable[[object], object]] = {
    "GPUWorkload": gpu_workload,
    "GPUSharingPolicy": gpu_sharing_policy,
    "GPUNodeConfig": gpu_node_config,
    "AutoscalingPolicy": autoscaling_policy,
    "AIInferenceAutoscalerPolicy": inference_policy,
    "CostBudget": cost_budget,
    "GPUHold": gpu_hold,
    "GPUNodeClaim": gpu_node_claim,
    "GPUReservation": gpu_reservation,
}
_CHECKS: Mapping[str, Check] = {
    "GPUWorkload": _workload,
    "GPUSharingPolicy": _sharing_policy,
    "GPUNodeConfig": _node_config,
    "AutoscalingPolicy": _autoscaling_policy,
}
