"""Pods with a priority, and pods that were promised a node."""

from collections.abc import Mapping

from gpuloom.model.node import PodRef
from tests.unit.scheduler_extender.builders import JsonObject, a_pod, a_ref

EARLY, LATE = "2026-01-01T00:00:00Z", "2026-01-01T00:00:01Z"


def a_ranked_pod(
    name: str | PodRef,
    priority: int | None = None,
    resources: Mapping[str, str] | None = None,
    *,
    nominated: str = "",
    created: str = EARLY,
) -> JsonObject:
    """A pod that waits; it asks for a whole GPULoom card unless told otherwise."""
    pod = a_pod(a_ref(name) if isinstance(name, str) else name, resources)
    pod["metadata"]["creationTimestamp"] = created
    if priority is not None:
        pod["spec"]["priority"] = priority
    if nominated:
        pod["status"]["nominatedNodeName"] = nominated
    return pod
