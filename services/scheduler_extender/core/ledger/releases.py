"""When the devices of a pod that ended are free again.

A pod's phase is anybody's to write, and its disappearance from Kubernetes says nothing about its containers:
both the API and the kubelet forget a force-deleted pod at once, while its containers run out their grace. So
its devices stay taken until its *node* shows that it has left:
  - its node is gone, or
  - the node's facts are trusted and complete, the pod holds nothing by them and is not on the node, and
      - the kubelet itself reported its end, or
      - it was on the node by an older list of this boot of the machine, so its absence means that it went, or
      - it has been absent for `settle_s`.
An agent that can't tell which pods are on its node proves none of them gone: only the kubelet's report of the
end, or the end of the node, frees there.

`settle_s` is longer than all of these together: how old facts may be and still be trusted, how long a
container takes to start, how long the kubelet keeps silent about it. Facts may also go backwards, by as much
as their age: a pod that came a moment ago is missing in facts from before it started.
"""

from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from gpuloom.model.allocation import AllocatedDevice
from gpuloom.model.node import NodeMode, NodeState, PodPresence, PodRef
from gpuloom.model.snapshot import NodeFacts


@dataclass(slots=True)
class Release:
    """A pod that ended. `devices` are those it had when it left Kubernetes; None if they are not known.

    `ended`: by the word of its kubelet. `advisory`: the devices are a prediction, and the kubelet's own
    choice is still to be seen. `mode` is that in which they were given, UNKNOWN if that is not known.
    `wanted` and `unlisted` are those of the claim that the pod had.
    """

    pod: PodRef
    node_name: str
    ended: bool
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
        self._sightings: dict[str, dict[str, PodPresence]] = {}
        """The newest list that has a pod, by node name and UID; of pods in Kubernetes or under release."""
        self._finished: set[str] = set()

    def begin(self, release: Release) -> None:
        """A release that is already under way keeps how long the pod has been absent."""
        before = self._by_node[release.node_name].get(release.pod.uid)
        if before is not None:
            release.absent_since_s = before.absent_since_s
            release.ended = release.ended or before.ended
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
        self._note_sightings(node_name, facts.state.presence, alive)
        done = [uid for uid, release in releases.items() if self._is_free(release, facts.state, now_s)]
        for uid in done:
            self._finish(node_name, uid, alive)
        return bool(done)

    def node_gone(self, node_name: str, alive: Collection[str]) -> None:
        """What its kubelet reported as ended has given its devices back, and so has what left Kubernetes.

        Of a pod that somebody else called ended the release goes on: the machine may register again, and the
        pod run there.
        """
        for uid, release in list(self._by_node.get(node_name, {}).items()):
            if release.ended or uid not in alive:
                self._finish(node_name, uid, alive)
            else:
                release.absent_since_s = None
        self._sightings.pop(node_name, None)

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

    def _note_sightings(self, node_name: str, presence: PodPresence, alive: Collection[str]) -> None:
        if presence.unknown_reason:
            return
        before, listed = self._sightings.get(node_name, {}), set(presence.pod_uids)
        sightings: dict[str, PodPresence] = {}
        for uid in {*alive, *self._by_node.get(node_name, ())}:
            last = before.get(uid)
            if uid in listed and (last is None or not last.is_newer_than(presence)):
                sightings[uid] = presence
            elif last is not None:
                sightings[uid] = last
        self._sightings[node_name] = sightings

    def _is_free(self, release: Release, state: NodeState, now_s: float) -> bool:
        uid, presence = release.pod.uid, state.presence
        held = any(holder.pod.uid == uid for holder in state.holders)
        if held or presence.unknown_reason:
            release.absent_since_s = None
            return not held and release.ended
        if uid in presence.pod_uids:
            release.absent_since_s = None
            return False
        last = self._sightings.get(release.node_name, {}).get(uid)
        if release.ended or (last is not None and presence.is_newer_than(last)):
            return True
        if release.absent_since_s is None:
            release.absent_since_s = now_s
        return now_s - release.absent_since_s >= self._settle_s

    def _finish(self, node_name: str, uid: str, alive: Collection[str]) -> None:
        self.drop(node_name, uid)
        if uid in alive:
            self._finished.add(uid)
