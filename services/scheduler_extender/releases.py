"""When the devices of a pod that ended are free again.

A pod's phase or its disappearance from Kubernetes says little about its containers: a force-deleted pod is
gone at once while its processes still run. So its devices stay taken until its *node* shows them free:
  - its node is gone, or
  - the node's facts are trusted and complete, do not list the pod, and
      - the kubelet itself reported the pod as ended, or
      - the node listed it before, so its absence means that it went, or
      - nothing else happened for `settle_s`: longer than a container can start, or the kubelet can keep
        silent about it, unseen.
"""

from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from gpuloom.model.allocation import AllocatedDevice
from gpuloom.model.node import PodRef
from gpuloom.model.snapshot import NodeFacts


@dataclass(slots=True)
class Release:
    """A pod that ended. `devices` are those it had when it left Kubernetes; None if they are not known."""

    pod: PodRef
    node_name: str
    terminal: bool
    devices: tuple[AllocatedDevice, ...] | None = None
    absent_since_s: float | None = None


class Releases:
    def __init__(self, settle_s: float) -> None:
        self._settle_s = settle_s
        self._by_node: dict[str, dict[str, Release]] = defaultdict(dict)
        self._seen: dict[str, set[str]] = defaultdict(set)
        self._finished: set[str] = set()

    def begin(self, release: Release) -> None:
        """A release that is already under way keeps how long the pod has been absent."""
        before = self._by_node[release.node_name].get(release.pod.uid)
        if before is not None:
            release.absent_since_s = before.absent_since_s
            release.terminal = release.terminal or before.terminal
        self._by_node[release.node_name][release.pod.uid] = release

    def settle(self, node_name: str, facts: NodeFacts | None, alive: Collection[str], now_s: float) -> bool:
        """Finish what the node's facts allow; whether anything finished."""
        releases = self._by_node.get(node_name)
        if facts is None or not facts.trusted or facts.state.holders_unknown_reason:
            for release in (releases or {}).values():
                release.absent_since_s = None
            return False
        present = {holder.pod.uid for holder in facts.state.holders}
        seen = self._seen[node_name]
        seen |= present
        done = [
            release.pod.uid
            for release in (releases or {}).values()
            if self._is_free(release, present, seen, now_s)
        ]
        for uid in done:
            self._finish(node_name, uid)
        seen &= present | set(alive) | set(self._by_node.get(node_name, ()))
        return bool(done)

    def node_gone(self, node_name: str) -> None:
        for uid in list(self._by_node.get(node_name, ())):
            self._finish(node_name, uid)
        self._seen.pop(node_name, None)

    def finished(self, pod_uid: str) -> bool:
        """Whether this ended pod, still in Kubernetes, has given its devices back."""
        return pod_uid in self._finished

    def forget_finished(self, pod_uid: str) -> None:
        self._finished.discard(pod_uid)

    def on_node(self, node_name: str) -> Iterator[Release]:
        yield from self._by_node.get(node_name, {}).values()

    def waiting_nodes(self) -> list[str]:
        return sorted(self._by_node)

    def _is_free(self, release: Release, present: set[str], seen: set[str], now_s: float) -> bool:
        if release.pod.uid in present:
            release.absent_since_s = None
            return False
        if release.terminal or release.pod.uid in seen:
            return True
        if release.absent_since_s is None:
            release.absent_since_s = now_s
        return now_s - release.absent_since_s >= self._settle_s

    def _finish(self, node_name: str, uid: str) -> None:
        releases = self._by_node[node_name]
        del releases[uid]
        self._finished.add(uid)
        if not releases:
            del self._by_node[node_name]
