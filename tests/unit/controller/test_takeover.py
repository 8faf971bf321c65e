"""Steps over many workloads: the new go first, those that are settled cost nothing, none stops the others."""

import asyncio
import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from gpuloom.codec.custom.workload import gpu_workload
from gpuloom.errors import NotAllowedError
from gpuloom.kube.events import EventRecorder
from gpuloom.kube.objects import JsonObject, ObjectKey, key_of, uid_of
from gpuloom.kube.reconciler import Reconciler, ReconcilerOptions
from gpuloom.placement.strategies import WITHOUT_DEVICES
from gpuloom.runtime.clock import FakeClock, settle
from services.controller.core.manifests import LABEL_WORKLOAD, Image, JobOptions, job_manifest
from services.controller.core.nodes import GpuNode, gpu_node, pinned_host, promised_gpus
from services.controller.metrics import ControllerMetrics
from services.controller.workloads import FINALIZER, Workloads, WorkloadSettings
from tests.unit.controller.builders import a_workload_object

SETTINGS = WorkloadSettings(WITHOUT_DEVICES, "gpuloom-", None, pins_nodes=False, gives_shares=False)
WRITE_TAKES_S = 0.1


@dataclass
class World:
    """The API server, whose every call takes a moment, and what is observed of it."""

    clock: FakeClock = field(default_factory=FakeClock)
    workloads: dict[ObjectKey, JsonObject] = field(default_factory=dict)
    jobs: dict[str, list[JsonObject]] = field(default_factory=dict)
    calls: list[tuple[str, str]] = field(default_factory=list)
    version: int = 0
    forbidden: str = ""
    """Why the server takes no Job: a quota, or somebody's admission."""
    settings: WorkloadSettings = SETTINGS
    gpu_nodes: list[JsonObject] = field(default_factory=list)
    hidden: list[JsonObject] = field(default_factory=list)
    """Jobs that are there and not observed yet."""

    def __post_init__(self) -> None:
        registry = CollectorRegistry()
        recorder = EventRecorder(None, "c", "i", self.clock, registry=registry)  # type: ignore[arg-type]
        metrics = ControllerMetrics(registry)
        self.steps = Workloads(self, self, recorder, self.settings, self.clock, metrics)
        self.loop = Reconciler(
            "takeover", self, self.steps.reconcile, self.clock, registry, ReconcilerOptions(workers=8)
        )

    def add(self, name: str, **metadata: Any) -> JsonObject:
        obj = a_workload_object(f"uid-{name}")
        obj["metadata"].update(name=name, **metadata)
        return self.store(obj)

    def store(self, obj: JsonObject) -> JsonObject:
        self.version += 1
        obj["metadata"]["resourceVersion"] = str(self.version)
        self.workloads[key_of(obj)] = obj
        return obj

    def add_with_job(self, name: str) -> None:
        obj = self.add(name, finalizers=[FINALIZER])
        self.jobs[uid_of(obj)] = [self.job_of(obj, 0)]

    async def until_quiet(self) -> None:
        task = asyncio.create_task(self.loop.run())
        for _ in range(200):
            await self.clock.advance(WRITE_TAKES_S)
            await settle(50)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    async def _call(self, verb: str, name: str) -> None:
        self.calls.append((verb, name))
        await self.clock.sleep(WRITE_TAKES_S)

    async def patch(self, workload: JsonObject, patch: JsonObject) -> JsonObject:
        await self._call("patch", workload["metadata"]["name"])
        if not patch["metadata"]["finalizers"]:
            assert not self.jobs.get(uid_of(workload)), "it was let go while it had Jobs"
            assert not self.hidden
        return self._changed({**workload, "metadata": {**workload["metadata"], **patch["metadata"]}})

    async def patch_status(self, workload: JsonObject, patch: JsonObject) -> JsonObject:
        await self._call("patch_status", workload["metadata"]["name"])
        status = {**workload["status"], **patch["status"]}
        kept = {name: value for name, value in status.items() if value is not None}
        return self._changed({**workload, "status": kept})

    def _changed(self, obj: JsonObject) -> JsonObject:
        stored = self.store({**obj, "metadata": {**obj["metadata"]}})
        self.loop.queue.add(key_of(stored))
        return stored

    async def create_job(self, manifest: JsonObject) -> JsonObject | None:
        (owner,) = manifest["metadata"]["ownerReferences"]
        await self._call("create_job", owner["name"])
        if self.forbidden:
            raise NotAllowedError(self.forbidden)
        self.jobs[owner["uid"]] = [manifest]
        self.loop.queue.add((manifest["metadata"]["namespace"], owner["name"]))
        return manifest

    async def read_job(self, namespace: str, name: str) -> JsonObject | None:
        return next((job for job in self.hidden if job["metadata"]["name"] == name), None)

    async def delete_job(self, namespace: str, name: str, uid: str | None) -> None:
        await self._call("delete_job", name)
        self.hidden = [job for job in self.hidden if job["metadata"]["uid"] != uid]
        for owner, jobs in self.jobs.items():
            self.jobs[owner] = [job for job in jobs if job["metadata"]["uid"] != uid]

    def job_of(self, obj: JsonObject, attempt: int) -> JsonObject:
        job = job_manifest(gpu_workload(obj), attempt, JobOptions(image=None))
        job["metadata"]["uid"] = f"{uid_of(obj)}-{attempt}"
        return job

    def get(self, name: str, namespace: str = "") -> JsonObject | None:
        return self.workloads.get((namespace, name))

    def objects(self) -> list[JsonObject]:
        return list(self.workloads.values())

    def jobs_of(self, uid: str) -> Sequence[JsonObject]:
        return self.jobs.get(uid, ())

    def pods_of(self, workload_uid: str) -> Sequence[JsonObject]:
        return ()

    def gives_shares(self) -> bool:
        return False

    def gpu_memory_mib(self) -> frozenset[int]:
        return frozenset()

    def nodes(self, made: Sequence[JsonObject] = ()) -> Sequence[GpuNode]:
        jobs = {job["metadata"]["name"]: job for job in [*made, *itertools.chain(*self.jobs.values())]}
        promised = promised_gpus(jobs.values(), {})
        return [gpu_node(node, 0, promised) for node in self.gpu_nodes]

    def image_of(self, model: str) -> Image | None:
        return None


