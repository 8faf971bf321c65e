"""Create, read, change, delete."""

import asyncio

import pytest

from gpuloom.errors import ConflictError, NotAllowedError, NotFoundError
from gpuloom.kube.client import DeleteOptions, KubeClient
from gpuloom.kube.errors import AlreadyExistsError
from gpuloom.kube.listing import Selection
from gpuloom.kube.objects import JsonObject, resource_version_of, uid_of
from gpuloom.kube.resources import CONFIGMAPS, NODES, PODS, Resource
from gpuloom.runtime.clock import SystemClock
from tests.contract.kube.builders import NAMESPACE, a_config_map, a_node, a_pod, ensure_namespace
from tests.contract.kube.conftest import KubeApiUnderTest

CRDS = Resource(
    "apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", namespaced=False
)
WIDGETS = Resource("contract.gpuloom.dev", "v1", "widgets", "Widget")


@pytest.fixture(autouse=True)
async def namespace(client: KubeClient) -> None:
    await ensure_namespace(client)


async def test_an_object_is_created_read_changed_and_deleted(client: KubeClient) -> None:
    created = await client.create(CONFIGMAPS, a_config_map("c", color="red"))
    changed = await client.replace(CONFIGMAPS, {**created, "data": {"color": "blue"}})
    read = await client.get(CONFIGMAPS, "c", NAMESPACE)
    await client.delete(CONFIGMAPS, "c", NAMESPACE)

    assert uid_of(created)
    assert resource_version_of(changed) != resource_version_of(created)
    assert read["data"] == {"color": "blue"}
    with pytest.raises(NotFoundError):
        await client.get(CONFIGMAPS, "c", NAMESPACE)


async def test_a_second_object_of_the_same_name_is_refused(client: KubeClient) -> None:
    await client.create(CONFIGMAPS, a_config_map("c"))

    with pytest.raises(AlreadyExistsError):
        await client.create(CONFIGMAPS, a_config_map("c"))


async def test_a_replacement_of_an_old_version_is_refused(client: KubeClient) -> None:
    created = await client.create(CONFIGMAPS, a_config_map("c"))
    await client.replace(CONFIGMAPS, {**created, "data": {"color": "blue"}})

    with pytest.raises(ConflictError):
        await client.replace(CONFIGMAPS, {**created, "data": {"color": "red"}})


async def test_a_write_that_changes_nothing_keeps_the_version(client: KubeClient) -> None:
    created = await client.create(CONFIGMAPS, a_config_map("c", color="red"))

    same = await client.replace(CONFIGMAPS, created)

    assert resource_version_of(same) == resource_version_of(created)


async def test_a_merge_patch_adds_changes_and_removes(client: KubeClient) -> None:
    await client.create(CONFIGMAPS, a_config_map("c", keep="1", change="1", remove="1"))

    patched = await client.patch(
        CONFIGMAPS, "c", NAMESPACE, {"data": {"change": "2", "remove": None, "add": "1"}}
    )

    assert patched["data"] == {"keep": "1", "change": "2", "add": "1"}


async def test_a_patch_of_an_old_version_is_refused(client: KubeClient) -> None:
    created = await client.create(CONFIGMAPS, a_config_map("c"))
    version = resource_version_of(created)
    await client.patch(CONFIGMAPS, "c", NAMESPACE, {"data": {"a": "1"}}, resource_version=version)

    with pytest.raises(ConflictError):
        await client.patch(CONFIGMAPS, "c", NAMESPACE, {"data": {"a": "2"}}, resource_version=version)

    assert (await client.get(CONFIGMAPS, "c", NAMESPACE))["data"] == {"a": "1"}


async def test_a_patch_meant_for_a_namesake_is_refused(client: KubeClient) -> None:
    await client.create(PODS, a_pod("p"))

    with pytest.raises(ConflictError):
        await client.patch(PODS, "p", NAMESPACE, {"metadata": {"uid": "another", "labels": {"a": "b"}}})
    with pytest.raises(ConflictError):
        await client.patch_status(
            PODS, "p", NAMESPACE, {"metadata": {"uid": "another"}, "status": {"phase": "Failed"}}
        )

    pod = await client.get(PODS, "p", NAMESPACE)
    assert "labels" not in pod["metadata"]
    assert pod["status"]["phase"] == "Pending"


async def test_a_node_is_created_with_its_status_and_a_pod_without(client: KubeClient) -> None:
    node = await client.create(NODES, a_node("n"))
    pod = await client.create(PODS, {**a_pod("p"), "status": {"phase": "Running"}})

    assert node["status"]["capacity"] == {"nvidia.com/gpu": "8"}
    assert pod["status"]["phase"] == "Pending"


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        *(("8", "8"), ("500", "500"), ("1000", "1k"), ("1500", "1500"), ("64000", "64k"), ("0", "0")),
        *(("2000m", "2"), ("1500m", "1500m"), ("0.5", "500m"), ("1e3", "1e3"), ("1E", "1E")),
        *(("1024Gi", "1Ti"), ("1536Mi", "1536Mi"), ("1.5Gi", "1536Mi"), ("512Ki", "512Ki"), ("0Gi", "0")),
    ],
)
async def test_an_amount_is_shown_in_its_shortest_form(client: KubeClient, given: str, shown: str) -> None:
    node = {"metadata": {"name": "n"}, "status": {"capacity": {"memory": given}}}

    created = await client.create(NODES, node)

    assert created["status"]["capacity"] == {"memory": shown}


