"""Tells of pods that waste their GPUs, and of recommendations that were followed.

One round every half minute: ask the optimizer about every GPU pod, tell of those that nobody was told of, see
who follows. A round ends in time whatever the API server takes; what is left over comes with the next. It
calls nothing waste by itself, and says nothing while Prometheus, or the optimizer, does not answer.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gpuloom.errors import ConflictError, GpuloomError, NotFoundError
from gpuloom.model.optimization import PodWaste
from gpuloom.runtime.clock import Clock, deadline
from services.controller.core.waste import (
    Followed,
    GpuPod,
    Pursuit,
    annotation_of,
    follow,
    message_of,
    plan_round,
    pursued,
    saved_message,
    topic_of,
)
from services.controller.metrics import ControllerMetrics, RoundResult
from services.controller.ports import PursuitStore, WasteApi, WasteSource

WRITERS = 16
STUCK_ROUNDS = 5

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class WasteRules:
    """Pods above the threshold are told of. `namespace` None: of all namespaces."""

    threshold: float = 50.0
    interval_s: float = 30.0
    namespace: str | None = None


@dataclass(frozen=True, slots=True)
class WasteParts:
    """`metrics_problem`: why measurements can't be trusted now; None: they can."""

    source: WasteSource
    api: WasteApi
    store: PursuitStore
    metrics_problem: Callable[[], str | None]


class WasteEvents:
    def __init__(
        self, parts: WasteParts, rules: WasteRules, clock: Clock, metrics: ControllerMetrics
    ) -> None:
        self._source = parts.source
        self._api = parts.api
        self._store = parts.store
        self._metrics_problem = parts.metrics_problem
        self._rules = rules
        self._clock = clock
        self._metrics = metrics
        self._pursuits: tuple[Pursuit, ...] = ()
        self._ended_s: float | None = None

    async def run(self) -> None:
        """While this replica leads."""
        self._ended_s = self._clock.monotonic()
        self._pursuits = await self._store.load()
        while True:
            began_s = self._clock.monotonic()
            result = await self._round()
            self._ended_s = self._clock.monotonic()
            self._metrics.waste_rounds.labels(result).inc()
            self._metrics.waste_round_duration.observe(self._ended_s - began_s)
            await self._clock.sleep(max(0.0, began_s + self._rules.interval_s - self._ended_s))

    def stuck_reason(self) -> str | None:
        """The liveness check."""
        if self._ended_s is None:
            return None
        silent_s = self._clock.monotonic() - self._ended_s
        if silent_s > STUCK_ROUNDS * self._rules.interval_s:
            return f"no round over wasteful pods has ended for {silent_s:.0f} s"
        return None

    async def _round(self) -> RoundResult:
        problem = self._metrics_problem()
        if problem is not None:
            _log.warning("nothing is called waste", extra={"reason": problem})
            self._metrics.forget_waste()
            return RoundResult.NOT_MEASURED
        try:
            async with deadline(self._clock, self._rules.interval_s):
                return await self._tell_all()
        except TimeoutError:
            return RoundResult.CUT_OFF
        except GpuloomError as error:
            _log.warning("waste is not known", extra={"reason": str(error)})
            self._metrics.forget_waste()
            return RoundResult.FAILED

    async def _tell_all(self) -> RoundResult:
        report = await self._source.waste(self._rules.namespace, self._rules.threshold)
        if report.problem:
            self._metrics.forget_waste()
            return RoundResult.NOT_MEASURED
        pods = self._api.gpu_pods()
        planned = plan_round(report, {pod.uid: pod for pod in pods}, self._rules.threshold)
        self._metrics.wasteful_pods.set(planned.wasteful)
        before = self._pursuits
        try:
            failed = await self._tell_each(planned.untold)
            await self._follow(pods)
        finally:
            # Also of a round that is cut off: whoever was told is waited for.
            if self._pursuits != before:
                await self._store.save(self._pursuits)
        return RoundResult.FAILED if failed else RoundResult.DONE

    async def _tell_each(self, untold: Sequence[tuple[PodWaste, GpuPod]]) -> int:
        """How many could not be told of."""
        waiting = iter(untold)
        failures = 0

        async def work() -> None:
            nonlocal failures
            for waste, pod in waiting:
                failures += not await self._tell(waste, pod)

        async with asyncio.TaskGroup() as group:
            for _ in range(min(WRITERS, len(untold))):
                group.create_task(work())
        return failures

    async def _tell(self, waste: PodWaste, pod: GpuPod) -> bool:
        fields = {"pod": str(waste.pod), "score": round(waste.score), "recommended": waste.recommended}
        try:
            # The Event first: it is known again by its name, so a controller that dies in between tells once.
            await self._api.tell(pod, "GPUWaste", topic_of(waste), message_of(waste))
            await self._api.annotate(pod, annotation_of(waste, self._clock.now()))
        except (NotFoundError, ConflictError):
            # It is gone, or another has its name by now.
            return True
        except GpuloomError as error:
            _log.warning("waste not told of", extra={**fields, "reason": str(error)})
            return False
        self._pursuits = pursued(self._pursuits, waste, pod)
        self._metrics.waste_events.inc()
        _log.info("pod wastes its GPU", extra={**fields, "why": message_of(waste)})
        return True

    async def _follow(self, pods: Sequence[GpuPod]) -> None:
        self._pursuits, news = follow(self._pursuits, pods)
        for one in news:
            await self._report(one)
        self._metrics.followed.set(sum(1 for one in self._pursuits if one.followers))
        self._metrics.saved_nano_usd(sum(one.saved_nano_usd for one in self._pursuits))

    async def _report(self, followed: Followed) -> None:
        pursuit, pod = followed.pursuit, followed.pod
        message = saved_message(pursuit)
        _log.info("recommendation followed", extra={"owner": pursuit.owner, "what": message})
        topic = f"{pursuit.owner} {pursuit.before} to {pursuit.recommended}"
        try:
            await self._api.tell(pod, "GPUWasteSaved", topic, message)
        except GpuloomError as error:
            _log.warning("saving not told of", extra={"pod": pod.key[1], "reason": str(error)})
