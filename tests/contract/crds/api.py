"""A Kubernetes API by plain HTTP: tables, scales and refusals as a user's tools see them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
import orjson

from gpuloom.kube.access import KubeAccess
from gpuloom.kube.resources import Resource

Object = dict[str, Any]

NAMESPACE = "default"
MERGE_PATCH = "application/merge-patch+json"
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"


@dataclass(frozen=True)
class Reply:
    code: int
    body: Any

    @property
    def causes(self) -> list[tuple[str, str]]:
        """(field, reason) of everything that was wrong."""
        causes = (self.body.get("details") or {}).get("causes") or ()
        return [(cause["field"], cause["reason"]) for cause in causes]

    @property
    def message(self) -> str:
        return str(self.body.get("message", ""))


class Api:
    def __init__(self, session: aiohttp.ClientSession, access: KubeAccess, context: Any, token: str) -> None:
        self._session, self._access, self._context = session, access, context
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}

    async def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        content_type: str = "application/json",
        accept: str = "application/json",
    ) -> Reply:
        headers = {**self._headers, "Accept": accept, "Content-Type": content_type}
        data = None if body is None else orjson.dumps(body)
        url = self._access.server + path
        async with self._session.request(
            method, url, data=data, headers=headers, ssl=self._context
        ) as response:
            return Reply(response.status, orjson.loads(await response.read()))

    async def create(self, resource: Resource, obj: Object, query: str = "") -> Reply:
        return await self.call("POST", resource.collection_path(NAMESPACE) + query, obj)

    async def get(self, resource: Resource, name: str, part: str = "") -> Reply:
        return await self.call("GET", resource.object_path(name, NAMESPACE, part))

    async def put(self, resource: Resource, obj: Object, part: str = "") -> Reply:
        name = obj["metadata"]["name"]
        return await self.call("PUT", resource.object_path(name, NAMESPACE, part), obj)

    async def patch(self, resource: Resource, name: str, patch: Object, part: str = "") -> Reply:
        path = resource.object_path(name, NAMESPACE, part)
        return await self.call("PATCH", path, patch, content_type=MERGE_PATCH)

    async def table(self, resource: Resource) -> Object:
        reply = await self.call("GET", resource.collection_path(NAMESPACE), accept=TABLE)
        body: Object = reply.body
        return body

    async def delete_all(self, resource: Resource) -> None:
        await self.call("DELETE", resource.collection_path(NAMESPACE))


@asynccontextmanager
async def open_api(access: KubeAccess) -> AsyncIterator[Api]:
    credential = await access.credential()
    context = access.ssl_context(credential.certificate)
    async with aiohttp.ClientSession() as session:
        yield Api(session, access, True if context is None else context, credential.token or "")
