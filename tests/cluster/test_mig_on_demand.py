"""A pending pod makes a slice appear on a real node, and its container sees exactly that.

kube-scheduler, our extender, discovery, the MIG controller and the agent are real processes; the agent
delivers by the runtime of a real node. The GPUs are the stand-in library's; their device nodes are copies of
memory devices. After a reset of the GPU the layout comes back by itself.
"""

import os
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gpuloom.cli.scheduling.scheduler_config import OWN_SCHEDULER
from gpuloom.errors import UnavailableError
from gpuloom.kube.objects import JsonObject
from gpuloom.kube.resources import PODS
from gpuloom.model.mig import MigPlacement
from gpuloom.names import ANNOTATION_MIG_PROFILE
from gpuloom.runtime.clock import SystemClock, deadline
from gpuloom.sim.processes.ports import HOST
from tests.cluster.nodes.configuration import RuntimeLine
from tests.cluster.nodes.pods import NAMESPACE, a_pod, wait_gone, wait_started
from tests.cluster.nodes.real_node import RealNode
from tests.cluster.nodes.services import lay_out_services
from tests.cluster.shared import MANIFESTS
from tests.cluster.test_delivery_chain import (
    AGENT,
    GPUS,
    NODE,
    Chain,
    _agent,
    _describe_cards,
    _offer,
    _two_cards,
    allocation_of,
    metrics_where,
    restart_agent,
)
from tests.cluster.test_real_nodes import a_cluster
from tests.nvml.library import STATE_VARIABLE, Standin, compile_library
from tests.nvml.machines import mig_machine, uuid

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]

CLOCK = SystemClock()
MIG = "mig"
PLACE = MigPlacement(6, "1g.5gb")
MEMORY_MAJOR = 1


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_library(tmp_path_factory.mktemp("nvml"))


async def test_a_pending_pod_makes_a_slice_appear_and_sees_exactly_that(
    tmp_path: Path, library: Path
) -> None:
    async with a_cut_chain(tmp_path, library) as chain:
        first = await a_slice_of(chain, "first")
        sees, has = await seen_by(chain, first), allocation_of(first).devices
        await chain.client.delete(PODS, "first", NAMESPACE)
        await wait_gone(chain.client, "first", CLOCK)
        # The layout has to come back without the controller, from what the node's disk remembers.
        chain.plane.supervisor.kill(MIG)
        chain.standin.reset_gpu(int(sees[0].removeprefix("/dev/nvidia")))
        await restart_agent(chain)
        second = await a_slice_of(chain, "second")
        sees_again, has_again = await seen_by(chain, second), allocation_of(second).devices

    assert [device.device.mig for device in has] == [PLACE]
    gpu = next(gpu for gpu in range(GPUS) if uuid(gpu) == has[0].device.gpu_uuid)
    caps = [3 + gpu * 100 + 2, 3 + gpu * 100 + 3]
    assert sees == [f"/dev/nvidia{gpu}", *(f"/dev/nvidia-caps/nvidia-cap{cap}" for cap in caps)]
    assert has_again == has
    assert sees_again == sees


async def test_after_a_reboot_of_its_node_the_layout_is_back_before_the_pod_is(
    tmp_path: Path, library: Path
) -> None:
    """Everything on the node dies at once, also its containers; GPUs forget; files under /var/lib stay."""
    async with a_cut_chain(tmp_path, library) as chain:
        pod = await a_slice_of(chain, "lasting")
        sees, began = await seen_by(chain, pod), started_at(pod)
        # As the README of delivery advises: else a container may start before the agent, without its GPU.
        wait_for_the_agent(chain.node)
        await reboot(chain, int(sees[0].removeprefix("/dev/nvidia")))
        again = await wait_started_after(chain, "lasting", began)
        sees_again = await seen_by(chain, again)
        told = await metrics_where(chain, lambda told: told["gpuloom_node_agent_layout_restored_total"] >= 1)

    assert sees_again == sees
    assert allocation_of(again) == allocation_of(pod)
    assert told["gpuloom_node_agent_layout_restored_total"] == 1


def wait_for_the_agent(node: RealNode) -> None:
    """From its next start on the runtime creates no container of ours without our plugin."""
    with (node.paths.home / "containerd.toml").open("a") as configuration:
        configuration.write('\n[plugins."io.containerd.nri.v1.nri".default_validator]\nenable = true\n')


