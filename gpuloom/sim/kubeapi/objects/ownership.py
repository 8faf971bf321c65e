"""Which manager owns which fields of an object, and what server-side apply makes of that. Pure.

Kept only for objects that were applied at least once: before that, all fields belong to one manager of the
past, as on a real server for objects without managedFields. Lists are one value each, but for those of
built-in kinds that have keys. Scalars and maps are owned field by field.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gpuloom.sim.kubeapi.objects.fields import Leaves, Path, leaves, path_text, remove_at, set_at
from gpuloom.sim.kubeapi.status import ApiError

Object = dict[str, Any]

BEFORE_FIRST_APPLY = "before-first-apply"
APPLY, UPDATE = "Apply", "Update"


@dataclass(frozen=True, slots=True)
class Owner:
    """Who writes; one name may own by applying and by updating, and by subresource."""

    name: str
    operation: str = UPDATE
    subresource: str = ""


@dataclass(frozen=True, slots=True)
class Ownership:
    owner: Owner
    api_version: str
    time: str
    fields: frozenset[Path] = field(default_factory=frozenset)


@dataclass(frozen=True, slots=True)
class Applied:
    """The object after an apply, and who owns what of it now."""

    obj: Object
    managed: tuple[Ownership, ...]


def apply_fields(current: Object, config: Object, mine: Ownership, *, force: bool) -> Applied:
    """Raise 409 if another owns a field with another value, unless forced. `mine` says who applies."""
    custom = is_custom(current)
    wanted = _owned_leaves(config, mine.owner.subresource, custom)
    present = leaves(current, keyed=not custom)
    managed = read_managed(current) or (_of_the_past(current, mine),)
    others = [one for one in managed if one.owner != mine.owner]
    conflicts = [
        (one, path)
        for one in others
        for path in sorted(wanted.keys() & one.fields)
        if path in present and present[path] != wanted[path]
    ]
    if conflicts and not force:
        raise _conflict(conflicts)
    before = next((one.fields for one in managed if one.owner == mine.owner), frozenset())
    kept_by_others = frozenset(path for one in others for path in one.fields)
    obj = current
    for path in sorted(before - wanted.keys() - kept_by_others, key=len, reverse=True):
        obj = remove_at(obj, path)
    for path, value in wanted.items():
        obj = set_at(obj, path, value)
    lost = {path for _, path in conflicts}
    rest = [replace(one, fields=one.fields - lost) for one in others]
    return Applied(obj, _settled(managed, [*rest, replace(mine, fields=frozenset(wanted))]))


def first_ownership(config: Object, mine: Ownership) -> tuple[Ownership, ...]:
    """Who owns what of an object that an apply creates."""
    return (replace(mine, fields=frozenset(_owned_leaves(config, "", is_custom(config)))),)


def track_update(old: Object, new: Object, mine: Ownership) -> tuple[Ownership, ...]:
    """What changed belongs to the writer now; what is gone belongs to nobody."""
    custom = is_custom(old)
    before = leaves(_without_server_fields(old), keyed=not custom)
    after = leaves(_without_server_fields(new), keyed=not custom)
    changed = frozenset(path for path, value in after.items() if path not in before or before[path] != value)
    lost = changed | (before.keys() - after.keys())
    managed = read_managed(old)
    if mine.owner.subresource == "scale":
        # As the real server: a scale takes the replicas from who owns them, and leaves what nobody owns.
        changed &= frozenset(path for one in managed for path in one.fields)
    others = [replace(one, fields=one.fields - lost) for one in managed if one.owner != mine.owner]
    held = next((one.fields for one in managed if one.owner == mine.owner), frozenset())
    return _settled(managed, [*others, replace(mine, fields=(held - lost) | changed)])


def read_managed(obj: Object) -> tuple[Ownership, ...]:
    return tuple(
        Ownership(
            Owner(str(one["manager"]), str(one["operation"]), str(one.get("subresource", ""))),
            str(one["apiVersion"]),
            str(one["time"]),
            frozenset(_paths(one["fieldsV1"])),
        )
        for one in obj["metadata"].get("managedFields") or ()
    )


def write_managed(obj: Object, managed: Sequence[Ownership]) -> Object:
    return {**obj, "metadata": {**obj["metadata"], "managedFields": [_to_json(one) for one in managed]}}


def is_custom(obj: Object) -> bool:
    """Of a kind whose lists have no keys that are known here."""
    group = str(obj.get("apiVersion", "")).rpartition("/")[0]
    return "." in group and not group.endswith(".k8s.io")


def _owned_leaves(config: Object, subresource: str, custom: bool) -> Leaves:
    given = _without_server_fields(config)
    parts = {"metadata", "status"} if subresource == "status" else set(given) - {"status"}
    return leaves({name: value for name, value in given.items() if name in parts}, keyed=not custom)


def _without_server_fields(obj: Object) -> Object:
    user_fields = ("labels", "annotations", "finalizers", "ownerReferences")
    given = obj.get("metadata") or {}
    metadata = {name: given[name] for name in user_fields if given.get(name)}
    rest = {name: value for name, value in obj.items() if name not in ("apiVersion", "kind", "metadata")}
    return {"metadata": metadata, **rest} if metadata else rest


def _of_the_past(current: Object, mine: Ownership) -> Ownership:
    everything = leaves(_without_server_fields(current), keyed=not is_custom(current))
    return replace(mine, owner=Owner(BEFORE_FIRST_APPLY), fields=frozenset(everything))


def _settled(old: Sequence[Ownership], new: Sequence[Ownership]) -> tuple[Ownership, ...]:
    """Without those who own nothing. Who owns what he owned keeps his time, so that nothing is written."""
    before = {(one.owner, one.api_version, one.fields): one for one in old}
    kept = [before.get((one.owner, one.api_version, one.fields), one) for one in new if one.fields]
    return tuple(sorted(kept, key=lambda one: (one.owner.operation, one.owner.name, one.owner.subresource)))


def _conflict(conflicts: Sequence[tuple[Ownership, Path]]) -> ApiError:
    causes = [
        {
            "reason": "FieldManagerConflict",
            "message": f'conflict with "{one.owner.name}" using {one.api_version}',
            "field": path_text(path),
        }
        for one, path in conflicts
    ]
    count = len(causes)
    what = ", ".join(f"{cause['message']}: {cause['field']}" for cause in causes)
    message = f"Apply failed with {count} conflict{'s' if count > 1 else ''}: {what}"
    return ApiError(409, message, details={"causes": causes})


def _to_json(one: Ownership) -> Object:
    tree: Object = {}
    for path in sorted(one.fields):
        node = tree
        for step in path:
            node = node.setdefault(step, {})
    entry = {
        "manager": one.owner.name,
        "operation": one.owner.operation,
        "apiVersion": one.api_version,
        "time": one.time,
        "fieldsType": "FieldsV1",
        "fieldsV1": tree,
    }
    return {**entry, "subresource": one.owner.subresource} if one.owner.subresource else entry


def _paths(tree: Mapping[str, Any], path: Path = ()) -> Iterator[Path]:
    if not tree and path:
        yield path
    for step, below in tree.items():
        yield from _paths(below, (*path, step))
