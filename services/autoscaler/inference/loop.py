"""The leader's loop over AIInferenceAutoscalerPolicies: read the scale, ask, decide, write, tell why.

Every round reads each target anew, and a write is bound to the version that was read: nothing is decided on
an old picture. One policy a target; of several the oldest acts. What fails for one policy stops no other.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from gpuloom.codec.custom.inference import inference_policy
from gpuloom.errors import (
    ConflictError,
    GpuloomError,
    InvalidRequestError,
    NotAllowedError,
    NotFoundError,
)
from gpuloom.kube.events import EventRecorder
from gpuloom.kube.objects import JsonObject, key_of, metadata_of, uid_of
from gpuloom.kube.reconciler import Observed
from gpuloom.model.policies import InferenceMode, InferencePolicy
from gpuloom.runtime.clock import Clock
from services.autoscaler.inference.adapters.targets import (
    Scale,
    Targets,
    cold_starts_s,
    replicas_of,
    scaled_object,
)
from services.autoscaler.inference.config import InferenceConfig
from services.autoscaler.inference.core import measures, rivals
from services.autoscaler.inference.core.decision import Decision, Situation, decide
from services.autoscaler.inference.core.queries import Pods
from services.autoscaler.inference.core.standing import Obstacle, Standing
from services.autoscaler.inference.metrics import InferenceMetrics
from services.autoscaler.inference.notes import Notes, StatusWriter
from services.autoscaler.inference.ports import Measures, NodePlanner, WriteTimeout

_log = logging.getLogger(__name__)

WRITE_S = 5.0
STEP_S = 30.0
AT_ONCE = 8


class InferenceLoop:
    """`standings` are those of the last round."""

    def __init__(
        self,
        policies: Observed,
        targets: Targets,
        measured: Measures,
        outside: "Outside",
        config: InferenceConfig,
    ) -> None:
        self._policies = policies
        self._targets = targets
        self._measures = measured
        self._outside = outside
        self._config = config
        self._notes: dict[str, Notes] = {}
        self._turns = asyncio.Semaphore(AT_ONCE)
        self.standings: list[Standing] = []

    async def run(self) -> None:
        """Until cancelled."""
        clock = self._outside.clock
        while True:
            began_s = clock.monotonic()
            await self.round()
            self._outside.metrics.round.observe(clock.monotonic() - began_s)
            await clock.sleep(self._config.interval_s)

    async def round(self) -> None:
        objects = self._policies.objects()
        losers = self._losers(objects)
        found = await asyncio.gather(*(self._guarded(obj, losers.get(uid_of(obj), "")) for obj in objects))
        self.standings = sorted(filter(None, found), key=lambda one: (one.namespace, one.name))
        self._outside.metrics.show(self.standings)
        for uid in self._notes.keys() - {uid_of(obj) for obj in objects}:
            del self._notes[uid]

    async def _guarded(self, obj: JsonObject, taken_by: str) -> Standing | None:
        namespace, name = key_of(obj)
        fields = {"namespace": namespace, "policy": name}
        async with self._turns:
            try:
                async with asyncio.timeout(STEP_S):
                    return await self._step(obj, taken_by)
            except ConflictError as error:
                _log.info("something changed meanwhile", extra={**fields, "error": str(error)})
            except (GpuloomError, TimeoutError) as error:
                self._outside.metrics.failures.inc()
                _log.warning("step failed", extra={**fields, "error": str(error) or "timed out"})
        return next((one for one in self.standings if (one.namespace, one.name) == (namespace, name)), None)

    async def _step(self, obj: JsonObject, taken_by: str) -> Standing:
        namespace, name = key_of(obj)
        try:
            policy = inference_policy(obj)
        except InvalidRequestError as error:
            standing = Standing(
                namespace, name, "", "", 0, 0, None, None, Obstacle("InvalidPolicy", str(error))
            )
            return await self._tell(obj, standing)
        standing = _blank(policy)
        if taken_by:
            obstacle = Obstacle("TargetTaken", f"policy {taken_by} scales {standing.target} already")
            return await self._tell(obj, replace(standing, obstacle=obstacle))
        try:
            scale = await self._targets.read(policy.spec.target, namespace)
        except (NotFoundError, InvalidRequestError, NotAllowedError) as error:
            return await self._tell(obj, replace(standing, obstacle=_unreadable(error)))
        notes = self._remembered(obj, policy, scale)
        tried, notes.tried = notes.tried, None
        if tried is not None and tried.replicas == scale.replicas:
            self._note(obj, scale, tried, notes, self._outside.clock.now())
        rival = await self._obstacle(scale, notes)
        if rival is not None:
            standing = replace(standing, current=scale.replicas, obstacle=rival)
            return await self._tell(obj, standing)
        return await self._decide(obj, policy, scale, notes)

    async def _decide(self, obj: JsonObject, policy: InferencePolicy, scale: Scale, notes: Notes) -> Standing:
        now, spec = self._outside.clock.now(), policy.spec
        listed = await self._targets.pods(scale)
        replicas = replicas_of(scale.replicas, listed, now)
        pods = Pods(scale.namespace, replicas.names, scale.name)
        answers = await self._measures.ask(measures.questions(spec, pods))
        notes.saw(cold_starts_s(listed), measures.places_seen(replicas, answers))
        demand = measures.demand(spec, replicas, answers, notes.places)
        readings = measures.readings(spec, replicas, answers)
        if spec.mode is InferenceMode.ADAPTIVE:
            await notes.learn(demand, pods, self._measures, now)
        learned = notes.learned(spec, self._config.cold_start_s)
        situation = Situation(spec, scale.replicas, readings, demand, learned, notes.memory, now)
        decision, notes.memory = decide(situation)
        if decision.changes:
            await self._write(obj, scale, decision, notes, now)
        adaptive = spec.mode is InferenceMode.ADAPTIVE
        standing = replace(
            _blank(policy),
            current=scale.replicas,
            decision=decision,
            readings=tuple(one.told() for one in readings),
            ready=len(replicas.ready),
            starting=replicas.starting,
            last_scale=notes.memory.last_scale,
            hold_s=learned.hold_s if adaptive else None,
            cold_start_s=learned.cold_start_s if adaptive else None,
        )
        return await self._tell(obj, standing)

    async def _write(
        self, obj: JsonObject, scale: Scale, decision: Decision, notes: Notes, now: datetime
    ) -> None:
        notes.tried = decision
        await self._targets.write(scale, decision.replicas, self._outside.write_timeout_s(WRITE_S))
        notes.tried = None
        self._note(obj, scale, decision, notes, now)

    def _note(self, obj: JsonObject, scale: Scale, decision: Decision, notes: Notes, now: datetime) -> None:
        notes.memory = notes.memory.scaled(now, decision.replicas - decision.current)
        notes.written = notes.written.wrote(decision.replicas)
        up = decision.replicas > decision.current
        if up:
            self._outside.planner.hasten(scale.namespace, scale.selector)
        namespace, name = key_of(obj)
        self._outside.metrics.changes.labels(namespace, name, "up" if up else "down").inc()
        self._outside.recorder.normal(obj, "ScaledUp" if up else "ScaledDown", decision.explain())
        fields = {"namespace": namespace, "policy": name, "replicas": decision.replicas}
        _log.info("scaled", extra={**fields, "reason": decision.explain()})

    async def _obstacle(self, scale: Scale, notes: Notes) -> Obstacle | None:
        """Whoever else scales this target: fighting him would only make both wrong."""
        now = self._outside.clock.now()
        hpas = await self._targets.autoscalers(scale.namespace)
        others = list(rivals.other_autoscalers(hpas, scale.resource.kind, scale.name))
        if others:
            message = f"{', '.join(others)} scales the same target; delete it or this policy"
            return Obstacle("AnotherAutoscaler", message)
        notes.written = notes.written.observed(scale.replicas, now)
        target = await self._targets.object(scale)
        problem = rivals.kserve_problem(target or {})
        if problem:
            return Obstacle("AnotherAutoscaler", problem)
        if notes.written.is_fight(now):
            who = rivals.replicas_owner(target or {}) or "somebody else"
            count = len(notes.written.replaced)
            message = (
                f"{who} replaced our number of replicas {count} times within 10 minutes; leave spec.replicas "
                f"out of what it applies, or delete this policy"
            )
            return Obstacle("FightOverReplicas", message)
        return None

    async def _tell(self, obj: JsonObject, standing: Standing) -> Standing:
        await self._outside.statuses.write(obj, standing)
        return standing

    def _remembered(self, obj: JsonObject, policy: InferencePolicy, scale: Scale) -> Notes:
        uid = uid_of(obj)
        if uid not in self._notes or self._notes[uid].target_uid != scale.uid:
            now, last = self._outside.clock.now(), policy.status.last_scale
            self._notes[uid] = Notes.begun(scale.uid, scale.replicas, now, last, self._config.interval_s)
        return self._notes[uid]

    def _losers(self, objects: Sequence[JsonObject]) -> dict[str, str]:
        """By UID, the policy that has the same target and comes first."""
        groups: defaultdict[tuple[str, str, str], list[JsonObject]] = defaultdict(list)
        for obj in objects:
            target = (obj.get("spec") or {}).get("targetRef") or {}
            named = (str(target.get(key)) for key in ("apiVersion", "kind", "name"))
            groups[key_of(obj)[0], *scaled_object(*named)].append(obj)
        lost: dict[str, str] = {}
        for group in groups.values():
            winner = min(
                group, key=lambda one: (str(metadata_of(one).get("creationTimestamp")), key_of(one)[1])
            )
            lost |= {uid_of(one): key_of(winner)[1] for one in group if one is not winner}
        return lost


@dataclass(frozen=True)
class Outside:
    """What the loop acts and tells by."""

    clock: Clock
    recorder: EventRecorder
    statuses: StatusWriter
    metrics: InferenceMetrics
    write_timeout_s: WriteTimeout
    planner: NodePlanner


def _unreadable(error: GpuloomError) -> Obstacle:
    match error:
        case NotFoundError():
            return Obstacle("TargetNotFound", str(error))
        case NotAllowedError():
            text = f"{error}; add its scale to autoscaler.rbac.extraRules of the Helm values"
            return Obstacle("TargetNotAllowed", text)
        case _:
            return Obstacle("TargetCannotScale", str(error))


def _blank(policy: InferencePolicy) -> Standing:
    spec = policy.spec
    return Standing(
        namespace=policy.meta.namespace,
        name=policy.meta.name,
        target=f"{spec.target.kind} {spec.target.name}",
        mode=spec.mode.value,
        min_replicas=spec.min_replicas,
        max_replicas=spec.max_replicas,
        current=None,
        decision=None,
        last_scale=policy.status.last_scale,
    )
