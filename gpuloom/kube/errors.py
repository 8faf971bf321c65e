"""What a refused or failed API call becomes. Decides by the answer's code and reason; never retries.

Callers catch the errors of `gpuloom.errors`; the subclasses here are for those who must tell apart.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gpuloom.errors import (
    ConflictError,
    DeadlineError,
    GpuloomError,
    InvalidRequestError,
    NotAllowedError,
    NotFoundError,
    NotReadyError,
    TooLargeError,
    UnavailableError,
)

_MAX_TEXT = 300


class KubeAccessError(GpuloomError):
    """Where the API is, or as whom to call it, can't be worked out; the text is one line for a person."""


class AlreadyExistsError(ConflictError):
    """An object of that name is there already."""


class GoneError(GpuloomError):
    """The asked-for version is no longer kept (410); list again."""


class RewoundHistoryError(GpuloomError):
    """The API showed a state older than one it gave before, as after a restore from a backup."""


class TooManyRequestsError(NotReadyError):
    """The server refused to act now (429); nothing was done."""

    def __init__(self, text: str, retry_after_s: float | None = None) -> None:
        super().__init__(text)
        self.retry_after_s = retry_after_s


class DisruptionBudgetError(TooManyRequestsError):
    """An eviction would break a PodDisruptionBudget; nothing was done."""


class RetryLaterError(UnavailableError):
    """The server failed (5xx) and says when to come back; whether it acted is not known."""

    def __init__(self, text: str, retry_after_s: float) -> None:
        super().__init__(text)
        self.retry_after_s = retry_after_s


class LeadershipLostError(NotReadyError):
    """The lease could not be renewed in time, or another holds it; the work was stopped."""


@dataclass(frozen=True, slots=True)
class Call:
    """What was being done, for the text of an error."""

    verb: str
    resource: str
    name: str = ""

    def __str__(self) -> str:
        return f"{self.verb} {self.resource} {self.name}".rstrip()


def error_from_status(
    call: Call, code: int, status: dict[str, Any], retry_after_s: float | None = None
) -> GpuloomError:
    """The error for an answer that is not a success; `status` may be empty when the body was no Status."""
    reason = str(status.get("reason") or "")
    text = _text(call, code, reason, str(status.get("message") or ""))
    if retry_after_s is None:
        retry_after_s = _told_in(status)
    if code == 429:
        return _too_many_requests(text, status, retry_after_s)
    if code == 409:
        return AlreadyExistsError(text) if reason == "AlreadyExists" else ConflictError(text)
    if code == 422 and _is_of_namesake(status):
        return ConflictError(text)
    if code >= 500:
        return _server_failed(text, code, retry_after_s)
    return _BY_CODE.get(code, InvalidRequestError)(text)


def retry_after_s(error: Exception) -> float | None:
    """When the server wants to be asked again, if it says so."""
    return error.retry_after_s if isinstance(error, TooManyRequestsError | RetryLaterError) else None


_BY_CODE: dict[int, type[GpuloomError]] = {
    401: NotAllowedError,
    403: NotAllowedError,
    404: NotFoundError,
    410: GoneError,
    413: TooLargeError,
}


def _is_of_namesake(status: dict[str, Any]) -> bool:
    """A patch that names another UID is refused as if it wanted to change it, not as a precondition."""
    return any(isinstance(cause, dict) and cause.get("field") == "metadata.uid" for cause in _causes(status))


def _too_many_requests(
    text: str, status: dict[str, Any], retry_after_s: float | None
) -> TooManyRequestsError:
    # API priority and fairness answers 429 as well; only this cause says that a budget is in the way.
    causes = _causes(status)
    if any(isinstance(cause, dict) and cause.get("reason") == "DisruptionBudget" for cause in causes):
        return DisruptionBudgetError(text, retry_after_s)
    return TooManyRequestsError(text, retry_after_s)


def _server_failed(text: str, code: int, retry_after_s: float | None) -> GpuloomError:
    if code == 504:
        return DeadlineError(text)
    return UnavailableError(text) if retry_after_s is None else RetryLaterError(text, retry_after_s)


def _told_in(status: dict[str, Any]) -> float | None:
    details = status.get("details")
    told_s = details.get("retryAfterSeconds") if isinstance(details, dict) else None
    return float(told_s) if isinstance(told_s, int | float) and told_s > 0 else None


def _causes(status: dict[str, Any]) -> Sequence[Any]:
    details = status.get("details")
    causes = details.get("causes") if isinstance(details, dict) else None
    return causes if isinstance(causes, list) else ()


def _text(call: Call, code: int, reason: str, message: str) -> str:
    said = ": ".join(part for part in (reason, message) if part) or "no reason given"
    text = f"{call} answered {code} {said}"
    return text if len(text) <= _MAX_TEXT else text[: _MAX_TEXT - 1] + "…"
