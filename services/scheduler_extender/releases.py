"""When the devices of a pod that ended are free again.

A pod's phase or its disappearance from Kubernetes says little about its containers: a force-deleted pod is
gone at once while its processes still run. So its devices stay taken until its *node* shows them free:
  - its node is gone, or
  - the node's facts are trusted and complete, do not list the pod, and
      - the kubelet itself reported the pod as ended, or
      - the node first listed it at least `settle_s` ago, so its absence means that it went (unless the node
        is in another mode by now), or
      - nothing else happened for `settle_s`.
`settle_s` is longer than all of these together: how old facts may be and still be trusted, how long a
container takes to start, how long the kubelet keeps silent about it. Facts may also go backwards, by as much
as their age: a pod that was first listed a moment ago is missing in facts from before it started.
"""

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from gpuloom.model.allocation import AllocatedDevice
from gpuloom.model.node import NodeMode, PodRef
from gpuloom.model.snapshot import NodeFacts


@dataclass(slots=True)
class Release:
    """A pod that ended. `devices` are those it had when it left Kubernetes; None if they are not known.

    `advisory`: they are a prediction, and the kubelet's own choice is still to be seen. `mode` is that in
    which they were given, UNKNOWN if that is not known. `wanted` and `unlisted` are those of the claim that
    the pod had.
    """

    pod: PodRef
    node_name: str
    terminal: bool
    devices: tuple[AllocatedDevice, ...] | None = None
    advisory: bool = False
    wanted: int | None = None
    unlisted: tuple[str, ...] = ()
    absent_since_s: float | None = None
    mode: NodeMode = NodeMode.UNKNOWN


class Releases:
    def __init__(self, settle_s: float) -> None:
        self._settle_s = settle_s
        self._by_node: dict[str, dict[str, Release]] = defaultdict(dict)
        self._first_seen_s: dict[str, dict[str, float]] = {}
        """By node name and pod UID; kept while the pod is listed, in Kubernetes, or under release."""
        self._finished: set[str] = set()

    def begin(self, release: Release) -> None:
        """A release that is already under way keeps how long the pod has been absent."""
        before = self._by_node[release.node_name].get(release.pod.uid)
        if before is not None:
            release.absent_since_s = before.absent_since_s
            release.terminal = release.terminal or before.terminal
        self._by_node[release.node_name][release.pod.uid] = release

    def drop(self, node_name: str, pod_uid: str) -> None:
        """There is nothing to wait for: the pod lives after all, or its node does not."""
        releases = self._by_node.get(node_name, {})
        releases.pop(pod_uid, None)
        if not releases:
            self._by_node.pop(node_name, None)

    def settle(self, node_name: str, facts: NodeFacts | None, alive: Collection[str], now_s: float) -> bool:
        """Finish what the node's facts allow; whether anything finished.

        `alive` are the UIDs of the node's pods that are in Kubernetes, whatever their phase.
        """
        releases = self._by_node.get(node_name, {})
        if facts is None or not facts.trusted or facts.state.holders_unknown_reason:
            for release in releases.values():
                release.absent_since_s = None
            return False
        present = {holder.pod.uid for holder in facts.state.holders}
        seen = dict.fromkeys(present, now_s) | self._first_seen_s.get(node_name, {})
        # In another mode a node may not show whom it showed before: that they are missing means little.
        shown = {
            uid: since_s
            for uid, since_s in seen.items()
            if uid not in releases or releases[uid].mode in (facts.state.mode, NodeMode.UNKNOWN)
        }
        done = [uid for uid, release in releases.items() if self._is_free(release, present, shown, now_s)]
        for uid in done:
            self._finish(node_name, uid, alive)
        kept = present.union(alive, self._by_node.get(node_name, ()))
        self._first_seen_s[node_name] = {uid: since_s for uid, since_s in seen.items() if uid in kept}
        return bool(done)

    def node_gone(self, node_name: str, alive: Collection[str]) -> None:
        for uid in list(self._by_node.get(node_name, ())):
            self._finish(node_name, uid, alive)
        self._first_seen_s.pop(node_name, None)

    def finished(self, pod_uid: str) -> bool:
        """Whether this ended pod, still in Kubernetes, has given its devices back."""
        return pod_uid in self._finished

    def forget_finished(self, pod_uid: str) -> None:
        self._finished.discard(pod_uid)

    def on_node(self, node_name: str) -> Iterator[Release]:
        yield from self._by_node.get(node_name, {}).values()

    def includes(self, pod_uid: str) -> bool:
        return any(pod_uid in releases for releases in self._by_node.values())

    def waiting_nodes(self) -> list[str]:
        return sorted(self._by_node)

    def _is_free(
        self, release: Release, present: set[str], first_seen_s: Mapping[str, float], now_s: float
    ) -> bool:
        uid = release.pod.uid
        if uid in present:
            release.absent_since_s = None
            return False
        if release.terminal or now_s - first_seen_s.get(uid, now_s) >= self._settle_s:
            return True
        if release.absent_since_s is None:
            release.absent_since_s = now_s
        return now_s - release.absent_since_s >= self._settle_s

    def _finish(self, node_name: str, uid: str, alive: Collection[str]) -> None:
        self.drop(node_name, uid)
        if uid in alive:
            self._finished.add(uid)
