from typing import Any

import pytest

from gpuloom.errors import (
    ConflictError,
    DeadlineError,
    GpuloomError,
    InvalidRequestError,
    NotAllowedError,
    NotFoundError,
    TooLargeError,
    UnavailableError,
)
from gpuloom.kube.errors import (
    AlreadyExistsError,
    Call,
    DisruptionBudgetError,
    GoneError,
    TooManyRequestsError,
    error_from_status,
    retry_after_s,
)

CALL = Call("patch", "pods", "ns/p")


@pytest.mark.parametrize(
    ("code", "reason", "expected"),
    [
        (400, "BadRequest", InvalidRequestError),
        (401, "Unauthorized", NotAllowedError),
        (403, "Forbidden", NotAllowedError),
        (404, "NotFound", NotFoundError),
        (409, "Conflict", ConflictError),
        (409, "AlreadyExists", AlreadyExistsError),
        (410, "Expired", GoneError),
        (413, "RequestEntityTooLarge", TooLargeError),
        (422, "Invalid", InvalidRequestError),
        (429, "TooManyRequests", TooManyRequestsError),
        (500, "InternalError", UnavailableError),
        (503, "ServiceUnavailable", UnavailableError),
        (504, "Timeout", DeadlineError),
    ],
)
def test_every_code_becomes_its_own_error(code: int, reason: str, expected: type[GpuloomError]) -> None:
    error = error_from_status(CALL, code, {"reason": reason, "message": "because"})

    assert type(error) is expected
    assert str(error) == f"patch pods ns/p answered {code} {reason}: because"


def test_only_a_budget_cause_makes_it_a_disruption_budget_error() -> None:
    details: dict[str, Any] = {"retryAfterSeconds": 10, "causes": [{"reason": "DisruptionBudget"}]}

    error = error_from_status(CALL, 429, {"details": details})

    assert isinstance(error, DisruptionBudgetError)
    assert error.retry_after_s == 10.0


@pytest.mark.parametrize("code", [429, 500, 503])
def test_a_server_that_says_when_to_come_back_is_heard(code: int) -> None:
    in_header = error_from_status(CALL, code, {}, 7.0)
    in_status = error_from_status(CALL, code, {"details": {"retryAfterSeconds": 5}})

    assert (retry_after_s(in_header), retry_after_s(in_status)) == (7.0, 5.0)
    assert retry_after_s(error_from_status(CALL, code, {})) is None
    assert isinstance(in_header, TooManyRequestsError if code == 429 else UnavailableError)


def test_an_answer_without_a_status_still_says_what_failed() -> None:
    assert str(error_from_status(CALL, 502, {})) == "patch pods ns/p answered 502 no reason given"


def test_a_long_message_is_cut() -> None:
    assert len(str(error_from_status(CALL, 422, {"message": "x" * 5000}))) == 300


def test_a_patch_that_names_another_uid_is_a_conflict_and_not_a_mistake() -> None:
    cause = {"reason": "FieldValueInvalid", "message": "field is immutable", "field": "metadata.uid"}
    status = {"reason": "Invalid", "message": "because", "details": {"causes": [cause]}}

    assert type(error_from_status(CALL, 422, status)) is ConflictError
