"""Which faults a run has, and when: seeded, one at a time, each with an end. Pure.

They show how the mesh answers: a GPU that fails, an agent that falls silent, a service that is killed.
Every kind comes once before one comes again.
"""

import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from gpuloom.model.gpu import GpuHealth
from gpuloom.sim.machines.hardware import MachineSpec

FIRST_AT_S = (8.0, 14.0)
PAUSE_S = (12.0, 25.0)
GPU_FAULT_S = (15.0, 25.0)
# Longer than the 30 s after which discovery no longer trusts a silent agent, or nobody would see it.
SILENCE_S = (40.0, 48.0)
# A killed process is back as soon as the supervisor has started it again; this is only the plan's guess.
RESTART_S = (8.0, 8.0)

_GPU_FAULTS = (
    (GpuHealth.UNHEALTHY, "XID 48: double-bit ECC error"),
    (GpuHealth.LOST, "XID 79: GPU has fallen off the bus"),
    (GpuHealth.UNHEALTHY, "XID 119: GSP RPC timeout"),
)


class FaultKind(StrEnum):
    GPU = "gpu"
    SILENT_AGENT = "silent-agent"
    KILLED_PROCESS = "killed-process"


_DURATIONS = {
    FaultKind.GPU: GPU_FAULT_S,
    FaultKind.SILENT_AGENT: SILENCE_S,
    FaultKind.KILLED_PROCESS: RESTART_S,
}


@dataclass(frozen=True, slots=True)
class PlannedFault:
    """`at_s` counts from the start. `target` is a process, or for a GPU its node.

    `health` and `reason` are what the GPU `gpu_index` reports.
    """

    at_s: float
    duration_s: float
    kind: FaultKind
    target: str
    gpu_index: int = 0
    health: GpuHealth = GpuHealth.UNHEALTHY
    reason: str = ""

    def __str__(self) -> str:
        match self.kind:
            case FaultKind.GPU:
                return f"GPU {self.gpu_index} of {self.target} {self.health}: {self.reason}"
            case FaultKind.SILENT_AGENT:
                return f"{self.target} is silent"
            case FaultKind.KILLED_PROCESS:
                return f"{self.target} was killed"


@dataclass(frozen=True, slots=True)
class FaultPlan:
    """`agents` are processes with one agent each: to silence a shared one would close many nodes at once."""

    machines: Sequence[MachineSpec]
    agents: Sequence[str]
    services: Sequence[str]
    seed: int

    def faults(self) -> Iterator[PlannedFault]:
        """Without end, in order of time, one over before the next begins; equal plans give equal faults."""
        rng = random.Random(f"faults/{self.seed}")
        kinds = [kind for kind in FaultKind if kind is not FaultKind.SILENT_AGENT or self.agents]
        at_s = rng.uniform(*FIRST_AT_S)
        for round_number in itertools.count():
            rng.shuffle(kinds)
            if round_number == 0:
                # Silence shows last: whoever watches only a minute shall see something before.
                kinds.sort(key=lambda kind: kind is FaultKind.SILENT_AGENT)
            for kind in kinds:
                duration_s = rng.uniform(*_DURATIONS[kind])
                yield self._fault(rng, kind, at_s, duration_s)
                at_s += duration_s + rng.uniform(*PAUSE_S)

    def _fault(self, rng: random.Random, kind: FaultKind, at_s: float, duration_s: float) -> PlannedFault:
        match kind:
            case FaultKind.GPU:
                machine = rng.choice(self.machines)
                health, reason = rng.choice(_GPU_FAULTS)
                index = rng.randrange(machine.gpu_count)
                return PlannedFault(at_s, duration_s, kind, machine.node, index, health, reason)
            case FaultKind.SILENT_AGENT:
                return PlannedFault(at_s, duration_s, kind, rng.choice(self.agents))
            case FaultKind.KILLED_PROCESS:
                return PlannedFault(at_s, duration_s, kind, rng.choice([*self.services, *self.agents[:1]]))
