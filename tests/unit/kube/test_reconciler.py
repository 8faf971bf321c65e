"""A control loop acts on what it observed after its own writes, tries again, and tells when it is stuck."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from prometheus_client import CollectorRegistry

from gpuloom.errors import ConflictError, InvalidRequestError, UnavailableError
from gpuloom.kube.cache import Change
from gpuloom.kube.errors import Call, error_from_status
from gpuloom.kube.objects import JsonObject, ObjectKey
from gpuloom.kube.reconciler import Reconciler, ReconcilerOptions, Step
from gpuloom.runtime.clock import FakeClock, settle

KEY = ("ns", "a")


def an_object(version: int, uid: str = "uid-a", name: str = "a") -> JsonObject:
    return {"metadata": {"namespace": "ns", "name": name, "uid": uid, "resourceVersion": str(version)}}


class Cluster:
    """What is observed, and what the loop did about it."""

    def __init__(self, *objects: JsonObject) -> None:
        self.objects_by_key = {("ns", obj["metadata"]["name"]): obj for obj in objects}
        self.steps: list[tuple[ObjectKey, str | None]] = []
        self.answers: list[Step | Exception] = []
        self.clock, self.registry = FakeClock(), CollectorRegistry()
        self.loop = Reconciler(
            "test",
            self,
            self.reconcile,
            self.clock,
            self.registry,
            ReconcilerOptions(workers=2, stuck_after_s=60.0),
        )

    def get(self, name: str, namespace: str = "") -> JsonObject | None:
        return self.objects_by_key.get((namespace, name))

    def objects(self) -> list[JsonObject]:
        return list(self.objects_by_key.values())

    def show(self, obj: JsonObject) -> None:
        key = ("ns", obj["metadata"]["name"])
        before, self.objects_by_key[key] = self.objects_by_key.get(key), obj
        self.loop.observe(Change(before, obj))

    async def reconcile(self, key: ObjectKey, obj: JsonObject | None) -> Step:
        self.steps.append((key, None if obj is None else obj["metadata"]["resourceVersion"]))
        answer = self.answers.pop(0) if self.answers else Step()
        if isinstance(answer, Exception):
            raise answer
        return answer

    @property
    def versions(self) -> list[str | None]:
        return [version for _, version in self.steps]


@asynccontextmanager
async def running(cluster: Cluster) -> AsyncIterator[None]:
    task = asyncio.create_task(cluster.loop.run())
    await settle()
    yield
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_every_object_gets_a_step_at_the_start_and_one_for_each_change() -> None:
    cluster = Cluster(an_object(1), an_object(1, "uid-b", "b"))

    async with running(cluster):
        cluster.show(an_object(2))
        await settle()

    assert cluster.steps == [(KEY, "1"), (("ns", "b"), "1"), (KEY, "2")]


async def test_whoever_takes_over_acts_on_what_is_new_before_it_has_gone_through_the_rest() -> None:
    cluster = Cluster(*(an_object(number, f"uid-{number}", f"old-{number}") for number in range(1, 101)))
    for obj in cluster.objects():
        cluster.show(obj)  # while it stood by
    cluster.show(an_object(500, "uid-late", "late"))

    async with running(cluster):
        cluster.show(an_object(501, "uid-later", "later"))
        cluster.show(an_object(502, name="old-7"))
        await settle(200)

    names = [name for (_, name), _ in cluster.steps]
    assert names[0] == "late"
    assert names.index("later") < 50
    assert (names.count("old-7"), len(set(names))) == (1, 102)


async def test_a_hundred_steps_with_nothing_to_do_leave_others_their_turn() -> None:
    cluster = Cluster(*(an_object(1, f"uid-{number}", f"old-{number}") for number in range(100)))
    task = asyncio.create_task(cluster.loop.run())

    await settle(3)
    done = len(cluster.steps)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)

    assert 0 < done < 20


async def test_no_step_is_taken_on_what_was_before_the_own_last_write() -> None:
    cluster = Cluster(an_object(1))
    cluster.answers = [Step(wrote=an_object(5))]

    async with running(cluster):
        cluster.show(an_object(3))
        await settle()
        before = cluster.versions[:]
        cluster.show(an_object(5))
        await settle()

    assert (before, cluster.versions) == (["1"], ["1", "5"])


async def test_another_object_of_the_same_name_is_not_waited_for() -> None:
    cluster = Cluster(an_object(1))
    cluster.answers = [Step(wrote=an_object(9))]

    async with running(cluster):
        cluster.show(an_object(4, uid="uid-new"))
        await settle()

    assert cluster.versions == ["1", "4"]


@pytest.mark.parametrize("error", [UnavailableError("away"), ConflictError("changed"), TimeoutError()])
async def test_a_failure_is_tried_again_later_without_any_event(error: Exception) -> None:
    cluster = Cluster(an_object(1))
    cluster.answers = [error]

    async with running(cluster):
        at_once = len(cluster.steps)
        await cluster.clock.advance(1.0)

    assert (at_once, len(cluster.steps)) == (1, 2)


@pytest.mark.parametrize(("told_s", "waits_s"), [(20.0, 20.0), (3600.0, 60.0)])
@pytest.mark.parametrize("code", [429, 503])
async def test_nothing_is_tried_before_the_time_that_the_server_names_whatever_changes(
    code: int, told_s: float, waits_s: float
) -> None:
    cluster = Cluster(an_object(1))
    cluster.answers = [error_from_status(Call("patch", "pods", "ns/a"), code, {}, told_s)]

    async with running(cluster):
        await cluster.clock.advance(waits_s / 2)
        cluster.show(an_object(2))
        await cluster.clock.advance(waits_s / 2 - 1.0)
        early = len(cluster.steps)
        await cluster.clock.advance(2.0)
        cluster.show(an_object(3))
        await settle()

    assert (early, cluster.versions) == (1, ["1", "2", "3"])


async def test_what_only_a_change_can_mend_waits_for_it() -> None:
    cluster = Cluster(an_object(1))
    cluster.answers = [InvalidRequestError("no such strategy")]

    async with running(cluster):
        await cluster.clock.advance(3600.0)
        before = len(cluster.steps)
        cluster.show(an_object(2))
        await settle()

    assert (before, cluster.versions) == (1, ["1", "2"])


async def test_a_step_says_when_to_come_back() -> None:
    cluster = Cluster(an_object(1))
    cluster.answers = [Step(again_after_s=30.0)]

    async with running(cluster):
        await cluster.clock.advance(29.0)
        early = len(cluster.steps)
        await cluster.clock.advance(2.0)

    assert (early, len(cluster.steps)) == (1, 2)


async def test_a_dependent_gives_its_controller_a_step() -> None:
    cluster = Cluster(an_object(1))
    owner = {"kind": "GPUWorkload", "name": "a", "controller": True}
    pod = {"metadata": {"namespace": "ns", "name": "pod", "ownerReferences": [owner]}}

    async with running(cluster):
        cluster.loop.observe_dependent(Change(pod, None), "GPUWorkload")
        cluster.loop.observe_dependent(Change(pod, None), "Job")
        await settle()

    assert len(cluster.steps) == 2


async def test_an_error_that_is_none_of_ours_ends_the_loop() -> None:
    cluster = Cluster(an_object(1))
    cluster.answers = [KeyError("a mistake")]

    with pytest.raises(ExceptionGroup):
        await cluster.loop.run()


async def test_a_step_that_hangs_is_ended_and_a_loop_that_hangs_is_told() -> None:
    async def hang(key: ObjectKey, obj: JsonObject | None) -> Step:
        await asyncio.Event().wait()
        return Step()

    cluster = Cluster(an_object(1))
    cluster.loop = Reconciler(
        "hanging",
        cluster,
        hang,
        cluster.clock,
        cluster.registry,
        ReconcilerOptions(step_timeout_s=1000.0, stuck_after_s=60.0),
    )

    async with running(cluster):
        fine = cluster.loop.stuck_reason()
        await cluster.clock.advance(61.0)
        stuck = cluster.loop.stuck_reason()
        await cluster.clock.advance(1000.0)
        ended = cluster.registry.get_sample_value("gpuloom_hanging_steps_total", {"result": "failed"})

    assert (fine, ended) == (None, 1.0)
    assert stuck is not None
    assert "1 objects are due" in stuck


async def test_a_loop_with_nothing_due_is_not_stuck() -> None:
    cluster = Cluster(an_object(1))
    cluster.answers = [Step(again_after_s=7200.0)]

    async with running(cluster):
        await cluster.clock.advance(3600.0)

        assert cluster.loop.stuck_reason() is None


async def test_the_depth_of_the_queue_is_that_of_the_replica_that_works() -> None:
    cluster = Cluster()
    depths = []

    async def look(key: ObjectKey, obj: JsonObject | None) -> Step:
        depths.append(cluster.registry.get_sample_value("gpuloom_looking_queue_depth"))
        return Step()

    cluster.loop = Reconciler("looking", cluster, look, cluster.clock, cluster.registry)
    cluster.show(an_object(1))
    standing_by = cluster.registry.get_sample_value("gpuloom_looking_queue_depth")

    async with running(cluster):
        pass

    assert (standing_by, depths) == (0.0, [1.0])
