"""One round of decisions: read everything, let the core decide policy by policy, write claims, tell why.

Nothing is decided while something is not known, or before this loop's own last writes are seen.
"""

import asyncio
import logging
import math
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from gpuloom.catalog import load_catalog
from gpuloom.model.claims import ClaimState, GpuNodeClaim
from gpuloom.model.policies import CloudProvider, Prediction, ScaleDirection
from services.autoscaler.core.buying.bill import HOURS_A_MONTH, monthly_bill
from services.autoscaler.core.buying.offerings import Book, OfferingKey, book_of
from services.autoscaler.core.buying.pending import PendingPod
from services.autoscaler.core.buying.plan import PlannedNode
from services.autoscaler.core.buying.table import Market, Table, offering_table, priced
from services.autoscaler.core.lifecycle import claims as life
from services.autoscaler.core.lifecycle.machines import CloudView, PricedOffering
from services.autoscaler.core.scaling.consolidation import decide_consolidation, may_leave
from services.autoscaler.core.scaling.policies import Effective, claims_of, cooldown_start, remaining_s
from services.autoscaler.core.scaling.policy_status import Memory, Outcome, Taken, an_action
from services.autoscaler.core.scaling.scale_down import (
    DownSettings,
    NodeLoad,
    ScaleDown,
    UseBook,
    decide_scale_down,
)
from services.autoscaler.core.scaling.scale_up import Bounds, Pressure, ScaleUp, Situation, decide_scale_up
from services.autoscaler.nodes.claim_store import ClaimStore, new_claim
from services.autoscaler.nodes.cluster import ClusterReader, Snapshot
from services.autoscaler.nodes.policy_store import PolicyStore
from services.autoscaler.nodes.prices import on_demand_prices
from services.autoscaler.nodes.retries import Retries
from services.autoscaler.nodes.sweeper import Sweeper, Tools

_log = logging.getLogger(__name__)

KEPT_ACTIONS = 500
ALL_NODES = ""
"""Where a node's UID stands: how many GPUs are busy in all."""


@dataclass(frozen=True, slots=True)
class ScalerSettings:
    down: DownSettings = field(default_factory=DownSettings)
    dry_run: bool = False
    consolidates: bool = True
    hours_a_month: int = HOURS_A_MONTH
    bounds: Bounds = field(default_factory=Bounds)


PressureOf = Callable[[Effective, Snapshot], Pressure]


