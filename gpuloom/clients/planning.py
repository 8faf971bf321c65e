"""What the extender plans ahead: gangs and reservations."""

from gpuloom.codec.planning import (
    gang_from_proto,
    reservation_from_proto,
    reservation_to_proto,
)
from gpuloom.model.planning import GangReport, ReservationReport
from gpuloom.rpc.channel import RpcChannel
from gpuloom.v1 import scheduler_extender_pb2 as pb
from gpuloom.v1.scheduler_extender_pb2_grpc import PlanServiceStub

TIMEOUT_S = 5.0


class PlanClient:
    """Only the leader answers: NotReadyError and UnavailableError mean ask again."""

    def __init__(self, channel: RpcChannel, timeout_s: float = TIMEOUT_S) -> None:
        self._channel = channel
        self._timeout_s = timeout_s

    async def gangs(self) -> list[GangReport]:
        stub = self._channel.stub(PlanServiceStub)
        answer = await stub.ListGangs(pb.ListGangsRequest(), timeout=self._timeout_s)
        return [gang_from_proto(gang) for gang in answer.gangs]

    async def reservations(self) -> list[ReservationReport]:
        stub = self._channel.stub(PlanServiceStub)
        answer = await stub.ListReservations(pb.ListReservationsRequest(), timeout=self._timeout_s)
        return [reservation_from_proto(each) for each in answer.reservations]

    async def reserve(self, wanted: ReservationReport, ttl_s: int = 0) -> ReservationReport:
        """It has an end, or lasts `ttl_s`."""
        request = pb.CreateReservationRequest(reservation=reservation_to_proto(wanted), ttl_s=ttl_s)
        answer = await self._channel.stub(PlanServiceStub).CreateReservation(request, timeout=self._timeout_s)
        return reservation_from_proto(answer.reservation)

    async def delete_reservation(self, namespace: str, name: str) -> None:
        """NotFoundError if there is none."""
        request = pb.DeleteReservationRequest(namespace=namespace, name=name)
        await self._channel.stub(PlanServiceStub).DeleteReservation(request, timeout=self._timeout_s)
