"""Two replicas of the extender for real nodes: one is elected, and kube-scheduler finds it by its label.

They live as long as the supervisor that starts them. Who is killed is the test's to say.
"""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

from gpuloom.kube.client import KubeClient
from gpuloom.kube.resources import LEASES, PODS
from gpuloom.runtime.clock import Clock, deadline
from gpuloom.sim.processes.ports import free_ports
from gpuloom.sim.processes.supervisor import ProcessState, Supervisor
from tests.cluster.leader_proxy import LeaderProxy
from tests.cluster.mesh import MeshLayout
from tests.cluster.replicas import Replica
from tests.cluster.shared import NAMESPACE

LEADER = "leading extender"
STANDBY = "standby extender"

_COUNT = 2
_LEASE = "gpuloom-scheduler-extender"
_PORTS_EACH = 3
_LOOK_S = 0.1
# A lease of 6 s that nobody renews, and a start on a busy machine.
_ELECTION_PATIENCE_S = 60.0


@dataclass
class Electorate:
    names: tuple[str, ...]
    client: KubeClient
    service: LeaderProxy
    supervisor: Supervisor
    clock: Clock
    _killed: set[str] = field(default_factory=set)
    """Identities of leaders, which are in the Lease until the next one has it."""

    async def kill(self, role: str) -> bool:
        """Kill who is that now, and it is started again at once. Nothing is done, and False told, if it is
        not up. Waits while nobody leads: a standby that is killed then never takes over. Raise TimeoutError.
        """
        async with deadline(self.clock, _ELECTION_PATIENCE_S):
            while not (leader := await self._leader()):
                await self.clock.sleep(_LOOK_S)
        name = _replica(leader)
        victim = name if role == LEADER else next(other for other in self.names if other != name)
        (status,) = (one for one in self.supervisor.statuses() if one.name == victim)
        if status.state is not ProcessState.RUNNING:
            return False
        if role == LEADER:
            self._killed.add(leader)
        self.supervisor.kill(victim)
        return True

    async def until_led(self) -> None:
        """Until kube-scheduler finds somebody. Raise TimeoutError."""
        async with deadline(self.clock, _ELECTION_PATIENCE_S):
            while not self.service.leaders:
                await self.clock.sleep(_LOOK_S)

    async def _leader(self) -> str:
        """Who has the Lease and was not killed; empty if that is nobody."""
        lease = await self.client.get(LEASES, _LEASE, NAMESPACE)
        holder = lease["spec"].get("holderIdentity") or ""
        return holder if _replica(holder) in self.names and holder not in self._killed else ""

    def seen_by_the_scheduler(self, layout: MeshLayout) -> MeshLayout:
        """As it is for whoever calls the leader, wherever that is."""
        return replace(layout, ports=layout.ports.with_extender_at(self.service.port))


@asynccontextmanager
async def open_electorate(
    client: KubeClient, layout: MeshLayout, supervisor: Supervisor, clock: Clock
) -> AsyncIterator[Electorate]:
    """All replicas are ready and one of them leads. Raise StartError if one does not come up."""
    ports = iter(free_ports(_PORTS_EACH * _COUNT, random.Random()))
    replicas = [
        Replica(f"extender-{number}", next(ports), next(ports), next(ports))
        for number in range(1, _COUNT + 1)
    ]
    kubeconfig = layout.accounts["scheduler-extender"]
    addresses = {replica.name: replica.https for replica in replicas}
    async with LeaderProxy(client, NAMESPACE, addresses, clock) as service:
        await asyncio.gather(*(client.create(PODS, replica.pod()) for replica in replicas))
        await supervisor.start([[replica.process(layout, kubeconfig, {}) for replica in replicas]])
        electorate = Electorate(tuple(addresses), client, service, supervisor, clock)
        await electorate.until_led()
        yield electorate


def _replica(identity: str) -> str:
    """An identity is the replica's name and something that is new in every life."""
    return identity.rpartition("-")[0]
