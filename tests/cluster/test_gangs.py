"""Gangs and preemption beside a real kube-scheduler: whole or absent, and exactly one leaves for another."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from gpuloom.catalog.manifests import definitions
from gpuloom.kube.client import KubeClient
from gpuloom.kube.objects import JsonObject, metadata_of
from gpuloom.kube.resources import GPU_HOLDS, PODS, Resource
from gpuloom.model.node import NodeMode
from gpuloom.names import (
    ANNOTATION_GANG_SIZE,
    ANNOTATION_GANG_TIMEOUT,
    LABEL_GANG,
    RESOURCE_GPU_MILLI,
)
from gpuloom.runtime.clock import SystemClock
from tests.cluster.api_proxy import UNTOUCHED, Fate, Treatment
from tests.cluster.binaries import Binaries
from tests.cluster.control_plane import ControlPlane, open_control_plane
from tests.cluster.gpu_pods import a_gpu_pod, all_pods, create_all, create_namespace, is_bound
from tests.cluster.mesh import Mesh, open_mesh
from tests.cluster.replicas import ReplicaOptions, open_replicated_mesh
from tests.cluster.test_contention import eight_cards
from tests.cluster.test_end_to_end import until

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]

CLOCK = SystemClock()
DEFINITIONS = Resource(
    "apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", namespaced=False
)
PRIORITY_CLASSES = Resource("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", namespaced=False)
PATIENCE_S = 120.0
TIMEOUT_S = 20


async def test_of_two_gangs_of_eight_where_one_fits_one_runs_whole_and_the_other_holds_nothing(
    binaries: Binaries, tmp_path: Path
) -> None:
    async with (
        open_control_plane(binaries, tmp_path / "plane", CLOCK) as plane,
        plane.client() as client,
    ):
        await prepare(plane, client)
        async with open_mesh(plane, [eight_cards(NodeMode.GPULOOM)], CLOCK) as mesh:
            await until(lambda: is_open(mesh), within_s=PATIENCE_S)
            await create_all(client, [*a_gang("a", 8), *a_gang("b", 8)])

            await until(lambda: some_gang_is_whole(client), within_s=PATIENCE_S)
            await until(lambda: nothing_is_held(client), within_s=PATIENCE_S)

            names = [metadata_of(pod)["name"] for pod in await all_pods(client) if is_bound(pod)]
            assert len(names) == 8
            assert len({name[0] for name in names}) == 1
            assert mesh.audit().findings == ()


@pytest.mark.parametrize("killed", [False, True], ids=["one leader", "the leader is killed"])
async def test_where_one_pod_can_never_be_bound_all_of_its_gang_leave_and_nothing_stays_reserved(
    binaries: Binaries, tmp_path: Path, killed: bool
) -> None:
    """Whatever was bound when the fifth began to fail."""
    fates = failing("a-4")
    async with (
        open_control_plane(binaries, tmp_path / "plane", CLOCK) as plane,
        plane.client() as client,
    ):
        await prepare(plane, client)
        machines = [eight_cards(NodeMode.GPULOOM)]
        options = ReplicaOptions(treat=fates)
        async with open_replicated_mesh(plane, machines, CLOCK, options) as replicated:
            leader = await replicated.leader()
            await create_all(client, a_gang("a", 8))
            await until(lambda: at_least_are_bound(client, 4), within_s=PATIENCE_S)
            if killed:
                replicated.mesh.supervisor.kill(leader)
                await replicated.leader(other_than=leader)

            await until(lambda: none_is_bound(client), within_s=PATIENCE_S)
            await until(lambda: nothing_is_held(client), within_s=PATIENCE_S)

            left = {metadata_of(pod)["name"] for pod in await all_pods(client)}
            assert "a-4" in left
            assert replicated.mesh.audit().findings == ()


async def test_where_no_single_card_fits_exactly_one_pod_leaves_and_the_urgent_one_runs(
    binaries: Binaries, tmp_path: Path
) -> None:
    """By kube-scheduler's count of milli there is room for it all the time: it never asks who could leave."""
    low = [a_gpu_pod(f"low-{number}", {RESOURCE_GPU_MILLI: "700"}) for number in range(8)]
    async with (
        open_control_plane(binaries, tmp_path / "plane", CLOCK) as plane,
        plane.client() as client,
    ):
        await prepare(plane, client)
        async with open_mesh(plane, [eight_cards(NodeMode.GPULOOM)], CLOCK) as mesh:
            await until(lambda: is_open(mesh), within_s=PATIENCE_S)
            await create_all(client, low)
            await until(lambda: at_least_are_bound(client, 8), within_s=PATIENCE_S)
            urgent = a_gpu_pod("urgent", {RESOURCE_GPU_MILLI: "1000"})
            urgent["spec"]["priorityClassName"] = "urgent"
            began_s = CLOCK.monotonic()
            await client.create(PODS, urgent)

            # The youngest of the low ones has run for its least time by then.
            await until(lambda: is_bound_now(client, "urgent"), within_s=120.0)

            took_s = CLOCK.monotonic() - began_s
            pods = await all_pods(client)
            staying = [pod for pod in pods if not metadata_of(pod).get("deletionTimestamp")]
            assert sum(metadata_of(pod)["name"].startswith("low") for pod in staying) == 7
            assert mesh.audit().findings == ()
            assert took_s < 60.0


def a_gang(name: str, size: int) -> list[JsonObject]:
    notes = {ANNOTATION_GANG_SIZE: str(size), ANNOTATION_GANG_TIMEOUT: str(TIMEOUT_S)}
    pods = [a_gpu_pod(f"{name}-{i}", {RESOURCE_GPU_MILLI: "1000"}, notes) for i in range(size)]
    for pod in pods:
        pod["metadata"]["labels"] = {LABEL_GANG: name}
    return pods


def failing(pod: str) -> Callable[[str], Treatment]:
    """Every Binding of this pod goes wrong, for good."""

    def treat(name: str) -> Treatment:
        return Treatment(Fate.FAIL) if name == pod else UNTOUCHED

    return treat


async def prepare(plane: ControlPlane, client: KubeClient) -> None:
    await create_namespace(client)
    await client.create(PRIORITY_CLASSES, {"metadata": {"name": "urgent"}, "value": 1000})
    for definition in definitions():
        await client.create(DEFINITIONS, definition)
    await until(lambda: holds_are_known(client), within_s=PATIENCE_S)


async def holds_are_known(client: KubeClient) -> bool:
    for definition in (await client.list(DEFINITIONS)).items:
        conditions = (definition.get("status") or {}).get("conditions") or ()
        if not any(each["type"] == "Established" and each["status"] == "True" for each in conditions):
            return False
    return True


async def is_open(mesh: Mesh) -> bool:
    return await mesh.closed_nodes() == 0


async def bound_names(client: KubeClient) -> list[str]:
    pods: Sequence[JsonObject] = await all_pods(client)
    return [
        metadata_of(pod)["name"]
        for pod in pods
        if is_bound(pod) and not metadata_of(pod).get("deletionTimestamp")
    ]


async def some_gang_is_whole(client: KubeClient) -> bool:
    return len(await bound_names(client)) == 8


async def at_least_are_bound(client: KubeClient, count: int) -> bool:
    return len(await bound_names(client)) >= count


async def none_is_bound(client: KubeClient) -> bool:
    return not await bound_names(client)


async def is_bound_now(client: KubeClient, name: str) -> bool:
    return name in await bound_names(client)


async def nothing_is_held(client: KubeClient) -> bool:
    return not (await client.list(GPU_HOLDS)).items
