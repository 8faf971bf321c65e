"""What the optimizer knows of pods: what they are, will need and waste."""

from collections.abc import Mapping
from typing import Any

import orjson

from gpuloom.codec.device import pod_to_proto
from gpuloom.codec.optimization import (
    advice_from_proto,
    classification_from_proto,
    hints_from_proto,
    prediction_from_proto,
    profile_from_proto,
    recommendation_from_proto,
    report_from_proto,
)
from gpuloom.model.node import PodRef
from gpuloom.model.optimization import (
    Classification,
    NodeHints,
    PodAdvice,
    Prediction,
    ProfileSummary,
    Recommendation,
    WasteReport,
)
from gpuloom.rpc.channel import RpcChannel
from gpuloom.v1 import optimizer_pb2 as pb
from gpuloom.v1.optimizer_pb2_grpc import OptimizerServiceStub

TIMEOUT_S = 10.0
HINT_TIMEOUT_S = 0.02
"""A hint that takes longer is none."""
ADVICE_TIMEOUT_S = 0.03
"""Admission waits for it."""


async def classify(channel: RpcChannel, pod: PodRef, timeout_s: float = TIMEOUT_S) -> Classification:
    """Raise NotFoundError if there is no such pod that asks for GPUs."""
    request = pb.ClassifyRequest(pod=pod_to_proto(pod))
    answer = await channel.stub(OptimizerServiceStub).Classify(request, timeout=timeout_s)
    return classification_from_proto(answer.classification)


async def predict(channel: RpcChannel, pod: PodRef, timeout_s: float = TIMEOUT_S) -> Prediction:
    request = pb.PredictRequest(pod=pod_to_proto(pod))
    answer = await channel.stub(OptimizerServiceStub).Predict(request, timeout=timeout_s)
    return prediction_from_proto(answer.prediction)


async def hint(channel: RpcChannel, pod: PodRef, timeout_s: float = HINT_TIMEOUT_S) -> NodeHints:
    request = pb.HintRequest(pod=pod_to_proto(pod))
    return hints_from_proto(await channel.stub(OptimizerServiceStub).Hint(request, timeout=timeout_s))


async def waste(
    channel: RpcChannel, namespace: str = "", min_score: float = 0.0, timeout_s: float = TIMEOUT_S
) -> WasteReport:
    request = pb.WasteRequest(namespace=namespace, min_score=min_score)
    return report_from_proto(await channel.stub(OptimizerServiceStub).Waste(request, timeout=timeout_s))


async def recommend(channel: RpcChannel, pod: PodRef, timeout_s: float = TIMEOUT_S) -> Recommendation:
    """Raise NotFoundError if the pod is not there, or does not waste anything."""
    request = pb.RecommendRequest(pod=pod_to_proto(pod))
    answer = await channel.stub(OptimizerServiceStub).Recommend(request, timeout=timeout_s)
    return recommendation_from_proto(answer)


async def advise(
    channel: RpcChannel, pod: Mapping[str, Any], namespace: str = "", timeout_s: float = ADVICE_TIMEOUT_S
) -> PodAdvice:
    """For a pod that does not exist yet, as Kubernetes has it at admission."""
    request = pb.AdviseRequest(pod_json=orjson.dumps(pod), namespace=namespace)
    return advice_from_proto(await channel.stub(OptimizerServiceStub).Advise(request, timeout=timeout_s))


async def profiles(
    channel: RpcChannel, namespace: str = "", timeout_s: float = TIMEOUT_S
) -> tuple[ProfileSummary, ...]:
    request = pb.ProfilesRequest(namespace=namespace)
    answer = await channel.stub(OptimizerServiceStub).Profiles(request, timeout=timeout_s)
    return tuple(map(profile_from_proto, answer.profiles))
