"""The state of the page and what differs between versions of it."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from services.console.core.state import Delta, State

KEYS = st.sampled_from("abcdef")
SECTIONS = st.dictionaries(
    st.sampled_from(["nodes", "pods"]), st.dictionaries(KEYS, st.integers(0, 3), max_size=6), max_size=2
)

Shown = dict[str, dict[str, Any]]


def applied(shown: Shown, delta: Delta) -> Shown:
    """As the page does it."""
    result = {section: dict(items) for section, items in shown.items()}
    for section, items in delta.changed.items():
        result.setdefault(section, {}).update(items)
    for section, keys in delta.gone.items():
        for key in keys:
            result.get(section, {}).pop(key, None)
    return result


def without_empty(shown: Shown) -> Shown:
    return {section: items for section, items in shown.items() if items}


@given(st.lists(SECTIONS, max_size=12), st.integers(0, 4))
def test_whoever_has_any_version_reaches_the_newest_by_one_delta_or_is_told_to_begin_anew(
    writes: list[Shown], most_gone: int
) -> None:
    state = State(most_gone)
    seen = [(state.version, state.full())]
    for sections in writes:
        state.replace(sections)
        seen.append((state.version, state.full()))

    for version, shown in seen:
        delta = state.since(version)
        if delta is not None:
            assert without_empty(applied(shown, delta)) == without_empty(state.full())
    newest = state.since(state.version)
    assert newest is not None
    assert (newest.changed, newest.gone) == ({}, {})


@given(st.lists(SECTIONS, min_size=1, max_size=12))
def test_with_room_for_what_is_gone_nobody_begins_anew(writes: list[Shown]) -> None:
    state = State(most_gone=1000)
    for sections in writes:
        state.replace(sections)

    assert all(state.since(version) is not None for version in range(state.version + 1))


@given(st.lists(SECTIONS, max_size=30))
def test_what_is_gone_is_remembered_within_its_bound(writes: list[Shown]) -> None:
    state = State(most_gone=2)
    for sections in writes:
        state.replace(sections)

    present = sum(len(items) for items in state.full().values())
    assert len(state._order) - present <= 2


def test_the_same_again_is_no_change() -> None:
    state = State()
    state.replace({"nodes": {"a": {"gpus": [1]}}})

    assert not state.replace({"nodes": {"a": {"gpus": [1]}}})
    assert state.version == 1


def test_a_version_that_is_yet_to_come_is_none_of_ours() -> None:
    assert State().since(5) is None


def mine(_section: str, _key: str, value: Any) -> Any:
    return value if value["namespace"] == "mine" else None


def test_a_mask_hides_items_in_the_whole_and_in_deltas_alike() -> None:
    state = State()
    state.replace({"pods": {"a": {"namespace": "mine"}, "theirs": {"namespace": "theirs"}}})

    delta = state.since(0, mine)

    assert state.full(mine) == {"pods": {"a": {"namespace": "mine"}}}
    assert delta is not None
    assert (delta.changed, delta.gone) == ({"pods": {"a": {"namespace": "mine"}}}, {})


def test_what_is_gone_is_told_only_to_those_who_saw_it() -> None:
    state = State()
    state.replace({"workloads": {"mine/a": {"namespace": "mine"}, "theirs/secret": {"namespace": "theirs"}}})
    state.replace({"workloads": {}})

    masked, whole = state.since(1, mine), state.since(1)

    assert masked is not None
    assert masked.gone == {"workloads": ["mine/a"]}
    assert whole is not None
    assert sorted(whole.gone["workloads"]) == ["mine/a", "theirs/secret"]


OWNED = st.dictionaries(
    st.sampled_from(["mine/a", "mine/b", "theirs/c", "theirs/d"]), st.integers(0, 2), max_size=4
)


@given(st.lists(OWNED, max_size=10), st.integers(0, 4))
def test_behind_a_mask_every_version_reaches_the_newest_and_names_nothing_else(
    writes: list[dict[str, int]], most_gone: int
) -> None:
    state = State(most_gone)
    seen = [(state.version, state.full(mine))]
    for keys in writes:
        items = {key: {"namespace": key.split("/")[0], "n": number} for key, number in keys.items()}
        state.replace({"pods": items})
        seen.append((state.version, state.full(mine)))

    for version, shown in seen:
        delta = state.since(version, mine)
        if delta is not None:
            assert "theirs" not in repr(delta)
            assert without_empty(applied(shown, delta)) == without_empty(state.full(mine))
