import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuloom.sim.kubeapi.objects.patches import (
    JSON,
    MERGE,
    STRATEGIC,
    Patch,
    apply_patch,
    json_patch,
    merge,
    strategic_merge,
)
from gpuloom.sim.kubeapi.status import ApiError

SCALARS = st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=4)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=8,
)
OBJECTS = st.dictionaries(st.sampled_from("abc"), VALUES, max_size=3)


@given(OBJECTS, OBJECTS)
def test_a_merge_patch_applied_twice_is_applied_once(target: dict[str, Any], patch: dict[str, Any]) -> None:
    before = copy.deepcopy(target)

    once = merge(target, patch)

    assert merge(once, patch) == once
    assert target == before


@given(OBJECTS)
def test_an_empty_patch_changes_nothing(target: dict[str, Any]) -> None:
    assert merge(target, {}) == target
    assert strategic_merge(target, {}) == target
    assert json_patch(target, []) == target


def test_a_merge_patch_removes_by_null_and_replaces_lists() -> None:
    target = {"a": {"b": 1, "c": 2}, "list": [1, 2]}

    assert merge(target, {"a": {"b": None}, "list": [3]}) == {"a": {"c": 2}, "list": [3]}


def test_a_strategic_patch_merges_known_lists_by_key() -> None:
    pod = {
        "spec": {
            "containers": [
                {"name": "a", "image": "1", "env": [{"name": "X", "value": "1"}]},
                {"name": "b", "image": "2"},
            ],
            "tolerations": [{"key": "k"}],
        },
        "status": {"conditions": [{"type": "Ready", "status": "False"}]},
    }
    patch = {
        "spec": {
            "containers": [{"name": "a", "env": [{"name": "Y", "value": "2"}]}],
            "tolerations": [{"key": "other"}],
        },
        "status": {"conditions": [{"type": "Ready", "status": "True"}, {"type": "New", "status": "True"}]},
    }

    patched = strategic_merge(pod, patch)

    first, second = patched["spec"]["containers"]
    assert first["env"] == [{"name": "X", "value": "1"}, {"name": "Y", "value": "2"}]
    assert second == {"name": "b", "image": "2"}
    assert patched["spec"]["tolerations"] == [{"key": "other"}]
    assert [one["status"] for one in patched["status"]["conditions"]] == ["True", "True"]


def test_taints_are_told_apart_by_key_and_effect() -> None:
    node = {"taints": [{"key": "k", "effect": "NoSchedule", "value": "1"}]}

    patched = strategic_merge(node, {"taints": [{"key": "k", "effect": "NoExecute"}]})

    assert len(patched["taints"]) == 2


def test_the_directives_of_kubectl_apply_are_followed() -> None:
    target = {
        "containers": [{"name": "a"}, {"name": "b"}],
        "finalizers": ["x/1", "x/2"],
        "strategy": {"type": "RollingUpdate", "rollingUpdate": {}},
    }
    patch = {
        "$setElementOrder/containers": [{"name": "c"}, {"name": "b"}],
        "containers": [{"name": "a", "$patch": "delete"}, {"name": "c"}],
        "$deleteFromPrimitiveList/finalizers": ["x/1"],
        "strategy": {"$retainKeys": ["type"], "type": "Recreate"},
    }

    patched = strategic_merge(target, patch)

    assert patched == {
        "containers": [{"name": "c"}, {"name": "b"}],
        "finalizers": ["x/2"],
        "strategy": {"type": "Recreate"},
    }


def test_a_json_patch_adds_replaces_removes_and_tests() -> None:
    target = {"metadata": {"labels": {"a/b": "1"}}, "list": [1, 3]}
    operations = [
        {"op": "test", "path": "/metadata/labels/a~1b", "value": "1"},
        {"op": "replace", "path": "/metadata/labels/a~1b", "value": "2"},
        {"op": "add", "path": "/list/1", "value": 2},
        {"op": "add", "path": "/list/-", "value": 4},
        {"op": "remove", "path": "/list/0"},
    ]

    patched = json_patch(target, operations)

    assert patched == {"metadata": {"labels": {"a/b": "2"}}, "list": [2, 3, 4]}
    assert target["list"] == [1, 3]


@pytest.mark.parametrize(
    ("operation", "code"),
    [
        ({"op": "test", "path": "/a", "value": 2}, 422),
        ({"op": "remove", "path": "/missing"}, 422),
        ({"op": "replace", "path": "/list/9", "value": 1}, 422),
        ({"op": "add", "path": "/a/b", "value": 1}, 422),
        ({"op": "add", "path": "", "value": 1}, 422),
        ({"op": "add", "path": "a", "value": 1}, 400),
        ({"op": "add", "path": "/a"}, 400),
        ({"op": "jump", "path": "/a", "value": 1}, 400),
    ],
)
def test_a_json_patch_that_does_not_apply_is_refused(operation: dict[str, Any], code: int) -> None:
    with pytest.raises(ApiError) as refusal:
        json_patch({"a": 1, "list": []}, [operation])

    assert refusal.value.code == code


@pytest.mark.parametrize(
    ("patch", "code"),
    [
        (Patch([], MERGE), 400),
        (Patch("x", STRATEGIC), 400),
        (Patch({}, JSON), 400),
        (Patch({}, "application/apply-patch+yaml"), 415),
    ],
)
def test_a_malformed_patch_is_refused(patch: Patch, code: int) -> None:
    with pytest.raises(ApiError) as refusal:
        apply_patch({}, patch)

    assert refusal.value.code == code
