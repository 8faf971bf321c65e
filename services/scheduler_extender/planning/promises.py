"""Places that were planned, made durable: one GPUHold for every device, owned by the pod it is for.

All of a plan or nothing: where one hold can't be taken those that were are given back. A pod that gets every
GPU of a node holds the node. That a hold is over when its pod is on the node is `holds/holding.py`'s.
"""

import hashlib
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import TypeVar

from gpuloom.errors import GpuloomError
from gpuloom.model.allocation import AllocatedDevice
from gpuloom.model.claims import HoldOwner
from gpuloom.model.gpu import MILLI_PER_GPU, GpuHealth
from gpuloom.model.ledger import POD_OWNER, Hold
from gpuloom.model.node import PodRef
from gpuloom.placement.gangs.sites import Seat
from services.scheduler_extender.core.gangs.guard import SELF
from services.scheduler_extender.core.ledger.holds import Holds
from services.scheduler_extender.core.views.views import Views
from services.scheduler_extender.holds.holding import Holding

_BROKEN = (GpuHealth.UNHEALTHY, GpuHealth.LOST)

_log = logging.getLogger(__name__)

Outcome = TypeVar("Outcome")
Together = Callable[[Sequence[Callable[[], Awaitable[Outcome]]]], Awaitable[Sequence[Outcome]]]


class Promises:
    """`together`: how many calls to Kubernetes are awaited; one after the other where nobody else can."""

    def __init__(
        self, holding: Holding, holds: Holds, views: Views, together: "Together[GpuloomError | None]"
    ) -> None:
        self._holding = holding
        self._holds = holds
        self._views = views
        self._together = together

    def of(self, pod_uid: str) -> list[Hold]:
        return [hold for hold in self._holds.of_pod(pod_uid) if hold.taken_by == SELF]

    def all(self) -> list[Hold]:
        return [hold for hold in self._holds.all() if hold.taken_by == SELF]

    def broken(self, holds: Iterable[Hold], cards: int = 0) -> list[Hold]:
        """Of these the ones whose GPU is unhealthy or gone; of whole nodes those with fewer sound `cards`.

        Of a node of which nothing is known now none is: what it held may be there again in a moment.
        """
        return [hold for hold in holds if self._is_broken(hold, cards)]

    def _is_broken(self, hold: Hold, cards: int) -> bool:
        view = self._views.view(hold.node_name)
        if view is None or not view.gpus:
            return False
        sound = {card.gpu.uuid for card in view.gpus if card.gpu.health not in _BROKEN}
        return len(sound) < cards if hold.device is None else hold.device.device.gpu_uuid not in sound

    async def make(
        self,
        seats: Iterable[Seat],
        pods: dict[str, PodRef],
        reason: str,
        ttl_s: int,
        *,
        allow_used: bool = False,
        beside: frozenset[str] = frozenset(),
    ) -> str:
        """Empty if all are in force; else why not, and none of them stays."""
        wanted = [hold for seat in seats for hold in self._wanted(seat, pods[seat.uid], reason)]
        return await self.take(wanted, ttl_s, allow_used=allow_used, beside=beside)

    async def take(
        self,
        wanted: Sequence[Hold],
        ttl_s: int,
        *,
        allow_used: bool = False,
        beside: frozenset[str] = frozenset(),
    ) -> str:
        async def take(hold: Hold) -> GpuloomError | None:
            try:
                await self._holding.take(hold, ttl_s, allow_used=allow_used, beside=beside)
            except GpuloomError as error:
                return error
            return None

        errors = [error for error in await self._together([partial(take, hold) for hold in wanted]) if error]
        if not errors:
            return ""
        await self.give_back([hold.name for hold in wanted])
        return str(errors[0])

    async def drop(self, pod_uids: Iterable[str]) -> bool:
        """Give back what is promised to these pods; whether all of it is."""
        return await self.give_back([hold.name for uid in pod_uids for hold in self.of(uid)])

    async def give_back(self, names: Sequence[str]) -> bool:
        async def release(name: str) -> GpuloomError | None:
            try:
                await self._holding.release(name, SELF)
            except GpuloomError as error:
                _log.info("promise not given back yet", extra={"hold": name, "reason": str(error)})
                return error
            return None

        return not any(await self._together([partial(release, name) for name in names]))

    def _wanted(self, seat: Seat, pod: PodRef, reason: str) -> list[Hold]:
        view = self._views.view(seat.node_name)
        owner = HoldOwner(POD_OWNER, pod.name, pod.namespace, pod.uid)
        node_uid = "" if view is None else view.uid
        devices: tuple[AllocatedDevice | None, ...] = seat.devices
        whole = all(item.device.mig is None and item.milli >= MILLI_PER_GPU for item in seat.devices)
        if view is not None and whole and len(seat.devices) == len(view.gpus) > 1:
            devices = (None,)
        return [
            Hold(hold_name(pod.uid, item), seat.node_name, owner, reason, node_uid, item, SELF)
            for item in devices
        ]


def hold_name(owner: str, device: AllocatedDevice | None) -> str:
    """The same for the same, so that a repeated try takes nothing twice."""
    what = "node" if device is None else f"{device.device.gpu_uuid} {device.device.mig}"
    return f"promise-{hashlib.sha256(f'{owner} {what}'.encode()).hexdigest()[:24]}"
