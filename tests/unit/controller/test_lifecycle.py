"""Decisions over whole histories: Jobs end, vanish and change hands, and no attempt is made twice."""

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from gpuloom.codec.custom.workload import gpu_workload
from gpuloom.kube.conditions import with_conditions
from gpuloom.kube.objects import JsonObject
from gpuloom.kube.parse import format_time
from services.controller.core.lifecycle import Decision, Observed, decide
from services.controller.core.manifests import Image, JobOptions, job_manifest
from tests.effort import examples
from tests.unit.controller.builders import a_workload_object

START = datetime(2026, 1, 1, tzinfo=UTC)
OPTIONS = JobOptions(image=Image("example/model:1"))
MOVES = [
    "reconcile",
    "forget-status",
    "succeed",
    "fail",
    "wait",
    "change-spec",
    "delete-job",
    "delete-newest",
    "run",
]


@dataclass
class World:
    """The API as it is; the controller may die before it has written the status."""

    obj: JsonObject
    now: datetime = START
    jobs: dict[str, JsonObject] = field(default_factory=dict)
    pods: list[JsonObject] = field(default_factory=list)
    created: list[str] = field(default_factory=list)
    deleted_by_user: set[str] = field(default_factory=set)

    def decide(self) -> Decision:
        observed = Observed(gpu_workload(self.obj), list(self.jobs.values()), self.pods)
        return decide(observed, self.now)

    def reconcile(self, *, status_is_lost: bool = False) -> Decision:
        decision = self.decide()
        for name in decision.outdated:
            del self.jobs[name]
        if decision.attempt is not None:
            job = job_manifest(gpu_workload(self.obj), decision.attempt, OPTIONS)
            name = job["metadata"]["name"]
            if name not in self.jobs:
                job["metadata"]["uid"] = f"job-{len(self.created)}"
                self.jobs[name] = job
                self.created.append(name)
        if not status_is_lost:
            status = decision.status
            told = {"phase": status.phase.value, "retries": status.retries, "message": status.message}
            before = self.obj["status"].get("conditions") or []
            conditions = with_conditions(before, status.conditions, 1, self.now)
            self.obj["status"] = {**told, "jobName": status.job, "conditions": conditions}
            self.obj["status"]["assignedNode"] = status.node
        return decision

    def end(self, condition: str) -> None:
        for job in self.live():
            at = format_time(self.now)
            ended = {"type": condition, "status": "True", "lastTransitionTime": at, "message": "it ended"}
            job["status"] = {"conditions": [ended]}

    def delete(self, name: str) -> None:
        self.deleted_by_user.add(name)
        del self.jobs[name]

    def live(self) -> list[JsonObject]:
        return [job for job in self.jobs.values() if not (job.get("status") or {}).get("conditions")]

    def move(self, name: str) -> None:
        match name:
            case "reconcile":
                self.reconcile()
            case "forget-status":
                self.reconcile(status_is_lost=True)
            case "succeed":
                self.end("Complete")
            case "fail":
                self.end("Failed")
            case "wait":
                self.now += timedelta(seconds=200)
            case "change-spec":
                self.obj["spec"]["gpuCount"] = self.obj["spec"]["gpuCount"] % 8 + 1
            case "delete-job" if self.jobs:
                self.delete(min(self.jobs))
            case "delete-newest" if self.jobs:
                self.delete(max(self.jobs))
            case "run":
                for job in self.live():
                    self.pods.append(a_pod(job))


def a_pod(job: JsonObject) -> JsonObject:
    owner = {"uid": job["metadata"]["uid"], "controller": True, "kind": "Job"}
    return {
        "metadata": {"name": f"{job['metadata']['name']}-x", "ownerReferences": [owner]},
        "spec": {"nodeName": "gpu-node-01"},
        "status": {"phase": "Running"},
    }


@given(st.lists(st.sampled_from(MOVES), max_size=40), st.integers(0, 3))
@settings(max_examples=examples(300))
def test_at_most_one_job_is_alive_and_no_attempt_is_made_twice(moves: list[str], retries: int) -> None:
    world = World(a_workload_object(retryPolicy={"maxRetries": retries, "backoffSeconds": 30}))

    for move in moves:
        world.move(move)

        assert len(world.live()) <= 1
    again = [name for name in world.created if world.created.count(name) > 1]
    assert set(again) <= world.deleted_by_user | {name for name in again if "change-spec" in moves}
    by_spec: dict[str, set[str]] = {}
    for name in world.created:
        stem, _, attempt = name.rpartition("-")
        by_spec.setdefault(stem, set()).add(attempt)
    assert all(attempts <= {str(number) for number in range(retries + 1)} for attempts in by_spec.values())


