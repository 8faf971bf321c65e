"""All that plans ahead, one after the other: gangs, then what is kept for them, reservations, preemptions.

One at a time, so that no two of them promise the same. Works only on the leader, on state that is complete.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Protocol

from gpuloom.errors import GpuloomError
from gpuloom.model.planning import GangReport
from gpuloom.runtime.clock import Clock
from services.scheduler_extender.core.gangs.phases import Phase
from services.scheduler_extender.metrics import ExtenderMetrics
from services.scheduler_extender.planning.gangs import GangLoop

_log = logging.getLogger(__name__)


class PlanningLoop(Protocol):
    async def turn(self) -> None: ...


class Planner:
    """`others` have their turns after the gangs, in this order."""

    def __init__(
        self,
        gangs: GangLoop,
        others: Sequence[PlanningLoop],
        unready_reason: Callable[[], str],
        clock: Clock,
        metrics: ExtenderMetrics,
    ) -> None:
        self._gangs = gangs
        self._loops: tuple[PlanningLoop, ...] = (gangs, *others)
        self._unready_reason = unready_reason
        self._clock = clock
        self._metrics = metrics

    def reports(self) -> tuple[GangReport, ...]:
        return self._gangs.reports

    async def run(self, interval_s: float) -> None:
        while True:
            await self._clock.sleep(interval_s)
            if not self._unready_reason():
                await self.turn()

    async def turn(self) -> None:
        for loop in self._loops:
            started_s = self._clock.monotonic()
            try:
                await loop.turn()
            except GpuloomError as error:
                # Whatever is half done is taken up from what Kubernetes shows, at the next turn.
                _log.warning("planning broken off", extra={"reason": str(error)})
            self._metrics.planning_duration.observe(self._clock.monotonic() - started_s)
        self._metrics.show_gangs(Phase(report.phase) for report in self._gangs.reports)
