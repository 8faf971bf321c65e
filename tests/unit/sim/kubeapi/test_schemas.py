"""What a definition's schema does, beyond what our own definitions use (see tests/contract/crds)."""

from typing import Any

import pytest

from gpuloom.catalog.manifests import definitions, priority_classes
from gpuloom.runtime.clock import FakeClock
from gpuloom.sim.kubeapi import Store
from gpuloom.sim.kubeapi import __main__ as kubeapi
from gpuloom.sim.kubeapi.resources import CRD_KEY
from gpuloom.sim.kubeapi.status import ApiError
from gpuloom.sim.kubeapi.verbs.preinstalled import install

from .builders import Object, a_definition, a_store

WIDGETS = "widgets.example.com"


def a_store_of(properties: Object, **schema: Any) -> Store:
    store = a_store()
    store.create(CRD_KEY, defined(properties, **schema))
    return store


def defined(properties: Object, **schema: Any) -> Object:
    spec = {"type": "object", "properties": properties, **schema}
    root = {"type": "object", "properties": {"spec": spec}}
    return a_definition(schema={"openAPIV3Schema": root})


def made(store: Store, spec: Object) -> Object:
    created = store.create(WIDGETS, {"metadata": {"name": "w"}, "spec": spec})
    result: Object = created["spec"]
    return result


def refusal(store: Store, spec: Object) -> str:
    with pytest.raises(ApiError) as caught:
        made(store, spec)
    assert caught.value.code == 422
    return caught.value.message


def test_unknown_fields_stay_only_where_they_are_preserved() -> None:
    store = a_store_of(
        {
            "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
            "map": {"type": "object", "additionalProperties": {"type": "object", "properties": {"a": {}}}},
        }
    )

    spec = made(store, {"free": {"x": {"y": None}}, "map": {"k": {"a": 1, "b": 2}}, "other": 1})

    assert spec == {"free": {"x": {"y": None}}, "map": {"k": {"a": 1}}}


def test_a_null_is_absent_unless_it_is_allowed() -> None:
    store = a_store_of(
        {
            "filled": {"type": "integer", "default": 3},
            "plain": {"type": "string"},
            "nullable": {"type": "string", "nullable": True, "default": "x"},
        }
    )

    spec = made(store, {"filled": None, "plain": None, "nullable": None})

    assert spec == {"filled": 3, "nullable": None}


def test_numbers_are_of_the_type_that_the_schema_says() -> None:
    rules = [{"rule": "self.share + 0.5 <= 1.0", "message": "too much"}]
    store = a_store_of(
        {
            "count": {"type": "integer"},
            "share": {"type": "number"},
            "port": {"x-kubernetes-int-or-string": True},
        },
        **{"x-kubernetes-validations": rules},
    )

    assert "spec.count" in refusal(store, {"count": 2.5, "share": 0})
    assert "spec.port" in refusal(store, {"share": 0, "port": 1.5})
    assert refusal(store, {"share": 1}).endswith("is invalid: spec: Invalid value: too much")
    spec = made(store, {"count": 2.0, "share": 0, "port": "http"})
    assert (spec["count"], type(spec["count"])) == (2, int)


def test_a_rule_that_can_not_be_evaluated_refuses() -> None:
    rules = [{"rule": "self.absent == 1", "message": "needs absent"}]
    store = a_store_of({"absent": {"type": "integer"}}, **{"x-kubernetes-validations": rules})

    assert "needs absent" in refusal(store, {})


def test_rules_hold_for_every_item_and_every_value() -> None:
    item = {
        "type": "object",
        "properties": {"low": {"type": "integer"}, "high": {"type": "integer"}},
        "x-kubernetes-validations": [
            {"rule": "self.low <= self.high", "message": "low first", "fieldPath": ".low"}
        ],
    }
    store = a_store_of(
        {"list": {"type": "array", "items": item}, "map": {"type": "object", "additionalProperties": item}}
    )
    good, bad = {"low": 1, "high": 2}, {"low": 2, "high": 1}

    message = refusal(store, {"list": [good, bad], "map": {"k": bad}})

    assert "spec.list[1].low: Invalid value: low first" in message
    assert "spec.map.k.low: Invalid value: low first" in message
    assert "spec.list[0]" not in message


@pytest.mark.parametrize(
    ("broken", "told"),
    [
        ({"x-kubernetes-validations": [{"rule": "self.a ==", "message": "m"}]}, "does not compile"),
        ({"x-kubernetes-validations": [{"rule": "size(", "message": "m"}]}, "does not compile"),
        ({"maxProperties": "three"}, "three"),
    ],
)
def test_a_schema_that_can_not_be_used_is_refused_with_its_definition(broken: Object, told: str) -> None:
    with pytest.raises(ApiError, match=told) as caught:
        a_store_of({}, **broken)

    assert caught.value.code == 422


def test_a_changed_schema_counts_for_the_next_write() -> None:
    store = a_store_of({"a": {"type": "integer"}})
    made(store, {"a": 1})
    version = store.get(CRD_KEY, WIDGETS)["metadata"]["resourceVersion"]
    stricter = defined({"a": {"type": "integer", "minimum": 2}})
    stricter["metadata"]["resourceVersion"] = version

    store.update(CRD_KEY, stricter)

    assert store.get(WIDGETS, "w")["spec"] == {"a": 1}
    with pytest.raises(ApiError, match=r"spec\.a"):
        store.create(WIDGETS, {"metadata": {"name": "other"}, "spec": {"a": 1}})


def test_the_server_process_has_our_definitions_from_its_start() -> None:
    options = kubeapi._parser().parse_args(["--port", "0"])

    store = kubeapi._server(options, None, None, []).store

    assert {one["metadata"]["name"] for one in store.select(CRD_KEY)} == {
        one["metadata"]["name"] for one in definitions()
    }


def test_what_is_preinstalled_replaces_what_an_older_version_left() -> None:
    shipped = (*definitions(), *priority_classes())
    store = Store(FakeClock())
    old = {**definitions()[0], "spec": {**definitions()[0]["spec"]}}
    old["spec"]["names"] = {**old["spec"]["names"], "shortNames": ["old"]}
    store.create(CRD_KEY, old)

    install(store, shipped)
    once = store.resource_version
    install(store, shipped)

    assert store.get(CRD_KEY, old["metadata"]["name"])["spec"] == definitions()[0]["spec"]
    assert len(store.select(CRD_KEY)) == len(definitions())
    assert store.resource_version == once
    values = {
        name: store.get("priorityclasses.scheduling.k8s.io", f"gpuloom-{name}")["value"]
        for name in ("low", "medium", "high")
    }
    assert values == {"low": 1_000, "medium": 100_000, "high": 1_000_000}
