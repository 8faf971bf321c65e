"""Which pods come when: training, inference, MIG slices and notebooks, seeded and sized for a cluster. Pure.

Arrivals are Poisson, durations log-normal and bounded. The rate follows from the cluster's GPUs, so that they
are busy but the queue does not grow without end. A few pods can never run: they show how a refusal reads.
"""

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from gpuloom.catalog import load_catalog
from gpuloom.kube.objects import JsonObject
from gpuloom.model.gpu import MILLI_PER_GPU
from gpuloom.names import (
    ANNOTATION_GPU_ARCHITECTURE,
    ANNOTATION_GPU_MODEL,
    ANNOTATION_MIG_PROFILE,
    ANNOTATION_TOPOLOGY,
    RESOURCE_GPU_MEMORY_MIB,
    RESOURCE_GPU_MILLI,
    RESOURCE_NVIDIA_GPU,
    RESOURCE_NVIDIA_MIG_PREFIX,
)
from gpuloom.sim.kubelet.host import ANNOTATION_DURATION, ANNOTATION_LOAD, ANNOTATION_OUTCOME

NAMESPACES = ("team-a", "team-b", "research")
LABEL_WORKLOAD = "sim.gpuloom.dev/workload"

TARGET_UTILIZATION = 0.9
MEDIAN_DURATION_S = 60.0
DURATION_SIGMA = 0.7
MIN_DURATION_S = 10.0
MAX_DURATION_S = 600.0
# The share of the steady population that arrives at once, so that a short run sees a busy cluster too.
BURST_RATIO = 0.75
BURST_S = 5.0
IMPOSSIBLE_RATIO = 0.02
FAILING_RATIO = 0.03
WISH_RATIO = 0.08
# Of the pods that go to gpuloom nodes, where some card can be cut.
CUT_RATIO = 0.15
GIVE_UP_AFTER_S = 90.0
_SAMPLES_FOR_MEAN = 2000
# Of the mixes below, to give both kinds of nodes the same load.
_MEAN_GPUS_NVIDIA = 2.6
_MEAN_GPUS_GPULOOM = 0.69


@dataclass(frozen=True, slots=True)
class ClusterSize:
    """GPUs by who gives them out, and the most on one node of each kind.

    `mig_slices` are the MIG instances of all `nvidia` nodes by resource name; their GPUs count nowhere else.
    """

    nvidia_gpus: int
    gpuloom_gpus: int
    largest_nvidia_node: int
    largest_gpuloom_node: int
    mig_slices: tuple[tuple[str, int], ...] = ()
    cut_profiles: tuple[tuple[str, int], ...] = ()
    """Small slices that GPUs of `gpuloom` nodes can be cut into, with the milli that each stands for."""

    @property
    def slice_count(self) -> int:
        return sum(count for _, count in self.mig_slices)

    @property
    def gpus(self) -> float:
        return (
            self.nvidia_gpus + self.gpuloom_gpus + sum(n * _slice_gpus(name) for name, n in self.mig_slices)
        )


@dataclass(frozen=True, slots=True)
class PlannedPod:
    """`at_s` counts from the start. A pod with `give_up_after_s` is deleted if it still waits then."""

    at_s: float
    manifest: JsonObject
    give_up_after_s: float | None = None


@dataclass(frozen=True, slots=True)
class _Job:
    """What one pod asks for, before it has a name."""

    kind: str
    gpus: float
    resources: dict[str, str]
    annotations: dict[str, str]
    possible: bool = True


