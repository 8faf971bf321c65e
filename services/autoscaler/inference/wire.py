"""Standings of inference policies as messages."""

from google.protobuf.timestamp_pb2 import Timestamp

from gpuloom.v1 import autoscaler_pb2 as pb
from services.autoscaler.inference.core.standing import Standing


def inference_to_proto(one: Standing) -> pb.InferenceStanding:
    message = pb.InferenceStanding(
        namespace=one.namespace,
        name=one.name,
        target=one.target,
        mode=one.mode,
        min_replicas=one.min_replicas,
        max_replicas=one.max_replicas,
        current_replicas=one.current,
        desired_replicas=None if one.decision is None else one.decision.wanted,
        ready_replicas=one.ready,
        starting_replicas=one.starting,
        obstacle="" if one.obstacle is None else one.obstacle.reason,
        message=one.message,
        metrics=[pb.InferenceMetric(name=it.name, target=it.target, value=it.value) for it in one.readings],
        hold_seconds=one.hold_s,
        cold_start_seconds=one.cold_start_s,
    )
    if one.last_scale is not None:
        at = Timestamp()
        at.FromDatetime(one.last_scale)
        message.last_scale.CopyFrom(at)
    return message
