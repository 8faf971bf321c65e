import asyncio
from typing import Any

import pytest

from gpuloom.sim.kubeapi.http import MAX_BODY_BYTES

from .builders import PODS, a_config_map, a_pod, a_server

TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"
CONFIG_MAPS = "/api/v1/namespaces/default/configmaps"


async def test_an_object_lives_from_post_to_delete() -> None:
    async with a_server() as (_, client):
        made = await client.post(CONFIG_MAPS, a_config_map("c", k="1"))
        put = await client.put(f"{CONFIG_MAPS}/c", {**made.body, "data": {"k": "2"}})
        patched = await client.patch(f"{CONFIG_MAPS}/c", {"data": {"k": "3"}})
        got = await client.get(f"{CONFIG_MAPS}/c")
        gone = await client.delete(f"{CONFIG_MAPS}/c")
        missing = await client.get(f"{CONFIG_MAPS}/c")

    assert [made.code, put.code, patched.code, got.code, gone.code] == [201, 200, 200, 200, 200]
    assert got.body["data"] == {"k": "3"}
    assert gone.body["status"] == "Success"
    assert gone.body["details"]["uid"] == made.body["metadata"]["uid"]
    assert missing.code == 404
    assert missing.body == {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": 'configmaps "c" not found',
        "reason": "NotFound",
        "details": {"name": "c", "kind": "configmaps"},
        "code": 404,
    }


async def test_of_many_updates_of_one_version_exactly_one_wins() -> None:
    async with a_server() as (api, client):
        seen = (await client.post(CONFIG_MAPS, a_config_map("c"))).body

        replies = await asyncio.gather(
            *(client.put(f"{CONFIG_MAPS}/c", {**seen, "data": {"k": str(number)}}) for number in range(50))
        )

        winner = next(reply for reply in replies if reply.code == 200)
        assert sorted(reply.code for reply in replies) == [200] + [409] * 49
        assert api.store.get("configmaps", "c") == winner.body


async def test_a_list_bears_its_version_and_comes_in_pages() -> None:
    async with a_server() as (api, client):
        for name in "abcde":
            api.store.create("configmaps", a_config_map(name))
        version = api.store.resource_version

        first = await client.get(f"{CONFIG_MAPS}?limit=2")
        await client.delete(f"{CONFIG_MAPS}/c")
        rest = await client.get(f"{CONFIG_MAPS}?limit=10&continue={first.body['metadata']['continue']}")

    assert first.body["kind"] == "ConfigMapList"
    assert first.body["metadata"]["remainingItemCount"] == 3
    assert [one["metadata"]["name"] for one in rest.body["items"]] == ["c", "d", "e"]
    assert first.body["metadata"]["resourceVersion"] == rest.body["metadata"]["resourceVersion"] == version


async def test_an_old_continue_token_expires() -> None:
    async with a_server() as (api, client):
        for name in "abc":
            api.store.create("configmaps", a_config_map(name))
        first = await client.get(f"{CONFIG_MAPS}?limit=1")
        api.expire_watches()

        late = await client.get(f"{CONFIG_MAPS}?limit=1&continue={first.body['metadata']['continue']}")

    assert (late.code, late.body["reason"]) == (410, "Expired")


async def test_lists_are_selected_by_labels_and_fields() -> None:
    async with a_server() as (api, client):
        api.store.create("pods", a_pod("a", labels={"app": "x"}, nodeName="n1"))
        api.store.create("pods", a_pod("b", labels={"app": "y"}, nodeName="n1"))
        api.store.create("pods", a_pod("c", labels={"app": "x"}))

        by_node = await client.get("/api/v1/pods?fieldSelector=spec.nodeName%3Dn1")
        by_both = await client.get(f"{PODS}?labelSelector=app+in+(x)&fieldSelector=spec.nodeName!%3D")

    assert [one["metadata"]["name"] for one in by_node.body["items"]] == ["a", "b"]
    assert [one["metadata"]["name"] for one in by_both.body["items"]] == ["a"]


async def test_the_state_at_an_exact_version_can_be_listed() -> None:
    async with a_server() as (api, client):
        version = api.store.create("configmaps", a_config_map("a"))["metadata"]["resourceVersion"]
        api.store.create("configmaps", a_config_map("b"))

        past = await client.get(f"{CONFIG_MAPS}?resourceVersion={version}&resourceVersionMatch=Exact")
        future = await client.get(f"{CONFIG_MAPS}?resourceVersion=99999")

    assert [one["metadata"]["name"] for one in past.body["items"]] == ["a"]
    assert future.code == 504


