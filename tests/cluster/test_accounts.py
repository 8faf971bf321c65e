"""What many accounts do alike, each with the client code that they share: count up an Event, keep a Lease.

Which accounts these are comes from the charts, so the account of a new service is among them.
"""

import asyncio
from itertools import count

import pytest

from gpuloom.errors import NotFoundError
from gpuloom.kube.client import KubeClient
from gpuloom.kube.events import EventRecorder, EventSettings
from gpuloom.kube.informer import Informer
from gpuloom.kube.leadership import Leadership, LeadershipConfig
from gpuloom.kube.listing import Selection
from gpuloom.kube.objects import JsonObject
from gpuloom.kube.resources import (
    CONFIGMAPS,
    EVENTS,
    GPU_NODE_CONFIGS,
    GPU_SHARING_POLICIES,
    JOBS,
    LEASES,
    NODES,
    PODS,
    Resource,
)
from gpuloom.model.node import PodRef
from gpuloom.runtime.clock import SystemClock, deadline
from gpuloom.runtime.config import load_config
from services.mig_controller.adapters.configs import NodeConfigs, SharingPolicies, StatusWriter
from services.mig_controller.adapters.evictions import KubeEvictor
from services.mig_controller.adapters.intents import NAME as INTENTS
from services.mig_controller.adapters.intents import ConfigMapIntents
from services.mig_controller.controller import View
from services.optimizer.adapters.pods import Pods
from services.optimizer.core.workload import workload_of
from tests.cluster.fake_nodes import FakeNode, create_nodes
from tests.cluster.rights import granted
from tests.cluster.shared import AGENT_NAMESPACE, MANIFESTS, NAMESPACE, SharedControlPlane
from tests.mesh.waiting import running

pytestmark = pytest.mark.real

CLOCK = SystemClock()
NUMBERS = count()
NODE_CONFIGS = MANIFESTS.parent / "crds" / "gpu-autoscaler.io_gpunodeconfigs.yaml"
POLICIES = MANIFESTS.parent / "crds" / "gpu-autoscaler.io_gpusharingpolicies.yaml"
TELLING = sorted(
    {right.account for right in granted() if (right.verb, right.resource) == ("patch", "events")}
)
ELECTED = sorted(
    {
        (right.account, right.names[0])
        for right in granted()
        # kube-scheduler keeps its lease by itself.
        if (right.verb, right.resource) == ("get", "coordination.k8s.io/leases")
    }
)
LIMITS = {"limits": {"nvidia.com/gpu": "1"}}


async def as_account(shared: SharedControlPlane, account: str) -> KubeClient:
    namespace = AGENT_NAMESPACE if account == "gpuloom-node-agent" else NAMESPACE
    return shared.client(await shared.plane.service_account_kubeconfig(namespace, account))


@pytest.mark.parametrize("account", TELLING)
async def test_an_account_that_tells_events_counts_them_up(
    shared_control_plane: SharedControlPlane, account: str
) -> None:
    name = f"told-{next(NUMBERS)}"
    async with (
        shared_control_plane.client() as admin,
        await as_account(shared_control_plane, account) as client,
    ):
        await create_nodes(admin, [FakeNode(name, {})])
        node = {"apiVersion": "v1", "kind": "Node", **await admin.get(NODES, name)}
        recorder = EventRecorder(client, account, "one", CLOCK, EventSettings(interval_s=0.0))

        for _ in range(2):
            recorder.normal(node, "Told", "the same twice")
            await recorder.write_due()

        mine = Selection("default", field_selector=f"involvedObject.name={name}")
        events = [event for event in (await admin.list(EVENTS, mine)).items if event["reason"] == "Told"]
        await admin.delete(NODES, name)
    assert [event["count"] for event in events] == [2]
    assert recorder.dropped == 0


@pytest.mark.parametrize(("account", "lease"), ELECTED)
async def test_an_account_with_a_lease_takes_and_keeps_it(
    shared_control_plane: SharedControlPlane, account: str, lease: str
) -> None:
    environ = {"GPULOOM_LEASE_NAME": lease, "GPULOOM_LEADER_ELECTION": "true"}
    config = load_config(LeadershipConfig, environ | {"GPULOOM_LEASE_NAMESPACE": NAMESPACE})
    leads = asyncio.Event()

    async def work() -> None:
        leads.set()
        await asyncio.Event().wait()

    async def renewed(admin: KubeClient, since: str) -> None:
        while (await admin.get(LEASES, lease, NAMESPACE))["spec"]["renewTime"] == since:
            await CLOCK.sleep(0.1)

    async with (
        shared_control_plane.client() as admin,
        await as_account(shared_control_plane, account) as client,
    ):
        leadership = Leadership(client, config, CLOCK, environ)
        async with deadline(CLOCK, 30.0), running(lambda: leadership.run(work)):
            await leads.wait()
            spec = (await admin.get(LEASES, lease, NAMESPACE))["spec"]
            await renewed(admin, spec["renewTime"])
        await admin.delete(LEASES, lease, NAMESPACE)
    assert spec["holderIdentity"] == leadership.identity


