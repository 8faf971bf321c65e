"""KEDA's external scaler: the same metrics for ScaledObjects, where the metrics API is KEDA's own.

A trigger's metadata: `deployment` or `statefulset`, `metric` and `target`, and if it may go to zero
`activationQuery`. What is not known is an error, so that KEDA keeps the number, never a zero.
"""

import logging
import math
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

import grpc

from gpuloom.errors import DeadlineError, InvalidRequestError, NotFoundError, NotReadyError, UnavailableError
from gpuloom.keda import externalscaler_pb2 as pb
from gpuloom.keda.externalscaler_pb2_grpc import ExternalScalerServicer
from gpuloom.model.policies import ScaleTarget
from gpuloom.runtime.clock import Clock
from services.autoscaler.inference.adapters.catalogue import CatalogueReader
from services.autoscaler.inference.core.catalogue import CATALOGUE, TARGET_LABELS
from services.autoscaler.inference.core.measures import Question
from services.autoscaler.inference.core.readings import Combination
from services.autoscaler.inference.ports import Measures

ALLOWED_CALLERS = {
    "IsActive": frozenset({"keda"}),
    "StreamIsActive": frozenset({"keda"}),
    "GetMetricSpec": frozenset({"keda"}),
    "GetMetrics": frozenset({"keda"}),
}
SERVICE = pb.DESCRIPTOR.services_by_name["ExternalScaler"]
_log = logging.getLogger(__name__)

POLL_S = 5.0
MAX_QUERY = 4096

Context = grpc.aio.ServicerContext[Any, Any]


@dataclass(frozen=True, slots=True)
class Trigger:
    target: ScaleTarget
    metric: str
    size: float
    activation_query: str = ""

    @classmethod
    def read(cls, metadata: Mapping[str, str]) -> "Trigger":
        """Raise InvalidRequestError with the key that is wrong."""
        named = [(kind, metadata[key]) for key, kind in TARGET_LABELS.items() if metadata.get(key)]
        if len(named) != 1:
            raise InvalidRequestError(
                f"the trigger needs one of {' and '.join(TARGET_LABELS)} in its metadata"
            )
        metric = metadata.get("metric", "")
        if metric not in CATALOGUE:
            raise InvalidRequestError(
                f"metric must be one of {', '.join(sorted(CATALOGUE))}, not {metric[:63]!r}"
            )
        try:
            size = float(metadata.get("target", ""))
        except ValueError:
            size = math.nan
        if not (math.isfinite(size) and size > 0):
            raise InvalidRequestError("target must be a number above 0")
        query = metadata.get("activationQuery", "")
        if len(query) > MAX_QUERY:
            raise InvalidRequestError(f"activationQuery has at most {MAX_QUERY} characters")
        return cls(ScaleTarget(*named[0]), metric, size, query)


class KedaScaler(ExternalScalerServicer):
    def __init__(self, reader: CatalogueReader, measures: Measures, clock: Clock) -> None:
        self._reader = reader
        self._measures = measures
        self._clock = clock

    async def IsActive(self, request: pb.ScaledObjectRef, context: Context) -> pb.IsActiveResponse:
        trigger = Trigger.read(request.scalerMetadata)
        return pb.IsActiveResponse(result=await self._active(request.namespace, trigger))

    async def StreamIsActive(
        self, request: pb.ScaledObjectRef, context: Context
    ) -> AsyncIterator[pb.IsActiveResponse]:
        trigger = Trigger.read(request.scalerMetadata)
        told: bool | None = None
        while True:
            active = told
            try:
                active = await self._active(request.namespace, trigger)
            except (NotReadyError, UnavailableError, DeadlineError) as error:
                # Unknown is no change. KEDA would come back to a stream that ended later each time.
                _log.info("activity not known", extra={"error": str(error)})
            if active is not None and active != told:
                told = active
                yield pb.IsActiveResponse(result=active)
            await self._clock.sleep(POLL_S)

    async def GetMetricSpec(self, request: pb.ScaledObjectRef, context: Context) -> pb.GetMetricSpecResponse:
        trigger = Trigger.read(request.scalerMetadata)
        spec = pb.MetricSpec(
            metricName=trigger.metric, targetSize=math.ceil(trigger.size), targetSizeFloat=trigger.size
        )
        return pb.GetMetricSpecResponse(metricSpecs=[spec])

    async def GetMetrics(self, request: pb.GetMetricsRequest, context: Context) -> pb.GetMetricsResponse:
        reference = request.scaledObjectRef
        trigger = Trigger.read(reference.scalerMetadata)
        amount = await self._amount(reference.namespace, trigger)
        value = pb.MetricValue(
            metricName=trigger.metric, metricValue=math.ceil(amount), metricValueFloat=amount
        )
        return pb.GetMetricsResponse(metricValues=[value])

    async def _active(self, namespace: str, trigger: Trigger) -> bool:
        if trigger.activation_query:
            answers = await self._measures.ask({"activation": Question(trigger.activation_query)})
            signal = answers["activation"]
            if signal.value is None:
                raise NotReadyError(
                    f"the activation signal is not known: {signal.problem or 'no fresh value'}"
                )
            if signal.value > 0.0:
                return True
        scale = await self._reader.targets.read(trigger.target, namespace)
        if scale.replicas == 0:
            return False
        if CATALOGUE[trigger.metric].how is Combination.MEAN:
            # A latency of 0 or an idle GPU is no proof that nobody asks.
            return True
        return await self._amount(namespace, trigger) > 0.0

    async def _amount(self, namespace: str, trigger: Trigger) -> float:
        """0 of a target without replicas: KEDA asks for activity only once it has a value.

        Nothing is taken away by it, because no HorizontalPodAutoscaler acts on a target at zero.
        """
        try:
            if (await self._reader.targets.read(trigger.target, namespace)).replicas == 0:
                return 0.0
            return await self._reader.of_target(namespace, trigger.target, trigger.metric)
        except NotFoundError as error:
            raise NotReadyError(str(error)) from error
