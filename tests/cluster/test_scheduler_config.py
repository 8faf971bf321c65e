"""The configuration of deploy/scheduler in a real kube-scheduler, in place of the cluster's own."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gpuloom.cli.scheduling.scheduler_config import (
    DEFAULT_SCHEDULER,
    SchedulerConfigOptions,
    TlsPaths,
    render_scheduler_config,
)
from gpuloom.kube.client import KubeClient
from gpuloom.kube.objects import JsonObject
from gpuloom.kube.resources import PODS
from gpuloom.rpc.dev_ca import CertificateOrder, issue_development_certificates
from gpuloom.runtime.clock import SystemClock, deadline
from tests.cluster.binaries import Binaries
from tests.cluster.control_plane import open_control_plane
from tests.cluster.fake_nodes import FakeNode, create_nodes
from tests.cluster.gpu_pods import NAMESPACE, a_gpu_pod, create_namespace, is_bound

pytestmark = pytest.mark.real

CLOCK = SystemClock()
NOBODY_LISTENS_HERE = "https://127.0.0.1:9"


@pytest.fixture
async def client(binaries: Binaries, tmp_path: Path) -> AsyncIterator[KubeClient]:
    """Of a cluster with one node of 8 GPUs and a scheduler whose extender is gone."""
    made = issue_development_certificates(tmp_path / "certificates", CertificateOrder(), CLOCK)
    files = made["kube_scheduler"]
    async with open_control_plane(binaries, tmp_path / "plane", CLOCK) as plane, plane.client() as admin:
        await create_nodes(admin, [FakeNode("n", {"nvidia.com/gpu": "8", "gpuloom.dev/gpu-milli": "8000"})])
        await create_namespace(admin)
        kubeconfig = plane.kubeconfig_for("system:kube-scheduler")
        options = SchedulerConfigOptions(
            extender_url=NOBODY_LISTENS_HERE,
            tls=TlsPaths(str(files.cert_file), str(files.key_file), str(files.ca_file)),
            kubeconfig=str(kubeconfig),
            scheduler_name=DEFAULT_SCHEDULER,
        )
        await plane.start_scheduler(render_scheduler_config(options))
        yield admin


def of_the_default_scheduler(pod: JsonObject) -> JsonObject:
    return {**pod, "spec": {**pod["spec"], "schedulerName": DEFAULT_SCHEDULER}}


async def test_without_the_extender_gpu_pods_wait_and_all_others_are_scheduled(client: KubeClient) -> None:
    await client.create(PODS, of_the_default_scheduler(a_gpu_pod("whole", {"nvidia.com/gpu": "1"})))
    await client.create(PODS, of_the_default_scheduler(a_gpu_pod("share", {"gpuloom.dev/gpu-milli": "500"})))
    await client.create(PODS, of_the_default_scheduler(a_gpu_pod("ordinary", {})))

    async with deadline(CLOCK, 30.0):
        while not is_bound(await client.get(PODS, "ordinary", NAMESPACE)):
            await CLOCK.sleep(0.1)
        while not (
            await waits_for_the_extender(client, "whole") and await waits_for_the_extender(client, "share")
        ):
            await CLOCK.sleep(0.1)


async def waits_for_the_extender(client: KubeClient, name: str) -> bool:
    pod = await client.get(PODS, name, NAMESPACE)
    conditions = pod["status"].get("conditions") or ()
    return not is_bound(pod) and any("127.0.0.1:9/filter" in one.get("message", "") for one in conditions)
