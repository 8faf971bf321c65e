"""Reads what people give to `gpuloom whatif`: one object with pods in it, as YAML or JSON. Pure: text in.

Decides which pod is meant and how many of it. Never decides what the pod asks for: that is the extender's.
Whatever the text holds, the only error is InvalidRequestError.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import orjson
import yaml

from gpuloom.codec.fields import JsonObject, as_object, object_field, shown, text_field
from gpuloom.errors import InvalidRequestError

MAX_BYTES = 1024 * 1024
MAX_REPLICAS = 2**31 - 1

_MAX_DEPTH = 48
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True, slots=True)
class Manifest:
    """The pods of an object. `name` says which object it is, for a person."""

    name: str
    pod: JsonObject
    replicas: int

    @property
    def pod_json(self) -> bytes:
        return orjson.dumps(self.pod)


def read_manifest(text: bytes) -> Manifest:
    document = as_object(_document(text), "the manifest")
    version, kind = text_field(document, "apiVersion", "manifest"), text_field(document, "kind", "manifest")
    known = _KINDS.get((version, kind))
    if known is None:
        raise InvalidRequestError(
            f"the manifest is of kind {shown(kind)} ({shown(version)}); "
            "give a Pod (v1), a Job (batch/v1), a Deployment or a StatefulSet (apps/v1)"
        )
    metadata = object_field(document, "metadata", "manifest")
    label = text_field(metadata, "name", "metadata") or text_field(metadata, "generateName", "metadata")
    pod, replicas = known(document)
    _refuse_foreign_values(pod)
    return Manifest(f"{kind} {label or 'without a name'}", pod, replicas)


def _pod(document: JsonObject) -> tuple[JsonObject, int]:
    if not object_field(document, "spec", "manifest"):
        raise InvalidRequestError("the manifest has no spec")
    return document, 1


def _controlled(document: JsonObject) -> tuple[JsonObject, int]:
    spec = object_field(document, "spec", "manifest")
    return _template(document, spec), _count(spec, "replicas", 1)


def _job(document: JsonObject) -> tuple[JsonObject, int]:
    """As many as run at the same time."""
    spec = object_field(document, "spec", "manifest")
    parallel = _count(spec, "parallelism", 1)
    return _template(document, spec), min(parallel, _count(spec, "completions", parallel))


_KINDS: dict[tuple[str, str], Callable[[JsonObject], tuple[JsonObject, int]]] = {
    ("v1", "Pod"): _pod,
    ("batch/v1", "Job"): _job,
    ("apps/v1", "Deployment"): _controlled,
    ("apps/v1", "StatefulSet"): _controlled,
}


def _template(document: JsonObject, spec: JsonObject) -> JsonObject:
    template = object_field(spec, "template", "spec")
    if not object_field(template, "spec", "spec.template"):
        raise InvalidRequestError("the manifest has no spec.template.spec")
    owner = object_field(document, "metadata", "manifest")
    named = {key: owner[key] for key in ("name", "namespace") if key in owner}
    metadata = {**named, **object_field(template, "metadata", "spec.template")}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}


def _count(spec: JsonObject, key: str, default: int) -> int:
    value = spec.get(key)
    if value is None:
        return default
    if type(value) is not int or not 0 <= value <= MAX_REPLICAS:
        raise InvalidRequestError(f"spec.{key} must be a whole number, not {shown(value)}")
    return value


def _document(text: bytes) -> Any:
    if len(text) > MAX_BYTES:
        raise InvalidRequestError(f"a manifest has at most {MAX_BYTES} bytes")
    try:
        # Most JSON is YAML too, but not all of it.
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        pass
    try:
        _refuse_wild_yaml(text)
        # The loader makes plain values only, as safe_load does.
        return yaml.load(text, _LOADER)  # noqa: S506
    except (yaml.YAMLError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidRequestError(f"the manifest can't be read: {_first_line(error)}") from None


def _refuse_wild_yaml(text: bytes) -> None:
    """By aliases a small text can stand for an endless document; a deep one can overrun the stack."""
    depth = documents = 0
    for event in yaml.parse(text, _LOADER):
        if isinstance(event, yaml.AliasEvent):
            raise InvalidRequestError("the manifest has a YAML alias; write it out")
        documents += isinstance(event, yaml.DocumentStartEvent)
        if documents > 1:
            raise InvalidRequestError("the manifest has several documents; give one object at a time")
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > _MAX_DEPTH:
            raise InvalidRequestError("the manifest is nested too deeply")
    if not documents:
        raise InvalidRequestError("the manifest is empty")


def _refuse_foreign_values(pod: JsonObject) -> None:
    """YAML has values that JSON lacks, and Kubernetes with it."""
    try:
        orjson.dumps(pod)
    except (TypeError, RecursionError) as error:
        raise InvalidRequestError(f"the manifest has a value that JSON lacks: {_first_line(error)}") from None


def _first_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