async def test_a_workload_that_can_not_be_read_says_why_and_stops_nobody() -> None:
    world = World()
    odd = world.add("odd", finalizers=[FINALIZER])
    odd["spec"]["podTemplate"] = {"spec": {"containers": [{"env": {"A": "b"}}]}}
    unread = world.add("unread", finalizers=[FINALIZER])
    unread["spec"]["gpuCount"] = 0
    world.add("fine")

    await world.until_quiet()

    told = {name: world.workloads["team-a", name]["status"] for name in ("odd", "unread", "fine")}
    assert (told["odd"]["phase"], told["unread"]["phase"]) == ("Pending", "Pending")
    assert "env must be a list of objects" in told["odd"]["message"]
    assert "gpuCount" in told["unread"]["message"]
    assert told["unread"]["conditions"][0]["reason"] == "InvalidSpec"
    assert told["fine"]["phase"] == "Scheduling"


async def test_a_job_that_the_server_does_not_allow_is_told_and_tried_again() -> None:
    world = World()
    world.add("train")
    world.forbidden = "exceeded quota: count/jobs.batch"
    await world.until_quiet()
    told = world.workloads["team-a", "train"]["status"]
    world.forbidden = ""

    await world.until_quiet()

    assert (told["phase"], told["message"]) == ("Pending", "exceeded quota: count/jobs.batch")
    assert world.workloads["team-a", "train"]["status"]["phase"] == "Scheduling"


async def test_a_message_longer_than_a_status_takes_is_cut_and_the_status_written() -> None:
    world = World()
    world.add("train")
    world.forbidden = "0/5000 nodes are available: " + "a reason of its own for each node; " * 5000

    await world.until_quiet()

    told = world.workloads["team-a", "train"]["status"]
    assert told["message"].startswith("0/5000 nodes are available")
    assert gpu_workload(world.workloads["team-a", "train"]).status.message == told["message"]


