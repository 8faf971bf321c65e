"""The pods of a node, as an informer tells them: who a name means, who a UID or a hash is."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from gpuloom.errors import UnavailableError
from gpuloom.kube.informer import Informer
from gpuloom.kube.listing import EventType, Listing, Selection, WatchEvent
from gpuloom.kube.resources import NODES, PODS, Resource
from gpuloom.model.node import PodRef
from gpuloom.runtime.clock import FakeClock, settle
from services.node_agent.adapters.kubernetes import MAX_SILENCE_S, InformedPods
from services.node_agent.adapters.pod_index import MAX_GONE_PER_NODE, PodIndex
from services.node_agent.ports import NamedPod

NAME = ("team-a", "train")
HASH = "0123456789abcdef0123456789abcdef"
A_NODE = {"metadata": {"name": "n1", "uid": "uid-n1", "resourceVersion": "1"}}
STATIC = {"kubernetes.io/config.hash": HASH, "kubernetes.io/config.mirror": HASH}


class Api:
    """Lists what there is, then tells what it is given to tell; or never answers at all."""

    def __init__(self, *objects: dict[str, Any], answers: bool = True) -> None:
        self._objects = objects
        self._answers = answers
        self._events: asyncio.Queue[WatchEvent] = asyncio.Queue()
        self._version = 1

    async def list(self, resource: Resource, selection: Selection) -> Listing:
        if not self._answers:
            raise UnavailableError("no connection")
        return Listing(self._objects, "1")

    async def newest_version(self, resource: Resource, namespace: str | None) -> str:
        return str(self._version)

    async def watch(
        self, resource: Resource, resource_version: str, selection: Selection, **times: float
    ) -> AsyncIterator[WatchEvent]:
        while True:
            yield await self._events.get()

    async def tell(self, kind: EventType, pod: dict[str, Any]) -> None:
        self._version += 1
        metadata = pod["metadata"] | {"resourceVersion": str(self._version)}
        self._events.put_nowait(WatchEvent(kind, pod | {"metadata": metadata}))
        await settle()


@dataclass
class Directory:
    pods: InformedPods
    api: Api
    clock: FakeClock


def a_pod(name: str = "train", uid: str = "", node: str | None = "n1", **status: Any) -> dict[str, Any]:
    """`annotations` go to its metadata, all else to its status."""
    annotations = status.pop("annotations", {})
    uid = uid or f"uid-{name}"
    return {
        "metadata": {
            "namespace": "team-a",
            "name": name,
            "uid": uid,
            "resourceVersion": "1",
            "annotations": annotations,
        },
        "spec": {} if node is None else {"nodeName": node},
        "status": {"phase": "Running", "startTime": "2026-01-01T00:00:00Z"} | status,
    }


def a_new_pod(uid: str, **changes: Any) -> dict[str, Any]:
    """Bound, and not taken in by its kubelet yet."""
    return a_pod(uid=uid, **({"phase": "Pending", "startTime": None} | changes))


def a_container(name: str, state: str = "running", container_id: str = "") -> dict[str, Any]:
    return {"name": name, "state": {state: {}}, "containerID": container_id}


@asynccontextmanager
async def a_directory(
    *pods: dict[str, Any], nodes: Api | None = None, api: Api | None = None
) -> AsyncIterator[Directory]:
    clock, told = FakeClock(), api or Api(*pods)
    informers = Informer(nodes or Api(A_NODE), NODES, clock), Informer(told, PODS, clock)  # type: ignore[arg-type]
    index = PodIndex(informers[1])
    tasks = [asyncio.create_task(informer.run()) for informer in informers]
    await settle()
    try:
        yield Directory(InformedPods("n1", informers[0], index), told, clock)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_running_pod_of_this_node_is_identified() -> None:
    async with a_directory(a_pod()) as directory:
        assert directory.pods.unsynced_reason() == ""
        assert directory.pods.node_uid() == "uid-n1"
        assert directory.pods.names() == {NAME: NamedPod("uid-train")}
        assert directory.pods.pod_of("uid-train") == PodRef(*NAME, "uid-train")
        assert directory.pods.is_alive("uid-train")


@pytest.mark.parametrize("pod", [a_pod(node="n2"), a_pod(node=None), a_pod("other", node="n2")])
async def test_a_pod_that_is_elsewhere_is_not_known(pod: dict[str, Any]) -> None:
    async with a_directory(pod) as directory:
        assert directory.pods.names() == {}
        assert directory.pods.pod_of(pod["metadata"]["uid"]) is None


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
async def test_a_pod_is_over_when_it_ended_and_none_of_its_containers_runs_or_will(phase: str) -> None:
    done = a_pod(phase=phase, containerStatuses=[a_container("main", "terminated")])
    claimed = a_pod("evicted", phase=phase, containerStatuses=[a_container("main")])
    crashing = a_pod("crashing", phase=phase, containerStatuses=[a_container("main", "waiting")])
    async with a_directory(done, claimed, crashing) as directory:
        assert directory.pods.names() == {
            NAME: NamedPod("uid-train", over=True),
            ("team-a", "evicted"): NamedPod("uid-evicted", runs=True),
            ("team-a", "crashing"): NamedPod("uid-crashing"),
        }
        assert directory.pods.pod_of("uid-train") == PodRef(*NAME, "uid-train")
        assert not directory.pods.is_alive("uid-train")


async def test_a_pod_made_anew_is_identified_once_its_kubelet_took_it_in() -> None:
    async with a_directory(a_pod(uid="old")) as directory:
        pods, api = directory.pods, directory.api
        before = pods.names()
        await api.tell(EventType.DELETED, a_pod(uid="old"))
        gone = pods.names()
        await api.tell(EventType.ADDED, a_new_pod("new"))
        unsure = pods.names()
        await api.tell(EventType.MODIFIED, a_pod(uid="new", phase="Pending"))

        assert before == {NAME: NamedPod("old")}
        assert gone == {}
        assert unsure == {NAME: NamedPod("")}
        assert pods.names() == {NAME: NamedPod("new")}


async def test_a_pod_whose_forerunner_s_end_was_missed_is_not_taken_for_it() -> None:
    async with a_directory(a_pod(uid="old")) as directory:
        await directory.api.tell(EventType.MODIFIED, a_new_pod("new"))

        assert directory.pods.names() == {NAME: NamedPod("")}
        assert directory.pods.pod_of("old") == PodRef(*NAME, "old")


async def test_a_pod_of_a_new_name_is_identified_at_once() -> None:
    async with a_directory() as directory:
        await directory.api.tell(EventType.ADDED, a_new_pod("new"))

        assert directory.pods.names() == {NAME: NamedPod("new")}


async def test_of_a_pod_that_waited_before_the_agent_looked_a_forerunner_is_possible() -> None:
    async with a_directory(a_new_pod("new")) as directory:
        assert directory.pods.names() == {NAME: NamedPod("")}


async def test_a_pod_that_is_bound_while_it_is_watched_is_known_from_then_on() -> None:
    async with a_directory(a_new_pod("new", node=None)) as directory:
        before = directory.pods.names()
        await directory.api.tell(EventType.MODIFIED, a_new_pod("new"))

        assert before == {}
        assert directory.pods.names() == {NAME: NamedPod("new")}


async def test_pods_that_are_gone_are_remembered_up_to_a_bound() -> None:
    async with a_directory() as directory:
        for number in range(MAX_GONE_PER_NODE + 1):
            await directory.api.tell(EventType.ADDED, a_pod(uid=f"u{number}"))
            await directory.api.tell(EventType.DELETED, a_pod(uid=f"u{number}"))

        assert directory.pods.pod_of("u0") is None
        assert directory.pods.pod_of("u1") == PodRef(*NAME, "u1")


async def test_a_static_pod_is_its_mirror_by_hash_and_by_uid() -> None:
    statuses = [a_container("main", container_id="containerd://abc")]
    pod = a_pod(uid="mirror", annotations=STATIC, containerStatuses=statuses)
    async with a_directory(pod) as directory:
        pods = directory.pods

        assert pods.pod_of(HASH) == pods.pod_of("mirror") == PodRef(*NAME, "mirror")
        assert pods.names() == {NAME: NamedPod("mirror", runs=True)}
        assert pods.container_of(HASH, "abc") == pods.container_of("mirror", "abc") == "main"
        assert pods.is_alive(HASH)


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(a_pod("other", annotations=STATIC), id="another pod claims the same hash"),
        pytest.param(a_pod("other", uid=HASH), id="the hash is another pod's UID"),
    ],
)
async def test_a_hash_that_two_may_have_does_not_name_the_mirror(other: dict[str, Any]) -> None:
    async with a_directory(a_pod(uid="mirror", annotations=STATIC), other) as directory:
        found = directory.pods.pod_of(HASH)

    assert found is None or found.uid == HASH


async def test_a_hash_without_the_mark_of_a_mirror_names_nobody() -> None:
    annotations = {"kubernetes.io/config.hash": HASH}
    async with a_directory(a_pod(annotations=annotations)) as directory:
        assert directory.pods.pod_of(HASH) is None


async def test_containers_of_every_kind_are_known_by_their_ids() -> None:
    pod = a_pod(
        containerStatuses=[a_container("main", container_id="containerd://a"), a_container("new")],
        initContainerStatuses=[a_container("init", container_id="cri-o://b")],
        ephemeralContainerStatuses=[a_container("debug", container_id="docker://c")],
    )
    async with a_directory(pod) as directory:
        found = [directory.pods.container_of("uid-train", each) for each in ("a", "b", "c", "d", "")]

    assert found == ["main", "init", "debug", "", ""]


@pytest.mark.parametrize("odd", [None, "text", 3, [1, None], {"state": 3, "containerID": 4}])
async def test_a_status_that_is_not_as_it_should_be_harms_nobody(odd: Any) -> None:
    strange = a_pod("odd", containerStatuses=odd, phase=None)
    bare = {**a_pod("bare"), "status": odd, "spec": {"nodeName": "n1"}}
    async with a_directory(a_pod(), strange, bare) as directory:
        assert directory.pods.names()[NAME] == NamedPod("uid-train")


async def test_nobody_is_known_before_nodes_and_pods_are_listed() -> None:
    silent = Api(answers=False)
    async with a_directory(a_pod(), nodes=silent) as directory:
        assert directory.pods.unsynced_reason() == "pods are not listed yet"
        assert directory.pods.node_uid() == ""
    async with a_directory(api=silent) as directory:
        assert directory.pods.unsynced_reason() == "pods are not listed yet"


async def test_an_api_that_fell_silent_makes_names_worthless() -> None:
    async with a_directory(a_pod()) as directory:
        await directory.clock.advance(MAX_SILENCE_S)
        in_time = directory.pods.unsynced_reason()
        await directory.clock.advance(1.0)

        assert (in_time, directory.pods.unsynced_reason()) == ("", "the Kubernetes API is silent")
