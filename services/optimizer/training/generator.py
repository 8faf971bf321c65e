"""Made-up runs of known kinds, from a seed: what the first model is trained on, and what benches measure.

Each kind has its own course over time, length, memory and owner, with overlaps as real ones have: some
training is short and stalls on its input, some inference is busy all day, and notebooks compute now and then.
"""

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from gpuloom.model.gpu import DeviceRef
from gpuloom.model.node import PodRef
from gpuloom.model.optimization import WorkloadClass
from gpuloom.model.request import Authority, GpuRequest, RequestKind
from gpuloom.model.usage import DeviceUsage, UsageWindow
from services.optimizer.core.run import MIB, Run, add_window, begin_run
from services.optimizer.core.workload import Owner, Signature, Workload, request_text

WINDOW_S = 60
MAX_WINDOWS = 90
CARD_MIB = 81_920
START = datetime(2026, 1, 5, tzinfo=UTC)
_DEVICE = DeviceRef("GPU-generated")


@dataclass(frozen=True, slots=True)
class MadeRun:
    """`requested_mib` is what its pod would have to ask for; `day` counts from the beginning."""

    workload: Workload
    run: Run
    label: WorkloadClass
    requested_mib: float
    day: float


@dataclass(frozen=True, slots=True)
class _Kind:
    """One workload that comes again and again, with runs that differ a little."""

    number: int
    label: WorkloadClass
    owner: str
    serves: bool
    gpus: int
    minutes: float
    level: float
    memory_mib: float
    course: Callable[[random.Random, int, float], float]
    drift: float


def generate(runs: int, seed: int, kinds: int = 60) -> Iterator[MadeRun]:
    """Equal arguments give equal runs, in the order of time."""
    rng = random.Random(f"optimizer/{seed}")
    known = [_kind(rng, number) for number in range(kinds)]
    for number in range(runs):
        yield _made(rng, rng.choice(known), number, 30 * number / max(1, runs))


def _kind(rng: random.Random, number: int) -> _Kind:
    label = rng.choice(tuple(_MAKERS))
    owner, serves, gpus, minutes, level, course = _MAKERS[label](rng)
    memory_mib = min(0.95, rng.lognormvariate(math.log(_MEMORY[label]), 0.6)) * CARD_MIB
    return _Kind(number, label, owner, serves, gpus, minutes, level, memory_mib, course, rng.gauss(0.0, 0.1))


def _made(rng: random.Random, kind: _Kind, number: int, day: float) -> MadeRun:
    request = GpuRequest(RequestKind.WHOLE, Authority.NVIDIA, kind.gpus)
    stem = f"work-{kind.number}"
    signature = Signature(
        "generated", kind.owner, stem, f"registry.example.com/{stem}", "run", request_text(request)
    )
    pod = PodRef("generated", f"{stem}-{number}", f"uid-{number}")
    name = stem if kind.owner else ""
    workload = Workload(pod, Owner(kind.owner, name), signature, request, "main", serves=kind.serves)
    started = START + timedelta(days=day)
    windows = int(min(MAX_WINDOWS, max(3.0, kind.minutes * rng.lognormvariate(0.0, 0.35))))
    memory_mib = min(
        0.99 * CARD_MIB, kind.memory_mib * (1 + kind.drift * day / 30) * rng.lognormvariate(0, 0.08)
    )
    run = begin_run(pod.uid, signature.key, started)
    for place in range(windows):
        ratio = min(1.0, max(0.0, kind.course(rng, place, kind.level)))
        run = _with_window(run, started, place, ratio, memory_mib * (0.7 + 0.3 * min(1.0, place / 3)))
    requested_mib = _asked(rng, kind.memory_mib)
    return MadeRun(workload, run, kind.label, requested_mib, day)


def _asked(rng: random.Random, memory_mib: float) -> float:
    """People ask for a good deal more than they need, or for the whole card."""
    return CARD_MIB if rng.random() < 0.5 else min(CARD_MIB, memory_mib * rng.uniform(1.2, 3.0))


