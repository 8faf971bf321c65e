"""Which gangs there are and how far each is, kept on the board and for reports; plans nothing.

All of it is derived from pods and GPUHolds at every turn; what is remembered beside that only saves time.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from gpuloom.codec.pod import bound_node, pod_request
from gpuloom.errors import InvalidRequestError
from gpuloom.kube.objects import JsonObject, uid_of
from gpuloom.model.ledger import Hold
from gpuloom.model.planning import GangReport
from gpuloom.model.request import PodRequest
from gpuloom.placement.gangs.sites import Steps
from gpuloom.runtime.clock import Clock
from services.scheduler_extender.core.gangs.guard import Board, Standing
from services.scheduler_extender.core.gangs.index import GANG, PLANNED, of_gang
from services.scheduler_extender.core.gangs.membership import gang_of, says_size
from services.scheduler_extender.core.gangs.phases import (
    Gang,
    Phase,
    gangs_of,
    is_covered,
    phase_of,
    standing_reason,
)
from services.scheduler_extender.core.ledger.ledger import Ledger
from services.scheduler_extender.planning.promises import Promises
from services.scheduler_extender.planning.sites import A_STEP, Observed
from services.scheduler_extender.planning.slices import in_slices
from services.scheduler_extender.ports import Announcer, GangSizes

SLACK_S = 600
"""Holds of a gang outlive its deadline by so much: they end with its eviction, not by themselves."""


@dataclass(frozen=True, slots=True)
class RollParts:
    pods: Observed
    ledger: Ledger
    promises: Promises
    board: Board
    announcer: Announcer
    sizes: GangSizes


@dataclass(slots=True)
class Memory:
    """What is better kept from turn to turn; without it only time is lost."""

    size: int | None = None
    """As its owner says, where its pods don't."""
    deadline: datetime | None = None
    paused_until_s: float = 0.0
    pauses: int = 0
    told: str = ""
    lacks: str = ""
    """Why it has no places, since it waits for them."""
    refused: str = ""
    """Why it had no places when it was last planned."""
    tried_again_s: float = 0.0
    judged_s: float = -math.inf
    """When it was last found out whether it would fit if nobody else were there."""
    fits_ever: bool = True
    avoided: dict[tuple[str, str], float] = field(default_factory=dict)
    """When each pod and node may be planned together again."""


