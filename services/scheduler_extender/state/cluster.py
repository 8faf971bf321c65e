"""What the extender knows, fed by informers and the mirror: ledger, nominations, hosts and views in step."""

from collections.abc import Callable

from gpuloom.codec.hold import hold_from_object
from gpuloom.codec.pod import pod_ref
from gpuloom.codec.resources import MOST_CPU_MILLI, MOST_MEMORY_BYTES
from gpuloom.errors import InvalidRequestError
from gpuloom.kube.cache import Change
from gpuloom.kube.objects import JsonObject, metadata_of, uid_of
from gpuloom.kube.parse import quantity_milli, quantity_value
from gpuloom.model.ledger import EntryState
from gpuloom.model.node import PodRef
from gpuloom.model.request import PodRequest
from gpuloom.model.snapshot import NodeFacts
from gpuloom.placement.occupancy.nominations import Nomination, Nominations
from gpuloom.runtime.clock import Clock
from services.scheduler_extender.core.ledger.claims import ObservedPod
from services.scheduler_extender.core.ledger.holds import ANYWHERE
from services.scheduler_extender.core.ledger.ledger import Ledger
from services.scheduler_extender.core.objects.pods import HostShare, host_share, nomination_of, observed_pod
from services.scheduler_extender.core.views.hosts import Hosts, HostTotals
from services.scheduler_extender.core.views.views import Views

MOST_PODS = 2**31 - 1
"""So many at most a node is said to take; the kubelet's own number has no more bits."""


class ClusterState:
    def __init__(self, ledger: Ledger, facts_are_stale: Callable[[], bool], clock: Clock) -> None:
        self.ledger = ledger
        ledger.doubt_facts_when(facts_are_stale)
        self.hosts = Hosts()
        self.nominations = Nominations()
        self.views = Views(ledger, self.hosts, facts_are_stale, self.nominations, ledger.holds)
        self._clock = clock
        self._pending: dict[str, PodRef] = {}
        self._node_names: set[str] = set()
        self._vacated: set[str] = set()
        self._greet: Callable[[PodRequest], None] = _nobody

    def on_arrival(self, greet: Callable[[PodRequest], None]) -> None:
        """Who is to be told of every GPU pod that comes, once."""
        self._greet = greet

    def observe_node(self, change: Change) -> None:
        if change.new is None:
            name = str(metadata_of(change.old or {}).get("name", ""))
            self._node_names.discard(name)
            self.ledger.forget_node(name)
            self.hosts.set_totals(name, None)
            self.views.forget(name)
            return
        name = str(metadata_of(change.new).get("name", ""))
        self._node_names.add(name)
        self.ledger.observe_node(name, uid_of(change.new))
        # A kubelet writes its node's status again and again, mostly the same.
        if self.hosts.set_totals(name, _totals(change.new)):
            self.views.forget(name)
        self.views.poke()

    def observe_pod(self, change: Change) -> None:
        now_s = self._clock.monotonic()
        if change.new is None:
            uid = uid_of(change.old or {})
            self._pending.pop(uid, None)
            self._note_nomination(uid, None)
            self.ledger.observe_gone(uid, now_s)
            self._account(uid, None)
            self.views.poke()
            return
        observed = _observed(change.new)
        confirms = False
        if observed is not None:
            confirms = self.ledger.observe_pod(observed, now_s)
            self._note_pending(observed)
            self._note_nomination(observed.ref.uid, nomination_of(change.new, observed), observed.node_name)
            if change.old is None:
                self._note_arrival(observed)
        self._account(uid_of(change.new), host_share(change.new, observed), confirms)
        self.views.poke()

    def observe_hold(self, change: Change) -> None:
        """A GPUHold, by whomever it was written."""
        holds = self.ledger.holds
        if change.new is None:
            metadata = metadata_of(change.old or {})
            holds.gone(str(metadata.get("name", "")), uid_of(change.old or {}))
        else:
            holds.observe(hold_from_object(change.new))
        self.views.wake()

    def rewind(self) -> None:
        """Kubernetes was set back to an earlier state, which is shown next."""
        self.ledger.rewind(self._clock.monotonic())
        self.ledger.holds.rewind()
        self.views.poke()

    def observe_facts(self, node_uid: str, facts: NodeFacts | None) -> None:
        self.ledger.observe_facts(node_uid, facts, self._clock.monotonic())
        self.views.poke()

    def wake_for(self, node_name: str) -> None:
        """Pods that wait should ask again: something was promised there."""
        self._vacated.add(node_name)

    def has_pending_pods(self) -> bool:
        return bool(self._pending)

    def pending_pods(self) -> list[PodRef]:
        return list(self._pending.values())

    def take_reopened(self) -> set[str]:
        """Names of nodes that may have got room since the last call."""
        self.ledger.tick(self._clock.monotonic())
        vacated, self._vacated = self._vacated & self._node_names, set()
        reopened = self.ledger.take_reopened() | vacated
        released = self.ledger.holds.take_reopened()
        reopened |= self._node_names if ANYWHERE in released else released & self._node_names
        return reopened | self._node_names if self.views.take_freshened() else reopened

    def entry_counts(self) -> dict[EntryState, int]:
        owners = self.views.census().owners
        return {state: owners[state] for state in EntryState}

    def closed_nodes(self) -> int:
        if not self.views.stale:
            return len(self.views.census().closed)
        return sum(self.ledger.facts(name) is not None for name in self._node_names)

    def _note_pending(self, observed: ObservedPod) -> None:
        if observed.node_name or observed.terminal:
            self._pending.pop(observed.ref.uid, None)
        else:
            self._pending[observed.ref.uid] = observed.ref

    def _note_nomination(self, uid: str, nomination: Nomination | None, bound_to: str = "") -> None:
        """Promised room that its pod does not use is room again.

        kube-scheduler wakes those that wait when it sees that, but they may ask here before we see it.
        """
        left = self.nominations.note(uid, nomination)
        if left and left != bound_to:
            self._vacated.add(left)

    def _note_arrival(self, pod: ObservedPod) -> None:
        if pod.request is not None and not pod.node_name and not pod.terminal:
            self._greet(pod.request)

    def _account(self, uid: str, share: HostShare | None, confirms: bool = False) -> None:
        # A bind that is confirmed was counted as much from its beginning, unless its pod was accounted for.
        counted = confirms and not self.hosts.accounts_for(uid)
        changed = self.hosts.set_share(uid, share)
        for name in () if counted else changed:
            self.views.forget(name)


def _nobody(_: PodRequest) -> None:
    return


def _observed(pod: JsonObject) -> ObservedPod | None:
    """A pod that can't be read at all closes its node, if it has one: it may hold anything there."""
    try:
        return observed_pod(pod)
    except InvalidRequestError as error:
        return _unreadable(pod, str(error))


def _unreadable(pod: JsonObject, problem: str) -> ObservedPod | None:
    try:
        ref = pod_ref(pod)
    except InvalidRequestError:
        return None
    spec = pod.get("spec")
    node_name = spec.get("nodeName") if isinstance(spec, dict) else None
    return ObservedPod(ref, node_name if isinstance(node_name, str) else "", False, None, None, problem)


def _totals(node: JsonObject) -> HostTotals | None:
    allocatable = (node.get("status") or {}).get("allocatable") or {}
    try:
        return HostTotals(
            min(quantity_milli(allocatable.get("cpu", "0")), MOST_CPU_MILLI),
            min(quantity_value(allocatable.get("memory", "0")), MOST_MEMORY_BYTES),
            min(quantity_value(allocatable.get("pods", "0")), MOST_PODS),
        )
    except (ValueError, TypeError):
        return None