class Scaler:
    """`outcomes` are those of the last round, by policy; `actions` the newest ones, oldest first."""

    def __init__(
        self,
        reader: ClusterReader,
        store: ClaimStore,
        policies: PolicyStore,
        sweepers: Mapping[CloudProvider, Sweeper],
        tools: Tools,
        settings: ScalerSettings,
    ) -> None:
        self.reader = reader
        self.store = store
        self.policies = policies
        self.sweepers = sweepers
        self.outcomes: dict[str, Outcome] = {}
        self.actions: deque[Taken] = deque(maxlen=KEPT_ACTIONS)
        self.on_action: list[Callable[[Taken], None]] = []
        self.pressure_of: PressureOf = lambda _, snapshot: Pressure(snapshot.utilization)
        self.prediction_of: Callable[[Effective], Prediction | None] = lambda _: None
        self.hastened: Callable[[list[PendingPod]], list[PendingPod]] = list
        self.notes_of: Callable[[Effective], tuple[str, ...]] = lambda _: ()
        self.offered: dict[CloudProvider, Sequence[PricedOffering]] = {}
        self.prices: Mapping[OfferingKey, int] = {}
        self.given_prices: Mapping[OfferingKey, int] = {}
        """Of the settings: a person's word counts before anybody else's."""
        self.snapshot: Snapshot | None = None
        self.book = Book()
        self.tools = tools
        self._settings = settings
        self._use = UseBook(settings.down.window_s)
        self._memories: dict[str, Memory] = {}
        self._told: dict[tuple[str, str], object] = {}
        self._retries = Retries(tools)

    def unlisted_reason(self) -> str:
        """Why not even a notice can be followed, which needs nobody but Kubernetes."""
        if not self.store.informer.synced or not self.policies.informer.synced:
            return "policies and claims are not listed yet"
        return self.reader.sources.unlisted()

    def unready_reason(self) -> str:
        return self.unlisted_reason() or self.reader.sources.missing()

    async def round(self) -> None:
        """Decide and act once; a round that can't know enough does nothing."""
        if self.unready_reason() or not self.store.caught_up():
            return
        now = self.tools.clock.now()
        claims = self.store.claims()
        snapshot = self.reader.snapshot(claims, now)
        self.snapshot, self.book = snapshot, book_of(claims, now)
        busy = None if snapshot.utilization is None else snapshot.utilization * snapshot.told_gpus
        self._use.observe(now, {**snapshot.node_use, ALL_NODES: (busy, True)})
        pending = self.hastened(snapshot.pending)
        effective = self.policies.effective()
        for policy in effective:
            step = f"decision of policy {policy.name}"
            if not self._retries.is_due(step):
                continue
            outcome = await self._retries.run(step, self._decide(policy, claims, snapshot, pending, now))
            # It may have bought for some of the pods: nobody else does before that shows.
            if outcome is None:
                break
            self.outcomes[policy.name] = outcome
            helped = {pod.ref.uid for node in outcome.up.nodes for pod in node.pods}
            pending = [pod for pod in pending if pod.ref.uid not in helped]
            await self._write_status(policy, outcome)
        for name in self.outcomes.keys() - {policy.name for policy in effective}:
            del self.outcomes[name]
        self._show(claims, snapshot, now)

    async def _write_status(self, policy: Effective, outcome: Outcome) -> None:
        step = f"status of policy {policy.name}"
        if self._retries.is_due(step):
            written = self.policies.write_status(policy, outcome, self.memory(policy))
            await self._retries.run(step, written)

    def memory(self, policy: Effective) -> Memory:
        if policy.name not in self._memories:
            status = policy.policy.status
            self._memories[policy.name] = Memory(
                status.last_scale_up, status.last_scale_down, status.last_action
            )
        memory, now = self._memories[policy.name], self.tools.clock.now()
        # Times to come are those of another clock, or of this one before it was set back: they begin now.
        memory.last_up = memory.last_up and min(memory.last_up, now)
        memory.last_down = memory.last_down and min(memory.last_down, now)
        return memory

    def situation(
        self,
        policy: Effective,
        claims: Sequence[GpuNodeClaim],
        snapshot: Snapshot,
        pending: Sequence[PendingPod],
        now: datetime,
    ) -> tuple[Situation, str]:
        """What to decide on, and why the policy's cloud can't be used, if so."""
        spec = policy.policy.spec
        sweeper = self.sweepers.get(spec.provider)
        problem = f"provider {spec.provider} is not configured" if sweeper is None else sweeper.problem
        table = Table()
        if sweeper is not None and sweeper.view is not None:
            market = Market(sweeper.view, self.offered.get(spec.provider, ()), self.prices)
            table = offering_table(spec, market, load_catalog(), self.book, now)
        names = {pool.name for pool in spec.pools}
        draining = sum(
            one.status.state is ClaimState.DRAINING and one.spec.pool_name in names for one in claims
        )
        situation = Situation(
            policy=policy,
            claims=claims_of(policy, claims),
            pending=pending,
            nodes=snapshot.nodes,
            table=table,
            now=now,
            last_scale_up=cooldown_start(
                self.memory(policy).last_up, [one for one in claims if one.spec.pool_name in names]
            ),
            interruption_rate=self.book.interruption_rate,
            pressure=self.pressure_of(policy, snapshot),
            form=snapshot.form,
            draining=draining,
            frozen_reason=snapshot.frozen_reason or problem,
            limits=self._settings.bounds,
            groups=sweeper.view.groups if sweeper is not None and sweeper.view is not None else (),
            told_gpus=snapshot.told_gpus,
            # Also on average: what pauses for a moment would else give back what it needs again after it.
            busy_gpus=max(
                (snapshot.utilization or 0.0) * snapshot.told_gpus, self._use.mean_use(ALL_NODES) or 0.0
            ),
        )
        return situation, problem

    def only_tells(self, pool: str) -> bool:
        """Whether nothing is bought, drained or ended in this pool. Nodes of no pool follow the settings."""
        owners = (
            one for one in self.policies.effective() if pool in {mine.name for mine in one.policy.spec.pools}
        )
        return self._settings.dry_run or any(one.policy.spec.dry_run for one in owners)

    async def buy(
        self,
        policy: Effective,
        nodes: Sequence[PlannedNode],
        reason: str,
        *,
        replaces: str = "",
        consolidates: str = "",
    ) -> tuple[str, ...]:
        """Claims for these machines; the sweeper asks the cloud for them."""
        names = []
        for node in nodes:
            new = new_claim(policy, node.offering, reason, self.tools.clock.now())
            await self.store.create(replace(new, replaces=replaces, consolidates=consolidates))
            names.append(new.name)
        return tuple(names)

    def note(self, policy: Effective, taken: Taken) -> None:
        memory = self.memory(policy)
        memory.last_action = taken.action
        if taken.action.type is ScaleDirection.UP:
            memory.last_up = taken.action.time
        else:
            memory.last_down = taken.action.time
            memory.drained = [
                one for one in memory.drained if taken.action.time - one <= timedelta(hours=1)
            ] + [taken.action.time]
        self.actions.append(taken)
        for handler in self.on_action:
            handler(taken)

    async def _decide(
        self,
        policy: Effective,
        claims: Sequence[GpuNodeClaim],
        snapshot: Snapshot,
        pending: Sequence[PendingPod],
        now: datetime,
    ) -> Outcome:
        situation, problem = self.situation(policy, claims, snapshot, pending, now)
        spec = policy.policy.spec
        # Planning is arithmetic for up to a second: not on the event loop.
        up = await asyncio.to_thread(decide_scale_up, situation)
        down = ScaleDown()
        if not up.nodes:
            memory = self.memory(policy)
            loads = self._loads(situation.claims, snapshot)
            down = await asyncio.to_thread(
                decide_scale_down, situation, loads, memory.drained, self._settings.down, memory.last_down
            )
        dry_run = spec.dry_run or self._settings.dry_run
        if up.nodes:
            await self._scale_up(policy, up, now, dry_run)
        if down.claim is not None:
            await self._scale_down(policy, down, now, dry_run)
        elif not up.nodes and not dry_run:
            await self._consolidate(policy, situation, snapshot, now)
        pools = {pool.name for pool in spec.pools}
        return Outcome(
            policy=policy,
            claims=situation.claims,
            table=situation.table,
            up=up,
            down=down,
            provider_problem=problem,
            frozen_reason=snapshot.frozen_reason,
            utilization=snapshot.utilization,
            pending=len(pending),
            prediction=self.prediction_of(policy),
            notes=(
                *self.notes_of(policy),
                *(note for group in situation.groups if group.pool in pools for note in group.notes),
            ),
            dry_run=dry_run,
        )

    async def _scale_up(self, policy: Effective, up: ScaleUp, now: datetime, dry_run: bool) -> None:
        counts = Counter(node.offering.pool for node in up.nodes)
        price = sum(node.offering.nano_usd_per_hour for node in up.nodes)
        fields = {
            "policy": policy.name,
            "pools": dict(counts),
            "machines": [str(node.offering.key) for node in up.nodes],
            "usd_per_hour": round(price / 1e9, 3),
            "reason": up.reason,
            "dry_run": dry_run,
        }
        self._tell("scaling decision: scale up", fields)
        if dry_run:
            return
        names = await self.buy(policy, up.nodes, up.reason)
        for node in up.nodes:
            self.tools.metrics.scaled("scale-up", node.offering.pool, "requested")
        action = an_action(ScaleDirection.UP, counts, up.reason, now)
        self.note(policy, Taken(policy.name, action, names, price))

    async def _consolidate(
        self, policy: Effective, situation: Situation, snapshot: Snapshot, now: datetime
    ) -> None:
        """The cheaper node first; the old one goes only when that is ready."""
        if situation.frozen_reason or not policy.policy.spec.enabled:
            return
        replaced = self.store.consolidated()
        loads = {load.claim.meta.name: load for load in self._loads(situation.claims, snapshot)}
        ready = {one.meta.name for one in situation.claims if one.status.gpu_ready is not None}
        for name, old in replaced.items():
            load = loads.get(old)
            if name in ready and load is not None and may_leave(load, situation):
                reason = f"{name} takes its place for less"
                await self._scale_down(policy, ScaleDown(load.claim, reason), now, dry_run=False)
                return
        memory = self.memory(policy)
        wait_s = remaining_s(memory.last_down, policy.policy.spec.scale_down_cooldown_s, now)
        if not self._settings.consolidates or wait_s > 0:
            return
        found = await asyncio.to_thread(decide_consolidation, situation, list(loads.values()))
        if found is None or found.claim.meta.name in replaced.values():
            return
        _log.info("scaling decision: consolidate", extra={"policy": policy.name, "reason": found.reason})
        names = await self.buy(policy, [found.node], found.reason, consolidates=found.claim.meta.name)
        self.tools.metrics.scaled("scale-up", found.node.offering.pool, "requested")
        action = an_action(ScaleDirection.UP, {found.node.offering.pool: 1}, found.reason, now)
        self.note(policy, Taken(policy.name, action, names, found.node.offering.nano_usd_per_hour))

    async def _scale_down(self, policy: Effective, down: ScaleDown, now: datetime, dry_run: bool) -> None:
        claim = down.claim
        if claim is None:
            return
        fields = {"policy": policy.name, "claim": claim.meta.name, "node": claim.status.node_name}
        self._tell("scaling decision: scale down", {**fields, "reason": down.reason, "dry_run": dry_run})
        if dry_run:
            return
        await self.store.record(claim, life.draining(claim.status, "ScaleDown", down.reason, now))
        self.tools.metrics.scaled("scale-down", claim.spec.pool_name, "requested")
        action = an_action(ScaleDirection.DOWN, {claim.spec.pool_name: 1}, down.reason, now)
        price = claim.status.price_nano_usd_per_hour or 0
        self.note(policy, Taken(policy.name, action, (claim.meta.name,), price))

    def _tell(self, text: str, fields: dict[str, object]) -> None:
        """A dry run decides the same in every round, and says it once."""
        said = (str(fields["policy"]), text)
        if not fields["dry_run"] or self._told.get(said) != fields["reason"]:
            self._told[said] = fields["reason"]
            _log.info(text, extra=fields)

    def _loads(self, claims: Sequence[GpuNodeClaim], snapshot: Snapshot) -> list[NodeLoad]:
        by_name = {node.name: node for node in snapshot.nodes}
        loads = []
        for claim in claims:
            name = claim.status.node_name or ""
            node, uid = by_name.get(name), snapshot.node_uids.get(name, "")
            if node is not None and uid:
                loads.append(
                    NodeLoad(
                        claim,
                        node,
                        snapshot.residents.get(name, ()),
                        self._use.mean_use(uid),
                        self._use.quiet_since(uid),
                        name in snapshot.opted_out,
                    )
                )
        return loads

    def _show(self, claims: Sequence[GpuNodeClaim], snapshot: Snapshot, now: datetime) -> None:
        metrics = self.tools.metrics
        live = [one for one in claims if life.is_live(one)]
        ready = [one for one in live if one.status.gpu_ready is not None]
        markets = [
            Market(CloudView(one), self.offered.get(one, ()), self.prices) for one in sorted(self.sweepers)
        ]
        bill = monthly_bill(
            [priced(one, markets) for one in ready],
            on_demand_prices(self.prices, self.offered, self.given_prices),
            self._settings.hours_a_month,
        )
        metrics.show_tiers(Counter(one.spec.offering.capacity_type for one in ready), bill.by_tier)
        metrics.savings.set(bill.saved)
        metrics.savings_percentage.set(bill.spot_percentage)
        metrics.pending.set(len(snapshot.pending))
        # Where there is no GPU none is in use; one that does not tell is not known, and no old number either.
        unknown = math.nan if snapshot.gpu_nodes else 0.0
        metrics.utilization.set(unknown if snapshot.utilization is None else snapshot.utilization)
        desired = Counter(one.spec.pool_name for one in live)
        pools = {pool.name for one in self.policies.effective() for pool in one.policy.spec.pools}
        metrics.show_pools({pool: desired[pool] for pool in desired.keys() | pools})
        metrics.underused.set(sum(one.down.underused for one in self.outcomes.values()))
        metrics.estimated_prices.set(
            sum(offering.estimated for one in self.outcomes.values() for offering in one.table.offerings)
        )
        ups = [self._left(one, up=True, now=now) for one in self.outcomes.values()]
        downs = [self._left(one, up=False, now=now) for one in self.outcomes.values()]
        metrics.up_cooldown.set(max(ups, default=0.0))
        metrics.down_cooldown.set(max(downs, default=0.0))

    def _left(self, outcome: Outcome, *, up: bool, now: datetime) -> float:
        spec, memory = outcome.policy.policy.spec, self.memory(outcome.policy)
        if up:
            return remaining_s(memory.last_up, spec.scale_up_cooldown_s, now)
        return remaining_s(memory.last_down, spec.scale_down_cooldown_s, now)
