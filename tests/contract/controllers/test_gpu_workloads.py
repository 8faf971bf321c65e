"""The workload controller beside the simulated Job controller and beside kube-controller-manager."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from prometheus_client import CollectorRegistry

from gpuloom.errors import NotFoundError
from gpuloom.kube.client import KubeClient
from gpuloom.kube.events import EventRecorder
from gpuloom.kube.leadership import Leadership, LeadershipConfig
from gpuloom.kube.listing import Selection
from gpuloom.kube.objects import JsonObject, metadata_of
from gpuloom.kube.resources import GPU_WORKLOADS, JOBS
from gpuloom.placement.strategies import WITHOUT_DEVICES
from gpuloom.runtime.clock import SystemClock
from gpuloom.runtime.config import load_config
from services.controller.adapters.kubernetes import KubernetesCluster, KubernetesWorkloads
from services.controller.app import workload_loop
from services.controller.core.manifests import Image
from services.controller.metrics import ControllerMetrics
from services.controller.workloads import FINALIZER, Workloads, WorkloadSettings
from tests.contract.controllers.conftest import Workspace, eventually

CLOCK = SystemClock()
SETTINGS = WorkloadSettings(WITHOUT_DEVICES, "gpuloom-", None, pins_nodes=False, gives_shares=False)


@asynccontextmanager
async def a_controller(
    client: KubeClient, namespace: str, selector: str = ""
) -> AsyncIterator[ControllerMetrics]:
    """Ends as a killed process does: whatever it was doing is left as it is."""
    registry = CollectorRegistry()
    metrics = ControllerMetrics(registry)
    config = load_config(LeadershipConfig, {"GPULOOM_LEASE_NAME": "x", "GPULOOM_LEADER_ELECTION": "false"})
    leadership = Leadership(client, config, CLOCK, {})
    cluster = KubernetesCluster(client, CLOCK, namespace, selector, lambda model: Image("example/model:1"))
    recorder = EventRecorder(client, "gpuloom-controller", "test", CLOCK, registry=registry)
    workloads = Workloads(
        KubernetesWorkloads(client, leadership), cluster, recorder, SETTINGS, CLOCK, metrics
    )
    loop = workload_loop(cluster, workloads, CLOCK, registry)

    async def work() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(loop.run())
            group.create_task(recorder.run())

    tasks = [asyncio.create_task(informer.run()) for informer in cluster.informers]
    tasks.append(asyncio.create_task(leadership.run(work, cluster.synced)))
    try:
        yield metrics
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        # The watches' TLS connections close with a last exchange, which the test's loop must live to see.
        await asyncio.sleep(0.2)


def a_workload(namespace: str, name: str = "train", **spec: object) -> JsonObject:
    return {
        "apiVersion": GPU_WORKLOADS.api_version,
        "kind": GPU_WORKLOADS.kind,
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"modelName": "llama2", "gpuCount": 1, **spec},
    }


async def until_phase(workspace: Workspace, phase: str, name: str = "train") -> JsonObject:
    async def there() -> JsonObject | None:
        found = await workspace.client.get(GPU_WORKLOADS, name, workspace.namespace)
        return found if (found.get("status") or {}).get("phase") == phase else None

    return await eventually(there)


async def jobs_of(workspace: Workspace) -> list[JsonObject]:
    return list((await workspace.client.list(JOBS, Selection(workspace.namespace))).items)


async def test_a_workload_becomes_one_job_and_its_end_is_the_jobs(workspace: Workspace) -> None:
    async with a_controller(workspace.account, workspace.namespace) as metrics:
        await workspace.client.create(GPU_WORKLOADS, a_workload(workspace.namespace))
        await until_phase(workspace, "Scheduling")
        (pod,) = await workspace.until_live(1)
        await workspace.set_phase(pod, "Running")
        await until_phase(workspace, "Running")
        await workspace.set_phase(pod, "Succeeded")
        ended = await until_phase(workspace, "Succeeded")

    (job,) = await jobs_of(workspace)
    assert ended["status"]["jobName"] == metadata_of(job)["name"]
    assert metadata_of(job)["ownerReferences"][0]["uid"] == metadata_of(ended)["uid"]
    assert metrics.scheduled.labels("leastLoaded")._value.get() == 1.0


async def test_a_failed_attempt_is_retried_by_the_next_job(workspace: Workspace) -> None:
    retry = {"maxRetries": 1, "backoffSeconds": 1}
    async with a_controller(workspace.account, workspace.namespace) as metrics:
        await workspace.client.create(GPU_WORKLOADS, a_workload(workspace.namespace, retryPolicy=retry))
        for _ in range(2):
            (pod,) = await workspace.until_live(1)
            await workspace.set_phase(pod, "Failed")
        ended = await until_phase(workspace, "Failed")

    assert len(await jobs_of(workspace)) == 2
    assert ended["status"]["retries"] == 1
    assert "attempt 2 of 2 failed" in ended["status"]["message"]
    assert metrics.retries._value.get() == 1.0


@pytest.mark.parametrize("phase", ["Scheduling", "Running"])
async def test_deleting_a_workload_takes_its_jobs_along(workspace: Workspace, phase: str) -> None:
    async with a_controller(workspace.account, workspace.namespace):
        await workspace.client.create(GPU_WORKLOADS, a_workload(workspace.namespace))
        (pod,) = await workspace.until_live(1)
        if phase == "Running":
            await workspace.set_phase(pod, "Running")
        found = await until_phase(workspace, phase)
        await workspace.client.delete(GPU_WORKLOADS, "train", workspace.namespace)

        async def gone() -> bool:
            try:
                await workspace.client.get(GPU_WORKLOADS, "train", workspace.namespace)
            except NotFoundError:
                return True
            return False

        await eventually(gone)

    assert metadata_of(found)["finalizers"] == [FINALIZER]
    assert not [job for job in await jobs_of(workspace) if "deletionTimestamp" not in metadata_of(job)]


async def test_however_often_the_controller_dies_each_workload_has_one_job(workspace: Workspace) -> None:
    names = [f"train-{number}" for number in range(40)]
    for name in names:
        await workspace.client.create(GPU_WORKLOADS, a_workload(workspace.namespace, name))

    for lived_s in (0.1, 0.3, 0.6):
        async with a_controller(workspace.account, workspace.namespace):
            await asyncio.sleep(lived_s)
    async with a_controller(workspace.account, workspace.namespace):
        for name in names:
            await until_phase(workspace, "Scheduling", name)

    owners = [metadata_of(job)["ownerReferences"][0]["name"] for job in await jobs_of(workspace)]
    assert sorted(owners) == sorted(names)


async def test_controllers_side_by_side_each_act_for_their_own_workloads(workspace: Workspace) -> None:
    for name in ("red", "blue"):
        made = a_workload(workspace.namespace, name)
        made["metadata"]["labels"] = {"team": name}
        await workspace.client.create(GPU_WORKLOADS, made)

    async with a_controller(workspace.account, workspace.namespace, "team=red"):
        await until_phase(workspace, "Scheduling", "red")
        blue = await workspace.client.get(GPU_WORKLOADS, "blue", workspace.namespace)
        async with a_controller(workspace.account, workspace.namespace, "team=blue"):
            await until_phase(workspace, "Scheduling", "blue")
            # Handed over: the other one goes on with the Job that is there.
            patch = {"metadata": {"labels": {"team": "blue"}}}
            await workspace.client.patch(GPU_WORKLOADS, "red", workspace.namespace, patch)
            for pod in await workspace.until_live(2):
                await workspace.set_phase(pod, "Running")
            await until_phase(workspace, "Running", "red")

    assert "status" not in blue
    assert "finalizers" not in metadata_of(blue)
    assert len(await jobs_of(workspace)) == 2


async def test_a_job_of_somebody_else_under_the_same_name_is_left_alone(
    workspace: Workspace,
) -> None:
    async with a_controller(workspace.account, workspace.namespace):
        await workspace.client.create(GPU_WORKLOADS, a_workload(workspace.namespace))
        told = (await until_phase(workspace, "Scheduling"))["status"]["jobName"]
    taken = told[: -len("-0")] + "-1"
    foreign = {"metadata": {"name": taken, "namespace": workspace.namespace}, "spec": another_job()}
    await workspace.client.create(JOBS, foreign)
    patch = {"spec": {"retryPolicy": {"maxRetries": 1, "backoffSeconds": 1}}}
    await workspace.client.patch(GPU_WORKLOADS, "train", workspace.namespace, patch)

    async with a_controller(workspace.account, workspace.namespace):
        for pod in await workspace.until_live(2):
            if metadata_of(pod)["labels"]["batch.kubernetes.io/job-name"] == told:
                await workspace.set_phase(pod, "Failed")
        waiting = await until_told(workspace, "belongs to somebody else")

    assert waiting["status"]["phase"] == "Pending"


def another_job() -> JsonObject:
    container = {"name": "main", "image": "registry.invalid/other:1"}
    return {"template": {"spec": {"restartPolicy": "Never", "containers": [container]}}}


async def until_told(workspace: Workspace, words: str) -> JsonObject:
    async def there() -> JsonObject | None:
        found = await workspace.client.get(GPU_WORKLOADS, "train", workspace.namespace)
        return found if words in ((found.get("status") or {}).get("message") or "") else None

    return await eventually(there)
