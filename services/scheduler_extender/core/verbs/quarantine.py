"""Which workloads are not tried for a while, because their binds keep failing. Pure: time is a value.

A workload whose Binding the API server keeps refusing would win a node in every cycle, hold devices there for
the time of a call, and lose them again, while others wait. So after a few failures in a row it is left out,
each time for longer. That is counted for the pod, and for its controller, because a controller replaces pods.

Only what is the workload's own fault counts. While the binds of many workloads fail, the API server or this
service is at fault, and nobody is held back. A bind without an answer counts only if others get theirs.
Nothing of this is kept: a new leader starts with an empty list.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from gpuloom.kube.objects import JsonObject, metadata_of, uid_of

REASON = "its binds keep failing: tried again later"
"""Constant, because kube-scheduler counts nodes by equal text; until when, `gpuloom explain` says."""

FREE_FAILURES = 2
"""So many in a row are left to kube-scheduler's own delay of up to 10 s."""
MAX_REMEMBERED = 4096
MANY = 3
"""From this number of failing workloads on, and if they are most of those that tried, nobody is to blame."""


@dataclass(frozen=True, slots=True)
class QuarantineTimes:
    """`recent_s`: how far back an attempt tells something about the API server.

    `proof_s`: the same for a bind of others that succeeded. `quiet_s`: without failure, all is forgotten.
    """

    first_s: float = 10.0
    cap_s: float = 300.0
    quiet_s: float = 600.0
    recent_s: float = 60.0
    proof_s: float = 15.0


@dataclass(frozen=True, slots=True)
class Workload:
    """A pod, and the controller that made it, if one did."""

    pod_uid: str
    controller_uid: str = ""

    @property
    def name(self) -> str:
        """By what attempts are told apart: replicas of one controller are one workload."""
        return self.controller_uid or self.pod_uid


@dataclass(frozen=True, slots=True)
class Hold:
    until_s: float
    failures: int
    whole_controller: bool


@dataclass(slots=True)
class _Record:
    failures: int = 0
    failed_s: float = 0.0
    until_s: float = 0.0


class Quarantine:
    """`chance` gives a number from 0 to 1 and spreads the ends, so that workloads don't march in step."""

    def __init__(
        self, times: QuarantineTimes | None = None, chance: Callable[[], float] = lambda: 1.0
    ) -> None:
        self._times = times or QuarantineTimes()
        self._chance = chance
        self._records: OrderedDict[str, _Record] = OrderedDict()
        self._attempts: OrderedDict[str, tuple[float, bool]] = OrderedDict()
        self._looked_s = 0.0

    def failed(self, workload: Workload, now_s: float, *, refused: bool) -> Hold | None:
        """A bind was `refused` by the API server, or got no answer. Returns the hold that this began."""
        self._note(workload, now_s, succeeded=False)
        if self._is_general(now_s) or not (refused or self._others_succeed(workload, now_s)):
            return None
        before = self.hold(workload, now_s)
        for uid in filter(None, (workload.pod_uid, workload.controller_uid)):
            self._count(uid, now_s)
        return self.hold(workload, now_s) if before is None else None

    def succeeded(self, workload: Workload, now_s: float) -> None:
        self._note(workload, now_s, succeeded=True)
        self._records.pop(workload.pod_uid, None)
        self._records.pop(workload.controller_uid, None)

    def hold(self, workload: Workload, now_s: float) -> Hold | None:
        """Why this workload is not tried now; None if it is."""
        holds = [
            Hold(record.until_s, record.failures, uid == workload.controller_uid)
            for uid in (workload.pod_uid, workload.controller_uid)
            if (record := self._records.get(uid)) is not None and record.until_s > now_s
        ]
        if not holds or self._is_general(now_s):
            return None
        return max(holds, key=lambda hold: hold.until_s)

    def held_count(self, now_s: float) -> int:
        """How many pods and controllers are held."""
        if self._is_general(now_s):
            return 0
        return sum(record.until_s > now_s for record in self._records.values())

    def take_released(self, now_s: float) -> bool:
        """Whether a hold ended since the last call: kube-scheduler does not ask again by itself."""
        looked_s, self._looked_s = self._looked_s, now_s
        return any(looked_s < record.until_s <= now_s for record in self._records.values())

    def _count(self, uid: str, now_s: float) -> None:
        record = self._records.get(uid)
        if record is None or now_s - max(record.failed_s, record.until_s) > self._times.quiet_s:
            record = self._records[uid] = _Record()
        if record.until_s > now_s:
            # Sent before the hold began: all replicas of a controller may fail at once, which is one failure.
            return
        record.failures += 1
        record.failed_s = now_s
        if record.failures > FREE_FAILURES:
            steps = min(record.failures - FREE_FAILURES - 1, 30)
            longest_s = min(self._times.cap_s, self._times.first_s * 2.0**steps)
            record.until_s = now_s + longest_s * (0.5 + 0.5 * self._chance())
        self._records.move_to_end(uid)
        if len(self._records) > MAX_REMEMBERED:
            self._records.popitem(last=False)

    def _note(self, workload: Workload, now_s: float, *, succeeded: bool) -> None:
        self._attempts[workload.name] = now_s, succeeded
        self._attempts.move_to_end(workload.name)
        while self._attempts:
            oldest_s, _ = next(iter(self._attempts.values()))
            if len(self._attempts) <= MAX_REMEMBERED and now_s - oldest_s <= self._times.recent_s:
                break
            self._attempts.popitem(last=False)

    def _is_general(self, now_s: float) -> bool:
        """Whether so many fail that none of them can be the cause."""
        recent = [ok for at_s, ok in self._attempts.values() if now_s - at_s <= self._times.recent_s]
        failing = recent.count(False)
        return failing >= MANY and failing * 2 > len(recent)

    def _others_succeed(self, workload: Workload, now_s: float) -> bool:
        return any(
            succeeded and name != workload.name and now_s - at_s <= self._times.proof_s
            for name, (at_s, succeeded) in self._attempts.items()
        )


def workload_of(pod: JsonObject) -> Workload:
    """Whatever is malformed counts as no controller: the pod alone is then the workload."""
    owners = metadata_of(pod).get("ownerReferences")
    for owner in owners if isinstance(owners, list) else ():
        if isinstance(owner, dict) and owner.get("controller") is True and isinstance(owner.get("uid"), str):
            return Workload(uid_of(pod), owner["uid"])
    return Workload(uid_of(pod))
