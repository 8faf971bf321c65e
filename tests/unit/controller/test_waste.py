"""Who is told of waste, how often, and what becomes of recommendations."""

import asyncio
import math
import time
from collections.abc import Sequence
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from gpuloom.errors import UnavailableError
from gpuloom.kube.objects import JsonObject
from gpuloom.model.node import PodRef
from gpuloom.model.optimization import PodWaste, WasteReport
from gpuloom.model.optimization import WasteParts as Score
from gpuloom.names import ANNOTATION_RECOMMENDATION
from gpuloom.runtime.clock import FakeClock, settle
from services.controller.adapters.waste import PING_S, PrometheusCheck
from services.controller.core.waste import (
    GpuPod,
    Pursuit,
    gpu_pod,
    owner_of,
    pursuits_from_json,
    pursuits_to_json,
)
from services.controller.metrics import ControllerMetrics
from services.controller.waste_events import WasteEvents, WasteParts, WasteRules

WHOLE, HALF = "nvidia.com/gpu=1", "gpuloom.dev/gpu-milli=500,gpuloom.dev/gpu-memory-mib=20480"


def a_pod_object(name: str, request: str = WHOLE, **metadata: Any) -> JsonObject:
    limits = dict(part.split("=") for part in request.split(","))
    owner = {"kind": "StatefulSet", "name": "serve", "controller": True}
    return {
        "metadata": {
            "name": name,
            "namespace": "team-a",
            "uid": f"uid-{name}",
            "ownerReferences": [owner],
            **metadata,
        },
        "spec": {"nodeName": "n1", "containers": [{"resources": {"limits": limits}}]},
        "status": {"phase": "Running"},
    }


def a_waste(name: str, idle: float = 60.0, recommended: str = HALF) -> PodWaste:
    return PodWaste(
        pod=PodRef("team-a", name, f"uid-{name}"),
        owner="StatefulSet/serve",
        parts=Score(idle=idle),
        now=WHOLE,
        recommended=recommended,
        saving_nano_usd=900_000_000_000,
        confidence=0.8,
        reason="at 10% of what it holds for 8 min",
    )


class Cluster:
    """Pods, and the Events of them, which the API server keeps by name; it may die at a write."""

    def __init__(self, *pods: JsonObject) -> None:
        self.pods = {str(pod["metadata"]["name"]): pod for pod in pods}
        self.events: dict[tuple[str, str, str], str] = {}
        self.fails_to_annotate = False

    def gpu_pods(self) -> Sequence[GpuPod]:
        return [pod for obj in self.pods.values() if (pod := gpu_pod(obj)) is not None]

    async def tell(self, pod: GpuPod, reason: str, topic: str, message: str) -> None:
        await asyncio.sleep(0)
        self.events.setdefault((pod.uid, reason, topic), message)

    async def annotate(self, pod: GpuPod, recommendation: str) -> None:
        if self.fails_to_annotate:
            raise UnavailableError("the API server went away")
        metadata = self.pods[pod.key[1]]["metadata"]
        metadata["annotations"] = {
            **metadata.get("annotations", {}),
            ANNOTATION_RECOMMENDATION: recommendation,
        }


class Kept:
    def __init__(self) -> None:
        self.text = pursuits_to_json(())

    async def load(self) -> tuple[Pursuit, ...]:
        return pursuits_from_json(self.text)

    async def save(self, pursuits: Sequence[Pursuit]) -> None:
        self.text = pursuits_to_json(pursuits)


