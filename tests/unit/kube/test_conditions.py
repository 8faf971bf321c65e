"""Conditions and finalizers, written only when something is new."""

from datetime import UTC, datetime, timedelta
from typing import Any

from gpuloom.kube.conditions import (
    Condition,
    is_deleting,
    status_patch,
    with_conditions,
    with_finalizer,
    without_finalizer,
)

NOW = datetime(2026, 1, 1, tzinfo=UTC)
READY = Condition("Ready", True, "AllThere", "all is there")
OURS = "gpuloom.dev/cleanup"


def an_object(**metadata: Any) -> dict[str, Any]:
    return {"metadata": {"name": "a", "resourceVersion": "7", "generation": 3, **metadata}}


def test_a_condition_keeps_the_time_of_its_last_change_of_status() -> None:
    first = with_conditions([], [READY], 1, NOW)
    other = Condition("Ready", True, "StillThere", "it still is")
    same = with_conditions(first, [other], 2, NOW + timedelta(hours=1))
    gone = with_conditions(same, [Condition("Ready", None, "NotKnown")], 2, NOW + timedelta(hours=2))

    assert [entry[0]["lastTransitionTime"] for entry in (first, same, gone)] == [
        "2026-01-01T00:00:00Z",
        "2026-01-01T00:00:00Z",
        "2026-01-01T02:00:00Z",
    ]
    assert (same[0]["reason"], same[0]["observedGeneration"]) == ("StillThere", 2)
    assert gone[0]["status"] == "Unknown"


def test_conditions_of_others_stay_and_a_long_message_is_cut() -> None:
    foreign = {"type": "Foreign", "status": "True"}

    found = with_conditions([foreign], [Condition("Ready", False, "Broken", "x" * 5000)], 1, NOW)

    assert found[0] == foreign
    assert len(found[1]["message"]) == 1024


def test_a_status_that_says_it_already_is_not_written() -> None:
    obj = an_object()
    patch = status_patch(obj, {"phase": "Running", "conditions": with_conditions([], [READY], 3, NOW)})
    assert patch is not None
    obj["status"] = patch["status"]
    later = with_conditions(obj["status"]["conditions"], [READY], 3, NOW + timedelta(hours=1))

    assert status_patch(obj, {"phase": "Running", "conditions": later}) is None
    assert status_patch(obj, {"phase": "Failed"}) == {"status": {"phase": "Failed"}}


def test_a_finalizer_is_added_and_taken_away_once_beside_those_of_others() -> None:
    plain, both = an_object(finalizers=["other"]), an_object(finalizers=["other", OURS])

    assert with_finalizer(plain, OURS) == {
        "metadata": {"finalizers": ["other", OURS], "resourceVersion": "7"}
    }
    assert with_finalizer(both, OURS) is None
    assert without_finalizer(both, OURS) == {"metadata": {"finalizers": ["other"], "resourceVersion": "7"}}
    assert without_finalizer(plain, OURS) is None


def test_an_object_that_is_being_deleted_gets_no_new_finalizer() -> None:
    dying = an_object(deletionTimestamp="2026-01-01T00:00:00Z")

    assert is_deleting(dying)
    assert with_finalizer(dying, OURS) is None
