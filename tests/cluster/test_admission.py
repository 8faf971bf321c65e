"""Nobody but the extender writes which devices a pod has, by whatever way annotations can be written, and no
pod uses NVIDIA's runtime to see more than that.
"""

from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace

import pytest
from prometheus_client import CollectorRegistry

from gpuloom.errors import GpuloomError, InvalidRequestError, NotAllowedError, NotFoundError
from gpuloom.kube.client import KubeClient, PodBinding
from gpuloom.kube.objects import JsonObject, metadata_of, resource_version_of, uid_of
from gpuloom.kube.resources import (
    ADMISSION_POLICIES,
    ADMISSION_POLICY_BINDINGS,
    NODES,
    PODS,
    RUNTIME_CLASSES,
)
from gpuloom.names import (
    ANNOTATION_ALLOCATION,
    ANNOTATION_EPOCH,
    ANNOTATION_RESERVATION,
    ANNOTATION_VISIBLE_DEVICES,
    CONDITION_ADMISSION_POLICIES,
)
from gpuloom.runtime.clock import SystemClock, deadline
from services.scheduler_extender.adapters.admission_policies import PolicyWatch
from services.scheduler_extender.metrics import ExtenderMetrics
from tests.cluster.fake_nodes import FakeNode, create_nodes
from tests.cluster.shared import MANIFESTS, SharedControlPlane, account_of

pytestmark = pytest.mark.real

NAMESPACE = "gpuloom-system"
NODE = "admission-node"
POD = "admitted"
CLOCK = SystemClock()
POLICIES = ("gpuloom-allocation-annotations", "gpuloom-runtime-classes")
INSTALLED = "gpuloom_scheduler_extender_admission_policy_installed"
USERS = "default"
CLASS = "nvidia"
VARIABLE = "NVIDIA_VISIBLE_DEVICES"
FROM_ALLOCATION = {
    "name": VARIABLE,
    "valueFrom": {"fieldRef": {"fieldPath": "metadata.annotations['gpuloom.dev/visible-devices']"}},
}
VOID = {"name": VARIABLE, "value": "void"}
ALL = {"name": VARIABLE, "value": "all"}
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
    """The administrator, who may do anything but this; the policies are in force."""
    async with shared_control_plane.client() as client:
        await create_nodes(client, [FakeNode(NODE, {"nvidia.com/gpu": "8"})])
        await shared_control_plane.background.run_from_loop(
            shared_control_plane.plane.apply(MANIFESTS / "admission.yaml")
        )
        await client.create(RUNTIME_CLASSES, {"metadata": {"name": CLASS}, "handler": CLASS})
        await _wait_in_force(client)
        yield client
        for name in POLICIES:
            for resource in (ADMISSION_POLICY_BINDINGS, ADMISSION_POLICIES):
                await client.delete(resource, name)
        for namespace in (NAMESPACE, USERS):
            with suppress(NotFoundError):
                await client.delete(PODS, POD, namespace)
        await client.delete(RUNTIME_CLASSES, CLASS)
        await client.delete(NODES, NODE)


async def test_only_the_extender_writes_allocations(
    shared_control_plane: SharedControlPlane, admin: KubeClient
) -> None:
    account = await shared_control_plane.plane.service_account_kubeconfig(*account_of("scheduler-extender"))
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


async def test_a_pod_names_its_reservation_when_it_is_made_and_nobody_changes_it_later(
    admin: KubeClient,
) -> None:
    pod = await admin.create(PODS, a_pod(POD, **{ANNOTATION_RESERVATION: "night"}))

    for changed in ("other", None):
        with pytest.raises(GpuloomError, match=REFUSAL):
            await admin.patch(PODS, POD, NAMESPACE, annotated(**{ANNOTATION_RESERVATION: changed}))
    with pytest.raises(GpuloomError, match=REFUSAL):
        await admin.bind(replace(a_binding(pod), annotations={ANNOTATION_RESERVATION: "other"}))


def a_classed_pod(*envs: JsonObject | None, limits: dict[str, str] | None = None) -> JsonObject:
    """Under NVIDIA's runtime class, a container for each of these variables; None: it has none."""
    containers = [
        {
            "name": f"c{number}",
            "image": "registry.example.com/work:1",
            "env": [] if env is None else [env],
            "resources": {"limits": limits or {}},
        }
        for number, env in enumerate(envs)
    ]
    spec = {"runtimeClassName": CLASS, "containers": containers, "terminationGracePeriodSeconds": 0}
    return {"metadata": {"namespace": USERS, "name": POD}, "spec": spec}


