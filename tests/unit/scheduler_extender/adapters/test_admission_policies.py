"""Somebody notices that an admission policy is missing, and says so where people look."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from gpuloom.errors import ConflictError, GpuloomError, NotAllowedError, NotFoundError, UnavailableError
from gpuloom.kube.objects import JsonObject
from gpuloom.kube.resources import ADMISSION_POLICIES, ADMISSION_POLICY_BINDINGS, PODS, Resource
from gpuloom.runtime.clock import FakeClock, settle
from services.scheduler_extender.adapters.admission_policies import CHECK_INTERVAL_S, PolicyWatch
from services.scheduler_extender.core.objects.admission_policies import policy_problem, version_of
from services.scheduler_extender.metrics import ExtenderMetrics
from tests.unit.scheduler_extender.builders import a_pod, a_ref
from tests.unit.scheduler_extender.inquiry_setup import InquiryDesk

NAME = "gpuloom-allocation-annotations"
METRIC = "gpuloom_scheduler_extender_admission_policy_installed"
CONDITION = "gpuloom.dev/AdmissionPoliciesInstalled"
POLICY: JsonObject = {"spec": {"failurePolicy": "Fail"}}
BINDING: JsonObject = {"spec": {"policyName": NAME, "validationActions": ["Deny"]}}
READY = {"type": "Ready", "status": "True"}


@dataclass
class Api:
    """An API server with an extender's pod; the policies come and go."""

    policy: JsonObject | None = field(default_factory=lambda: deepcopy(POLICY))
    binding: JsonObject | None = field(default_factory=lambda: deepcopy(BINDING))
    minor: str = "31"
    failure: GpuloomError | None = None
    patch_failure: GpuloomError | None = None
    conditions: list[JsonObject] = field(default_factory=lambda: [READY])
    patches: int = 0

    async def get(
        self, resource: Resource, name: str, namespace: str | None = None, *, timeout_s: float
    ) -> JsonObject:
        if resource == PODS:
            metadata = {"name": name, "namespace": namespace, "resourceVersion": "7"}
            return {"metadata": metadata, "status": {"conditions": self.conditions}}
        if self.failure is not None:
            raise self.failure
        found = {ADMISSION_POLICIES: self.policy, ADMISSION_POLICY_BINDINGS: self.binding}[resource]
        if found is None or name != NAME:
            raise NotFoundError("404")
        return found

    async def version(self, *, timeout_s: float) -> JsonObject:
        return {"major": "1", "minor": self.minor}

    async def patch_status(
        self, resource: Resource, name: str, namespace: str, patch: JsonObject, **options: Any
    ) -> JsonObject:
        assert options["resource_version"] == "7"
        if self.patch_failure is not None:
            raise self.patch_failure
        self.patches += 1
        self.conditions = patch["status"]["conditions"]
        return {}


@asynccontextmanager
async def running(watched: "Watched", is_leader: Callable[[], bool]) -> AsyncIterator[None]:
    task = asyncio.create_task(watched.watch.run(is_leader))
    await settle()
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


class Watched:
    def __init__(self, api: Api) -> None:
        self.registry = CollectorRegistry()
        self.clock = FakeClock()
        metrics = ExtenderMetrics(self.registry)
        own_pod = ("gpuloom-system", "extender-0")
        self.watch = PolicyWatch(api, (NAME,), own_pod, self.clock, metrics)  # type: ignore[arg-type]

    def installed(self) -> float | None:
        return self.registry.get_sample_value(METRIC, {"policy": NAME})


def condition_of(api: Api) -> tuple[str, str]:
    (ours,) = [entry for entry in api.conditions if entry["type"] == CONDITION]
    assert READY in api.conditions
    return ours["status"], ours["reason"]


