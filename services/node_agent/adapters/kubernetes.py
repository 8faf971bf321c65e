"""This node and its pods, from an informer.

Decides when a name means a certain pod. The kubelet lists devices by a pod's name alone, and a pod made anew
under the name of one that just went is another pod, while the list may still be of the one before.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from gpuloom.codec.allocation import decode_allocation
from gpuloom.codec.pod import kubelet_reports_end
from gpuloom.errors import InvalidRequestError
from gpuloom.kube.informer import Informer
from gpuloom.kube.objects import JsonObject, metadata_of, uid_of
from gpuloom.model.gpu import DeviceRef
from gpuloom.model.node import PodRef
from gpuloom.names import ANNOTATION_ALLOCATION
from services.node_agent.adapters.pod_index import IndexedPod, NodePods, PodIndex
from services.node_agent.ports import NamedPod, PodNames

MAX_SILENCE_S = 60.0

# A static pod is known to its node by the hash of its manifest; in Kubernetes a mirror with a UID of its own
# stands for it.
_CONFIG_HASH = "kubernetes.io/config.hash"
_CONFIG_MIRROR = "kubernetes.io/config.mirror"
_ENDED = ("Succeeded", "Failed")
_STATUSES = ("containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses")


@dataclass(frozen=True, slots=True)
class _View:
    """One state of the node's pods. A static pod is in `refs` and `containers` by its hash, too."""

    names: PodNames = field(default_factory=dict)
    refs: Mapping[str, PodRef] = field(default_factory=dict)
    containers: Mapping[tuple[str, str], str] = field(default_factory=dict)
    alive: frozenset[str] = frozenset()
    given: Mapping[str, Mapping[DeviceRef, int]] = field(default_factory=dict)


class InformedPods:
    """The pods of one node; `nodes` holds at least this node."""

    def __init__(self, node_name: str, nodes: Informer, pods: PodIndex) -> None:
        self._node_name = node_name
        self._nodes = nodes
        self._pods = pods
        self._view = _View()
        self._viewed_version = -1

    def unsynced_reason(self) -> str:
        """Identity by name needs fresh news: a pod of the same name may have been made anew."""
        informer = self._pods.informer
        if not (self._nodes.synced and informer.synced):
            return "pods are not listed yet"
        if informer.last_contact_age_s() > MAX_SILENCE_S:
            return "the Kubernetes API is silent"
        return ""

    def node_uid(self) -> str:
        node = self._nodes.get(self._node_name)
        return "" if node is None else str(metadata_of(node).get("uid", ""))

    def names(self) -> PodNames:
        return self._current().names

    def pod_of(self, uid: str) -> PodRef | None:
        return self._current().refs.get(uid) or self._pods.of(self._node_name).gone.get(uid)

    def container_of(self, uid: str, container_id: str) -> str:
        return self._current().containers.get((uid, container_id), "")

    def is_alive(self, uid: str) -> bool:
        return uid in self._current().alive

    def given_of(self, uid: str) -> Mapping[DeviceRef, int]:
        """Thousandths of devices that this pod's own allocation gives it; nothing if that is not known."""
        return self._current().given.get(uid, {})

    def _current(self) -> _View:
        node = self._pods.of(self._node_name)
        if node.version != self._viewed_version:
            self._view, self._viewed_version = _view(node), node.version
        return self._view


def _view(node: NodePods) -> _View:
    names: dict[tuple[str, str], NamedPod] = {}
    refs: dict[str, PodRef] = {}
    containers: dict[tuple[str, str], str] = {}
    alive: set[str] = set()
    given: dict[str, Mapping[DeviceRef, int]] = {}
    hashes = _static_pods(node.pods.values())
    for key, indexed in node.pods.items():
        pod, uid = indexed.pod, uid_of(indexed.pod)
        names[key] = _named(indexed)
        own = [uid, hashes[uid]] if uid in hashes else [uid]
        refs |= {each: PodRef(*key, uid) for each in own}
        ids = dict(_container_ids(pod))
        containers |= {(each, container_id): name for each in own for container_id, name in ids.items()}
        if not _has_ended(pod):
            alive |= set(own)
        if allocated := _given(pod, uid):
            given[uid] = allocated
    return _View(names, refs, containers, frozenset(alive), given)


def _given(pod: JsonObject, uid: str) -> Mapping[DeviceRef, int]:
    record = _dict(metadata_of(pod).get("annotations")).get(ANNOTATION_ALLOCATION)
    if not isinstance(record, str):
        return {}
    try:
        allocation = decode_allocation(record)
    except InvalidRequestError:
        return {}
    return {each.device: each.milli for each in allocation.devices} if allocation.pod_uid == uid else {}


def _static_pods(pods: Iterable[IndexedPod]) -> dict[str, str]:
    """Hashes by the UIDs of mirrors. One that two pods claim, or that is another pod's UID, is nobody's."""
    claims: dict[str, list[str]] = {}
    uids = set()
    for indexed in pods:
        uid, annotations = uid_of(indexed.pod), _dict(metadata_of(indexed.pod).get("annotations"))
        uids.add(uid)
        config_hash = annotations.get(_CONFIG_HASH)
        if _CONFIG_MIRROR in annotations and isinstance(config_hash, str) and config_hash:
            claims.setdefault(config_hash, []).append(uid)
    return {
        mirrors[0]: config_hash
        for config_hash, mirrors in claims.items()
        if len(mirrors) == 1 and config_hash not in uids
    }


def _named(indexed: IndexedPod) -> NamedPod:
    """A kubelet drops the forerunner before it takes in the pod, and then says so by its start time.

    From then on its list is of this one; before, it may be of either.
    """
    pod = indexed.pod
    if indexed.has_forerunner and not _dict(pod.get("status")).get("startTime"):
        return NamedPod("")
    runs = any("running" in _dict(status.get("state")) for status in _container_statuses(pod))
    return NamedPod(uid_of(pod), over=_is_over(pod), runs=runs)


def _is_over(pod: JsonObject) -> bool:
    """Others may call a pod failed while its containers run on. What can't be read is no kubelet's word."""
    try:
        return kubelet_reports_end(pod)
    except InvalidRequestError:
        return False


def _has_ended(pod: JsonObject) -> bool:
    return _dict(pod.get("status")).get("phase") in _ENDED


def _container_ids(pod: JsonObject) -> Iterator[tuple[str, str]]:
    """Ids without the name of the runtime (`containerd://…`)."""
    for status in _container_statuses(pod):
        name, container_id = status.get("name"), status.get("containerID")
        if isinstance(name, str) and isinstance(container_id, str) and container_id:
            yield container_id.rpartition("://")[2], name


def _container_statuses(pod: JsonObject) -> Iterator[JsonObject]:
    status = _dict(pod.get("status"))
    for kind in _STATUSES:
        found = status.get(kind)
        if isinstance(found, list):
            yield from (_dict(each) for each in found)


def _dict(value: Any) -> JsonObject:
    return value if isinstance(value, dict) else {}
