import re

import pytest

from gpuloom.errors import GpuloomError, NotAllowedError, NotFoundError, UnavailableError
from gpuloom.kube.errors import AlreadyExistsError
from gpuloom.kube.events import EventRecorder, EventSettings
from gpuloom.kube.objects import JsonObject, key_of
from gpuloom.kube.resources import Resource
from gpuloom.runtime.clock import FakeClock


class MemoryEvents:
    def __init__(self) -> None:
        self.events: dict[tuple[str, str], JsonObject] = {}
        self.writes = 0
        self.failures: list[GpuloomError] = []

    async def create(self, resource: Resource, obj: JsonObject) -> JsonObject:
        self._write()
        if key_of(obj) in self.events:
            raise AlreadyExistsError("exists")
        self.events[key_of(obj)] = obj
        return obj

    async def patch(
        self, resource: Resource, name: str, namespace: str | None, patch: JsonObject
    ) -> JsonObject:
        self._write()
        event = self.events.get((namespace or "", name))
        if event is None:
            raise NotFoundError("expired")
        event.update(patch)
        return event

    def _write(self) -> None:
        self.writes += 1
        if self.failures:
            raise self.failures.pop(0)


def a_pod(name: str = "p", namespace: str = "ns") -> JsonObject:
    metadata = {"name": name, "namespace": namespace, "uid": f"uid-{name}", "resourceVersion": "1"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata}


def a_recorder(api: MemoryEvents, clock: FakeClock, capacity: int = 100) -> EventRecorder:
    return EventRecorder(api, "extender", "extender-0", clock, EventSettings(capacity=capacity))


@pytest.mark.parametrize("name", ["p" * 253, "p" * 229 + "-p", "p" * 228 + "-.p", "a." * 126 + "a"])
async def test_the_name_of_an_event_about_a_long_name_is_one_that_the_api_server_takes(name: str) -> None:
    api = MemoryEvents()
    recorder = a_recorder(api, FakeClock())

    recorder.normal(a_pod(name), "Placed", "on n1")
    await recorder.write_due()

    ((_, made),) = api.events
    label = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
    assert re.fullmatch(rf"{label}(\.{label})*", made)
    assert len(made) <= 253


async def test_the_same_again_counts_up_with_one_write_an_interval() -> None:
    api, clock = MemoryEvents(), FakeClock()
    recorder = a_recorder(api, clock)

    recorder.warning(a_pod(), "NoRoom", "no GPU free")
    await recorder.write_due()
    for _ in range(50):
        recorder.warning(a_pod(), "NoRoom", "no GPU free")
        await clock.advance(0.1)
        await recorder.write_due()
    await clock.advance(10.0)
    await recorder.write_due()

    (event,) = api.events.values()
    assert (event["count"], event["type"], event["reason"]) == (51, "Warning", "NoRoom")
    assert event["firstTimestamp"] < event["lastTimestamp"]
    assert event["involvedObject"]["uid"] == "uid-p"
    assert event["source"] == {"component": "extender", "host": "extender-0"}
    assert api.writes == 2


async def test_other_objects_reasons_and_messages_are_other_events() -> None:
    api, clock = MemoryEvents(), FakeClock()
    recorder = a_recorder(api, clock)

    recorder.normal(a_pod("a"), "Placed", "on node-1")
    recorder.normal(a_pod("b"), "Placed", "on node-1")
    recorder.normal(a_pod("a"), "Placed", "on node-2")
    recorder.normal(a_pod("a", namespace=""), "Placed", "on node-1")
    await recorder.write_due()

    assert len(api.events) == 4
    assert {namespace for namespace, _ in api.events} == {"ns", "default"}


async def test_an_event_that_the_server_forgot_is_written_anew() -> None:
    api, clock = MemoryEvents(), FakeClock()
    recorder = a_recorder(api, clock)
    recorder.normal(a_pod(), "Placed", "on node-1")
    await recorder.write_due()
    api.events.clear()

    recorder.normal(a_pod(), "Placed", "on node-1")
    await clock.advance(10.0)
    await recorder.write_due()

    (event,) = api.events.values()
    assert event["count"] == 1


async def test_a_passing_failure_is_tried_again_and_a_lasting_one_is_counted() -> None:
    api, clock = MemoryEvents(), FakeClock()
    recorder = a_recorder(api, clock)
    api.failures = [UnavailableError("down")] * 2

    recorder.normal(a_pod("a"), "Placed", "on node-1")
    for _ in range(3):
        await recorder.write_due()
    api.failures = [UnavailableError("down")] * 3
    recorder.normal(a_pod("b"), "Placed", "on node-1")
    for _ in range(5):
        await recorder.write_due()

    assert [event["involvedObject"]["name"] for event in api.events.values()] == ["a"]
    assert recorder.dropped == 1


async def test_a_refusal_is_dropped_at_once() -> None:
    api, clock = MemoryEvents(), FakeClock()
    recorder = a_recorder(api, clock)
    api.failures = [NotAllowedError("no")]

    recorder.normal(a_pod(), "Placed", "on node-1")
    await recorder.write_due()
    await recorder.write_due()

    assert (api.writes, recorder.dropped) == (1, 1)


async def test_beyond_its_bound_the_oldest_unwritten_are_dropped_and_counted() -> None:
    api, clock = MemoryEvents(), FakeClock()
    recorder = a_recorder(api, clock, capacity=3)

    for number in range(5):
        recorder.normal(a_pod(f"p{number}"), "Placed", "on node-1")
    await recorder.write_due()

    names = [event["involvedObject"]["name"] for event in api.events.values()]
    assert (names, recorder.dropped) == (["p2", "p3", "p4"], 2)


@pytest.mark.parametrize("message", ["x" * 5000, "é" * 5000, "\ud800", ""])
async def test_no_text_is_too_strange_to_be_recorded(message: str) -> None:
    api, clock = MemoryEvents(), FakeClock()
    recorder = a_recorder(api, clock)

    recorder.normal({}, "r" * 500, message)
    await recorder.write_due()

    (event,) = api.events.values()
    assert len(event["message"].encode()) <= 1024


async def test_what_is_told_once_is_not_told_again_by_another_replica_or_run() -> None:
    api, clock = MemoryEvents(), FakeClock()

    for _ in range(2):
        recorder = a_recorder(api, clock)
        for _ in range(2):
            recorder.warn_once(a_pod(), "UnknownName", "did you mean that?")
            await recorder.write_due()
            await clock.advance(60.0)

    (event,) = api.events.values()
    assert (event["count"], recorder.dropped) == (1, 0)
    assert api.writes == 2