PHASES = ["", "Pending", "Scheduling", "Scheduled", "Running", "Succeeded", "Failed"]


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize(("observed", "hidden"), [(0, False), (0, True), (1, False), (2, True)])
async def test_in_every_phase_a_deleted_workload_is_let_go_when_its_jobs_are_gone(
    phase: str, observed: int, hidden: bool
) -> None:
    world = World()
    obj = world.add("train", finalizers=[FINALIZER], deletionTimestamp="2026-01-01T00:00:00Z")
    if phase:
        obj["status"] = {"phase": phase, "retries": 0}
    world.jobs[uid_of(obj)] = [world.job_of(obj, attempt) for attempt in range(observed)]
    if hidden:
        world.hidden = [world.job_of(obj, observed)]
        obj["status"]["jobName"] = world.hidden[0]["metadata"]["name"]

    await world.until_quiet()

    verbs = [verb for verb, _ in world.calls]
    assert world.workloads["team-a", "train"]["metadata"]["finalizers"] == []
    assert verbs == ["delete_job"] * (observed + hidden) + ["patch"]


async def test_workloads_that_are_as_they_should_be_cost_a_successor_no_call() -> None:
    world = World()
    for number in range(50):
        world.add_with_job(f"old-{number}")
    await world.until_quiet()
    settling = len(world.calls)
    world.calls.clear()

    await world.until_quiet()

    assert settling == 50
    assert world.calls == []


async def test_a_workload_made_during_the_change_of_leaders_gets_its_job_before_the_backlog() -> None:
    world = World()
    for number in range(200):
        world.add(f"old-{number}")
    world.add("late")

    await world.until_quiet()

    made = [name for verb, name in world.calls if verb == "create_job"]
    assert made[0] == "late"
    assert len(made) == len(set(made)) == 201
    # The finalizer, and then the Job, while each of the eight workers took up one of the others.
    assert world.calls.index(("create_job", "late")) < 3 * 8


def a_gpu_node(name: str, gpus: int = 4) -> JsonObject:
    labels = {"kubernetes.io/hostname": f"host-{name}"}
    status = {
        "allocatable": {"nvidia.com/gpu": str(gpus)},
        "conditions": [{"type": "Ready", "status": "True"}],
    }
    return {"metadata": {"name": name, "labels": labels}, "status": status}


def a_pinning_world(**strategies: Any) -> World:
    settings = replace(SETTINGS, pins_nodes=True, strategies={**WITHOUT_DEVICES, **strategies})
    return World(settings=settings, gpu_nodes=[a_gpu_node(f"n{number}") for number in range(4)])


async def test_workloads_that_come_at_once_are_not_all_required_to_go_to_one_node() -> None:
    world = a_pinning_world()
    for number in range(9):
        world.add(f"w{number}")

    await world.until_quiet()

    pinned = Counter(pinned_host(job) for jobs in world.jobs.values() for job in jobs)
    left = [w["status"]["message"] for w in world.workloads.values() if w["status"]["phase"] == "Pending"]
    assert pinned == {f"host-n{number}": 2 for number in range(4)}
    assert left == ["no ready node has 2 free GPUs for strategy leastLoaded"]


async def test_a_gang_goes_to_one_node_only_if_all_of_it_has_room_there() -> None:
    world = a_pinning_world()
    for name, size in (("small", 2), ("large", 3)):
        world.add(name)["spec"]["gang"] = {"size": size}
    world.add("sliced")["spec"].update(migProfile="1g.5gb", gpuCount=7)

    await world.until_quiet()

    pinned = {
        jobs[0]["metadata"]["labels"][LABEL_WORKLOAD]: pinned_host(jobs[0]) for jobs in world.jobs.values()
    }
    assert pinned["small"] is not None
    assert (pinned["large"], pinned["sliced"]) == (None, None)


async def test_a_strategy_of_somebody_else_that_fails_is_told_and_stops_nobody() -> None:
    world = a_pinning_world(broken=lambda nodes, uid: nodes[99])
    world.add("odd")["spec"]["schedulingStrategy"] = "broken"
    world.add("fine")

    await world.until_quiet()

    told = world.workloads["team-a", "odd"]["status"]
    assert "strategy broken failed: IndexError" in told["message"]
    assert world.workloads["team-a", "fine"]["status"]["phase"] == "Scheduling"
