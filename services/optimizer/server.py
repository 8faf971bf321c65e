"""The optimizer's gRPC service: decode, ask the engine, encode."""

import orjson
import yaml

from gpuloom.codec.device import pod_from_proto
from gpuloom.codec.optimization import (
    advice_to_proto,
    classification_to_proto,
    hints_to_proto,
    prediction_to_proto,
    profile_to_proto,
    recommendation_to_proto,
    report_to_proto,
)
from gpuloom.errors import InvalidRequestError, NotFoundError
from gpuloom.kube.objects import JsonObject
from gpuloom.model.node import PodRef
from gpuloom.model.optimization import PodAdvice, PodWaste, Recommendation, WasteParts, WasteReport
from gpuloom.v1 import optimizer_pb2 as pb
from gpuloom.v1.optimizer_pb2_grpc import OptimizerServiceServicer
from gpuloom.v1.types_pb2 import PodRef as PodMessage
from services.optimizer.adapters.pods import Pods
from services.optimizer.core.recommend import change_of
from services.optimizer.core.workload import Workload, workload_of
from services.optimizer.engine import Engine
from services.optimizer.metrics import OptimizerMetrics
from services.optimizer.summaries import Summaries

SERVICE = pb.DESCRIPTOR.services_by_name["OptimizerService"]
MAX_POD_BYTES = 512 * 1024
_CLI = frozenset({"cli"})
_PEOPLE = frozenset({"console", "cli"})
_NO_WASTE = "does not waste what it holds, as far as is known"
ALLOWED_CALLERS = {
    "Classify": _CLI,
    "Predict": _CLI,
    "Hint": frozenset({"scheduler_extender", "cli"}),
    "Waste": frozenset({"controller", "console", "cli"}),
    "Recommend": _PEOPLE,
    "Advise": frozenset({"webhook", "cli"}),
    "Profiles": _CLI,
}


class OptimizerServer(OptimizerServiceServicer):
    def __init__(
        self,
        engine: Engine,
        pods: Pods,
        summaries: Summaries,
        hours_per_month: int,
        metrics: OptimizerMetrics,
    ) -> None:
        self._engine = engine
        self._pods = pods
        self._summaries = summaries
        self._hours_per_month = hours_per_month
        self._metrics = metrics

    async def Classify(self, request: pb.ClassifyRequest, context: object) -> pb.ClassifyResponse:
        found = self._engine.classify(self._pods.named(_named(request.pod)))
        return pb.ClassifyResponse(classification=classification_to_proto(found))

    async def Predict(self, request: pb.PredictRequest, context: object) -> pb.PredictResponse:
        found = self._engine.predict(self._pods.named(_named(request.pod)))
        return pb.PredictResponse(prediction=prediction_to_proto(found))

    async def Hint(self, request: pb.HintRequest, context: object) -> pb.HintResponse:
        with self._metrics.hint_duration.time():
            return hints_to_proto(self._engine.hint(_named(request.pod)))

    async def Waste(self, request: pb.WasteRequest, context: object) -> pb.WasteResponse:
        report = self._engine.report
        shown = tuple(
            pod
            for pod in report.pods
            if request.namespace in ("", pod.pod.namespace) and pod.score >= request.min_score
        )
        return report_to_proto(WasteReport(shown, report.observed_pods, report.problem))

    async def Recommend(self, request: pb.RecommendRequest, context: object) -> pb.RecommendResponse:
        workload = self._pods.named(_named(request.pod))
        advice = self._engine.advice_of(workload)
        applied = None if advice is None else advice.as_applied()
        found = [each for each in self._engine.report.pods if each.pod.uid == workload.pod.uid]
        if not found and applied is None:
            raise NotFoundError(f"{workload.pod} {_NO_WASTE}")
        fit = self._engine.fit_of(workload.pod.uid)
        change = None if fit is None else change_of(workload, fit, await self._pods.manifest(workload))
        return recommendation_to_proto(
            Recommendation(
                waste=found[0] if found else _no_waste(workload),
                target="" if change is None else change.target,
                is_patch=change is not None and change.is_patch,
                yaml="" if change is None else yaml.safe_dump(change.document, sort_keys=False),
                hours_per_month=self._hours_per_month,
                applied=() if applied is None else (applied,),
            )
        )

    async def Advise(self, request: pb.AdviseRequest, context: object) -> pb.AdviseResponse:
        with self._metrics.advice_duration.time():
            workload = workload_of(_planned(request))
            if workload is None:
                return advice_to_proto(PodAdvice(reason="it asks for no GPU, or for none in a clear way"))
            return advice_to_proto(self._engine.advise(workload))

    async def Profiles(self, request: pb.ProfilesRequest, context: object) -> pb.ProfilesResponse:
        found = await self._summaries.all(request.namespace)
        return pb.ProfilesResponse(profiles=[profile_to_proto(profile) for profile in found])


def _no_waste(workload: Workload) -> PodWaste:
    return PodWaste(
        workload.pod, str(workload.owner), WasteParts(), workload.signature.request, reason=_NO_WASTE
    )


def _planned(request: pb.AdviseRequest) -> JsonObject:
    """A pod at admission may have no name yet, and is in no namespace by its own word."""
    if len(request.pod_json) > MAX_POD_BYTES:
        raise InvalidRequestError(f"pod_json has at most {MAX_POD_BYTES} bytes, not {len(request.pod_json)}")
    try:
        pod = orjson.loads(request.pod_json)
    except orjson.JSONDecodeError:
        raise InvalidRequestError("pod_json is not JSON") from None
    if not isinstance(pod, dict) or not isinstance(pod.get("spec"), dict):
        raise InvalidRequestError("pod_json is not a pod: an object with a spec")
    metadata = pod.get("metadata") or {}
    if not isinstance(metadata, dict):
        raise InvalidRequestError("pod_json: metadata is not an object")
    name = metadata.get("name") or str(metadata.get("generateName", "")).rstrip("-")
    namespace = request.namespace or metadata.get("namespace") or "default"
    return {**pod, "metadata": {**metadata, "name": name, "namespace": namespace}}


def _named(message: PodMessage) -> PodRef:
    pod = pod_from_proto(message)
    if not pod.namespace or not pod.name:
        raise InvalidRequestError("name a pod by its namespace and name")
    return pod
