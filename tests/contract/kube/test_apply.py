"""Server-side apply, JSON patches and scale."""

from typing import Any

import pytest

from gpuloom.errors import ConflictError, GpuloomError, InvalidRequestError
from gpuloom.kube.client import KubeClient
from gpuloom.kube.objects import JsonObject, metadata_of, resource_version_of
from gpuloom.kube.resources import CONFIGMAPS, DEPLOYMENTS, NODES
from tests.contract.kube.builders import NAMESPACE, a_config_map, a_node, ensure_namespace


@pytest.fixture(autouse=True)
async def namespace(client: KubeClient) -> None:
    await ensure_namespace(client)


def a_deployment(name: str, **spec: Any) -> JsonObject:
    labels = {"app": name}
    containers = [{"name": "main", "image": "registry.invalid/serve:1"}]
    template = {"metadata": {"labels": labels}, "spec": {"containers": containers}}
    return {
        "metadata": {"namespace": NAMESPACE, "name": name},
        "spec": {"selector": {"matchLabels": labels}, "template": template, **spec},
    }


async def test_an_apply_creates_and_then_owns_exactly_what_it_names(client: KubeClient) -> None:
    created = await client.apply(CONFIGMAPS, a_config_map("c", a="1", b="1"), "first")
    await client.patch(CONFIGMAPS, "c", NAMESPACE, {"data": {"other": "1"}})

    changed = await client.apply(CONFIGMAPS, a_config_map("c", a="2"), "first")

    assert created["data"] == {"a": "1", "b": "1"}
    # b was the manager's and is no longer named; what somebody else added stays.
    assert changed["data"] == {"a": "2", "other": "1"}
    (mine,) = [one for one in metadata_of(changed)["managedFields"] if one["manager"] == "first"]
    assert mine["operation"] == "Apply"
    assert mine["fieldsV1"] == {"f:data": {"f:a": {}}}


async def test_an_apply_does_not_take_a_field_of_another_manager_unless_forced(client: KubeClient) -> None:
    await client.apply(CONFIGMAPS, a_config_map("c", a="1", shared="x"), "first")
    await client.apply(CONFIGMAPS, a_config_map("c", shared="x"), "second")

    with pytest.raises(ConflictError, match=r'conflict with "first".*\.data\.a'):
        await client.apply(CONFIGMAPS, a_config_map("c", a="2"), "second")
    kept = await client.get(CONFIGMAPS, "c", NAMESPACE)
    forced = await client.apply(CONFIGMAPS, a_config_map("c", a="2"), "second", force=True)

    assert kept["data"] == {"a": "1", "shared": "x"}
    # Of the shared field the first is still an owner.
    assert forced["data"] == {"a": "2", "shared": "x"}
    with pytest.raises(ConflictError):
        await client.apply(CONFIGMAPS, a_config_map("c", a="3"), "first")


async def test_what_was_there_before_the_first_apply_is_not_taken(client: KubeClient) -> None:
    await client.create(CONFIGMAPS, a_config_map("c", a="1"))

    same = await client.apply(CONFIGMAPS, a_config_map("c", a="1", b="1"), "first")
    with pytest.raises(ConflictError):
        await client.apply(CONFIGMAPS, a_config_map("c", a="2", b="1"), "first")

    assert same["data"] == {"a": "1", "b": "1"}


async def test_a_field_that_a_patch_changed_is_lost_to_the_one_who_applied_it(client: KubeClient) -> None:
    await client.apply(CONFIGMAPS, a_config_map("c", a="1"), "first")
    await client.patch(CONFIGMAPS, "c", NAMESPACE, {"data": {"a": "2"}})

    with pytest.raises(ConflictError):
        await client.apply(CONFIGMAPS, a_config_map("c", a="1"), "first")

    assert (await client.get(CONFIGMAPS, "c", NAMESPACE))["data"] == {"a": "2"}


async def test_two_managers_keep_labels_of_one_node(client: KubeClient) -> None:
    await client.create(NODES, a_node("n"))

    await client.apply(NODES, {"metadata": {"name": "n", "labels": {"pool": "a"}}}, "autoscaler")
    await client.apply(NODES, {"metadata": {"name": "n", "labels": {"mode": "b"}}}, "discovery")
    await client.apply(NODES, {"metadata": {"name": "n"}}, "autoscaler")

    labels = metadata_of(await client.get(NODES, "n"))["labels"]
    assert labels == {"mode": "b"}


