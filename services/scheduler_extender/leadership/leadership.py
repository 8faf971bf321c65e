"""The right to serve: warm as a standby, then leader, taken over, in touch; and never again once it is lost.

Decides whether a call may be answered, and until when a Binding may be sent. A replica that lost its lease
does not become a standby again: its process ends and another is started, so that no attempt and no belief of
an earlier term is ever mixed into a later one.
"""

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from gpuloom.errors import GpuloomError
from gpuloom.kube.leadership import Elector
from gpuloom.runtime.clock import Clock
from services.scheduler_extender.leadership.takeover import take_over
from services.scheduler_extender.metrics import ExtenderMetrics
from services.scheduler_extender.ports import Fence, LeaderLabel

LABEL_INTERVAL_S = 1.0
SET_BACK = "the Kubernetes API was set back to an earlier state; taking over again"

_log = logging.getLogger(__name__)


class Role(Enum):
    STANDBY = "standby"
    TAKING_OVER = "taking over"
    LEADER = "leader"
    RETIRED = "retired"


class Knowledge(Protocol):
    """What is known of pods, nodes and devices."""

    def missing(self) -> str:
        """What is not known at all yet; empty if everything is."""

    def silence(self) -> str:
        """Why what is known may be old by now; empty if it is not."""

    async def wait_complete(self) -> None:
        """Return when nothing is missing."""

    def rewinds(self) -> int:
        """How often the history of the Kubernetes API was seen to go back."""


@dataclass(frozen=True, slots=True)
class LeadershipParts:
    """What being the leader takes. `holder` names the present one as far as it is known, empty for nobody.

    `contested`: there may be others, so this one waits as a warm standby first.
    """

    elector: Elector
    fence: Fence
    leader_label: LeaderLabel
    holder: Callable[[], str]
    contested: bool


class LeadershipState:
    def __init__(
        self, knowledge: Knowledge, parts: LeadershipParts, clock: Clock, metrics: ExtenderMetrics
    ) -> None:
        self._knowledge = knowledge
        self._parts = parts
        self._clock = clock
        self._metrics = metrics
        self._role = Role.STANDBY
        self._rewinds = 0
        """As many were seen when the ledger was last taken over."""
        metrics.leader.set_function(lambda: float(self.is_leader()))

    async def run(self) -> None:
        """Ends with an error when the lease is lost; the process must end with it."""
        if self._parts.contested:
            # One that would first have to list must not take the lease from one that is warm.
            await self._knowledge.wait_complete()
            _log.info("warm, standing by")
        await self._parts.elector.run(self._lead)

    def is_leader(self) -> bool:
        return self._clock.monotonic() < self.until_s()

    def until_s(self) -> float:
        if self._role is not Role.LEADER or self._is_overtaken():
            return -math.inf
        return self._parts.elector.leader_until_s()

    def unready_reason(self) -> str:
        """Why kube-scheduler's calls are not answered; empty if they are."""
        missing = self._knowledge.missing()
        if missing:
            return missing
        match self._role:
            case Role.STANDBY:
                holder = self._parts.holder()
                return f"standby; leader is {holder}" if holder else "standby; there is no leader yet"
            case Role.TAKING_OVER:
                return "taking over from the leader before"
            case Role.RETIRED:
                return "no longer the leader"
            case Role.LEADER if not self.is_leader():
                return SET_BACK if self._is_overtaken() else "the lease has run out"
        return self._knowledge.silence()

    def unhealthy_reason(self) -> str:
        """What /readyz says. A warm standby beside a leader is all it should be.

        Were it not ready, no rolling update would ever end. The Service goes by the leader's label.
        """
        if self._role is Role.STANDBY and self._parts.holder():
            return self._knowledge.missing() or self._knowledge.silence()
        return self.unready_reason()

    async def step_down(self) -> None:
        """Serve nothing more, and leave the Service; the lease is released when `run` is cancelled."""
        if self._role is Role.LEADER:
            await self._retire()

    async def _lead(self) -> None:
        try:
            while True:
                await self._take_over()
                await self._keep_label()
                _log.error(SET_BACK)
        finally:
            await self._retire()

    async def _take_over(self) -> None:
        started_s = self._clock.monotonic()
        self._role = Role.TAKING_OVER
        while True:
            # A history that goes back meanwhile takes the stamps with it.
            self._rewinds = self._knowledge.rewinds()
            stamped = await take_over(self._parts.fence)
            await self._knowledge.wait_complete()
            if not self._is_overtaken():
                break
        self._role = Role.LEADER
        took_s = self._clock.monotonic() - started_s
        self._metrics.takeover_duration.set(took_s)
        self._metrics.unstamped_pods.set(len(stamped.unstamped))
        _log.info("ledger complete, serving", extra={"took_s": round(took_s, 3), "stamped": stamped.pods})

    def _is_overtaken(self) -> bool:
        """Whether what was taken over is of a history that the API no longer has."""
        return self._knowledge.rewinds() != self._rewinds

    async def _keep_label(self) -> None:
        """As long as it leads: a leader that was paused may put its own back on once more.

        Returns when the history of the API has gone back.
        """
        while not self._is_overtaken():
            # After a pause the lease may be over before its elector has noticed.
            if self.is_leader():
                try:
                    await self._parts.leader_label.put()
                except GpuloomError as error:
                    _log.warning("leader's label not in order", extra={"reason": str(error)})
            await self._clock.sleep(LABEL_INTERVAL_S)

    async def _retire(self) -> None:
        was_leader, self._role = self._role is Role.LEADER, Role.RETIRED
        if not was_leader:
            return
        try:
            await self._parts.leader_label.remove()
        except GpuloomError as error:
            _log.info("leader's label left to the next leader", extra={"reason": str(error)})
