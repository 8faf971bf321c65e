"""Why nodes may be wanted beside waiting pods: PromQL triggers and the forecast, kept fresh by a loop.

A query without an answer, and a forecast without history, are no reason to add anything.
"""

import asyncio
import logging
import math
from datetime import datetime, timedelta, tzinfo

from gpuloom.clients.prometheus import PrometheusClient, Range
from gpuloom.errors import GpuloomError
from gpuloom.model.policies import AutoscalingPolicySpec, Prediction
from gpuloom.runtime.clock import Clock
from services.autoscaler.core.forecast import UTILIZATION_TOLERANCE, Forecast, forecast
from services.autoscaler.core.policies import Effective
from services.autoscaler.core.scale_up import Pressure
from services.autoscaler.core.series import Sample
from services.autoscaler.metrics import AutoscalerMetrics
from services.autoscaler.nodes.cluster import Snapshot
from services.autoscaler.nodes.policy_store import PolicyStore
from services.autoscaler.nodes.scaler import Scaler
from services.autoscaler.store.history import SqlHistory

_log = logging.getLogger(__name__)

UTILIZATION, DEMAND = "utilization", "gpu-demand"
SAMPLE_EVERY_S = 60.0
FORECAST_EVERY_S = 60.0
KEEP_DAYS = 15
DEMAND_TOLERANCE = 0.15
"""As a share of the highest demand in the history."""
_QUERY_AGE_S = 120.0
_SEED_QUERY = "avg(DCGM_FI_DEV_GPU_UTIL) / 100"
_SEED_STEP_S = 300.0


class PressureSource:
    """`history` None: nothing is remembered, and nothing is forecast. `prometheus` None: no triggers."""

    def __init__(
        self,
        scaler: Scaler,
        history: SqlHistory | None,
        prometheus: PrometheusClient | None,
        zone: tzinfo,
        metrics: AutoscalerMetrics,
        clock: Clock,
    ) -> None:
        self._scaler = scaler
        self._policies: PolicyStore = scaler.policies
        self._history = history
        self._prometheus = prometheus
        self._zone = zone
        self._metrics = metrics
        self._clock = clock
        self._triggers: dict[str, dict[str, str]] = {}
        self._forecasts: dict[str, tuple[Forecast, Forecast | None]] = {}

    def of(self, policy: Effective, snapshot: Snapshot) -> Pressure:
        floor, reason = self._floor(policy, snapshot)
        return Pressure(snapshot.utilization, self._triggers.get(policy.name, {}), floor, reason)

    def prediction(self, policy: Effective) -> Prediction | None:
        found = self._forecasts.get(policy.name)
        if found is None:
            return None
        horizon = policy.policy.spec.prediction.horizon_minutes
        value = min(1.0, max(0.0, found[0].upper))
        return Prediction(round(value, 3), round(found[0].confidence, 3), horizon)

    async def run(self) -> None:
        """Sample, ask and forecast once a minute, until cancelled."""
        await self._seed()
        while True:
            try:
                await self._step()
            except GpuloomError as error:
                self._metrics.errors.inc()
                _log.warning("pressure not measured", extra={"error": str(error)})
            await self._clock.sleep(SAMPLE_EVERY_S)

    async def _step(self) -> None:
        now, snapshot = self._clock.now(), self._scaler.snapshot
        if self._history is not None and snapshot is not None:
            samples = [Sample(DEMAND, now, snapshot.gpus_wanted)]
            if snapshot.utilization is not None:
                samples.append(Sample(UTILIZATION, now, snapshot.utilization))
            await self._history.append(samples)
            await self._history.forget(now - timedelta(days=KEEP_DAYS))
        for policy in self._policies.effective():
            await self._ask(policy)
            await self._predict(policy, now)

    async def _ask(self, policy: Effective) -> None:
        found: dict[str, str] = {}
        for metric in policy.policy.spec.custom_metrics:
            value = None
            if self._prometheus is not None:
                try:
                    value = await self._prometheus.value(metric.query, max_age_s=_QUERY_AGE_S)
                except GpuloomError as error:
                    fields = {"policy": policy.name, "metric": metric.name, "error": str(error)}
                    _log.warning("metric not read", extra=fields)
            if value is not None and math.isfinite(value) and value > metric.threshold:
                found[metric.name] = f"{metric.name} is {value:g}, above {metric.threshold:g}"
        self._triggers[policy.name] = found

    async def _predict(self, policy: Effective, now: datetime) -> None:
        spec = policy.policy.spec
        if not spec.predictive or self._history is None:
            self._forecasts.pop(policy.name, None)
            return
        since = now - timedelta(days=spec.prediction.lookback_days)
        horizon = timedelta(minutes=spec.prediction.horizon_minutes)
        use = await self._history.read(UTILIZATION, since)
        wanted = await self._history.read(DEMAND, since)
        most = max((one.value for one in wanted), default=0.0)
        found = await asyncio.to_thread(forecast, use, now, horizon, self._zone, UTILIZATION_TOLERANCE)
        demand = await asyncio.to_thread(
            forecast, wanted, now, horizon, self._zone, max(1.0, DEMAND_TOLERANCE * most)
        )
        if found is None:
            self._forecasts.pop(policy.name, None)
            return
        self._forecasts[policy.name] = (found, demand)
        self._metrics.predicted.set(min(1.0, max(0.0, found.upper)))
        self._metrics.confidence.set(found.confidence)

    def _floor(self, policy: Effective, snapshot: Snapshot) -> tuple[int, str]:
        """GPUs of ours that should be there: only with confidence, and only if it will be busy."""
        found = self._forecasts.get(policy.name)
        if found is None or not _acts(policy.policy.spec, found[0]):
            return 0, ""
        use, demand = found
        wanted = math.ceil(demand.upper) if demand is not None else 0
        minutes = policy.policy.spec.prediction.horizon_minutes
        reason = f"{use.upper:.0%} utilization is expected in {minutes} min (confidence {use.confidence:.0%})"
        return max(0, wanted - snapshot.foreign_gpus), reason

    async def _seed(self) -> None:
        """A new installation begins with what Prometheus remembers."""
        if self._history is None or self._prometheus is None:
            return
        now = self._clock.now()
        try:
            if await self._history.read(UTILIZATION, now - timedelta(days=1)):
                return
            over = Range(now - timedelta(days=7), now, _SEED_STEP_S)
            found = await self._prometheus.range(_SEED_QUERY, over, max_age_s=_SEED_STEP_S)
            points = [Sample(UTILIZATION, time, value) for one in found for time, value in one.points]
            await self._history.append(points)
            _log.info("history seeded from Prometheus", extra={"samples": len(points)})
        except GpuloomError as error:
            _log.warning("history not seeded", extra={"error": str(error)})


def _acts(spec: AutoscalingPolicySpec, use: Forecast) -> bool:
    wanted = spec.prediction
    return use.confidence > wanted.confidence_threshold and use.upper > wanted.prewarm_threshold