@given(st.integers(0, 3), st.booleans())
def test_a_workload_that_keeps_failing_ends_failed_after_its_retries(retries: int, lossy: bool) -> None:
    world = World(a_workload_object(retryPolicy={"maxRetries": retries, "backoffSeconds": 30}))

    for _ in range(retries + 2):
        world.reconcile(status_is_lost=lossy)
        world.end("Failed")
        world.reconcile()
        world.now += timedelta(seconds=301)
    last = world.reconcile()

    assert (last.status.phase, last.status.retries) == ("Failed", retries)
    assert len(world.created) == retries + 1
    assert last.again_after_s is None


def test_a_failed_attempt_waits_for_its_backoff_and_says_so() -> None:
    world = World(a_workload_object(retryPolicy={"maxRetries": 1, "backoffSeconds": 30}))
    world.reconcile()
    world.end("Failed")
    world.now += timedelta(seconds=10)

    waiting = world.reconcile()
    world.now += timedelta(seconds=24)
    due = world.reconcile()

    assert (waiting.status.phase, waiting.attempt) == ("Pending", None)
    assert "attempt 1 of 2 failed: it ended" in waiting.status.message
    assert waiting.again_after_s is not None
    assert 20.0 <= waiting.again_after_s <= 23.0
    assert (due.attempt, due.status.phase) == (1, "Scheduling")


@given(st.integers(1, 3), st.integers(0, 3))
def test_an_attempt_that_failed_is_not_made_again_when_its_job_is_cleaned_up(retries: int, more: int) -> None:
    world = World(a_workload_object(retryPolicy={"maxRetries": retries, "backoffSeconds": 30}))

    for _ in range(2):
        for _ in range(retries + more + 2):
            world.reconcile()
            world.end("Failed")
            world.reconcile()
            world.jobs.clear()
            waiting = world.reconcile()
            world.now += timedelta(seconds=301)
        world.obj["spec"]["retryPolicy"]["maxRetries"] = retries + more

    assert waiting.status.phase == "Failed"
    assert len(world.created) == len(set(world.created)) == retries + more + 1


def test_a_failed_attempt_whose_job_is_gone_still_waits_for_its_backoff() -> None:
    world = World(a_workload_object(retryPolicy={"maxRetries": 1, "backoffSeconds": 60}))
    world.reconcile()
    world.move("run")
    world.reconcile()
    world.end("Failed")
    world.reconcile()
    world.jobs.clear()
    world.now += timedelta(seconds=50)

    waiting = world.reconcile()

    assert (waiting.attempt, waiting.status.phase) == (None, "Pending")
    assert waiting.again_after_s is not None
    assert waiting.again_after_s >= 10.0


def test_what_is_over_stays_over_when_its_job_is_cleaned_up() -> None:
    world = World(a_workload_object())
    world.reconcile()
    world.end("Complete")
    world.reconcile()
    world.jobs.clear()

    later = world.reconcile()

    assert (later.status.phase, later.attempt) == ("Succeeded", None)
    assert len(world.created) == 1


def test_a_failed_workload_stays_failed_when_only_its_last_job_is_cleaned_up() -> None:
    world = World(a_workload_object(retryPolicy={"maxRetries": 1, "backoffSeconds": 30}))
    for _ in range(2):
        world.reconcile()
        world.end("Failed")
        world.reconcile()
        world.now += timedelta(seconds=301)
    world.reconcile()
    world.move("delete-newest")

    later = world.reconcile()

    assert (later.status.phase, later.status.retries, later.attempt) == ("Failed", 1, None)
    assert len(world.created) == 2


def test_more_retries_let_a_failed_workload_go_on() -> None:
    world = World(a_workload_object(retryPolicy={"maxRetries": 0}))
    world.reconcile()
    world.end("Failed")
    world.reconcile()
    world.obj["spec"]["retryPolicy"] = {"maxRetries": 1, "backoffSeconds": 30}
    world.now += timedelta(seconds=60)

    decision = world.reconcile()

    assert decision.attempt == 1


def test_a_changed_spec_waits_until_what_ran_before_is_gone() -> None:
    world = World(a_workload_object())
    world.reconcile()
    world.obj["spec"]["image"] = "example/llama:2"

    first = world.decide()
    world.reconcile()
    second = world.reconcile()

    assert (first.outdated, first.attempt) == ((world.created[0],), None)
    assert second.attempt == 0
    assert len(world.jobs) == 1


def test_the_node_told_is_the_one_where_the_pod_really_is() -> None:
    world = World(a_workload_object())
    world.reconcile()
    scheduling = world.reconcile()
    world.move("run")

    running = world.reconcile()

    assert scheduling.status.node is None
    assert (running.status.phase, running.status.node) == ("Running", "gpu-node-01")


def test_a_foreign_job_of_the_same_label_is_nobody_s_attempt() -> None:
    world = World(a_workload_object())
    foreign: dict[str, Any] = {"metadata": {"name": "train-00000000-0", "labels": {}, "uid": "x"}}
    world.jobs["train-00000000-0"] = foreign

    decision = world.decide()

    assert (decision.attempt, decision.outdated) == (0, ())