async def reboot(chain: Chain, gpu: int) -> None:
    supervisor = chain.plane.supervisor
    before = supervisor.restarts(AGENT)
    supervisor.kill(AGENT)
    try:
        # The kubelet, the runtime, its shims and all containers: whatever runs in the node.
        await chain.node.run_in("sh", "-c", "kill -9 -1")
    except UnavailableError:
        # It kills itself, too.
        pass
    chain.standin.reset_gpu(gpu)
    async with deadline(CLOCK, 30.0):
        await supervisor.until(lambda s: s.restarts(AGENT) > before)


def started_at(pod: JsonObject) -> str:
    statuses = (pod.get("status") or {}).get("containerStatuses") or []
    running = statuses[0].get("state", {}).get("running") if statuses else None
    return str((running or {}).get("startedAt", ""))


async def wait_started_after(chain: Chain, name: str, before: str) -> JsonObject:
    async with deadline(CLOCK, 120.0):
        while True:
            pod = await chain.client.get(PODS, name, NAMESPACE)
            if started_at(pod) > before:
                return pod
            await CLOCK.sleep(0.2)


async def a_slice_of(chain: Chain, name: str) -> JsonObject:
    pod = a_pod(name, milli=125)
    pod["metadata"]["annotations"] = {ANNOTATION_MIG_PROFILE: PLACE.profile}
    await chain.client.create(PODS, pod)
    return await wait_started(chain.client, name, CLOCK)


async def seen_by(chain: Chain, pod: JsonObject) -> list[str]:
    listed = await chain.node.run_in_container(
        pod, "sh", "-c", "ls -d /dev/nvidia* /dev/nvidia-caps/* /dev/gpu-* || true"
    )
    names = [name for name in listed.split() if name.startswith(("/dev/nvidia", "/dev/gpu-"))]
    return sorted(
        (name for name in names if name != "/dev/nvidia-caps"), key=lambda name: ("caps" in name, name)
    )


@asynccontextmanager
async def a_cut_chain(folder: Path, library: Path) -> AsyncIterator[Chain]:
    # Cards whose mode takes at once, as of Hopper and later.
    keys = mig_machine(GPUS) | {"all.mig.mode": 0, "all.architecture": 9}
    standin = Standin(folder / "state", keys)
    proc = folder / "state.proc"
    proc.mkdir()
    (proc / "devices").write_text(f"Character devices:\n  {MEMORY_MAJOR} nvidia-caps\n")
    async with a_cluster(folder, {NODE: RuntimeLine.CONTAINERD_2}) as cluster:
        (node,) = cluster.nodes
        layout = await lay_out_services(cluster.plane, [_two_cards()], CLOCK)
        for definition in sorted((MANIFESTS.parent / "crds").glob("*.yaml")):
            await cluster.plane.apply(definition)
        await cluster.plane.apply(MANIFESTS / "admission.yaml")
        await _offer(cluster.client)
        _describe_cards(node)
        settings = {
            "LD_LIBRARY_PATH": str(library.parent),
            STATE_VARIABLE: str(standin.path),
            "GPULOOM_AGENT_DRIVER_PROC_DIR": str(proc),
            "GPULOOM_AGENT_DEV_DIR": str(_cards(node)),
            "GPULOOM_AGENT_STATE_DIR": str(node.paths.home / "var-lib-gpuloom"),
        }
        agent = _agent(layout, node, settings)
        services = [layout.discovery(), layout.extender()]
        await cluster.plane.supervisor.start([[agent], services, [layout.service("mig_controller")]])
        await cluster.plane.start_scheduler(layout.scheduler_config(OWN_SCHEDULER))
        metrics_url = f"http://{HOST}:{layout.ports.fleet_http}/metrics"
        async with cluster.plane.client(layout.accounts["scheduler-extender"]) as extender:
            yield Chain(cluster.plane, cluster.client, extender, node, standin, metrics_url)
        standin.release_hangs()


def _cards(node: RealNode) -> Path:
    """The host's /dev, as far as it is NVIDIA's."""
    folder = node.paths.home / "dev"
    folder.mkdir()
    for gpu in range(GPUS):
        os.mknod(folder / f"nvidia{gpu}", stat.S_IFCHR | 0o666, os.makedev(MEMORY_MAJOR, 3))
    return folder