@dataclass(frozen=True, slots=True)
class WorkloadPlan:
    """`pods_per_minute` None: as many as keep the cluster busy."""

    size: ClusterSize
    seed: int
    pods_per_minute: float | None = None

    def arrivals(self) -> Iterator[PlannedPod]:
        """Without end, in order of time; equal plans give equal pods."""
        rng = random.Random(f"workload/{self.seed}")
        rate_per_s = self.rate_per_s()
        burst = int(BURST_RATIO * rate_per_s * _mean_duration_s()) if self.pods_per_minute is None else 0
        times = sorted(rng.uniform(0, BURST_S) for _ in range(burst))
        for index, at_s in enumerate(times):
            yield self._pod(rng, index, at_s)
        at_s, index = (BURST_S if burst else 0.0), burst
        while True:
            at_s += rng.expovariate(rate_per_s)
            yield self._pod(rng, index, at_s)
            index += 1

    def rate_per_s(self) -> float:
        """Pods a second: what the cluster serves at the target, by Little's law."""
        if self.pods_per_minute is not None:
            return self.pods_per_minute / 60.0
        rng = random.Random(f"mean/{self.seed}")
        mean_gpus = sum(self._job(rng).gpus for _ in range(_SAMPLES_FOR_MEAN)) / _SAMPLES_FOR_MEAN
        return max(0.01, TARGET_UTILIZATION * self.size.gpus / (max(0.05, mean_gpus) * _mean_duration_s()))

    def _pod(self, rng: random.Random, index: int, at_s: float) -> PlannedPod:
        job = self._job(rng)
        duration_s = min(
            MAX_DURATION_S,
            max(MIN_DURATION_S, rng.lognormvariate(math.log(MEDIAN_DURATION_S), DURATION_SIGMA)),
        )
        annotations = {**job.annotations, ANNOTATION_DURATION: f"{duration_s:.1f}s"}
        if rng.random() < FAILING_RATIO:
            annotations[ANNOTATION_OUTCOME] = "failed"
        name = f"{job.kind}-{self.seed}-{index:05d}"
        manifest = _manifest(name, rng.choice(NAMESPACES), job, annotations)
        return PlannedPod(at_s, manifest, None if job.possible else GIVE_UP_AFTER_S)

    def _job(self, rng: random.Random) -> _Job:
        """The kind of device by GPU-weighted chance, so that each kind gets its share of the load."""
        if rng.random() < IMPOSSIBLE_RATIO:
            return _impossible(rng)
        # Shares are small: for equal load there must be more pods of them.
        nvidia_weight = self.size.nvidia_gpus / _MEAN_GPUS_NVIDIA
        gpuloom_weight = self.size.gpuloom_gpus / _MEAN_GPUS_GPULOOM
        choice = rng.random() * (nvidia_weight + self.size.slice_count + gpuloom_weight)
        if choice < nvidia_weight:
            return _training(rng, self.size.largest_nvidia_node)
        if choice < nvidia_weight + self.size.slice_count:
            return _slice(rng, self.size.mig_slices)
        if self.size.cut_profiles and rng.random() < CUT_RATIO:
            return _cut_on_demand(rng, self.size.cut_profiles)
        return _gpuloom_job(rng, self.size.largest_gpuloom_node)


def _training(rng: random.Random, largest: int) -> _Job:
    count = min(max(1, largest), rng.choices((1, 2, 4, 8), (0.45, 0.25, 0.2, 0.1))[0])
    annotations = {ANNOTATION_LOAD: f"{rng.uniform(0.6, 0.98):.2f}"}
    if count > 1 and rng.random() < 0.6:
        annotations[ANNOTATION_TOPOLOGY] = "nvlink"
    annotations |= _wish(rng)
    return _Job("train", count, {RESOURCE_NVIDIA_GPU: str(count)}, annotations)


def _slice(rng: random.Random, slices: tuple[tuple[str, int], ...]) -> _Job:
    """One MIG instance, of each kind as often as there are such."""
    resource = rng.choices([name for name, _ in slices], [count for _, count in slices])[0]
    annotations = {ANNOTATION_LOAD: f"{rng.uniform(0.3, 0.9):.2f}"}
    return _Job("slice", _slice_gpus(resource), {resource: "1"}, annotations)


def _cut_on_demand(rng: random.Random, profiles: tuple[tuple[str, int], ...]) -> _Job:
    """A slice that is made for it, on a card that is cut for it."""
    profile, milli = rng.choice(profiles)
    annotations = {ANNOTATION_LOAD: f"{rng.uniform(0.3, 0.9):.2f}", ANNOTATION_MIG_PROFILE: profile}
    return _Job("cut", milli / MILLI_PER_GPU, {RESOURCE_GPU_MILLI: str(milli)}, annotations)


