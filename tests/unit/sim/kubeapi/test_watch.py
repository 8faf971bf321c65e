import asyncio

import aiohttp
import pytest

from gpuloom.runtime.clock import FakeClock
from gpuloom.sim.kubeapi.endpoints.representation import Representation
from gpuloom.sim.kubeapi.endpoints.watch import WatchHub, WatchRequest
from gpuloom.sim.kubeapi.objects.patches import Patch
from gpuloom.sim.kubeapi.verbs.store import Store

from .builders import PODS, a_binding, a_config_map, a_pod, a_server, a_store, eventually

CONFIG_MAPS = "/api/v1/namespaces/default/configmaps"


def label(store: Store, name: str, **labels: str | None) -> None:
    store.patch("pods", name, Patch({"metadata": {"labels": labels}}))


@pytest.mark.parametrize("version", ["", "&resourceVersion=0"])
async def test_a_watch_without_a_version_begins_with_the_present_state(version: str) -> None:
    async with a_server() as (api, client):
        api.store.create("configmaps", a_config_map("a"))
        async with client.watch(f"{CONFIG_MAPS}?watch=true{version}") as events:
            first = await events.names(1)
            api.store.create("configmaps", a_config_map("b"))
            second = await events.names(1)

    assert [*first, *second] == [("ADDED", "a"), ("ADDED", "b")]


async def test_a_watch_goes_on_from_its_version() -> None:
    async with a_server() as (api, client):
        api.store.create("configmaps", a_config_map("a"))
        version = api.store.resource_version
        api.store.patch("configmaps", "a", Patch({"data": {"k": "1"}}))
        api.store.delete("configmaps", "a")
        last = api.store.resource_version

        async with client.watch(f"{CONFIG_MAPS}?watch=1&resourceVersion={version}") as events:
            kinds = [await events.next() for _ in range(2)]

    assert [kind for kind, _ in kinds] == ["MODIFIED", "DELETED"]
    assert kinds[1][1]["metadata"]["resourceVersion"] == last
    assert kinds[1][1]["data"] == {"k": "1"}


async def test_objects_enter_and_leave_a_selectors_view() -> None:
    async with a_server() as (api, client):
        version = api.store.resource_version
        path = f"/api/v1/pods?watch=1&labelSelector=app%3Dx&resourceVersion={version}"
        async with client.watch(path) as events:
            api.store.create("pods", a_pod("p"))
            label(api.store, "p", app="x")
            label(api.store, "p", more="y")
            label(api.store, "p", app=None)
            left_at = api.store.resource_version
            label(api.store, "p", more="z")
            api.store.delete("pods", "p")
            api.store.create("pods", a_pod("q", labels={"app": "x"}))
            seen = [await events.next() for _ in range(4)]

    assert [(kind, obj["metadata"]["name"]) for kind, obj in seen] == [
        ("ADDED", "p"),
        ("MODIFIED", "p"),
        ("DELETED", "p"),
        ("ADDED", "q"),
    ]
    assert seen[2][1]["metadata"]["resourceVersion"] == left_at
    assert seen[2][1]["metadata"]["labels"] == {"app": "x", "more": "y"}


async def test_a_kubelet_sees_pods_appear_when_they_are_bound_to_its_node() -> None:
    async with a_server() as (api, client):
        api.store.create("pods", a_pod("p"))
        api.store.create("pods", a_pod("q"))
        async with (
            client.watch("/api/v1/pods?watch=1&fieldSelector=spec.nodeName%3Dn1") as mine,
            client.watch("/api/v1/pods?watch=1&fieldSelector=spec.nodeName%3D") as unbound,
        ):
            before = await unbound.names(2)
            await client.post(f"{PODS}/p/binding", a_binding("n2"))
            await client.post(f"{PODS}/q/binding", a_binding("n1"))
            seen, left = await mine.names(1), await unbound.names(2)

    assert before == [("ADDED", "p"), ("ADDED", "q")]
    assert seen == [("ADDED", "q")]
    assert left == [("DELETED", "p"), ("DELETED", "q")]


async def test_a_watch_of_one_object_and_of_one_namespace_sees_no_others() -> None:
    async with (
        a_server() as (api, client),
        client.watch(f"{CONFIG_MAPS}/b?watch=1") as one,
        client.watch("/api/v1/namespaces/kube-system/configmaps?watch=1") as space,
    ):
        api.store.create("configmaps", a_config_map("a"))
        api.store.create("configmaps", a_config_map("b"))
        api.store.create("configmaps", a_config_map("s"), namespace="kube-system")

        assert await one.names(1) == [("ADDED", "b")]
        assert await space.names(1) == [("ADDED", "s")]


async def test_bookmarks_tell_how_far_the_watch_has_come() -> None:
    clock = FakeClock()
    async with a_server(clock=clock, bookmark_interval_s=10.0) as (api, client):
        path = f"{PODS}?watch=1&allowWatchBookmarks=true&resourceVersion={api.store.resource_version}"
        async with client.watch(path) as events:
            api.store.create("configmaps", a_config_map("elsewhere"))
            await clock.advance(10)
            kind, mark = await events.next()

        assert (kind, mark["kind"], mark["apiVersion"]) == ("BOOKMARK", "Pod", "v1")
        assert mark["metadata"]["resourceVersion"] == api.store.resource_version


