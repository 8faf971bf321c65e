from .builders import Object, a_definition, a_server

DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
WIDGETS = "/apis/example.com/v1/namespaces/default/widgets"


def a_widget(name: str = "w", **spec: object) -> Object:
    return {"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": name}, "spec": spec}


async def test_a_definition_makes_its_resource_available_at_once() -> None:
    async with a_server() as (_, client):
        before = await client.get(WIDGETS)
        defined = await client.post(DEFINITIONS, a_definition())
        made = await client.post(WIDGETS, a_widget(size=1))
        discovered = await client.get("/apis/example.com/v1")

    conditions = {one["type"]: one["status"] for one in defined.body["status"]["conditions"]}
    assert before.code == 404
    assert conditions["Established"] == "True"
    assert (made.code, made.body["spec"]) == (201, {"size": 1})
    assert discovered.body["resources"][0]["kind"] == "Widget"


async def test_a_deleted_definition_takes_its_resource_and_its_watches_away() -> None:
    async with a_server() as (_, client):
        await client.post(DEFINITIONS, a_definition())
        await client.post(WIDGETS, a_widget())

        async with client.watch(f"{WIDGETS}?watch=1") as events:
            added = await events.next()
            await client.delete(f"{DEFINITIONS}/widgets.example.com")
            deleted = await events.next()
            end = await events.line()

        assert (added[0], deleted[0], end) == ("ADDED", "DELETED", b"")
        assert (await client.get(WIDGETS)).code == 404


async def test_status_is_apart_only_where_the_definition_says_so() -> None:
    async with a_server() as (_, client):
        await client.post(DEFINITIONS, a_definition())
        await client.post(DEFINITIONS, a_definition("gears", "Gear", subresources={"status": {}}))
        gears = WIDGETS.replace("widgets", "gears")
        widget = await client.post(WIDGETS, {**a_widget(), "status": {"ok": True}})
        gear = await client.post(gears, {**a_widget(), "kind": "Gear", "status": {"ok": True}})

        no_status = await client.patch(f"{WIDGETS}/w/status", {"status": {}})
        status = await client.patch(f"{gears}/w/status", {"status": {"ok": False}, "spec": {"x": 1}})

    assert widget.body["status"] == {"ok": True}
    assert "status" not in gear.body
    assert no_status.code == 404
    assert (status.body["status"], status.body["spec"]) == ({"ok": False}, {})


async def test_each_served_version_shows_the_same_object() -> None:
    definition = a_definition()
    definition["spec"]["versions"].append({"name": "v1alpha1", "served": True, "storage": False})
    async with a_server() as (_, client):
        await client.post(DEFINITIONS, definition)
        await client.post(WIDGETS, a_widget(size=1))
        alpha = WIDGETS.replace("/v1/", "/v1alpha1/")

        old = await client.get(f"{alpha}/w")
        changed = await client.put(f"{alpha}/w", {**old.body, "spec": {"size": 2}})
        new = await client.get(WIDGETS)

    assert old.body["apiVersion"] == changed.body["apiVersion"] == "example.com/v1alpha1"
    assert new.body["items"][0]["apiVersion"] == "example.com/v1"
    assert new.body["items"][0]["spec"] == {"size": 2}


async def test_a_broken_definition_is_refused_with_its_fields() -> None:
    no_names = a_definition()
    no_names["spec"]["names"] = {}
    misnamed = {**a_definition(), "metadata": {"name": "other.example.com"}}
    async with a_server() as (_, client):
        first = await client.post(DEFINITIONS, no_names)
        second = await client.post(DEFINITIONS, misnamed)

    assert (first.code, second.code) == (422, 422)
    assert "spec.names.plural" in first.body["message"]
    assert "metadata.name" in second.body["message"]


async def test_a_put_of_a_custom_resource_needs_its_version() -> None:
    async with a_server() as (_, client):
        await client.post(DEFINITIONS, a_definition())
        await client.post(WIDGETS, a_widget())

        blind = await client.put(f"{WIDGETS}/w", a_widget(size=2))
        strategic = await client.patch(f"{WIDGETS}/w", {}, "application/strategic-merge-patch+json")

    assert (blind.code, strategic.code) == (422, 415)
