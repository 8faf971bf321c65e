from typing import Any

import pytest

from gpuloom.runtime.clock import FakeClock
from gpuloom.sim.kubeapi.objects.patches import Patch
from gpuloom.sim.kubeapi.selectors import parse_selector
from gpuloom.sim.kubeapi.status import ApiError
from gpuloom.sim.kubeapi.storage.database import Change
from gpuloom.sim.kubeapi.storage.paging import ListQuery
from gpuloom.sim.kubeapi.verbs.deletion import DeleteOptions, expire_events
from gpuloom.sim.kubeapi.verbs.store import Store

from .builders import a_config_map, a_definition, a_pod, a_store, set_phase


def owned_by(owner: dict[str, Any], obj: dict[str, Any]) -> dict[str, Any]:
    metadata = owner["metadata"]
    reference = {"apiVersion": "v1", "kind": owner["kind"], "name": metadata["name"], "uid": metadata["uid"]}
    return {**obj, "metadata": {**obj["metadata"], "ownerReferences": [reference]}}


def names(store: Store, resource: str, namespace: str = "") -> list[str]:
    return [obj["metadata"]["name"] for obj in store.select(resource, namespace=namespace)]


def refusal_code(call: Any, *arguments: Any, **keywords: Any) -> int:
    with pytest.raises(ApiError) as refusal:
        call(*arguments, **keywords)
    return refusal.value.code


def test_an_unbound_pod_goes_at_once() -> None:
    store = a_store()
    store.create("pods", a_pod("p"))

    deletion = store.delete("pods", "p")

    assert deletion.gone
    assert names(store, "pods") == []


def test_a_bound_pod_waits_for_its_kubelet() -> None:
    store = a_store()
    store.create("pods", a_pod("p", nodeName="n1", terminationGracePeriodSeconds=20))

    deletion = store.delete("pods", "p")

    metadata = deletion.obj["metadata"]
    assert not deletion.gone
    assert metadata["deletionTimestamp"] == "2026-01-01T00:00:20Z"
    assert metadata["deletionGracePeriodSeconds"] == 20
    assert store.delete("pods", "p", options=DeleteOptions(grace_s=0)).gone


def test_a_grace_period_may_be_shortened_but_not_extended() -> None:
    store = a_store()
    store.create("pods", a_pod("p", nodeName="n1"))
    store.delete("pods", "p", options=DeleteOptions(grace_s=10))

    later = store.delete("pods", "p", options=DeleteOptions(grace_s=60)).obj
    sooner = store.delete("pods", "p", options=DeleteOptions(grace_s=5)).obj

    assert later["metadata"]["deletionGracePeriodSeconds"] == 10
    assert sooner["metadata"]["deletionGracePeriodSeconds"] == 5


def test_a_bound_pod_that_has_ended_goes_at_once() -> None:
    store = a_store()
    store.create("pods", a_pod("p", nodeName="n1"))
    set_phase(store, "p", "Succeeded")

    assert store.delete("pods", "p").gone


def test_a_finalizer_keeps_the_object_until_it_is_removed() -> None:
    store = a_store()
    store.create("configmaps", {"metadata": {"name": "c", "finalizers": ["x/y"]}})

    first = store.delete("configmaps", "c")
    more = Patch({"metadata": {"finalizers": ["x/y", "x/z"]}})
    refused = refusal_code(store.patch, "configmaps", "c", more)
    store.patch("configmaps", "c", Patch({"metadata": {"finalizers": None}}))

    assert not first.gone
    assert refused == 422
    assert names(store, "configmaps") == []


def test_preconditions_guard_a_deletion() -> None:
    store = a_store()
    made = store.create("configmaps", a_config_map("c"))

    wrong_uid = refusal_code(store.delete, "configmaps", "c", options=DeleteOptions(uid="other"))
    wrong_version = refusal_code(store.delete, "configmaps", "c", options=DeleteOptions(resource_version="1"))
    right = DeleteOptions(uid=made["metadata"]["uid"], resource_version=made["metadata"]["resourceVersion"])

    assert (wrong_uid, wrong_version) == (409, 409)
    assert store.delete("configmaps", "c", options=right).gone
    assert refusal_code(store.delete, "configmaps", "c") == 404


