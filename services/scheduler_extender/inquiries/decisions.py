"""The newest decisions, kept for people to look at. A refusal repeated unchanged is told once."""

from collections import OrderedDict, deque

from gpuloom.model.ledger import Decision, Verdict
from gpuloom.rpc.streams import VersionedFeed
from gpuloom.runtime.clock import Clock

KEPT_DECISIONS = 200
REMEMBERED_PODS = 5000
EXPLAINED_PODS = 2000
KEPT_PER_POD = 3


class DecisionLog:
    def __init__(self, clock: Clock) -> None:
        self.feed: VersionedFeed[Decision] = VersionedFeed(clock)
        self._kept: deque[Decision] = deque(maxlen=KEPT_DECISIONS)
        self._last_refusal: OrderedDict[str, str] = OrderedDict()
        self._by_pod: OrderedDict[str, deque[Decision]] = OrderedDict()

    def record(self, decision: Decision) -> bool:
        """False if this was a refusal that has been told already."""
        uid = decision.pod.uid
        if decision.verdict is Verdict.REFUSED:
            if self._last_refusal.get(uid) == decision.reason:
                return False
            self._last_refusal[uid] = decision.reason
            self._last_refusal.move_to_end(uid)
            if len(self._last_refusal) > REMEMBERED_PODS:
                self._last_refusal.popitem(last=False)
        else:
            self._last_refusal.pop(uid, None)
        self._kept.append(decision)
        self._keep_for_pod(decision)
        self.feed.publish(decision)
        return True

    def newest(self) -> tuple[Decision, ...]:
        """Oldest first."""
        return tuple(self._kept)

    def about(self, pod_uid: str) -> tuple[Decision, ...]:
        """The last ones about this pod, oldest first."""
        return tuple(self._by_pod.get(pod_uid, ()))

    def _keep_for_pod(self, decision: Decision) -> None:
        uid = decision.pod.uid
        self._by_pod.setdefault(uid, deque(maxlen=KEPT_PER_POD)).append(decision)
        self._by_pod.move_to_end(uid)
        if len(self._by_pod) > EXPLAINED_PODS:
            self._by_pod.popitem(last=False)
