"""Every service account can do what its service does, and nothing beyond it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from datetime import timedelta

import pytest
from prometheus_client import CollectorRegistry

from gpuloom.catalog.manifests import definitions
from gpuloom.codec.hold import hold_from_object
from gpuloom.errors import ConflictError, NotAllowedError, NotFoundError
from gpuloom.kube.cache import Change
from gpuloom.kube.client import KubeClient, PodBinding
from gpuloom.kube.events import EventRecorder
from gpuloom.kube.informer import Informer
from gpuloom.kube.listing import Selection
from gpuloom.kube.objects import JsonObject, resource_version_of, uid_of
from gpuloom.kube.resources import CONFIGMAPS, EVENTS, LEASES, NODES, PODS, RUNTIME_CLASSES, Resource
from gpuloom.model.claims import HoldOwner
from gpuloom.model.gpu import Gpu, GpuHealth
from gpuloom.model.ledger import Hold
from gpuloom.model.node import Delivery, NodeMode, NodeState
from gpuloom.names import ANNOTATION_CAPACITY_EPOCH, ANNOTATION_EPOCH
from gpuloom.placement.demand import Demand
from gpuloom.runtime.clock import SystemClock, deadline
from services.discovery.adapters.informers import observing_nodes
from services.discovery.adapters.kubernetes import DEFAULT_LABELS
from services.discovery.core.cluster import ClusterModel
from services.discovery.writer.config import WriterConfig
from services.discovery.writer.metrics import WriterMetrics
from services.discovery.writer.wiring import Writer, WriterParts
from services.node_agent.delivery.runtime_class import RuntimeClassReader
from services.scheduler_extender.adapters.demand import NAME, DemandStore
from services.scheduler_extender.adapters.holds import HoldFeed, KubernetesHolds
from services.scheduler_extender.adapters.name_warnings import NameWarnings
from tests.cluster.fake_nodes import FakeNode, create_nodes
from tests.cluster.shared import SharedControlPlane, account_of
from tests.mesh.waiting import running

pytestmark = pytest.mark.real

NAMESPACE = "gpuloom-system"
DEFINITIONS = Resource(
    "apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", namespaced=False
)
CLOCK = SystemClock()
REVIEWS = Resource("authorization.k8s.io", "v1", "selfsubjectaccessreviews", "SelfSubjectAccessReview", False)

Right = tuple[str, str]
"""Verb and resource: `group:plural/subresource`, without the parts that it does not have."""

GANG_OWNERS = (
    *("batch:jobs", "jobset.x-k8s.io:jobsets", "kubeflow.org:pytorchjobs", "kubeflow.org:mpijobs"),
    *("ray.io:rayclusters", "ray.io:rayjobs", "leaderworkerset.x-k8s.io:leaderworkersets"),
)
VERBS = ("get", "list", "watch", "create", "update", "patch", "delete", "deletecollection")
RESOURCES = (
    *("nodes", "nodes/status", "nodes/proxy"),
    *("pods", "pods/status", "pods/binding", "pods/eviction", "pods/exec", "pods/log"),
    *("secrets", "configmaps", "serviceaccounts", "serviceaccounts/token", "events", "namespaces"),
    *("coordination.k8s.io:leases", "policy:poddisruptionbudgets", "apps:deployments"),
    *("rbac.authorization.k8s.io:clusterroles", "rbac.authorization.k8s.io:clusterrolebindings"),
    *("gpuloom.dev:gpuholds", "gpuloom.dev:gpuholds/status", "gpuloom.dev:gpunodeclaims"),
    *("gpuloom.dev:gpureservations", "gpuloom.dev:gpureservations/status"),
    *GANG_OWNERS,
    "node.k8s.io:runtimeclasses",
    "admissionregistration.k8s.io:validatingadmissionpolicies",
    "admissionregistration.k8s.io:validatingadmissionpolicybindings",
)

EXPECTED: dict[str, set[Right]] = {
    "node-agent": {(verb, resource) for verb in ("list", "watch") for resource in ("nodes", "pods")},
    "discovery": {
        *((verb, resource) for verb in ("list", "watch") for resource in ("nodes", "pods")),
        ("patch", "nodes/status"),
    },
    "scheduler-extender": {
        *((verb, "pods") for verb in ("get", "list", "watch", "patch")),
        *((verb, "nodes") for verb in ("list", "watch", "patch")),
        ("create", "pods/binding"),
        ("create", "pods/eviction"),
        ("list", "policy:poddisruptionbudgets"),
        *((verb, "events") for verb in ("create", "patch")),
        *((verb, "gpuloom.dev:gpureservations") for verb in ("list", "watch", "create", "delete")),
        ("patch", "gpuloom.dev:gpureservations/status"),
        *(("get", owner) for owner in GANG_OWNERS),
        *((verb, "gpuloom.dev:gpuholds") for verb in ("get", "list", "watch", "create", "patch", "delete")),
    },
}


async def may(client: KubeClient, verb: str, resource: str, namespace: str = "") -> bool:
    group, _, plural = resource.rpartition(":")
    plural, _, subresource = plural.partition("/")
    attributes = {
        "verb": verb,
        "group": group,
        "resource": plural,
        "subresource": subresource,
        "namespace": namespace,
    }
    review = {"metadata": {}, "spec": {"resourceAttributes": attributes}}
    return bool((await client.create(REVIEWS, review))["status"]["allowed"])


async def rights(client: KubeClient) -> set[Right]:
    asked = [(verb, resource) for resource in RESOURCES for verb in VERBS]
    answers = await asyncio.gather(*(may(client, verb, resource) for verb, resource in asked))
    return {right for right, allowed in zip(asked, answers, strict=True) if allowed}


async def as_account(shared: SharedControlPlane, name: str) -> KubeClient:
    return shared.client(await shared.plane.service_account_kubeconfig(*account_of(name)))


@pytest.fixture
async def pod(shared_control_plane: SharedControlPlane) -> AsyncIterator[JsonObject]:
    async with shared_control_plane.client() as admin:
        await create_nodes(admin, [FakeNode("rbac-node", {"nvidia.com/gpu": "8"})])
        manifest = {
            "metadata": {"namespace": NAMESPACE, "name": "p"},
            "spec": {"containers": [{"name": "main", "image": "registry.example.com/work:1"}]},
        }
        yield await admin.create(PODS, manifest)
        await admin.delete(PODS, "p", NAMESPACE)
        await admin.delete(NODES, "rbac-node")


@pytest.mark.parametrize("account", EXPECTED)
async def test_an_account_has_exactly_the_rights_of_its_service(
    shared_control_plane: SharedControlPlane, account: str
) -> None:
    async with await as_account(shared_control_plane, account) as client:
        assert await rights(client) == EXPECTED[account]


async def test_the_agent_reads_its_node_and_its_pods_and_writes_neither(
    shared_control_plane: SharedControlPlane, pod: JsonObject
) -> None:
    mine = Selection(field_selector="metadata.name=rbac-node")
    async with await as_account(shared_control_plane, "node-agent") as client:
        listing = await client.list(NODES, mine)
        await client.list(PODS, Selection(field_selector="spec.nodeName=rbac-node"))
        async with shared_control_plane.client() as admin:
            await admin.patch(NODES, "rbac-node", None, {"metadata": {"labels": {"seen": "yes"}}})
        async with (
            deadline(CLOCK, 10.0),
            aclosing(client.watch(NODES, listing.resource_version, mine)) as events,
        ):
            event = await anext(events)

        assert event.object["metadata"]["labels"]["seen"] == "yes"
        with pytest.raises(NotAllowedError):
            await client.patch(NODES, "rbac-node", None, {"metadata": {"labels": {"seen": "no"}}})
        with pytest.raises(NotAllowedError):
            await client.patch(PODS, "p", NAMESPACE, {"metadata": {"annotations": {"a": "b"}}})


async def test_the_agent_finds_nvidias_runtime_class_and_reads_no_other(
    shared_control_plane: SharedControlPlane,
) -> None:
    async with (
        shared_control_plane.client() as admin,
        await as_account(shared_control_plane, "node-agent") as client,
    ):
        reader = RuntimeClassReader(client, "nvidia", CLOCK)
        await reader.read_if_due()
        before = reader.found
        for name in ("nvidia", "other"):
            await admin.create(RUNTIME_CLASSES, {"metadata": {"name": name}, "handler": "nvidia"})
        later = RuntimeClassReader(client, "nvidia", CLOCK)
        await later.read_if_due()

        assert (before, later.found) == (False, True)
        with pytest.raises(NotAllowedError):
            await client.get(RUNTIME_CLASSES, "other")
        for name in ("nvidia", "other"):
            await admin.delete(RUNTIME_CLASSES, name)


async def test_discoverys_writer_works_with_its_account_and_reaches_no_further(
    shared_control_plane: SharedControlPlane, pod: JsonObject
) -> None:
    async with (
        shared_control_plane.client() as admin,
        await as_account(shared_control_plane, "discovery") as client,
    ):
        nodes, model = Informer(client, NODES, CLOCK), ClusterModel(ttl_s=30.0)
        nodes.on_change(observing_nodes(model, DEFAULT_LABELS))
        writer = Writer(
            WriterParts(client, nodes, model), WriterConfig(), CLOCK, WriterMetrics(CollectorRegistry())
        )
        async with asyncio.TaskGroup() as group, deadline(CLOCK, 30.0):
            tasks = [group.create_task(nodes.run()), group.create_task(writer.run())]
            await nodes.wait_synced()
            uid = uid_of(await admin.get(NODES, "rbac-node"))
            model.expect_agent("rbac-node", CLOCK.monotonic())
            model.hear("rbac-node", CLOCK.monotonic(), an_agents_state("rbac-node", uid))
            writer.observe(model.changes(CLOCK.monotonic()))
            node = await written(admin, "rbac-node")
            while not (events := await events_about(admin, "rbac-node")):
                await CLOCK.sleep(0.2)
            for task in tasks:
                task.cancel()

        assert node["metadata"]["labels"]["gpuloom.dev/mode"] == "gpuloom"
        assert node["status"]["allocatable"]["gpuloom.dev/gpu-milli"] == "1k"
        assert {event["reason"] for event in events} == {"TwoAuthorities"}
        with pytest.raises(NotAllowedError):
            await client.patch(NODES, "rbac-node", None, {"spec": {"unschedulable": True}})
        with pytest.raises(NotAllowedError):
            await client.patch(PODS, "p", NAMESPACE, {"metadata": {"annotations": {"a": "b"}}})
        with pytest.raises(NotAllowedError):
            await client.get(LEASES, "kube-scheduler", "kube-system")


def an_agents_state(name: str, uid: str) -> NodeState:
    """An agent that gives out GPUs itself, where the node offers those of a device plugin, too."""
    gpu = Gpu("GPU-a", 0, "A100-SXM4-40GB", "ampere", 40_960, GpuHealth.HEALTHY)
    return NodeState(name, uid, NodeMode.GPULOOM, Delivery.NRI, (gpu,))


async def written(admin: KubeClient, name: str) -> JsonObject:
    while "gpuloom.dev/mode" not in (node := await admin.get(NODES, name))["metadata"].get("labels", {}):
        await CLOCK.sleep(0.2)
    return node


async def events_about(admin: KubeClient, name: str) -> list[JsonObject]:
    listing = await admin.list(EVENTS, Selection(field_selector=f"involvedObject.name={name}"))
    return [event for event in listing.items if event["source"]["component"] == "gpuloom-discovery"]


async def test_the_extender_keeps_its_statistics_in_its_own_configmap_and_reads_no_other(
    shared_control_plane: SharedControlPlane,
) -> None:
    demand = Demand(pods=1.0, gpus=1.0)
    async with (
        await as_account(shared_control_plane, "scheduler-extender") as client,
        shared_control_plane.client() as admin,
    ):
        store = DemandStore(client, NAMESPACE, CLOCK)
        try:
            await store.save(Demand().to_json())
            await store.save(demand.to_json())

            assert await store.load() == demand
            with pytest.raises(NotAllowedError):
                await client.get(CONFIGMAPS, "kube-root-ca.crt", NAMESPACE)
            with pytest.raises(NotAllowedError):
                await client.delete(CONFIGMAPS, NAME, NAMESPACE)
        finally:
            await admin.delete(CONFIGMAPS, NAME, NAMESPACE)


async def test_the_extender_tells_a_pod_once_of_names_that_nothing_reads(
    shared_control_plane: SharedControlPlane, pod: JsonObject
) -> None:
    misspelled = {"metadata": {"annotations": {"gpuloom.dev/gpu-modell": "A100"}}}
    async with (
        await as_account(shared_control_plane, "scheduler-extender") as client,
        shared_control_plane.client() as admin,
    ):
        shown = await admin.patch(PODS, "p", NAMESPACE, misspelled)
        for replica in ("one", "two"):
            recorder = EventRecorder(client, "gpuloom-scheduler-extender", replica, CLOCK)
            warnings = NameWarnings(recorder, CLOCK, lambda: True)
            warnings.observe(Change(None, shown))
            await warnings.tell()
            assert recorder.dropped == 0

        events = await admin.list(EVENTS, Selection(field_selector=f"involvedObject.uid={uid_of(pod)}"))
        assert [event["reason"] for event in events.items] == ["UnknownName"]


async def test_the_extender_stamps_binds_and_wakes_but_deletes_nothing(
    shared_control_plane: SharedControlPlane, pod: JsonObject
) -> None:
    async with await as_account(shared_control_plane, "scheduler-extender") as client:
        stamp = {"metadata": {"uid": uid_of(pod), "annotations": {ANNOTATION_EPOCH: "1"}}}
        stamped = await client.patch(PODS, "p", NAMESPACE, stamp)
        wake = {"metadata": {"annotations": {ANNOTATION_CAPACITY_EPOCH: "1"}}}
        await client.patch(NODES, "rbac-node", None, wake)
        await client.bind(PodBinding(NAMESPACE, "p", "rbac-node", uid_of(pod), resource_version_of(stamped)))

        assert (await client.get(PODS, "p", NAMESPACE))["spec"]["nodeName"] == "rbac-node"
        with pytest.raises(NotAllowedError):
            await client.delete(PODS, "p", NAMESPACE)
        with pytest.raises(NotAllowedError):
            await client.patch_status(NODES, "rbac-node", None, {"status": {"capacity": {"cpu": "1"}}})


async def test_the_extender_keeps_holds_and_a_renewed_one_is_not_ended_as_expired(
    shared_control_plane: SharedControlPlane,
) -> None:
    """On a server without the kind there is none; with it, whoever knows an older version ends nothing."""
    hold = Hold("rbac", "rbac-node", HoldOwner("Service", "test"), "test", taken_by="test")
    async with (
        await as_account(shared_control_plane, "scheduler-extender") as client,
        shared_control_plane.client() as admin,
    ):
        definition = next(each for each in definitions() if each["spec"]["names"]["kind"] == "GPUHold")
        # Another test of this control plane may have installed all kinds.
        await without_definition(admin, "gpuholds.gpuloom.dev")
        feed, store = HoldFeed(client, CLOCK, prompt=True), KubernetesHolds(client)
        async with running(feed.run):
            await feed.relist()
            assert feed.informer.objects() == []
        await admin.create(DEFINITIONS, dict(definition))
        try:
            taken = await until_served(lambda: store.create(hold, timeout_s=5.0))
            renewed = await store.renew(taken, CLOCK.now() + timedelta(minutes=1), timeout_s=5.0)
            with pytest.raises(ConflictError):
                await store.delete(taken, timeout_s=5.0, at_version=True)
            async with running(feed.run):
                await feed.relist()
                assert [hold_from_object(obj) for obj in feed.informer.objects()] == [renewed]
            assert await store.read("rbac") == renewed
            await store.delete(renewed, timeout_s=5.0, at_version=True)
            with pytest.raises(NotFoundError):
                await store.renew(renewed, None, timeout_s=5.0)
        finally:
            await without_definition(admin, "gpuholds.gpuloom.dev")


async def without_definition(admin: KubeClient, name: str) -> None:
    """Deleting takes a moment: the server clears the kind's objects first."""
    async with deadline(CLOCK, 30.0):
        while True:
            try:
                await admin.delete(DEFINITIONS, name)
            except NotFoundError:
                return
            await CLOCK.sleep(0.2)


async def until_served(create: Callable[[], Awaitable[Hold]]) -> Hold:
    """A server serves a new kind a moment after it was defined."""
    while True:
        try:
            return await create()
        except NotFoundError:
            await asyncio.sleep(0.1)


async def test_our_scheduler_keeps_its_own_lease_and_can_not_take_anothers(
    shared_control_plane: SharedControlPlane,
) -> None:
    async with shared_control_plane.client() as admin:
        foreign = await admin.create(LEASES, a_lease("somebody-elses"))
        async with await as_account(shared_control_plane, "scheduler") as client:
            await client.replace(LEASES, await client.create(LEASES, a_lease("gpuloom-scheduler")))

            assert await may(client, "list", "nodes")
            assert await may(client, "create", "pods/binding")
            assert not await may(client, "get", "secrets")
            with pytest.raises(NotAllowedError):
                await client.replace(LEASES, foreign)
        for name in ("somebody-elses", "gpuloom-scheduler"):
            await admin.delete(LEASES, name, NAMESPACE)


def a_lease(name: str) -> JsonObject:
    return {"metadata": {"namespace": NAMESPACE, "name": name}, "spec": {"holderIdentity": "holder"}}
