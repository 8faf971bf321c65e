"""Why nodes may be wanted beside waiting pods: PromQL triggers and the forecast, kept fresh by a loop.

A query without an answer, and a forecast without history, are no reason to add anything.
"""

import asyncio
import logging
import math
from collections.abc import Sequence
from datetime import datetime, timedelta, tzinfo

from gpuloom.clients.prometheus import PrometheusClient, Range
from gpuloom.errors import GpuloomError
from gpuloom.model.policies import AutoscalingPolicySpec, Prediction
from gpuloom.runtime.clock import Clock
from services.autoscaler.core.forecasting.forecast import UTILIZATION_TOLERANCE, Forecast, forecast
from services.autoscaler.core.forecasting.series import Sample
from services.autoscaler.core.scaling.policies import Effective
from services.autoscaler.core.scaling.scale_up import Pressure
from services.autoscaler.metrics import AutoscalerMetrics
from services.autoscaler.nodes.cluster import Snapshot
from services.autoscaler.nodes.policy_store import PolicyStore
from services.autoscaler.nodes.scaler import Scaler
from services.autoscaler.ports import History

_log = logging.getLogger(__name__)

UTILIZATION, DEMAND = "utilization", "gpu-demand"
SAMPLE_EVERY_S = 60.0
KEEP_DAYS = 15
"""At least; a policy that looks back further keeps more."""
DEMAND_TOLERANCE = 0.15
"""As a share of the highest demand in the history."""
_QUERY_AGE_S = 120.0
_SEEDS = {
    UTILIZATION: "avg(DCGM_FI_DEV_GPU_UTIL) / 100",
    DEMAND: 'count(DCGM_FI_DEV_GPU_UTIL{pod!=""}) or 0 * count(DCGM_FI_DEV_GPU_UTIL)',
}
_SEED_STEP_S = 300.0


class PressureSource:
    """`history` None: nothing is remembered, and nothing is forecast. `prometheus` None: no triggers."""

    def __init__(
        self,
        scaler: Scaler,
        history: History | None,
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
        self._unread: dict[str, set[str]] = {}
        self._forecasts: dict[str, tuple[Forecast, Forecast | None]] = {}

    def of(self, policy: Effective, snapshot: Snapshot) -> Pressure:
        floor, reason = self._floor(policy, snapshot)
        used = max(0.0, snapshot.gpus_wanted - snapshot.foreign_gpus)
        return Pressure(snapshot.utilization, self._triggers.get(policy.name, {}), floor, reason, used)

    def prediction(self, policy: Effective) -> Prediction | None:
        found = self._forecasts.get(policy.name)
        if found is None:
            return None
        horizon = policy.policy.spec.prediction.horizon_minutes
        value = min(1.0, max(0.0, found[0].upper))
        return Prediction(round(value, 3), round(found[0].confidence, 3), horizon)

    def notes(self, policy: Effective) -> tuple[str, ...]:
        """What the policy asks for and can't have now: nothing falls back in silence."""
        spec, found = policy.policy.spec, []
        if spec.predictive and self._history is None:
            found.append("enablePredictiveScaling needs a database (GPULOOM_DATABASE_URL)")
        elif spec.predictive and policy.name not in self._forecasts:
            found.append("no forecast yet: two days of history are needed")
        if spec.custom_metrics and self._prometheus is None:
            found.append("customMetrics need a Prometheus (GPULOOM_PROMETHEUS_URL)")
        elif unread := sorted(self._unread.get(policy.name, ())):
            found.append(f"customMetrics that can't be read: {', '.join(unread)}")
        return tuple(found)

    async def run(self) -> None:
        """Sample, ask and forecast once a minute, until cancelled."""
        await self._seed()
        while True:
            await self.step()
            await self._clock.sleep(SAMPLE_EVERY_S)

    async def step(self) -> None:
        """One round. A trigger or a forecast that can't be had now is no reason for anything, however new."""
        now, policies = self._clock.now(), self._policies.effective()
        for policy in policies:
            await self._ask(policy)
        try:
            await self._sample(policies, now)
            for policy in policies:
                await self._predict(policy, now)
        except GpuloomError as error:
            self._forecasts.clear()
            self._metrics.errors.inc()
            _log.warning("history can't be used", extra={"error": str(error)})
        names = {policy.name for policy in policies}
        self._triggers = {name: found for name, found in self._triggers.items() if name in names}
        self._forecasts = {name: found for name, found in self._forecasts.items() if name in names}
        self._show()

    async def _sample(self, policies: Sequence[Effective], now: datetime) -> None:
        snapshot = self._scaler.snapshot
        if self._history is None or snapshot is None:
            return
        samples = [Sample(DEMAND, now, snapshot.gpus_wanted)]
        # Where there is no GPU none is in use, and that is known; a GPU that does not tell is not known.
        use = 0.0 if snapshot.gpu_nodes == 0 else snapshot.utilization
        if use is not None:
            samples.append(Sample(UTILIZATION, now, use))
        await self._history.append(samples)
        asked = max((one.policy.spec.prediction.lookback_days for one in policies), default=0)
        await self._history.forget(now - timedelta(days=max(KEEP_DAYS, asked + 1)))

    def _show(self) -> None:
        forecasts = [use for use, _ in self._forecasts.values()]
        self._metrics.predicted.set(max((min(1.0, max(0.0, one.upper)) for one in forecasts), default=0.0))
        self._metrics.confidence.set(max((one.confidence for one in forecasts), default=0.0))

    async def _ask(self, policy: Effective) -> None:
        found: dict[str, str] = {}
        unread: set[str] = set()
        for metric in policy.policy.spec.custom_metrics:
            value = None
            if self._prometheus is not None:
                try:
                    value = await self._prometheus.value(metric.query, max_age_s=_QUERY_AGE_S)
                except GpuloomError as error:
                    fields = {"policy": policy.name, "metric": metric.name, "error": str(error)}
                    _log.warning("metric not read", extra=fields)
            if value is None or not math.isfinite(value):
                unread.add(metric.name)
            elif value > metric.threshold:
                found[metric.name] = f"{metric.name} is {value:g}, above {metric.threshold:g}"
        self._triggers[policy.name], self._unread[policy.name] = found, unread

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
            for name, query in _SEEDS.items():
                over = Range(now - timedelta(days=KEEP_DAYS), now, _SEED_STEP_S)
                found = await self._prometheus.range(query, over, max_age_s=_SEED_STEP_S)
                points = [Sample(name, time, value) for one in found for time, value in one.points]
                await self._history.append(points)
                fields = {"series": name, "samples": len(points)}
                _log.info("history seeded from Prometheus", extra=fields)
        except GpuloomError as error:
            _log.warning("history not seeded", extra={"error": str(error)})


def _acts(spec: AutoscalingPolicySpec, use: Forecast) -> bool:
    wanted = spec.prediction
    return use.confidence > wanted.confidence_threshold and use.upper > wanted.prewarm_threshold
