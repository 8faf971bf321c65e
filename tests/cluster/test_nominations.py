"""A nominated pod beside a real kube-scheduler: its card is kept for it while others fill the node.

kube-scheduler itself counts milli, not cards: by its count the whole crowd would go beside the nominated pod.
"""

from pathlib import Path

import pytest

from gpuloom.kube.client import KubeClient
from gpuloom.kube.objects import JsonObject
from gpuloom.kube.resources import PODS, Resource
from gpuloom.model.node import NodeMode
from gpuloom.names import RESOURCE_GPU_MILLI
from gpuloom.runtime.clock import SystemClock
from tests.cluster.binaries import Binaries
from tests.cluster.control_plane import open_control_plane
from tests.cluster.gpu_pods import (
    NAMESPACE,
    a_gpu_pod,
    all_pods,
    create_all,
    create_namespace,
    has_started,
    is_bound,
)
from tests.cluster.mesh import Mesh, open_mesh
from tests.cluster.test_contention import eight_cards
from tests.cluster.test_end_to_end import until

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]

CLOCK = SystemClock()
PRIORITY_CLASSES = Resource("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", namespaced=False)
GATE = "example.test/wait"
CROWD = 10
PATIENCE_S = 120.0


async def test_a_nominated_pod_keeps_its_card_against_a_crowd_and_gets_it(
    binaries: Binaries, tmp_path: Path
) -> None:
    machine = eight_cards(NodeMode.GPULOOM)
    # One to a card, and together with the whole card still less than the node's eight.
    crowd = [a_gpu_pod(f"low-{number}", {RESOURCE_GPU_MILLI: "700"}) for number in range(CROWD)]
    async with (
        open_control_plane(binaries, tmp_path / "plane", CLOCK) as plane,
        open_mesh(plane, [machine], CLOCK) as mesh,
        plane.client() as client,
    ):
        await create_namespace(client)
        await client.create(PRIORITY_CLASSES, {"metadata": {"name": "urgent"}, "value": 1000})
        await client.create(PODS, an_urgent_pod())
        promise = {"status": {"nominatedNodeName": machine.node}}
        await client.patch_status(PODS, "urgent", NAMESPACE, promise)

        # A node that is still closed would refuse the whole crowd.
        await until(lambda: is_open(mesh), within_s=PATIENCE_S)
        await create_all(client, crowd)
        await until(lambda: all_are_decided(client), within_s=PATIENCE_S)
        beside = [name for name, pod in (await pods_by_name(client)).items() if is_bound(pod)]
        # The next kube-scheduler knows the promise from the pod alone. Beside a running one the pod might be
        # bound before the extender has seen it change; that fails, and kube-scheduler then takes it back.
        plane.supervisor.kill("kube-scheduler")
        await client.patch(PODS, "urgent", NAMESPACE, {"spec": {"schedulingGates": None}})
        await until(lambda: urgent_runs(client), within_s=PATIENCE_S)

        report = mesh.audit()
        assert len(beside) == 7
        assert report.findings == ()
        assert report.refusals == ()
        assert report.starts == 8


def an_urgent_pod() -> JsonObject:
    """It asks for a whole card, and does not go before its gate is taken away."""
    pod = a_gpu_pod("urgent", {RESOURCE_GPU_MILLI: "1000"})
    pod["spec"] |= {"priorityClassName": "urgent", "schedulingGates": [{"name": GATE}]}
    return pod


async def pods_by_name(client: KubeClient) -> dict[str, JsonObject]:
    return {pod["metadata"]["name"]: pod for pod in await all_pods(client)}


async def is_open(mesh: Mesh) -> bool:
    return await mesh.closed_nodes() == 0


async def all_are_decided(client: KubeClient) -> bool:
    """Whether every pod of the crowd runs, or was refused by the node."""
    crowd = [pod for name, pod in (await pods_by_name(client)).items() if name != "urgent"]
    return len(crowd) == CROWD and all(has_started(pod) or is_refused(pod) for pod in crowd)


def is_refused(pod: JsonObject) -> bool:
    conditions = pod["status"].get("conditions") or ()
    return not is_bound(pod) and any(condition.get("reason") == "Unschedulable" for condition in conditions)


async def urgent_runs(client: KubeClient) -> bool:
    return has_started((await pods_by_name(client))["urgent"])
