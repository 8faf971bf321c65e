"""What the MIG controller shows and plans."""

from collections.abc import Mapping

from gpuloom.codec.mig import begun_from_proto, cards_from_proto, fit_from_proto
from gpuloom.model.mig_cards import BegunChange, MigCards, PlannedFit
from gpuloom.rpc.channel import RpcChannel
from gpuloom.v1.mig_controller_pb2 import ApplyFitRequest, ListCardsRequest, PlanFitRequest
from gpuloom.v1.mig_controller_pb2_grpc import MigControllerServiceStub


async def list_cards(channel: RpcChannel, timeout_s: float) -> MigCards:
    stub = channel.stub(MigControllerServiceStub)
    return cards_from_proto(await stub.ListCards(ListCardsRequest(), timeout=timeout_s))


async def plan_fit(channel: RpcChannel, demand: Mapping[str, int], timeout_s: float) -> PlannedFit:
    stub = channel.stub(MigControllerServiceStub)
    return fit_from_proto(await stub.PlanFit(PlanFitRequest(demand=dict(demand)), timeout=timeout_s))


async def apply_fit(
    channel: RpcChannel, demand: Mapping[str, int], fingerprint: str, timeout_s: float
) -> tuple[BegunChange, ...]:
    """Carry out that very plan. ConflictError: nothing was begun."""
    stub = channel.stub(MigControllerServiceStub)
    request = ApplyFitRequest(demand=dict(demand), fingerprint=fingerprint)
    return begun_from_proto(await stub.ApplyFit(request, timeout=timeout_s))
