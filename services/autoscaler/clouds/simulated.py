"""The simulated cloud behind the port: requests carry tokens, so a repeated one gives the same machine."""

from collections.abc import Sequence
from datetime import UTC, datetime

from gpuloom.errors import GpuloomError, NotFoundError
from gpuloom.model.node import NodeMode
from gpuloom.model.policies import CapacityType, CloudProvider
from gpuloom.sim.cloud import model as sim
from gpuloom.sim.cloud.client import CloudClient
from gpuloom.sim.cloud.state import LaunchRequest
from services.autoscaler.core.lifecycle.machines import (
    CloudView,
    FailureKind,
    Instance,
    InstanceState,
    Order,
    PricedOffering,
)
from services.autoscaler.ports import CloudError

_SEPARATOR = ":"
"""Between pool and claim in a token, because the simulated cloud has no tags."""
DEFAULT_ZONE = "zone-a"

_STATES = {
    sim.InstanceState.PENDING: InstanceState.PENDING,
    sim.InstanceState.RUNNING: InstanceState.RUNNING,
    sim.InstanceState.SHUTTING_DOWN: InstanceState.ENDING,
}
_KINDS = (
    (sim.NoCapacityError, FailureKind.CAPACITY),
    (sim.QuotaError, FailureKind.QUOTA),
    (sim.ThrottledError, FailureKind.THROTTLED),
    (sim.InternalCloudError, FailureKind.UNKNOWN),
)
# What is reserved is paid for anyhow; the simulated cloud gives it as on demand.
_TIERS = {CapacityType.SPOT: sim.CapacityType.SPOT}


class SimulatedCloud:
    """`client` is open. `mode`: in which its nodes give out their GPUs."""

    provider = CloudProvider.SIMULATED

    def __init__(self, client: CloudClient, mode: NodeMode = NodeMode.GPULOOM) -> None:
        self._client = client
        self._mode = mode

    async def observe(self) -> CloudView:
        try:
            found = await self._client.instances()
        except GpuloomError as error:
            raise _translated(error) from error
        ours = (one for one in found if one.token and one.state in _STATES)
        return CloudView(CloudProvider.SIMULATED, tuple(map(_instance, ours)))

    async def request(self, order: Order) -> Instance | None:
        tier = _TIERS.get(order.capacity_type, sim.CapacityType.ON_DEMAND)
        key = sim.OfferingKey(order.instance_type, order.zone or DEFAULT_ZONE, tier)
        token = _SEPARATOR.join((order.pool, order.capacity_type, order.token))
        try:
            launched = await self._client.launch(LaunchRequest(key, token, self._mode))
        except GpuloomError as error:
            raise _translated(error) from error
        # The same token after the machine's end shows that machine again.
        return _instance(launched) if launched.state in _STATES else None

    async def cancel(self, group: str, size: int) -> None:
        """Nothing waits here: a request is granted or refused at once."""

    async def terminate(self, instance: Instance) -> None:
        try:
            await self._client.terminate(instance.instance_id)
        except NotFoundError:
            return
        except GpuloomError as error:
            raise _translated(error) from error

    async def offerings(self) -> Sequence[PricedOffering]:
        try:
            found = await self._client.offerings()
        except GpuloomError as error:
            raise _translated(error) from error
        return [
            PricedOffering(
                one.key.instance_type,
                one.key.zone,
                CapacityType(one.key.capacity_type.value),
                one.nano_usd_per_hour,
                available=one.stock is None or one.stock > 0,
            )
            for one in found
        ]


def _instance(one: sim.Instance) -> Instance:
    pool, _, rest = one.token.partition(_SEPARATOR)
    tier, _, token = rest.partition(_SEPARATOR)
    return Instance(
        instance_id=one.instance_id,
        provider_id=one.provider_id,
        state=_STATES[one.state],
        instance_type=one.offering.instance_type,
        zone=one.offering.zone,
        capacity_type=CapacityType(tier or one.offering.capacity_type.value),
        pool=pool,
        token=token,
        launched_at=datetime.fromtimestamp(one.launched_at_s, UTC),
    )


def _translated(error: GpuloomError) -> CloudError:
    kind = next((kind for known, kind in _KINDS if isinstance(error, known)), FailureKind.CONFIGURATION)
    return CloudError(kind, str(error))
