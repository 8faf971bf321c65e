"""What a controller wants done: values that the loop carries out, and when to ask again. Pure."""

from dataclasses import dataclass

from gpuloom.kube.objects import JsonObject, key_of, resource_version_of, uid_of
from gpuloom.kube.resources import PODS, Resource
from gpuloom.sim.controllers.pods import status_of


@dataclass(frozen=True, slots=True)
class Create:
    resource: Resource
    obj: JsonObject


@dataclass(frozen=True, slots=True)
class Delete:
    """`force` leaves a pod no grace: its node is gone, so nobody could confirm its end."""

    resource: Resource
    namespace: str
    name: str
    uid: str
    force: bool = False


@dataclass(frozen=True, slots=True)
class Patch:
    """A merge patch of the object, or of its status. Refused if the object is not at this version."""

    resource: Resource
    namespace: str
    name: str
    body: JsonObject
    version: str
    status: bool = False


Action = Create | Delete | Patch


@dataclass(frozen=True, slots=True)
class Decision:
    """`wake_after_s`: time alone will change the answer by then; None: only a change of an object will."""

    actions: tuple[Action, ...] = ()
    wake_after_s: float | None = None


def delete_pod(pod: JsonObject) -> Delete:
    return delete_object(PODS, pod)


def delete_object(resource: Resource, obj: JsonObject) -> Delete:
    namespace, name = key_of(obj)
    return Delete(resource, namespace, name, uid_of(obj))


def patch_object(resource: Resource, obj: JsonObject, body: JsonObject) -> Patch:
    namespace, name = key_of(obj)
    return Patch(resource, namespace, name, body, resource_version_of(obj))


def write_status(resource: Resource, obj: JsonObject, status: JsonObject) -> tuple[Patch, ...]:
    """Nothing if the object has that status already."""
    old = status_of(obj)
    if old == status:
        return ()
    namespace, name = key_of(obj)
    body = {"status": _replacing(old, status)}
    return (Patch(resource, namespace, name, body, resource_version_of(obj), status=True),)


def _replacing(old: JsonObject, new: JsonObject) -> JsonObject:
    """A merge patch that makes `old` equal to `new`: what it does not name would stay, so null names it."""
    patch: JsonObject = dict.fromkeys(old.keys() - new.keys())
    for name, value in new.items():
        before = old.get(name)
        patch[name] = (
            _replacing(before, value) if isinstance(before, dict) and isinstance(value, dict) else value
        )
    return patch
