"""A cloud in memory that may be crashed around: the process ends right after a call acted."""

from collections.abc import Sequence
from dataclasses import replace

from gpuloom.model.policies import CapacityType, CloudProvider
from services.autoscaler.core.lifecycle.machines import (
    CloudView,
    FailureKind,
    Group,
    Instance,
    InstanceState,
    LaunchFailure,
    Order,
    PricedOffering,
)
from services.autoscaler.ports import CloudError

TYPE, ZONES, GROUP = "g5.xlarge", ("zone-a", "zone-b"), "gpu-asg"


class CrashError(BaseException):
    """Nobody handles the end of a process."""


class MemoryCloud:
    """`grouped`: one group for each pool, without tokens, whose machines come with `settle`."""

    def __init__(self, pools: Sequence[str], *, grouped: bool = False) -> None:
        self.pools, self.grouped = tuple(pools), grouped
        self.machines: dict[str, Instance] = {}
        self.desired = dict.fromkeys(pools, 0)
        self.failures: tuple[LaunchFailure, ...] = ()
        self.refusals: list[CloudError] = []
        self.calls: list[str] = []
        self.crash_after: int | None = None
        self.bought = 0
        self.has_machines = True
        self.unread: dict[str, str] = {}

    @property
    def provider(self) -> CloudProvider:
        return CloudProvider.AWS if self.grouped else CloudProvider.SIMULATED

    async def observe(self) -> CloudView:
        read = [pool for pool in self.pools if pool not in self.unread]
        groups = [self._group(pool) for pool in read if self.grouped]
        machines = tuple(one for one in self.machines.values() if one.pool in read or not self.grouped)
        view = CloudView(self.provider, machines, tuple(groups), self.failures, self.unread)
        self._acted("observe")
        return view

    async def request(self, order: Order) -> Instance | None:
        if self.refusals:
            self.calls.append("request")
            raise self.refusals.pop(0)
        if self.grouped:
            self.desired[order.pool] = max(self.desired[order.pool], order.size)
        elif all(one.token != order.token for one in self.machines.values()):
            self._buy(order.pool, order.zone or ZONES[0], order.capacity_type, order.token)
        self._acted("request")
        return None

    async def cancel(self, group: str, size: int) -> None:
        pool = group.removeprefix(f"{GROUP}-")
        self.desired[pool] = max(size, len(self._of(pool)))
        self._acted("cancel")

    async def terminate(self, instance: Instance) -> None:
        found = self.machines.get(instance.instance_id)
        if found is not None and found.state is not InstanceState.ENDING:
            self.machines[instance.instance_id] = replace(found, state=InstanceState.ENDING)
            self.desired[instance.pool] = max(0, self.desired[instance.pool] - 1)
        self._acted("terminate")

    async def offerings(self) -> Sequence[PricedOffering]:
        if self.grouped:
            return []
        prices = {CapacityType.SPOT: 400_000_000, CapacityType.ON_DEMAND: 1_000_000_000}
        return [PricedOffering(TYPE, zone, tier, nano) for zone in ZONES for tier, nano in prices.items()]

    def settle(self) -> None:
        """What ends is gone, and groups come to their size."""
        self.machines = {
            name: one for name, one in self.machines.items() if one.state is not InstanceState.ENDING
        }
        for pool in self.pools if self.grouped and self.has_machines else ():
            while len(self._of(pool)) < self.desired[pool]:
                self._buy(pool, ZONES[0], CapacityType.ON_DEMAND, "")

    def _of(self, pool: str) -> list[Instance]:
        return [one for one in self.machines.values() if one.pool == pool]

    def _group(self, pool: str) -> Group:
        return Group(f"{GROUP}-{pool}", pool, self.desired[pool], 10, instance_types=(TYPE,), zones=ZONES[:1])

    def _buy(self, pool: str, zone: str, tier: CapacityType, token: str) -> None:
        name = f"i-{self.bought}"
        self.bought += 1
        group = f"{GROUP}-{pool}" if self.grouped else ""
        self.machines[name] = Instance(
            name, f"aws:///{zone}/{name}", InstanceState.RUNNING, TYPE, zone, tier, pool, group, token
        )

    def _acted(self, call: str) -> None:
        self.calls.append(call)
        if self.crash_after is not None:
            self.crash_after -= 1
            if self.crash_after < 0:
                self.crash_after = None
                raise CrashError(call)


def a_refusal(kind: FailureKind, text: str = "none left") -> CloudError:
    return CloudError(kind, text)
