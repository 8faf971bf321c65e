"""The loop on the simulated Kubernetes API: one writer a target, fights, status, and what is told."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from gpuloom.catalog.manifests import definitions
from gpuloom.errors import DeadlineError
from gpuloom.kube.access import KubeAccess
from gpuloom.kube.client import KubeClient
from gpuloom.kube.events import EventRecorder
from gpuloom.kube.listing import Selection
from gpuloom.kube.resources import DEPLOYMENTS, EVENTS, INFERENCE_POLICIES, NAMESPACES, PODS, Resource
from gpuloom.runtime.clock import FakeClock, SystemClock
from gpuloom.sim.kubeapi.server import SimKubeApi
from services.autoscaler.inference.adapters.targets import Targets
from services.autoscaler.inference.config import InferenceConfig
from services.autoscaler.inference.core.measures import Answer, Question
from services.autoscaler.inference.loop import InferenceLoop, Outside
from services.autoscaler.inference.metrics import InferenceMetrics
from services.autoscaler.inference.notes import StatusWriter

NAMESPACE, TARGET = "work", "llm-server"
CRDS = Resource(
    "apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", namespaced=False
)
LABELS = {"app": TARGET}


@dataclass
class ToldMeasures:
    """`waiting` of each pod; None: nobody answers."""

    waiting: float | None = 10.0
    silent: frozenset[str] = frozenset()

    async def ask(self, questions: Mapping[str, Question]) -> Mapping[str, Answer]:
        return {name: self._answer(one) for name, one in questions.items()}

    async def past(self, query: str, until: datetime, length: timedelta, step_s: float) -> list[float]:
        return []

    def _answer(self, question: Question) -> Answer:
        if self.waiting is None or question.pods is None:
            return Answer(problem="Prometheus can't be reached")
        told = set(question.pods.names) - self.silent
        return Answer(pods=dict.fromkeys(sorted(told), self.waiting))


@dataclass
class Observed:
    items: list[dict[str, Any]] = field(default_factory=list)

    def get(self, name: str, namespace: str = "") -> dict[str, Any] | None:
        return next((one for one in self.items if one["metadata"]["name"] == name), None)

    def objects(self) -> list[dict[str, Any]]:
        return self.items


class NoPlanner:
    def hasten(self, namespace: str, selector: str) -> None: ...


@dataclass
class World:
    client: KubeClient
    clock: FakeClock
    measures: ToldMeasures
    observed: Observed
    loop: InferenceLoop
    recorder: EventRecorder

    async def round(self, after_s: float = 60.0) -> None:
        await self.clock.advance(after_s)
        listed = await self.client.list(INFERENCE_POLICIES, Selection(NAMESPACE))
        self.observed.items = list(listed.items)
        await self.loop.round()

    async def replicas(self) -> int:
        return int((await self.client.get(DEPLOYMENTS, TARGET, NAMESPACE))["spec"]["replicas"])

    async def set_replicas(self, replicas: int) -> None:
        await self.client.patch(DEPLOYMENTS, TARGET, NAMESPACE, {"spec": {"replicas": replicas}})

    async def conditions(self, name: str = "llm") -> dict[str, tuple[str, str]]:
        found = await self.client.get(INFERENCE_POLICIES, name, NAMESPACE)
        return {one["type"]: (one["status"], one["reason"]) for one in found["status"]["conditions"]}

    async def events(self) -> list[tuple[str, str]]:
        await self.recorder.write_due()
        listed = (await self.client.list(EVENTS, Selection(NAMESPACE))).items
        return sorted((one["reason"], one["message"]) for one in listed)

    async def add_pod(self, name: str) -> None:
        container = {"name": "main", "image": "x"}
        pod = {
            "metadata": {"name": name, "namespace": NAMESPACE, "labels": LABELS},
            "spec": {"containers": [container]},
        }
        await self.client.create(PODS, pod)
        ready = {"type": "Ready", "status": "True", "lastTransitionTime": "2025-12-31T00:00:00Z"}
        await self.client.patch_status(
            PODS, name, NAMESPACE, {"status": {"phase": "Running", "conditions": [ready]}}
        )


def a_policy(name: str = "llm", **spec: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {
            "targetRef": {"kind": "Deployment", "name": TARGET},
            "maxReplicas": 8,
            "cooldownPeriod": 0,
            "metrics": {"requestQueueDepth": {"targetDepth": 10}},
            **spec,
        },
    }


def a_deployment(replicas: int) -> dict[str, Any]:
    template = {"metadata": {"labels": LABELS}, "spec": {"containers": [{"name": "main", "image": "x"}]}}
    return {
        "metadata": {"name": TARGET, "namespace": NAMESPACE},
        "spec": {"replicas": replicas, "selector": {"matchLabels": LABELS}, "template": template},
    }


@asynccontextmanager
async def a_world(replicas: int = 2) -> AsyncIterator[World]:
    async with (
        SimKubeApi(clock=SystemClock()) as api,
        KubeClient(KubeAccess(api.url), SystemClock()) as client,
    ):
        for definition in definitions():
            await client.create(CRDS, definition)
        await client.create(NAMESPACES, {"metadata": {"name": NAMESPACE}})
        await client.create(DEPLOYMENTS, a_deployment(replicas))
        clock, registry = FakeClock(), CollectorRegistry()
        recorder = EventRecorder(client, "test", "test", clock, registry=registry)
        outside = Outside(
            clock=clock,
            recorder=recorder,
            statuses=StatusWriter(client, recorder, clock, lambda most_s: most_s),
            metrics=InferenceMetrics(registry),
            write_timeout_s=lambda most_s: most_s,
            planner=NoPlanner(),
        )
        observed, measures = Observed(), ToldMeasures()
        loop = InferenceLoop(observed, Targets(client), measures, outside, InferenceConfig())
        world = World(client, clock, measures, observed, loop, recorder)
        for number in range(replicas):
            await world.add_pod(f"{TARGET}-{number}")
        yield world


async def test_a_change_is_written_once_and_explains_itself_in_status_and_one_event() -> None:
    async with a_world(replicas=2) as world:
        await world.client.create(INFERENCE_POLICIES, a_policy())
        world.measures.waiting = 20.0

        await world.round()

        status = (await world.client.get(INFERENCE_POLICIES, "llm", NAMESPACE))["status"]
        assert await world.replicas() == 4
        assert (status["currentReplicas"], status["desiredReplicas"]) == (4, 4)
        assert status["currentMetrics"] == [
            {"name": "request-queue-depth", "target": 10, "value": 20, "ratio": 2}
        ]
        assert await world.events() == [
            ("ScaledUp", "2 to 4 replicas: request-queue-depth is 20 of 10: 2 x 2 makes 4")
        ]


@pytest.mark.parametrize("mode", ["ratio", "adaptive"])
async def test_f13_without_metrics_nothing_changes_and_it_is_told_once(mode: str) -> None:
    async with a_world(replicas=2) as world:
        await world.client.create(INFERENCE_POLICIES, a_policy(mode=mode))
        world.measures.waiting = None

        for _ in range(5):
            await world.round()

        assert await world.replicas() == 2
        assert (await world.conditions())["ScalingActive"] == ("False", "MetricsMissing")
        assert [reason for reason, _ in await world.events()] == ["MetricsMissing"]


@pytest.mark.parametrize("mode", ["ratio", "adaptive"])
@pytest.mark.parametrize(("waiting", "silent", "replicas"), [(0.0, 1, 1), (20.0, 1, 8), (0.0, 3, 4)])
async def test_f14_a_bad_pod_of_four_blocks_neither_way_and_three_of_them_hold(
    mode: str, waiting: float, silent: int, replicas: int
) -> None:
    async with a_world(replicas=4) as world:
        await world.client.create(INFERENCE_POLICIES, a_policy(mode=mode))
        world.measures.waiting = waiting
        world.measures.silent = frozenset(f"{TARGET}-{number}" for number in range(silent))

        await world.round()

        assert await world.replicas() == replicas


@pytest.mark.parametrize("mode", ["ratio", "adaptive"])
async def test_f19_a_change_by_a_person_is_respected_and_a_program_that_insists_is_named(mode: str) -> None:
    async with a_world(replicas=2) as world:
        await world.client.create(INFERENCE_POLICIES, a_policy(mode=mode, minReplicas=3))
        world.measures.waiting = 0.0
        for _ in range(3):
            await world.round()
            assert await world.replicas() == 3
            assert (await world.conditions())["AbleToScale"][0] == "True"
            await world.set_replicas(1)

        await world.round()
        await world.round()

        assert await world.replicas() == 1
        assert (await world.conditions())["AbleToScale"] == ("False", "FightOverReplicas")
        told = [message for reason, message in await world.events() if reason == "FightOverReplicas"]
        assert len(told) == 1
        assert "replaced our number of replicas 3 times" in told[0]


async def test_f19_of_two_policies_on_a_target_the_first_acts_and_the_other_says_so() -> None:
    async with a_world(replicas=2) as world:
        await world.client.create(INFERENCE_POLICIES, a_policy("a-first", minReplicas=4))
        await world.client.create(INFERENCE_POLICIES, a_policy("b-second", maxReplicas=1))

        await world.round()
        await world.round()

        assert await world.replicas() == 4
        assert (await world.conditions("b-second"))["AbleToScale"] == ("False", "TargetTaken")


async def test_f19_an_inference_service_and_its_deployment_are_one_target() -> None:
    async with a_world(replicas=2) as world:
        service = {"apiVersion": "serving.kserve.io/v1beta1", "kind": "InferenceService", "name": "llm"}
        predictor = {"kind": "Deployment", "name": "llm-predictor"}
        await world.client.create(INFERENCE_POLICIES, a_policy("a-first", targetRef=service))
        await world.client.create(INFERENCE_POLICIES, a_policy("b-second", targetRef=predictor))

        await world.round()

        assert (await world.conditions("b-second"))["AbleToScale"] == ("False", "TargetTaken")


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ({"kind": "Deployment", "name": "nobody"}, "TargetNotFound"),
        ({"kind": "Pod", "name": TARGET, "apiVersion": "v1"}, "TargetCannotScale"),
        ({"kind": "Unknown", "name": TARGET}, "TargetCannotScale"),
    ],
)
async def test_a_target_that_is_not_there_or_has_no_scale_is_told(
    target: dict[str, str], reason: str
) -> None:
    async with a_world() as world:
        await world.client.create(INFERENCE_POLICIES, a_policy(targetRef=target))

        await world.round()

        assert (await world.conditions())["AbleToScale"] == ("False", reason)


async def test_a_change_whose_answer_was_lost_is_noted_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with a_world(replicas=2) as world:
        await world.client.create(INFERENCE_POLICIES, a_policy(cooldownPeriod=300))
        world.measures.waiting = 20.0
        write = Targets.write

        async def unanswered(*given: Any) -> None:
            await write(*given)
            raise DeadlineError("no answer")

        monkeypatch.setattr(Targets, "write", unanswered)
        await world.round()
        monkeypatch.undo()
        for number in (2, 3):
            await world.add_pod(f"{TARGET}-{number}")
        await world.round()
        held, events = await world.replicas(), await world.events()
        await world.round(after_s=300.0)

        assert held == 4
        assert [reason for reason, _ in events] == ["ScaledUp"]
        assert await world.replicas() == 8


async def test_a_restart_keeps_the_cooldown() -> None:
    async with a_world(replicas=2) as world:
        await world.client.create(INFERENCE_POLICIES, a_policy(cooldownPeriod=300))
        world.measures.waiting = 20.0
        await world.round()
        await world.add_pod(f"{TARGET}-2")
        await world.add_pod(f"{TARGET}-3")

        world.loop._notes.clear()
        await world.round(after_s=100.0)
        held = await world.replicas()
        await world.round(after_s=250.0)

        assert (held, await world.replicas()) == (4, 8)
