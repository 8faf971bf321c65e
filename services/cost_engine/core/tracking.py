"""Which nodes and pods are there, from what Kubernetes shows, and what of that is new to the store.

What ended while nobody looked ends where it was last known to be there; the rest of the time is a gap, told
as such. Times of pods are the kubelet's, so they are the same whoever hears of them, and when.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from gpuloom.kube.objects import JsonObject, metadata_of, uid_of
from services.cost_engine.core.intervals import HOUR_NS, NodeInterval, PodIdentity, PodInterval
from services.cost_engine.core.objects import (
    SliceRule,
    asks_for_gpus,
    created_ns,
    node_name_of,
    node_traits,
    pod_claim,
    pod_identity,
    pod_times,
)
from services.cost_engine.core.windows import SKEW_NS

NODE_GONE = "the node was gone when the engine came back"
POD_GONE = "the pod was gone when the engine came back"
POD_REMOVED = "the pod was removed before its containers had ended"
REMOVED_NS = HOUR_NS
"""So long after it was removed a pod is looked for in windows: its containers outlive a forced deletion."""


@dataclass(frozen=True, slots=True)
class NodeChange:
    """An interval as it is now. `touched`: from when to when what was computed before is wrong."""

    interval: NodeInterval
    touched: tuple[int, int]


@dataclass(frozen=True, slots=True)
class PodChange:
    interval: PodInterval
    identity: PodIdentity | None
    touched: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Gap:
    """A stretch of which it is not known what happened. `pod_uid` empty: the whole node."""

    node_uid: str
    pod_uid: str
    start_ns: int
    end_ns: int
    reason: str


@dataclass(slots=True)
class Pending:
    nodes: list[NodeChange] = field(default_factory=list)
    pods: list[PodChange] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)


class Tracker:
    """`epoch_ns`: nothing before this is counted."""

    def __init__(self, epoch_ns: int, pool_labels: tuple[str, ...], rule: SliceRule) -> None:
        self._epoch_ns = epoch_ns
        self._pool_labels = pool_labels
        self._rule = rule
        self.nodes: dict[str, NodeInterval] = {}
        self.pods: dict[str, PodInterval] = {}
        self.names: dict[str, tuple[str, str]] = {}
        """Namespace and name of the pods that are there."""
        self._uid_by_name: dict[str, str] = {}
        self._unplaced: dict[str, dict[str, JsonObject]] = {}
        """By node name, pods whose node was not seen yet."""
        self._pending = Pending()
        self.namespace_labels: dict[str, dict[str, str]] = {}
        """Where a pod has no label of a name, its namespace's holds."""

    def restore(self, nodes: list[tuple[NodeInterval, int]], pods: list[tuple[PodInterval, int]]) -> None:
        """What lasted when it was last written."""
        for node, _ in nodes:
            self.nodes[node.node_uid] = node
        for pod, _ in pods:
            self.pods[pod.pod_uid] = pod

    def settle(
        self,
        seen_ns: Mapping[str, int],
        present: frozenset[str],
        known_end_ns: Mapping[str, int],
        now_ns: int,
    ) -> None:
        """Everything was listed: what was restored and is not `present` has ended, by UID.

        `seen_ns`: when each was last known to be there. `known_end_ns`: until when usage shows a pod.
        """
        ends: list[tuple[str, int]] = []
        for uid in sorted(self.pods.keys() - present):
            pod = self.pods.pop(uid)
            end_ns = max(pod.start_ns, seen_ns.get(uid, pod.start_ns), known_end_ns.get(uid, 0))
            ends.append((pod.node_uid, end_ns))
            self._end_pod(pod, end_ns, now_ns)
            # Told even where usage shows the pod: windows that are still on their way narrow it. On a node
            # that is there they may show it even now, as after a forced deletion.
            gone_ns = now_ns + REMOVED_NS if pod.node_uid in present else now_ns
            if end_ns < gone_ns:
                self._pending.gaps.append(Gap(pod.node_uid, uid, end_ns, gone_ns, POD_GONE))
        for uid in sorted(self.nodes.keys() - present):
            node = self.nodes.pop(uid)
            # A pod that ran there to a later time proves that the node did.
            of_pods = [pod_end for pod_node, pod_end in ends if pod_node == uid]
            end_ns = max(node.start_ns, seen_ns.get(uid, node.start_ns), *of_pods)
            self._pending.nodes.append(NodeChange(replace(node, end_ns=end_ns), (end_ns, now_ns)))
            self._pending.gaps.append(Gap(uid, "", end_ns, now_ns, NODE_GONE))

    def observe_node(self, node: JsonObject, now_ns: int) -> None:
        traits, uid = node_traits(node, self._pool_labels), uid_of(node)
        known = self.nodes.get(uid)
        if traits is None:
            # One that lost its GPUs for now is paid for all the same.
            return
        self._uid_by_name[traits.name] = uid
        if known is None:
            start_ns = max(self._epoch_ns, min(created_ns(node) or now_ns, now_ns))
            self._begin_node(NodeInterval(uid, start_ns, None, traits), now_ns)
        elif known.traits != traits:
            if known.start_ns < now_ns:
                ended = replace(known, end_ns=now_ns)
                self._pending.nodes.append(NodeChange(ended, (now_ns, now_ns)))
            self._begin_node(NodeInterval(uid, max(now_ns, known.start_ns), None, traits), now_ns)
        for pod in self._unplaced.pop(traits.name, {}).values():
            self.observe_pod(pod, now_ns)

    def forget_node(self, node: JsonObject, now_ns: int) -> None:
        uid = uid_of(node)
        known = self.nodes.pop(uid, None)
        if known is None:
            return
        end_ns = max(known.start_ns, now_ns)
        self._pending.nodes.append(NodeChange(replace(known, end_ns=end_ns), (end_ns, now_ns)))
        if self._uid_by_name.get(known.traits.name) == uid:
            del self._uid_by_name[known.traits.name]
        for pod in [pod for pod in self.pods.values() if pod.node_uid == uid]:
            del self.pods[pod.pod_uid]
            self._end_pod(pod, end_ns, now_ns)

    def observe_pod(self, pod: JsonObject, now_ns: int) -> None:
        node_name, uid = node_name_of(pod), uid_of(pod)
        if node_name is None:
            return
        node_uid = self._uid_by_name.get(node_name)
        if node_uid is None:
            if asks_for_gpus(pod):
                self._unplaced.setdefault(node_name, {})[uid] = pod
            return
        node, known = self.nodes[node_uid], self.pods.get(uid)
        times = pod_times(pod)
        start_ns = max(self._epoch_ns, times.start_ns or now_ns)
        if times.ended:
            self.pods.pop(uid, None)
            self.names.pop(uid, None)
            # Without an end in its status a pod that was never seen to run was turned away.
            end_ns = times.end_ns if times.end_ns is not None else (now_ns if known else start_ns)
            # What has ended did so by now: the clock of its node is wrong.
            end_ns = min(end_ns, max(start_ns, now_ns)) if end_ns > now_ns + SKEW_NS else end_ns
            claim = known.claim if known else pod_claim(pod, node.traits, self._rule)
            if claim is None or (end_ns <= start_ns and known is None):
                return
            ended = PodInterval(uid, node_uid, start_ns, max(start_ns, end_ns), claim)
            touched = (start_ns, end_ns) if known is None else (min(known.start_ns, start_ns, end_ns), now_ns)
            self._pending.pods.append(PodChange(ended, self._identity(pod), touched))
            return
        claim = pod_claim(pod, node.traits, self._rule)
        if claim is None:
            return
        found = PodInterval(uid, node_uid, start_ns, None, claim)
        metadata = metadata_of(pod)
        # Also of one that was restored: intervals are kept without names.
        self.names[uid] = str(metadata.get("namespace", "")), str(metadata.get("name", ""))
        if found != known:
            self.pods[uid] = found
            first_ns = start_ns if known is None else min(start_ns, known.start_ns)
            self._pending.pods.append(PodChange(found, self._identity(pod), (first_ns, now_ns)))

    def forget_pod(self, pod: JsonObject, now_ns: int) -> None:
        """It is gone from Kubernetes. Its last status may say when it ended; else later windows do."""
        node_name, uid = node_name_of(pod), uid_of(pod)
        if node_name is not None:
            self._unplaced.get(node_name, {}).pop(uid, None)
        known = self.pods.pop(uid, None)
        if known is None:
            return
        times = pod_times(pod)
        self._end_pod(known, now_ns if times.end_ns is None else min(times.end_ns, now_ns), now_ns)
        if not times.ended:
            end_ns = max(known.start_ns, now_ns)
            gap = Gap(known.node_uid, uid, end_ns, end_ns + REMOVED_NS, POD_REMOVED)
            self._pending.gaps.append(gap)

    def _identity(self, pod: JsonObject) -> PodIdentity:
        namespace = str(metadata_of(pod).get("namespace", ""))
        return pod_identity(pod, self.namespace_labels.get(namespace))

    def drain(self) -> Pending:
        """What changed since it was asked last."""
        pending, self._pending = self._pending, Pending()
        return pending

    def give_back(self, pending: Pending, now_ns: int) -> None:
        """It could not be written: it comes again, before what changed since.

        Hours that are computed before it is written lack it, however long ago it happened.
        """
        newer = self._pending
        nodes = [replace(change, touched=_until(change.touched, now_ns)) for change in pending.nodes]
        pods = [replace(change, touched=_until(change.touched, now_ns)) for change in pending.pods]
        self._pending = Pending(nodes + newer.nodes, pods + newer.pods, pending.gaps + newer.gaps)

    def _begin_node(self, node: NodeInterval, now_ns: int) -> None:
        self.nodes[node.node_uid] = node
        self._pending.nodes.append(NodeChange(node, (node.start_ns, now_ns)))

    def _end_pod(self, pod: PodInterval, end_ns: int, now_ns: int) -> None:
        self.names.pop(pod.pod_uid, None)
        ended = replace(pod, end_ns=max(pod.start_ns, end_ns))
        self._pending.pods.append(PodChange(ended, None, (min(end_ns, now_ns), now_ns)))


def _until(touched: tuple[int, int], now_ns: int) -> tuple[int, int]:
    return touched[0], max(touched[1], now_ns)
