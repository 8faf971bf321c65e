"""Spot notices: cordon, replace at once, empty the node in time, open it again if nothing happened."""

import logging
from collections.abc import Awaitable, Sequence
from dataclasses import replace
from datetime import datetime

from gpuloom.errors import GpuloomError
from gpuloom.kube.parse import format_time
from gpuloom.model.claims import ClaimState, GpuNodeClaim
from gpuloom.model.policies import ScaleDirection
from services.autoscaler.core.buying.offerings import key_of
from services.autoscaler.core.buying.pending import units_of
from services.autoscaler.core.buying.plan import make_plan
from services.autoscaler.core.lifecycle import claims as life
from services.autoscaler.core.scaling.policies import Effective
from services.autoscaler.core.scaling.policy_status import Taken, an_action
from services.autoscaler.core.scaling.scale_up import problem_of
from services.autoscaler.core.scaling.spot import Notice, alternatives, notice_of
from services.autoscaler.nodes.drainer import Drainer
from services.autoscaler.nodes.scaler import Scaler
from services.autoscaler.nodes.sweeper import Tools

_log = logging.getLogger(__name__)


class Interruptions:
    def __init__(self, scaler: Scaler, drainer: Drainer, tools: Tools) -> None:
        self._scaler = scaler
        self._drainer = drainer
        self._tools = tools
        self._seen: dict[str, Notice] = {}
        self._began: dict[str, datetime] = {}

    async def step(self, claims: list[GpuNodeClaim]) -> None:
        """Every node that has a notice gets its next step; what no longer has one is opened again."""
        now = self._tools.clock.now()
        warned = self._scaler.reader.warnings()
        by_node = _by_node(claims)
        self._tools.metrics.warnings.set(len(warned))
        for node in self._seen.keys() - warned.keys():
            del self._seen[node]
            self._began.pop(node, None)
        # By what nodes and claims say, not by what this process saw: the notice may be older than it.
        told = {one.status.node_name for one in claims if life.is_live(one) and life.has_notice(one)}
        for node in sorted(self._drainer.cordoned() | set(filter(None, told))):
            if node not in warned:
                await self._guarded(node, self._end(node, by_node.get(node), "NoticeWithdrawn", now))
        for node, ends in sorted(warned.items()):
            self._began.setdefault(node, now)
            notice = self._seen.get(node)
            if notice is None or (ends is not None and notice.ends != ends):
                notice = self._seen[node] = notice_of(node, ends, now)
            await self._guarded(node, self._follow(notice, by_node.get(node), now))

    async def _guarded(self, node: str, step: Awaitable[None]) -> None:
        """What fails for one node must not use up the notice of another."""
        try:
            await step
        except GpuloomError as error:
            self._tools.metrics.errors.inc()
            _log.warning("step of a notice failed", extra={"node": node, "error": str(error)})

    async def _follow(self, notice: Notice, claim: GpuNodeClaim | None, now: datetime) -> None:
        if claim is not None and claim.status.state is ClaimState.GONE:
            return
        policy = self._policy_of(claim)
        if self._scaler.only_tells("" if claim is None else claim.spec.pool_name):
            _log.debug("dry run: a notice is left alone", extra={"node": notice.node})
            return
        if notice.is_false_alarm(now):
            await self._end(notice.node, claim, "NothingHappened", now)
            return
        drains = claim is not None and claim.status.state is ClaimState.DRAINING
        # What is bought needs to know what there is; until it does, the node is emptied without.
        knows = not self._scaler.unready_reason()
        if knows and claim is not None and not drains and not life.has_notice(claim):
            await self._begin(notice, claim, policy, now)
            return
        graceful = policy is None or policy.policy.spec.graceful_eviction
        why = f"the cloud takes it back at {format_time(notice.ends)}"
        began = self._began[notice.node]
        await self._drainer.drain(notice.node, began, notice.ends, why, evict=graceful)
        empty = graceful and self._drainer.is_empty(notice.node)
        if knows and claim is not None and not drains and empty:
            # Ended by us it is not replaced by its group, which would be a second replacement.
            status = life.draining(claim.status, "Interrupted", why, now)
            await self._scaler.store.record(claim, status)

    async def _end(self, node: str, claim: GpuNodeClaim | None, reason: str, now: datetime) -> None:
        """Nothing came of it: the node is opened again, and the next notice is a new one."""
        if claim is not None and not life.is_live(claim):
            return
        if self._scaler.only_tells("" if claim is None else claim.spec.pool_name):
            return
        await self._drainer.uncordon(node)
        if claim is not None and life.has_notice(claim) and self._scaler.store.caught_up():
            text = "the node is open again"
            kind = life.CONDITION_INTERRUPTED
            status = life.with_condition(claim.status, kind, False, reason, text, now=now)
            await self._scaler.store.record(claim, status)

    async def _begin(
        self, notice: Notice, claim: GpuNodeClaim, policy: Effective | None, now: datetime
    ) -> None:
        """The replacement first, then the record, so that a crash in between asks again rather than never.

        The replacement is on its way by then and counts, so a second is not bought.
        """
        if not self._scaler.store.caught_up():
            return
        await self._drainer.cordon(notice.node, "the cloud takes it back")
        if policy is not None and policy.policy.spec.enabled:
            await self._replace(notice, claim, policy, now)
        self._tools.metrics.interruptions.labels(claim.spec.pool_name).inc()
        text = format_time(notice.ends)
        status = life.with_condition(
            claim.status, life.CONDITION_INTERRUPTED, True, "SpotNotice", text, now=now
        )
        await self._scaler.store.record(claim, status)

    async def _replace(self, notice: Notice, claim: GpuNodeClaim, policy: Effective, now: datetime) -> None:
        snapshot = self._scaler.reader.snapshot(self._scaler.store.claims(), now)
        residents = snapshot.residents.get(notice.node, [])
        movers = [one.pod for one in residents if one.pod is not None]
        if not movers:
            return
        snapshot.nodes = [node for node in snapshot.nodes if node.name != notice.node]
        # The machine that goes takes no place under a limit that its replacement could have.
        claims = [one for one in self._scaler.store.claims() if one.meta.name != claim.meta.name]
        situation, _ = self._scaler.situation(policy, claims, snapshot, movers, now)
        units, _ = units_of(movers)
        problem = problem_of(situation, units)
        others = alternatives(problem.offerings, key_of(claim))
        plan = make_plan(replace(problem, offerings=others))
        if not plan.nodes:
            return
        reason = f"{notice.node} is taken back by the cloud, {len(movers)} pods move"
        _log.info("scaling decision: replace", extra={"policy": policy.name, "reason": reason})
        names = await self._scaler.buy(policy, plan.nodes, reason, replaces=claim.meta.name)
        for node in plan.nodes:
            self._tools.metrics.scaled("scale-up", node.offering.pool, "requested")
        action = an_action(ScaleDirection.UP, {plan.nodes[0].offering.pool: len(plan.nodes)}, reason, now)
        self._scaler.note(policy, Taken(policy.name, action, names, plan.nano_usd_per_hour))

    def _policy_of(self, claim: GpuNodeClaim | None) -> Effective | None:
        if claim is None:
            return None
        policies = self._scaler.policies.effective()
        owners = (
            one for one in policies if claim.spec.pool_name in {pool.name for pool in one.policy.spec.pools}
        )
        return next(owners, None)


def _by_node(claims: Sequence[GpuNodeClaim]) -> dict[str, GpuNodeClaim]:
    """The claim that is not over, where the name of a node comes again."""
    ordered = sorted(claims, key=lambda one: one.status.state is not ClaimState.GONE)
    return {one.status.node_name: one for one in ordered if one.status.node_name}
