"""A real etcd that is restored from a backup: what readers of the API server make of it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gpuloom.kube.client import DeleteOptions, KubeClient, PodBinding
from gpuloom.kube.informer import Informer
from gpuloom.kube.objects import JsonObject, key_of, resource_version_of, uid_of
from gpuloom.kube.resources import NODES, PODS
from gpuloom.names import ANNOTATION_EPOCH
from gpuloom.runtime.clock import SystemClock
from services.scheduler_extender.adapters.fence import KubernetesFence
from services.scheduler_extender.adapters.pod_informer import PodInformer
from services.scheduler_extender.leadership.takeover import take_over
from tests.cluster.binaries import Binaries
from tests.cluster.control_plane import ControlPlane, open_control_plane

pytestmark = pytest.mark.real

CLOCK = SystemClock()
NOTICED_WITHIN_S = 60.0
FAST = DeleteOptions(grace_period_s=0)


def a_pod(name: str) -> JsonObject:
    limits = {"gpuloom.dev/gpu-milli": "1000"}
    container = {"name": "main", "image": "example.test/main", "resources": {"limits": limits}}
    return {"metadata": {"name": name, "namespace": "default"}, "spec": {"containers": [container]}}


@asynccontextmanager
async def following(feed: PodInformer) -> AsyncIterator[None]:
    running = asyncio.create_task(feed.run())
    try:
        await feed.informer.wait_synced()
        yield
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def is_as_listed(informer: Informer, client: KubeClient) -> bool:
    listed = {key_of(pod): resource_version_of(pod) for pod in (await client.list(PODS)).items}
    return {key_of(pod): resource_version_of(pod) for pod in informer.objects()} == listed


async def bind(client: KubeClient, pod: JsonObject) -> None:
    namespace, name = key_of(pod)
    await client.bind(PodBinding(namespace, name, "n1", uid_of(pod)))


async def restored_after_changes(
    plane: ControlPlane, client: KubeClient, feed: PodInformer, backup: Path
) -> None:
    """After the backup a pod was bound, one came and one went; the informer saw all of it."""
    await client.create(NODES, {"metadata": {"name": "n1"}})
    bound, _ = [await client.create(PODS, a_pod(name)) for name in ("bound", "gone")]
    plane.back_up(backup)
    await bind(client, bound)
    await client.delete(PODS, "gone", "default", FAST)
    last = await client.create(PODS, a_pod("new"))
    await feed.reached(resource_version_of(last))
    await plane.restore(backup)


async def test_an_informer_follows_the_restored_state(binaries: Binaries, tmp_path: Path) -> None:
    rewinds: list[bool] = []
    async with open_control_plane(binaries, tmp_path / "plane", CLOCK) as plane, plane.client() as client:
        feed = PodInformer(client, CLOCK, prompt=True)
        feed.informer.on_rewind(lambda: rewinds.append(True))
        async with following(feed):
            await restored_after_changes(plane, client, feed, tmp_path / "backup")
            async with asyncio.timeout(NOTICED_WITHIN_S):
                while not await is_as_listed(feed.informer, client):
                    await CLOCK.sleep(0.1)

            shown = {name: feed.informer.get(name, "default") for name in ("bound", "gone", "new")}
            assert shown["bound"] is not None
            assert "nodeName" not in shown["bound"]["spec"]
            assert shown["gone"] is not None
            assert shown["new"] is None
            assert rewinds == [True]


async def test_a_takeover_right_after_a_restore_knows_the_restored_state_before_it_ends(
    binaries: Binaries, tmp_path: Path
) -> None:
    async with open_control_plane(binaries, tmp_path / "plane", CLOCK) as plane, plane.client() as client:
        feed = PodInformer(client, CLOCK, prompt=True)
        async with following(feed):
            await restored_after_changes(plane, client, feed, tmp_path / "backup")

            stamped = await take_over(KubernetesFence(client, feed, ("default", "gone"), CLOCK))

            pod = feed.informer.get("bound", "default")
            assert stamped.pods == 2
            assert pod is not None
            assert ANNOTATION_EPOCH in pod["metadata"]["annotations"]
