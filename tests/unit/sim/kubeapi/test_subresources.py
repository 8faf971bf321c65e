import asyncio
from typing import Any

import pytest

from .builders import (
    MERGE_PATCH,
    PODS,
    a_binding,
    a_budget,
    a_definition,
    a_deployment,
    a_pod,
    a_server,
    running,
    set_phase,
)

BUDGETS = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
DEPLOYMENTS = "/apis/apps/v1/namespaces/default/deployments"


async def test_a_binding_gives_node_annotations_and_condition_in_one_write() -> None:
    async with a_server() as (api, client):
        api.store.create("pods", {**a_pod("p"), "metadata": {"name": "p", "annotations": {"old": "1"}}})
        version = int(api.store.resource_version)

        reply = await client.post(
            f"{PODS}/p/binding", a_binding("n1", name="p", annotations={"new": "2"}, labels={"l": "3"})
        )

        pod = api.store.get("pods", "p")
        assert (reply.code, reply.body["status"]) == (201, "Success")
        assert pod["spec"]["nodeName"] == "n1"
        assert pod["metadata"]["annotations"] == {"old": "1", "new": "2"}
        assert pod["metadata"]["labels"] == {"l": "3"}
        assert pod["status"]["conditions"][0]["type"] == "PodScheduled"
        assert int(api.store.resource_version) == version + 1


async def test_of_two_binds_of_one_pod_one_wins() -> None:
    async with a_server() as (api, client):
        api.store.create("pods", a_pod("p"))

        replies = await asyncio.gather(
            *(client.post(f"{PODS}/p/binding", a_binding(node)) for node in ("n1", "n2"))
        )

        assert sorted(reply.code for reply in replies) == [201, 409]


@pytest.mark.parametrize(
    ("binding", "code"),
    [
        (a_binding("n1", uid="another"), 409),
        (a_binding("n1", resourceVersion="1"), 409),
        (a_binding("n1", name="another"), 400),
        (a_binding(""), 422),
        ({"target": {"kind": "Pod", "name": "x"}}, 422),
        ({"target": [1]}, 400),
        ([], 400),
        (a_binding("n1", annotations={"a": 1}), 400),
    ],
)
async def test_a_binding_whose_terms_do_not_hold_is_refused(binding: Any, code: int) -> None:
    async with a_server() as (api, client):
        pod = api.store.create("pods", a_pod("p"))

        reply = await client.post(f"{PODS}/p/binding", binding)

        assert reply.code == code
        assert api.store.get("pods", "p") == pod


async def test_a_binding_with_true_preconditions_holds() -> None:
    async with a_server() as (api, client):
        metadata = api.store.create("pods", a_pod("p"))["metadata"]

        reply = await client.post(
            f"{PODS}/p/binding",
            a_binding("n1", uid=metadata["uid"], resourceVersion=metadata["resourceVersion"]),
        )

        assert reply.code == 201


async def test_missing_deleted_and_gated_pods_are_not_bound() -> None:
    async with a_server() as (api, client):
        api.store.create("pods", {**a_pod("going"), "metadata": {"name": "going", "finalizers": ["x/y"]}})
        api.store.delete("pods", "going")
        api.store.create("pods", a_pod("gated", schedulingGates=[{"name": "x/y"}]))

        codes = [
            (await client.post(f"{PODS}/{name}/binding", a_binding("n1"))).code
            for name in ("missing", "going", "gated")
        ]

    assert codes == [404, 409, 409]


async def test_an_eviction_within_its_budget_deletes_the_pod() -> None:
    async with a_server() as (api, client):
        for name in ("a", "b"):
            running(api.store, name, app="web")
        api.store.create("poddisruptionbudgets.policy", a_budget(minAvailable=1))

        first = await client.post(f"{PODS}/a/eviction", {})
        second = await client.post(f"{PODS}/b/eviction", {})

        assert first.code == 201
        assert api.store.get("pods", "a")["metadata"]["deletionTimestamp"]
        assert (second.code, second.body["reason"]) == (429, "TooManyRequests")
        assert second.body["details"]["causes"][0]["reason"] == "DisruptionBudget"
        assert "deletionTimestamp" not in api.store.get("pods", "b")["metadata"]


@pytest.mark.parametrize(
    ("spec", "allowed"),
    [
        ({"minAvailable": 3}, 1),
        ({"minAvailable": "50%"}, 2),
        ({"minAvailable": "51%"}, 1),
        ({"maxUnavailable": 2}, 2),
        ({"maxUnavailable": "25%"}, 1),
        ({"maxUnavailable": 0}, 0),
        ({"minAvailable": 9}, 0),
        ({"minAvailable": 1, "selector": {}}, 3),
        ({"minAvailable": 1, "selector": None}, 0),
        (
            {
                "minAvailable": 0,
                "selector": {"matchExpressions": [{"key": "app", "operator": "DoesNotExist"}]},
            },
            0,
        ),
    ],
)
async def test_a_budgets_status_counts_healthy_pods(spec: dict[str, Any], allowed: int) -> None:
    async with a_server() as (api, client):
        for name in "abcd":
            running(api.store, name, app="web")
        await client.post(BUDGETS, a_budget(**spec))

        status = (await client.get(f"{BUDGETS}/budget")).body["status"]

    assert status["disruptionsAllowed"] == allowed