async def test_as_long_as_nothing_happens_there_are_no_bookmarks() -> None:
    clock = FakeClock()
    async with a_server(clock=clock, bookmark_interval_s=10.0) as (api, client):
        path = f"{PODS}?watch=1&allowWatchBookmarks=true&resourceVersion={api.store.resource_version}"
        async with client.watch(path) as events:
            await clock.advance(60)
            api.store.create("pods", a_pod("first-news"))

            assert await events.names(1) == [("ADDED", "first-news")]


async def test_a_watch_ends_after_its_time_with_a_bookmark() -> None:
    clock = FakeClock()
    async with a_server(clock=clock, bookmark_interval_s=1000.0) as (api, client):
        path = f"{PODS}?watch=1&allowWatchBookmarks=1&timeoutSeconds=5&resourceVersion=1"
        async with client.watch(path) as events:
            await clock.advance(5)
            kind, mark = await events.next()
            end = await events.line()

        assert (kind, mark["metadata"]["resourceVersion"], end) == (
            "BOOKMARK",
            api.store.resource_version,
            b"",
        )
        assert api.watches == 0


async def test_a_version_beyond_history_gets_an_expired_error_event() -> None:
    async with a_server(history=2) as (api, client):
        version = api.store.create("configmaps", a_config_map("a"))["metadata"]["resourceVersion"]
        for name in "bcd":
            api.store.create("configmaps", a_config_map(name))

        async with client.watch(f"{CONFIG_MAPS}?watch=1&resourceVersion={version}") as events:
            kind, status = await events.next()
            end = await events.line()

        assert events.response.status == 200
        assert (kind, status["code"], status["reason"], end) == ("ERROR", 410, "Expired", b"")
        assert "too old resource version" in status["message"]


async def test_expired_watches_end_and_can_not_be_resumed() -> None:
    async with a_server() as (api, client):
        version = api.store.resource_version
        async with client.watch(f"{PODS}?watch=1&resourceVersion={version}") as events:
            api.expire_watches()
            end = await events.line()

        async with client.watch(f"{PODS}?watch=1&resourceVersion={version}") as again:
            _, status = await again.next()
        fresh = (await client.get(PODS)).body["metadata"]["resourceVersion"]
        async with client.watch(f"{PODS}?watch=1&resourceVersion={fresh}") as resumed:
            api.store.create("pods", a_pod("p"))
            seen = await resumed.names(1)

    assert (end, status["code"], seen) == (b"", 410, [("ADDED", "p")])


async def test_a_watch_from_the_future_is_silent_until_then() -> None:
    async with a_server() as (api, client):
        future = int(api.store.resource_version) + 2
        async with client.watch(f"{PODS}?watch=1&resourceVersion={future}") as events:
            for name in "abc":
                api.store.create("pods", a_pod(name))

            assert await events.names(1) == [("ADDED", "c")]


async def test_disconnected_watches_break_off() -> None:
    async with a_server() as (api, client):
        async with client.watch(f"{PODS}?watch=1") as events:
            api.disconnect_watches()

            with pytest.raises(aiohttp.ClientError):
                await events.line()

        await eventually(lambda: api.watches == 0)


async def test_a_client_that_has_left_is_noticed() -> None:
    clock = FakeClock()
    async with a_server(clock=clock) as (api, client):
        async with client.watch(f"{PODS}?watch=1"):
            pass

        await eventually(lambda: api.watches == 0, clock)


async def test_a_slow_watcher_is_cut_off_and_delays_nobody() -> None:
    store, clock = a_store(), FakeClock()
    hub = WatchHub(store, clock, bookmark_interval_s=10.0)
    pods = store.registry.get("pods")
    request = WatchRequest(pods, Representation(pods, "v1"), since=store.database.version)
    slow, quick = hub.open(request, max_queued=3), hub.open(request)
    aborted: list[bool] = []
    slow.abort = lambda: aborted.append(True)

    for number in range(5):
        store.create("pods", a_pod(f"p{number}"))
    hub.end_all()
    received = b"".join([chunk async for chunk in quick.chunks()])
    missed = [chunk async for chunk in slow.chunks()]

    assert (slow.cut_off, aborted, missed) == (True, [True], [])
    assert received.count(b"ADDED") == 5


async def test_an_event_is_encoded_once_for_all_watchers() -> None:
    store = a_store()
    hub = WatchHub(store, FakeClock(), bookmark_interval_s=10.0)
    pods = store.registry.get("pods")
    request = WatchRequest(pods, Representation(pods, "v1"), since=store.database.version)
    watches = [hub.open(request) for _ in range(3)]

    store.create("pods", a_pod("p"))
    lines = [watch._queue[0] for watch in watches]

    assert lines[0] is lines[1] is lines[2]


async def test_a_table_can_be_watched() -> None:
    accept = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"
    clock = FakeClock()
    async with a_server(clock=clock) as (api, client):
        api.store.create("pods", a_pod("p"))
        watching = asyncio.create_task(client.get(f"{PODS}?watch=1&timeoutSeconds=1", Accept=accept))
        await eventually(lambda: api.watches == 1)
        await clock.advance(1)
        reply = await watching

    assert reply.body["object"]["kind"] == "Table"
    assert reply.body["object"]["rows"][0]["cells"][0] == "p"
