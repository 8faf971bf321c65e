"""The leader's loop for GPUReservations: keeps as many places as are asked for, as long as they count.

Every device of a place is a GPUHold that is owned by the reservation, so a new leader knows it, and what is
held for one is never given to another. A pod that uses a place says so in its Binding; its device counts as
reserved while it runs, and is held again when it has gone.
"""

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from gpuloom.codec.pod import bound_node, is_terminal
from gpuloom.errors import GpuloomError
from gpuloom.kube.objects import JsonObject, metadata_of, uid_of
from gpuloom.model.claims import GpuReservation, GpuReservationStatus, HoldOwner, ReservationState
from gpuloom.model.gpu import DeviceRef
from gpuloom.model.ledger import RESERVATION_OWNER, Hold
from gpuloom.model.request import PodRequest
from gpuloom.names import ANNOTATION_RESERVATION
from gpuloom.placement.constraints.objects import SchedulablePod, Toleration
from gpuloom.placement.gangs.gang import GangPlan, plan_gang
from gpuloom.placement.gangs.sites import Judge, Member, Seat
from gpuloom.placement.occupancy.nominations import Asker
from gpuloom.runtime.clock import Clock
from services.scheduler_extender.core.gangs.entitlements import (
    Reservation,
    ReservationBook,
    place_requests,
    whole_places,
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
UNFILLED_PAUSE_S = 5.0
"""So long after it could not be filled it is not tried again: gangs and preemptions wait meanwhile."""
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
        self._paused_until_s: dict[str, float] = {}
        """By UID, of those that could not be filled."""

    async def turn(self) -> None:
        now = self._clock.now()
        known = {each.spoken.meta.uid for each in self._parts.book.all()}
        self._paused_until_s = {uid: at_s for uid, at_s in self._paused_until_s.items() if uid in known}
        gone = [hold.name for hold in self._all_holds() if hold.owner.uid not in known]
        await self._parts.promises.give_back(gone)
        for reservation in self._parts.book.all():
            await self._keep(reservation, now)

    async def _keep(self, reservation: Reservation, now: datetime) -> None:
        state = reservation.state(now)
        if state is not ReservationState.ACTIVE:
            await self._parts.promises.give_back([hold.name for hold in self._holds(reservation)])
        else:
            await self._give_back_useless(reservation)
            await self._fill(reservation, now)
            await self._renew(reservation, now)
        await self._show(reservation, state)

    async def _give_back_useless(self, reservation: Reservation) -> None:
        """What its pods have by now, and what broke: that is kept elsewhere, if there is room."""
        used, holds = self._used(reservation), self._holds(reservation)
        useless = [hold for hold in holds if hold.device is not None and hold.device.device in used]
        useless += self._parts.promises.broken(hold for hold in holds if hold not in useless)
        await self._parts.promises.give_back([hold.name for hold in useless])

    async def _fill(self, reservation: Reservation, now: datetime) -> None:
        spec = reservation.spoken.spec
        per_place = spec.request.gpu_count
        held = sorted(self._holds(reservation), key=lambda hold: (hold.node_name, hold.name))
        surplus = len(held) + self._used_by_node(reservation).total() - spec.count * per_place
        if surplus > 0:
            await self._parts.promises.give_back([hold.name for hold in held[-surplus:]])
            return
        await self._give_back_parts(reservation, held)
        devices = self._devices(reservation)
        room = (spec.count * per_place - devices.total()) // per_place
        missing = max(0, min(spec.count - whole_places(per_place, devices), room))
        uid, now_s = reservation.spoken.meta.uid, self._clock.monotonic()
        if not missing or now_s < self._paused_until_s.get(uid, 0.0):
            return
        for request in place_requests(spec.request):
            if missing:
                missing -= await self._reserve(reservation, request, missing, now)
        if missing:
            self._paused_until_s[uid] = now_s + UNFILLED_PAUSE_S

    async def _give_back_parts(self, reservation: Reservation, held: Sequence[Hold]) -> None:
        """Of a place whose other devices are not held, as a crash or a release may leave it."""
        devices, per_place = self._devices(reservation), reservation.spoken.spec.request.gpu_count
        for node_name, count in devices.items():
            here = [hold.name for hold in held if hold.node_name == node_name]
            part = min(count % per_place, len(here))
            await self._parts.promises.give_back(here[len(here) - part :])

    async def _reserve(
        self, reservation: Reservation, request: PodRequest, missing: int, now: datetime
    ) -> int:
        """How many of the missing places were taken."""
        grounds = await in_slices(self._parts.sites.grounds(Asker("", PRIORITY)), self._clock)
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
        places = whole_places(reservation.spoken.spec.request.gpu_count, self._devices(reservation))
        nodes = {hold.node_name for hold in held} | {bound_node(pod) or "" for pod in used}
        active = state is ReservationState.ACTIVE
        status = GpuReservationStatus(
            state,
            places if active else 0,
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
        return frozenset(device for _, device in self._used_devices(reservation))

    def _used_by_node(self, reservation: Reservation) -> Counter[str]:
        return Counter(node_name for node_name, _ in self._used_devices(reservation))

    def _used_devices(self, reservation: Reservation) -> set[tuple[str, DeviceRef]]:
        """With the node that each is on."""
        found: set[tuple[str, DeviceRef]] = set()
        for pod in self._users(reservation):
            observed = self._parts.ledger.pod(uid_of(pod))
            if observed is not None and observed.allocation is not None:
                found |= {(bound_node(pod) or "", item.device) for item in observed.allocation.devices}
        return found

    def _devices(self, reservation: Reservation) -> Counter[str]:
        """Held or used, by node."""
        held = Counter(hold.node_name for hold in self._holds(reservation))
        return held + self._used_by_node(reservation)


def _place(name: str, number: int, request: PodRequest) -> Member:
    """A reserved place as a planner sees it: a pod that goes wherever its devices are."""
    pod = SchedulablePod(f"{name}/{number}", "", name, PRIORITY, {}, {}, None, ANY_NODE)
    return Member(pod, request)
