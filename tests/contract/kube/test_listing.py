"""Lists, selectors, watches, and the informer on top of them."""

import asyncio
from contextlib import aclosing

import pytest

from gpuloom.errors import UnavailableError
from gpuloom.kube.client import KubeClient
from gpuloom.kube.errors import GoneError
from gpuloom.kube.informer import Informer, InformerOptions
from gpuloom.kube.listing import EventType, Selection, WatchEvent
from gpuloom.kube.objects import key_of, resource_version_of, uid_of
from gpuloom.kube.resources import CONFIGMAPS, NODES, PODS
from gpuloom.runtime.clock import SystemClock, settle
from tests.contract.kube.builders import NAMESPACE, a_config_map, a_node, a_pod, ensure_namespace
from tests.contract.kube.conftest import KubeApiUnderTest

HERE = Selection(NAMESPACE)


@pytest.fixture(autouse=True)
async def namespace(client: KubeClient) -> None:
    await ensure_namespace(client)


async def events_until(client: KubeClient, version: str, last: str) -> list[tuple[str, str]]:
    """(type, name) of what is watched from that version, up to the object named `last`; no bookmarks."""
    seen: list[tuple[str, str]] = []
    async with aclosing(client.watch(CONFIGMAPS, version, HERE)) as events:
        async for event in events:
            if event.type is not EventType.BOOKMARK:
                seen.append((event.type.value, key_of(event.object)[1]))
            if seen and seen[-1][1] == last:
                break
    return seen


async def until_equal(informer: Informer, client: KubeClient) -> None:
    """Each look is a request of its own, which gives the informer's socket its turn."""
    while True:
        listing = await client.list(CONFIGMAPS, HERE)
        listed = {key_of(item): resource_version_of(item) for item in listing.items}
        if {key_of(obj): resource_version_of(obj) for obj in informer.objects()} == listed:
            return


async def test_a_list_in_pages_is_the_whole_list(client: KubeClient) -> None:
    for number in range(7):
        await client.create(CONFIGMAPS, a_config_map(f"c{number}"))

    listing = await client.list(CONFIGMAPS, HERE, page_size=3)

    assert [key_of(item)[1] for item in listing.items] == [f"c{number}" for number in range(7)]
    assert listing.items[0]["kind"] == "ConfigMap"
    assert listing.resource_version


async def test_labels_select(client: KubeClient) -> None:
    for name, app in (("a", "x"), ("b", "y"), ("c", "x")):
        await client.create(PODS, a_pod(name, labels={"app": app, name: "1"}))

    async def names(selector: str) -> list[str]:
        listing = await client.list(PODS, Selection(NAMESPACE, label_selector=selector))
        return [key_of(item)[1] for item in listing.items]

    assert await names("app=x") == ["a", "c"]
    assert await names("app!=x") == ["b"]
    assert await names("app in (x,y),!c") == ["a", "b"]
    assert await names("c") == ["c"]


async def test_fields_select(client: KubeClient) -> None:
    await client.create(NODES, a_node("n"))
    bound = a_pod("bound")
    bound["spec"]["nodeName"] = "n"
    await client.create(PODS, bound)
    await client.create(PODS, a_pod("free"))

    on_node = await client.list(PODS, Selection(field_selector="spec.nodeName=n"))
    unbound = await client.list(PODS, Selection(NAMESPACE, field_selector="spec.nodeName="))
    named = await client.list(PODS, Selection(NAMESPACE, field_selector="metadata.name=free"))

    assert [key_of(item)[1] for item in on_node.items] == ["bound"]
    assert [key_of(item)[1] for item in unbound.items] == ["free"]
    assert [key_of(item)[1] for item in named.items] == ["free"]


async def test_a_watch_tells_what_came_after_its_version_in_order(client: KubeClient) -> None:
    await client.create(CONFIGMAPS, a_config_map("before"))
    version = (await client.list(CONFIGMAPS, HERE)).resource_version
    await client.create(CONFIGMAPS, a_config_map("c"))
    await client.patch(CONFIGMAPS, "c", NAMESPACE, {"data": {"a": "1"}})
    await client.delete(CONFIGMAPS, "c", NAMESPACE)
    await client.create(CONFIGMAPS, a_config_map("last"))

    seen = await events_until(client, version, "last")

    assert seen == [("ADDED", "c"), ("MODIFIED", "c"), ("DELETED", "c"), ("ADDED", "last")]


async def test_the_version_of_a_deletion_is_newer_than_the_objects_last(client: KubeClient) -> None:
    created = await client.create(CONFIGMAPS, a_config_map("c"))
    await client.delete(CONFIGMAPS, "c", NAMESPACE)

    async with aclosing(client.watch(CONFIGMAPS, resource_version_of(created), HERE)) as events:
        event = await anext(events)

    assert event.type is EventType.DELETED
    assert uid_of(event.object) == uid_of(created)
    assert int(resource_version_of(event.object)) > int(resource_version_of(created))


