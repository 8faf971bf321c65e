"""Binding and eviction."""

import pytest

from gpuloom.errors import ConflictError, NotFoundError
from gpuloom.kube.client import DeleteOptions, KubeClient, PodBinding
from gpuloom.kube.errors import DisruptionBudgetError
from gpuloom.kube.objects import JsonObject, resource_version_of, uid_of
from gpuloom.kube.resources import NODES, PDBS, PODS
from tests.contract.kube.builders import NAMESPACE, READY_STATUS, a_budget, a_node, a_pod, ensure_namespace

ALLOCATION = "gpuloom.dev/allocation"


@pytest.fixture
async def pod(client: KubeClient) -> JsonObject:
    await ensure_namespace(client)
    await client.create(NODES, a_node("n"))
    return await client.create(PODS, a_pod("p", annotations={"kept": "yes"}))


async def a_running_pod(client: KubeClient, name: str, app: str) -> JsonObject:
    running = a_pod(name, labels={"app": app})
    running["spec"]["nodeName"] = "n"
    await client.create(PODS, running)
    return await client.patch_status(PODS, name, NAMESPACE, READY_STATUS)


async def test_a_binding_sets_the_node_and_copies_its_annotations(
    client: KubeClient, pod: JsonObject
) -> None:
    binding = PodBinding(
        NAMESPACE, "p", "n", uid_of(pod), resource_version_of(pod), annotations={ALLOCATION: "{}"}
    )

    await client.bind(binding, timeout_s=5.0)

    bound = await client.get(PODS, "p", NAMESPACE)
    assert bound["spec"]["nodeName"] == "n"
    assert bound["metadata"]["annotations"] == {"kept": "yes", ALLOCATION: "{}"}
    assert uid_of(bound) == uid_of(pod)
    conditions = {item["type"]: item["status"] for item in bound["status"]["conditions"]}
    assert conditions["PodScheduled"] == "True"


async def test_a_binding_meant_for_a_namesake_is_refused(client: KubeClient, pod: JsonObject) -> None:
    with pytest.raises(ConflictError):
        await client.bind(PodBinding(NAMESPACE, "p", "n", uid="another", annotations={ALLOCATION: "{}"}))

    unbound = await client.get(PODS, "p", NAMESPACE)
    assert not unbound["spec"].get("nodeName")
    assert ALLOCATION not in unbound["metadata"]["annotations"]


async def test_a_binding_of_an_old_version_is_refused(client: KubeClient, pod: JsonObject) -> None:
    await client.patch(PODS, "p", NAMESPACE, {"metadata": {"annotations": {"gpuloom.dev/epoch": "2"}}})

    with pytest.raises(ConflictError):
        await client.bind(PodBinding(NAMESPACE, "p", "n", uid_of(pod), resource_version_of(pod)))

    assert not (await client.get(PODS, "p", NAMESPACE))["spec"].get("nodeName")


async def test_a_bound_pod_is_not_bound_again(client: KubeClient, pod: JsonObject) -> None:
    await client.bind(PodBinding(NAMESPACE, "p", "n", uid_of(pod)))

    with pytest.raises(ConflictError):
        await client.bind(PodBinding(NAMESPACE, "p", "n", uid_of(pod), annotations={ALLOCATION: "{}"}))

    assert ALLOCATION not in (await client.get(PODS, "p", NAMESPACE))["metadata"]["annotations"]


async def test_a_pod_that_is_not_there_can_not_be_bound(client: KubeClient, pod: JsonObject) -> None:
    with pytest.raises(NotFoundError):
        await client.bind(PodBinding(NAMESPACE, "absent", "n"))


async def test_a_budget_blocks_an_eviction(client: KubeClient, pod: JsonObject) -> None:
    await client.create(PDBS, a_budget("budget", min_available=1, app="web"))
    await a_running_pod(client, "web-1", "web")

    with pytest.raises(DisruptionBudgetError):
        await client.evict(NAMESPACE, "web-1")

    assert "deletionTimestamp" not in (await client.get(PODS, "web-1", NAMESPACE))["metadata"]


async def test_an_eviction_that_no_budget_forbids_deletes_the_pod(
    client: KubeClient, pod: JsonObject
) -> None:
    evicted = await a_running_pod(client, "batch", "batch")

    await client.evict(NAMESPACE, "batch", DeleteOptions(uid=uid_of(evicted), grace_period_s=0))

    with pytest.raises(NotFoundError):
        await client.get(PODS, "batch", NAMESPACE)


async def test_an_eviction_meant_for_a_namesake_is_refused(client: KubeClient, pod: JsonObject) -> None:
    await a_running_pod(client, "batch", "batch")

    with pytest.raises(ConflictError):
        await client.evict(NAMESPACE, "batch", DeleteOptions(uid="another"))

    assert "deletionTimestamp" not in (await client.get(PODS, "batch", NAMESPACE))["metadata"]
