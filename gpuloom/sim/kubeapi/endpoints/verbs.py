"""From a parsed request to an answer: which verb on which target. No I/O; never yields on its way."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson
import yaml

from gpuloom.runtime.clock import Clock
from gpuloom.sim.kubeapi.endpoints import requests
from gpuloom.sim.kubeapi.endpoints.representation import Representation
from gpuloom.sim.kubeapi.endpoints.requests import Target
from gpuloom.sim.kubeapi.objects.patches import APPLY, STRATEGIC, Patch, apply_patch
from gpuloom.sim.kubeapi.resources import PDB_KEY
from gpuloom.sim.kubeapi.status import ApiError, bad_request, method_not_allowed, success, unknown_path
from gpuloom.sim.kubeapi.storage.collection import Entry, Object
from gpuloom.sim.kubeapi.verbs import subresources
from gpuloom.sim.kubeapi.verbs.apply import Application, apply
from gpuloom.sim.kubeapi.verbs.deletion import DeleteOptions
from gpuloom.sim.kubeapi.verbs.disruption import Disruptions
from gpuloom.sim.kubeapi.verbs.store import Store, WriteOptions

_JSON_TYPES = frozenset({"", "application/json", "application/octet-stream"})
_CREATED_IN_POD = frozenset({"binding", "eviction"})


@dataclass(frozen=True, slots=True)
class Call:
    """One request, its body not yet parsed."""

    method: str
    target: Target
    query: Mapping[str, str]
    content_type: str = ""
    body: bytes = b""
    as_table: bool = False
    user_agent: str = ""
    replacement: Object | None = None
    """What admission made of an applied object; its owner owns what he applied all the same."""


@dataclass(frozen=True, slots=True)
class Answer:
    code: int
    body: bytes


class Verbs:
    def __init__(self, store: Store, disruptions: Disruptions, clock: Clock) -> None:
        self._store = store
        self._disruptions = disruptions
        self._clock = clock

    def execute(self, call: Call) -> Answer:
        """Raise ApiError for every refusal."""
        target = call.target
        if target.subresource == "scale":
            return self._scale(call)
        if target.subresource in _CREATED_IN_POD:
            return self._create_in_pod(call)
        if target.subresource not in ("", "status") or (
            target.subresource and not target.resource.has_status
        ):
            raise unknown_path()
        verbs = {
            ("GET", True): self._read,
            ("GET", False): self._read,
            ("POST", False): self._create,
            ("PUT", True): self._update,
            ("PATCH", True): self._patch,
            ("DELETE", True): self._delete,
            ("DELETE", False): self._delete,
        }
        verb = verbs.get((call.method, bool(target.name)))
        if verb is None or (call.method == "DELETE" and target.subresource):
            raise method_not_allowed()
        return verb(call)

    def representation(self, call: Call) -> Representation:
        return Representation(
            call.target.resource, call.target.version, self._clock if call.as_table else None
        )

    def _read(self, call: Call) -> Answer:
        target, representation = call.target, self.representation(call)
        if target.resource.key == PDB_KEY:
            self._disruptions.refresh()
        if target.name:
            return Answer(200, representation.encode_entry(self._entry(target)))
        version = requests.whole_number(call.query, "resourceVersion")
        self._store.database.require_known(version or 0)
        query = requests.list_query(target, call.query)
        return Answer(200, representation.encode_page(self._store.page(target.resource, query)))

    def _create(self, call: Call) -> Answer:
        target = call.target
        if target.resource.namespaced and not target.namespace:
            raise method_not_allowed()
        created = self._store.create(
            target.resource,
            parse_body(call),
            namespace=target.namespace,
            options=_write_options(call),
        )
        return Answer(201, self.representation(call).encode(created))

    def _update(self, call: Call) -> Answer:
        target = call.target
        obj = _addressed(target, parse_body(call))
        updated = self._store.update(target.resource, obj, _write_options(call))
        return Answer(200, self.representation(call).encode(updated))

    def _patch(self, call: Call) -> Answer:
        target = call.target
        if call.content_type == APPLY:
            return self._apply(call)
        if call.content_type == STRATEGIC and target.resource.custom:
            raise ApiError(
                415, "custom resources take merge patches and JSON patches, no strategic merge patches"
            )
        patched = self._store.patch(
            target.resource,
            target.name,
            Patch(parse_json(call.body), call.content_type),
            namespace=target.namespace,
            options=_write_options(call),
        )
        return Answer(200, self.representation(call).encode(patched))

    def _apply(self, call: Call) -> Answer:
        target = call.target
        options = requests.apply_options(call.query)
        application = Application(
            *(parse_yaml(call.body), options.manager, options.force, _write_options(call)),
            replacement=call.replacement,
        )
        written = apply(self._store, target.resource, target.namespace, target.name, application)
        return Answer(201 if written.created else 200, self.representation(call).encode(written.obj))

    def _delete(self, call: Call) -> Answer:
        target = call.target
        options = requests.delete_options(parse_json(call.body) if call.body else None, call.query)
        if not target.name:
            return self._delete_collection(call, options)
        deletion = self._store.delete(
            target.resource, target.name, namespace=target.namespace, options=options
        )
        if not deletion.gone or target.resource.key == "pods":
            return Answer(200, self.representation(call).encode(deletion.obj))
        details = {
            "name": target.name,
            "kind": target.resource.plural,
            "uid": deletion.obj["metadata"]["uid"],
        }
        if target.resource.group:
            details["group"] = target.resource.group
        return Answer(200, orjson.dumps(success(details)))

    def _delete_collection(self, call: Call, options: DeleteOptions) -> Answer:
        target = call.target
        if target.resource.namespaced and not target.namespace:
            raise method_not_allowed()
        query = requests.list_query(target, call.query)
        deleted = self._store.delete_collection(target.resource, query, options)
        body = self.representation(call).encode_objects(deleted, self._store.database.version)
        return Answer(200, body)

    def _create_in_pod(self, call: Call) -> Answer:
        target = call.target
        if target.resource.key != "pods":
            raise unknown_path()
        if call.method != "POST":
            raise method_not_allowed()
        body = parse_body(call)
        if target.subresource == "binding":
            dry_run = requests.is_dry_run(call.query)
            done = subresources.bind(self._store, target.namespace, target.name, body, dry_run=dry_run)
        else:
            options = _eviction_options(call, body)
            done = subresources.evict(self._store, self._disruptions, target.namespace, target.name, options)
        return Answer(201, orjson.dumps(done))

    def _scale(self, call: Call) -> Answer:
        target = call.target
        if target.resource.scale is None:
            raise unknown_path()
        entry = self._entry(target)
        scale = subresources.read_scale(target.resource, entry.obj)
        if call.method == "GET":
            return Answer(200, orjson.dumps(scale))
        if call.method == "PATCH":
            wanted: Any = apply_patch(scale, Patch(parse_json(call.body), call.content_type))
        elif call.method == "PUT":
            wanted = parse_body(call)
        else:
            raise method_not_allowed()
        written = subresources.write_scale(self._store, target.resource, entry, wanted, _write_options(call))
        return Answer(200, orjson.dumps(written))

    def _entry(self, target: Target) -> Entry:
        return self._store.entry(target.resource, target.name, target.namespace)


def parse_body(call: Call) -> Any:
    """Raise 415 for a body that is no JSON by its own account, 400 for one that is none in truth."""
    if call.content_type not in _JSON_TYPES:
        message = "the body of the request was in an unknown format - accepted: application/json"
        raise ApiError(415, message)
    return parse_json(call.body)


def parse_json(body: bytes) -> Any:
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise bad_request(f"the request body is not valid JSON: {error}") from error


def parse_yaml(body: bytes) -> Any:
    """JSON is YAML as well, and far quicker to read."""
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        try:
            return yaml.safe_load(body)
        except yaml.YAMLError as error:
            raise bad_request(f"the request body is neither JSON nor YAML: {error}") from error


def _addressed(target: Target, obj: Any) -> Any:
    """The object of a PUT, checked against (and completed by) its URL."""
    metadata = (obj.get("metadata") or {}) if isinstance(obj, dict) else None
    if not isinstance(metadata, dict):
        raise bad_request(f"the request body must be a JSON object ({target.resource.kind})")
    if metadata.get("name") != target.name:
        raise bad_request(
            f"the name of the object ({metadata.get('name')}) is not the name on the URL ({target.name})"
        )
    if target.resource.namespaced and (metadata.get("namespace") or target.namespace) != target.namespace:
        raise bad_request(
            "the namespace of the provided object does not match the namespace sent on the request"
        )
    placed: Object = {**obj, "metadata": {**metadata, "namespace": target.namespace}}
    return placed


def _write_options(call: Call) -> WriteOptions:
    return WriteOptions(
        call.target.subresource,
        requests.is_dry_run(call.query),
        requests.is_strict(call.query),
        requests.field_manager(call.query, call.user_agent),
    )


def _eviction_options(call: Call, body: Any) -> DeleteOptions:
    if not isinstance(body, dict):
        raise bad_request("the request body must be an Eviction object")
    metadata = body.get("metadata") or {}
    if isinstance(metadata, dict) and metadata.get("name") not in (None, "", call.target.name):
        raise bad_request("name in URL does not match name in Eviction object")
    return requests.delete_options(body.get("deleteOptions"), call.query)
