"""The pods of each node out of one informer, and which of a node's pods went lately.

One handler for all nodes, so that many agents of one process share it.
"""

from collections import defaultdict
from dataclasses import dataclass, field

from gpuloom.kube.cache import Change
from gpuloom.kube.informer import Informer
from gpuloom.kube.objects import JsonObject, ObjectKey, key_of, uid_of
from gpuloom.model.node import PodRef

MAX_GONE_PER_NODE = 512


@dataclass(slots=True)
class IndexedPod:
    """`has_forerunner`: a pod of this name was here before, or one may have been before we looked."""

    pod: JsonObject
    has_forerunner: bool


@dataclass(slots=True)
class NodePods:
    """`version` grows with every change. `gone` are those that were here, by UID, the latest last."""

    version: int = 0
    pods: dict[ObjectKey, IndexedPod] = field(default_factory=dict)
    gone: dict[str, PodRef] = field(default_factory=dict)


class PodIndex:
    def __init__(self, informer: Informer) -> None:
        self.informer = informer
        self._nodes: defaultdict[str, NodePods] = defaultdict(NodePods)
        informer.on_change(self._hear)

    def of(self, node_name: str) -> NodePods:
        return self._nodes[node_name]

    def _hear(self, change: Change) -> None:
        old_node, new_node = _node_of(change.old), _node_of(change.new)
        if change.old is not None and old_node and old_node != new_node:
            self._remove(self._nodes[old_node], change.old)
        if change.new is not None and new_node:
            self._put(self._nodes[new_node], change.new)

    def _put(self, node: NodePods, pod: JsonObject) -> None:
        key, uid = key_of(pod), uid_of(pod)
        before = node.pods.get(key)
        if before is not None and uid_of(before.pod) == uid:
            node.pods[key] = IndexedPod(pod, before.has_forerunner)
        else:
            names = {(gone.namespace, gone.name) for gone in node.gone.values()}
            # Of what was here before the first list nothing is known.
            node.pods[key] = IndexedPod(pod, not self.informer.synced or key in names)
        node.version += 1

    def _remove(self, node: NodePods, pod: JsonObject) -> None:
        key, uid = key_of(pod), uid_of(pod)
        node.pods.pop(key, None)
        node.gone.pop(uid, None)
        node.gone[uid] = PodRef(*key, uid)
        while len(node.gone) > MAX_GONE_PER_NODE:
            del node.gone[next(iter(node.gone))]
        node.version += 1


def _node_of(pod: JsonObject | None) -> str:
    spec = (pod or {}).get("spec")
    name = spec.get("nodeName") if isinstance(spec, dict) else None
    return name if isinstance(name, str) else ""
