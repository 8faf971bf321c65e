"""A running mesh seen from outside: pods, devices, decisions, the ledger and the audit.

It only reads, and goes on with what it last heard while one of the services is away.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from gpuloom.cli.run.tally import PodCounts, PodTally
from gpuloom.clients.autoscaler import inference
from gpuloom.clients.cost import cost_summary
from gpuloom.clients.discovery import ClusterMirror, MirrorOptions
from gpuloom.clients.extender import DecisionFollower, list_allocations
from gpuloom.errors import GpuloomError
from gpuloom.kube.access import KubeAccess
from gpuloom.kube.client import KubeClient
from gpuloom.kube.informer import Informer
from gpuloom.kube.objects import JsonObject
from gpuloom.kube.resources import GPU_NODE_CLAIMS, PODS
from gpuloom.model.autoscaling import InferenceStanding
from gpuloom.model.cost import CostSummary
from gpuloom.model.gpu import MILLI_PER_GPU
from gpuloom.model.ledger import Decision, LedgerEntry
from gpuloom.model.snapshot import NodeFacts
from gpuloom.rpc.channel import RpcChannel
from gpuloom.rpc.dev_ca import tls_files
from gpuloom.rpc.environment import RpcEnvironment
from gpuloom.runtime.clock import Clock
from gpuloom.runtime.metrics import new_registry
from gpuloom.sim.embedded import EmbeddedMesh
from gpuloom.sim.machines.audit import AuditReport
from gpuloom.sim.mesh.fault_plan import PlannedFault
from gpuloom.sim.mesh.fault_player import FaultPlayer
from gpuloom.sim.processes.supervisor import ProcessStatus

_log = logging.getLogger(__name__)

LEDGER_INTERVAL_S = 1.0
AUDIT_INTERVAL_S = 2.0
COST_INTERVAL_S = 2.0
INFERENCE_INTERVAL_S = 2.0


@dataclass(frozen=True, slots=True)
class MeshView:
    """One moment. `allocated_milli` is by GPU UUID; nodes are in the order of their names.

    `audit` is None until the machines' journals were read; `fault` is the one that is injected now.
    """

    elapsed_s: float
    pods: PodCounts = field(default_factory=PodCounts)
    nodes: tuple[NodeFacts, ...] = ()
    facts_age_s: float = 0.0
    allocated_milli: Mapping[str, int] = field(default_factory=dict)
    decisions: tuple[Decision, ...] = ()
    processes: tuple[ProcessStatus, ...] = ()
    audit: AuditReport | None = None
    fault: PlannedFault | None = None
    cost: CostSummary | None = None
    claims: Mapping[str, int] = field(default_factory=dict)
    """Nodes that the autoscaler asked for, by state."""
    inference: tuple[InferenceStanding, ...] = ()

    @property
    def restarts(self) -> int:
        return sum(process.restarts for process in self.processes)


class Observer:
    def __init__(
        self,
        mesh: EmbeddedMesh,
        mirror: ClusterMirror,
        follower: DecisionFollower,
        clock: Clock,
        faults: FaultPlayer | None = None,
    ) -> None:
        self._mesh = mesh
        self._faults = faults
        self._audit: AuditReport | None = None
        self._mirror = mirror
        self._follower = follower
        self._clock = clock
        self._started_s = clock.monotonic()
        self._allocated_milli: dict[str, int] = {}
        self._cost: CostSummary | None = None
        self._inference: tuple[InferenceStanding, ...] = ()
        self.tally = PodTally(mesh.plan.modes)
        self.claims: Callable[[], Mapping[str, int]] = dict

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
            audit=self._audit,
            fault=None if self._faults is None else self._faults.active,
            cost=self._cost,
            claims=self.claims(),
            inference=self._inference,
        )

    async def follow_cost(self, channel: RpcChannel) -> None:
        while True:
            try:
                self._cost = await cost_summary(channel)
            except GpuloomError as error:
                _log.info("costs not read", extra={"reason": str(error)})
            await self._clock.sleep(COST_INTERVAL_S)

    async def follow_inference(self, channel: RpcChannel) -> None:
        while True:
            try:
                self._inference = await inference(channel, INFERENCE_INTERVAL_S)
            except GpuloomError as error:
                _log.info("inference services not read", extra={"reason": str(error)})
            await self._clock.sleep(INFERENCE_INTERVAL_S)

    async def follow_audit(self) -> None:
        audit = self._mesh.live_audit()
        while True:
            self._audit = await asyncio.to_thread(audit.report)
            await self._clock.sleep(AUDIT_INTERVAL_S)

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


def claim_states(claims: Iterable[JsonObject]) -> dict[str, int]:
    """How many nodes the autoscaler asked for are in which state; those that ended are not counted."""
    states = Counter((claim.get("status") or {}).get("state") or "Requested" for claim in claims)
    return {state: count for state, count in sorted(states.items()) if state != "Gone"}


@asynccontextmanager
async def observe(
    mesh: EmbeddedMesh, clock: Clock, faults: FaultPlayer | None = None
) -> AsyncIterator[Observer]:
    """Follow the mesh, and play the faults if there are any, while the block runs.

    An observer that fails for good ends the block with its error.
    """
    plan = mesh.plan
    registry = new_registry("cli")
    rpc = RpcEnvironment(tls_files(plan.directory.certificates, "cli"), registry, clock)
    async with (
        KubeClient(KubeAccess(plan.api_url), clock) as client,
        RpcChannel(rpc, plan.address("discovery"), "discovery") as discovery,
        RpcChannel(rpc, plan.address("scheduler_extender"), "scheduler_extender") as extender,
        RpcChannel(rpc, plan.address("cost_engine"), "cost_engine") as cost,
        RpcChannel(rpc, plan.address("autoscaler"), "autoscaler") as autoscaler,
    ):
        mirror = ClusterMirror(discovery, clock, MirrorOptions(with_usage=True))
        follower = DecisionFollower(extender, clock)
        observer = Observer(mesh, mirror, follower, clock, faults)
        pods = Informer(client, PODS, clock)
        pods.on_change(observer.tally.observe)
        claims = Informer(client, GPU_NODE_CLAIMS, clock)
        observer.claims = lambda: claim_states(claims.objects())
        async with asyncio.TaskGroup() as group:
            work = [pods.run(), claims.run(), mirror.run(), follower.run()]
            work += [observer.follow_ledger(extender), observer.follow_audit(), observer.follow_cost(cost)]
            work += [observer.follow_inference(autoscaler)]
            work += [] if faults is None else [faults.run()]
            tasks = [group.create_task(loop) for loop in work]
            try:
                yield observer
            finally:
                for task in tasks:
                    task.cancel()
