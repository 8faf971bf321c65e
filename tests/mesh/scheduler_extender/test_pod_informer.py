"""How far the pods informer has come, and how it is made to list afresh."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from gpuloom.kube.client import KubeClient, PodBinding
from gpuloom.names import ANNOTATION_EPOCH
from gpuloom.runtime.clock import SystemClock
from gpuloom.sim.kubeapi import SimKubeApi
from services.scheduler_extender.adapters import fence
from services.scheduler_extender.adapters.fence import KubernetesFence
from services.scheduler_extender.adapters.pod_informer import PodInformer
from services.scheduler_extender.leadership.takeover import Patience, take_over
from tests.mesh.scheduler_extender.desk import a_client
from tests.mesh.scheduler_extender.kubernetes import add_pod, the_pod
from tests.mesh.waiting import running, until

LIST = r"/pods$"


@asynccontextmanager
async def a_feed(*, prompt: bool = True) -> AsyncIterator[tuple[SimKubeApi, KubeClient, PodInformer]]:
    async with SimKubeApi() as api, a_client(api) as client:
        yield api, client, PodInformer(client, SystemClock(), prompt=prompt)


async def test_what_was_written_before_is_known_when_the_version_is_reached() -> None:
    async with a_feed() as (api, _, feed), running(feed.run):
        await feed.informer.wait_synced()
        for number in range(20):
            add_pod(api, f"p{number}")
        version = str(the_pod(api, "p19")["metadata"]["resourceVersion"])

        await feed.reached(version)

        assert len(feed.informer) == 20


async def test_a_version_that_is_still_to_come_is_waited_for() -> None:
    async with a_feed() as (api, _, feed), running(feed.run):
        await feed.informer.wait_synced()
        version = int(add_pod(api, "first")["metadata"]["resourceVersion"])

        waiting = asyncio.create_task(feed.reached(str(version + 1)))
        await feed.reached(str(version))
        early = waiting.done()
        add_pod(api, "second")
        await waiting

        assert not early
        assert feed.informer.get("second", "default") is not None


async def test_a_list_that_began_before_it_was_wanted_does_not_count() -> None:
    async with a_feed() as (api, _, feed):
        old = api.faults.delay_next("GET", LIST, when="after")
        async with running(feed.run):
            await old.reached()
            pod = add_pod(api, "p")

            listing = asyncio.create_task(feed.relist())
            old.release()
            await listing

            assert feed.informer.by_uid(pod["metadata"]["uid"]) is not None


async def test_nothing_is_listed_before_it_is_wanted_if_so_told() -> None:
    async with a_feed(prompt=False) as (api, _, feed), running(feed.run):
        add_pod(api, "p")
        await asyncio.sleep(0)
        early = feed.informer.synced

        await feed.relist()

        assert not early
        assert len(feed.informer) == 1


async def test_after_a_takeover_the_informer_shows_every_stamp() -> None:
    async with a_feed() as (api, client, feed), running(feed.run):
        await feed.informer.wait_synced()
        for name in ("own", "a", "b"):
            add_pod(api, name)

        stamped = await take_over(KubernetesFence(client, feed, ("default", "own"), SystemClock()))

        shown = [pod["metadata"].get("annotations", {}) for pod in feed.informer.objects()]
        assert stamped.pods == 3
        assert len({annotations[ANNOTATION_EPOCH] for annotations in shown}) == 1


async def test_without_a_pod_of_its_own_a_takeover_ends_with_a_list_that_shows_the_last_binding() -> None:
    async with a_feed() as (api, client, feed), running(feed.run):
        await feed.informer.wait_synced()
        pod = add_pod(api, "p")
        metadata = pod["metadata"]
        await client.bind(PodBinding("default", "p", "n1", metadata["uid"], metadata["resourceVersion"]))

        await take_over(KubernetesFence(client, feed, ("default", "gone"), SystemClock()))

        shown = feed.informer.by_uid(metadata["uid"])
        assert shown is not None
        assert shown["spec"]["nodeName"] == "n1"


async def test_a_watch_that_does_not_show_the_own_write_is_given_up_for_a_list(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(fence, "CATCH_UP_S", 0.05)
    async with a_feed() as (api, client, feed):
        add_pod(api, "own")
        pod = add_pod(api, "p")
        taking_over = asyncio.create_task(
            take_over(KubernetesFence(client, feed, ("default", "own"), SystemClock()))
        )
        await until(lambda: "the watch of pods lags" in caplog.text)

        async with running(feed.run):
            await taking_over

        assert feed.informer.by_uid(pod["metadata"]["uid"]) is not None


async def test_trouble_with_the_api_only_delays_a_takeover() -> None:
    async with a_feed() as (api, client, feed), running(feed.run):
        await feed.informer.wait_synced()
        add_pod(api, "own")
        api.faults.fail_next("PATCH", r"/pods/own$", 500, times=2)
        api.faults.fail_next("GET", LIST, 403)

        stamped = await take_over(KubernetesFence(client, feed, ("default", "own"), SystemClock()))

        assert stamped.pods == 1


async def test_where_the_own_pod_may_not_be_written_a_takeover_ends_with_a_list() -> None:
    async with a_feed() as (api, client, feed), running(feed.run):
        await feed.informer.wait_synced()
        add_pod(api, "own")
        api.faults.fail_next("PATCH", r"/pods/own$", 403, times=1000)
        nothing_to_wait_for = Patience(refused_s=0.0)

        stamped = await take_over(
            KubernetesFence(client, feed, ("default", "own"), SystemClock(), nothing_to_wait_for)
        )

        assert [pod.name for pod in stamped.unstamped] == ["own"]
