"""Pods wait, a machine is bought, the autoscaler is killed after the cloud acted, pods run, the cloud takes
the machine back, pods run on its replacement, and that goes when it is idle."""

import os
import signal
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from gpuloom.kube.access import KubeAccess
from gpuloom.kube.client import DeleteOptions, KubeClient
from gpuloom.kube.listing import Selection
from gpuloom.kube.objects import key_of
from gpuloom.kube.parse import format_time
from gpuloom.kube.resources import AUTOSCALING_POLICIES, DEPLOYMENTS, GPU_NODE_CLAIMS, NODES, PODS
from gpuloom.names import ANNOTATION_SPOT_TIME, ANNOTATION_SPOT_WARNING
from gpuloom.runtime.clock import SystemClock
from gpuloom.sim.cloud.client import CloudClient
from gpuloom.sim.embedded import EmbeddedMesh, open_mesh
from gpuloom.sim.mesh.plan import MeshOptions

CLOCK = SystemClock()
POOL = "burst"
LABEL = {"example.com/team": "burst"}
PATIENCE_S = 120.0

POLICY = {
    "metadata": {"name": "burst"},
    "spec": {
        "provider": "simulated",
        "pendingPodTimeoutSeconds": 1,
        "scaleUpCooldownSeconds": 1,
        "scaleDownCooldownSeconds": 1,
        "maxNodes": 3,
        "nodePools": [{"name": POOL, "instanceTypes": ["g5.12xlarge"], "labels": LABEL}],
    },
}


def a_deployment(replicas: int) -> dict[str, Any]:
    amounts = {"gpuloom.dev/gpu-milli": "2000", "cpu": "1", "memory": "1Gi"}
    container = {"name": "main", "image": "x", "resources": {"limits": amounts, "requests": amounts}}
    return {
        "metadata": {"name": "burst", "namespace": "default"},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": LABEL},
            "template": {
                "metadata": {"labels": LABEL},
                "spec": {"containers": [container], "nodeSelector": LABEL},
            },
        },
    }


async def eventually(check: Callable[[], Awaitable[Any]], what: str) -> Any:
    ends_s = CLOCK.monotonic() + PATIENCE_S
    while CLOCK.monotonic() < ends_s:
        found = await check()
        if found:
            return found
        await CLOCK.sleep(0.5)
    raise AssertionError(f"not within {PATIENCE_S:g} s: {what}")


def kill(mesh: EmbeddedMesh, name: str) -> None:
    (status,) = (one for one in mesh.supervisor.statuses() if one.name == name)
    assert status.pid is not None
    os.kill(status.pid, signal.SIGKILL)


def warning() -> dict[str, str]:
    """As the documented `kubectl annotate node` writes it."""
    ends = format_time(CLOCK.now() + timedelta(minutes=2))
    return {ANNOTATION_SPOT_WARNING: "true", ANNOTATION_SPOT_TIME: ends}


@pytest.mark.timeout(600)
@pytest.mark.real
async def test_nodes_are_bought_once_replaced_when_taken_back_and_go_when_idle(
    run_directory: Path,
) -> None:
    options = MeshOptions(nodes=4, seed=1, pods_per_minute=1)
    async with open_mesh(options, run_directory, CLOCK) as mesh:
        await mesh.start()
        async with (
            KubeClient(KubeAccess(mesh.plan.api_url), CLOCK) as client,
            CloudClient(mesh.plan.cloud_url, CLOCK) as cloud,
        ):
            await client.create(AUTOSCALING_POLICIES, POLICY)
            await client.create(DEPLOYMENTS, a_deployment(2))
            await eventually(cloud.instances, "the cloud was asked")
            kill(mesh, "autoscaler")

            async def running() -> list[Any]:
                found = (await client.list(PODS, Selection(namespace="default"))).items
                return [one for one in found if one["status"].get("phase") == "Running"]

            async def all_run() -> bool:
                return len(await running()) == 2

            await eventually(all_run, "the pods run")
            (machine,) = await cloud.instances()
            nodes = {pod["spec"]["nodeName"] for pod in await running()}
            labels = (await client.get(NODES, machine.node))["metadata"]["labels"]

            await client.patch(NODES, machine.node, None, {"metadata": {"annotations": warning()}})

            async def moved() -> bool:
                return len(await running()) == 2 and all(
                    pod["spec"]["nodeName"] != machine.node for pod in await running()
                )

            await eventually(moved, "the pods run on the replacement")
            (replacement,) = {pod["spec"]["nodeName"] for pod in await running()}

            await client.delete(DEPLOYMENTS, "burst", "default", DeleteOptions(propagation="Background"))

            async def gone() -> bool:
                names = {key_of(node)[1] for node in (await client.list(NODES)).items}
                claims = (await client.list(GPU_NODE_CLAIMS)).items
                return not {machine.node, replacement} & names and all(
                    claim["status"]["state"] == "Gone" for claim in claims
                )

            await eventually(gone, "the node is given back")
            bought = {one.instance_id for one in await cloud.instances()}
    report = mesh.audit()

    assert nodes == {machine.node}
    assert labels["example.com/team"] == "burst"
    assert labels["gpuloom.dev/pool"] == POOL
    assert bought == {machine.instance_id, replacement}
    assert report.findings == ()
