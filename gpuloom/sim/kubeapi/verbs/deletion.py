"""Deletion: grace for pods, finalizers, dependents, the end of namespaces and of custom resources.

Decides what goes at once and what waits for someone. Runs no controllers: a pod's grace ends when its kubelet
deletes it with grace 0, whenever that is. Foreground deletion is treated like background deletion.
"""

from collections import deque
from dataclasses import dataclass

from gpuloom.sim.kubeapi.objects.pods import is_terminal
from gpuloom.sim.kubeapi.resources import CRD_KEY, EVENT_KEYS, Resource
from gpuloom.sim.kubeapi.status import forbidden, require_precondition
from gpuloom.sim.kubeapi.storage.collection import Entry, Key, Object
from gpuloom.sim.kubeapi.storage.database import Database, owner_uids

DEFAULT_NAMESPACES = ("default", "kube-system", "kube-public", "kube-node-lease")
_UNDELETABLE = frozenset(DEFAULT_NAMESPACES) - {"kube-node-lease"}
_DEFAULT_GRACE_S = 30


@dataclass(frozen=True, slots=True)
class DeleteOptions:
    """Empty preconditions always hold; `grace_s` None takes the pod's own."""

    grace_s: int | None = None
    uid: str = ""
    resource_version: str = ""
    orphan: bool = False
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class Deletion:
    """The object after the deletion, and whether it is gone or only marked."""

    obj: Object
    gone: bool


def delete(database: Database, resource: Resource, key: Key, options: DeleteOptions) -> Deletion:
    """Raise 404 if it is not there, 409 when a precondition fails, 403 for a namespace that must stay."""
    entry = database.require(resource, key)
    _require_preconditions(resource, entry, options)
    if resource.key == "namespaces" and key[1] in _UNDELETABLE:
        raise forbidden(resource.key, key[1], "this namespace may not be deleted")
    if resource.key == "namespaces":
        return _delete_namespace(database, resource, entry, options)
    deletion = _delete_one(database, resource, entry, options)
    if deletion.gone and not options.dry_run:
        _follow_up(database, resource, deletion.obj, orphan=options.orphan)
    return deletion


def is_finished(resource: Resource, obj: Object) -> bool:
    """Marked for deletion, with no finalizer and no grace left to wait for?"""
    metadata = obj["metadata"]
    if not metadata.get("deletionTimestamp") or metadata.get("finalizers"):
        return False
    return resource.key != "pods" or not metadata.get("deletionGracePeriodSeconds")


def may_go(database: Database, resource: Resource, obj: Object) -> bool:
    """Finished, and (a namespace) empty as well?"""
    if not is_finished(resource, obj):
        return False
    return resource.key != "namespaces" or not database.has_content(obj["metadata"]["name"])


def remove(database: Database, resource: Resource, key: Key) -> Object:
    """Take the object out now, whatever it waits for, then see to what hung on it."""
    last = _take_out(database, resource, key)
    _follow_up(database, resource, last, orphan=False)
    return last


def resume(database: Database) -> None:
    """Finish what a crash interrupted: dependents whose owners are gone, namespaces that are ending."""
    for resource, key in database.owned():
        _collect(database, resource, key)
    namespaces = database.registry.get("namespaces")
    for entry in list(database.collection(namespaces).entries()):
        if entry.obj["metadata"].get("deletionTimestamp"):
            _empty_namespace(database, entry.key[1])


def expire_events(database: Database, lifetime_s: float, most: int) -> int:
    """Drop Events that were last written too long ago, and the oldest beyond `most`; returns how many."""
    now_s = database.clock.monotonic()
    dropped = 0
    for resource in map(database.registry.get, EVENT_KEYS):
        entries = sorted(database.collection(resource).entries(), key=lambda entry: entry.version)
        surplus = len(entries) - most
        for position, entry in enumerate(entries):
            if position < surplus or now_s - entry.written_s > lifetime_s:
                remove(database, resource, entry.key)
                dropped += 1
    return dropped


def _delete_one(database: Database, resource: Resource, entry: Entry, options: DeleteOptions) -> Deletion:
    marked = _marked(database, resource, entry.obj, options)
    gone = is_finished(resource, marked)
    if options.dry_run:
        return Deletion(marked, gone)
    if gone:
        return Deletion(_take_out(database, resource, entry.key), True)
    if marked != entry.obj:
        marked = database.put(resource, entry.key, marked).obj
    return Deletion(marked, False)


def _take_out(database: Database, resource: Resource, key: Key) -> Object:
    if resource.key == CRD_KEY:
        _remove_instances(database, key[1])
    return database.remove(resource, key).obj