@pytest.mark.parametrize(
    ("policy", "binding", "reason"),
    [
        (POLICY, BINDING, ""),
        (
            None,
            BINDING,
            "no such ValidatingAdmissionPolicy: apply deploy/manifests/admission.yaml",
        ),
        (
            POLICY,
            None,
            "no such ValidatingAdmissionPolicyBinding: apply deploy/manifests/admission.yaml",
        ),
        ({"spec": {"failurePolicy": "Ignore"}}, BINDING, "failurePolicy is Ignore"),
        (POLICY, {"spec": {**BINDING["spec"], "policyName": "other"}}, "names another policy"),
        (POLICY, {"spec": {**BINDING["spec"], "validationActions": ["Warn", "Audit"]}}, "does not deny"),
        (POLICY, {}, "names another policy"),
    ],
)
def test_a_policy_is_in_force_only_with_a_binding_that_denies(
    policy: JsonObject | None, binding: JsonObject | None, reason: str
) -> None:
    assert reason in policy_problem(NAME, policy, binding)
    assert bool(policy_problem(NAME, policy, binding)) == bool(reason)


async def test_a_policy_that_is_missing_shows_in_metric_condition_and_note_until_it_is_there() -> None:
    api = Api(policy=None, binding=None)
    watched = Watched(api)

    await watched.watch.check()
    missing = (watched.installed(), condition_of(api), watched.watch.note())
    api.policy, api.binding = POLICY, BINDING
    await watched.watch.check()

    assert missing[:2] == (0, ("False", "PolicyMissing"))
    assert (
        f"{NAME} (there is no such ValidatingAdmissionPolicy: apply deploy/manifests/admission.yaml)"
        in missing[2]
    )
    assert (watched.installed(), condition_of(api)) == (1, ("True", "PoliciesInstalled"))
    assert watched.watch.note() == ""


async def test_before_kubernetes_1_30_it_is_said_that_there_are_no_such_policies() -> None:
    watched = Watched(Api(policy=None, binding=None, minor="29+"))

    await watched.watch.check()

    assert watched.installed() == 0
    assert "Kubernetes 1.29 has no admissionregistration.k8s.io/v1" in watched.watch.note()
    assert "1.30 has" in watched.watch.note()


@pytest.mark.parametrize("failure", [NotAllowedError("403"), UnavailableError("silent")])
async def test_what_can_not_be_read_is_not_known_and_nothing_is_claimed_of_it(failure: GpuloomError) -> None:
    api = Api(policy=None)
    watched = Watched(api)
    await watched.watch.check()

    api.failure = failure
    await watched.watch.check()

    assert watched.installed() is None
    assert watched.watch.note() == ""
    assert condition_of(api) == ("Unknown", "PolicyNotReadable")


async def test_a_change_is_told_once_and_a_condition_that_stands_is_not_written_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    api = Api(binding=None)
    watched = Watched(api)
    with caplog.at_level(logging.INFO):
        for _ in range(3):
            await watched.watch.check()
        first = api.conditions
        api.binding = BINDING
        await watched.watch.check()

    said = [record.message for record in caplog.records]
    assert said == ["an admission policy is not in force", "an admission policy is in force"]
    assert api.patches == 2
    assert first != api.conditions


async def test_a_condition_that_can_not_be_written_is_tried_again() -> None:
    api = Api(patch_failure=ConflictError("409"))
    watched = Watched(api)

    await watched.watch.check()
    assert api.conditions == [READY]
    api.patch_failure = None
    await watched.watch.check()

    assert condition_of(api) == ("True", "PoliciesInstalled")


async def test_only_the_leader_looks_and_does_so_every_minute() -> None:
    api, leads = Api(), False
    watched = Watched(api)
    async with running(watched, lambda: leads):
        await watched.clock.advance(10.0)
        as_standby = watched.installed()
        leads = True
        await watched.clock.advance(2.0)
        as_leader = watched.installed()
        api.policy = None
        await watched.clock.advance(CHECK_INTERVAL_S)

    assert (as_standby, as_leader, watched.installed()) == (None, 1, 0)


async def test_explain_says_what_is_missing_whatever_stands_with_the_pod() -> None:
    waiting = a_pod(a_ref("pod"))
    bound = a_pod(a_ref("bound"))
    bound["spec"]["nodeName"] = "n1"
    desk = InquiryDesk(pods=[waiting, bound], cluster_note=lambda: "Policies are missing.")

    notes = [(await desk.inquiries.explain(pod)).note for pod in (waiting, bound)]

    assert all(note.startswith("Policies are missing.") for note in notes)


@pytest.mark.parametrize("minor", ["34", 34, "34+", "34-gke.5"])
def test_a_version_is_read_however_it_is_written(minor: object) -> None:
    assert version_of({"major": "1", "minor": minor}) == (1, 34)
