"""What the hint does to packing and interference in a simulated cluster, and how long it takes.

Pods come and go on nodes of eight cards; each goes to the node that fits with the most points: a base score
that packs by cards, and with the hint its bounded advice. Interference of a training pod is how busy its
neighbours are while it runs; a node is empty if nobody is on it.
"""

import random
import statistics
import time
from dataclasses import dataclass, field

from gpuloom.model.node import PodRef
from gpuloom.model.optimization import (
    Classification,
    ClassSource,
    NodeHints,
    Prediction,
    Quantity,
    WorkloadClass,
)
from gpuloom.model.request import Authority, GpuRequest, RequestKind
from services.optimizer.core.hint import Neighbours, hint, neighbourhood_of
from services.optimizer.core.workload import Owner, Signature, Workload, request_text

NODES, CARDS, STEPS = 40, 8, 2000
WEIGHT = 5.0
TARGET = 0.6
ASKED = 2000


@dataclass
class _Pod:
    label: WorkloadClass
    cards: int
    busy: float
    ends: int


@dataclass
class _Node:
    pods: list[_Pod] = field(default_factory=list)

    @property
    def used(self) -> int:
        return sum(pod.cards for pod in self.pods)

    def neighbours(self, now: int) -> Neighbours:
        busy = statistics.fmean(pod.busy for pod in self.pods) if self.pods else 0.0
        return Neighbours(self.used / CARDS, busy, tuple(sorted(float(pod.ends - now) for pod in self.pods)))


def measure_placement() -> list[str]:
    lines = []
    for name, weight in (("neutral", 0.0), ("with the hint", WEIGHT)):
        found = [_play(seed, weight) for seed in range(3)]
        interference, empty, refused = (statistics.fmean(column) for column in zip(*found, strict=True))
        lines.append(
            f"{name}: neighbours of training {interference:.3f} busy, {empty:.1%} of nodes empty, "
            f"{refused:.2%} of 8-card pods found no node"
        )
    return lines


def _play(seed: int, weight: float) -> tuple[float, float, float]:
    rng, nodes = random.Random(seed), {f"n{number}": _Node() for number in range(NODES)}
    disturbed: list[float] = []
    empty: list[float] = []
    large = lost = 0
    for now in range(STEPS):
        for node in nodes.values():
            node.pods = [pod for pod in node.pods if pod.ends > now]
        if sum(node.used for node in nodes.values()) < TARGET * NODES * CARDS:
            pod, lasts = _a_pod(rng, now)
            chosen = _choose(nodes, pod, lasts, now, weight)
            large += pod.cards == CARDS
            lost += pod.cards == CARDS and chosen is None
            if chosen is not None:
                chosen.pods.append(pod)
        for node in nodes.values():
            training = [pod for pod in node.pods if pod.label is WorkloadClass.TRAINING]
            disturbed += [
                sum(other.cards * other.busy for other in node.pods if other is not pod) / CARDS
                for pod in training
            ]
        empty.append(sum(not node.pods for node in nodes.values()) / NODES)
    return statistics.fmean(disturbed), statistics.fmean(empty), lost / max(1, large)


def _a_pod(rng: random.Random, now: int) -> tuple[_Pod, int]:
    label = rng.choice((WorkloadClass.TRAINING, WorkloadClass.INFERENCE, WorkloadClass.BATCH))
    cards = rng.choice((1, 2, 4, 8)) if label is WorkloadClass.TRAINING else 1
    lasts = int(rng.choice((40, 120, 400)) * rng.uniform(0.8, 1.2))
    return _Pod(label, cards, rng.uniform(0.2, 0.95), now + lasts), lasts


def _choose(nodes: dict[str, _Node], pod: _Pod, lasts: int, now: int, weight: float) -> _Node | None:
    fitting = {name: node for name, node in nodes.items() if node.used + pod.cards <= CARDS}
    if not fitting:
        return None
    advice: dict[str, float] = {}
    if weight:
        there = {name: node.neighbours(now) for name, node in fitting.items()}
        advice = dict(_hint(pod, lasts, there).points)
    # Of the base score the packing part moves nodes by a few points, as the real one does.
    best = max(
        sorted(fitting), key=lambda name: 5 * fitting[name].used / CARDS + weight * advice.get(name, 0.0)
    )
    return fitting[best]


def _hint(pod: _Pod, lasts: int, nodes: dict[str, Neighbours]) -> NodeHints:
    classification = Classification(pod.label, 0.9, ClassSource.MODEL)
    ends = None if pod.label is WorkloadClass.INFERENCE else Quantity(float(lasts), float(lasts))
    return hint(_workload(pod.cards), classification, Prediction(duration_s=ends), neighbourhood_of(nodes))


def _workload(cards: int) -> Workload:
    request = GpuRequest(RequestKind.WHOLE, Authority.NVIDIA, cards)
    signature = Signature("team", "Job", "work", "image", "", request_text(request))
    return Workload(PodRef("team", "work", "uid"), Owner("Job", "work"), signature, request, "main")


async def measure_latency() -> list[str]:
    """Of the computation for a thousand nodes, which a first question waits for; later ones are kept."""
    rng = random.Random(1)
    nodes = {f"n{number}": Neighbours(rng.random(), rng.random(), (60.0, 600.0)) for number in range(1000)}
    gathered = neighbourhood_of(nodes)
    classification = Classification(WorkloadClass.TRAINING, 0.9, ClassSource.MODEL)
    prediction, workload = Prediction(duration_s=Quantity(600.0, 900.0)), _workload(4)
    times = []
    for _ in range(ASKED):
        begun = time.perf_counter()
        hint(workload, classification, prediction, gathered)
        times.append(time.perf_counter() - begun)
    times.sort()
    return [
        f"computed for 1,000 nodes: p50 {times[ASKED // 2] * 1e3:.2f} ms, "
        f"p99 {times[int(ASKED * 0.99)] * 1e3:.2f} ms; one that is kept is a lookup"
    ]
