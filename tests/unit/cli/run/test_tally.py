"""Counting what became of the pods."""

from typing import Any

import pytest

from gpuloom.cli.run.tally import NOT_TRIED, PodCounts, PodTally, main_reason
from gpuloom.kube.cache import Change
from gpuloom.model.node import NodeMode

MODES = {"n1": NodeMode.NVIDIA, "g1": NodeMode.GPULOOM}


def a_pod(name: str, node: str = "", phase: str = "Pending", message: str = "") -> dict[str, Any]:
    conditions = [{"type": "PodScheduled", "status": "False", "message": message}] if message else []
    return {
        "metadata": {"namespace": "ns", "name": name, "uid": f"uid-{name}"},
        "spec": {"nodeName": node} if node else {},
        "status": {"phase": phase, "conditions": conditions},
    }


def counts_after(*changes: Change) -> PodCounts:
    tally = PodTally(MODES)
    for change in changes:
        tally.observe(change)
    return tally.counts()


def test_a_pod_counts_as_placed_once_and_by_the_mode_of_its_node() -> None:
    pending, bound, running = a_pod("a"), a_pod("a", "n1"), a_pod("a", "n1", "Running")

    counts = counts_after(
        Change(None, pending), Change(pending, bound), Change(bound, running), Change(None, a_pod("b", "g1"))
    )

    assert counts.placed_by_mode == {NodeMode.GPULOOM: 1, NodeMode.NVIDIA: 1}
    assert (counts.placed, counts.running, counts.pending) == (2, 1, 0)


def test_a_finished_pod_stays_counted_after_its_deletion() -> None:
    done, failed = a_pod("a", "n1", "Succeeded"), a_pod("b", "n1", "Failed")

    counts = counts_after(Change(None, done), Change(done, None), Change(None, failed), Change(failed, None))

    assert (counts.placed, counts.succeeded, counts.failed, counts.finished) == (2, 1, 1, 2)
    assert counts.withdrawn == 0


def test_a_pod_deleted_before_it_was_placed_is_withdrawn() -> None:
    pending = a_pod("a")

    counts = counts_after(Change(None, pending), Change(pending, None))

    assert (counts.withdrawn, counts.pending, counts.placed) == (1, 0, 0)


def test_pending_pods_are_counted_by_their_reason_the_most_frequent_first() -> None:
    message = "0/2 nodes are available: 1 Insufficient nvidia.com/gpu, 1 not enough free GPUs: 2 asked."

    counts = counts_after(
        Change(None, a_pod("a")),
        Change(None, a_pod("b", message=message)),
        Change(None, a_pod("c", message=message)),
    )

    assert list(counts.pending_reasons.items()) == [("not enough free GPUs: 2 asked", 2), (NOT_TRIED, 1)]


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ("0/3 nodes are available: 3 Insufficient nvidia.com/gpu.", "Insufficient nvidia.com/gpu"),
        ("0/3 nodes are available: 1 Insufficient a, 2 Insufficient b.", "Insufficient b"),
        (
            "0/3 nodes are available: 2 Insufficient b, 1 node closed: old, silent.",
            "node closed: old, silent",
        ),
        ("0/3 nodes are available.", "0/3 nodes are available."),
        ("no nodes available to schedule pods", "no nodes available to schedule pods"),
        ("extender: no answer within 1 s", "extender: no answer within 1 s"),
    ],
)
def test_the_most_telling_reason_of_a_message_is_taken(message: str, reason: str) -> None:
    assert main_reason(message) == reason
