"""Holds at the extender: what is being cut is given to nobody meanwhile."""

from gpuloom.catalog import load_catalog
from gpuloom.clients.holds import HoldClient, HoldWish
from gpuloom.model.allocation import AllocatedDevice
from gpuloom.model.claims import HoldTarget
from gpuloom.model.gpu import MILLI_PER_GPU, DeviceRef
from gpuloom.model.ledger import Hold

SERVICE = "mig_controller"


class ExtenderHolds:
    def __init__(self, client: HoldClient) -> None:
        self._client = client

    async def take(
        self, name: str, target: HoldTarget, reason: str, ttl_s: int, *, allow_used: bool = False
    ) -> None:
        device = _device(target)
        wish = HoldWish(
            name, target.node_name, reason, ttl_s, target.node_uid or "", device, allow_used=allow_used
        )
        await self._client.take(wish)

    async def renew(self, name: str, ttl_s: int) -> None:
        await self._client.renew(name, ttl_s)

    async def release(self, name: str) -> None:
        await self._client.release(name)

    async def list_own(self) -> tuple[str, ...]:
        return tuple(hold.name for hold in await self._client.list() if hold.taken_by == SERVICE)

    async def list_others(self) -> tuple[Hold, ...]:
        return tuple(hold for hold in await self._client.list() if hold.taken_by != SERVICE)


def _device(target: HoldTarget) -> AllocatedDevice | None:
    """None: the whole node. 0 MiB stand for all memory of what is held."""
    if target.gpu_uuid is None:
        return None
    milli = MILLI_PER_GPU
    if target.mig is not None:
        milli = max(load_catalog().mig_milli(target.mig.profile), default=MILLI_PER_GPU)
    return AllocatedDevice(DeviceRef(target.gpu_uuid, target.mig), milli, 0)