async def test_leaving_and_entering_a_selection_are_a_deletion_and_an_addition(client: KubeClient) -> None:
    created = await client.create(PODS, a_pod("p", labels={"app": "x"}))
    chosen = Selection(NAMESPACE, label_selector="app=x")
    await client.patch(PODS, "p", NAMESPACE, {"metadata": {"labels": {"app": "y"}}})
    await client.patch(PODS, "p", NAMESPACE, {"metadata": {"labels": {"app": "x"}}})

    seen: list[WatchEvent] = []
    async with aclosing(client.watch(PODS, resource_version_of(created), chosen)) as events:
        while len(seen) < 2:
            event = await anext(events)
            if event.type is not EventType.BOOKMARK:
                seen.append(event)

    assert [event.type for event in seen] == [EventType.DELETED, EventType.ADDED]


async def test_a_quiet_watch_gets_bookmarks_with_a_newer_version(client: KubeClient) -> None:
    version = (await client.list(CONFIGMAPS, HERE)).resource_version
    await client.create(NODES, a_node("n"))
    # A real server learns by a list how far other kinds have come. It sends a bookmark every minute, and one
    # shortly before it ends the watch.
    newer = (await client.list(CONFIGMAPS, HERE)).resource_version

    async with aclosing(client.watch(CONFIGMAPS, version, HERE, duration_s=5.0)) as events:
        event = await anext(events)

    assert event.type is EventType.BOOKMARK
    assert int(resource_version_of(event.object)) >= int(newer) > int(version)


async def test_a_watch_ends_by_itself_after_its_duration(client: KubeClient) -> None:
    version = (await client.list(CONFIGMAPS, HERE)).resource_version

    kinds = {event.type async for event in client.watch(CONFIGMAPS, version, HERE, duration_s=1.0)}

    assert kinds <= {EventType.BOOKMARK}


async def test_a_watch_from_a_forgotten_version_is_gone(
    client: KubeClient, kube_api: KubeApiUnderTest
) -> None:
    version = (await client.list(CONFIGMAPS, HERE)).resource_version
    newest = await client.create(CONFIGMAPS, a_config_map("c"))
    await kube_api.compact(resource_version_of(newest))

    async with aclosing(client.watch(CONFIGMAPS, version, HERE)) as events:
        with pytest.raises(GoneError):
            await anext(events)


async def test_a_broken_watch_is_told_apart_from_one_that_ended(
    client: KubeClient, kube_api: KubeApiUnderTest
) -> None:
    version = (await client.list(CONFIGMAPS, HERE)).resource_version
    await client.create(CONFIGMAPS, a_config_map("c"))

    async def watch_and_break_off() -> None:
        async with aclosing(client.watch(CONFIGMAPS, version, HERE)) as events:
            async for _ in events:
                kube_api.disconnect_watches()

    with pytest.raises(UnavailableError):
        await watch_and_break_off()


async def test_the_newest_version_is_that_of_the_last_write(client: KubeClient) -> None:
    written = await client.create(CONFIGMAPS, a_config_map("c"))

    newest = await client.newest_version(CONFIGMAPS, NAMESPACE)

    assert int(newest) >= int(resource_version_of(written))
    assert int(await client.newest_version(CONFIGMAPS)) >= int(newest)


async def test_a_watch_from_a_version_that_is_still_to_come_is_silent_and_ends_politely(
    client: KubeClient,
) -> None:
    """As after a restore of etcd from a backup: no error tells a reader that its history is gone."""
    future = str(int(await client.newest_version(CONFIGMAPS)) + 1_000_000)
    await client.create(CONFIGMAPS, a_config_map("c"))

    async with aclosing(client.watch(CONFIGMAPS, future, HERE, duration_s=1.0)) as events:
        seen = [event async for event in events]

    assert not seen


async def test_an_informer_survives_disconnects_and_compaction(
    client: KubeClient, kube_api: KubeApiUnderTest
) -> None:
    informer = Informer(client, CONFIGMAPS, SystemClock(), InformerOptions(HERE, first_backoff_s=0.01))
    running = asyncio.create_task(informer.run())
    await informer.wait_synced()

    for round_number in range(3):
        await client.create(CONFIGMAPS, a_config_map(f"kept-{round_number}"))
        first = await client.create(CONFIGMAPS, a_config_map("again"))
        await until_equal(informer, client)
        if round_number % 2:
            kube_api.disconnect_watches()
            # A write on a connection that breaks just then is not sent again: let the client notice.
            await settle()
        await client.delete(CONFIGMAPS, "again", NAMESPACE)
        newest = await client.create(CONFIGMAPS, a_config_map("again"))
        await kube_api.compact(resource_version_of(newest))
        await until_equal(informer, client)
        assert informer.by_uid(uid_of(first)) is None
        await client.delete(CONFIGMAPS, "again", NAMESPACE)
    await until_equal(informer, client)

    running.cancel()
    await asyncio.wait({running})
    assert running.cancelled()
