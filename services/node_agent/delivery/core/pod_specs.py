"""What this node's pods say of their devices: what they ask for, and who has them by environment. Pure.

Reads pods as Kubernetes shows them. Never decides whether a container gets devices: `verify` does.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gpuloom.codec.allocation import believable, decode_allocation
from gpuloom.codec.fields import object_field, text_field
from gpuloom.codec.pod import bound_node, kubelet_reports_end, pod_ref
from gpuloom.codec.resources import containers
from gpuloom.errors import InvalidRequestError
from gpuloom.kube.objects import JsonObject, key_of
from gpuloom.names import (
    ANNOTATION_ALLOCATION,
    ANNOTATION_MIG_PROFILE,
    RESOURCE_GPU_MEMORY_MIB,
    RESOURCE_GPU_MILLI,
)
from services.node_agent.delivery.core.comparison import Requested
from services.node_agent.delivery.core.verify import Delivered

_OURS = frozenset({RESOURCE_GPU_MILLI, RESOURCE_GPU_MEMORY_MIB})


@dataclass(frozen=True, slots=True)
class Seat:
    """The node whose pods are read, and the runtime class under which they get devices by environment."""

    node_name: str
    node_uid: str
    runtime_class: str


@dataclass(frozen=True, slots=True)
class GivenByEnvironment:
    """`unreadable` names a pod that may have devices which nobody can tell; empty if there is none."""

    known: tuple[Delivered, ...]
    unreadable: str = ""


def requested(pod: JsonObject) -> Requested:
    """What the pod asks for of gpuloom.dev/*. Raise InvalidRequestError unless one container asks.

    What else a request may wish for was heeded when the pod was placed, and is not read here.
    """
    asking = [container for container in containers(pod) if _OURS & container.devices.keys()]
    if len(asking) != 1:
        raise InvalidRequestError(f"{len(asking)} containers of the pod ask for gpuloom.dev/*, not one")
    (container,) = asking
    annotations = _annotations(pod)
    return Requested(
        container=container.name,
        milli=container.devices.get(RESOURCE_GPU_MILLI, 0),
        memory_mib=container.devices.get(RESOURCE_GPU_MEMORY_MIB),
        mig_profile=text_field(annotations, ANNOTATION_MIG_PROFILE, "metadata.annotations") or None,
    )


def service_account(pod: JsonObject) -> str:
    """Under which the pod runs; empty if it does not say."""
    return text_field(object_field(pod, "spec", "pod"), "serviceAccountName", "spec")


def given_by_environment(pods: Iterable[JsonObject], seat: Seat) -> GivenByEnvironment:
    """Whose containers may have devices by their environment.

    From its binding on a pod counts, because its containers may be created at any moment; until its kubelet
    reports its end, because only then are they surely gone.
    """
    known: list[Delivered] = []
    unreadable = ""
    for pod in pods:
        try:
            given = _given(pod, seat)
        except InvalidRequestError:
            unreadable = unreadable or "/".join(key_of(pod))
            continue
        known += [given] if given is not None else []
    return GivenByEnvironment(tuple(known), unreadable)


def _given(pod: JsonObject, seat: Seat) -> Delivered | None:
    """Raise InvalidRequestError if the pod has an allocation that can't be read."""
    if bound_node(pod) != seat.node_name or kubelet_reports_end(pod):
        return None
    spec = object_field(pod, "spec", "pod")
    if text_field(spec, "runtimeClassName", "spec") != seat.runtime_class:
        return None
    text = text_field(_annotations(pod), ANNOTATION_ALLOCATION, "metadata.annotations")
    if not text:
        return None
    allocation, ref = decode_allocation(text), pod_ref(pod)
    if allocation.advisory or believable(allocation, ref.uid, seat.node_uid):
        return None
    return Delivered(ref, allocation.container, allocation.devices)


def _annotations(pod: JsonObject) -> Mapping[str, object]:
    return object_field(object_field(pod, "metadata", "pod"), "annotations", "metadata")
