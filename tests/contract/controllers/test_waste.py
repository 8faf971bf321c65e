"""What the controller writes of waste, at the simulated and at the real API server."""

import pytest
from prometheus_client import CollectorRegistry

from gpuloom.errors import ConflictError
from gpuloom.kube.client import DeleteOptions, KubeClient
from gpuloom.kube.events import EventRecorder
from gpuloom.kube.leadership import Leadership, LeadershipConfig
from gpuloom.kube.listing import Selection
from gpuloom.kube.objects import JsonObject, metadata_of
from gpuloom.kube.resources import EVENTS, PODS
from gpuloom.names import ANNOTATION_RECOMMENDATION
from gpuloom.runtime.clock import SystemClock
from gpuloom.runtime.config import load_config
from services.controller.adapters.waste import ConfigMapPursuits, KubernetesWaste
from services.controller.core.waste import GpuPod, Pursuit, gpu_pod
from tests.contract.controllers.conftest import Workspace, eventually

CLOCK = SystemClock()


class Leading(Leadership):
    """Leads without asking anybody."""

    def __init__(self, client: KubeClient) -> None:
        config = load_config(
            LeadershipConfig, {"GPULOOM_LEASE_NAME": "x", "GPULOOM_LEADER_ELECTION": "false"}
        )
        super().__init__(client, config, CLOCK, {})

    def write_timeout_s(self, most_s: float) -> float:
        return most_s


async def a_pod(workspace: Workspace) -> JsonObject:
    resources = {"limits": {"nvidia.com/gpu": "1"}}
    container = {"name": "c", "image": "registry.invalid/x:1", "resources": resources}
    body = {
        "metadata": {"name": "idle", "namespace": workspace.namespace},
        "spec": {"containers": [container]},
    }

    async def created() -> JsonObject | None:
        try:
            return await workspace.client.create(PODS, body)
        except Exception as error:
            # The default account of a new namespace comes a moment after it.
            if "serviceaccount" not in str(error):
                raise
            return None

    return await eventually(created)


def writer(client: KubeClient) -> KubernetesWaste:
    """A controller that has just started."""
    recorder = EventRecorder(client, "gpuloom-controller", "test", CLOCK, registry=CollectorRegistry())
    return KubernetesWaste(client, Leading(client), recorder, lambda: ())


async def test_an_event_is_written_once_whoever_writes_it_and_whatever_it_says_now(
    workspace: Workspace,
) -> None:
    pod = gpu_pod(await a_pod(workspace))
    assert pod is not None

    await writer(workspace.client).tell(pod, "GPUWaste", "a to b", "waste score 70")
    await writer(workspace.client).tell(pod, "GPUWaste", "a to b", "waste score 71")
    await writer(workspace.client).tell(pod, "GPUWaste", "a to c", "waste score 72")

    events = (await workspace.client.list(EVENTS, Selection(workspace.namespace))).items
    ours = [one for one in events if one["reason"] == "GPUWaste"]
    assert sorted(one["message"] for one in ours) == ["waste score 70", "waste score 72"]
    assert {one["involvedObject"]["uid"] for one in ours} == {pod.uid}
    assert {one["type"] for one in ours} == {"Warning"}


async def test_only_the_pod_that_was_judged_is_annotated(workspace: Workspace) -> None:
    pod = gpu_pod(await a_pod(workspace))
    assert pod is not None
    another = GpuPod(pod.key, "00000000-0000-0000-0000-000000000000", pod.owner, pod.asks, "")

    await writer(workspace.client).annotate(pod, '{"v":1}')
    with pytest.raises(ConflictError):
        await writer(workspace.client).annotate(another, '{"v":2}')

    found = await workspace.client.get(PODS, "idle", workspace.namespace)
    assert metadata_of(found)["annotations"][ANNOTATION_RECOMMENDATION] == '{"v":1}'
    await workspace.client.delete(PODS, "idle", workspace.namespace, DeleteOptions(grace_period_s=0))


async def test_what_was_recommended_outlives_the_controller(workspace: Workspace) -> None:
    pursuit = Pursuit("team", "Deployment/serve", "nvidia.com/gpu=1", "gpuloom.dev/gpu-milli=250", 5, 2)

    def store() -> ConfigMapPursuits:
        return ConfigMapPursuits(workspace.client, Leading(workspace.client), workspace.namespace)

    nothing = await store().load()
    await store().save((pursuit,))
    first = await store().load()
    await store().save(())

    assert (nothing, first, await store().load()) == ((), (pursuit,), ())
