"""The last word of a run."""

from dataclasses import replace
from pathlib import Path

from gpuloom.cli.run.summary import RunSummary, as_json, as_text
from gpuloom.cli.run.tally import PodCounts
from gpuloom.model.node import NodeMode
from gpuloom.sim.machines.audit import AuditReport, Finding, FindingKind

FINDING = Finding(FindingKind.TWO_WHOLE_OWNERS, "n1", 7, "2 owners of the whole card")

GOOD = RunSummary(
    duration_s=30.2,
    nodes=12,
    seed=1,
    pods=PodCounts(
        placed=9,
        placed_by_mode={NodeMode.GPULOOM: 5, NodeMode.NVIDIA: 4},
        running=6,
        succeeded=3,
        pending_reasons={"not enough free GPUs: 8 asked": 2},
    ),
    audit=AuditReport(machines=12, starts=9, ends=3),
    restarts={"extender": 1, "discovery": 0},
    given_up=(),
    logs=Path("run/logs"),
)


def test_a_run_that_placed_pods_without_double_bookings_is_fine() -> None:
    assert GOOD.problems == ()
    assert GOOD.exit_code == 0


def test_a_double_booking_makes_a_run_bad() -> None:
    bad = replace(GOOD, audit=AuditReport(12, 9, 3, findings=(FINDING,)))

    assert bad.problems == ("1 double bookings",)
    assert bad.exit_code == 1
    assert "n1: two-whole-owners" in as_text(bad)


def test_a_journal_that_can_not_be_read_makes_a_run_bad() -> None:
    corrupt = replace(FINDING, kind=FindingKind.CORRUPT_JOURNAL)

    assert replace(GOOD, audit=AuditReport(12, 9, 3, findings=(corrupt,))).exit_code == 1


def test_a_run_that_placed_nothing_is_bad() -> None:
    assert replace(GOOD, pods=PodCounts()).problems == ("no pod was placed",)


def test_a_process_that_was_given_up_makes_a_run_bad() -> None:
    assert replace(GOOD, given_up=("agent-n1",)).problems == ("agent-n1 was given up",)
    assert replace(GOOD, given_up=("extender",), failure="extender was given up: …").problems == (
        "extender was given up: …",
    )


def test_the_text_says_where_pods_went_and_why_others_wait() -> None:
    text = as_text(GOOD)

    assert "5 on gpuloom nodes, 4 on nvidia nodes" in text
    assert "2  not enough free GPUs: 8 asked" in text
    assert "extender 1" in text
    assert "FAILED" not in text


def test_faults_that_were_injected_are_told_and_make_no_run_bad() -> None:
    summary = replace(GOOD, faults=("discovery was killed",))

    assert summary.exit_code == 0
    assert "discovery was killed" in as_text(summary)
    assert as_json(summary)["faults"] == ["discovery was killed"]


def test_a_bad_run_says_what_failed() -> None:
    assert as_text(replace(GOOD, pods=PodCounts())).endswith("\nFAILED: no pod was placed")


def test_the_json_has_the_same_numbers() -> None:
    document = as_json(GOOD)

    assert document["pods"]["placed_by_mode"] == {"gpuloom": 5, "nvidia": 4}
    assert document["pods"]["pending"] == 2
    assert document["audit"]["double_bookings"] == []
    assert document["problems"] == []