class Roll:
    def __init__(self, parts: RollParts, clock: Clock) -> None:
        self._parts = parts
        self._clock = clock
        self.memory: dict[str, Memory] = {}
        self._reports: dict[str, GangReport] = {}

    @property
    def reports(self) -> tuple[GangReport, ...]:
        return tuple(report for _, report in sorted(self._reports.items()))

    async def learn(self) -> None:
        """Which gangs there are, and from their owners the sizes of those whose pods don't say."""
        asking = await in_slices(self._names(), self._clock)
        self.memory = {name: self.memory.get(name) or Memory() for name in asking}
        for name, pod in asking.items():
            if pod is not None:
                self.memory[name].size = await self._parts.sizes.size_of(pod)

    def _names(self) -> Steps[dict[str, JsonObject | None]]:
        """With a pod that has no node and does not say the size, if there is one."""
        found: dict[str, JsonObject | None] = {}
        for count, pod in enumerate(self._parts.pods.by_index(PLANNED, GANG), 1):
            name = gang_of(pod)
            if found.setdefault(name, None) is None and not bound_node(pod) and not says_size(pod):
                found[name] = pod
            if count % A_STEP == 0:
                yield
        return found

    def look(self, refused: Mapping[str, str]) -> Steps[tuple[dict[str, Gang], dict[str, Phase]]]:
        """How far every gang is, which the board says from then on.

        Of one gang that is one step, in which nobody else runs: whoever is refused on the board has no bind
        under way that is not known here. A gang that is not known yet is in none of its pods' favour.
        """
        gangs: dict[str, Gang] = {}
        phases: dict[str, Phase] = {}
        for name in sorted(self.memory):
            gang = self._gang(name)
            if gang is not None:
                gangs[name], phases[name] = gang, self.phase(gang)
                self._publish(gang, phases[name], refused.get(name, ""))
            else:
                self._reports.pop(name, None)
            yield
        alive = {uid_of(pod) for gang in gangs.values() for pod in gang.alive}
        board = self._parts.board
        board.gangs = {uid: standing for uid, standing in board.gangs.items() if uid in alive}
        self._reports = {name: report for name, report in self._reports.items() if name in gangs}
        return gangs, phases

    def _gang(self, name: str) -> Gang | None:
        pods = self._parts.pods.by_index(PLANNED, of_gang(name))
        gang = gangs_of(pods, self._parts.ledger.has_attempt).get(name)
        if gang is not None:
            size = gang.membership.size or self.memory[name].size
            gang.membership = replace(gang.membership, size=size)
        return gang

    def phase(self, gang: Gang) -> Phase:
        deadline = self.deadline(gang)
        overdue = deadline is not None and self._clock.now() >= deadline
        return phase_of(gang, self.promised(gang), overdue)

    def promised(self, gang: Gang) -> frozenset[str]:
        return frozenset(uid for pod in gang.waiting if self.is_promised(uid := uid_of(pod), pod))

    def is_promised(self, uid: str, pod: JsonObject) -> bool:
        request = _request(pod)
        return request is not None and is_covered(request, self._parts.promises.of(uid))

    def is_broken(self, pod: JsonObject) -> bool:
        """Whether a GPU of its place is unhealthy or gone."""
        request, promises = _request(pod), self._parts.promises
        return request is not None and bool(promises.broken(promises.of(uid_of(pod)), request.gpu.count))

    def deadline(self, gang: Gang) -> datetime | None:
        """Of a gang that has places, or is bound in part. None: it may wait as long as it likes.

        It stays where pods that were not bound yet are deleted, and nobody makes others.
        """
        memory = self.memory[gang.name]
        holds = self.holds(gang)
        is_whole = gang.is_whole or not (gang.unsettled or (gang.size and memory.deadline is not None))
        if not holds and (is_whole or not gang.has_begun):
            memory.deadline = None
            return None
        expiries = [hold.expires for hold in holds if hold.expires is not None]
        if expiries:
            memory.deadline = min(expiries) - timedelta(seconds=SLACK_S)
        elif memory.deadline is None:
            memory.deadline = self._clock.now() + timedelta(seconds=gang.membership.timeout_s)
        return memory.deadline

    def holds(self, gang: Gang) -> list[Hold]:
        return [hold for pod in gang.unsettled for hold in self._parts.promises.of(uid_of(pod))]

    def _publish(self, gang: Gang, phase: Phase, refused: str) -> None:
        admitted = phase in (Phase.RESERVED, Phase.PLACED)
        memory = self.memory[gang.name]
        # Until it is planned again what was found out last counts.
        memory.lacks = (refused or memory.lacks) if phase is Phase.WAITING else ""
        reason = memory.lacks or standing_reason(gang, phase)
        standing = Standing(gang.name, admitted, reason)
        self._parts.board.gangs |= {uid_of(pod): standing for pod in gang.alive}
        self._tell(gang, phase, reason)
        self._reports[gang.name] = self._report(gang, phase, reason)

    def _tell(self, gang: Gang, phase: Phase, reason: str) -> None:
        """Once for every reason, by its first pod."""
        memory = self.memory[gang.name]
        if phase is Phase.WAITING and not memory.lacks:
            return
        if reason and reason != memory.told and phase in (Phase.WAITING, Phase.UNREADABLE) and gang.waiting:
            message = f"gang {gang.name}: {reason}"
            self._parts.announcer.tell(
                gang.waiting[0], "GangWaits", message, warning=phase is Phase.UNREADABLE
            )
        memory.told = reason

    def _report(self, gang: Gang, phase: Phase, reason: str) -> GangReport:
        holds = self.holds(gang)
        nodes = {hold.node_name for hold in holds} | {bound_node(pod) or "" for pod in gang.placed}
        return GangReport(
            gang.name,
            phase,
            gang.size,
            len(gang.waiting),
            len(gang.placed) + len(gang.in_flight),
            len(self.promised(gang)),
            gang.priority,
            reason,
            tuple(sorted(nodes - {""})),
            self.memory[gang.name].deadline,
        )


def _request(pod: JsonObject) -> PodRequest | None:
    try:
        return pod_request(pod)
    except InvalidRequestError:
        return None
