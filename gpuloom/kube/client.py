"""The Kubernetes API over raw JSON: verbs in, objects or typed errors out, every call with a deadline.

Decides nothing about objects and keeps no state; caches live in the informer.
"""

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Self

import orjson
from prometheus_client import CollectorRegistry

from gpuloom.errors import UnavailableError
from gpuloom.kube.access import KubeAccess
from gpuloom.kube.decoding import decoded
from gpuloom.kube.errors import Call, GoneError, error_from_status
from gpuloom.kube.listing import EVERYTHING, EventType, Listing, Selection, WatchEvent
from gpuloom.kube.objects import JsonObject, key_of, metadata_of
from gpuloom.kube.resources import PODS, Resource
from gpuloom.kube.transport import Request, Transport
from gpuloom.runtime.clock import Clock

DEFAULT_TIMEOUT_S = 10.0
LIST_TIMEOUT_S = 60.0
_PAGE_SIZE = 500
_LIST_RESTARTS = 3
_MERGE_PATCH = "application/merge-patch+json"
_JSON_PATCH = "application/json-patch+json"
# JSON is YAML; the server knows server-side apply by this type alone.
_APPLY_PATCH = "application/apply-patch+yaml"


@dataclass(frozen=True, slots=True)
class DeleteOptions:
    uid: str | None = None
    """Delete only the object of this UID, not its namesake."""
    resource_version: str | None = None
    grace_period_s: int | None = None
    """None: the object's own; 0: at once."""
    propagation: str | None = None
    """What happens to dependents: Background, Foreground or Orphan. None: as the kind has it."""

    def body(self) -> JsonObject:
        body: JsonObject = {"apiVersion": "v1", "kind": "DeleteOptions"}
        preconditions = {"uid": self.uid, "resourceVersion": self.resource_version}
        preconditions = {name: value for name, value in preconditions.items() if value is not None}
        if preconditions:
            body["preconditions"] = preconditions
        if self.grace_period_s is not None:
            body["gracePeriodSeconds"] = self.grace_period_s
        if self.propagation is not None:
            body["propagationPolicy"] = self.propagation
        return body


@dataclass(frozen=True, slots=True)
class PodBinding:
    """A pod given to a node. The server copies the annotations to the pod in the same write."""

    namespace: str
    pod: str
    node: str
    uid: str | None = None
    """ConflictError unless the pod has this UID."""
    resource_version: str | None = None
    """ConflictError unless the pod is still at this version."""
    annotations: Mapping[str, str] = field(default_factory=dict)


