"""The autoscaler on a real control plane: the printed policy, a simulated cloud whose machines join as nodes.

Pods wait, nodes come, pods run, a PodDisruptionBudget keeps a node from being drained until it allows it, and
nodes go. The eviction API, the disruption controller and every right are the real ones.
"""

import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpuloom.catalog.manifests import definitions
from gpuloom.kube.client import DeleteOptions, KubeClient
from gpuloom.kube.listing import Selection
from gpuloom.kube.objects import key_of
from gpuloom.kube.resources import AUTOSCALING_POLICIES, DEPLOYMENTS, GPU_NODE_CLAIMS, NODES, PDBS, PODS
from gpuloom.model.node import NodeMode
from gpuloom.names import ANNOTATION_SPOT_WARNING
from gpuloom.runtime.clock import SystemClock, deadline
from gpuloom.sim.cloud.client import CloudClient
from gpuloom.sim.machines.cluster import plan_machines
from gpuloom.sim.processes.child_process import ProcessSpec
from gpuloom.sim.processes.ports import HOST, free_ports
from gpuloom.sim.processes.probes import answers_ok
from tests.cluster.binaries import Binaries
from tests.cluster.contract_api import CRDS
from tests.cluster.control_plane import ControlPlaneOptions, open_control_plane
from tests.cluster.gpu_pods import NAMESPACE, create_namespace
from tests.cluster.mesh import Mesh, open_mesh

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]

CLOCK = SystemClock()
PRINTED = Path(__file__).parents[2] / "examples/phase3/autoscaling-policy.yaml"
LABELS = {"app": "training"}


async def until(holds: Callable[[], Awaitable[Any]], within_s: float = 120.0) -> Any:
    async with deadline(CLOCK, within_s):
        while not (found := await holds()):
            await CLOCK.sleep(0.5)
    return found


def printed_policy() -> dict[str, Any]:
    """As printed, but for its cloud and zones, and quick enough for a test."""
    policy: dict[str, Any] = yaml.safe_load(PRINTED.read_text(encoding="utf-8"))
    spec = policy["spec"]
    spec |= {"provider": "simulated", "pendingPodTimeoutSeconds": 2}
    spec |= {"scaleUpCooldownSeconds": 1, "scaleDownCooldownSeconds": 1}
    spec["nodePools"][0]["availabilityZones"] = ["zone-a", "zone-b", "zone-c"]
    return policy


def a_deployment(replicas: int) -> dict[str, Any]:
    amounts = {"gpuloom.dev/gpu-milli": "1000", "cpu": "1", "memory": "1Gi"}
    container = {"name": "main", "image": "x", "resources": {"limits": amounts, "requests": amounts}}
    return {
        "metadata": {"name": "training", "namespace": NAMESPACE},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": LABELS},
            "template": {
                "metadata": {"labels": LABELS},
                "spec": {
                    "schedulerName": "gpuloom-scheduler",
                    "containers": [container],
                    "nodeSelector": {"gpu-autoscaler.io/capacity-type": "spot"},
                },
            },
        },
    }


def a_budget(least: int) -> dict[str, Any]:
    return {
        "metadata": {"name": "training-pdb", "namespace": NAMESPACE},
        "spec": {"minAvailable": least, "selector": {"matchLabels": LABELS}},
    }


async def start(mesh: Mesh) -> str:
    """The simulated cloud and the autoscaler; the cloud's address."""
    layout = mesh.layout
    (cloud,) = free_ports(1, random.Random())
    url = f"http://{HOST}:{cloud}"
    arguments = ("--port", str(cloud), "--machines", str(layout.machines), "--boot-delay", "4s")
    settings = {
        "GPULOOM_AUTOSCALER_SIMULATED_CLOUD": url,
        "GPULOOM_AUTOSCALER_INTERVAL": "1s",
        "GPULOOM_AUTOSCALER_IDLE_WINDOW": "8s",
        "GPULOOM_AUTOSCALER_MINIMUM_AGE": "8s",
    }
    specs: list[ProcessSpec] = [
        layout.process("cloud", ("gpuloom.sim.cloud", *arguments), answers_ok(f"{url}/healthz", CLOCK)),
    ]
    await mesh.supervisor.start([specs, [layout.service("autoscaler", settings)]])
    return url


async def running(client: KubeClient) -> list[dict[str, Any]]:
    pods = (await client.list(PODS, Selection(namespace=NAMESPACE))).items
    return [one for one in pods if one["status"].get("phase") == "Running" and not _leaves(one)]


def _leaves(pod: dict[str, Any]) -> bool:
    return bool(pod["metadata"].get("deletionTimestamp"))


async def test_pods_wait_nodes_come_pods_run_budgets_hold_and_nodes_go(
    binaries: Binaries, tmp_path: Path
) -> None:
    machine = next(spec for spec in plan_machines(4, seed=4) if spec.mode is NodeMode.GPULOOM)
    options = ControlPlaneOptions(controller_manager=True)
    async with (
        open_control_plane(binaries, tmp_path / "plane", CLOCK, options) as plane,
        plane.client() as client,
    ):
        for definition in definitions():
            await client.create(CRDS, definition)
        await create_namespace(client)
        async with open_mesh(plane, [machine], CLOCK) as mesh:
            url = await start(mesh)
            async with CloudClient(url, CLOCK) as cloud:
                await client.create(AUTOSCALING_POLICIES, printed_policy())
                await client.create(PDBS, a_budget(2))
                await client.create(DEPLOYMENTS, a_deployment(2))

                async def both_run() -> bool:
                    return len(await running(client)) == 2

                await until(both_run)
                nodes = {pod["spec"]["nodeName"] for pod in await running(client)}
                bought = await cloud.instances()
                warned = sorted(nodes)[0]
                patch = {"metadata": {"annotations": {ANNOTATION_SPOT_WARNING: "true"}}}
                await client.patch(NODES, warned, None, patch)

                async def cordoned() -> bool:
                    return bool((await client.get(NODES, warned))["spec"].get("unschedulable"))

                await until(cordoned)
                await CLOCK.sleep(5.0)
                kept = {pod["spec"]["nodeName"] for pod in await running(client)}
                await client.patch(PDBS, "training-pdb", NAMESPACE, {"spec": {"minAvailable": 0}})

                async def moved() -> bool:
                    where = [pod["spec"]["nodeName"] for pod in await running(client)]
                    return len(where) == 2 and warned not in where

                await until(moved)
                await client.delete(
                    DEPLOYMENTS, "training", NAMESPACE, DeleteOptions(propagation="Background")
                )

                async def all_gone() -> bool:
                    names = {key_of(node)[1] for node in (await client.list(NODES)).items}
                    claims = (await client.list(GPU_NODE_CLAIMS)).items
                    return names == {machine.node} and all(
                        claim["status"]["state"] == "Gone" for claim in claims
                    )

                await until(all_gone, within_s=240)
                status = (await client.get(AUTOSCALING_POLICIES, "production-autoscaling"))["status"]
            denied = [
                line
                for line in (mesh.layout.logs / "autoscaler.log").read_text(encoding="utf-8").splitlines()
                if "answered 403" in line
            ]

    assert nodes == {one.node for one in bought}
    assert warned in kept, "the budget did not keep the pod"
    assert status["currentNodes"] == 0
    assert denied == []
