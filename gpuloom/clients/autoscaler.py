"""What the autoscaler does, would do and did."""

from datetime import UTC, datetime

from gpuloom.codec.device import pod_from_proto
from gpuloom.model.autoscaling import (
    AutoscalerStanding,
    ClaimStanding,
    InferenceStanding,
    PlannedMachine,
    PolicyPlan,
    PolicyStanding,
    PoolStanding,
    ScalingRecord,
)
from gpuloom.rpc.channel import RpcChannel
from gpuloom.v1 import autoscaler_pb2 as pb
from gpuloom.v1.autoscaler_pb2_grpc import AutoscalerServiceStub


async def standing(channel: RpcChannel, timeout_s: float) -> AutoscalerStanding:
    """NotReadyError if the replica that was asked does not lead."""
    answer = await channel.stub(AutoscalerServiceStub).GetStatus(pb.GetStatusRequest(), timeout=timeout_s)
    return AutoscalerStanding(
        tuple(_policy(one) for one in answer.policies),
        tuple(_claim(one) for one in answer.claims),
        answer.interruption_rate,
    )


async def plans(channel: RpcChannel, timeout_s: float) -> tuple[PolicyPlan, ...]:
    answer = await channel.stub(AutoscalerServiceStub).GetPlan(pb.GetPlanRequest(), timeout=timeout_s)
    return tuple(_plan(one) for one in answer.plans)


async def inference(channel: RpcChannel, timeout_s: float) -> tuple[InferenceStanding, ...]:
    answer = await channel.stub(AutoscalerServiceStub).GetInference(
        pb.GetInferenceRequest(), timeout=timeout_s
    )
    return tuple(_inference(one) for one in answer.policies)


async def actions(channel: RpcChannel, limit: int, timeout_s: float) -> tuple[ScalingRecord, ...]:
    """Newest first."""
    request = pb.ListActionsRequest(limit=limit)
    answer = await channel.stub(AutoscalerServiceStub).ListActions(request, timeout=timeout_s)
    return tuple(_action(one) for one in answer.actions)


def _policy(one: pb.PolicyStanding) -> PolicyStanding:
    def told(field: str) -> float | None:
        return getattr(one, field) if one.HasField(field) else None  # type: ignore[arg-type]

    return PolicyStanding(
        one.name,
        one.provider,
        one.enabled,
        one.dry_run,
        one.ready_nodes,
        one.desired_nodes,
        one.max_nodes,
        one.pending_pods,
        told("utilization"),
        one.message,
        one.scale_up_wait_seconds,
        one.scale_down_wait_seconds,
        told("predicted_utilization"),
        told("prediction_confidence"),
        tuple(_pool(pool) for pool in one.pools),
    )


def _inference(one: pb.InferenceStanding) -> InferenceStanding:
    return InferenceStanding(
        one.namespace,
        one.name,
        one.target,
        one.mode,
        one.min_replicas,
        one.max_replicas,
        one.current_replicas if one.HasField("current_replicas") else None,
        one.desired_replicas if one.HasField("desired_replicas") else None,
        one.ready_replicas,
        one.starting_replicas,
        one.obstacle,
        one.message,
        one.last_scale.ToDatetime(UTC) if one.HasField("last_scale") else None,
        one.hold_seconds if one.HasField("hold_seconds") else None,
        one.cold_start_seconds if one.HasField("cold_start_seconds") else None,
        tuple((it.name, it.target, it.value if it.HasField("value") else None) for it in one.metrics),
    )


def _pool(one: pb.PoolStanding) -> PoolStanding:
    most = one.max_nodes if one.HasField("max_nodes") else None
    return PoolStanding(one.name, one.nodes, one.min_nodes, most, one.priority, one.problem)


def _claim(one: pb.NodeClaim) -> ClaimStanding:
    return ClaimStanding(
        one.name,
        one.pool,
        one.instance_type,
        one.zone,
        one.capacity_type,
        one.state,
        one.node_name,
        one.gpus,
        one.nano_usd_per_hour if one.HasField("nano_usd_per_hour") else None,
        one.requested.ToDatetime(UTC) if one.HasField("requested") else None,
        one.message,
    )


def _plan(one: pb.PolicyPlan) -> PolicyPlan:
    return PolicyPlan(
        one.policy,
        tuple(_machine(machine) for machine in one.machines),
        tuple((pod.pod_uid, pod.node_name) for pod in one.placed),
        tuple((pod_from_proto(pod.pod), pod.reason) for pod in one.unplaced),
        tuple((rejected.offering, rejected.reason) for rejected in one.rejected),
        one.scale_up_reason,
        one.scale_up_held,
        one.drained_claim,
        one.scale_down_reason,
    )


def _machine(one: pb.PlannedMachine) -> PlannedMachine:
    return PlannedMachine(
        one.pool,
        one.instance_type,
        one.zone,
        one.capacity_type,
        one.nano_usd_per_hour,
        one.price_estimated,
        tuple(pod_from_proto(pod) for pod in one.pods),
    )


def _action(one: pb.ScalingActionRecord) -> ScalingRecord:
    time: datetime = one.time.ToDatetime(UTC)
    return ScalingRecord(
        time, one.policy, one.type, one.pool, one.count, one.reason, tuple(one.claims), one.nano_usd_per_hour
    )
