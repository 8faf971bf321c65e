"""A pod is deleted by force on a real node: its container outlives it, and so does its hold on the GPUs.

Its process does not heed SIGTERM, as the first one of a container does unless it says otherwise, and it
computes nothing. Kubernetes and the kubelet forget the pod at once; its control group alone shows that it is
still there.
"""

from pathlib import Path

import pytest

from gpuloom.kube.client import DeleteOptions, KubeClient
from gpuloom.kube.objects import JsonObject, uid_of
from gpuloom.kube.resources import PODS
from gpuloom.model.node import HolderSource, NodeState
from gpuloom.names import RESOURCE_NVIDIA_GPU
from gpuloom.runtime.clock import SystemClock, deadline
from tests.cluster.gpu_pods import is_bound
from tests.cluster.nodes.cgroups import hierarchies, processes
from tests.cluster.nodes.configuration import RuntimeLine
from tests.cluster.nodes.device_plugin import wait_offered
from tests.cluster.nodes.pods import NAMESPACE, a_pod, a_pod_of_a_plugin, has_started, wait_started
from tests.cluster.nodes.real_node import RealNode
from tests.cluster.test_delivery_chain import Chain, _add_runtime_class, a_chain, metrics_where
from tests.cluster.test_nvidia_mode import (
    NODE,
    a_place,
    following,
    has_holders,
    has_no_holders,
    held_in,
    listed_by_kubelet,
)
from tests.nvml.library import compile_library
from tests.nvml.machines import nvswitch_machine

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]

CLOCK = SystemClock()
GPUS = 8
GRACE_S = 15
NEXT_WITHIN_S = 90.0
AT_ONCE = DeleteOptions(grace_period_s=0)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_library(tmp_path_factory.mktemp("nvml"))


async def test_a_pod_that_the_kubelet_has_forgotten_holds_its_gpus_until_its_container_is_gone(
    library: Path, tmp_path: Path
) -> None:
    async with a_place(tmp_path, library, nvswitch_machine(GPUS)) as place, following(place) as heard:
        await wait_offered(place.client, NODE, RESOURCE_NVIDIA_GPU, GPUS, CLOCK)
        pod = await start(place.client, a_pod_of_a_plugin("stubborn", NODE, RESOURCE_NVIDIA_GPU, 2))
        held = await heard.until(has_holders)

        await place.client.delete(PODS, "stubborn", NAMESPACE, AT_ONCE)
        lingering = await heard.until(is_held_by_control_group)
        listed, runs = await listed_by_kubelet(place, "stubborn"), has_processes(place.node, pod)
        gone = await heard.until(has_no_holders)
        runs_later = has_processes(place.node, pod)

    assert (listed, runs, runs_later) == (set(), True, False)
    assert held_in(lingering) == held_in(held)
    assert [state.presence.unknown_reason for state in (held, lingering, gone)] == ["", "", ""]
    assert uid_of(pod) in lingering.presence.pod_uids
    assert uid_of(pod) not in gone.presence.pod_uids


@pytest.mark.parametrize("line", list(RuntimeLine))
async def test_where_the_agent_delivers_the_next_pod_waits_until_the_container_is_gone(
    library: Path, tmp_path: Path, line: RuntimeLine
) -> None:
    async with a_chain(tmp_path, library, line, {}) as chain:
        await check_next_pod_waits(chain, runtime_class="")


async def test_where_devices_come_by_environment_the_next_pod_waits_until_the_container_is_gone(
    library: Path, tmp_path: Path
) -> None:
    settings = {"GPULOOM_AGENT_DELIVERY": "env"}
    async with a_chain(tmp_path, library, RuntimeLine.CONTAINERD_2, settings) as chain:
        await _add_runtime_class(chain)
        await check_next_pod_waits(chain, runtime_class="nvidia")


async def check_next_pod_waits(chain: Chain, runtime_class: str) -> None:
    """A pod that has both cards of the node is deleted by force; one card is asked for at once."""
    pod = await start(chain.client, of_class(a_pod("stubborn", milli=2000), runtime_class))
    await metrics_where(chain, lambda told: told.get("gpuloom_node_agent_holders") == 1)
    await chain.client.delete(PODS, "stubborn", NAMESPACE, AT_ONCE)
    await chain.client.create(PODS, of_class(a_pod("next", milli=1000), runtime_class))

    outlived, early, started = False, False, False
    async with deadline(CLOCK, NEXT_WITHIN_S):
        while not started:
            next_pod = await chain.client.get(PODS, "next", NAMESPACE)
            # Looked for after the binding was read: a container that is there now was there when it was made.
            runs = has_processes(chain.node, pod)
            outlived, early = outlived or runs, early or (runs and is_bound(next_pod))
            started = has_started(next_pod)
            await CLOCK.sleep(0.1)

    assert (outlived, early) == (True, False)


async def start(client: KubeClient, manifest: JsonObject) -> JsonObject:
    manifest["spec"]["terminationGracePeriodSeconds"] = GRACE_S
    await client.create(PODS, manifest)
    return await wait_started(client, "stubborn", CLOCK)


def of_class(manifest: JsonObject, runtime_class: str) -> JsonObject:
    if runtime_class:
        manifest["spec"]["runtimeClassName"] = runtime_class
    return manifest


def is_held_by_control_group(state: NodeState) -> bool:
    return any(holder.source is HolderSource.CGROUP for holder in state.holders)


def has_processes(node: RealNode, pod: JsonObject) -> bool:
    """Whether anything of this pod runs, by its control group."""
    top = hierarchies()[0] / node.claim.cgroup
    folders = [folder for folder in top.rglob("pod*") if uid_of(pod) in folder.name.replace("_", "-")]
    return any(processes(group) for folder in folders for group in (folder, *folder.rglob("*/")))
