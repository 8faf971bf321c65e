"""Follows nodes, pods and namespaces in Kubernetes and writes what changes, a second at a time.

What is not written when the process dies is told again by the next list. Only what was deleted meanwhile is
not; that ends where it was last known to be there, until windows that come later show it for longer.
"""

import logging
from collections.abc import Mapping
from typing import Any

from gpuloom.errors import GpuloomError
from gpuloom.kube.cache import Change
from gpuloom.kube.client import KubeClient
from gpuloom.kube.informer import Informer, InformerOptions
from gpuloom.kube.listing import Selection
from gpuloom.kube.objects import JsonObject, metadata_of, uid_of
from gpuloom.kube.resources import NAMESPACES, NODES, PODS
from gpuloom.runtime.clock import Clock
from services.cost_engine.core.objects import node_name_of
from services.cost_engine.core.tracking import Tracker
from services.cost_engine.ingest.consumer import now_ns
from services.cost_engine.store.store import CostStore, FactChanges

_log = logging.getLogger(__name__)

FLUSH_S = 1.0
BY_NODE = "node"
ALIVE_S = 15.0
"""How often what lasts is noted as seen: so much of a node's end may not be known after a crash."""
_BOUND = Selection(field_selector="spec.nodeName!=")
_POD_FIELDS = ("containers", "initContainers", "nodeName", "overhead", "resources", "runtimeClassName")
_CONTAINERS = ("containers", "initContainers")
_MAX_ANNOTATION = 4096


class Sources:
    """What is followed in Kubernetes."""

    def __init__(self, client: KubeClient, clock: Clock) -> None:
        self.nodes = Informer(client, NODES, clock, InformerOptions(transform=trimmed_node))
        options = InformerOptions(selection=_BOUND, transform=trimmed_pod, indexes={BY_NODE: names_of_node})
        self.pods = Informer(client, PODS, clock, options)
        self.namespaces = Informer(client, NAMESPACES, clock)

    @property
    def synced(self) -> bool:
        return self.nodes.synced and self.pods.synced and self.namespaces.synced

    async def wait_synced(self) -> None:
        await self.namespaces.wait_synced()
        await self.nodes.wait_synced()
        await self.pods.wait_synced()


