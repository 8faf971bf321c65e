"""What a running mesh looks like from outside: pods, devices, decisions and the ledger.

It only reads, and goes on with what it last heard while one of the services is away.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from gpuloom.cli.tally import PodCounts, PodTally
from gpuloom.clients.discovery import ClusterMirror, MirrorOptions
from gpuloom.clients.extender import DecisionFollower, list_allocations
from gpuloom.errors import GpuloomError
from gpuloom.kube.access import KubeAccess
from gpuloom.kube.client import KubeClient
from gpuloom.kube.informer import Informer
from gpuloom.kube.resources import PODS
from gpuloom.model.gpu import MILLI_PER_GPU
from gpuloom.model.ledger import Decision, LedgerEntry
from gpuloom.model.snapshot import NodeFacts
from gpuloom.rpc.channel import RpcChannel
from gpuloom.rpc.dev_ca import tls_files
from gpuloom.rpc.environment import RpcEnvironment
from gpuloom.runtime.clock import Clock
from gpuloom.runtime.metrics import new_registry
from gpuloom.sim.embedded import EmbeddedMesh
from gpuloom.sim.supervisor import ProcessStatus

_log = logging.getLogger(__name__)

LEDGER_INTERVAL_S = 1.0


@dataclass(frozen=True, slots=True)
class MeshView:
    """One moment. `allocated_milli` is by GPU UUID; nodes are in the order of their names."""

    elapsed_s: float
    pods: PodCounts = field(default_factory=PodCounts)
    nodes: tuple[NodeFacts, ...] = ()
    facts_age_s: float = 0.0
    allocated_milli: Mapping[str, int] = field(default_factory=dict)
    decisions: tuple[Decision, ...] = ()
    processes: tuple[ProcessStatus, ...] = ()

    @property
    def restarts(self) -> int:
        return sum(process.restarts for process in self.processes)


class Observer:
    def __init__(self, mesh: EmbeddedMesh, mirror: ClusterMirror, follower: DecisionFollower, clock: Clock):
        self._mesh = mesh
        self._mirror = mirror
        self._follower = follower
        self._clock = clock
        self._started_s = clock.monotonic()
        self._allocated_milli: dict[str, int] = {}
        self.tally = PodTally(mesh.plan.modes)

    def elapsed_s(self) -> float:
        return self._clock.monotonic() - self._started_s

    def view(self) -> MeshView:
        nodes = self._mirror.snapshot().nodes.values()
        return MeshView(
            elapsed_s=self.elapsed_s(),
            pods=self.tally.counts(),
            nodes=tuple(sorted(nodes, key=lambda facts: facts.state.node_name)),
            facts_age_s=self._mirror.age_s(),
            allocated_milli=self._allocated_milli,
            decisions=tuple(self._follower.decisions),
            processes=self._mesh.supervisor.statuses(),
        )

    async def follow_ledger(self, channel: RpcChannel) -> None:
        while True:
            try:
                self._allocated_milli = allocated_milli(await list_allocations(channel))
            except GpuloomError as error:
                _log.info("ledger not read", extra={"reason": str(error)})
            await self._clock.sleep(LEDGER_INTERVAL_S)


def allocated_milli(entries: Iterable[LedgerEntry]) -> dict[str, int]:
    """How much of each GPU is taken, by UUID; never more than all of it."""
    taken: Counter[str] = Counter()
    for entry in entries:
        for held in entry.devices or ():
            taken[held.device.gpu_uuid] += held.milli
    return {uuid: min(milli, MILLI_PER_GPU) for uuid, milli in taken.items()}


@asynccontextmanager
async def observe(mesh: EmbeddedMesh, clock: Clock) -> AsyncIterator[Observer]:
    """Follow the mesh while the block runs. An observer that fails for good ends the block with its error."""
    plan = mesh.plan
    registry = new_registry("cli")
    rpc = RpcEnvironment(tls_files(plan.directory.certificates, "cli"), registry, clock)
    async with (
        KubeClient(KubeAccess(plan.api_url), clock) as client,
        RpcChannel(rpc, plan.discovery_grpc, "discovery") as discovery,
        RpcChannel(rpc, plan.extender_grpc, "scheduler_extender") as extender,
    ):
        mirror = ClusterMirror(discovery, clock, MirrorOptions(with_usage=True))
        follower = DecisionFollower(extender, clock)
        observer = Observer(mesh, mirror, follower, clock)
        pods = Informer(client, PODS, clock)
        pods.on_change(observer.tally.observe)
        async with asyncio.TaskGroup() as group:
            work = (pods.run(), mirror.run(), follower.run(), observer.follow_ledger(extender))
            tasks = [group.create_task(loop) for loop in work]
            try:
                yield observer
            finally:
                for task in tasks:
                    task.cancel()
