"""Who sees what."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.console.core.sight import (
    EVERYTHING,
    Sight,
    for_everybody,
    namespaces_of,
    of_a_namespace,
    of_the_cluster,
    without_foreign_pods,
)

MINE = Sight(frozenset({"mine"}))
SECRET = "foreign-secret"

PODS = st.fixed_dictionaries(
    {
        "namespace": st.sampled_from(["mine", SECRET]),
        "pod": st.just("p"),
        "uid": st.just("u"),
        "milli": st.integers(0, 1000),
    }
)
VALUES: st.SearchStrategy[Any] = st.recursive(
    PODS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["gpus", "pods"]), inner),
    max_leaves=12,
)


def test_a_foreign_pod_keeps_its_share_and_loses_its_name() -> None:
    pod = {"namespace": "theirs", "pod": "p", "uid": "u", "container": "c", "milli": 500, "slice": None}
    own = {**pod, "namespace": "mine"}

    shown = without_foreign_pods({"gpus": [{"pods": [pod, own]}], "details": ["pod theirs/p"]}, MINE)

    assert shown == {"gpus": [{"pods": [{"milli": 500, "slice": None, "hidden": True}, own]}], "details": []}


@given(VALUES)
def test_the_name_of_a_foreign_namespace_is_nowhere_in_what_is_left(value: Any) -> None:
    assert SECRET not in repr(without_foreign_pods(value, MINE))
    assert without_foreign_pods(value, EVERYTHING) is value


@pytest.mark.parametrize(
    ("rule", "value", "mine", "everything"),
    [
        (for_everybody, {"a": 1}, True, True),
        (of_the_cluster, {"a": 1}, False, True),
        (of_a_namespace, {"namespace": "mine"}, True, True),
        (of_a_namespace, {"namespace": "theirs"}, False, True),
        (of_a_namespace, {}, False, True),
    ],
)
def test_a_rule_shows_an_item_or_not(rule: Any, value: Any, mine: bool, everything: bool) -> None:
    assert (rule(value, MINE) is not None, rule(value, EVERYTHING) is not None) == (mine, everything)


def test_namespaces_are_found_however_deep() -> None:
    found = namespaces_of([{"gpus": [{"pods": [{"namespace": "a"}]}]}, {"namespace": "b", "x": 1}, [], {}])

    assert found == {"a", "b"}
