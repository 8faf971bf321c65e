"""The one ledger: everything that can own a device, on every node.

Decides when a device counts as taken and when it counts as free again. It is fed by the extender's own
informers (pods, nodes), by the binds it is told of, and by device facts; it does no I/O and knows no clock.

The rules, each of which prevents a double allocation:
  - A bind attempt ends only when its pod is observed bound or gone, when the API server refused that very
    attempt and the pod was read unbound after that, or when the pod is observed unbound and newer than its
    last Binding: none of them can be applied any more. A timeout ends nothing: the attempt holds its
    devices, and an attempt on another node may hold others beside it, until one of them is observed.
  - A pod that ended or vanished keeps its devices until its node shows them free (see `releases.py`). One
    that is shown to run again afterwards has them again: whoever was given them meanwhile contests them.
  - Whatever a node shows as held counts, whether or not there is a pod for it.
  - A node gives nothing out while somebody holds what was given in another mode (see `modes.py`).
  - Where Kubernetes is set back to an earlier state, nodes are not: what a pod had is released as if it had
    vanished, and so is what it may have got by a bind under way.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace

from gpuloom.model.ledger import Claim, EntryState, LedgerEntry
from gpuloom.model.node import PodRef
from gpuloom.model.snapshot import NodeFacts
from gpuloom.placement.occupancy.claims import held_claims, with_holders
from services.scheduler_extender.core.ledger.attempts import Attempt, AttemptKey
from services.scheduler_extender.core.ledger.claims import ObservedPod, lost_its_record, pod_claim
from services.scheduler_extender.core.ledger.holds import Holds
from services.scheduler_extender.core.ledger.releases import Release, Releases


class Ledger:
    def __init__(self, settle_s: float, holds: Holds | None = None) -> None:
        self.holds = Holds() if holds is None else holds
        self._pods: dict[str, ObservedPod] = {}
        self._pods_by_node: dict[str, set[str]] = defaultdict(set)
        self._attempts: dict[str, dict[str, Attempt]] = {}
        """By pod UID, then by node UID: every event of a pod asks for its own, however many there are."""
        self._attempts_by_node: dict[str, set[AttemptKey]] = defaultdict(set)
        self._node_uid: dict[str, str] = {}
        self._node_name: dict[str, str] = {}
        self._facts: dict[str, NodeFacts] = {}
        self._releases = Releases(settle_s)
        self._touched: set[str] = set()
        self._confirmed: set[str] = set()
        self._reopened: set[str] = set()
        self._attempted: set[str] = set()
        self._facts_are_stale: Callable[[], bool] = lambda: False

    def doubt_facts_when(self, stale: Callable[[], bool]) -> None:
        """While the facts as a whole are stale nothing is released by them, and no time counts."""
        self._facts_are_stale = stale

    def observe_node(self, name: str, uid: str) -> None:
        """A node under a known name with another UID is another machine: nothing carries over."""
        if self._node_uid.get(name) == uid:
            return
        self.forget_node(name)
        self._node_uid[name] = uid
        self._node_name[uid] = name
        self._touched.add(name)
        self._reopened.add(name)

    def forget_node(self, name: str) -> None:
        uid = self._node_uid.pop(name, None)
        if uid is None:
            return
        self._node_name.pop(uid, None)
        self._facts.pop(uid, None)
        self._releases.node_gone(name, self._pods_by_node.get(name, ()))
        self._touched.add(name)
        self._confirmed.discard(name)

    def observe_facts(self, node_uid: str, facts: NodeFacts | None, now_s: float) -> None:
        """Facts of a node that this process has not seen in Kubernetes are kept until it appears."""
        if reopens(self._facts.get(node_uid), facts):
            self._reopened.add(self._node_name.get(node_uid, ""))
        if facts is None:
            self._facts.pop(node_uid, None)
        else:
            self._facts[node_uid] = facts
        name = self._node_name.get(node_uid)
        if name is not None:
            self._touched.add(name)
            self._settle(name, now_s)

    def observe_pod(self, pod: ObservedPod, now_s: float) -> bool:
        """Whether it confirms a bind exactly as it was begun.

        Its node is then not touched: it has left what it had before, once the host accounts count the pod.
        """
        uid = pod.ref.uid
        before = self._pods.get(uid)
        if before is not None and before.node_name not in ("", pod.node_name):
            # No pod is ever bound twice: Kubernetes has another history now. The node has not.
            self.observe_gone(uid, now_s)
            before = None
        attempts = self.attempts_of(uid)
        if pod.allocation is None and (attempts or (before is not None and lost_its_record(before))):
            # Its sandbox may still carry the record that somebody took off, and get devices by it later.
            pod = replace(pod, asked=None)
        if before == pod and not attempts:
            # Most of what happens to a pod is not about its devices.
            self._pods[uid] = pod
            return False
        confirms = self._confirms(pod, attempts)
        self._pods[uid] = pod
        if not pod.node_name:
            return False
        self._pods_by_node[pod.node_name].add(uid)
        if confirms:
            self._drop_attempt(attempts[0].key)
            self._confirmed.add(pod.node_name)
        else:
            self._touched.add(pod.node_name)
            self._end_attempts(uid)
        self._note_end(pod, before)
        self._settle(pod.node_name, now_s)
        return confirms

    def observe_gone(self, uid: str, now_s: float) -> None:
        """The pod is not in Kubernetes any more; its containers may still be on their node.

        Attempts without a known outcome may have been applied just before: they stay as releases too.
        """
        pod = self._pods.pop(uid, None)
        left = [_release(attempt) for attempt in self.attempts_of(uid)]
        self._end_attempts(uid)
        if pod is not None and pod.node_name:
            self._pods_by_node[pod.node_name].discard(uid)
            self._touched.add(pod.node_name)
            if not self._releases.finished(uid):
                left.append(self._release_of(pod))
        self._releases.forget_finished(uid)
        for release in left:
            self._await_release(release, now_s)

    def rewind(self, now_s: float) -> None:
        """Kubernetes has another history now, where what binds under way did in the old one never shows."""
        for attempt in [attempt for uid in self._attempts for attempt in self.attempts_of(uid)]:
            self._drop_attempt(attempt.key)
            self._await_release(_release(attempt), now_s)

    def begin(self, attempt: Attempt) -> None:
        """Hold the devices before the Binding is sent."""
        pod_uid, node_uid = attempt.key
        self._attempts.setdefault(pod_uid, {})[node_uid] = attempt
        self._attempts_by_node[attempt.node_name].add(attempt.key)
        self._attempted.add(pod_uid)
        self._touched.add(attempt.node_name)

    def refused(self, attempt: Attempt) -> None:
        """The API server answered that this attempt was not and will not be applied."""
        # Not one that is merely equal: it may have been sent again since, with the same devices.
        if self.attempt(*attempt.key) is attempt:
            self._drop_attempt(attempt.key)
            self._touched.add(attempt.node_name)
            self._reopened.add(attempt.node_name)

    def attempt(self, pod_uid: str, node_uid: str) -> Attempt | None:
        return self._attempts.get(pod_uid, {}).get(node_uid)

    def attempts_of(self, pod_uid: str) -> tuple[Attempt, ...]:
        return tuple(self._attempts.get(pod_uid, {}).values())

    def attempts_on(self, node_name: str, without_pod: str = "") -> Collection[Attempt]:
        """One of each pod, but none of `without_pod`.

        Where a machine took the name of another a pod may have two, of which one at most is applied.
        """
        keys = sorted(self._attempts_by_node.get(node_name, ()))
        return {uid: self._attempts[uid][node_uid] for uid, node_uid in keys if uid != without_pod}.values()

    def attempted_pods(self) -> tuple[PodRef, ...]:
        return tuple(next(iter(attempts.values())).pod for attempts in self._attempts.values())

    def has_attempt(self, pod_uid: str) -> bool:
        return pod_uid in self._attempts

    def pod(self, uid: str) -> ObservedPod | None:
        return self._pods.get(uid)

    def has_heard_of(self, uid: str) -> bool:
        """Whether anything is or may be owned by this pod, in Kubernetes or no longer."""
        return uid in self._pods or self.has_attempt(uid) or self._releases.includes(uid)

    def is_releasing(self, uid: str, node_name: str) -> bool:
        """Whether this node has yet to show free what the pod had there before."""
        return any(release.pod.uid == uid for release in self._releases.on_node(node_name))

    def pod_at(self, uid: str, version: str) -> ObservedPod | None:
        """The pod if it was observed at exactly this version: whoever holds that need not read it again."""
        pod = self._pods.get(uid)
        return pod if pod is not None and version and pod.version == version else None

    def node_uid(self, name: str) -> str | None:
        return self._node_uid.get(name)

    def facts(self, node_name: str) -> NodeFacts | None:
        return self._facts_of(node_name)

    def tick(self, now_s: float) -> None:
        """Let releases that wait for time go, without any event."""
        for name in self._releases.waiting_nodes():
            self._settle(name, now_s)

    @property
    def touched(self) -> bool:
        """Whether there is something to take."""
        return bool(self._touched or self._confirmed)

    def take_touched(self) -> set[str]:
        """Names of nodes whose claims or facts changed since the last call."""
        touched, self._touched = self._touched, set()
        return touched

    def take_confirmed(self) -> set[str]:
        """Names of nodes where claims changed their state since the last call, and maybe nothing else did."""
        confirmed, self._confirmed = self._confirmed, set()
        return confirmed

    def take_attempted(self) -> set[str]:
        """UIDs of pods whose attempts began or ended since the last call."""
        attempted, self._attempted = self._attempted, set()
        return attempted

    def take_reopened(self) -> set[str]:
        """Names of nodes that got room since the last call, maybe without anything seen in Kubernetes."""
        reopened, self._reopened = self._reopened & self._node_uid.keys(), set()
        return reopened

    def claims(self, node_name: str, without_pod: str = "") -> tuple[Claim, ...]:
        """Who owns what on this node. `without_pod` leaves out that pod's own attempts."""
        facts = self._facts_of(node_name)
        holders = facts.state.holders if facts is not None else ()
        known = [claim for claim in self._known_claims(node_name) if claim.pod.uid != without_pod]
        owners = {claim.pod.uid for claim in known} | {without_pod}
        own = tuple(with_holders(claim, holders) for claim in known)
        return own + held_claims(holders, owners)

    def entries(self) -> Iterator[LedgerEntry]:
        """Every claim, by node name, then pod UID."""
        for name in sorted(self._node_uid):
            for claim in sorted(self.claims(name), key=_by_pod):
                yield LedgerEntry(
                    claim.pod, name, self._node_uid[name], claim.state, claim.devices, claim.advisory
                )

    def _confirms(self, pod: ObservedPod, attempts: Sequence[Attempt]) -> bool:
        """Whether the pod is there with exactly what its only attempt held, and nothing else was held for it.

        Its claim then differs by its state alone, which no view shows. Whatever is in doubt is a change.
        """
        if len(attempts) != 1 or pod.terminal or pod.problem or pod.request is None:
            return False
        (attempt,) = attempts
        uid, name, asked = pod.ref.uid, pod.node_name, pod.request
        return (
            name == attempt.node_name
            and self._node_uid.get(name) == attempt.allocation.node_uid
            and pod.allocation == attempt.allocation
            and (asked.cpu_milli, asked.memory_bytes) == (attempt.cpu_milli, attempt.memory_bytes)
            and uid not in self._pods_by_node.get(name, ())
            and not self._releases.finished(uid)
            and not self.is_releasing(uid, name)
            # What was held for it is free for others by now.
            and not self.holds.keeps_for(uid, str(pod.ref))
        )

    def _note_end(self, pod: ObservedPod, before: ObservedPod | None) -> None:
        uid = pod.ref.uid
        if not pod.terminal or (before is not None and before.ended and not pod.ended):
            # It runs after all, or again: what was concluded from its end no longer holds.
            self._releases.drop(pod.node_name, uid)
            self._releases.forget_finished(uid)
        known = before is not None and (before.terminal, before.ended) == (pod.terminal, pod.ended)
        if pod.terminal and not known and not self._releases.finished(uid):
            self._releases.begin(Release(pod.ref, pod.node_name, pod.ended))

    def _known_claims(self, node_name: str) -> list[Claim]:
        """By pod, whatever their state: predictions are made in this order, and a confirmed one must stay."""
        return sorted(self._claims_by_state(node_name), key=lambda claim: claim.pod.uid)

    def _claims_by_state(self, node_name: str) -> Iterator[Claim]:
        for pod_uid, node_uid in sorted(self._attempts_by_node.get(node_name, ())):
            attempt = self._attempts[pod_uid][node_uid]
            yield Claim(
                attempt.pod,
                EntryState.IN_FLIGHT,
                attempt.allocation.devices,
                advisory=attempt.allocation.advisory,
                mode=attempt.allocation.mode,
            )
        for uid in self._pods_by_node.get(node_name, ()):
            if not self._releases.finished(uid):
                yield self._pod_claim(self._pods[uid])
        for release in self._releases.on_node(node_name):
            if release.pod.uid not in self._pods_by_node.get(node_name, ()):
                yield Claim(
                    release.pod,
                    EntryState.RELEASING,
                    release.devices,
                    wanted=release.wanted,
                    advisory=release.advisory,
                    mode=release.mode,
                    unlisted=release.unlisted,
                    unreserved=not release.ended,
                )

    def _pod_claim(self, pod: ObservedPod) -> Claim:
        return pod_claim(pod, self._node_uid.get(pod.node_name), self._facts_of(pod.node_name))

    def _release_of(self, pod: ObservedPod) -> Release:
        """What its node shows by now counts on: it may list the pod no longer, or only a process of it."""
        claim, facts = self._pod_claim(pod), self._facts_of(pod.node_name)
        if claim.devices is None and facts is not None:
            claim = with_holders(claim, facts.state.holders)
        return Release(
            pod=pod.ref,
            node_name=pod.node_name,
            ended=pod.ended,
            devices=claim.devices,
            advisory=claim.advisory,
            wanted=None if claim.problem else claim.wanted,
            unlisted=claim.unlisted,
            mode=claim.mode,
        )

    def _await_release(self, release: Release, now_s: float) -> None:
        self._touched.add(release.node_name)
        if release.node_name not in self._node_uid:
            # The machine is gone, and the devices with it: nothing will ever show them free.
            self._releases.drop(release.node_name, release.pod.uid)
            return
        self._releases.begin(release)
        self._settle(release.node_name, now_s)

    def _settle(self, node_name: str, now_s: float) -> None:
        alive = self._pods_by_node.get(node_name, set())
        facts = None if self._facts_are_stale() else self._facts_of(node_name)
        if self._releases.settle(node_name, facts, alive, now_s):
            self._touched.add(node_name)
            self._reopened.add(node_name)

    def _facts_of(self, node_name: str) -> NodeFacts | None:
        uid = self._node_uid.get(node_name)
        return None if uid is None else self._facts.get(uid)

    def _end_attempts(self, pod_uid: str) -> None:
        for attempt in self.attempts_of(pod_uid):
            self._drop_attempt(attempt.key)
            self._touched.add(attempt.node_name)

    def _drop_attempt(self, key: AttemptKey) -> None:
        pod_uid, node_uid = key
        attempts = self._attempts[pod_uid]
        node_name = attempts.pop(node_uid).node_name
        if not attempts:
            del self._attempts[pod_uid]
        self._attempts_by_node[node_name].discard(key)
        self._attempted.add(pod_uid)


def reopens(before: NodeFacts | None, after: NodeFacts | None) -> bool:
    """Whether a change of facts may give room: trust regained, a GPU or a slice more, a holder gone."""
    if after is None or not after.trusted or before == after:
        return False
    if before is None or not before.trusted:
        return True
    old, new = before.state, after.state
    if set(before.closed_gpus) - set(after.closed_gpus):
        return True
    return (old.gpus, old.mode, old.delivery) != (new.gpus, new.mode, new.delivery) or bool(
        set(old.holders) - set(new.holders)
    )


def _release(attempt: Attempt) -> Release:
    given = attempt.allocation
    return Release(
        attempt.pod,
        attempt.node_name,
        ended=False,
        devices=given.devices,
        advisory=given.advisory,
        mode=given.mode,
    )


def _by_pod(claim: Claim) -> tuple[str, str]:
    return claim.pod.uid, claim.state
