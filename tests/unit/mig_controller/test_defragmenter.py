"""Who is moved to make room, at what price, and when nobody is."""

from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from services.mig_controller.core.cards import Card
from services.mig_controller.core.defragmentation import FitPlan
from services.mig_controller.core.movable import reason_to_stay
from services.mig_controller.defragmenter import Defragmenter, DefragmentOptions
from tests.unit.mig_controller.builders import a_card, a_pod, a_slice, a_wish, the_geometry

TWO_HOURS_IN = datetime(2026, 1, 1, 2, tzinfo=UTC)
NANO_USD_PER_HOUR = 4_000_000_000


class SamePrice:
    def nano_usd_per_gpu_hour(self, node_name: str) -> int | None:
        return NANO_USD_PER_HOUR


def a_defragmenter(pods: Iterable[dict[str, Any]], *, automatic: bool = False) -> Defragmenter:
    kept = list(pods)
    return Defragmenter(lambda: kept, SamePrice(), DefragmentOptions(automatic, after_s=300.0))


def in_the_way(*owners: str) -> Card:
    """One small slice for each owner, in the first half; the second half is one large slice of another."""
    small = [a_slice(f"1g.5gb@{start}", owner) for start, owner in enumerate(owners)]
    return a_card("n1", *small, a_slice("3g.20gb@4", "team/large"))


def plan(pods: list[dict[str, Any]], *cards: Card) -> FitPlan:
    return a_defragmenter(pods).plan(cards, {"3g.20gb": 1}, TWO_HOURS_IN)


def test_a_move_costs_what_the_slice_cost_since_the_work_was_last_saved() -> None:
    saved = a_pod("a", {"checkpoint-time": "2026-01-01T01:30:00Z"})

    (never,) = plan([a_pod("a")], in_the_way("team/a")).moves
    (later,) = plan([saved], in_the_way("team/a")).moves

    assert never.price_usd == pytest.approx(2 * 4 / 8)
    assert later.price_usd == pytest.approx(0.5 * 4 / 8)


def test_a_move_costs_the_part_of_the_gpu_that_the_slice_is_on_its_model() -> None:
    small = [a_slice(f"1g.10gb@{start}", f"team/{name}") for start, name in enumerate("abcd")]
    card = a_card("n1", *small, a_slice("3g.40gb@4", "team/large"))
    card = replace(card, model="A100-SXM4-80GB", geometry=the_geometry("A100-SXM4-80GB"))
    pods = [a_pod(name) for name in "abcd"]

    found = a_defragmenter(pods).plan([card], {"2g.20gb": 1}, TWO_HOURS_IN)

    assert [move.price_usd for move in found.moves] == [pytest.approx(2 * 4 / 8)] * 2


@pytest.mark.parametrize("written", ["yesterday", "", "2026-13-01T00:00:00Z", "²"])
def test_whatever_a_pod_writes_as_its_checkpoint_time_others_can_be_planned_for(written: str) -> None:
    odd = a_pod("a", {"checkpoint-time": written})

    (move,) = plan([odd], in_the_way("team/a")).moves

    assert move.price_usd == pytest.approx(2 * 4 / 8)


@pytest.mark.parametrize(
    ("pod", "reason"),
    [
        (a_pod("a", {"no-disrupt": "true"}), "no-disrupt"),
        (a_pod("a", {"no-preempt": "True"}), "no-preempt"),
        (a_pod("a", gang="g"), "gang"),
        (a_pod("a", owner=""), "no controller"),
        (a_pod("a", owner="DaemonSet"), "its node"),
    ],
)
def test_who_said_so_or_would_not_come_back_is_not_moved(pod: dict[str, Any], reason: str) -> None:
    found = plan([pod], in_the_way("team/a"))

    assert reason in reason_to_stay(pod)
    assert (found.moves, found.missing) == ((), {"3g.20gb": 1})


def test_a_pod_that_is_not_known_is_not_moved() -> None:
    assert plan([], in_the_way("team/a")).missing == {"3g.20gb": 1}


def test_it_says_who_would_have_no_place() -> None:
    full = in_the_way("team/a", "team/b")
    elsewhere = a_card("n2", a_slice("7g.40gb@0", "team/large"))
    room = a_card("n3", a_slice("3g.20gb@0", "team/large"), a_slice("1g.5gb@4", "team/large"))
    pods = [a_pod("a"), a_pod("b")]

    nowhere = plan(pods, full, elsewhere)
    somewhere = plan(pods, full, room)

    assert nowhere.stranded == ("team/a", "team/b")
    assert somewhere.stranded == ()


def test_another_plan_has_another_fingerprint() -> None:
    pods = [a_pod("a"), a_pod("b")]

    one, same = plan(pods, in_the_way("team/a")), plan(pods, in_the_way("team/a"))
    other = plan(pods, in_the_way("team/b"))

    assert one.fingerprint == same.fingerprint != other.fingerprint


def test_nobody_is_moved_unasked_unless_that_is_switched_on_and_everybody_has_a_place() -> None:
    room = a_card("n3", a_slice("3g.20gb@0", "team/large"), a_slice("1g.5gb@4", "team/large"))
    elsewhere = a_card("n2", a_slice("7g.40gb@0", "team/large"))
    wish, pods = a_wish("big", "3g.20gb"), [a_pod("a")]
    way = in_the_way("team/a")

    def unasked(*cards: Card, on: bool = True, waited_s: float = 301.0) -> bool:
        defragmenter = a_defragmenter(pods, automatic=on)
        return defragmenter.unasked(cards, [wish], waited_s, TWO_HOURS_IN) is not None

    assert unasked(way, room)
    assert not unasked(way, room, on=False)
    assert not unasked(way, room, waited_s=299.0)
    assert not unasked(way, elsewhere)


def test_unasked_nobody_of_higher_priority_is_moved() -> None:
    room = a_card("n3", a_slice("3g.20gb@0", "team/large"), a_slice("1g.5gb@4", "team/large"))
    urgent = a_pod("a")
    urgent["spec"]["priority"] = 5

    def unasked(priority: int) -> bool:
        wish = a_wish("big", "3g.20gb", priority=priority)
        found = a_defragmenter([urgent], automatic=True).unasked(
            [in_the_way("team/a"), room], [wish], 301.0, TWO_HOURS_IN
        )
        return found is not None

    assert (unasked(4), unasked(5)) == (False, True)
