"""What is remembered of a policy between rounds, and what is told of it in its status and by events."""

import logging
from collections import deque
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from statistics import median

from gpuloom.codec.custom.inference import inference_policy_status_to_json
from gpuloom.errors import ConflictError, GpuloomError, NotFoundError
from gpuloom.kube.client import KubeClient
from gpuloom.kube.conditions import status_patch, with_conditions
from gpuloom.kube.events import EventRecorder
from gpuloom.kube.objects import JsonObject, key_of, metadata_of, uid_of
from gpuloom.kube.resources import INFERENCE_POLICIES
from gpuloom.model.policies import InferencePolicySpec, InferencePolicyStatus, InferenceServer
from gpuloom.runtime.clock import Clock
from services.autoscaler.inference.core import queries
from services.autoscaler.inference.core.adaptive import OCCUPANCY, Demand, Learned, work_need
from services.autoscaler.inference.core.decision import Decision
from services.autoscaler.inference.core.foresight import KEPT_S, NeedHistory
from services.autoscaler.inference.core.pace import Memory
from services.autoscaler.inference.core.queries import Pods
from services.autoscaler.inference.core.rivals import Written
from services.autoscaler.inference.core.standing import Standing, conditions_of
from services.autoscaler.inference.ports import Measures, WriteTimeout

_log = logging.getLogger(__name__)

WRITE_S = 5.0
KEPT_PLACES = 40
_DIGITS = 4


@dataclass(slots=True)
class Notes:
    """Of one policy on one target; begun anew when either is another one."""

    target_uid: str
    memory: Memory
    history: NeedHistory
    written: Written = field(default_factory=Written)
    cold_start_s: float | None = None
    tried: Decision | None = None
    """Written without an answer: the next look shows whether it was made."""
    _places: deque[float] = field(default_factory=lambda: deque(maxlen=KEPT_PLACES))
    _asked_past: bool = False

    @classmethod
    def begun(
        cls, target_uid: str, current: int, now: datetime, last_scale: datetime | None, step_s: float
    ) -> "Notes":
        return cls(target_uid, Memory.begun(now, current, last_scale), NeedHistory(step_s))

    @property
    def places(self) -> float | None:
        return median(self._places) if self._places else None

    def saw(self, cold_starts_s: list[float], places: float | None) -> None:
        if cold_starts_s:
            self.cold_start_s = median(cold_starts_s)
        if places is not None:
            self._places.append(places)

    async def learn(self, demand: Demand, pods: Pods, measures: Measures, now: datetime) -> None:
        """Add what is needed now; at first what was needed before, as far as Prometheus knows it."""
        need = work_need(demand)
        if need is None:
            return
        if not self._asked_past and demand.places is not None:
            self._asked_past = True
            for value in await self._past(pods, measures, now):
                self.history.add(value / (demand.places * OCCUPANCY))
        self.history.add(need[0])

    def learned(self, spec: InferencePolicySpec, default_cold_start_s: float) -> Learned:
        told = spec.adaptive.cold_start_s
        usual = default_cold_start_s if self.cold_start_s is None else self.cold_start_s
        return self.history.learned(float(told) if told is not None else usual)

    async def _past(self, pods: Pods, measures: Measures, now: datetime) -> list[float]:
        everything = queries.in_flight_ever(InferenceServer.AUTO, pods)
        try:
            return await measures.past(everything, now, timedelta(seconds=KEPT_S), self.history.step_s)
        except GpuloomError as error:
            _log.info("the past is not known", extra={"target": pods.target, "error": str(error)})
            return []


class StatusWriter:
    """Writes the status of policies and one event whenever how one stands changes its kind."""

    def __init__(
        self, client: KubeClient, recorder: EventRecorder, clock: Clock, write_timeout_s: WriteTimeout
    ) -> None:
        self._client = client
        self._recorder = recorder
        self._clock = clock
        self._write_timeout_s = write_timeout_s
        self._told: dict[str, str] = {}

    async def write(self, obj: JsonObject, standing: Standing) -> None:
        self._record(obj, standing)
        namespace, name = key_of(obj)
        patch = status_patch(obj, self._status(obj, standing))
        if patch is None:
            return
        try:
            await self._client.patch_status(
                INFERENCE_POLICIES, name, namespace, patch, timeout_s=self._write_timeout_s(WRITE_S)
            )
        except (ConflictError, NotFoundError) as error:
            _log.info("status not written", extra={"policy": name, "error": str(error)})

    def _status(self, obj: JsonObject, standing: Standing) -> JsonObject:
        decision = standing.decision
        readings = tuple(
            replace(one, value=_rounded(one.value), ratio=_rounded(one.ratio)) for one in standing.readings
        )
        current = standing.current if decision is None else decision.replicas
        status = inference_policy_status_to_json(
            InferencePolicyStatus(
                current_replicas=current,
                desired_replicas=None if decision is None else decision.wanted,
                last_scale=standing.last_scale,
                current_metrics=readings,
            )
        )
        status["currentMetrics"] = [
            {name: value for name, value in one.items() if value is not None}
            for one in status["currentMetrics"]
        ]
        before = (obj.get("status") or {}).get("conditions") or []
        generation, now = metadata_of(obj).get("generation", 0), self._clock.now()
        status["conditions"] = with_conditions(before, conditions_of(standing), generation, now)
        return status

    def _record(self, obj: JsonObject, standing: Standing) -> None:
        """Changes of the number have an event of their own; here is what keeps it from changing."""
        kind, message = _remark(standing)
        uid = uid_of(obj)
        if kind and self._told.get(uid) != kind:
            self._recorder.warning(obj, kind, message)
        self._told[uid] = kind


def _remark(standing: Standing) -> tuple[str, str]:
    obstacle, decision = standing.obstacle, standing.decision
    if obstacle is not None:
        return obstacle.reason, obstacle.message
    if decision is None:
        return "", ""
    if decision.missing or decision.none_known:
        return "MetricsMissing", decision.explain()
    if "maxReplicas" in decision.limit:
        return "TooManyReplicas", decision.limit
    return "", ""


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.{_DIGITS}g}")
