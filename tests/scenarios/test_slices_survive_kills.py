"""The real mesh in real processes: slices are cut for pods while those who cut them are killed."""

from pathlib import Path

import pytest

from gpuloom.codec.allocation import decode_allocation
from gpuloom.kube.access import KubeAccess
from gpuloom.kube.client import KubeClient
from gpuloom.kube.objects import JsonObject
from gpuloom.kube.resources import PODS
from gpuloom.model.node import NodeMode
from gpuloom.names import ANNOTATION_ALLOCATION, ANNOTATION_MIG_PROFILE, RESOURCE_GPU_MILLI
from gpuloom.runtime.clock import SystemClock
from gpuloom.sim.embedded import open_mesh
from gpuloom.sim.mesh.plan import MeshOptions
from tests.scenarios.test_mesh_survives_kills import NAMESPACE, Cluster, a_pod, eventually

CLOCK = SystemClock()
PROFILE, MILLI = "1g.10gb", 125


def a_slice(name: str) -> JsonObject:
    pod = a_pod(name, RESOURCE_GPU_MILLI, MILLI)
    pod["metadata"]["annotations"][ANNOTATION_MIG_PROFILE] = PROFILE
    return pod


@pytest.mark.real
@pytest.mark.timeout(400)
async def test_slices_are_made_whoever_is_killed_and_nothing_overlaps(run_directory: Path) -> None:
    options = MeshOptions(nodes=4, seed=1, pods_per_minute=20, max_publish_delay_s=1.0)
    async with open_mesh(options, run_directory, CLOCK) as mesh:
        await mesh.start()
        async with KubeClient(KubeAccess(mesh.plan.api_url), CLOCK) as client:
            cluster = Cluster(mesh, client)
            agent = f"agent-{cluster.node_of(NodeMode.GPULOOM)}"
            await eventually(cluster.has_namespace, "the workload has made its namespaces")
            names: list[str] = []

            for turn, victim in enumerate(("mig", agent, "extender", "mig")):
                waiting = [f"slice-{turn}-{number}" for number in range(3)]
                for name in waiting:
                    await client.create(PODS, a_slice(name))
                await cluster.kill(victim)
                await cluster.wait_run(*waiting)
                names += waiting

            pods = [await client.get(PODS, name, NAMESPACE) for name in names]

    report = mesh.audit()
    texts = [pod["metadata"]["annotations"][ANNOTATION_ALLOCATION] for pod in pods]
    given = [decode_allocation(text).devices for text in texts]
    assert all(device.device.mig is not None for devices in given for device in devices)
    assert report.findings == ()
    # A leader that this machine keeps from renewing its lease in time ends, too.
    assert sum(status.restarts for status in mesh.supervisor.statuses()) >= 4
