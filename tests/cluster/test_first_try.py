"""How many nodes a real kube-scheduler gets of us: one at a pod's first try, several when it comes back."""

from pathlib import Path

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from gpuloom.kube.client import KubeClient
from gpuloom.kube.objects import JsonObject
from gpuloom.kube.resources import NODES, PODS
from gpuloom.model.node import NodeMode
from gpuloom.names import LABEL_MODE, RESOURCE_GPU_MILLI
from gpuloom.runtime.clock import SystemClock
from gpuloom.sim.machines.cluster import plan_machines
from gpuloom.sim.processes.ports import HOST
from tests.cluster.binaries import Binaries
from tests.cluster.control_plane import open_control_plane
from tests.cluster.gpu_pods import NAMESPACE, a_gpu_pod, create_namespace
from tests.cluster.mesh import Mesh, open_mesh
from tests.cluster.test_end_to_end import has_been_bound, is_refused, until

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]

CLOCK = SystemClock()
CALLS = "gpuloom_scheduler_extender_calls_total"


async def test_a_pod_that_comes_back_has_several_nodes_to_be_scored(
    binaries: Binaries, tmp_path: Path
) -> None:
    machines = [spec for spec in plan_machines(8, seed=4) if spec.mode is NodeMode.GPULOOM][:2]
    async with (
        open_control_plane(binaries, tmp_path / "plane", CLOCK) as plane,
        open_mesh(plane, machines, CLOCK) as mesh,
        plane.client() as client,
    ):
        await create_namespace(client)
        await until(lambda: all_offer_gpus(client), within_s=120)

        await client.create(PODS, a_gpu_pod("first", {RESOURCE_GPU_MILLI: "500"}))
        await until(lambda: has_been_bound(client, "first"), within_s=120)
        asked_at_first = await calls(mesh, "prioritize")
        await client.create(PODS, beside(a_gpu_pod("later", {RESOURCE_GPU_MILLI: "500"}), "anchor"))
        await until(lambda: is_refused(client, "later"), within_s=120)
        await client.create(PODS, an_anchor("anchor", machines[0].node))
        await until(lambda: has_been_bound(client, "later"), within_s=120)

        assert len(machines) == 2
        assert asked_at_first == 0
        assert await calls(mesh, "prioritize") == 1
        assert await calls(mesh, "bind") == 2


async def all_offer_gpus(client: KubeClient) -> bool:
    nodes = (await client.list(NODES)).items
    return all(RESOURCE_GPU_MILLI in node["status"]["allocatable"] for node in nodes)


async def calls(mesh: Mesh, verb: str) -> float:
    url = f"http://{HOST}:{mesh.layout.ports.extender_http}/metrics"
    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        text = await answer.text()
    return sum(
        sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == CALLS and sample.labels["verb"] == verb
    )


def beside(pod: JsonObject, name: str) -> JsonObject:
    """Only where a pod of this name runs on a node of the same mode: both nodes become possible at once."""
    term = {"topologyKey": LABEL_MODE, "labelSelector": {"matchLabels": {"app": name}}}
    affinity = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    return {**pod, "spec": {**pod["spec"], "affinity": affinity}}


def an_anchor(name: str, node: str) -> JsonObject:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": NAMESPACE, "labels": {"app": name}},
        "spec": {"nodeName": node, "containers": [{"name": "main", "image": "registry.invalid/main:1"}]},
    }
