"""The autoscaler's gRPC service: encodes what the leader's loop knows. Changes nothing."""

from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any

import grpc
from google.protobuf.timestamp_pb2 import Timestamp

from gpuloom.codec.device import pod_to_proto
from gpuloom.errors import NotReadyError
from gpuloom.model.claims import GpuNodeClaim
from gpuloom.runtime.clock import Clock
from gpuloom.v1 import autoscaler_pb2 as pb
from gpuloom.v1.autoscaler_pb2_grpc import AutoscalerServiceServicer
from services.autoscaler.core.scaling.policies import remaining_s
from services.autoscaler.core.scaling.policy_status import Outcome, Taken, message_of
from services.autoscaler.inference.core.standing import Standing
from services.autoscaler.inference.wire import inference_to_proto
from services.autoscaler.nodes.scaler import Scaler

ALLOWED_CALLERS = {
    "GetStatus": frozenset({"console", "cli"}),
    "GetPlan": frozenset({"console", "cli"}),
    "GetInference": frozenset({"console", "cli"}),
    "ListActions": frozenset({"console", "cli"}),
}
SERVICE = pb.DESCRIPTOR.services_by_name["AutoscalerService"]
DEFAULT_ACTIONS, MOST_ACTIONS = 100, 500

Context = grpc.aio.ServicerContext[Any, Any]


class AutoscalerServer(AutoscalerServiceServicer):
    """`leads`: a standby knows nothing worth telling."""

    def __init__(
        self,
        scaler: Scaler,
        leads: Callable[[], bool],
        clock: Clock,
        inference: Callable[[], Iterable[Standing]],
    ) -> None:
        self._scaler = scaler
        self._leads = leads
        self._clock = clock
        self._inference = inference

    async def GetStatus(self, request: pb.GetStatusRequest, context: Context) -> pb.GetStatusResponse:
        self._require_leader()
        return pb.GetStatusResponse(
            policies=[self._policy(one) for one in self._outcomes()],
            claims=[_claim(one) for one in self._scaler.store.claims()],
            interruption_rate=self._scaler.book.interruption_rate,
        )

    async def GetPlan(self, request: pb.GetPlanRequest, context: Context) -> pb.GetPlanResponse:
        self._require_leader()
        return pb.GetPlanResponse(plans=[_plan(one) for one in self._outcomes()])

    async def GetInference(
        self, request: pb.GetInferenceRequest, context: Context
    ) -> pb.GetInferenceResponse:
        self._require_leader()
        return pb.GetInferenceResponse(policies=[inference_to_proto(one) for one in self._inference()])

    async def ListActions(self, request: pb.ListActionsRequest, context: Context) -> pb.ListActionsResponse:
        limit = min(request.limit or DEFAULT_ACTIONS, MOST_ACTIONS)
        newest = list(reversed(self._scaler.actions))[:limit]
        return pb.ListActionsResponse(actions=[_action(one) for one in newest])

    def _require_leader(self) -> None:
        if not self._leads():
            raise NotReadyError("this replica does not lead; ask again")

    def _outcomes(self) -> Iterable[Outcome]:
        return (self._scaler.outcomes[name] for name in sorted(self._scaler.outcomes))

    def _policy(self, outcome: Outcome) -> pb.PolicyStanding:
        spec, now = outcome.policy.policy.spec, self._clock.now()
        memory = self._scaler.memory(outcome.policy)
        return pb.PolicyStanding(
            name=outcome.policy.name,
            provider=spec.provider.value,
            enabled=spec.enabled,
            dry_run=outcome.dry_run,
            ready_nodes=sum(one.status.gpu_ready is not None for one in outcome.claims),
            desired_nodes=len(outcome.claims),
            max_nodes=spec.max_nodes,
            pending_pods=outcome.pending,
            utilization=outcome.utilization,
            message=message_of(outcome),
            scale_up_wait_seconds=remaining_s(memory.last_up, spec.scale_up_cooldown_s, now),
            scale_down_wait_seconds=remaining_s(memory.last_down, spec.scale_down_cooldown_s, now),
            predicted_utilization=None if outcome.prediction is None else outcome.prediction.utilization,
            prediction_confidence=None if outcome.prediction is None else outcome.prediction.confidence,
            pools=[
                pb.PoolStanding(
                    name=pool.name,
                    nodes=sum(one.spec.pool_name == pool.name for one in outcome.claims),
                    min_nodes=pool.min_size,
                    max_nodes=pool.max_size,
                    priority=pool.priority,
                    problem=outcome.table.problems.get(pool.name, ""),
                )
                for pool in sorted(spec.pools, key=lambda one: one.name)
            ],
        )


def _claim(claim: GpuNodeClaim) -> pb.NodeClaim:
    offering, status = claim.spec.offering, claim.status
    last = max(status.conditions, key=lambda one: one.last_transition, default=None)
    return pb.NodeClaim(
        name=claim.meta.name,
        pool=claim.spec.pool_name,
        instance_type=offering.instance_type,
        zone=offering.zone or "",
        capacity_type=offering.capacity_type.value,
        state=status.state.value if status.state is not None else "Requested",
        node_name=status.node_name or "",
        gpus=claim.spec.gpu_count,
        nano_usd_per_hour=status.price_nano_usd_per_hour,
        requested=_time(status.requested),
        message="" if last is None else last.message,
    )


def _plan(outcome: Outcome) -> pb.PolicyPlan:
    up, down = outcome.up, outcome.down
    return pb.PolicyPlan(
        policy=outcome.policy.name,
        machines=[
            pb.PlannedMachine(
                pool=node.offering.pool,
                instance_type=node.offering.key.instance_type,
                zone=node.offering.key.zone,
                capacity_type=node.offering.key.capacity_type.value,
                nano_usd_per_hour=node.offering.nano_usd_per_hour,
                price_estimated=node.offering.estimated,
                pods=[pod_to_proto(pod.ref) for pod in node.pods],
            )
            for node in up.nodes or up.plan.nodes
        ],
        placed=[pb.PlacedPod(pod_uid=uid, node_name=node) for uid, node in sorted(up.plan.kept.items())],
        unplaced=[
            pb.UnplacedPod(pod=pod_to_proto(pod.ref), reason=reason) for pod, reason in up.plan.unplaced
        ],
        rejected=[
            pb.RejectedOffering(offering=offering, reason=reason)
            for offering, reason in outcome.table.rejected
        ],
        scale_up_reason=up.reason,
        scale_up_held=up.held,
        drained_claim="" if down.claim is None else down.claim.meta.name,
        scale_down_reason=down.reason or down.held,
    )


def _action(taken: Taken) -> pb.ScalingActionRecord:
    action = taken.action
    return pb.ScalingActionRecord(
        time=_time(action.time),
        policy=taken.policy,
        type=action.type.value,
        pool=action.pool or "",
        count=action.count or 0,
        reason=action.reason or "",
        claims=taken.claims,
        nano_usd_per_hour=taken.nano_usd_per_hour,
    )


def _time(moment: datetime | None) -> Timestamp | None:
    if moment is None:
        return None
    found = Timestamp()
    found.FromDatetime(moment)
    return found
