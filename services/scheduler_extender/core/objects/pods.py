"""Pods as the ledger, the host accounts and the nominations see them, from Kubernetes' JSON.

What can't be read is not left out: a bound pod whose request or allocation is unreadable is carried along
with its problem, because it may hold devices all the same.
"""

from dataclasses import dataclass

from gpuloom.codec.allocation import believable, decode_allocation
from gpuloom.codec.fields import object_field, text_field
from gpuloom.codec.pod import (
    bound_node,
    bound_request,
    is_terminal,
    kubelet_reports_end,
    plugged_devices,
    pod_ref,
    pod_request,
)
from gpuloom.codec.resources import containers, cpu_and_memory
from gpuloom.errors import InvalidRequestError
from gpuloom.kube.objects import JsonObject, metadata_of
from gpuloom.model.allocation import Allocation
from gpuloom.model.request import PodRequest
from gpuloom.names import ANNOTATION_ALLOCATION, LABEL_GANG
from gpuloom.placement.occupancy.nominations import NOT_CREATED, Asker, Nomination
from services.scheduler_extender.core.ledger.claims import Asked, ObservedPod


@dataclass(frozen=True, slots=True)
class HostShare:
    """CPU and memory that a pod takes of its node."""

    node_name: str
    cpu_milli: int
    memory_bytes: int


def observed_pod(pod: JsonObject) -> ObservedPod | None:
    """None for a pod that neither asks for a GPU nor carries an allocation: the ledger need not know it."""
    ref, node_name = pod_ref(pod), bound_node(pod) or ""
    request, problem = _request(pod)
    text = allocation_text(pod)
    if request is None and not problem and text is None:
        return None
    allocation: Allocation | None = None
    unreadable = ""
    if text is not None:
        allocation, unreadable = _allocation(text, ref.uid)
    return ObservedPod(
        ref=ref,
        node_name=node_name,
        terminal=is_terminal(pod),
        request=request,
        allocation=allocation,
        problem=problem or unreadable,
        version=_text(metadata_of(pod).get("resourceVersion")),
        asked=_asked(pod) if node_name and not unreadable else None,
        ended=_has_ended(pod),
    )


def host_share(pod: JsonObject, observed: ObservedPod | None) -> HostShare | None:
    """None for a pod that takes nothing of any node now. `observed`: the same pod, if the ledger knows it."""
    if observed is not None and observed.request is not None:
        if not observed.node_name or observed.terminal:
            return None
        return HostShare(observed.node_name, observed.request.cpu_milli, observed.request.memory_bytes)
    node_name = bound_node(pod)
    if node_name is None or is_terminal(pod):
        return None
    try:
        cpu_milli, memory_bytes = cpu_and_memory(pod, containers(pod))
    except InvalidRequestError:
        # Only the balance score reads this, so an unreadable pod may count as nothing.
        return HostShare(node_name, 0, 0)
    return HostShare(node_name, cpu_milli, memory_bytes)


def asker_of(pod: JsonObject) -> Asker:
    """Who asks, and how important it is. What can't be read is as if it were not there."""
    metadata, spec, status = metadata_of(pod), pod.get("spec"), pod.get("status")
    priority = spec.get("priority") if isinstance(spec, dict) else None
    nominated_node = status.get("nominatedNodeName") if isinstance(status, dict) else None
    labels = metadata.get("labels")
    gang = _text(labels.get(LABEL_GANG)) if isinstance(labels, dict) else ""
    namespace = _text(metadata.get("namespace"))
    return Asker(
        _text(metadata.get("uid")),
        priority if isinstance(priority, int) else 0,
        _text(metadata.get("creationTimestamp")) or NOT_CREATED,
        _text(nominated_node),
        f"{namespace}/{_text(metadata.get('name'))}",
        f"{namespace}/{gang}" if gang else "",
    )


def nomination_of(pod: JsonObject, observed: ObservedPod) -> Nomination | None:
    """None for a pod that is promised no node, or that will not be bound: ended, going, never admitted."""
    if observed.node_name or observed.terminal or observed.request is None:
        return None
    if observed.problem or observed.allocation is not None or metadata_of(pod).get("deletionTimestamp"):
        return None
    asker = asker_of(pod)
    return Nomination(asker, observed.request) if asker.nominated_node else None


def allocation_text(pod: JsonObject) -> str | None:
    annotations = metadata_of(pod).get("annotations")
    value = annotations.get(ANNOTATION_ALLOCATION) if isinstance(annotations, dict) else None
    return value if isinstance(value, str) else None


def _has_ended(pod: JsonObject) -> bool:
    """By its kubelet's word; what can't be read is none."""
    try:
        return kubelet_reports_end(pod)
    except InvalidRequestError:
        return False


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _request(pod: JsonObject) -> tuple[PodRequest | None, str]:
    try:
        return (bound_request(pod) if bound_node(pod) else pod_request(pod)), ""
    except InvalidRequestError as error:
        return None, str(error)


def _asked(pod: JsonObject) -> Asked | None:
    try:
        plugged = plugged_devices(pod)
        runtime_class = text_field(object_field(pod, "spec", "pod"), "runtimeClassName", "spec")
    except InvalidRequestError:
        return None
    return Asked(plugged, from_agent_only=not plugged and not runtime_class)


def _allocation(text: str, pod_uid: str) -> tuple[Allocation | None, str]:
    try:
        allocation = decode_allocation(text)
    except InvalidRequestError as error:
        return None, f"its allocation can't be read: {error}"
    # Which node it is for is judged by the ledger, which knows the node's UID.
    doubt = believable(allocation, pod_uid, allocation.node_uid)
    return (None, doubt) if doubt else (allocation, "")