class World:
    """A cluster and what the optimizer says of it, with controllers that come and go."""

    def __init__(self, *pods: JsonObject) -> None:
        self.cluster, self.kept, self.clock = Cluster(*pods), Kept(), FakeClock()
        self.report = WasteReport(tuple(a_waste(name) for name in self.cluster.pods))
        self.failure: UnavailableError | None = None
        self.problem: str | None = None
        self.registry = CollectorRegistry()

    async def waste(self, namespace: str | None, min_score: float) -> WasteReport:
        if self.failure is not None:
            raise self.failure
        return self.report

    async def rounds(self, count: int = 1) -> None:
        """A controller that starts, does so many rounds, and is killed."""
        self.registry = CollectorRegistry()
        parts = WasteParts(self, self.cluster, self.kept, lambda: self.problem)
        events = WasteEvents(parts, WasteRules(), self.clock, ControllerMetrics(self.registry))
        running = asyncio.create_task(events.run())
        await settle(200)
        for _ in range(count - 1):
            await self.clock.advance(30.0)
            await settle(200)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    def sample(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(f"gpuloom_controller_{name}", labels)

    def reasons(self) -> list[str]:
        return sorted(reason for _, reason, _ in self.cluster.events)


async def test_a_wasteful_pod_is_told_of_once_however_often_the_controller_starts() -> None:
    world = World(a_pod_object("serve-0"))

    await world.rounds(3)
    first = world.sample("waste_events_total")
    await world.rounds(2)

    (message,) = world.cluster.events.values()
    assert "waste score 60" in message
    assert f"ask for {HALF} instead of {WHOLE}, saves $900.00 a month" in message
    assert HALF in world.cluster.pods["serve-0"]["metadata"]["annotations"][ANNOTATION_RECOMMENDATION]
    assert (first, world.sample("waste_events_total")) == (1.0, 0.0)
    assert world.sample("wasteful_pods") == 1.0


async def test_a_controller_that_dies_between_its_two_writes_tells_once() -> None:
    world = World(a_pod_object("serve-0"))
    world.cluster.fails_to_annotate = True
    await world.rounds()
    world.cluster.fails_to_annotate = False

    await world.rounds()

    assert world.reasons() == ["GPUWaste"]
    assert ANNOTATION_RECOMMENDATION in world.cluster.pods["serve-0"]["metadata"]["annotations"]


async def test_another_recommendation_is_news_and_another_score_is_none() -> None:
    world = World(a_pod_object("serve-0"))
    await world.rounds()

    world.report = WasteReport((a_waste("serve-0", idle=55.0),))
    await world.rounds()
    same = world.reasons()
    world.report = WasteReport((a_waste("serve-0", recommended="nvidia.com/mig-1g.5gb=1"),))
    await world.rounds()

    assert same == ["GPUWaste"]
    assert world.reasons() == ["GPUWaste", "GPUWaste"]


async def test_a_score_of_exactly_the_threshold_is_no_waste() -> None:
    world = World(a_pod_object("serve-0"))
    world.report = WasteReport((a_waste("serve-0", idle=50.0),))

    await world.rounds()

    assert not world.cluster.events
    assert world.sample("wasteful_pods") == 0.0


@pytest.mark.parametrize("what", ["prometheus", "optimizer", "not judged"])
async def test_nothing_is_called_waste_while_nobody_can_say(what: str) -> None:
    world = World(a_pod_object("serve-0"))
    if what == "prometheus":
        world.problem = "Prometheus can't be reached"
    elif what == "optimizer":
        world.failure = UnavailableError("away")
    else:
        world.report = WasteReport(world.report.pods, problem="pods have not been judged yet")

    await world.rounds(2)

    assert not world.cluster.events
    wasteful = world.sample("wasteful_pods")
    assert wasteful is not None
    assert math.isnan(wasteful)


async def test_what_a_follow_up_pod_saves_is_told_once_also_by_another_controller() -> None:
    world = World(a_pod_object("serve-0"), a_pod_object("other", ownerReferences=[]))
    world.report = WasteReport((a_waste("serve-0"),))
    await world.rounds()

    del world.cluster.pods["serve-0"]
    world.report = WasteReport()
    world.cluster.pods["serve-0"] = a_pod_object("serve-0", HALF, uid="uid-new")
    await world.rounds(2)
    saved = world.sample("saved_usd_per_month")
    await world.rounds(2)

    assert world.reasons() == ["GPUWaste", "GPUWasteSaved"]
    told = next(text for (_, reason, _), text in world.cluster.events.items() if reason == "GPUWasteSaved")
    assert told == (
        f"StatefulSet/serve followed the recommendation: 1 pod with {HALF} instead of {WHOLE} "
        "save $900.00 a month"
    )
    assert saved == world.sample("saved_usd_per_month") == 900.0


async def test_a_pod_of_another_owner_or_with_another_request_follows_nothing() -> None:
    world = World(a_pod_object("serve-0"))
    await world.rounds()
    world.report = WasteReport()
    world.cluster.pods = {
        "a": a_pod_object("a", HALF, ownerReferences=[]),
        "serve-0": a_pod_object("serve-0", "gpuloom.dev/gpu-milli=250", uid="uid-new"),
    }

    await world.rounds(2)

    assert world.reasons() == ["GPUWaste"]


async def test_a_round_over_ten_thousand_pods_ends_well_within_its_interval() -> None:
    pods = [a_pod_object(f"pod-{number}") for number in range(10_000)]
    world = World(*pods)
    world.report = WasteReport(tuple(a_waste(f"pod-{number}") for number in range(0, 10_000, 10)))

    began_s = time.perf_counter()
    await world.rounds(2)
    took_s = time.perf_counter() - began_s

    assert len(world.cluster.events) == 1000
    assert took_s < 30.0


@pytest.mark.parametrize(
    ("metadata", "owner"),
    [
        (
            {
                "labels": {"pod-template-hash": "5f7d"},
                "ownerReferences": [{"kind": "ReplicaSet", "name": "serve-5f7d", "controller": True}],
            },
            "Deployment/serve",
        ),
        (
            {"ownerReferences": [{"kind": "Job", "name": "train-right-sized", "controller": True}]},
            "Job/train",
        ),
        ({"labels": {"gpu.warp.dev/workload": "train"}}, "GPUWorkload/train"),
        ({"ownerReferences": []}, "Pod/p"),
    ],
)
def test_the_owner_is_what_a_person_would_change(metadata: JsonObject, owner: str) -> None:
    assert owner_of(a_pod_object("p", **metadata)) == owner


class Prometheus:
    answers = False

    async def ping(self) -> None:
        if not self.answers:
            raise UnavailableError("connection refused")


async def test_readiness_follows_prometheus_within_seconds_and_waits_for_its_first_answer() -> None:
    clock, prometheus = FakeClock(), Prometheus()
    check = PrometheusCheck(prometheus, clock)  # type: ignore[arg-type]
    told = [check.problem()]
    running = asyncio.create_task(check.run())

    for prometheus.answers in (False, True, False):
        await clock.advance(PING_S)
        told.append(check.problem())

    running.cancel()
    assert told == [
        "Prometheus has not answered yet",
        "Prometheus: connection refused",
        None,
        "Prometheus: connection refused",
    ]
