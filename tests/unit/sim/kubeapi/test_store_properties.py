"""Any sequence of operations: versions only grow, and list + watch always add up to the final list."""

import asyncio
from collections.abc import Callable
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuloom.runtime.clock import FakeClock
from gpuloom.sim.kubeapi.endpoints.representation import Representation
from gpuloom.sim.kubeapi.endpoints.watch import Watch, WatchHub, WatchRequest, visible_change
from gpuloom.sim.kubeapi.objects.patches import Patch
from gpuloom.sim.kubeapi.selectors import EVERYTHING, Selector, parse_selector
from gpuloom.sim.kubeapi.status import ApiError
from gpuloom.sim.kubeapi.storage.collection import Event
from gpuloom.sim.kubeapi.storage.database import Change
from gpuloom.sim.kubeapi.storage.paging import ListQuery
from gpuloom.sim.kubeapi.verbs.deletion import DeleteOptions
from gpuloom.sim.kubeapi.verbs.store import Store
from gpuloom.sim.kubeapi.verbs.subresources import bind
from tests.effort import examples

from .builders import a_binding, a_pod, a_store

NAMES = st.sampled_from(["a", "b", "c", "d"])
LABELS = st.dictionaries(st.sampled_from(["app", "tier"]), st.sampled_from(["1", "2"]))
Operation = Callable[[Store], Any]


@st.composite
def operations(draw: st.DrawFn) -> Operation:
    name, labels = draw(NAMES), draw(LABELS)
    node, grace_s = draw(st.sampled_from(["n1", "n2"])), draw(st.sampled_from([None, 0]))
    choices: list[Operation] = [
        lambda store: store.create("pods", a_pod(name, labels=labels)),
        lambda store: store.patch("pods", name, Patch({"metadata": {"labels": labels}})),
        lambda store: store.patch("pods", name, Patch({"metadata": {"labels": None}})),
        lambda store: store.patch("pods", name, Patch({"metadata": {"finalizers": ["x/y"]}})),
        lambda store: store.patch("pods", name, Patch({"metadata": {"finalizers": None}})),
        lambda store: bind(store, "default", name, a_binding(node)),
        lambda store: store.delete("pods", name, options=DeleteOptions(grace_s=grace_s)),
        lambda store: store.create("configmaps", {"metadata": {"name": name, "labels": labels}}),
    ]
    return draw(st.sampled_from(choices))


WATCHED = [
    EVERYTHING,
    parse_selector("app=1", ""),
    parse_selector("app!=1,tier", ""),
    parse_selector("", "spec.nodeName=n1"),
    parse_selector("app", "spec.nodeName!="),
]
SELECTORS = st.sampled_from(WATCHED)


def run(store: Store, operation: Operation) -> None:
    code = 200
    try:
        operation(store)
    except ApiError as refusal:
        code = refusal.code
    assert code in (200, 404, 409, 422)


def listed(store: Store, selector: Selector) -> dict[str, Any]:
    page = store.page(store.registry.get("pods"), ListQuery(selector=selector))
    return {entry.key[1]: entry.obj for entry in page.entries}


def replay(state: dict[str, Any], events: list[Event], selector: Selector) -> dict[str, Any]:
    """A client's cache after a watch; every event must fit what the client knows."""
    for event in events:
        seen = visible_change(event, selector)
        if seen is None:
            continue
        kind, entry = seen
        name = entry.key[1]
        assert (kind == "ADDED") is (name not in state)
        if kind == "DELETED":
            del state[name]
        else:
            state[name] = entry.obj
    return state


@settings(max_examples=examples(150))
@given(st.lists(operations(), max_size=25), SELECTORS)
def test_list_and_watch_from_any_version_end_in_the_final_list(
    ops: list[Operation], selector: Selector
) -> None:
    store = a_store()
    pods = store.registry.get("pods")
    seen = [(store.database.version, listed(store, selector))]

    for operation in ops:
        run(store, operation)
        seen.append((store.database.version, listed(store, selector)))

    final = seen[-1][1]
    for version, state in seen:
        assert replay(dict(state), store.events_since(pods, version), selector) == final


@settings(max_examples=examples(100))
@given(st.lists(operations(), max_size=25))
def test_versions_strictly_grow_and_every_object_bears_its_own(ops: list[Operation]) -> None:
    store = a_store()
    changes: list[Event] = []
    store.listen(changes.append)

    for operation in ops:
        run(store, operation)

    versions = [change.version for change in changes]
    assert versions == sorted(set(versions))
    for change in changes:
        entry = change.new or change.last()
        assert entry.obj["metadata"]["resourceVersion"] == str(change.version)


