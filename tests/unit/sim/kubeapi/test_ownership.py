"""Paths of fields, and what several managers make of one object."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gpuloom.sim.kubeapi.objects.fields import leaves, path_text, remove_at, set_at
from gpuloom.sim.kubeapi.objects.ownership import APPLY, Owner, Ownership, apply_fields, write_managed

_NAMES = st.sampled_from(["a", "b", "c"])
_DATA = st.dictionaries(_NAMES, st.sampled_from(["1", "2"]), max_size=3)
_TREES = st.recursive(st.integers(), lambda inner: st.dictionaries(_NAMES, inner, min_size=1), max_leaves=8)


def an_object(data: dict[str, str]) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": data}


@given(st.dictionaries(_NAMES, _TREES, min_size=1))
def test_an_object_is_made_of_its_fields_and_falls_with_them(obj: dict[str, Any]) -> None:
    made: Any = {}
    for path, value in leaves(obj).items():
        made = set_at(made, path, value)
    assert made == obj

    for path in leaves(obj):
        made = remove_at(made, path)
    assert made == {}


def test_items_of_a_list_with_keys_are_fields_of_their_own() -> None:
    pod = {"spec": {"containers": [{"name": "main", "image": "a"}, {"name": "side", "image": "b"}]}}

    texts = {path_text(path) for path in leaves(pod)}

    assert '.spec.containers[name="side"].image' in texts
    assert {path_text(path) for path in leaves(pod, keyed=False)} == {".spec.containers"}


@given(st.lists(st.tuples(st.sampled_from(["first", "second"]), _DATA), max_size=8))
def test_what_is_there_is_what_the_managers_last_applied(applies: list[tuple[str, dict[str, str]]]) -> None:
    obj = write_managed(an_object({}), ())
    wanted: dict[str, dict[str, str]] = {}
    obj["metadata"]["managedFields"] = [
        {"manager": "nobody", "operation": "Update", "apiVersion": "v1", "time": "", "fieldsV1": {}}
    ]

    for manager, data in applies:
        mine = Ownership(Owner(manager, APPLY), "v1", "now")
        applied = apply_fields(obj, an_object(data), mine, force=True)
        obj = write_managed(applied.obj, applied.managed)
        for other in wanted.keys() - {manager}:
            wanted[other] = {
                key: value for key, value in wanted[other].items() if data.get(key, value) == value
            }
        wanted[manager] = data

    merged = {key: value for data in wanted.values() for key, value in data.items()}
    assert (obj.get("data") or {}) == merged
