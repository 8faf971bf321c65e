"""Carries out sweeps: reads a cloud, lets the core decide, acts step by step, and records what came of it."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from gpuloom.errors import ConflictError, GpuloomError, InvalidRequestError
from gpuloom.kube.client import KubeClient
from gpuloom.kube.objects import JsonObject
from gpuloom.kube.resources import NODES
from gpuloom.model.claims import ClaimOffering, ClaimState, GpuNodeClaim, GpuNodeClaimSpec
from gpuloom.model.policies import CapacityType
from gpuloom.runtime.clock import Clock
from gpuloom.runtime.failpoints import Failpoints
from services.autoscaler.core.buying.filling import LABEL_CAPACITY_TYPE, LABEL_POOL
from services.autoscaler.core.lifecycle import claims as life
from services.autoscaler.core.lifecycle.claims import NodeFact, Timeouts
from services.autoscaler.core.lifecycle.machines import CloudView, FailureKind, Instance
from services.autoscaler.core.lifecycle.sweep import (
    Adopt,
    Ask,
    End,
    Forget,
    Record,
    Seen,
    Shrink,
    Step,
    sweep,
)
from services.autoscaler.metrics import AutoscalerMetrics
from services.autoscaler.nodes.claim_store import ClaimStore, NewClaim
from services.autoscaler.ports import Cloud, CloudError

_log = logging.getLogger(__name__)

FIELD_MANAGER = "gpuloom-autoscaler"
AFTER_CLOUD_CALL = "autoscaler-after-cloud-call"
"""Failpoint: right after a cloud acted, before anything of it is recorded."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 5.0, 120.0
_RETRIED = frozenset({FailureKind.THROTTLED, FailureKind.UNKNOWN})


@dataclass(frozen=True, slots=True)
class SweepInputs:
    """What a sweep asks of others: the nodes by provider id, drained claims, and labels of pools."""

    nodes: Callable[[], Mapping[str, NodeFact]]
    drained: Callable[[], frozenset[str]]
    pool_labels: Callable[[str], Mapping[str, str]]
    adopted: Callable[[Instance], GpuNodeClaimSpec | None]
    only_tells: Callable[[str], bool] = lambda _: False
    """Whether a pool is in a dry run: its machines are told of, and none is asked for or ended."""


@dataclass(frozen=True, slots=True)
class Tools:
    """What all loops act by."""

    client: KubeClient
    clock: Clock
    metrics: AutoscalerMetrics
    failpoints: Failpoints


