"""Server-side apply as a verb: create what is not there, merge what is, and write who owns what."""

from dataclasses import dataclass, replace
from typing import Any

from gpuloom.sim.kubeapi.objects.objects import copied
from gpuloom.sim.kubeapi.objects.ownership import APPLY, Owner, Ownership, apply_fields, first_ownership
from gpuloom.sim.kubeapi.objects.shapes import require_shape
from gpuloom.sim.kubeapi.resources import Resource
from gpuloom.sim.kubeapi.status import bad_request, not_found, stale
from gpuloom.sim.kubeapi.storage.collection import Object
from gpuloom.sim.kubeapi.verbs.store import Store, WriteOptions


@dataclass(frozen=True, slots=True)
class Application:
    config: Any
    manager: str
    force: bool
    options: WriteOptions
    replacement: Object | None = None
    """What to store instead of the outcome: admission has changed it."""


@dataclass(frozen=True, slots=True)
class Written:
    obj: Object
    created: bool


def apply(store: Store, resource: Resource, namespace: str, name: str, application: Application) -> Written:
    """Raise 400 for a config that can't be applied, 409 when another owns what it would change."""
    config = _checked(resource, name, copied(application.config))
    options, database = application.options, store.database
    owner = Owner(application.manager, APPLY, options.subresource)
    mine = Ownership(owner, config["apiVersion"], database.timestamp())
    entry = database.find(resource, (namespace, name) if resource.namespaced else ("", name))
    asked_version = config["metadata"].get("resourceVersion")
    if entry is None:
        if options.subresource:
            raise not_found(resource.key, name)
        if asked_version:
            raise stale(resource.key, name)
        managed = first_ownership(config, mine)
        given = application.replacement or config
        obj = store.create(resource, given, namespace=namespace, options=replace(options, managed=managed))
        return Written(obj, created=True)
    applied = apply_fields(entry.obj, config, mine, force=application.force)
    outcome = application.replacement or applied.obj
    given = {**outcome, "metadata": {**outcome["metadata"], **_preconditions(config)}}
    obj = store.write(resource, entry, given, replace(options, managed=applied.managed))
    return Written(obj, created=False)


def _checked(resource: Resource, name: str, config: Any) -> Object:
    require_shape(resource, config)
    checked: Object = config
    if not checked.get("apiVersion") or not checked.get("kind"):
        raise bad_request("apiVersion and kind must be set in an applied object")
    metadata = checked.setdefault("metadata", {})
    if metadata.get("managedFields"):
        raise bad_request("metadata.managedFields must be nil")
    if metadata.setdefault("name", name) != name:
        raise bad_request(f"the name of the object does not match the name on the URL ({name})")
    return checked


def _preconditions(config: Object) -> Object:
    named = ("uid", "resourceVersion")
    return {key: config["metadata"][key] for key in named if config["metadata"].get(key)}