async def test_an_apply_that_changes_nothing_keeps_the_version(client: KubeClient) -> None:
    first = await client.apply(CONFIGMAPS, a_config_map("c", a="1"), "first")

    again = await client.apply(CONFIGMAPS, a_config_map("c", a="1"), "first")

    assert resource_version_of(again) == resource_version_of(first)


async def test_an_apply_changes_one_container_and_leaves_what_was_scaled(client: KubeClient) -> None:
    await client.apply(DEPLOYMENTS, a_deployment("d"), "owner")
    await client.patch_scale(DEPLOYMENTS, "d", NAMESPACE, 4)
    newer = a_deployment("d")
    newer["spec"]["template"]["spec"]["containers"][0]["image"] = "registry.invalid/serve:2"

    changed = await client.apply(DEPLOYMENTS, newer, "owner")

    assert changed["spec"]["replicas"] == 4
    (container,) = changed["spec"]["template"]["spec"]["containers"]
    assert container["image"] == "registry.invalid/serve:2"
    # A scale does not claim replicas that nobody owned.
    taken = await client.apply(DEPLOYMENTS, a_deployment("d", replicas=2), "owner")
    assert taken["spec"]["replicas"] == 2


async def test_a_scale_takes_the_replicas_from_the_one_who_applied_them(client: KubeClient) -> None:
    await client.apply(DEPLOYMENTS, a_deployment("d", replicas=1), "owner")
    await client.patch_scale(DEPLOYMENTS, "d", NAMESPACE, 4)

    with pytest.raises(ConflictError, match=r"\.spec\.replicas"):
        await client.apply(DEPLOYMENTS, a_deployment("d", replicas=1), "owner")

    assert (await client.get(DEPLOYMENTS, "d", NAMESPACE))["spec"]["replicas"] == 4


async def test_an_apply_of_a_status_leaves_the_rest_alone(client: KubeClient) -> None:
    await client.create(NODES, a_node("n"))
    condition = {"type": "GpusHealthy", "status": "True", "reason": "Fine", "message": ""}
    status = {"metadata": {"name": "n"}, "status": {"conditions": [condition]}}

    changed = await client.apply(NODES, status, "discovery", subresource="status")

    assert changed["status"]["capacity"] == {"nvidia.com/gpu": "8"}
    assert [one["type"] for one in changed["status"]["conditions"]] == ["GpusHealthy"]


async def test_an_apply_needs_the_name_of_a_manager(client: KubeClient) -> None:
    with pytest.raises(InvalidRequestError):
        await client.apply(CONFIGMAPS, a_config_map("c"), "")


async def test_a_json_patch_applies_whole_or_not_at_all(client: KubeClient) -> None:
    await client.create(CONFIGMAPS, a_config_map("c", a="1"))
    add = {"op": "add", "path": "/data/b", "value": "2"}

    failing = [add, {"op": "test", "path": "/data/a", "value": "9"}]
    with pytest.raises(GpuloomError):
        await client.json_patch(CONFIGMAPS, "c", NAMESPACE, failing)
    unchanged = await client.get(CONFIGMAPS, "c", NAMESPACE)
    operations = [{"op": "test", "path": "/data/a", "value": "1"}, add]
    changed = await client.json_patch(CONFIGMAPS, "c", NAMESPACE, operations)

    assert unchanged["data"] == {"a": "1"}
    assert changed["data"] == {"a": "1", "b": "2"}


async def test_a_scale_is_guarded_by_the_version_it_was_decided_on(client: KubeClient) -> None:
    await client.create(DEPLOYMENTS, a_deployment("d", replicas=2))
    seen = await client.get_scale(DEPLOYMENTS, "d", NAMESPACE)

    scaled = await client.patch_scale(
        DEPLOYMENTS, "d", NAMESPACE, 3, resource_version=resource_version_of(seen)
    )
    with pytest.raises(ConflictError):
        await client.patch_scale(DEPLOYMENTS, "d", NAMESPACE, 5, resource_version=resource_version_of(seen))

    assert (seen["spec"]["replicas"], scaled["spec"]["replicas"]) == (2, 3)
    assert (await client.get(DEPLOYMENTS, "d", NAMESPACE))["spec"]["replicas"] == 3
