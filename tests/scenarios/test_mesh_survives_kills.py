"""The real mesh in real processes: its parts are killed one after the other while a workload plays.

Everything runs in one test, because a mesh takes seconds to start and the kills build on each other.
"""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from gpuloom.codec.allocation import believable, decode_allocation
from gpuloom.kube.access import KubeAccess
from gpuloom.kube.client import KubeClient
from gpuloom.kube.objects import JsonObject, key_of, uid_of
from gpuloom.kube.resources import NAMESPACES, NODES, PODS
from gpuloom.model.node import NodeMode
from gpuloom.names import ANNOTATION_ALLOCATION, RESOURCE_GPU_MILLI, RESOURCE_NVIDIA_GPU
from gpuloom.runtime.clock import SystemClock, deadline
from gpuloom.sim.embedded import EmbeddedMesh, open_mesh
from gpuloom.sim.mesh.plan import MeshOptions
from gpuloom.sim.processes.supervisor import ProcessState

NAMESPACE = "team-a"
LONGEST_WAIT_S = 150.0
CLOCK = SystemClock()


def a_pod(name: str, resource: str, amount: int, node: str = "") -> JsonObject:
    quantities = {resource: str(amount)}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": NAMESPACE,
            "annotations": {"sim.gpuloom.dev/duration": "3s"},
        },
        "spec": {
            "restartPolicy": "Never",
            "nodeSelector": {"kubernetes.io/hostname": node} if node else {},
            "containers": [
                {
                    "name": "main",
                    "image": "registry.example.com/probe:1",
                    "resources": {"requests": quantities, "limits": quantities},
                }
            ],
        },
    }


async def eventually(condition: Callable[[], Awaitable[Any]], what: str) -> None:
    try:
        async with deadline(CLOCK, LONGEST_WAIT_S):
            while not await condition():
                await CLOCK.sleep(0.1)
    except TimeoutError:
        pytest.fail(f"{what}: not within {LONGEST_WAIT_S:g} s")


class Cluster:
    """The mesh as its user sees it: through the Kubernetes API."""

    def __init__(self, mesh: EmbeddedMesh, client: KubeClient) -> None:
        self.mesh = mesh
        self.client = client

    def node_of(self, mode: NodeMode) -> str:
        return next(name for name, its in self.mesh.plan.modes.items() if its is mode)

    async def pods(self) -> list[JsonObject]:
        return list((await self.client.list(PODS)).items)

    async def kill(self, process: str) -> None:
        """Return when it has died, was started again, and is ready."""
        supervisor = self.mesh.supervisor
        restarts, pid = supervisor.restarts(process), supervisor.pid(process)
        supervisor.kill(process)
        async with deadline(CLOCK, LONGEST_WAIT_S):
            await supervisor.until(
                lambda s: (
                    s.restarts(process) > restarts
                    and s.pid(process) != pid
                    and any(p.name == process and p.state is ProcessState.RUNNING for p in s.statuses())
                )
            )

    async def run_pods(self, *pods: JsonObject) -> None:
        """Create them, and return when each was placed and has run."""
        await eventually(self.has_namespace, "the workload has made its namespaces")
        for pod in pods:
            await self.client.create(PODS, pod)
        await self.wait_run(*(key_of(pod)[1] for pod in pods))

    async def has_namespace(self) -> bool:
        return any(key_of(found)[1] == NAMESPACE for found in (await self.client.list(NAMESPACES)).items)

    async def wait_run(self, *names: str) -> None:
        for name in names:
            await self._wait_run(NAMESPACE, name)

    async def _wait_run(self, namespace: str, name: str) -> None:
        async def has_run() -> bool:
            pod = await self.client.get(PODS, name, namespace)
            return pod["status"].get("phase") in ("Running", "Succeeded")

        await eventually(has_run, f"pod {name} runs")

    async def check_allocations(self) -> None:
        """Every pod that is bound carries a record of its devices, made for it and for its node."""
        node_uids = {key_of(node)[1]: uid_of(node) for node in (await self.client.list(NODES)).items}
        for pod in await self.pods():
            node = pod["spec"].get("nodeName")
            if node:
                allocation = decode_allocation(pod["metadata"]["annotations"][ANNOTATION_ALLOCATION])
                assert believable(allocation, uid_of(pod), node_uids[node]) is None


async def both_kinds(cluster: Cluster, after: str, *, pinned_to: str = "") -> None:
    """A whole card and a share, the one from a node of mode nvidia, the other from one of mode gpuloom."""
    await cluster.run_pods(
        a_pod(f"card-{after}", RESOURCE_NVIDIA_GPU, 1),
        a_pod(f"share-{after}", RESOURCE_GPU_MILLI, 200, pinned_to),
    )


@pytest.mark.real
@pytest.mark.timeout(400)
async def test_every_part_can_be_killed_and_no_gpu_is_booked_twice(run_directory: Path) -> None:
    options = MeshOptions(nodes=4, seed=1, pods_per_minute=30, max_publish_delay_s=3.0)
    async with open_mesh(options, run_directory, CLOCK) as mesh:
        await mesh.start()
        async with KubeClient(KubeAccess(mesh.plan.api_url), CLOCK) as client:
            cluster = Cluster(mesh, client)
            gpuloom_node = cluster.node_of(NodeMode.GPULOOM)
            await both_kinds(cluster, "start")

            await cluster.kill("discovery")
            await both_kinds(cluster, "discovery")

            await cluster.kill("extender")
            await both_kinds(cluster, "extender")

            await cluster.kill(f"agent-{gpuloom_node}")
            await both_kinds(cluster, "agent", pinned_to=gpuloom_node)

            await cluster.kill("kubelets")
            await both_kinds(cluster, "kubelets")

            await cluster.check_allocations()
            pods = await cluster.pods()

    report = mesh.audit()
    modes = {mesh.plan.modes[pod["spec"]["nodeName"]] for pod in pods if pod["spec"].get("nodeName")}
    assert modes == {NodeMode.NVIDIA, NodeMode.GPULOOM}
    assert report.starts >= 10
    assert report.findings == ()
    # A leader that this machine keeps from renewing its lease in time ends, too.
    assert sum(status.restarts for status in mesh.supervisor.statuses()) >= 4
