"""Admission webhooks over HTTPS."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gpuloom.errors import GpuloomError, NotAllowedError, NotFoundError, UnavailableError
from gpuloom.kube.client import KubeClient
from gpuloom.kube.objects import JsonObject, metadata_of
from gpuloom.kube.resources import CONFIGMAPS, MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS, Resource
from tests.contract.kube.builders import NAMESPACE, a_config_map, ensure_namespace
from tests.contract.kube.webhook_server import WebhookServer, allow, deny, patching, webhook_server

LABEL = {"op": "add", "path": "/metadata/labels", "value": {"patched": "yes"}}


class Admission:
    """Configurations that end with the test."""

    def __init__(self, client: KubeClient, server: WebhookServer) -> None:
        self.client = client
        self.server = server
        self._made: list[tuple[Resource, str]] = []

    async def configure(self, resource: Resource, *webhooks: JsonObject, name: str = "contract") -> None:
        await self.client.create(resource, {"metadata": {"name": name}, "webhooks": list(webhooks)})
        self._made.append((resource, name))

    async def until_asked(self, path: str) -> None:
        """A real API server heeds a new configuration a little later."""
        async with asyncio.timeout(20.0):
            while not any(where == path for where, _ in self.server.asked):
                probe = {"metadata": {"namespace": NAMESPACE, "generateName": "probe-"}}
                try:
                    await self.client.create(CONFIGMAPS, probe)
                except GpuloomError:
                    continue
                finally:
                    await asyncio.sleep(0.05)

    async def clear(self) -> None:
        for resource, name in self._made:
            await self.client.delete(resource, name)
        async with asyncio.timeout(20.0):
            while True:
                before = len(self.server.asked)
                try:
                    await self.client.create(CONFIGMAPS, a_config_map("after"))
                    await self.client.delete(CONFIGMAPS, "after", NAMESPACE)
                except GpuloomError:
                    continue
                if len(self.server.asked) == before:
                    return


@pytest.fixture
async def admission(client: KubeClient, tmp_path: Path) -> AsyncIterator[Admission]:
    await ensure_namespace(client)
    async with webhook_server(tmp_path) as server:
        opened = Admission(client, server)
        yield opened
        await opened.clear()


async def test_a_mutating_webhook_patches_what_is_created_and_updated(
    client: KubeClient, admission: Admission
) -> None:
    hook = admission.server.webhook("label", patching(LABEL))
    await admission.configure(MUTATING_WEBHOOKS, hook)
    await admission.until_asked("label")

    created = await client.create(CONFIGMAPS, a_config_map("c", a="1"))
    updated = await client.patch(
        CONFIGMAPS, "c", NAMESPACE, {"metadata": {"labels": None}, "data": {"a": "2"}}
    )

    assert metadata_of(created)["labels"] == {"patched": "yes"}
    assert metadata_of(updated)["labels"] == {"patched": "yes"}
    assert updated["data"] == {"a": "2"}
    create, update = admission.server.asked_of("label", "c")
    assert (create["operation"], create["oldObject"], create["object"]["data"]) == (
        "CREATE",
        None,
        {"a": "1"},
    )
    assert (update["operation"], update["oldObject"]["data"]) == ("UPDATE", {"a": "1"})
    assert update["resource"] == {"group": "", "version": "v1", "resource": "configmaps"}
    assert (update["namespace"], update["kind"]["kind"]) == (NAMESPACE, "ConfigMap")


async def test_a_denial_reaches_the_client_in_the_webhooks_words(
    client: KubeClient, admission: Admission
) -> None:
    await client.create(CONFIGMAPS, a_config_map("kept"))
    await admission.configure(VALIDATING_WEBHOOKS, admission.server.webhook("deny", deny))
    await admission.until_asked("deny")
    said = 'admission webhook "deny.contract.gpuloom.dev" denied the request: '

    with pytest.raises(NotAllowedError, match=said + "create is not wanted"):
        await client.create(CONFIGMAPS, a_config_map("c"))
    with pytest.raises(NotAllowedError, match=said + "delete is not wanted"):
        await client.delete(CONFIGMAPS, "kept", NAMESPACE)

    assert await client.get(CONFIGMAPS, "kept", NAMESPACE)
    with pytest.raises(NotFoundError):
        await client.get(CONFIGMAPS, "c", NAMESPACE)


async def test_a_webhook_that_fails_stops_a_write_unless_it_is_to_be_ignored(
    client: KubeClient, admission: Admission
) -> None:
    nowhere = {"url": "https://127.0.0.1:1/nothing"}
    selected = {"objectSelector": {"matchLabels": {"strict": "yes"}}}
    server = admission.server
    await admission.configure(
        VALIDATING_WEBHOOKS,
        server.webhook("open", allow) | {"clientConfig": nowhere, "failurePolicy": "Ignore"},
        server.webhook("closed", allow, **selected) | {"clientConfig": nowhere, "failurePolicy": "Fail"},
        server.webhook("works", allow),
    )
    await admission.until_asked("works")
    strict = a_config_map("strict")
    strict["metadata"]["labels"] = {"strict": "yes"}

    await client.create(CONFIGMAPS, a_config_map("c"))
    with pytest.raises(UnavailableError, match='failed calling webhook "closed'):
        await client.create(CONFIGMAPS, strict)


async def test_a_webhook_is_asked_only_of_what_its_conditions_match(
    client: KubeClient, admission: Admission
) -> None:
    matched = {"name": "has-gpu", "expression": "has(object.data) && 'gpu' in object.data"}
    exempt = {"name": "not-exempt", "expression": "request.name != 'exempt'"}
    server = admission.server
    await admission.configure(
        VALIDATING_WEBHOOKS,
        server.webhook("picky", deny, matchConditions=[matched, exempt]),
        server.webhook("works", allow),
    )
    await admission.until_asked("works")

    await client.create(CONFIGMAPS, a_config_map("plain", cpu="1"))
    await client.create(CONFIGMAPS, a_config_map("exempt", gpu="1"))
    with pytest.raises(NotAllowedError):
        await client.create(CONFIGMAPS, a_config_map("c", gpu="1"))


async def test_webhooks_are_asked_in_the_order_of_names_and_once_more_if_needed(
    client: KubeClient, admission: Admission
) -> None:
    server = admission.server
    first = server.webhook("first", patching(LABEL), reinvocationPolicy="IfNeeded")
    add = {"op": "add", "path": "/data", "value": {"added": "yes"}}
    await admission.configure(MUTATING_WEBHOOKS, server.webhook("second", patching(add)), name="contract-b")
    await admission.configure(MUTATING_WEBHOOKS, first, name="contract-a")
    await admission.until_asked("first")
    await admission.until_asked("second")

    await client.create(CONFIGMAPS, a_config_map("c"))

    order = [path for path, request in server.asked if request.get("name") == "c"]
    assert order == ["first", "second", "first"]
    (_, again) = server.asked_of("first", "c")
    assert again["object"]["data"] == {"added": "yes"}


async def test_an_applied_object_is_admitted_and_its_owner_owns_what_he_applied(
    client: KubeClient, admission: Admission
) -> None:
    await admission.configure(MUTATING_WEBHOOKS, admission.server.webhook("label", patching(LABEL)))
    await admission.until_asked("label")

    await client.apply(CONFIGMAPS, a_config_map("c", a="1"), "first")
    applied = await client.apply(CONFIGMAPS, a_config_map("c", b="1"), "first")

    assert applied["data"] == {"b": "1"}
    assert metadata_of(applied)["labels"] == {"patched": "yes"}