@pytest.mark.parametrize(
    ("method", "path", "code"),
    [
        ("GET", "/nope", 404),
        ("GET", "/", 404),
        ("GET", "/api/v1/unknowns", 404),
        ("GET", "/apis/none/v1/pods", 404),
        ("GET", "/api/v1/pods/p", 404),
        ("GET", f"{PODS}/p/log", 404),
        ("GET", f"{PODS}/p/a/b", 404),
        ("GET", "/api/v1/namespaces/default/nodes", 404),
        ("POST", "/api/v1/pods", 405),
        ("PUT", PODS, 405),
        ("POST", f"{PODS}/p", 405),
        ("DELETE", f"{PODS}/p/status", 405),
        ("DELETE", "/api/v1/pods", 405),
        ("GET", f"{PODS}?labelSelector=a===b", 400),
        ("GET", f"{PODS}?fieldSelector=x", 400),
        ("GET", f"{PODS}?limit=many", 400),
        ("GET", f"{PODS}?limit=-1", 400),
        ("GET", f"{PODS}?continue=xyz", 400),
        ("GET", f"{PODS}?resourceVersion=abc", 400),
        ("GET", f"{PODS}?timeout=soon", 400),
        ("GET", f"{PODS}?watch=1&timeoutSeconds=x", 400),
        ("GET", f"{PODS}?watch=1&sendInitialEvents=true", 422),
        ("DELETE", f"{PODS}/p?propagationPolicy=Maybe", 400),
        ("DELETE", f"{PODS}/p?dryRun=Some", 400),
        ("GET", "/apis/apps/v1/namespaces/default/daemonsets/x/scale", 404),
    ],
)
async def test_what_makes_no_sense_is_answered_with_a_status(method: str, path: str, code: int) -> None:
    async with a_server() as (_, client):
        reply = await client.call(method, path)

    assert reply.code == code
    assert (reply.body["kind"], reply.body["status"], reply.body["code"]) == ("Status", "Failure", code)


@pytest.mark.parametrize(
    ("body", "content_type", "code"),
    [
        (b"{", "application/json", 400),
        (b"", "application/json", 400),
        (b"[]", "application/json", 400),
        (b"null", "application/json", 400),
        (b"\xff", "application/json", 400),
        (b"[" * 5000, "application/json", 400),
        (b"x: y", "application/yaml", 415),
        (b" " * (MAX_BODY_BYTES + 1), "application/json", 413),
    ],
)
async def test_a_body_that_can_not_be_read_is_refused(body: bytes, content_type: str, code: int) -> None:
    async with a_server() as (_, client):
        reply = await client.call("POST", PODS, body, headers={"Content-Type": content_type})

    assert (reply.code, reply.body["kind"]) == (code, "Status")


@pytest.mark.parametrize("body", [5, "x", [], {"spec": 1}, {"metadata": 1}, {"metadata": {"labels": []}}])
async def test_an_odd_patch_is_refused_without_harm(body: Any) -> None:
    async with a_server() as (api, client):
        pod = api.store.create("pods", a_pod("p"))

        reply = await client.patch(f"{PODS}/p", body)

        assert reply.code == 400
        assert api.store.get("pods", "p") == pod


async def test_an_unexpected_error_is_logged_and_tells_the_client_nothing(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError("a secret detail")

    async with a_server() as (api, client):
        monkeypatch.setattr(api.store, "create", fail)
        reply = await client.post(PODS, a_pod("p"))

    assert (reply.code, reply.body["reason"]) == (500, "InternalError")
    assert "secret" not in str(reply.body)
    assert "a secret detail" in caplog.text


async def test_a_token_guards_all_but_health_and_version() -> None:
    async with a_server(token="s3cret") as (_, client):
        without = await client.get("/api/v1/pods")
        wrong = await client.get("/api/v1/pods", Authorization="Bearer other")
        right = await client.get("/api/v1/pods", Authorization="Bearer s3cret")
        public = [(await client.get(path)).code for path in ("/healthz", "/readyz", "/livez", "/version")]

    assert (without.code, wrong.code, right.code) == (401, 401, 200)
    assert (without.body["kind"], without.body["reason"]) == ("Status", "Unauthorized")
    assert public == [200] * 4


async def test_discovery_lists_what_is_served() -> None:
    async with a_server() as (_, client):
        versions = await client.get("/api")
        groups = await client.get("/apis")
        apps = await client.get("/apis/apps")
        core = await client.get("/api/v1")
        openapi = await client.get("/openapi/v3/api/v1")

    assert versions.body["versions"] == ["v1"]
    assert {"apps", "batch", "policy", "coordination.k8s.io"} <= {
        one["name"] for one in groups.body["groups"]
    }
    assert apps.body["preferredVersion"]["groupVersion"] == "apps/v1"
    names = {one["name"] for one in core.body["resources"]}
    assert {"pods", "pods/status", "pods/binding", "pods/eviction", "nodes", "events"} <= names
    assert "/api/v1/namespaces/{namespace}/pods/{name}" in openapi.body["paths"]


async def test_a_table_shows_where_pods_are() -> None:
    async with a_server() as (api, client):
        api.store.create("pods", a_pod("a", nodeName="n1"))
        api.store.create("nodes", {"metadata": {"name": "n1"}})

        pods = await client.get(PODS, Accept=TABLE)
        node = await client.get("/api/v1/nodes/n1", Accept=TABLE)
        spaces = await client.get("/api/v1/namespaces", Accept=TABLE)

    headings = [one["name"] for one in pods.body["columnDefinitions"]]
    row = dict(zip(headings, pods.body["rows"][0]["cells"], strict=True))
    assert (row["Name"], row["Status"], row["Node"]) == ("a", "Pending", "n1")
    assert node.body["rows"][0]["cells"][:2] == ["n1", "Unknown"]
    assert [one["name"] for one in spaces.body["columnDefinitions"]] == ["Name", "Age"]


async def test_a_put_must_name_what_its_url_names() -> None:
    async with a_server() as (api, client):
        made = api.store.create("configmaps", a_config_map("c"))

        other_name = await client.put(f"{CONFIG_MAPS}/d", made)
        other_place = await client.put("/api/v1/namespaces/kube-system/configmaps/c", made)

    assert (other_name.code, other_place.code) == (400, 400)