async def test_a_status_patch_leaves_the_spec_alone_and_the_other_way_round(client: KubeClient) -> None:
    await client.create(NODES, a_node("n"))

    await client.patch_status(
        NODES, "n", None, {"status": {"capacity": {"cpu": "4"}}, "spec": {"unschedulable": True}}
    )
    node = await client.patch(
        NODES, "n", None, {"spec": {"podCIDR": "10.0.0.0/24"}, "status": {"capacity": {"cpu": "9"}}}
    )

    assert "unschedulable" not in node["spec"]
    assert node["spec"]["podCIDR"] == "10.0.0.0/24"
    assert node["status"]["capacity"]["cpu"] == "4"


async def test_one_status_patch_carries_a_nodes_labels_annotations_and_resources(client: KubeClient) -> None:
    name = "n"
    node = await client.create(NODES, {"metadata": {"name": name, "labels": {"kept": "yes"}}})
    patch = {
        "metadata": {"labels": {"example.com/mode": "a"}, "annotations": {"example.com/note": "b"}},
        "status": {
            "capacity": {"example.com/gpu-milli": "8000"},
            "conditions": [{"type": "GpusHealthy", "status": "True", "reason": "Fine", "message": ""}],
        },
    }

    changed = await client.patch_status(
        NODES, name, None, patch, resource_version=node["metadata"]["resourceVersion"]
    )

    assert changed["metadata"]["labels"] == {"kept": "yes", "example.com/mode": "a"}
    assert changed["metadata"]["annotations"]["example.com/note"] == "b"
    assert changed["status"]["capacity"]["example.com/gpu-milli"] == "8k"
    assert [condition["type"] for condition in changed["status"]["conditions"]] == ["GpusHealthy"]
    with pytest.raises(ConflictError):
        await client.patch_status(
            NODES, name, None, patch, resource_version=node["metadata"]["resourceVersion"]
        )


async def test_a_generated_name_is_new_every_time(client: KubeClient) -> None:
    template = {"metadata": {"namespace": NAMESPACE, "generateName": "made-"}}

    first = await client.create(CONFIGMAPS, template)
    second = await client.create(CONFIGMAPS, template)

    names = {first["metadata"]["name"], second["metadata"]["name"]}
    assert len(names) == 2
    assert all(name.startswith("made-") and len(name) > len("made-") for name in names)


async def test_a_deletion_meant_for_a_namesake_is_refused(client: KubeClient) -> None:
    await client.create(CONFIGMAPS, a_config_map("c"))

    with pytest.raises(ConflictError):
        await client.delete(CONFIGMAPS, "c", NAMESPACE, DeleteOptions(uid="another"))
    with pytest.raises(ConflictError):
        await client.delete(CONFIGMAPS, "c", NAMESPACE, DeleteOptions(resource_version="1"))

    assert await client.get(CONFIGMAPS, "c", NAMESPACE)


async def test_a_bound_pod_stays_for_its_grace_period_and_goes_at_once_when_forced(
    client: KubeClient,
) -> None:
    await client.create(NODES, a_node("n"))
    pod = a_pod("p")
    pod["spec"]["nodeName"] = "n"
    await client.create(PODS, pod)

    await client.delete(PODS, "p", NAMESPACE, DeleteOptions(grace_period_s=20))
    ending = await client.get(PODS, "p", NAMESPACE)
    await client.delete(PODS, "p", NAMESPACE, DeleteOptions(grace_period_s=0))

    assert ending["metadata"]["deletionTimestamp"]
    assert ending["metadata"]["deletionGracePeriodSeconds"] == 20
    with pytest.raises(NotFoundError):
        await client.get(PODS, "p", NAMESPACE)


async def test_an_unbound_pod_goes_at_once(client: KubeClient) -> None:
    await client.create(PODS, a_pod("p"))

    await client.delete(PODS, "p", NAMESPACE)

    with pytest.raises(NotFoundError):
        await client.get(PODS, "p", NAMESPACE)


async def test_finalizers_keep_a_deleted_object_until_they_are_lifted(client: KubeClient) -> None:
    held = a_config_map("c")
    held["metadata"]["finalizers"] = ["contract.gpuloom.dev/hold"]
    await client.create(CONFIGMAPS, held)

    await client.delete(CONFIGMAPS, "c", NAMESPACE)
    ending = await client.get(CONFIGMAPS, "c", NAMESPACE)
    await client.patch(CONFIGMAPS, "c", NAMESPACE, {"metadata": {"finalizers": None}})

    assert ending["metadata"]["deletionTimestamp"]
    with pytest.raises(NotFoundError):
        await client.get(CONFIGMAPS, "c", NAMESPACE)


async def test_a_custom_resource_takes_any_shape(client: KubeClient) -> None:
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    names = {"plural": "widgets", "singular": "widget", "kind": "Widget", "listKind": "WidgetList"}
    definition = {
        "metadata": {"name": "widgets.contract.gpuloom.dev"},
        "spec": {"group": WIDGETS.group, "scope": "Namespaced", "names": names, "versions": [version]},
    }
    await client.create(CRDS, definition)

    created = await create_when_served(
        client, {"metadata": {"namespace": NAMESPACE, "name": "w"}, "spec": {"any": [1, {"thing": None}]}}
    )

    assert created["spec"]["any"][0] == 1
    assert len((await client.list(WIDGETS, Selection(NAMESPACE))).items) == 1


async def create_when_served(client: KubeClient, widget: JsonObject) -> JsonObject:
    """An API server serves a new kind a little after it accepted the definition."""
    async with asyncio.timeout(10.0):
        while True:
            try:
                return await client.create(WIDGETS, widget)
            except NotFoundError:
                await asyncio.sleep(0.05)


async def test_a_wrong_token_is_refused(kube_api: KubeApiUnderTest) -> None:
    async with KubeClient(kube_api.access_as("wrong"), SystemClock()) as stranger:
        with pytest.raises(NotAllowedError):
            await stranger.get(CONFIGMAPS, "c", NAMESPACE)
