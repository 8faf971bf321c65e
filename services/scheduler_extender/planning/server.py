"""What is planned, over gRPC: gangs as of the last turn, and reservations that people make and delete."""

from collections.abc import Callable
from typing import Protocol

from gpuloom.codec.planning import (
    gang_to_proto,
    reservation_from_proto,
    reservation_to_object,
    reservation_to_proto,
)
from gpuloom.errors import InvalidRequestError, NotReadyError
from gpuloom.kube.objects import JsonObject
from gpuloom.model.planning import GangReport, ReservationReport, times_problem
from gpuloom.runtime.clock import Clock
from gpuloom.v1 import scheduler_extender_pb2 as pb
from gpuloom.v1.scheduler_extender_pb2_grpc import PlanServiceServicer
from services.scheduler_extender.core.gangs.entitlements import Reservation, ReservationBook


class Reports(Protocol):
    def reports(self) -> tuple[GangReport, ...]: ...


class ReservationObjects(Protocol):
    async def create(self, obj: JsonObject) -> JsonObject: ...

    async def delete(self, namespace: str, name: str) -> None: ...


class PlanServer(PlanServiceServicer):
    def __init__(
        self,
        planner: Reports,
        book: ReservationBook,
        objects: ReservationObjects,
        unready_reason: Callable[[], str],
        clock: Clock,
    ) -> None:
        self._planner = planner
        self._book = book
        self._objects = objects
        self._unready_reason = unready_reason
        self._clock = clock

    async def ListGangs(self, request: pb.ListGangsRequest, context: object) -> pb.ListGangsResponse:
        self._refuse_unready()
        return pb.ListGangsResponse(gangs=map(gang_to_proto, self._planner.reports()))

    async def ListReservations(
        self, request: pb.ListReservationsRequest, context: object
    ) -> pb.ListReservationsResponse:
        self._refuse_unready()
        found = map(reservation_to_proto, map(_report, self._book.all()))
        return pb.ListReservationsResponse(reservations=found)

    async def CreateReservation(
        self, request: pb.CreateReservationRequest, context: object
    ) -> pb.CreateReservationResponse:
        self._refuse_unready()
        wanted = reservation_from_proto(request.reservation)
        problem = times_problem(wanted.start, wanted.end, request.ttl_s, self._clock.now())
        if problem:
            raise InvalidRequestError(problem)
        await self._objects.create(reservation_to_object(wanted, request.ttl_s))
        return pb.CreateReservationResponse(reservation=reservation_to_proto(wanted))

    async def DeleteReservation(
        self, request: pb.DeleteReservationRequest, context: object
    ) -> pb.DeleteReservationResponse:
        self._refuse_unready()
        await self._objects.delete(request.namespace, request.name)
        return pb.DeleteReservationResponse()

    def _refuse_unready(self) -> None:
        reason = self._unready_reason()
        if reason:
            raise NotReadyError(f"GPULoom is not ready: {reason}")


def _report(reservation: Reservation) -> ReservationReport:
    meta, spec, status = reservation.spoken.meta, reservation.spoken.spec, reservation.spoken.status
    return ReservationReport(
        namespace=meta.namespace,
        name=meta.name,
        gpu_count=spec.request.gpu_count,
        count=spec.count,
        gpu_memory_mib=spec.request.gpu_memory_mib or 0,
        gpu_model=spec.request.gpu_model or "",
        architecture=spec.request.architecture or "",
        mig_profile=spec.request.mig_profile or "",
        start=reservation.start,
        end=reservation.end,
        match_labels=dict(spec.selector.match_labels),
        state=status.state or "",
        reserved=status.reserved or 0,
        nodes=status.nodes,
    )
