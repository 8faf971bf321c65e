"""One decision about one target: what is wanted, what is done now, and every reason. Writes nothing."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from gpuloom.model.policies import InferenceMode, InferencePolicySpec
from services.autoscaler.inference.core.adaptive import Demand, Learned, propose_adaptive
from services.autoscaler.inference.core.pace import (
    Behavior,
    Memory,
    cooldown_left_s,
    limited,
    stabilized,
)
from services.autoscaler.inference.core.ratio import Proposal, propose
from services.autoscaler.inference.core.readings import Reading, not_known


@dataclass(frozen=True, slots=True)
class Situation:
    """`current` is spec.replicas of the scale. `demand` is what mode adaptive measures beside the metrics."""

    spec: InferencePolicySpec
    current: int
    readings: Sequence[Reading]
    demand: Demand
    learned: Learned
    memory: Memory
    now: datetime


@dataclass(frozen=True, slots=True)
class Decision:
    """`wanted` is within minimum and maximum; `replicas` is what to set now, the present number if nothing.

    `held` says why it is not what is wanted; `limit` that a bound was reached; `missing` what is not known.
    """

    current: int
    wanted: int
    replicas: int
    reason: str
    held: str = ""
    limit: str = ""
    missing: str = ""
    none_known: bool = False

    @property
    def changes(self) -> bool:
        return self.replicas != self.current

    def explain(self) -> str:
        """One sentence for events and the log."""
        if self.changes:
            rest = "" if self.replicas == self.wanted else f" on the way to {self.wanted}"
            return "; ".join(
                filter(None, (f"{self.current} to {self.replicas} replicas{rest}: {self.reason}", self.limit))
            )
        stay = f"{self.current} replicas stay: {self.reason}"
        return "; ".join(filter(None, (stay, self.held, self.limit)))


def decide(situation: Situation) -> tuple[Decision, Memory]:
    """The decision, and the memory with what is wanted now. The caller notes a change when it is written."""
    spec, current, now = situation.spec, situation.current, situation.now
    proposal = _proposal(situation)
    wanted, limit = _clamped(spec, proposal.replicas)
    memory = situation.memory.wanting(now, wanted)
    behavior = Behavior(spec.scale_up, spec.scale_down)
    steady = stabilized(current, memory, behavior, now)
    replicas = limited(current, steady, memory, behavior, now)
    held = proposal.held
    if replicas != wanted:
        held = _pace_reason(current, wanted, steady, spec)
    wait_s = cooldown_left_s(memory, spec.cooldown_s, now)
    if replicas != current and wait_s > 0.0 and _cools_down(situation, replicas):
        replicas, held = current, f"the cooldown lasts another {wait_s:.0f} s"
    missing = not_known(situation.readings)
    known = any(one.value is not None for one in situation.readings) or situation.demand.is_known
    return Decision(current, wanted, replicas, proposal.reason, held, limit, missing, not known), memory


def _proposal(situation: Situation) -> Proposal:
    if situation.spec.mode is InferenceMode.ADAPTIVE:
        return propose_adaptive(
            situation.spec, situation.current, situation.readings, situation.demand, situation.learned
        )
    return propose(situation.current, situation.readings)


def _cools_down(situation: Situation, replicas: int) -> bool:
    """In mode adaptive only what is taken away waits: replicas that start count, nothing is added twice."""
    return situation.spec.mode is InferenceMode.RATIO or replicas < situation.current


def _clamped(spec: InferencePolicySpec, wanted: int) -> tuple[int, str]:
    if wanted > spec.max_replicas:
        return spec.max_replicas, f"{wanted} are wanted, and maxReplicas is {spec.max_replicas}"
    if wanted < spec.min_replicas:
        return spec.min_replicas, f"{wanted} would do, and minReplicas is {spec.min_replicas}"
    return wanted, ""


def _pace_reason(current: int, wanted: int, steady: int, spec: InferencePolicySpec) -> str:
    side, behavior = ("scaleDown", spec.scale_down) if wanted < current else ("scaleUp", spec.scale_up)
    if steady != wanted:
        return f"stabilizationWindowSeconds of {side} is {behavior.stabilization_s}"
    return f"the policies of {side} allow no more now"