def _with_window(run: Run, started: datetime, place: int, ratio: float, memory_mib: float) -> Run:
    duration_ns = WINDOW_S * 1_000_000_000
    usage = DeviceUsage(
        device=_DEVICE,
        milli=1000,
        held_ns=duration_ns,
        measured_ns=duration_ns,
        used_ns=int(ratio * duration_ns),
        memory_peak_bytes=int(memory_mib * MIB),
        energy_mj=int((60 + 340 * ratio) * WINDOW_S * 1000),
    )
    start = started + timedelta(seconds=WINDOW_S * place)
    return add_window(run, UsageWindow(place + 1, "node", start, duration_ns), [usage])


Maker = tuple[str, bool, int, float, float, Callable[[random.Random, int, float], float]]


def _training(rng: random.Random) -> Maker:
    stalls = rng.random() < 0.3
    level = rng.uniform(0.45, 0.75) if stalls else rng.uniform(0.75, 0.98)

    def course(chance: random.Random, place: int, height: float) -> float:
        # Loading, then steady, with a dip at each checkpoint.
        if place < 2:
            return 0.1
        dip = 0.5 if place % 20 == 0 else 1.0
        return dip * height + chance.gauss(0.0, 0.12 if stalls else 0.03)

    owner = rng.choice(("Job", "Job", "Job", "", "StatefulSet"))
    return owner, False, rng.choice((1, 1, 2, 4, 8)), rng.uniform(30, 120), level, course


def _inference(rng: random.Random) -> Maker:
    phase, deep = rng.uniform(0, 6.28), rng.uniform(0.2, 0.8)

    def course(chance: random.Random, place: int, height: float) -> float:
        wave = 1 + deep * math.sin(phase + place / 9)
        return height * wave * chance.lognormvariate(0.0, 0.35)

    owner = rng.choice(("Deployment", "Deployment", "Deployment", "StatefulSet", ""))
    return owner, rng.random() < 0.85, 1, rng.uniform(60, 200), rng.uniform(0.08, 0.6), course


def _interactive(rng: random.Random) -> Maker:
    working = rng.uniform(0.1, 0.4)

    def course(chance: random.Random, place: int, height: float) -> float:
        return height * chance.uniform(0.5, 1.2) if chance.random() < working else chance.uniform(0.0, 0.03)

    owner = rng.choice(("StatefulSet", "StatefulSet", "", "Deployment"))
    return owner, rng.random() < 0.7, 1, rng.uniform(30, 200), rng.uniform(0.3, 0.9), course


def _batch(rng: random.Random) -> Maker:
    def course(chance: random.Random, place: int, height: float) -> float:
        return height + chance.gauss(0.0, 0.15)

    owner = rng.choice(("Job", "Job", "Job", "Job", ""))
    return owner, False, rng.choice((1, 1, 1, 2)), rng.uniform(3, 25), rng.uniform(0.3, 0.95), course


def _idle(rng: random.Random) -> Maker:
    def course(chance: random.Random, place: int, height: float) -> float:
        return chance.uniform(0.0, 0.01)

    owner = rng.choice(("Deployment", "StatefulSet", "", "Job"))
    return owner, rng.random() < 0.5, 1, rng.uniform(20, 200), 0.0, course


_MAKERS: dict[WorkloadClass, Callable[[random.Random], Maker]] = {
    WorkloadClass.TRAINING: _training,
    WorkloadClass.INFERENCE: _inference,
    WorkloadClass.INTERACTIVE: _interactive,
    WorkloadClass.BATCH: _batch,
    WorkloadClass.IDLE: _idle,
}
_MEMORY = {
    WorkloadClass.TRAINING: 0.6,
    WorkloadClass.INFERENCE: 0.25,
    WorkloadClass.INTERACTIVE: 0.15,
    WorkloadClass.BATCH: 0.3,
    WorkloadClass.IDLE: 0.05,
}
