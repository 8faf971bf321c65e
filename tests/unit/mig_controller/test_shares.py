"""Where MPS daemons are started for pods that insist on limits."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gpuloom.model.gpu import SharingMode
from gpuloom.model.layout import Sharing
from services.mig_controller.core.cards import Card
from services.mig_controller.core.plan import Options
from services.mig_controller.core.shares import plan_shares
from tests.unit.mig_controller.builders import a_card, a_share, a_slice

NOW_S = 1000.0
MPS: dict[str, Any] = {"cut": False, "sharing": SharingMode.MPS}


def test_room_on_a_shared_card_is_left_to_the_scheduler() -> None:
    card = a_card(given_milli=500, given_mib=20480, owner="team/x", **MPS)

    found = plan_shares([card], [a_share("a", 500)], Options(), NOW_S)

    assert (found.changes, found.unmet) == ((), {})


def test_one_unused_card_is_shared_by_as_many_as_fit() -> None:
    cards = [a_card("n1", cut=False), a_card("n2", cut=False)]
    wishes = [a_share("a", 500), a_share("b", 250), a_share("c", 500)]

    found = plan_shares(cards, wishes, Options(), NOW_S)

    made = {change.card.node_name: [wish.pod.name for wish in change.pods] for change in found.changes}
    assert made == {"n1": ["a", "b"], "n2": ["c"]}
    assert all(change.sharing == Sharing(SharingMode.MPS) for change in found.changes)


def test_memory_counts_too() -> None:
    found = plan_shares([a_card(cut=False)], [a_share("a", 100, memory_mib=41000)], Options(), NOW_S)

    assert found.changes == ()
    assert "no GPU can get an MPS daemon now" in found.unmet["uid-a"]


def test_no_daemon_is_started_where_no_container_could_be_its_client() -> None:
    found = plan_shares([a_card(cut=False, takes_clients=False)], [a_share("a")], Options(), NOW_S)

    assert found.changes == ()
    assert "by environment" in found.unmet["uid-a"]


def test_a_daemon_that_nobody_has_needed_for_long_ends() -> None:
    def ends(**more: Any) -> bool:
        card = a_card(**(MPS | {"idle_since_s": 0.0} | more))
        return bool(plan_shares([card], [], Options(idle_ttl_s=300), NOW_S).changes)

    assert ends()
    assert not ends(idle_since_s=NOW_S - 299)
    assert not ends(pinned=True)
    assert not ends(owner="team/x")


@st.composite
def cards(draw: st.DrawFn) -> list[Card]:
    found = []
    for number in range(draw(st.integers(0, 4))):
        used = draw(st.booleans())
        cut = draw(st.booleans())
        found.append(
            a_card(
                f"n{number}",
                *([a_slice("1g.5gb@0")] if cut else []),
                cut=cut,
                owner="team/x" if used and not cut else "",
                closed=draw(st.sampled_from(("", "unhealthy"))),
                pinned=draw(st.booleans()),
                sharing=SharingMode.NONE if cut else draw(st.sampled_from(list(SharingMode))),
                given_milli=draw(st.integers(1, 1000)) if used and not cut else 0,
                idle_since_s=0.0,
            )
        )
    return found


@given(cards(), st.lists(st.integers(1, 999), max_size=6))
def test_nothing_that_is_used_cut_closed_or_pinned_is_shared_otherwise(
    found_cards: list[Card], sizes: list[int]
) -> None:
    wishes = [a_share(f"p{number}", milli) for number, milli in enumerate(sizes)]

    found = plan_shares(found_cards, wishes, Options(), NOW_S)

    for change in found.changes:
        card = change.card
        assert (card.closed, card.cut, card.pinned, card.owner) == ("", False, False, "")
        assert sum(wish.milli for wish in change.pods) <= 1000
    served = [wish.pod.uid for change in found.changes for wish in change.pods]
    assert len(served) == len(set(served))
    assert not set(served) & found.unmet.keys()
