"""The API's errors as `Status` objects. Decides their wording and shape; never decides when to raise one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpuloom.errors import GpuloomError

REASONS = {
    400: "BadRequest",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    405: "MethodNotAllowed",
    409: "Conflict",
    410: "Expired",
    413: "RequestEntityTooLarge",
    415: "UnsupportedMediaType",
    422: "Invalid",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
    504: "Timeout",
}


@dataclass(frozen=True, slots=True)
class FieldProblem:
    """One thing wrong with one field; `reason` is Kubernetes' cause type."""

    field: str
    message: str
    reason: str = "FieldValueInvalid"


class ApiError(GpuloomError):
    """A refusal that the client sees as a Status with this code, reason and message."""

    def __init__(
        self, code: int, message: str, *, reason: str = "", details: dict[str, Any] | None = None
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.reason = reason or REASONS.get(code, "Unknown")
        self.details = details or {}

    def status(self) -> dict[str, Any]:
        return {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            "details": self.details,
            "code": self.code,
        }


def success(details: dict[str, Any] | None = None, code: int = 200) -> dict[str, Any]:
    status: dict[str, Any] = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}
    if details:
        status["details"] = details
    if code != 200:
        status["code"] = code
    return status


def bad_request(message: str) -> ApiError:
    return ApiError(400, message)


def forbidden(qualified: str, name: str, why: str) -> ApiError:
    return ApiError(403, f'{qualified} "{name}" is forbidden: {why}', details=_about(qualified, name))


def not_found(qualified: str, name: str) -> ApiError:
    return ApiError(404, f'{qualified} "{name}" not found', details=_about(qualified, name))


def unknown_path() -> ApiError:
    return ApiError(404, "the server could not find the requested resource")


def method_not_allowed() -> ApiError:
    return ApiError(405, "the server does not allow this method on the requested resource")


def already_exists(qualified: str, name: str) -> ApiError:
    details = _about(qualified, name)
    return ApiError(409, f'{qualified} "{name}" already exists', reason="AlreadyExists", details=details)


def conflict(qualified: str, name: str, why: str) -> ApiError:
    message = f'Operation cannot be fulfilled on {qualified} "{name}": {why}'
    return ApiError(409, message, details=_about(qualified, name))


def stale(qualified: str, name: str) -> ApiError:
    why = "the object has been modified; please apply your changes to the latest version and try again"
    return conflict(qualified, name, why)


def require_precondition(qualified: str, metadata: Mapping[str, Any], what: str, wanted: Any) -> None:
    """Raise 409 unless the object is the one (UID), or at the ResourceVersion, that the client wants."""
    actual = metadata["uid" if what == "UID" else "resourceVersion"]
    if wanted and wanted != actual:
        why = f"Precondition failed: {what} in precondition: {wanted}, {what} in object meta: {actual}"
        raise conflict(qualified, metadata["name"], why)


def invalid(group: str, kind: str, name: str, problems: Sequence[FieldProblem]) -> ApiError:
    texts = [f"{problem.field}: {problem.message}" for problem in problems]
    summary = texts[0] if len(texts) == 1 else "[" + ", ".join(texts) + "]"
    qualified = f"{kind}.{group}" if group else kind
    causes = [{"reason": p.reason, "message": p.message, "field": p.field} for p in problems]
    details = {"name": name, "group": group, "kind": kind, "causes": causes}
    return ApiError(422, f'{qualified} "{name}" is invalid: {summary}', details=details)


def expired(asked: int, oldest: int) -> ApiError:
    return ApiError(410, f"too old resource version: {asked} ({oldest})")


def from_the_future(asked: int, current: int) -> ApiError:
    message = f"Too large resource version: {asked}, current: {current}"
    causes = [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}]
    return ApiError(504, message, details={"causes": causes, "retryAfterSeconds": 1})


def _about(qualified: str, name: str) -> dict[str, Any]:
    plural, _, group = qualified.partition(".")
    details = {"name": name, "kind": plural}
    if group:
        details["group"] = group
    return details
