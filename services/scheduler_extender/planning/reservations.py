"""The leader's loop for GPUReservations: keeps as many places as are asked for, as long as they count.

Every device of a place is a GPUHold that is owned by the reservation, so a new leader knows it, and what is
held for one is never given to another. A pod that uses a place says so in its Binding; its device counts as
reserved while it runs, and is held again when it has gone.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from gpuloom.codec.pod import bound_node, is_terminal
from gpuloom.errors import GpuloomError
from gpuloom.kube.objects import JsonObject, metadata_of, uid_of
from gpuloom.model.allocation import AllocatedDevice
from gpuloom.model.claims import GpuReservation, GpuReservationStatus, HoldOwner, ReservationState
from gpuloom.model.gpu import DeviceRef
from gpuloom.model.ledger import RESERVATION_OWNER, Hold
from gpuloom.model.request import PodRequest
from gpuloom.names import ANNOTATION_RESERVATION
from gpuloom.placement.constraints.objects import SchedulablePod, Toleration
from gpuloom.placement.gangs.gang import GangPlan, plan_gang
from gpuloom.placement.gangs.sites import Judge, Member, Seat
from gpuloom.runtime.clock import Clock
from services.scheduler_extender.core.gangs.entitlements import (
    Reservation,
    ReservationBook,
    missing_places,
    place_requests,
)
from services.scheduler_extender.core.gangs.guard import SELF
from services.scheduler_extender.core.gangs.index import PLANNED, RESERVED
from services.scheduler_extender.core.ledger.ledger import Ledger
from services.scheduler_extender.holds.holding import LEAST_TTL_S, Holding
from services.scheduler_extender.planning.promises import Promises, hold_name
from services.scheduler_extender.planning.sites import Observed, SiteBook
from services.scheduler_extender.planning.slices import in_slices

REASON = "kept by a GPUReservation"
MOST_TTL_S, RENEWED_S = 43_200, 14_400
"""A hold lasts for so long at most, and is renewed when less than this is left."""
PRIORITY = 2**31 - 1
"""Nominated pods keep what they were promised."""
ANY_NODE = (Toleration(operator="Exists"),)

_log = logging.getLogger(__name__)


class ReservationStatuses(Protocol):
    async def write(self, reservation: GpuReservation, status: GpuReservationStatus) -> None:
        """Raise a GpuloomError."""


@dataclass(frozen=True, slots=True)
class ReservationParts:
    """What the loop works on. `wake` is called with a node's name when something was kept there."""

    book: ReservationBook
    sites: SiteBook
    pods: Observed
    ledger: Ledger
    promises: Promises
    holding: Holding
    statuses: ReservationStatuses
    judge: Judge
    wake: Callable[[str], None]


