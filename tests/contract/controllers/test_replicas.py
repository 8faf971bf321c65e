"""Deployments, ReplicaSets and StatefulSets: so many pods, replaced, scaled, rolled and deleted."""

from typing import Any

import pytest

from gpuloom.kube.client import DeleteOptions
from gpuloom.kube.objects import JsonObject, key_of, metadata_of, uid_of
from gpuloom.kube.resources import DEPLOYMENTS, REPLICASETS, STATEFULSETS, Resource
from tests.contract.controllers.conftest import Workspace, eventually


def a_workload(namespace: str, image: str = "registry.invalid/serve:1", **spec: Any) -> JsonObject:
    labels = {"app": "serve"}
    containers = [{"name": "main", "image": image}]
    return {
        "metadata": {"namespace": namespace, "name": "serve"},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": containers}},
            **spec,
        },
    }


async def until_status(workspace: Workspace, resource: Resource, **wanted: int) -> JsonObject:
    """Play the kubelet until the status shows these counts."""

    async def reached() -> JsonObject | None:
        await workspace.run_pods()
        workload = await workspace.client.get(resource, "serve", workspace.namespace)
        status = workload.get("status") or {}
        is_new = status.get("observedGeneration") == metadata_of(workload)["generation"]
        return workload if is_new and all(status.get(k, 0) == v for k, v in wanted.items()) else None

    return await eventually(reached)


@pytest.mark.parametrize("resource", [DEPLOYMENTS, REPLICASETS, STATEFULSETS], ids=lambda one: one.kind)
async def test_a_workload_is_scaled_through_its_scale(workspace: Workspace, resource: Resource) -> None:
    client, namespace = workspace.client, workspace.namespace
    await client.create(resource, a_workload(namespace, replicas=1))
    await until_status(workspace, resource, replicas=1, readyReplicas=1)

    await client.patch_scale(resource, "serve", namespace, 3)
    await until_status(workspace, resource, replicas=3, readyReplicas=3)
    scale = await client.get_scale(resource, "serve", namespace)
    await client.patch_scale(resource, "serve", namespace, 1)
    await until_status(workspace, resource, replicas=1, readyReplicas=1)

    assert (scale["spec"]["replicas"], scale["status"]["replicas"]) == (3, 3)
    assert scale["status"]["selector"] == "app=serve"
    assert len(await workspace.live_pods()) == 1


@pytest.mark.parametrize("resource", [DEPLOYMENTS, STATEFULSETS], ids=lambda one: one.kind)
@pytest.mark.parametrize("way", ["evicted", "failed"])
async def test_a_pod_that_is_lost_is_replaced(workspace: Workspace, resource: Resource, way: str) -> None:
    client, namespace = workspace.client, workspace.namespace
    await client.create(resource, a_workload(namespace, replicas=2))
    await until_status(workspace, resource, readyReplicas=2)
    lost = (await workspace.live_pods())[0]

    if way == "evicted":
        await client.evict(namespace, key_of(lost)[1], DeleteOptions(grace_period_s=0))
    else:
        await workspace.set_phase(lost, "Failed")

    async def replaced() -> bool | None:
        await workspace.run_pods()
        live = await workspace.live_pods()
        return len(live) == 2 and uid_of(lost) not in map(uid_of, live)

    assert await eventually(replaced)


async def test_a_deployment_rolls_to_a_new_template_without_losing_availability(workspace: Workspace) -> None:
    client, namespace = workspace.client, workspace.namespace
    limits = {"maxSurge": 1, "maxUnavailable": 0}
    strategy = {"type": "RollingUpdate", "rollingUpdate": limits}
    await client.create(DEPLOYMENTS, a_workload(namespace, replicas=3, strategy=strategy))
    await until_status(workspace, DEPLOYMENTS, availableReplicas=3)
    least, most = 3, 0

    newer = a_workload(namespace, "registry.invalid/serve:2")["spec"]["template"]
    await client.patch(DEPLOYMENTS, "serve", namespace, {"spec": {"template": newer}})

    async def rolled() -> bool | None:
        nonlocal least, most
        live = await workspace.live_pods()
        least = min(least, sum(pod["status"]["phase"] == "Running" for pod in live))
        most = max(most, len(live))
        await workspace.run_pods()
        images = [pod["spec"]["containers"][0]["image"] for pod in live]
        return images == ["registry.invalid/serve:2"] * 3

    assert await eventually(rolled)
    assert (least, most) == (3, 4)
    done = await until_status(workspace, DEPLOYMENTS, replicas=3, updatedReplicas=3, availableReplicas=3)
    conditions = {one["type"]: one["status"] for one in done["status"]["conditions"]}
    assert conditions["Available"] == "True"


async def test_the_pods_of_a_stateful_set_are_named_and_made_in_order(workspace: Workspace) -> None:
    client, namespace = workspace.client, workspace.namespace
    await client.create(STATEFULSETS, a_workload(namespace, replicas=2, serviceName="serve"))

    (first,) = await workspace.until_live(1)
    await workspace.run_pods()
    both = await workspace.until_live(2)

    assert key_of(first)[1] == "serve-0"
    assert [key_of(pod)[1] for pod in both] == ["serve-0", "serve-1"]
    assert both[1]["spec"]["hostname"] == "serve-1"
    assert metadata_of(both[1])["labels"]["apps.kubernetes.io/pod-index"] == "1"


async def test_all_that_a_deployment_made_goes_with_it(workspace: Workspace) -> None:
    client, namespace = workspace.client, workspace.namespace
    await client.create(DEPLOYMENTS, a_workload(namespace, replicas=2))
    await workspace.until_live(2)

    await client.delete(DEPLOYMENTS, "serve", namespace, DeleteOptions(propagation="Background"))

    async def gone() -> bool | None:
        sets = [one for one in (await client.list(REPLICASETS)).items if key_of(one)[0] == namespace]
        return not sets and not await workspace.pods()

    assert await eventually(gone)