def _slice_gpus(resource: str) -> float:
    """What an instance is of a whole GPU; models differ, and the smallest part is as good as any."""
    milli = load_catalog().mig_milli(resource.removeprefix(RESOURCE_NVIDIA_MIG_PREFIX))
    return min(milli, default=MILLI_PER_GPU) / MILLI_PER_GPU


def _gpuloom_job(rng: random.Random, largest: int) -> _Job:
    make = rng.choices((_inference, _notebook, _whole_cards), (0.6, 0.2, 0.2))[0]
    return make(rng, largest)


def _inference(rng: random.Random, _largest: int) -> _Job:
    milli = rng.randrange(100, 901, 50)
    resources = {RESOURCE_GPU_MILLI: str(milli)}
    if rng.random() < 0.4:
        resources[RESOURCE_GPU_MEMORY_MIB] = str(rng.randrange(1024, 8193, 512))
    annotations = {ANNOTATION_LOAD: f"{rng.uniform(0.3, 0.8):.2f}"} | _wish(rng)
    return _Job("serve", milli / 1000, resources, annotations)


def _notebook(rng: random.Random, _largest: int) -> _Job:
    milli = rng.randrange(200, 501, 100)
    annotations = {ANNOTATION_LOAD: f"{rng.uniform(0.02, 0.2):.2f}"}
    return _Job("notebook", milli / 1000, {RESOURCE_GPU_MILLI: str(milli)}, annotations)


def _whole_cards(rng: random.Random, largest: int) -> _Job:
    count = min(max(1, largest), rng.choices((1, 2, 4), (0.6, 0.3, 0.1))[0])
    annotations = {ANNOTATION_LOAD: f"{rng.uniform(0.5, 0.95):.2f}"}
    if count > 1 and rng.random() < 0.5:
        annotations[ANNOTATION_TOPOLOGY] = "nvlink"
    return _Job("tune", count, {RESOURCE_GPU_MILLI: str(1000 * count)}, annotations)


def _wish(rng: random.Random) -> dict[str, str]:
    if rng.random() >= WISH_RATIO:
        return {}
    if rng.random() < 0.5:
        return {ANNOTATION_GPU_ARCHITECTURE: "ampere"}
    return {ANNOTATION_GPU_MODEL: "A100"}


def _impossible(rng: random.Random) -> _Job:
    """Too many cards, an architecture that nobody runs, more memory than any card has."""
    wishes: tuple[Callable[[], _Job], ...] = (
        lambda: _Job("toolarge", 0, {RESOURCE_NVIDIA_GPU: "64"}, {}, possible=False),
        lambda: _Job(
            "museum",
            0,
            {RESOURCE_NVIDIA_GPU: "1"},
            {ANNOTATION_GPU_ARCHITECTURE: "turing", ANNOTATION_GPU_MODEL: "A100"},
            possible=False,
        ),
        lambda: _Job(
            "greedy",
            0,
            {RESOURCE_GPU_MILLI: "500", RESOURCE_GPU_MEMORY_MIB: str(512 * 1024)},
            {},
            possible=False,
        ),
    )
    return rng.choice(wishes)()


def _mean_duration_s() -> float:
    """Of the log-normal distribution; the bounds change it little."""
    return MEDIAN_DURATION_S * math.exp(DURATION_SIGMA**2 / 2)


def _manifest(name: str, namespace: str, job: _Job, annotations: dict[str, str]) -> JsonObject:
    cards = max(1, math.ceil(job.gpus))
    share = job.gpus < 1
    requests: dict[str, Any] = {
        "cpu": "250m" if share else str(cards),
        "memory": "1Gi" if share else f"{4 * cards}Gi",
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": {LABEL_WORKLOAD: job.kind},
            "annotations": annotations,
        },
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 5,
            "containers": [
                {
                    "name": "main",
                    "image": f"registry.example.com/{job.kind}:1",
                    "resources": {"requests": requests | job.resources, "limits": dict(job.resources)},
                }
            ],
        },
    }
