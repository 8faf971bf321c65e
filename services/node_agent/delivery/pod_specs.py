"""What this node's pods say of their devices: which container asks, and who has them by environment. Pure.

Reads pods as Kubernetes shows them. Never decides whether a container gets devices: `verify` does.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from gpuloom.codec.allocation import believable, decode_allocation
from gpuloom.codec.fields import object_field, text_field
from gpuloom.codec.pod import bound_node, kubelet_reports_end, pod_ref
from gpuloom.codec.resources import containers
from gpuloom.errors import InvalidRequestError
from gpuloom.kube.objects import JsonObject, key_of
from gpuloom.names import ANNOTATION_ALLOCATION, RESOURCE_GPU_MEMORY_MIB, RESOURCE_GPU_MILLI
from services.node_agent.delivery.verify import Delivered

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


def asking_container(pod: JsonObject) -> str:
    """Name of the one container that asks for gpuloom.dev/*. Raise InvalidRequestError if it is not one."""
    asking = [container.name for container in containers(pod) if _OURS & container.devices.keys()]
    if len(asking) != 1:
        raise InvalidRequestError(f"{len(asking)} containers of the pod ask for gpuloom.dev/*, not one")
    return asking[0]


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
    metadata = object_field(pod, "metadata", "pod")
    annotations = object_field(metadata, "annotations", "metadata")
    text = text_field(annotations, ANNOTATION_ALLOCATION, "metadata.annotations")
    if not text:
        return None
    allocation, ref = decode_allocation(text), pod_ref(pod)
    if allocation.advisory or believable(allocation, ref.uid, seat.node_uid):
        return None
    return Delivered(ref, allocation.container, allocation.devices)
