"""The verbs of the API on objects: create, get, list, update, patch, delete. No I/O; time is the Clock's.

Decides admission, defaults, optimistic concurrency and what a write may change. A write that changes nothing
makes no new version. Every verb runs to its end without yielding, so verbs never interleave.

Objects handed out are shared: read them, never change them. Objects handed in are copied.
"""

import random
from collections.abc import Iterable
from dataclasses import dataclass

from gpuloom.runtime.clock import Clock
from gpuloom.sim.kubeapi.objects import objects
from gpuloom.sim.kubeapi.objects.ownership import Owner, Ownership, track_update, write_managed
from gpuloom.sim.kubeapi.objects.patches import Patch, apply_patch
from gpuloom.sim.kubeapi.objects.pods import with_priority
from gpuloom.sim.kubeapi.objects.shapes import require_shape
from gpuloom.sim.kubeapi.objects.validation import check_new, check_update
from gpuloom.sim.kubeapi.resources import Registry, Resource
from gpuloom.sim.kubeapi.selectors import parse_selector
from gpuloom.sim.kubeapi.status import (
    FieldProblem,
    already_exists,
    bad_request,
    forbidden,
    invalid,
    not_found,
    require_precondition,
    stale,
    unknown_path,
)
from gpuloom.sim.kubeapi.storage import paging
from gpuloom.sim.kubeapi.storage.collection import Entry, Event, Key, Object
from gpuloom.sim.kubeapi.storage.database import Change, Database, Listener, Sink
from gpuloom.sim.kubeapi.storage.paging import ListQuery, Page
from gpuloom.sim.kubeapi.verbs import deletion
from gpuloom.sim.kubeapi.verbs.deletion import DEFAULT_NAMESPACES, DeleteOptions, Deletion

PRIORITY_CLASSES = "priorityclasses.scheduling.k8s.io"
_SYSTEM_PRIORITIES = {"system-cluster-critical": 2_000_000_000, "system-node-critical": 2_000_001_000}
_NAME_ATTEMPTS = 8


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """`subresource` is "" or "status"; a dry run answers as if, and changes nothing.

    `strict`: fields that a custom resource's schema does not know are refused, not dropped.
    """

    subresource: str = ""
    dry_run: bool = False
    strict: bool = False
    manager: str = "unknown"
    """Who owns the fields that change, where that is tracked."""
    managed: tuple[Ownership, ...] | None = None
    """Who owns what afterwards, where an apply has decided it; None: track it."""


STATUS = WriteOptions(subresource="status")
_PLAIN = WriteOptions()


