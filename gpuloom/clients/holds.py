"""Holds at the extender: take what must be given to nobody else, renew it in time, release it."""

from dataclasses import dataclass

from gpuloom.codec.device import allocated_to_proto
from gpuloom.codec.hold import hold_from_proto, owner_to_proto
from gpuloom.model.allocation import AllocatedDevice
from gpuloom.model.claims import HoldOwner
from gpuloom.model.ledger import Hold
from gpuloom.rpc.channel import RpcChannel
from gpuloom.v1 import scheduler_extender_pb2 as pb
from gpuloom.v1.scheduler_extender_pb2_grpc import HoldServiceStub

TIMEOUT_S = 8.0


@dataclass(frozen=True, slots=True)
class HoldWish:
    """What to take, as in TakeHoldRequest. `device` None: the whole node. `owner` None: the caller itself."""

    name: str
    node_name: str
    reason: str
    ttl_s: int
    node_uid: str = ""
    device: AllocatedDevice | None = None
    owner: HoldOwner | None = None
    allow_used: bool = False


class HoldClient:
    """Only the leader answers: NotReadyError and UnavailableError mean ask again.

    After a take whose outcome is not known, ask for the same under the same name, or release it.
    """

    def __init__(self, channel: RpcChannel, timeout_s: float = TIMEOUT_S) -> None:
        self._channel = channel
        self._timeout_s = timeout_s

    async def take(self, wish: HoldWish) -> Hold:
        """In force when it returns. ConflictError: in use, or held by somebody else."""
        request = pb.TakeHoldRequest(
            name=wish.name,
            node_name=wish.node_name,
            node_uid=wish.node_uid,
            device=None if wish.device is None else allocated_to_proto(wish.device),
            owner=None if wish.owner is None else owner_to_proto(wish.owner),
            reason=wish.reason,
            ttl_s=wish.ttl_s,
            allow_used=wish.allow_used,
        )
        answer = await self._channel.stub(HoldServiceStub).TakeHold(request, timeout=self._timeout_s)
        return hold_from_proto(answer.hold)

    async def renew(self, name: str, ttl_s: int) -> Hold:
        """NotFoundError: it is over, and what it held may be given out by now."""
        request = pb.RenewHoldRequest(name=name, ttl_s=ttl_s)
        answer = await self._channel.stub(HoldServiceStub).RenewHold(request, timeout=self._timeout_s)
        return hold_from_proto(answer.hold)

    async def release(self, name: str) -> None:
        """One that is over already is no error."""
        stub = self._channel.stub(HoldServiceStub)
        await stub.ReleaseHold(pb.ReleaseHoldRequest(name=name), timeout=self._timeout_s)

    async def list(self) -> list[Hold]:
        stub = self._channel.stub(HoldServiceStub)
        answer = await stub.ListHolds(pb.ListHoldsRequest(), timeout=self._timeout_s)
        return [hold_from_proto(hold) for hold in answer.holds]