async def test_pods_of_users_do_not_see_every_gpu_by_nvidias_runtime_class(admin: KubeClient) -> None:
    wide: list[list[JsonObject | None]] = [
        [ALL],
        [None],
        [FROM_ALLOCATION, None],
        [FROM_ALLOCATION, ALL],
        [VOID, {**ALL, "value": ""}],
    ]
    twice = a_classed_pod(FROM_ALLOCATION)
    twice["spec"]["containers"][0]["env"].append(ALL)
    initial = a_classed_pod(FROM_ALLOCATION)
    initial["spec"]["initContainers"] = a_classed_pod(None)["spec"]["containers"]
    initial["spec"]["initContainers"][0]["name"] = "first"
    plain = a_classed_pod(ALL)
    del plain["spec"]["runtimeClassName"]
    ours = a_classed_pod(ALL)
    ours["metadata"]["namespace"] = NAMESPACE

    for pod in (*(a_classed_pod(*envs) for envs in wide), twice, initial):
        with pytest.raises(GpuloomError, match="runtimeClassName nvidia could show every GPU of a node to"):
            await admin.create(PODS, pod)
    for pod in (
        a_classed_pod(FROM_ALLOCATION, VOID),
        a_classed_pod(None, limits={"nvidia.com/gpu": "1"}),
        a_classed_pod(ALL, limits={"nvidia.com/mig-1g.5gb": "1"}),
        plain,
        ours,
    ):
        created = await admin.create(PODS, pod)
        changed = await admin.patch(PODS, POD, metadata_of(created)["namespace"], annotated(note="1"))
        assert metadata_of(changed)["annotations"]["note"] == "1"
        await admin.delete(PODS, POD, metadata_of(created)["namespace"])


async def test_the_extender_notices_with_its_account_what_is_in_force(
    shared_control_plane: SharedControlPlane, admin: KubeClient
) -> None:
    account = await shared_control_plane.plane.service_account_kubeconfig(*account_of("scheduler-extender"))
    await admin.create(PODS, a_pod(POD))
    registry = CollectorRegistry()

    def installed() -> list[float | None]:
        return [registry.get_sample_value(INSTALLED, {"policy": name}) for name in (*POLICIES, "other")]

    async with shared_control_plane.client(account) as extender:
        own_pod, metrics = (NAMESPACE, POD), ExtenderMetrics(registry)
        watch = PolicyWatch(extender, POLICIES, own_pod, CLOCK, metrics)
        await watch.check()
        complete = installed(), await _condition(admin), watch.note()
        binding = await admin.get(ADMISSION_POLICY_BINDINGS, POLICIES[1])
        await admin.delete(ADMISSION_POLICY_BINDINGS, POLICIES[1])
        await watch.check()
        incomplete = installed(), await _condition(admin)
        metadata = {"name": POLICIES[1]}
        await admin.create(ADMISSION_POLICY_BINDINGS, {"metadata": metadata, "spec": binding["spec"]})
        await PolicyWatch(extender, ("other",), None, CLOCK, metrics).check()

    assert complete == ([1, 1, None], "True", "")
    assert incomplete == ([1, 0, None], "False")
    assert installed() == [1, 0, None]


async def _condition(client: KubeClient) -> str:
    pod = await client.get(PODS, POD, NAMESPACE)
    (status,) = [
        entry["status"]
        for entry in pod["status"]["conditions"]
        if entry["type"] == CONDITION_ADMISSION_POLICIES
    ]
    return str(status)


async def _wait_in_force(client: KubeClient) -> None:
    """The API server learns of a policy a moment after it was made."""
    forged = a_pod("probe", **{ANNOTATION_ALLOCATION: "x"})
    for probe, words in ((forged, REFUSAL), (a_classed_pod(ALL), "could show every GPU")):
        async with deadline(CLOCK, 30.0):
            while not await _is_refused(client, probe, words):
                await CLOCK.sleep(0.2)


async def _is_refused(client: KubeClient, probe: JsonObject, words: str) -> bool:
    try:
        await client.create(PODS, probe)
    except (NotAllowedError, InvalidRequestError) as error:
        return words in str(error)
    await client.delete(PODS, metadata_of(probe)["name"], metadata_of(probe)["namespace"])
    return False
