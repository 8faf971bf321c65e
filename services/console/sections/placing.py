"""The extender's newest decisions, and the pods that wait with the reasons why.

Of the pods that wait it explains a few at each read, those first that were not explained for longest, so
that what it asks of the extender is bounded however many wait.
"""

from collections.abc import Mapping
from itertools import islice

from gpuloom.clients.extender import DecisionFollower, explain
from gpuloom.errors import GpuloomError, NotFoundError
from gpuloom.model.explanation import Explanation
from gpuloom.model.ledger import Decision
from gpuloom.model.node import PodRef
from gpuloom.rpc.channel import RpcChannel
from gpuloom.runtime.clock import Clock
from services.console.core.placing import WAITING, WaitingPods, decision_item, pending_item
from services.console.core.sight import of_a_namespace
from services.console.core.state import Items, Json
from services.console.ports import Source

INTERVAL_S = 1.0
EXPLAINED_AGAIN_S = 5.0
MOST_EXPLAINED = 5
MOST_DECISIONS = 300
EXPLAIN_TIMEOUT_S = 3.0
DECISIONS, PENDING = "decisions", "pending"


class PlacingReader:
    def __init__(self, follower: DecisionFollower, channel: RpcChannel, clock: Clock) -> None:
        self._follower = follower
        self._channel = channel
        self._clock = clock
        self._waiting = WaitingPods()
        self._explained: dict[str, tuple[float, Explanation]] = {}
        self._items: dict[str, Json] = {}
        self._seen: Decision | None = None
        self._number = 0

    async def read(self) -> Mapping[str, Items]:
        fresh = self._fresh()
        self._waiting.note(fresh)
        for decision in fresh:
            self._number += 1
            self._items[f"{self._number:012d}"] = decision_item(decision)
        for key in list(islice(self._items, max(0, len(self._items) - MOST_DECISIONS))):
            del self._items[key]
        failure = await self._explain_some()
        if failure is not None and not fresh:
            raise failure
        return {DECISIONS: self._items, PENDING: self._pending()}

    def _fresh(self) -> list[Decision]:
        """Those that came since the last read."""
        fresh: list[Decision] = []
        for decision in reversed(self._follower.decisions):
            if decision is self._seen:
                break
            fresh.append(decision)
        if self._follower.decisions:
            self._seen = self._follower.decisions[-1]
        fresh.reverse()
        return fresh

    async def _explain_some(self) -> GpuloomError | None:
        now_s = self._clock.monotonic()
        self._explained = {uid: one for uid, one in self._explained.items() if uid in self._waiting.since}
        due = [uid for uid in self._waiting.since if self._told_s(uid) <= now_s - EXPLAINED_AGAIN_S]
        due.sort(key=self._told_s)
        for uid in due[:MOST_EXPLAINED]:
            pod = self._waiting.since[uid][0]
            try:
                await self._explain(pod, now_s)
            except GpuloomError as error:
                return error
        return None

    async def _explain(self, pod: PodRef, now_s: float) -> None:
        try:
            explained = await explain(self._channel, pod, EXPLAIN_TIMEOUT_S)
        except NotFoundError:
            self._waiting.end(pod.uid)
            return
        if explained.standing in WAITING:
            self._explained[pod.uid] = now_s, explained
        else:
            self._waiting.end(pod.uid)

    def _told_s(self, uid: str) -> float:
        return self._explained[uid][0] if uid in self._explained else float("-inf")

    def _pending(self) -> dict[str, Json]:
        found = {}
        for uid, (pod, since, reason) in self._waiting.since.items():
            _, explained = self._explained.get(uid, (0.0, None))
            found[uid] = pending_item(pod, since, reason, explained)
        return found


def placing_source(follower: DecisionFollower, channel: RpcChannel, clock: Clock) -> Source:
    rules = {DECISIONS: of_a_namespace, PENDING: of_a_namespace}
    reader = PlacingReader(follower, channel, clock)
    return Source("scheduler_extender", rules, INTERVAL_S, reader.read, follower.run)
