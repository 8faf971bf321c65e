"""Objects, servers and clients for the tests of the simulated API."""

import asyncio
import io
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
import orjson

from gpuloom.runtime.clock import FakeClock
from gpuloom.sim.kubeapi import SimKubeApi, Store
from gpuloom.sim.kubeapi.objects.patches import Patch
from gpuloom.sim.kubeapi.verbs.store import STATUS

Object = dict[str, Any]
PODS = "/api/v1/namespaces/default/pods"
MERGE_PATCH = "application/merge-patch+json"


def a_store(**settings: Any) -> Store:
    return Store(FakeClock(), **settings)


def a_pod(name: str = "pod", *, labels: dict[str, str] | None = None, **spec: Any) -> Object:
    containers = [{"name": "main", "image": "train:1"}]
    return {"metadata": {"name": name, "labels": labels or {}}, "spec": {"containers": containers, **spec}}


def a_gpu_pod(name: str, **resources: Any) -> Object:
    return a_pod(name, containers=[{"name": "main", "image": "train:1", "resources": resources}])


def a_config_map(name: str, labels: dict[str, str] | None = None, **data: str) -> Object:
    return {"metadata": {"name": name, "labels": labels or {}}, "data": data}


def a_budget(name: str = "budget", **spec: Any) -> Object:
    return {"metadata": {"name": name}, "spec": {"selector": {"matchLabels": {"app": "web"}}, **spec}}


def a_deployment(name: str = "d", **spec: Any) -> Object:
    labels = {"app": "x"}
    template = {
        "metadata": {"labels": labels},
        "spec": {"containers": [{"name": "main", "image": "serve:1"}]},
    }
    selector = {"matchLabels": labels}
    return {"metadata": {"name": name}, "spec": {"selector": selector, "template": template, **spec}}


def a_definition(plural: str = "widgets", kind: str = "Widget", **version: Any) -> Object:
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.example.com"},
        "spec": {
            "group": "example.com",
            "scope": "Namespaced",
            "names": {"plural": plural, "kind": kind},
            "versions": [{"name": "v1", "served": True, "storage": True, **version}],
        },
    }


def a_binding(node: str, **metadata: Any) -> Object:
    return {"metadata": metadata, "target": {"kind": "Node", "name": node}}


def running(store: Store, name: str, **labels: str) -> Object:
    """A pod that runs and is ready on a node."""
    store.create("pods", a_pod(name, labels=labels, nodeName="node-1"))
    return set_phase(store, name, "Running", ready=True)


def set_phase(store: Store, name: str, phase: str, *, ready: bool = False) -> Object:
    conditions = [{"type": "Ready", "status": "True" if ready else "False"}]
    patch = Patch({"status": {"phase": phase, "conditions": conditions}})
    return store.patch("pods", name, patch, options=STATUS)


async def eventually(holds: Callable[[], bool], clock: FakeClock | None = None) -> None:
    """Wait for something that depends on sockets or threads; a fake clock is moved on meanwhile."""
    async with asyncio.timeout(10):
        while not holds():
            await asyncio.sleep(0.002)
            if clock is not None:
                await clock.advance(1)


@dataclass(frozen=True)
class Reply:
    code: int
    body: Any
    headers: dict[str, str]


class Client:
    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session = session
        self._url = url

    async def call(
        self, method: str, path: str, body: Any = None, *, headers: dict[str, str] | None = None
    ) -> Reply:
        data = (
            io.BytesIO(body) if isinstance(body, bytes) else orjson.dumps(body) if body is not None else None
        )
        sent = {"Content-Type": "application/json", **(headers or {})}
        async with self._session.request(method, self._url + path, data=data, headers=sent) as response:
            raw = await response.read()
            is_json = response.content_type == "application/json"
            return Reply(response.status, orjson.loads(raw) if is_json else raw, dict(response.headers))

    async def get(self, path: str, **headers: str) -> Reply:
        return await self.call("GET", path, headers=headers)

    async def post(self, path: str, body: Any) -> Reply:
        return await self.call("POST", path, body)

    async def put(self, path: str, body: Any) -> Reply:
        return await self.call("PUT", path, body)

    async def patch(self, path: str, body: Any, content_type: str = MERGE_PATCH) -> Reply:
        return await self.call("PATCH", path, body, headers={"Content-Type": content_type})

    async def delete(self, path: str, body: Any = None) -> Reply:
        return await self.call("DELETE", path, body)

    @asynccontextmanager
    async def watch(self, path: str) -> AsyncIterator["EventReader"]:
        async with self._session.get(self._url + path) as response:
            yield EventReader(response)


class EventReader:
    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self.response = response

    async def next(self) -> tuple[str, Object]:
        line = await self.line()
        event = orjson.loads(line)
        return event["type"], event["object"]

    async def names(self, count: int) -> list[tuple[str, str]]:
        found = [await self.next() for _ in range(count)]
        return [(kind, obj["metadata"]["name"]) for kind, obj in found]

    async def line(self) -> bytes:
        """The next line, or nothing at the end of the stream."""
        async with asyncio.timeout(10):
            return await self.response.content.readline()


@asynccontextmanager
async def a_server(**settings: Any) -> AsyncIterator[tuple[SimKubeApi, Client]]:
    async with (
        SimKubeApi(**settings) as api,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session,
    ):
        yield api, Client(session, api.url)