def _follow_up(database: Database, resource: Resource, last: Object, *, orphan: bool) -> None:
    """See to dependents, theirs, and so on (by a queue: chains may be long), then to the namespace."""
    owner_uid = last["metadata"]["uid"]
    removed = deque([owner_uid])
    while removed:
        uid = removed.popleft()
        for dependent, key in database.dependents(uid):
            if orphan and uid == owner_uid:
                _disown(database, dependent, key, uid)
            else:
                removed.extend(_collect(database, dependent, key))
    if resource.namespaced:
        _finish_namespace(database, last["metadata"]["namespace"])


def _collect(database: Database, resource: Resource, key: Key) -> list[str]:
    """Delete an object whose owners are all gone; returns its uid if it went at once."""
    entry = database.find(resource, key)
    if entry is None or any(map(database.owner_exists, owner_uids(entry.obj))):
        return []
    if entry.obj["metadata"].get("deletionTimestamp"):
        return []
    if resource.key == "namespaces":
        delete(database, resource, key, DeleteOptions())
        return []
    deletion = _delete_one(database, resource, entry, DeleteOptions())
    if deletion.gone and resource.namespaced:
        _finish_namespace(database, key[0])
    return [deletion.obj["metadata"]["uid"]] if deletion.gone else []


def _require_preconditions(resource: Resource, entry: Entry, options: DeleteOptions) -> None:
    actual = entry.obj["metadata"]
    require_precondition(resource.key, actual, "UID", options.uid)
    require_precondition(resource.key, actual, "ResourceVersion", options.resource_version)


def _marked(database: Database, resource: Resource, obj: Object, options: DeleteOptions) -> Object:
    grace_s = _grace_s(resource, obj, options.grace_s)
    metadata = obj["metadata"]
    if metadata.get("deletionTimestamp"):
        remaining_s = metadata.get("deletionGracePeriodSeconds") or 0
        if grace_s >= remaining_s:
            return obj
    marks = {"deletionTimestamp": database.timestamp_in(grace_s), "deletionGracePeriodSeconds": grace_s}
    marked = {**obj, "metadata": {**metadata, **marks}}
    if resource.key == "namespaces":
        marked["status"] = {**(obj.get("status") or {}), "phase": "Terminating"}
    return marked


def _grace_s(resource: Resource, obj: Object, asked_s: int | None) -> int:
    # A pod that no kubelet runs (unbound, or ended) has nobody to wait for.
    if resource.key != "pods" or not obj["spec"].get("nodeName") or is_terminal(obj):
        return 0
    if asked_s is None:
        return int(obj["spec"].get("terminationGracePeriodSeconds", _DEFAULT_GRACE_S))
    return asked_s if asked_s >= 0 else 1


def _remove_instances(database: Database, definition_name: str) -> None:
    resource = database.registry.defined_by(definition_name)
    if resource is None:
        return
    for entry in sorted(database.collection(resource).entries(), key=lambda one: one.key):
        if database.find(resource, entry.key) is not None:
            remove(database, resource, entry.key)


def _disown(database: Database, resource: Resource, key: Key, uid: str) -> None:
    obj = database.require(resource, key).obj
    owners = [owner for owner in obj["metadata"]["ownerReferences"] if owner["uid"] != uid]
    metadata = {**obj["metadata"], "ownerReferences": owners}
    if not owners:
        del metadata["ownerReferences"]
    database.put(resource, key, {**obj, "metadata": metadata})


def _delete_namespace(
    database: Database, namespaces: Resource, entry: Entry, options: DeleteOptions
) -> Deletion:
    """Mark it, delete what is in it, and let it go with the last object."""
    marked = _marked(database, namespaces, entry.obj, options)
    name = entry.key[1]
    if options.dry_run:
        return Deletion(marked, may_go(database, namespaces, marked))
    if marked != entry.obj:
        database.put(namespaces, entry.key, marked)
    _empty_namespace(database, name)
    left = database.find(namespaces, entry.key)
    return Deletion(marked if left is None else left.obj, left is None)


def _empty_namespace(database: Database, name: str) -> None:
    for resource, entry in database.content(name):
        if database.find(resource, entry.key) is not None:
            delete(database, resource, entry.key, DeleteOptions())
    _finish_namespace(database, name)


def _finish_namespace(database: Database, name: str) -> None:
    namespaces = database.registry.get("namespaces")
    entry = database.find(namespaces, ("", name))
    if entry is not None and may_go(database, namespaces, entry.obj):
        remove(database, namespaces, entry.key)