class Sweeper:
    """Of one cloud. `view` is what it last showed, None before it did; `problem` why it can't be read now."""

    def __init__(
        self, cloud: Cloud, store: ClaimStore, inputs: SweepInputs, tools: Tools, timeouts: Timeouts
    ) -> None:
        self.cloud = cloud
        self.view: CloudView | None = None
        self.problem = ""
        self._store = store
        self._client = tools.client
        self._inputs = inputs
        self._clock = tools.clock
        self._metrics = tools.metrics
        self._timeouts = timeouts
        self._failpoints = tools.failpoints
        self._throttles = 0
        self._is_throttled = False
        self._resumes_s = 0.0

    async def sweep(self, claims: list[GpuNodeClaim]) -> None:
        """One round over the claims of this cloud; only on claims as new as our own last write."""
        if self._clock.monotonic() < self._resumes_s:
            return
        self._is_throttled = False
        await self._sweep(claims)
        if not self._is_throttled:
            self._throttles = 0

    async def _sweep(self, claims: list[GpuNodeClaim]) -> None:
        try:
            before, self.view = self.view, await self.cloud.observe()
            self.problem = ""
        except CloudError as error:
            self._note(error)
            self.problem = str(error)
            self._metrics.errors.inc()
            _log.warning("cloud can't be read", extra=_fields(self.cloud, error=str(error)))
            return
        if self.view.unread and (before is None or before.unread != self.view.unread):
            _log.warning("groups can't be read", extra=_fields(self.cloud, pools=dict(self.view.unread)))
        now = self._clock.now()
        seen = Seen(
            self.view,
            claims,
            self._inputs.nodes(),
            now,
            self._inputs.drained(),
            self._store.deleted(),
            self._timeouts,
        )
        for step in sweep(seen):
            if self._is_throttled:
                return
            if self._is_held(step):
                _log.debug("dry run: left undone", extra=_fields(self.cloud, step=_shown(step)))
                continue
            try:
                await self._carry_out(step, now)
            except ConflictError as error:
                _log.info("claim changed meanwhile", extra=_fields(self.cloud, error=str(error)))
            except GpuloomError as error:
                self._note(error)
                self._metrics.errors.inc()
                _log.warning("step failed", extra=_fields(self.cloud, error=str(error), step=_shown(step)))

    def _note(self, error: GpuloomError) -> None:
        """A cloud that is asked too often is left alone, longer each time."""
        if isinstance(error, CloudError) and error.kind is FailureKind.THROTTLED:
            pause_s = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2.0**self._throttles)
            self._is_throttled, self._throttles = True, self._throttles + 1
            self._resumes_s = self._clock.monotonic() + pause_s

    def _is_held(self, step: Step) -> bool:
        match step:
            case Ask(claim) | End(claim):
                return self._inputs.only_tells(claim.spec.pool_name)
            case Shrink(name):
                groups = self.view.groups if self.view is not None else ()
                return any(self._inputs.only_tells(one.pool) for one in groups if one.name == name)
        return False

    async def _carry_out(self, step: Step, now: datetime) -> None:
        match step:
            case Record():
                await self._record(step.claim, step, now)
            case Ask():
                await self._ask(step, now)
            case End(claim, instance):
                _log.info("ending machine", extra=_of_claim(claim, instance=instance.instance_id))
                await self.cloud.terminate(instance)
                await self._failpoints.reach(AFTER_CLOUD_CALL)
            case Shrink(group, size):
                _log.info("group wants more than there are claims for", extra={"group": group, "size": size})
                await self.cloud.cancel(group, size)
                await self._failpoints.reach(AFTER_CLOUD_CALL)
            case Adopt(name, instance):
                await self._adopt(name, instance)
            case Forget(claim):
                await self._store.forget(claim)

    async def _ask(self, step: Ask, now: datetime) -> None:
        try:
            await self.cloud.request(step.order)
            await self._failpoints.reach(AFTER_CLOUD_CALL)
        except CloudError as error:
            self._metrics.cloud_failures.labels(self.cloud.provider.value, error.kind.value).inc()
            fields = _of_claim(step.claim, kind=error.kind.value, error=str(error))
            self._note(error)
            if error.kind in _RETRIED:
                _log.warning("machine not granted yet", extra=fields)
                return
            _log.warning("machine refused", extra=fields)
            reason = life.REASON_OF_FAILURE[error.kind]
            status = life.failed(step.claim.status, life.CONDITION_LAUNCHED, reason, str(error), now)
            self._metrics.scaled("scale-up", step.claim.spec.pool_name, "failed")
            await self._store.record(step.claim, status)

    async def _record(self, claim: GpuNodeClaim, step: Record, now: datetime) -> None:
        status = step.status
        if status.state is ClaimState.REGISTERED and status.node_name is not None:
            await self._label(status.node_name, claim)
        await self._store.record(claim, status)
        if status.state is not claim.status.state:
            _log.info("claim moved", extra=_of_claim(claim, state=status.state, node=status.node_name))
            self._measure(claim, step, now)

    def _measure(self, claim: GpuNodeClaim, step: Record, now: datetime) -> None:
        status, pool = step.status, claim.spec.pool_name
        if life.has_notice(replace(claim, status=status)) and not life.has_notice(claim):
            self._metrics.interruptions.labels(pool).inc()
        if status.state is ClaimState.GPU_READY and status.requested is not None:
            self._metrics.scaled("scale-up", pool, "succeeded")
            self._metrics.took("scale-up", (now - status.requested).total_seconds())
        elif status.gpu_ready is None:
            # Groups refuse nothing: what became of their machines shows here.
            given_up = life.is_live(claim) and status.state not in life.LIVE
            if given_up and claim.meta.name not in self._store.deleted():
                self._metrics.scaled("scale-up", pool, "failed")
        elif status.state is ClaimState.GONE and status.draining is not None:
            self._metrics.scaled("scale-down", pool, "succeeded")
            self._metrics.took("scale-down", (now - status.draining).total_seconds())

    async def _label(self, node: str, claim: GpuNodeClaim) -> None:
        """The pool's labels, owned by this field manager: what a pool no longer names goes away by itself."""
        tier: CapacityType = claim.spec.offering.capacity_type
        ours = {LABEL_POOL: claim.spec.pool_name, LABEL_CAPACITY_TYPE: tier.value}
        try:
            await self._apply(node, {**ours, **self._inputs.pool_labels(claim.spec.pool_name)})
        except InvalidRequestError as error:
            # A claim that is never registered would never be drained either.
            self._metrics.errors.inc()
            _log.error("labels of the pool are no labels", extra=_of_claim(claim, error=str(error)))
            await self._apply(node, ours)

    async def _apply(self, node: str, labels: Mapping[str, str]) -> None:
        document: JsonObject = {"metadata": {"name": node, "labels": dict(labels)}}
        await self._client.apply(NODES, document, FIELD_MANAGER, force=True)

    async def _adopt(self, name: str, instance: Instance) -> None:
        spec = self._inputs.adopted(instance)
        if spec is None:
            _log.warning("machine of no known pool is left alone", extra={"instance": instance.instance_id})
            return
        _log.info("adopting machine", extra={"claim": name, "instance": instance.instance_id})
        await self._store.create(
            NewClaim(name, spec, life.requested(self._clock.now()), "adopted: it was there already")
        )


def adopted_spec(instance: Instance, policy: str, gpu_model: str, gpu_count: int) -> GpuNodeClaimSpec:
    offering = ClaimOffering(instance.instance_type, instance.capacity_type, instance.zone or None)
    token = instance.token or instance.instance_id
    return GpuNodeClaimSpec(policy, instance.pool, offering, gpu_model, gpu_count, token)


def _fields(cloud: Cloud, **more: object) -> dict[str, object]:
    return {"provider": cloud.provider.value, **more}


def _of_claim(claim: GpuNodeClaim, **more: object) -> dict[str, object]:
    return {"claim": claim.meta.name, "pool": claim.spec.pool_name, **more}


def _shown(step: Step) -> str:
    return type(step).__name__