class FactWriter:
    def __init__(self, sources: Sources, store: CostStore, tracker: Tracker, clock: Clock) -> None:
        self.tracker = tracker
        self._sources = sources
        self._store = store
        self._clock = clock
        self._alive_s = -ALIVE_S

    async def start(self) -> None:
        """Take up what was written before, then what Kubernetes shows now."""
        nodes, pods = await self._store.open_intervals()
        self.tracker.restore(nodes, pods)
        seen = {node.node_uid: seen_ns for node, seen_ns in nodes}
        seen |= {pod.pod_uid: seen_ns for pod, seen_ns in pods}
        await self._sources.wait_synced()
        self._sources.namespaces.on_change(self._observe_namespace)
        self._sources.nodes.on_change(self._observe_node)
        self._sources.pods.on_change(self._observe_pod)
        listed = (*self._sources.nodes.objects(), *self._sources.pods.objects())
        present = frozenset(map(uid_of, listed))
        gone = [pod.pod_uid for pod, _ in pods if pod.pod_uid not in present]
        since_ns = min((seen[uid] for uid in gone), default=0) - 3_600_000_000_000
        known_end = await self._store.known_end_ns(gone, since_ns)
        self.tracker.settle(seen, present, known_end, now_ns(self._clock))
        # Before any window is read: windows narrow the gaps that are written here.
        while not await self.flush():
            await self._clock.sleep(FLUSH_S)

    async def run(self) -> None:
        while True:
            await self._clock.sleep(FLUSH_S)
            await self.flush()

    async def flush(self) -> bool:
        """Write what changed; what can't be written is kept for the next time. False if that is so."""
        pending, now = self.tracker.drain(), now_ns(self._clock)
        is_due = self._clock.monotonic() - self._alive_s >= ALIVE_S
        if is_due:
            self._alive_s = self._clock.monotonic()
        alive_nodes = tuple(self.tracker.nodes) if is_due else ()
        alive_pods = tuple(self.tracker.pods) if is_due else ()
        if pending.nodes or pending.pods or pending.gaps or is_due:
            changes = FactChanges(pending.nodes, pending.pods, pending.gaps, alive_nodes, alive_pods)
            try:
                await self._store.save_facts(changes, now)
            except GpuloomError as error:
                self.tracker.give_back(pending, now)
                _log.warning("changes not written, trying again", extra={"reason": str(error)})
                return False
        for gap in pending.gaps:
            fields = {"node": gap.node_uid, "pod": gap.pod_uid, "reason": gap.reason}
            _log.warning("a stretch of time is not known", extra=fields)
        return True

    def _observe_node(self, change: Change) -> None:
        if change.new is None:
            self.tracker.forget_node(change.object, now_ns(self._clock))
        else:
            self.tracker.observe_node(change.new, now_ns(self._clock))
            if change.old is None:
                # One that was deleted and registered itself anew has its pods still: nothing of them changed.
                name = str(metadata_of(change.new).get("name", ""))
                for pod in self._sources.pods.by_index(BY_NODE, name):
                    self.tracker.observe_pod(pod, now_ns(self._clock))

    def _observe_pod(self, change: Change) -> None:
        if change.new is None:
            self.tracker.forget_pod(change.object, now_ns(self._clock))
        else:
            self.tracker.observe_pod(change.new, now_ns(self._clock))

    def _observe_namespace(self, change: Change) -> None:
        metadata = metadata_of(change.object)
        labels = metadata.get("labels")
        name = str(metadata.get("name", ""))
        if change.new is None:
            self.tracker.namespace_labels.pop(name, None)
        elif isinstance(labels, Mapping):
            self.tracker.namespace_labels[name] = {str(key): str(value) for key, value in labels.items()}


def names_of_node(pod: JsonObject) -> list[str]:
    """The index of pods by node."""
    name = node_name_of(pod)
    return [] if name is None else [name]


def trimmed_node(node: JsonObject) -> JsonObject:
    """Without what is most of a node and never read here."""
    metadata, status = metadata_of(node), node.get("status") or {}
    return {
        "metadata": {
            key: metadata[key]
            for key in ("name", "uid", "resourceVersion", "creationTimestamp", "labels")
            if key in metadata
        },
        "spec": {"providerID": (node.get("spec") or {}).get("providerID")},
        "status": {key: status[key] for key in ("capacity", "allocatable") if key in status},
    }


def trimmed_pod(pod: JsonObject) -> JsonObject:
    metadata, spec, status = metadata_of(pod), pod.get("spec") or {}, pod.get("status") or {}
    kept = {key: value for key, value in metadata.items() if key not in ("managedFields", "annotations")}
    annotations = metadata.get("annotations") or {}
    kept["annotations"] = {
        key: value
        for key, value in annotations.items()
        if isinstance(value, str)
        and len(value) <= _MAX_ANNOTATION
        and key.startswith(("gpuloom.dev/", "gpu-autoscaler.io/"))
    }
    return {
        "metadata": kept,
        "spec": {
            key: _asking(spec[key]) if key in _CONTAINERS else spec[key] for key in _POD_FIELDS if key in spec
        },
        "status": {
            key: status[key]
            for key in ("phase", "startTime", "conditions", "containerStatuses", "initContainerStatuses")
            if key in status
        },
    }


def _asking(listed: Any) -> Any:
    """Of containers what they ask for; a strange list is kept as it is."""
    if not isinstance(listed, list) or not all(isinstance(entry, dict) for entry in listed):
        return listed
    return [
        {key: entry[key] for key in ("name", "restartPolicy", "resources") if key in entry}
        for entry in listed
    ]