class ReservationLoop:
    def __init__(self, parts: ReservationParts, clock: Clock) -> None:
        self._parts = parts
        self._clock = clock

    async def turn(self) -> None:
        now = self._clock.now()
        known = {each.spoken.meta.uid for each in self._parts.book.all()}
        gone = [hold.name for hold in self._all_holds() if hold.owner.uid not in known]
        await self._parts.promises.give_back(gone)
        for reservation in self._parts.book.all():
            await self._keep(reservation, now)

    async def _keep(self, reservation: Reservation, now: datetime) -> None:
        state = reservation.state(now)
        if state is not ReservationState.ACTIVE:
            await self._parts.promises.give_back([hold.name for hold in self._holds(reservation)])
        else:
            await self._give_back_used(reservation)
            await self._fill(reservation, now)
            await self._renew(reservation, now)
        await self._show(reservation, state)

    async def _give_back_used(self, reservation: Reservation) -> None:
        used = self._used(reservation)
        await self._parts.promises.give_back(
            [
                hold.name
                for hold in self._holds(reservation)
                if hold.device is not None and hold.device.device in used
            ]
        )

    async def _fill(self, reservation: Reservation, now: datetime) -> None:
        spec = reservation.spoken.spec
        per_place = spec.request.gpu_count
        held = self._holds(reservation)
        devices = len(held) + len(self._used(reservation))
        surplus = devices - spec.count * per_place
        if surplus > 0:
            await self._parts.promises.give_back([hold.name for hold in held[-surplus:]])
            return
        missing = missing_places(spec.count, per_place, devices)
        for request in place_requests(spec.request):
            if missing:
                missing -= await self._reserve(reservation, request, missing, now)

    async def _reserve(
        self, reservation: Reservation, request: PodRequest, missing: int, now: datetime
    ) -> int:
        """How many of the missing places were taken."""
        grounds = await in_slices(self._parts.sites.grounds(PRIORITY), self._clock)
        sites = list(grounds.sites.values())
        members = [_place(reservation.name, number, request) for number in range(missing)]
        while members:
            plan = await in_slices(plan_gang(members, sites, None, self._parts.judge), self._clock)
            if isinstance(plan, GangPlan):
                break
            members = members[: len(members) - max(1, plan.missing)]
        else:
            return 0
        wanted = [hold for seat in plan.seats for hold in self._wanted(reservation, seat)]
        refused = await self._parts.promises.take(wanted, self._ttl_s(reservation, now))
        if refused:
            _log.info("reservation not filled yet", extra={"name": reservation.name, "reason": refused})
            return 0
        self._parts.wake(plan.seats[0].node_name)
        return len(members)

    def _wanted(self, reservation: Reservation, seat: Seat) -> list[Hold]:
        meta = reservation.spoken.meta
        owner = HoldOwner(RESERVATION_OWNER, meta.name, meta.namespace, meta.uid)
        node_uid = self._parts.ledger.node_uid(seat.node_name) or ""
        return [
            Hold(hold_name(meta.uid, item), seat.node_name, owner, REASON, node_uid, item, SELF)
            for item in seat.devices
        ]

    async def _renew(self, reservation: Reservation, now: datetime) -> None:
        for hold in self._holds(reservation):
            left_s = MOST_TTL_S if hold.expires is None else (hold.expires - now).total_seconds()
            if left_s < RENEWED_S and hold.expires is not None and hold.expires < reservation.end:
                try:
                    await self._parts.holding.renew(hold.name, self._ttl_s(reservation, now), SELF)
                except GpuloomError as error:
                    _log.info(
                        "hold of a reservation not renewed", extra={"hold": hold.name, "reason": str(error)}
                    )

    async def _show(self, reservation: Reservation, state: ReservationState) -> None:
        held = self._holds(reservation)
        used = self._users(reservation)
        devices = len(held) + len(self._used(reservation))
        nodes = {hold.node_name for hold in held} | {bound_node(pod) or "" for pod in used}
        active = state is ReservationState.ACTIVE
        status = GpuReservationStatus(
            state,
            devices // reservation.spoken.spec.request.gpu_count if active else 0,
            tuple(sorted(nodes - {""})) if active else (),
            reservation.end,
        )
        if status == reservation.spoken.status:
            return
        try:
            await self._parts.statuses.write(reservation.spoken, status)
        except GpuloomError as error:
            _log.info("status not written", extra={"name": reservation.name, "reason": str(error)})

    def _ttl_s(self, reservation: Reservation, now: datetime) -> int:
        left_s = int((reservation.end - now).total_seconds()) + 1
        return max(LEAST_TTL_S, min(MOST_TTL_S, left_s))

    def _all_holds(self) -> list[Hold]:
        return [hold for hold in self._parts.promises.all() if hold.owner.kind == RESERVATION_OWNER]

    def _holds(self, reservation: Reservation) -> list[Hold]:
        return [hold for hold in self._all_holds() if hold.owner.uid == reservation.spoken.meta.uid]

    def _users(self, reservation: Reservation) -> Sequence[JsonObject]:
        """Pods that say that they use it, which only a Binding of ours can say of a bound pod."""
        meta = reservation.spoken.meta
        return [
            pod
            for pod in self._parts.pods.by_index(PLANNED, RESERVED)
            if bound_node(pod)
            and not is_terminal(pod)
            and metadata_of(pod).get("namespace") == meta.namespace
            and (metadata_of(pod).get("annotations") or {}).get(ANNOTATION_RESERVATION) == meta.name
        ]

    def _used(self, reservation: Reservation) -> frozenset[DeviceRef]:
        given: list[AllocatedDevice] = []
        for pod in self._users(reservation):
            observed = self._parts.ledger.pod(uid_of(pod))
            if observed is not None and observed.allocation is not None:
                given += observed.allocation.devices
        return frozenset(item.device for item in given)


def _place(name: str, number: int, request: PodRequest) -> Member:
    """A reserved place as a planner sees it: a pod that goes wherever its devices are."""
    pod = SchedulablePod(f"{name}/{number}", "", name, PRIORITY, {}, {}, None, ANY_NODE)
    return Member(pod, request)
