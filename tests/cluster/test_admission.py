"""Nobody but the extender writes which devices a pod has, by whatever way annotations can be written."""

from collections.abc import AsyncIterator

import pytest

from gpuloom.errors import GpuloomError, InvalidRequestError, NotAllowedError
from gpuloom.kube.client import KubeClient, PodBinding
from gpuloom.kube.objects import JsonObject, metadata_of, resource_version_of, uid_of
from gpuloom.kube.resources import NODES, PODS, Resource
from gpuloom.names import ANNOTATION_ALLOCATION, ANNOTATION_EPOCH, ANNOTATION_VISIBLE_DEVICES
from gpuloom.runtime.clock import SystemClock, deadline
from tests.cluster.fake_nodes import FakeNode, create_nodes
from tests.cluster.shared import DEPLOY, SharedControlPlane

pytestmark = pytest.mark.real

NAMESPACE = "gpuloom-system"
NODE = "admission-node"
POD = "admitted"
CLOCK = SystemClock()
POLICY = "gpuloom-allocation-annotations"
GROUP = "admissionregistration.k8s.io"
POLICIES = (
    Resource(GROUP, "v1", "validatingadmissionpolicybindings", "ValidatingAdmissionPolicyBinding", False),
    Resource(GROUP, "v1", "validatingadmissionpolicies", "ValidatingAdmissionPolicy", False),
)
REFUSAL = "only the GPULoom scheduler extender may write annotation gpuloom.dev/"


def a_pod(name: str, **annotations: str) -> JsonObject:
    containers = [{"name": "main", "image": "registry.example.com/work:1"}]
    metadata = {"namespace": NAMESPACE, "name": name, "annotations": annotations}
    # No kubelet is there to say that it has ended.
    return {"metadata": metadata, "spec": {"containers": containers, "terminationGracePeriodSeconds": 0}}


def annotated(**annotations: str | None) -> JsonObject:
    return {"metadata": {"annotations": annotations}}


def a_binding(pod: JsonObject) -> PodBinding:
    given = {ANNOTATION_ALLOCATION: "{}", ANNOTATION_VISIBLE_DEVICES: "GPU-a"}
    return PodBinding(
        NAMESPACE, metadata_of(pod)["name"], NODE, uid_of(pod), resource_version_of(pod), annotations=given
    )


@pytest.fixture
async def admin(shared_control_plane: SharedControlPlane) -> AsyncIterator[KubeClient]:
    """The administrator, who may do anything but this; the policy is in force."""
    async with shared_control_plane.client() as client:
        await create_nodes(client, [FakeNode(NODE, {"nvidia.com/gpu": "8"})])
        await shared_control_plane.background.run_from_loop(
            shared_control_plane.plane.apply(DEPLOY / "admission")
        )
        await _wait_in_force(client)
        yield client
        for resource in POLICIES:
            await client.delete(resource, POLICY)
        await client.delete(PODS, POD, NAMESPACE)
        await client.delete(NODES, NODE)


async def test_only_the_extender_writes_allocations(
    shared_control_plane: SharedControlPlane, admin: KubeClient
) -> None:
    account = await shared_control_plane.plane.service_account_kubeconfig(NAMESPACE, "scheduler-extender")
    pod = await admin.create(PODS, a_pod(POD, note="1"))

    async with shared_control_plane.client(account) as extender:
        for annotation in (ANNOTATION_ALLOCATION, ANNOTATION_VISIBLE_DEVICES):
            with pytest.raises(GpuloomError, match=REFUSAL):
                await admin.create(PODS, a_pod("forged", **{annotation: "x"}))
            with pytest.raises(GpuloomError, match=REFUSAL):
                await admin.patch(PODS, POD, NAMESPACE, annotated(**{annotation: "x"}))
            with pytest.raises(GpuloomError, match=REFUSAL):
                await admin.patch_status(PODS, POD, NAMESPACE, annotated(**{annotation: "x"}))
        with pytest.raises(GpuloomError, match=REFUSAL):
            await admin.bind(a_binding(pod))
        stamped = await extender.patch(PODS, POD, NAMESPACE, annotated(**{ANNOTATION_EPOCH: "1"}))
        await extender.bind(a_binding(stamped))
        for changed in ("other", None):
            with pytest.raises(GpuloomError, match=REFUSAL):
                await admin.patch(PODS, POD, NAMESPACE, annotated(**{ANNOTATION_ALLOCATION: changed}))
        bound = await admin.patch(PODS, POD, NAMESPACE, annotated(note="2"))

    assert bound["spec"]["nodeName"] == NODE
    assert metadata_of(bound)["annotations"] == {
        "note": "2",
        ANNOTATION_EPOCH: "1",
        ANNOTATION_ALLOCATION: "{}",
        ANNOTATION_VISIBLE_DEVICES: "GPU-a",
    }


async def _wait_in_force(client: KubeClient) -> None:
    """The API server learns of a policy a moment after it was made."""
    async with deadline(CLOCK, 30.0):
        while True:
            try:
                await client.create(PODS, a_pod("probe", **{ANNOTATION_ALLOCATION: "x"}))
            except (NotAllowedError, InvalidRequestError):
                return
            await client.delete(PODS, "probe", NAMESPACE)
            await CLOCK.sleep(0.2)