def test_dependents_follow_their_owner_down_the_whole_chain() -> None:
    store = a_store()
    owner = store.create("configmaps", a_config_map("c0"))
    for number in range(1, 500):
        owner = store.create("configmaps", owned_by(owner, a_config_map(f"c{number}")))

    store.delete("configmaps", "c0")

    assert names(store, "configmaps") == []


def test_a_dependent_with_another_living_owner_stays() -> None:
    store = a_store()
    first, second = (store.create("configmaps", a_config_map(name)) for name in ("a", "b"))
    both = [
        *owned_by(first, a_config_map("x"))["metadata"]["ownerReferences"],
        *owned_by(second, a_config_map("x"))["metadata"]["ownerReferences"],
    ]
    store.create("configmaps", {"metadata": {"name": "child", "ownerReferences": both}})

    store.delete("configmaps", "a")
    after_first = names(store, "configmaps")
    store.delete("configmaps", "b")

    assert after_first == ["b", "child"]
    assert names(store, "configmaps") == []


def test_orphans_stay_and_forget_their_owner() -> None:
    store = a_store()
    owner = store.create("configmaps", a_config_map("c"))
    store.create("configmaps", owned_by(owner, a_config_map("child")))

    store.delete("configmaps", "c", options=DeleteOptions(orphan=True))

    assert "ownerReferences" not in store.get("configmaps", "child")["metadata"]


def test_a_collection_is_deleted_by_selector() -> None:
    store = a_store()
    for name, app in (("a", "x"), ("b", "x"), ("c", "y")):
        store.create("configmaps", a_config_map(name, {"app": app}))

    deleted = store.delete_collection(
        "configmaps", ListQuery("default", parse_selector("app=x", "")), DeleteOptions()
    )

    assert len(deleted) == 2
    assert names(store, "configmaps") == ["c"]


def test_a_namespace_goes_with_the_last_thing_in_it() -> None:
    store = a_store()
    store.create("namespaces", {"metadata": {"name": "team"}})
    store.create("configmaps", a_config_map("c"), namespace="team")
    store.create("pods", a_pod("p", nodeName="n1"), namespace="team")

    deletion = store.delete("namespaces", "team")
    refused = refusal_code(store.create, "configmaps", a_config_map("d"), namespace="team")
    store.patch("namespaces", "team", Patch({"metadata": {"labels": {"a": "b"}}}))
    while_pod_ends = "team" in names(store, "namespaces")
    store.delete("pods", "p", namespace="team", options=DeleteOptions(grace_s=0))

    assert not deletion.gone
    assert deletion.obj["status"]["phase"] == "Terminating"
    assert refused == 403
    assert while_pod_ends
    assert "team" not in names(store, "namespaces")


def test_system_namespaces_stay() -> None:
    assert refusal_code(a_store().delete, "namespaces", "kube-system") == 403


def test_a_dry_run_deletes_nothing() -> None:
    store = a_store()
    store.create("configmaps", a_config_map("c"))

    assert store.delete("configmaps", "c", options=DeleteOptions(dry_run=True)).gone
    assert names(store, "configmaps") == ["c"]


def test_a_definition_takes_its_objects_along() -> None:
    store = a_store()
    definitions = "customresourcedefinitions.apiextensions.k8s.io"
    store.create(definitions, a_definition())
    store.create("widgets.example.com", {"metadata": {"name": "w", "finalizers": ["x/y"]}})

    store.delete(definitions, "widgets.example.com")
    gone = refusal_code(store.get, "widgets.example.com", "w")
    store.create(definitions, a_definition())

    assert gone == 404
    assert names(store, "widgets.example.com") == []


def test_a_restart_finishes_an_interrupted_cascade() -> None:
    journal: list[Change] = []
    store = a_store(sink=journal.append)
    owner = store.create("configmaps", a_config_map("c"))
    store.create("configmaps", owned_by(owner, a_config_map("child")))
    store.delete("configmaps", "c")

    restored = a_store(changes=journal[:-1])

    assert names(restored, "configmaps") == []


async def test_events_end_with_their_time_and_their_number_is_bounded() -> None:
    clock = FakeClock()
    store = Store(clock)
    for number in range(5):
        store.create("events", {"metadata": {"name": f"e{number}"}})
        await clock.advance(10)

    expire_events(store.database, lifetime_s=35, most=100)
    by_age = names(store, "events")
    expire_events(store.database, lifetime_s=1000, most=1)

    assert by_age == ["e2", "e3", "e4"]
    assert names(store, "events") == ["e4"]