class KubeClient:
    """Use as an async context manager. Counts its requests in the registry, which then serves one client."""

    def __init__(self, access: KubeAccess, clock: Clock, registry: CollectorRegistry | None = None) -> None:
        self._clock = clock
        self._transport = Transport(access, clock, registry)

    async def __aenter__(self) -> Self:
        await self._transport.__aenter__()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._transport.__aexit__(*exc_info)

    async def warm(self, connections: int, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        """Open connections ahead of a burst. An API server that can't be reached now is no error."""
        await self._transport.warm(connections, timeout_s)

    async def version(self, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> JsonObject:
        """What the API server says of itself, as {"major": "1", "minor": "34", …}."""
        return await self._transport.read(Request("GET", "/version", Call("get", "version", "")), timeout_s)

    async def served(self, api_version: str, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> list[JsonObject]:
        """The resources of a group and version, as {"name": "deployments", "kind": "Deployment", …}."""
        path = f"/apis/{api_version}" if "/" in api_version else f"/api/{api_version}"
        found = await self._transport.read(Request("GET", path, Call("get", "apis", api_version)), timeout_s)
        return list(found.get("resources") or ())

    async def get(
        self,
        resource: Resource,
        name: str,
        namespace: str | None = None,
        *,
        timeout_s: float = DEFAULT_TIMEOUT_S,
    ) -> JsonObject:
        path = resource.object_path(name, namespace)
        call = Call("get", resource.plural, _display(namespace, name))
        return await self._transport.read(Request("GET", path, call), timeout_s)

    async def list(
        self,
        resource: Resource,
        selection: Selection = EVERYTHING,
        *,
        page_size: int = _PAGE_SIZE,
        timeout_s: float = LIST_TIMEOUT_S,
    ) -> Listing:
        """All pages of one consistent state. Starts over when the server no longer keeps that state."""
        ends_s = self._clock.monotonic() + timeout_s
        for _ in range(_LIST_RESTARTS):
            try:
                return await self._list_pages(resource, selection, page_size, ends_s)
            except GoneError:
                continue
        # The list outlives what the server keeps: ask for it in one piece.
        return await self._list_pages(resource, selection, 0, ends_s)

    async def newest_version(
        self, resource: Resource, namespace: str | None = None, *, timeout_s: float = DEFAULT_TIMEOUT_S
    ) -> str:
        """The version of the resource's present state, agreed upon by the whole of etcd; reads one object."""
        call = Call("list", resource.plural, namespace or "")
        request = Request("GET", resource.collection_path(namespace), call, {"limit": "1"})
        return metadata_of(await self._transport.read(request, timeout_s)).get("resourceVersion") or ""

    async def watch(
        self,
        resource: Resource,
        resource_version: str,
        selection: Selection = EVERYTHING,
        *,
        duration_s: float = 300.0,
        idle_timeout_s: float = 90.0,
        gather_s: float = 0.0,
    ) -> AsyncGenerator[WatchEvent, None]:
        """What happened after that version, until the server ends the watch after about duration_s.

        Raises GoneError when the version is too old, DeadlineError after idle_timeout_s of silence. An event
        that follows another may come up to gather_s late: in a burst it is cheaper to read several at once.
        """
        query = selection.query() | {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": resource_version,
            "timeoutSeconds": str(max(1, round(duration_s))),
        }
        call = Call("watch", resource.plural, selection.namespace or "")
        request = Request("GET", resource.collection_path(selection.namespace), call, query)
        async with aclosing(self._transport.lines(request, idle_timeout_s, gather_s)) as lines:
            async for line in lines:
                yield parse_watch_line(line, call)

    async def create(
        self, resource: Resource, obj: JsonObject, *, timeout_s: float = DEFAULT_TIMEOUT_S
    ) -> JsonObject:
        namespace, name = key_of(obj)
        call = Call(
            "create", resource.plural, _display(namespace, name or metadata_of(obj).get("generateName", ""))
        )
        path = resource.collection_path(namespace)
        return await self._transport.write(Request("POST", path, call, body=_typed(resource, obj)), timeout_s)

    async def replace(
        self, resource: Resource, obj: JsonObject, *, timeout_s: float = DEFAULT_TIMEOUT_S
    ) -> JsonObject:
        """ConflictError if the object's metadata.resourceVersion is given and no longer the present one."""
        namespace, name = key_of(obj)
        call = Call("update", resource.plural, _display(namespace, name))
        path = resource.object_path(name, namespace)
        return await self._transport.write(Request("PUT", path, call, body=_typed(resource, obj)), timeout_s)

    async def patch(
        self,
        resource: Resource,
        name: str,
        namespace: str | None,
        patch: JsonObject,
        *,
        resource_version: str | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
    ) -> JsonObject:
        """A merge patch: null removes. ConflictError if resource_version is given and not the present one."""
        body = _with_version(patch, resource_version)
        return await self._patch(
            resource.object_path(name, namespace), resource.plural, (namespace, name), body, timeout_s
        )

    async def patch_status(
        self,
        resource: Resource,
        name: str,
        namespace: str | None,
        patch: JsonObject,
        *,
        resource_version: str | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
    ) -> JsonObject:
        """As patch, on the status subresource: `patch` holds {"status": …}; the spec stays as it is."""
        path = resource.object_path(name, namespace, "status")
        body = _with_version(patch, resource_version)
        return await self._patch(path, f"{resource.plural}/status", (namespace, name), body, timeout_s)

    async def json_patch(
        self,
        resource: Resource,
        name: str,
        namespace: str | None,
        operations: Sequence[JsonObject],
        *,
        timeout_s: float = DEFAULT_TIMEOUT_S,
    ) -> JsonObject:
        """All operations (RFC 6902) or none. InvalidRequestError if one does not apply, as a failed test."""
        call = Call("patch", resource.plural, _display(namespace, name))
        path = resource.object_path(name, namespace)
        request = Request("PATCH", path, call, body=list(operations), content_type=_JSON_PATCH)
        return await self._transport.write(request, timeout_s)

    async def apply(
        self,
        resource: Resource,
        obj: JsonObject,
        field_manager: str,
        *,
        force: bool = False,
        subresource: str = "",
        timeout_s: float = DEFAULT_TIMEOUT_S,
    ) -> JsonObject:
        """Server-side apply: own exactly the fields of `obj`; what this manager no longer names is removed.

        Creates what is not there. ConflictError if another manager owns a field with another value;
        `force` takes it over.
        """
        namespace, name = key_of(obj)
        call = Call("apply", resource.plural, _display(namespace, name))
        query = {"fieldManager": field_manager, "force": "true" if force else "false"}
        path = resource.object_path(name, namespace, subresource)
        request = Request("PATCH", path, call, query, _typed(resource, obj), _APPLY_PATCH)
        return await self._transport.write(request, timeout_s)

    async def get_scale(
        self, resource: Resource, name: str, namespace: str, *, timeout_s: float = DEFAULT_TIMEOUT_S
    ) -> JsonObject:
        """The Scale of a workload: spec.replicas, status.replicas, status.selector."""
        call = Call("get", f"{resource.plural}/scale", _display(namespace, name))
        path = resource.object_path(name, namespace, "scale")
        return await self._transport.read(Request("GET", path, call), timeout_s)

    async def patch_scale(
        self,
        resource: Resource,
        name: str,
        namespace: str,
        replicas: int,
        *,
        resource_version: str | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
    ) -> JsonObject:
        """ConflictError if resource_version is given and the workload is no longer at it."""
        path = resource.object_path(name, namespace, "scale")
        body = _with_version({"spec": {"replicas": replicas}}, resource_version)
        return await self._patch(path, f"{resource.plural}/scale", (namespace, name), body, timeout_s)

    async def delete(
        self,
        resource: Resource,
        name: str,
        namespace: str | None = None,
        options: DeleteOptions | None = None,
        *,
        timeout_s: float = DEFAULT_TIMEOUT_S,
    ) -> None:
        """Accepted, which is not gone: a grace period or finalizers may keep the object for a while."""
        call = Call("delete", resource.plural, _display(namespace, name))
        body = (options or DeleteOptions()).body()
        path = resource.object_path(name, namespace)
        await self._transport.write(Request("DELETE", path, call, body=body), timeout_s)

    async def bind(self, binding: PodBinding, *, timeout_s: float = 5.0) -> None:
        """One Binding, given up by the server itself after timeout_s.

        ConflictError: bound already, another UID, or another version. DeadlineError, UnavailableError:
        it may have acted, also a little later.
        """
        metadata: JsonObject = {"name": binding.pod, "namespace": binding.namespace}
        if binding.uid is not None:
            metadata["uid"] = binding.uid
        if binding.resource_version is not None:
            metadata["resourceVersion"] = binding.resource_version
        if binding.annotations:
            metadata["annotations"] = dict(binding.annotations)
        body: JsonObject = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": metadata,
            "target": {"apiVersion": "v1", "kind": "Node", "name": binding.node},
        }
        call = Call("create", "pods/binding", _display(binding.namespace, binding.pod))
        path = PODS.object_path(binding.pod, binding.namespace, "binding")
        query = {"timeout": f"{timeout_s:g}s"}
        await self._transport.write(Request("POST", path, call, query, body), timeout_s)

    async def evict(
        self,
        namespace: str,
        name: str,
        options: DeleteOptions | None = None,
        *,
        timeout_s: float = DEFAULT_TIMEOUT_S,
    ) -> None:
        """DisruptionBudgetError while a PodDisruptionBudget forbids it; ConflictError if the UID differs."""
        body: JsonObject = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": name, "namespace": namespace},
            "deleteOptions": (options or DeleteOptions()).body(),
        }
        call = Call("create", "pods/eviction", _display(namespace, name))
        path = PODS.object_path(name, namespace, "eviction")
        await self._transport.write(Request("POST", path, call, body=body), timeout_s)

    async def _list_pages(
        self, resource: Resource, selection: Selection, page_size: int, ends_s: float
    ) -> Listing:
        call = Call("list", resource.plural, selection.namespace or "")
        query = selection.query()
        if page_size:
            query["limit"] = str(page_size)
        keep = selection.keep or _whole
        items: list[JsonObject] = []
        while True:
            request = Request("GET", resource.collection_path(selection.namespace), call, query)
            page = await self._transport.read(request, ends_s - self._clock.monotonic())
            items.extend(keep(_typed(resource, item)) for item in page.get("items") or ())
            metadata = metadata_of(page)
            if not metadata.get("continue"):
                return Listing(tuple(items), metadata.get("resourceVersion") or "")
            query = query | {"continue": metadata["continue"]}

    async def _patch(
        self, path: str, resource: str, key: tuple[str | None, str], body: JsonObject, timeout_s: float
    ) -> JsonObject:
        call = Call("patch", resource, _display(*key))
        request = Request("PATCH", path, call, body=body, content_type=_MERGE_PATCH)
        return await self._transport.write(request, timeout_s)


def parse_watch_line(line: bytes, call: Call) -> WatchEvent:
    """Raise the error that an ERROR event stands for."""
    try:
        event = decoded(line)
        kind, obj = event["type"], event["object"]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        raise UnavailableError(f"{call}: a line of the watch is not a watch event") from None
    if not isinstance(obj, dict):
        raise UnavailableError(f"{call}: a watch event without an object")
    if kind == "ERROR":
        code = obj.get("code")
        raise error_from_status(call, code if isinstance(code, int) else 500, obj)
    try:
        return WatchEvent(EventType(kind), obj)
    except ValueError:
        raise UnavailableError(f"{call}: a watch event of the unknown type {kind!r}") from None


def _typed(resource: Resource, obj: JsonObject) -> JsonObject:
    """Items of a list come without apiVersion and kind; a request must have them."""
    if "kind" in obj and "apiVersion" in obj:
        return obj
    return {"apiVersion": resource.api_version, "kind": resource.kind, **obj}


def _whole(obj: JsonObject) -> JsonObject:
    return obj


def _with_version(patch: JsonObject, resource_version: str | None) -> JsonObject:
    if resource_version is None:
        return patch
    return {**patch, "metadata": {**metadata_of(patch), "resourceVersion": resource_version}}


def _display(namespace: str | None, name: str) -> str:
    return f"{namespace}/{name}" if namespace else name
