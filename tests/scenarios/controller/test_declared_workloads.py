"""GPUWorkloads and admission in the embedded mesh, while the controller and the webhook are killed."""

import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from gpuloom.errors import NotAllowedError
from gpuloom.kube.access import KubeAccess
from gpuloom.kube.client import KubeClient
from gpuloom.kube.listing import Selection
from gpuloom.kube.objects import metadata_of
from gpuloom.kube.resources import EVENTS, GPU_WORKLOADS, JOBS, NAMESPACES, NODES, PODS
from gpuloom.names import ANNOTATION_RECOMMENDATION
from gpuloom.runtime.clock import SystemClock
from gpuloom.sim.embedded import EmbeddedMesh, open_mesh
from gpuloom.sim.kubelet.host import ANNOTATION_DURATION, ANNOTATION_OUTCOME
from gpuloom.sim.mesh.plan import MeshOptions

CLOCK = SystemClock()
PATIENCE_S = 150.0
SHARING = {"gpu-autoscaler.io/sharing-enabled": "true"}

pytestmark = [pytest.mark.real, pytest.mark.timeout(420)]


async def eventually(check: Callable[[], Awaitable[Any]], what: str) -> Any:
    ends_s = CLOCK.monotonic() + PATIENCE_S
    while CLOCK.monotonic() < ends_s:
        if found := await check():
            return found
        await CLOCK.sleep(0.5)
    raise AssertionError(f"not within {PATIENCE_S:g} s: {what}")


async def kill(mesh: EmbeddedMesh, name: str) -> None:
    """It may still be coming up again from the last time."""

    async def pid() -> int | None:
        return next(one.pid for one in mesh.supervisor.statuses() if one.name == name)

    os.kill(await eventually(pid, f"{name} runs"), signal.SIGKILL)


def a_workload(name: str, strategy: str, outcome: str) -> dict[str, Any]:
    annotations = {ANNOTATION_DURATION: "2s", ANNOTATION_OUTCOME: outcome}
    return {
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "modelName": "llama2",
            "gpuCount": 1,
            "schedulingStrategy": strategy,
            "retryPolicy": {"maxRetries": 1, "backoffSeconds": 1},
            "podTemplate": {"metadata": {"annotations": annotations}},
        },
    }


async def test_declared_workloads_end_as_they_should_whatever_is_killed(run_directory: Path) -> None:
    options = MeshOptions(nodes=4, seed=1, pods_per_minute=1, autoscaling=False)
    wanted = {f"good-{number}": "Succeeded" for number in range(6)} | {"bad": "Failed"}
    async with open_mesh(options, run_directory, CLOCK) as mesh:
        await mesh.start()
        async with KubeClient(KubeAccess(mesh.plan.api_url), CLOCK) as client:
            cheap = {"metadata": {"labels": {"gpu-orchestrator/cheap-node": "true"}}}
            ours = [
                metadata_of(node)["name"]
                for node in (await client.list(NODES)).items
                if (metadata_of(node).get("labels") or {}).get("gpuloom.dev/mode") != "gpuloom"
            ]
            await client.patch(NODES, ours[0], None, cheap)
            for name, phase in wanted.items():
                outcome = "failed" if phase == "Failed" else "succeeded"
                await client.create(GPU_WORKLOADS, a_workload(name, "costOptimized", outcome))
                if name in ("good-2", "good-4"):
                    await kill(mesh, "controller")
            with pytest.raises(NotAllowedError, match="there is no strategy best"):
                await client.create(GPU_WORKLOADS, a_workload("wrong", "best", "succeeded"))

            async def ended() -> bool:
                found = (await client.list(GPU_WORKLOADS, Selection("default"))).items
                phases = {metadata_of(one)["name"]: (one.get("status") or {}).get("phase") for one in found}
                return all(phases.get(name) == phase for name, phase in wanted.items())

            await eventually(ended, "all workloads end as they should")
            jobs = (await client.list(JOBS, Selection("default"))).items
            owners = sorted(metadata_of(job)["ownerReferences"][0]["name"] for job in jobs)
            workloads = (await client.list(GPU_WORKLOADS, Selection("default"))).items
            nodes = {(one.get("status") or {}).get("assignedNode") for one in workloads}

            await admission_rewrites_and_never_blocks(client, mesh)
            await waste_is_told(client)
    assert owners == sorted([*wanted, "bad"])
    # Others play on these nodes too, so it may be full at times.
    assert ours[0] in nodes, "costOptimized takes the cheap node as long as it has room"


async def admission_rewrites_and_never_blocks(client: KubeClient, mesh: EmbeddedMesh) -> None:
    await client.create(NAMESPACES, {"metadata": {"name": "shared", "labels": SHARING}})

    async def admitted(name: str) -> dict[str, Any]:
        resources = {"limits": {"nvidia.com/gpu": "1"}}
        container = {"name": "c", "image": "x", "resources": resources}
        pod = {
            "metadata": {"name": name, "namespace": "shared"},
            "spec": {"containers": [container], "schedulerName": "nobody"},
        }
        created: dict[str, Any] = await client.create(PODS, pod)
        return metadata_of(created).get("annotations") or {}

    numbers = iter(range(1000))

    async def told() -> bool:
        annotations = await admitted(f"p-{next(numbers)}")
        return annotations.get("gpu-autoscaler.io/sharing-mode") == "mps"

    await eventually(told, "a pod of a sharing namespace is told how it shares")
    await kill(mesh, "webhook")
    assert await admitted("while-away") is not None


async def waste_is_told(client: KubeClient) -> None:
    """The played workload has a Deployment that uses a third of its GPU."""

    async def event() -> Any:
        found = (await client.list(EVENTS)).items
        return [one for one in found if one["reason"] == "GPUWaste"]

    (first, *_) = await eventually(event, "waste is told of")
    about = first["involvedObject"]
    pod = await client.get(PODS, about["name"], about["namespace"])
    assert ANNOTATION_RECOMMENDATION in metadata_of(pod)["annotations"]