async def test_a_budgets_status_follows_its_pods() -> None:
    async with a_server() as (api, client):
        running(api.store, "a", app="web")
        running(api.store, "b", app="web")
        await client.post(BUDGETS, a_budget(minAvailable=1))
        before = (await client.get(BUDGETS)).body["items"][0]["status"]
        set_phase(api.store, "b", "Running", ready=False)

        after = (await client.get(f"{BUDGETS}/budget")).body["status"]

    assert (before["currentHealthy"], before["disruptionsAllowed"], before["expectedPods"]) == (2, 1, 2)
    assert (after["currentHealthy"], after["desiredHealthy"], after["disruptionsAllowed"]) == (1, 1, 0)


async def test_a_pod_that_is_not_ready_may_go_while_the_others_suffice() -> None:
    async with a_server() as (api, client):
        for name in ("a", "b"):
            running(api.store, name, app="web")
        set_phase(api.store, "b", "Running", ready=False)
        await client.post(BUDGETS, a_budget(minAvailable=1))

        sick = await client.post(f"{PODS}/b/eviction?dryRun=All", {})
        well = await client.post(f"{PODS}/a/eviction?dryRun=All", {})

        assert (sick.code, well.code) == (201, 429)
        assert "deletionTimestamp" not in api.store.get("pods", "b")["metadata"]


async def test_a_pod_under_two_budgets_can_not_be_evicted() -> None:
    async with a_server() as (api, client):
        running(api.store, "a", app="web")
        for name in ("one", "two"):
            await client.post(BUDGETS, a_budget(name, minAvailable=0))

        reply = await client.post(f"{PODS}/a/eviction", {})

    assert reply.code == 500


async def test_preconditions_guard_an_eviction() -> None:
    async with a_server() as (api, client):
        uid = running(api.store, "a", app="web")["metadata"]["uid"]

        wrong = await client.post(
            f"{PODS}/a/eviction", {"deleteOptions": {"preconditions": {"uid": "another"}}}
        )
        right = await client.post(f"{PODS}/a/eviction", {"deleteOptions": {"preconditions": {"uid": uid}}})
        missing = await client.post(f"{PODS}/x/eviction", {})

    assert (wrong.code, right.code, missing.code) == (409, 201, 404)


async def test_pods_that_do_not_run_need_no_budget() -> None:
    async with a_server() as (api, client):
        api.store.create("pods", a_pod("pending", labels={"app": "web"}))
        await client.post(BUDGETS, a_budget(minAvailable=5))

        assert (await client.post(f"{PODS}/pending/eviction", {})).code == 201


async def test_a_deployment_is_scaled() -> None:
    async with a_server() as (api, client):
        api.store.create("deployments.apps", a_deployment("d", replicas=2))

        read = await client.get(f"{DEPLOYMENTS}/d/scale")
        put = await client.put(f"{DEPLOYMENTS}/d/scale", {**read.body, "spec": {"replicas": 3}})
        stale = await client.put(f"{DEPLOYMENTS}/d/scale", {**read.body, "spec": {"replicas": 4}})
        patched = await client.patch(f"{DEPLOYMENTS}/d/scale", {"spec": {"replicas": 5}}, MERGE_PATCH)
        negative = await client.patch(f"{DEPLOYMENTS}/d/scale", {"spec": {"replicas": -1}})

        assert (read.body["kind"], read.body["status"]["selector"]) == ("Scale", "app=x")
        assert (put.code, stale.code, patched.body["spec"]["replicas"], negative.code) == (200, 409, 5, 422)
        assert api.store.get("deployments.apps", "d")["spec"]["replicas"] == 5
        assert api.store.get("deployments.apps", "d")["metadata"]["generation"] == 3


async def test_a_custom_resource_is_scaled_where_its_definition_says() -> None:
    scale = {"specReplicasPath": ".spec.size", "statusReplicasPath": ".status.size"}
    async with a_server() as (api, client):
        definitions = "customresourcedefinitions.apiextensions.k8s.io"
        api.store.create(definitions, a_definition(subresources={"scale": scale}))
        api.store.create("widgets.example.com", {"metadata": {"name": "w"}, "spec": {"size": 1}})

        path = "/apis/example.com/v1/namespaces/default/widgets/w/scale"
        reply = await client.patch(path, {"spec": {"replicas": 7}})

        assert reply.body["spec"] == {"replicas": 7}
        assert api.store.get("widgets.example.com", "w")["spec"] == {"size": 7}
