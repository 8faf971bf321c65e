"""A controller that takes over: what is new goes first, and what is as it should be costs nothing."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from prometheus_client import CollectorRegistry

from gpuloom.codec.custom.workload import gpu_workload
from gpuloom.kube.events import EventRecorder
from gpuloom.kube.objects import JsonObject, ObjectKey, key_of, uid_of
from gpuloom.kube.reconciler import Reconciler, ReconcilerOptions
from gpuloom.placement.strategies import WITHOUT_DEVICES
from gpuloom.runtime.clock import FakeClock, settle
from services.controller.core.manifests import Image, JobOptions, job_manifest
from services.controller.core.nodes import GpuNode
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

    def __post_init__(self) -> None:
        registry = CollectorRegistry()
        recorder = EventRecorder(None, "c", "i", self.clock, registry=registry)  # type: ignore[arg-type]
        metrics = ControllerMetrics(registry)
        self.steps = Workloads(self, self, recorder, SETTINGS, self.clock, metrics)
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
        job = job_manifest(gpu_workload(obj), 0, JobOptions(image=Image("example/model:1")))
        job["metadata"]["uid"] = f"job-{name}"
        self.jobs[uid_of(obj)] = [job]

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
        self.jobs[owner["uid"]] = [manifest]
        self.loop.queue.add((manifest["metadata"]["namespace"], owner["name"]))
        return manifest

    async def read_job(self, namespace: str, name: str) -> JsonObject | None:
        raise AssertionError("what is observed is not read again")

    async def delete_job(self, namespace: str, name: str, uid: str | None) -> None:
        raise AssertionError("nothing is to be deleted")

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

    def nodes(self) -> Sequence[GpuNode]:
        return ()

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
