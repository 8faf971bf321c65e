"""AdmissionReview as the API server sends it, and the answer as it wants it."""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from gpuloom.errors import InvalidRequestError

API_VERSION = "admission.k8s.io/v1"
MAX_WARNING = 256

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Review:
    """`object` is what is to be stored, empty for a deletion; `old` what is there, empty for a creation.

    `waited_s`: how long the API server has waited already when it was read.
    """

    uid: str
    kind: str
    operation: str
    namespace: str
    user: str
    object: Json
    old: Json
    subresource: str = ""
    waited_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Answer:
    """Allowed unless `denied` says why not. `patch` is a JSON patch. `failed`: something went wrong."""

    patch: Sequence[Json] = ()
    warnings: tuple[str, ...] = ()
    denied: str | None = None
    failed: bool = False


ADMITTED = Answer()


def read_review(body: bytes) -> Review:
    """Raise InvalidRequestError if it is no AdmissionReview with a request."""
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise InvalidRequestError(f"the body is no JSON: {error}") from None
    request = document.get("request") if isinstance(document, dict) else None
    if not isinstance(request, dict) or not isinstance(request.get("uid"), str):
        raise InvalidRequestError("the body is no AdmissionReview with a request")
    kind = request.get("kind")
    user = request.get("userInfo")
    return Review(
        uid=request["uid"],
        kind=str(kind.get("kind", "")) if isinstance(kind, dict) else "",
        operation=str(request.get("operation", "")),
        namespace=str(request.get("namespace") or ""),
        user=str(user.get("username", "")) if isinstance(user, dict) else "",
        object=_object(request.get("object")),
        old=_object(request.get("oldObject")),
        subresource=str(request.get("subResource") or ""),
    )


def answer_body(uid: str, answer: Answer) -> bytes:
    response: Json = {"uid": uid, "allowed": answer.denied is None}
    if answer.denied is not None:
        response["status"] = {"code": 403, "reason": "Forbidden", "message": answer.denied}
    elif answer.patch:
        response["patchType"] = "JSONPatch"
        response["patch"] = base64.b64encode(orjson.dumps(list(answer.patch))).decode()
    if answer.warnings:
        response["warnings"] = [warning[:MAX_WARNING] for warning in answer.warnings]
    return orjson.dumps({"apiVersion": API_VERSION, "kind": "AdmissionReview", "response": response})


def _object(value: object) -> Json:
    return value if isinstance(value, dict) else {}


def json_patch(before: Mapping[str, Any], after: Mapping[str, Any], path: str = "") -> list[Json]:
    """The patch that makes `after` of `before`. Lists are compared as a whole, objects key by key."""
    operations: list[Json] = []
    for key in sorted(before.keys() | after.keys()):
        where = f"{path}/{key.replace('~', '~0').replace('/', '~1')}"
        if key not in after:
            operations.append({"op": "remove", "path": where})
        elif key not in before:
            operations.append({"op": "add", "path": where, "value": after[key]})
        elif before[key] != after[key]:
            old, new = before[key], after[key]
            if isinstance(old, dict) and isinstance(new, dict):
                operations += json_patch(old, new, where)
            else:
                operations.append({"op": "replace", "path": where, "value": new})
    return operations