class Store:
    """`resource` is a Resource or its key: "pods", "leases.coordination.k8s.io".

    An empty namespace means "default" for one object, and all namespaces for many.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        history: int = 5000,
        rng: random.Random | None = None,
        changes: Iterable[Change] = (),
        sink: Sink | None = None,
    ) -> None:
        self.database = Database(clock, history=history, rng=rng or random.SystemRandom(), sink=sink)
        self.database.restore(changes)
        deletion.resume(self.database)
        self._create_missing_system_objects()

    @property
    def registry(self) -> Registry:
        return self.database.registry

    @property
    def resource_version(self) -> str:
        return str(self.database.version)

    def listen(self, listener: Listener) -> None:
        self.database.listen(listener)

    def create(
        self,
        resource: Resource | str,
        obj: Object,
        *,
        namespace: str = "",
        options: WriteOptions = _PLAIN,
    ) -> Object:
        """Raise 400/422 for a bad object, 404 for a missing namespace, 409 if the name is taken."""
        kind = self._resource(resource)
        given = objects.copied(obj)
        require_shape(kind, given)
        place = namespace or (given.get("metadata") or {}).get("namespace") or "default"
        given = objects.completed(kind, given, strict=options.strict)
        created = self._new_object(kind, given, place if kind.namespaced else "")
        if kind.key == "pods":
            created = with_priority(created, self._priority_class(created))
        check_new(self.registry, kind, created)
        key = _key_of(created)
        if kind.namespaced:
            self._require_namespace(kind, key)
        if self.database.find(kind, key) is not None:
            raise already_exists(kind.key, key[1])
        if options.managed:
            created = write_managed(created, options.managed)
        return created if options.dry_run else self.database.put(kind, key, created).obj

    def get(self, resource: Resource | str, name: str, namespace: str = "") -> Object:
        return self.entry(self._resource(resource), name, namespace).obj

    def entry(self, resource: Resource, name: str, namespace: str = "") -> Entry:
        return self.database.require(resource, _key(resource, namespace, name))

    def select(
        self, resource: Resource | str, *, namespace: str = "", labels: str = "", fields: str = ""
    ) -> list[Object]:
        """All objects that match the selectors, in the order of their names."""
        query = ListQuery(namespace, parse_selector(labels, fields))
        return [entry.obj for entry in self.page(self._resource(resource), query).entries]

    def page(self, resource: Resource, query: ListQuery) -> Page:
        return paging.list_page(self.database, resource, query)

    def update(self, resource: Resource | str, obj: Object, options: WriteOptions = _PLAIN) -> Object:
        """Replace the object that `obj` names. Raise 409 if it has another resourceVersion or uid by now."""
        kind = self._resource(resource)
        given = objects.copied(obj)
        require_shape(kind, given)
        metadata = given.get("metadata") or {}
        name = metadata.get("name") or ""
        current = self.entry(kind, name, metadata.get("namespace") or "")
        if kind.guarded and not metadata.get("resourceVersion"):
            problem = FieldProblem(
                "metadata.resourceVersion", "Invalid value: 0: must be specified for an update"
            )
            raise invalid(kind.group, kind.kind, name, [problem])
        return self._write(kind, current, given, options)

    def patch(
        self,
        resource: Resource | str,
        name: str,
        patch: Patch,
        *,
        namespace: str = "",
        options: WriteOptions = _PLAIN,
    ) -> Object:
        """Unconditional unless the patch itself sets metadata.resourceVersion (409) or metadata.uid (422)."""
        kind = self._resource(resource)
        current = self.entry(kind, name, namespace)
        patched = objects.copied(
            apply_patch(current.obj, Patch(objects.copied(patch.body), patch.content_type))
        )
        require_shape(kind, patched)
        metadata = patched.get("metadata") or {}
        if metadata.get("name") != name:
            raise bad_request(f"the name of the object does not match the name on the URL ({name})")
        if metadata.get("uid") and metadata["uid"] != current.obj["metadata"]["uid"]:
            problem = FieldProblem("metadata.uid", f'Invalid value: "{metadata["uid"]}": field is immutable')
            raise invalid(kind.group, kind.kind, name, [problem])
        return self._write(kind, current, patched, options)

    def write(self, resource: Resource, current: Entry, obj: Object, options: WriteOptions) -> Object:
        """As update, of an object that the caller has read and completed."""
        require_shape(resource, obj)
        return self._write(resource, current, obj, options)

    def delete(
        self,
        resource: Resource | str,
        name: str,
        *,
        namespace: str = "",
        options: DeleteOptions | None = None,
    ) -> Deletion:
        kind = self._resource(resource)
        return deletion.delete(self.database, kind, _key(kind, namespace, name), options or DeleteOptions())

    def delete_collection(
        self, resource: Resource | str, query: ListQuery, options: DeleteOptions
    ) -> list[Object]:
        kind = self._resource(resource)
        # The deletion of one may take another along, so each is looked for when its turn comes.
        return [
            deletion.delete(self.database, kind, entry.key, options).obj
            for entry in self.page(kind, query).entries
            if self.database.find(kind, entry.key) is not None
        ]

    def replace(
        self, resource: Resource, current: Entry, new: Object, options: WriteOptions = _PLAIN
    ) -> Object:
        """Store a new state whose admissibility the caller has decided (binding, computed status)."""
        new = self._with_ownership(resource, current.obj, new, options)
        if new == current.obj:
            return current.obj
        if options.dry_run:
            return new
        if deletion.may_go(self.database, resource, new):
            return deletion.remove(self.database, resource, current.key)
        return self.database.put(resource, current.key, new).obj

    def events_since(self, resource: Resource, version: int) -> list[Event]:
        """Raise 410 if history does not reach back to `version`; nothing if it has not come so far."""
        return self.database.collection(resource).events_since(version)

    def compact(self) -> None:
        self.database.compact()

    def _write(self, resource: Resource, current: Entry, given: Object, options: WriteOptions) -> Object:
        metadata = given.get("metadata") or {}
        _require_same(resource, current, metadata)
        if options.subresource == "status":
            if not resource.has_status:
                raise unknown_path()
            new = objects.with_status(resource, current.obj, given)
        elif options.subresource:
            raise unknown_path()
        else:
            new = objects.updated_object(resource, current.obj, given)
        new = objects.completed(resource, new, strict=options.strict)
        check_update(self.registry, resource, current.obj, new)
        new = objects.with_generation(resource, current.obj, new)
        return self.replace(resource, current, new, options)

    def _with_ownership(self, resource: Resource, old: Object, new: Object, options: WriteOptions) -> Object:
        if options.managed is not None:
            return write_managed(new, options.managed)
        if "managedFields" not in old["metadata"]:
            return new
        owner = Owner(options.manager, subresource=options.subresource)
        mine = Ownership(owner, resource.api_version, self.database.timestamp())
        return write_managed(new, track_update(old, new, mine))

    def _new_object(self, resource: Resource, given: Object, namespace: str) -> Object:
        birth = objects.Birth(self.database.new_uid(), self.database.timestamp(), self._random_suffix)
        for _ in range(_NAME_ATTEMPTS):
            created = objects.new_object(resource, given, namespace, birth)
            taken = self.database.find(resource, _key_of(created)) is not None
            if not taken or (given.get("metadata") or {}).get("name"):
                break
        return created

    def _random_suffix(self) -> str:
        return "".join(self.database.rng.choices(objects.GENERATE_ALPHABET, k=objects.GENERATE_LENGTH))

    def _priority_class(self, pod: Object) -> Object | None:
        classes = self._resource(PRIORITY_CLASSES)
        name = pod["spec"].get("priorityClassName")
        if name:
            entry = self.database.find(classes, ("", name))
            if entry is None:
                why = f"no PriorityClass with name {name} was found"
                raise forbidden("pods", str(pod["metadata"].get("name", "")), why)
            return entry.obj
        entries = self.database.collection(classes).entries()
        defaults = [entry.obj for entry in entries if entry.obj.get("globalDefault") is True]
        return min(defaults, key=lambda one: int(one["value"]), default=None)

    def _require_namespace(self, resource: Resource, key: Key) -> None:
        entry = self.database.find(self._resource("namespaces"), ("", key[0]))
        if entry is None:
            raise not_found("namespaces", key[0])
        if entry.obj["metadata"].get("deletionTimestamp"):
            why = f"unable to create new content in namespace {key[0]} because it is being terminated"
            raise forbidden(resource.key, key[1], why)

    def _resource(self, resource: Resource | str) -> Resource:
        return self.registry.get(resource) if isinstance(resource, str) else resource

    def _create_missing_system_objects(self) -> None:
        for name in DEFAULT_NAMESPACES:
            if self.database.find(self._resource("namespaces"), ("", name)) is None:
                self.create("namespaces", {"metadata": {"name": name}})
        for name, value in _SYSTEM_PRIORITIES.items():
            if self.database.find(self._resource(PRIORITY_CLASSES), ("", name)) is None:
                self.create(PRIORITY_CLASSES, {"metadata": {"name": name}, "value": value})


def _require_same(resource: Resource, current: Entry, metadata: Object) -> None:
    """Optimistic concurrency: what the writer says he has seen must be what is there."""
    actual = current.obj["metadata"]
    require_precondition(resource.key, actual, "UID", metadata.get("uid"))
    if metadata.get("resourceVersion") and metadata["resourceVersion"] != actual["resourceVersion"]:
        raise stale(resource.key, actual["name"])


def _key(resource: Resource, namespace: str, name: str) -> Key:
    return (namespace or "default", name) if resource.namespaced else ("", name)


def _key_of(obj: Object) -> Key:
    metadata = obj["metadata"]
    return metadata.get("namespace", ""), metadata.get("name", "")