@settings(max_examples=examples(100))
@given(st.lists(operations(), max_size=25), st.integers(1, 5), st.data())
def test_a_bounded_history_answers_exactly_or_says_too_old(
    ops: list[Operation], history: int, data: st.DataObject
) -> None:
    store = a_store(history=history)
    pods = store.registry.get("pods")
    seen = [(store.database.version, listed(store, EVERYTHING))]
    for operation in ops:
        run(store, operation)
        seen.append((store.database.version, listed(store, EVERYTHING)))
    version, state = data.draw(st.sampled_from(seen))

    if version < store.database.collection(pods).compacted:
        with pytest.raises(ApiError, match="too old"):
            store.database.collection(pods).entries_at(version)
        return
    past = store.database.collection(pods).entries_at(version)

    assert {entry.key[1]: entry.obj for entry in past} == state
    assert replay(dict(state), store.events_since(pods, version), EVERYTHING) == seen[-1][1]


@settings(max_examples=examples(100))
@given(st.lists(operations(), max_size=25), SELECTORS)
def test_the_node_index_finds_what_a_scan_finds(ops: list[Operation], selector: Selector) -> None:
    store = a_store()

    for operation in ops:
        run(store, operation)

    scanned = {name: obj for name, obj in listed(store, EVERYTHING).items() if selector.matches(obj)}
    assert listed(store, selector) == scanned


@settings(max_examples=examples(100))
@given(st.lists(operations(), max_size=25), st.integers(0, 25))
def test_a_journal_restores_the_same_state_and_versions_go_on(
    ops: list[Operation], compacted_at: int
) -> None:
    journal: list[Change] = []
    store = a_store(sink=journal.append)
    for position, operation in enumerate(ops):
        run(store, operation)
        if position == compacted_at:
            journal[:] = list(store.database.snapshot())

    restored = a_store(changes=journal)

    assert listed(restored, EVERYTHING) == listed(store, EVERYTHING)
    assert restored.resource_version == store.resource_version


@settings(max_examples=examples(100))
@given(st.lists(operations(), max_size=25), st.integers(0, 25))
def test_every_watcher_hears_of_all_it_selects_whichever_way_it_is_reached(
    ops: list[Operation], opened_at: int
) -> None:
    store = a_store()
    hub = WatchHub(store, FakeClock(), bookmark_interval_s=10.0)
    pods = store.registry.get("pods")
    plain = Representation(pods, "v1")
    chosen = [*WATCHED, parse_selector("", "metadata.name=a"), parse_selector("app", "spec.nodeName=")]

    for operation in ops[:opened_at]:
        run(store, operation)
    watches = [hub.open(WatchRequest(pods, plain, selector=selector)) for selector in chosen]
    for operation in ops[opened_at:]:
        run(store, operation)
    hub.end_all()

    for selector, watch in zip(chosen, watches, strict=True):
        assert asyncio.run(received(watch)) == listed(store, selector)


async def received(watch: Watch) -> dict[str, Any]:
    state: dict[str, Any] = {}
    lines = b"".join([chunk async for chunk in watch.chunks()]).splitlines()
    for event in map(orjson.loads, lines):
        name = event["object"]["metadata"]["name"]
        assert (event["type"] == "ADDED") is (name not in state)
        if event["type"] == "DELETED":
            del state[name]
        else:
            state[name] = event["object"]
    return state


@settings(max_examples=examples(60))
@given(st.lists(operations(), max_size=15), st.lists(operations(), max_size=6), st.integers(1, 3))
def test_pages_show_one_snapshot_while_objects_change(
    before: list[Operation], between: list[Operation], limit: int
) -> None:
    store = a_store()
    pods = store.registry.get("pods")
    for operation in before:
        run(store, operation)
    expected = list(listed(store, EVERYTHING).values())

    page = store.page(pods, ListQuery(limit=limit))
    found = [entry.obj for entry in page.entries]
    pending = list(between)
    while page.continue_token:
        if pending:
            run(store, pending.pop())
        page = store.page(pods, ListQuery(limit=limit, continue_token=page.continue_token))
        found.extend(entry.obj for entry in page.entries)

    assert found == expected
