"""What the autoscaler's account needs where a run sees it seldom: claims by hand, notices of a spot node."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpuloom.errors import NotFoundError
from gpuloom.kube.client import DeleteOptions, KubeClient
from gpuloom.kube.events import EventRecorder
from gpuloom.kube.informer import Informer, InformerOptions
from gpuloom.kube.objects import metadata_of
from gpuloom.kube.resources import GPU_NODE_CLAIMS, NODES, PDBS, PODS
from gpuloom.runtime.clock import SystemClock, deadline
from services.autoscaler.core.buying.filling import MachineForm
from services.autoscaler.core.lifecycle.drain import ANNOTATION_CHECKPOINT_REQUESTED
from services.autoscaler.nodes.claim_store import FINALIZER, ClaimStore
from services.autoscaler.nodes.cluster import ClusterReader, Sources, index_by_node
from services.autoscaler.nodes.drainer import Drainer
from tests.cluster.fake_nodes import FakeNode, create_nodes
from tests.cluster.shared import MANIFESTS, SharedControlPlane, account_of
from tests.mesh.waiting import running

pytestmark = pytest.mark.real

CLOCK = SystemClock()
CLAIMS = MANIFESTS.parent / "crds" / "gpuloom.dev_gpunodeclaims.yaml"
CLAIM = Path(__file__).parents[2] / "examples" / "custom-resources" / "gpunodeclaim.yaml"
NODE = "spot-node"


@asynccontextmanager
async def the_account(shared: SharedControlPlane) -> AsyncIterator[KubeClient]:
    kubeconfig = await shared.plane.service_account_kubeconfig(*account_of("autoscaler"))
    async with shared.client(kubeconfig) as client:
        yield client


async def test_a_claim_made_by_hand_is_protected_and_then_forgotten(
    shared_control_plane: SharedControlPlane,
) -> None:
    await shared_control_plane.background.run_from_loop(shared_control_plane.plane.apply(CLAIMS))
    (claim, *_) = yaml.safe_load_all(CLAIM.read_text(encoding="utf-8"))
    name = claim["metadata"]["name"]
    async with shared_control_plane.client() as admin, the_account(shared_control_plane) as client:
        store = ClaimStore(client, CLOCK, lambda timeout_s: timeout_s)
        async with deadline(CLOCK, 30.0), running(store.informer.run):
            while not await served(admin, claim):
                await CLOCK.sleep(0.2)
            while not store.claims():
                await CLOCK.sleep(0.1)

            await store.protect()
            protected = await admin.get(GPU_NODE_CLAIMS, name)
            while not store.caught_up():
                await CLOCK.sleep(0.1)
            await store.forget(store.claims()[0])

        with pytest.raises(NotFoundError):
            await admin.get(GPU_NODE_CLAIMS, name)
    assert metadata_of(protected)["finalizers"] == [FINALIZER]


async def served(admin: KubeClient, claim: dict[str, Any]) -> bool:
    """A server serves a new kind a moment after it was defined."""
    try:
        await admin.create(GPU_NODE_CLAIMS, claim)
    except NotFoundError:
        return False
    return True


async def test_a_spot_notice_asks_a_pod_that_leaves_last_to_save_its_work(
    shared_control_plane: SharedControlPlane,
) -> None:
    urgent = {"name": "training", "annotations": {"gpu-autoscaler.io/eviction-priority": "high"}}
    pod = {
        "metadata": urgent | {"namespace": "default"},
        "spec": {"nodeName": NODE, "containers": [{"name": "main", "image": "x"}]},
    }
    async with shared_control_plane.client() as admin, the_account(shared_control_plane) as client:
        await create_nodes(admin, [FakeNode(NODE, {})])
        await admin.create(PODS, pod)
        nobody: Any = None
        pods = Informer(client, PODS, CLOCK, InformerOptions(indexes={"node": index_by_node}))
        nodes = Informer(client, NODES, CLOCK)
        reader = ClusterReader(
            Sources(pods, nodes, Informer(client, PDBS, CLOCK), nobody, nobody, nobody),
            MachineForm(),
            lambda _: {},
        )
        drainer = Drainer(client, reader, EventRecorder(client, "test", "one", CLOCK), CLOCK)
        async with deadline(CLOCK, 30.0), running(pods.run), running(nodes.run):
            while not (reader.tenants(NODE) and nodes.get(NODE)):
                await CLOCK.sleep(0.1)

            now = CLOCK.now()
            await drainer.drain(NODE, now, now + timedelta(minutes=2), "notice")

        asked = metadata_of(await admin.get(PODS, "training", "default"))["annotations"]
        node = await admin.get(NODES, NODE)
        await admin.delete(PODS, "training", "default", DeleteOptions(grace_period_s=0))
        await admin.delete(NODES, NODE)
    assert asked[ANNOTATION_CHECKPOINT_REQUESTED]
    assert node["spec"]["unschedulable"]
