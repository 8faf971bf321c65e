"""GPU pods on a real control plane: real kube-scheduler, our services, simulated kubelets and GPUs.

GPULOOM_CLUSTER_NODES and GPULOOM_CLUSTER_PODS make the run larger.
"""

import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from gpuloom.kube.client import KubeClient
from gpuloom.kube.objects import JsonObject, key_of, metadata_of, resource_version_of, uid_of
from gpuloom.kube.resources import NODES, PODS
from gpuloom.model.node import NodeMode
from gpuloom.names import ANNOTATION_CAPACITY_EPOCH, RESOURCE_GPU_MILLI
from gpuloom.runtime.clock import SystemClock, deadline
from gpuloom.sim.machines.cluster import plan_machines
from tests.cluster.binaries import Binaries
from tests.cluster.control_plane import open_control_plane
from tests.cluster.gpu_pods import (
    NAMESPACE,
    a_gpu_pod,
    a_mix,
    all_pods,
    create_all,
    create_namespace,
    has_started,
    is_bound,
    unbelievable,
)
from tests.cluster.mesh import MeshOptions, open_mesh

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]

CLOCK = SystemClock()
NODE_COUNT = int(os.environ.get("GPULOOM_CLUSTER_NODES", "20"))
POD_COUNT = int(os.environ.get("GPULOOM_CLUSTER_PODS", "60"))
WAKE_LIMIT_S = 15.0


async def until(holds: Callable[[], Awaitable[bool]], within_s: float, every_s: float = 0.05) -> float:
    """How long it took until it held. Raise TimeoutError."""
    started_s = CLOCK.monotonic()
    async with deadline(CLOCK, within_s):
        while not await holds():
            await CLOCK.sleep(every_s)
    return CLOCK.monotonic() - started_s


async def node_uids(client: KubeClient) -> dict[str, str]:
    return {key_of(node)[1]: uid_of(node) for node in (await client.list(NODES)).items}


async def test_every_pod_gets_its_own_gpus_also_when_the_extender_is_killed(
    binaries: Binaries, tmp_path: Path
) -> None:
    machines = plan_machines(NODE_COUNT, seed=4)
    async with (
        open_control_plane(binaries, tmp_path / "plane", CLOCK) as plane,
        open_mesh(plane, machines, CLOCK) as mesh,
        plane.client() as client,
    ):
        await create_namespace(client)

        async def a_quarter_is_bound() -> bool:
            return sum(map(is_bound, await all_pods(client))) >= POD_COUNT // 4

        async def all_have_started() -> bool:
            pods = await all_pods(client)
            return len(pods) == POD_COUNT and all(map(has_started, pods))

        mix = a_mix(POD_COUNT)
        await create_all(client, mix[: POD_COUNT // 2])
        await until(a_quarter_is_bound, within_s=120)
        mesh.supervisor.kill("extender")
        # However fast it is, these are left for its successor.
        await create_all(client, mix[POD_COUNT // 2 :])
        await until(all_have_started, within_s=60 + POD_COUNT)

        pods, report = await all_pods(client), mesh.audit()
        assert mesh.supervisor.restarts("extender") == 1
        assert unbelievable(pods, await node_uids(client)) == {}
        assert report.findings == ()
        assert report.refusals == ()
        assert report.starts == POD_COUNT
        assert mesh.denied_calls() == []
        modes = {machine.node: machine.mode for machine in machines}
        assert {modes[pod["spec"]["nodeName"]] for pod in pods} == {NodeMode.NVIDIA, NodeMode.GPULOOM}


async def test_a_pod_that_only_the_extender_refused_is_bound_soon_after_the_cause_has_gone(
    binaries: Binaries, tmp_path: Path
) -> None:
    """A silent agent is such a cause: nothing is written to its node, so no other event wakes the pod."""
    machine = next(spec for spec in plan_machines(4, seed=4) if spec.mode is NodeMode.GPULOOM)
    options = MeshOptions(discovery={"GPULOOM_DISCOVERY_AGENT_TTL": "10s"})
    async with (
        open_control_plane(binaries, tmp_path / "plane", CLOCK) as plane,
        open_mesh(plane, [machine], CLOCK, options) as mesh,
        plane.client() as client,
    ):
        await create_namespace(client)
        await client.create(PODS, a_gpu_pod("first", {RESOURCE_GPU_MILLI: "1000"}))
        await until(lambda: has_been_bound(client, "first"), within_s=120)
        mesh.supervisor.kill("agents", signal.SIGSTOP)
        await CLOCK.sleep(15.0)
        await client.create(PODS, a_gpu_pod("second", {RESOURCE_GPU_MILLI: "1000"}))
        await until(lambda: is_refused(client, "second"), within_s=120)
        # Its back-off of a second passes: from here on only an event of the cluster wakes it.
        await CLOCK.sleep(3.0)
        before = await client.get(NODES, machine.node)
        assert not await has_been_bound(client, "second")

        mesh.supervisor.kill("agents", signal.SIGCONT)

        took_s = await until(lambda: has_been_bound(client, "second"), within_s=120)
        after = await client.get(NODES, machine.node)
        assert took_s < WAKE_LIMIT_S
        assert ANNOTATION_CAPACITY_EPOCH in metadata_of(after)["annotations"]
        assert resource_version_of(after) != resource_version_of(before)
        assert without_wake_up(after) == without_wake_up(before)
        assert unbelievable(await all_pods(client), await node_uids(client)) == {}
        assert mesh.denied_calls() == []


async def has_been_bound(client: KubeClient, name: str) -> bool:
    return is_bound(await client.get(PODS, name, NAMESPACE))


async def is_refused(client: KubeClient, name: str) -> bool:
    pod = await client.get(PODS, name, NAMESPACE)
    conditions = pod["status"].get("conditions") or ()
    return any(one["type"] == "PodScheduled" and one["status"] == "False" for one in conditions)


def without_wake_up(node: JsonObject) -> JsonObject:
    """The node without what a wake-up changes."""
    metadata = {
        key: value
        for key, value in metadata_of(node).items()
        if key not in ("annotations", "resourceVersion", "managedFields")
    }
    return {"metadata": metadata, "spec": node["spec"], "status": node["status"]}
