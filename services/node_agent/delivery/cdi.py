"""Reads CDI specs: how each device of a node is given to a container. Pure: text in, edits out.

Decides whether a text is a spec; what it does not fully understand it refuses, because a container that gets
half of a device's edits fails in ways that nobody can explain. Never looks at the disk.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import orjson
import yaml

from gpuloom.codec.fields import JsonObject, as_object, list_field, object_field, shown, text_field
from gpuloom.errors import InvalidRequestError
from services.node_agent.delivery.core.edits import DeviceNode, Edits, Hook, Moment, Mount, NodeNumbers

MAX_SPEC_BYTES = 2 * 1024 * 1024
MAX_DEVICES = 1024
MAX_EDITS = 512
MAX_TEXT_LENGTH = 4096

_VERSIONS = frozenset(
    {"0.2.0", "0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0", "0.8.0", "1.0.0", "1.1.0"},
)
_SPEC_FIELDS = frozenset({"cdiVersion", "kind", "annotations", "devices", "containerEdits"})
_DEVICE_FIELDS = frozenset({"name", "annotations", "containerEdits"})
_BEYOND = frozenset({"intelRdt", "netDevices"})
_EDIT_FIELDS = frozenset({"env", "deviceNodes", "mounts", "hooks", "additionalGids"}) | _BEYOND
_NODE_FIELDS = frozenset(
    {"path", "hostPath", "type", "major", "minor", "fileMode", "permissions", "uid", "gid"}
)
_MOUNT_FIELDS = frozenset({"hostPath", "containerPath", "options", "type"})
_HOOK_FIELDS = frozenset({"hookName", "path", "args", "env", "timeout"})

_KIND = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,252}/[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
_DEVICE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,252}")
# A leading hyphen would tell the runtime to remove the variable.
_VARIABLE = re.compile(r"(?P<name>[A-Za-z_][A-Za-z0-9_.-]{0,254})=(?P<value>[^\0]*)", re.DOTALL)
_PERMISSIONS = re.compile(r"(?=.)r?w?m?")
# "u" is another word for "c".
_NODE_TYPES = {"c": "c", "u": "c", "b": "b", "p": "p"}
_MAX_NUMBER = 2**31 - 1
_MAX_DEPTH = 32
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True, slots=True)
class Spec:
    """Devices of one kind. A container that gets any of them gets `shared` too."""

    kind: str
    devices: Mapping[str, Edits]
    shared: Edits


def read_spec(text: bytes, is_yaml: bool) -> Spec:
    """Raise InvalidRequestError, with the reason, for anything but a spec."""
    document = _document(text, is_yaml)
    _refuse_other_fields(document, _SPEC_FIELDS, "spec")
    version = document.get("cdiVersion")
    if not isinstance(version, str) or version not in _VERSIONS:
        raise InvalidRequestError(f"cdiVersion {shown(version)} is not known")
    kind = _matching(document, "kind", _KIND, "spec")
    entries = list_field(document, "devices", "spec")
    if not 1 <= len(entries) <= MAX_DEVICES:
        raise InvalidRequestError(f"a spec has 1 to {MAX_DEVICES} devices, not {len(entries)}")
    devices: dict[str, Edits] = {}
    for number, entry in enumerate(entries):
        where = f"spec.devices[{number}]"
        body = as_object(entry, where)
        _refuse_other_fields(body, _DEVICE_FIELDS, where)
        name = _matching(body, "name", _DEVICE_NAME, where)
        if name in devices:
            raise InvalidRequestError(f"spec has device {name} twice")
        devices[name] = _edits(object_field(body, "containerEdits", where), f"{where}.containerEdits")
    shared = _edits(object_field(document, "containerEdits", "spec"), "spec.containerEdits")
    return Spec(kind, devices, shared)


def _document(text: bytes, is_yaml: bool) -> JsonObject:
    if len(text) > MAX_SPEC_BYTES:
        raise InvalidRequestError(f"a spec has at most {MAX_SPEC_BYTES} bytes")
    try:
        if is_yaml:
            _refuse_wild_yaml(text)
        # The loader makes plain values only, as safe_load does.
        loaded = yaml.load(text, _LOADER) if is_yaml else orjson.loads(text)  # noqa: S506
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        raise InvalidRequestError(f"the spec can't be read: {shown(str(error))}") from None
    return as_object(loaded, "spec")


def _refuse_wild_yaml(text: bytes) -> None:
    """By aliases a small text can stand for an endless document; a deep one can overrun the stack."""
    depth = 0
    for event in yaml.parse(text, _LOADER):
        if isinstance(event, yaml.AliasEvent):
            raise InvalidRequestError("the spec has a YAML alias")
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > _MAX_DEPTH:
            raise InvalidRequestError("the spec is nested too deeply")


def _edits(body: JsonObject, where: str) -> Edits:
    _refuse_other_fields(body, _EDIT_FIELDS, where)
    return Edits(
        environment=tuple(_variable(entry, f"{where}.env") for entry in _entries(body, "env", where)),
        nodes=tuple(_node(entry, f"{where}.deviceNodes") for entry in _entries(body, "deviceNodes", where)),
        mounts=tuple(_mount(entry, f"{where}.mounts") for entry in _entries(body, "mounts", where)),
        hooks=tuple(_hook(entry, f"{where}.hooks") for entry in _entries(body, "hooks", where)),
        groups=tuple(
            _whole(entry, f"{where}.additionalGids") for entry in _entries(body, "additionalGids", where)
        ),
        beyond=tuple(sorted(name for name in _BEYOND if body.get(name))),
    )


def _variable(entry: object, where: str) -> tuple[str, str]:
    match = _VARIABLE.fullmatch(_text(entry, where))
    if match is None:
        raise InvalidRequestError(f"{where} has {shown(entry)}, which is not NAME=value")
    return match["name"], match["value"]


def _node(entry: object, where: str) -> DeviceNode:
    body = as_object(entry, where)
    _refuse_other_fields(body, _NODE_FIELDS, where)
    path = _path(body, "path", where)
    permissions = body.get("permissions") or "rwm"
    if not isinstance(permissions, str) or _PERMISSIONS.fullmatch(permissions) is None:
        raise InvalidRequestError(f"{where}.permissions must be of r, w and m, not {shown(permissions)}")
    return DeviceNode(
        path=path,
        host_path=_path(body, "hostPath", where) if body.get("hostPath") else path,
        numbers=_numbers(body, where),
        permissions=permissions,
        file_mode=_optional_whole(body, "fileMode", where),
        uid=_optional_whole(body, "uid", where),
        gid=_optional_whole(body, "gid", where),
    )


def _numbers(body: JsonObject, where: str) -> NodeNumbers | None:
    """None if the node itself has to be asked: no type, or no numbers where the type has them."""
    word = text_field(body, "type", where)
    if not word:
        return None
    kind = _NODE_TYPES.get(word)
    if kind is None:
        raise InvalidRequestError(f"{where}.type must be c, u, b or p, not {shown(word)}")
    major = _optional_whole(body, "major", where)
    if kind != "p" and not major:
        return None
    return NodeNumbers(kind, major or 0, _optional_whole(body, "minor", where) or 0)


def _mount(entry: object, where: str) -> Mount:
    body = as_object(entry, where)
    _refuse_other_fields(body, _MOUNT_FIELDS, where)
    source = _text(body.get("hostPath"), f"{where}.hostPath")
    options = tuple(_text(option, f"{where}.options") for option in _entries(body, "options", where))
    return Mount(
        source, _path(body, "containerPath", where), text_field(body, "type", where) or "bind", options
    )


def _hook(entry: object, where: str) -> Hook:
    body = as_object(entry, where)
    _refuse_other_fields(body, _HOOK_FIELDS, where)
    name = body.get("hookName")
    if not isinstance(name, str) or name not in tuple(Moment):
        raise InvalidRequestError(f"{where}.hookName is not known: {shown(name)}")
    return Hook(
        moment=Moment(name),
        path=_path(body, "path", where),
        arguments=tuple(_text(word, f"{where}.args") for word in _entries(body, "args", where)),
        environment=tuple("=".join(_variable(one, f"{where}.env")) for one in _entries(body, "env", where)),
        timeout_s=_optional_whole(body, "timeout", where),
    )


def _entries(body: JsonObject, key: str, where: str) -> Sequence[object]:
    entries = list_field(body, key, where)
    if len(entries) > MAX_EDITS:
        raise InvalidRequestError(f"{where}.{key} has more than {MAX_EDITS} entries")
    return entries


def _path(body: JsonObject, key: str, where: str) -> str:
    path = _text(body.get(key), f"{where}.{key}")
    if not path.startswith("/"):
        raise InvalidRequestError(f"{where}.{key} must be an absolute path, not {shown(path)}")
    return path


def _text(value: object, where: str) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= MAX_TEXT_LENGTH or "\0" in value:
        raise InvalidRequestError(f"{where} must be a text of at most {MAX_TEXT_LENGTH} characters")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidRequestError(f"{where} is not valid Unicode") from None
    return value


def _optional_whole(body: JsonObject, key: str, where: str) -> int | None:
    value = body.get(key)
    return None if value is None else _whole(value, f"{where}.{key}")


def _whole(value: object, where: str) -> int:
    if type(value) is not int or not 0 <= value <= _MAX_NUMBER:
        raise InvalidRequestError(f"{where} must be a whole number, not {shown(value)}")
    return value


def _matching(body: JsonObject, key: str, form: re.Pattern[str], where: str) -> str:
    value = body.get(key)
    if not isinstance(value, str) or form.fullmatch(value) is None:
        raise InvalidRequestError(f"{where}.{key} is malformed: {shown(value)}")
    return value


def _refuse_other_fields(body: JsonObject, known: frozenset[str], where: str) -> None:
    # A YAML key may be anything.
    other = sorted(str(name) for name in body if name not in known)
    if other:
        raise InvalidRequestError(f"{where} has an unknown field {shown(other[0])}")
