"""The real mesh in real processes: slices are cut for pods while those who cut them are killed."""

from pathlib import Path

import orjson
import pytest

from gpuloom.codec.allocation import decode_allocation
from gpuloom.kube.access import KubeAccess
from gpuloom.kube.client import KubeClient
from gpuloom.kube.objects import JsonObject
from gpuloom.kube.resources import CONFIGMAPS, GPU_HOLDS, PODS
from gpuloom.model.node import NodeMode
from gpuloom.names import ANNOTATION_ALLOCATION, ANNOTATION_MIG_PROFILE, RESOURCE_GPU_MILLI
from gpuloom.runtime.clock import SystemClock
from gpuloom.sim.embedded import open_mesh
from gpuloom.sim.mesh import MeshOptions
from services.mig_controller.adapters.intents import KEY, NAME
from tests.scenarios.test_mesh_survives_kills import NAMESPACE, Cluster, a_pod, eventually

CLOCK = SystemClock()
PROFILE, MILLI = "1g.10gb", 125


def a_slice(name: str) -> JsonObject:
    pod = a_pod(name, RESOURCE_GPU_MILLI, MILLI)
    pod["metadata"]["annotations"][ANNOTATION_MIG_PROFILE] = PROFILE
    return pod


@pytest.mark.real
@pytest.mark.timeout(400)
async def test_slices_are_made_whoever_is_killed_and_nothing_stays_held(run_directory: Path) -> None:
    options = MeshOptions(nodes=4, seed=1, pods_per_minute=2, max_publish_delay_s=1.0)
    async with open_mesh(options, run_directory, CLOCK) as mesh:
        await mesh.start()
        async with KubeClient(KubeAccess(mesh.plan.api_url), CLOCK) as client:
            cluster = Cluster(mesh, client)
            agent = f"agent-{cluster.node_of(NodeMode.GPULOOM)}"

            for victim in ("mig", agent, "extender", "mig"):
                names = [f"{victim}-{number}" for number in range(3)]
                for name in names:
                    await client.create(PODS, a_slice(name))
                await cluster.kill(victim)
                await cluster.wait_run(*names)

            await eventually(lambda: _nothing_under_way(client), "no change is under way")
            pods = [pod for pod in await cluster.pods() if pod["metadata"]["namespace"] == NAMESPACE]

    report = mesh.audit()
    own = [pod for pod in pods if pod["metadata"]["annotations"].get(ANNOTATION_MIG_PROFILE) == PROFILE]
    given = [decode_allocation(pod["metadata"]["annotations"][ANNOTATION_ALLOCATION]).devices for pod in own]
    assert len(given) >= 12
    assert all(device.device.mig is not None for devices in given for device in devices)
    assert report.findings == ()
    assert sum(status.restarts for status in mesh.supervisor.statuses()) == 4


async def _nothing_under_way(client: KubeClient) -> bool:
    holds = (await client.list(GPU_HOLDS)).items
    kept = [one for one in (await client.list(CONFIGMAPS)).items if one["metadata"]["name"] == NAME]
    intents = orjson.loads(kept[0]["data"][KEY])["intents"] if kept else []
    return not intents and not [one for one in holds if one["metadata"]["name"].startswith("mig-")]