async def test_the_mig_controller_keeps_its_intents_and_the_status_of_configurations(
    shared_control_plane: SharedControlPlane,
) -> None:
    await shared_control_plane.background.run_from_loop(shared_control_plane.plane.apply(NODE_CONFIGS))
    spec = {"metadata": {"name": "accounts"}, "spec": {"nodeName": "nowhere", "migEnabled": True}}
    async with (
        shared_control_plane.client() as admin,
        await as_account(shared_control_plane, "gpuloom-mig-controller") as client,
    ):
        intents = ConfigMapIntents(client, NAMESPACE, lambda timeout_s: timeout_s)
        observed = Informer(client, GPU_NODE_CONFIGS, CLOCK)
        configs = NodeConfigs(StatusWriter(client, lambda timeout_s: timeout_s), observed, CLOCK)

        for _ in range(2):
            await intents.save(())
        async with deadline(CLOCK, 30.0):
            await until_served(admin, spec)
            async with running(observed.run):
                while observed.get("accounts") is None:
                    await CLOCK.sleep(0.1)
                await configs.write_status(View())

        kept = await intents.load()
        (condition,) = (await admin.get(GPU_NODE_CONFIGS, "accounts"))["status"]["conditions"]
        await admin.delete(GPU_NODE_CONFIGS, "accounts")
        await admin.delete(CONFIGMAPS, INTENTS, NAMESPACE)
    assert kept == ()
    assert (condition["type"], condition["reason"]) == ("Applied", "NodeNotFound")


async def test_the_mig_controller_tells_policies_how_they_stand_and_has_pods_leave(
    shared_control_plane: SharedControlPlane,
) -> None:
    await shared_control_plane.background.run_from_loop(shared_control_plane.plane.apply(POLICIES))
    policy = {"metadata": {"name": "accounts"}, "spec": {"strategy": "mps"}}
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "u", "controller": True}
    pod = {
        "metadata": {"name": "leaves", "namespace": "default", "ownerReferences": [owner]},
        "spec": {"containers": [{"name": "main", "image": "example/model:1"}]},
    }
    async with (
        shared_control_plane.client() as admin,
        await as_account(shared_control_plane, "gpuloom-mig-controller") as client,
    ):
        observed, pods = Informer(client, GPU_SHARING_POLICIES, CLOCK), Informer(client, PODS, CLOCK)
        policies = SharingPolicies(StatusWriter(client, lambda timeout_s: timeout_s), observed, CLOCK)
        recorder = EventRecorder(client, "gpuloom-mig-controller", "h", CLOCK)
        evictor = KubeEvictor(client, pods, recorder, lambda timeout_s: timeout_s)
        created = await admin.create(PODS, pod)
        uid = str(created["metadata"]["uid"])

        async with deadline(CLOCK, 30.0):
            await until_served(admin, policy, GPU_SHARING_POLICIES)
            async with running(observed.run), running(pods.run):
                while observed.get("accounts") is None or pods.get("leaves", "default") is None:
                    await CLOCK.sleep(0.1)
                await policies.write_status(View())
                refused = await evictor.evict(PodRef("default", "leaves", uid), "room is made")

        (condition,) = (await admin.get(GPU_SHARING_POLICIES, "accounts"))["status"]["conditions"]
        await admin.delete(GPU_SHARING_POLICIES, "accounts")
        with pytest.raises(NotFoundError):
            await admin.get(PODS, "leaves", "default")
    assert refused == ""
    assert (condition["type"], condition["reason"]) == ("Ready", "NoGpuloomNodes")


async def until_served(admin: KubeClient, config: JsonObject, resource: Resource = GPU_NODE_CONFIGS) -> None:
    """A server serves a new kind a moment after it was defined."""
    while True:
        try:
            await admin.create(resource, config)
        except NotFoundError:
            await CLOCK.sleep(0.2)
        else:
            return


async def test_the_optimizer_reads_the_manifests_that_it_recommends_a_change_of(
    shared_control_plane: SharedControlPlane,
) -> None:
    template = {"restartPolicy": "Never", "containers": [{"name": "main", "image": "x", "resources": LIMITS}]}
    bare = {"metadata": {"name": "bare", "namespace": "default"}, "spec": template}
    job = {
        "metadata": {"name": "train", "namespace": "default"},
        "spec": {"template": {"spec": template}},
    }
    async with (
        shared_control_plane.client() as admin,
        await as_account(shared_control_plane, "gpuloom-optimizer") as client,
    ):
        made = await admin.create(JOBS, job)
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": made["metadata"]["uid"]}
        owned = {"name": "train-0", "namespace": "default", "ownerReferences": [owner | {"controller": True}]}
        pods = [await admin.create(PODS, bare), await admin.create(PODS, bare | {"metadata": owned})]
        workloads = [workload_of(pod) for pod in pods]

        manifests = [
            await Pods(client, CLOCK).manifest(workload) for workload in workloads if workload is not None
        ]

        for pod in pods:
            await admin.delete(PODS, pod["metadata"]["name"], "default")
        await admin.delete(JOBS, "train", "default")
    assert [(one["kind"], one["metadata"]["name"]) for one in manifests if one] == [
        ("Pod", "bare"),
        ("Job", "train"),
    ]
