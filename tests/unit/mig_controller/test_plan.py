"""What is cut for waiting pods, and what never is."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuloom.model.snapshot import NodePlace, Taint
from gpuloom.placement.mig_geometry import (
    Geometry,
    Layout,
    Packing,
    layout_problem,
    legal_layouts,
    pack,
    slices_of,
)
from services.mig_controller.core import plan as plans
from services.mig_controller.core.cards import Card, Slice
from services.mig_controller.core.defragmentation import plan_fit
from services.mig_controller.core.plan import Options, plan
from services.mig_controller.core.strategy import filled, parse_strategy
from services.mig_controller.core.wishes import Wish, wishes_of
from tests.unit.mig_controller.builders import a_card, a_pod, a_slice, a_wish, place, the_geometry, the_pod


def affinity(*expressions: dict[str, Any]) -> dict[str, Any]:
    terms = {"nodeSelectorTerms": [{"matchExpressions": list(expressions)}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}


PROFILES = ("1g.5gb", "2g.10gb", "3g.20gb", "7g.40gb")
NOW_S = 1000.0
LAYOUTS = sorted(legal_layouts(the_geometry()))[::37]


def test_a_free_slice_is_left_to_the_scheduler() -> None:
    card = a_card("n1", a_slice("1g.5gb@6"))

    assert plan([card], [a_wish("a")], Options(), NOW_S).cuts == ()


def test_a_slice_is_made_only_where_it_is_the_part_of_a_gpu_that_the_pod_asks_for() -> None:
    an_eighth, a_quarter = (replace(a_wish("a", "1g.10gb"), milli=milli) for milli in (125, 250))
    card = a_card(cut=False)

    (cut,) = plan([card], [a_quarter], Options(), NOW_S).cuts
    other = plan([card], [an_eighth], Options(), NOW_S)

    assert [one.profile for one in cut.create] == ["1g.10gb"]
    assert other.cuts == ()
    assert "1g.10gb is 250 thousandths of the GPUs here, not 125" in other.unmet["uid-a"]


def test_room_on_a_cut_card_comes_before_an_unused_one() -> None:
    cards = [a_card("n1", a_slice("3g.20gb@0", "team/x")), a_card("n2", cut=False)]

    (cut,) = plan(cards, [a_wish("a"), a_wish("b", "2g.10gb")], Options(), NOW_S).cuts

    assert (cut.card.node_name, cut.enable, cut.destroy) == ("n1", False, ())
    assert {p.profile for p in cut.create} == {"1g.5gb", "2g.10gb"}


def test_an_unused_card_comes_before_idle_slices_and_some_stay_whole() -> None:
    cards = [a_card("n1", a_slice("7g.40gb@0")), a_card("n2", cut=False)]

    (first,) = plan(cards, [a_wish("a")], Options(), NOW_S).cuts
    (kept,) = plan(cards, [a_wish("a")], Options(keep_whole=1), NOW_S).cuts

    assert (first.card.node_name, first.enable) == ("n2", True)
    assert (kept.card.node_name, kept.destroy) == ("n1", (place("7g.40gb@0"),))


def test_a_slice_that_was_idle_only_for_a_moment_stays() -> None:
    card = a_card("n1", a_slice("7g.40gb@0", idle_since_s=NOW_S - 10))

    found = plan([card], [a_wish("a")], Options(idle_ttl_s=300), NOW_S)

    assert found.cuts == ()
    assert "no room for 1g.5gb" in found.unmet["uid-a"]


def test_a_pod_that_has_just_come_waits_for_the_scheduler_first() -> None:
    found = plan([a_card(cut=False)], [a_wish("a", since_s=NOW_S - 1)], Options(delay_s=2), NOW_S)

    assert (found.cuts, found.unmet) == ((), {})


@pytest.mark.parametrize(
    "spec",
    [
        {"nodeSelector": {"zone": "b"}},
        {"affinity": affinity({"key": "zone", "operator": "In", "values": ["b", "c"]})},
        {"nodeSelector": {"zone": "b", "feature.node.kubernetes.io/pci-10de.present": "true"}},
    ],
)
def test_a_slice_is_made_and_counted_on_where_the_pod_can_go(spec: dict[str, Any]) -> None:
    here, there = in_zone("a", "n1", a_slice("1g.5gb@6")), in_zone("b", "n2", cut=False)

    (cut,) = plan([here, there], [asking(spec)], Options(), NOW_S).cuts

    assert cut.card.node_name == "n2"


@pytest.mark.parametrize(
    "place", [NodePlace(unschedulable=True), NodePlace(taints=(Taint("team", "x", "NoSchedule"),))]
)
def test_nothing_is_made_on_a_node_that_does_not_take_the_pod(place: NodePlace) -> None:
    card = a_card("n1", cut=False, place=place)
    tolerating = {"tolerations": [{"operator": "Exists"}]}

    found = plan([card], [asking({})], Options(), NOW_S)

    assert found.cuts == ()
    assert "on a node that it asks for" in found.unmet["uid-a"]
    assert plan([card], [asking(tolerating)], Options(), NOW_S).cuts != ()


def test_a_term_of_which_nothing_is_told_may_match() -> None:
    unknown = affinity({"key": "nvidia.com/cuda.driver.major", "operator": "Gt", "values": ["500"]})

    assert plan([a_card("n1", cut=False)], [asking({"affinity": unknown})], Options(), NOW_S).cuts != ()


def asking(spec: dict[str, Any]) -> Wish:
    pod = a_pod("a")
    del pod["spec"]["nodeName"]
    pod["spec"] |= spec
    (wish,) = wishes_of([pod | {"status": {"phase": "Pending"}}], {"uid-a": 0.0}, NOW_S)
    return wish


def in_zone(zone: str, name: str, *slices: Slice, cut: bool = True) -> Card:
    return a_card(name, *slices, cut=cut, place=NodePlace(labels=(("zone", zone),)))


def test_a_slice_that_a_pod_is_about_to_get_is_not_cut_anew_for_another() -> None:
    card = a_card("n1", a_slice("1g.5gb@0"), a_slice("3g.20gb@4", "team/x"))
    wishes = [a_wish("a", "1g.5gb", since_s=NOW_S - 5), a_wish("b", "3g.20gb", since_s=NOW_S - 5)]

    both = plan([card], wishes, Options(), NOW_S)
    later = plan([card], [replace(wishes[0], since_s=0.0), wishes[1]], Options(), NOW_S)

    assert both.cuts == ()
    assert set(both.unmet) == {"uid-b"}
    assert [cut.destroy for cut in later.cuts] == [(place("1g.5gb@0"),)]


def test_a_plan_for_a_thousand_nodes_weighs_each_kind_of_card_once(monkeypatch: pytest.MonkeyPatch) -> None:
    packed = []

    def counted(layout: Layout, demand: dict[str, int]) -> Packing:
        packed.append(layout)
        return pack(layout, demand)

    monkeypatch.setattr(plans, "pack", counted)
    cards = [a_card(f"n{number}", index=index, cut=False) for number in range(1000) for index in range(8)]

    found = plan(cards, [a_wish(f"p{number}") for number in range(500)], Options(most_changes=8), NOW_S)

    assert (len(found.cuts), found.unmet) == (8, {})
    assert len(packed) == 8


def test_a_card_that_is_cut_is_filled_by_the_strategy() -> None:
    options = Options(strategy=parse_strategy("inference-optimized"))

    (cut,) = plan([a_card(cut=False)], [a_wish("a", "3g.20gb")], options, NOW_S).cuts

    assert Counter(p.profile for p in cut.create) == {"3g.20gb": 1, "1g.5gb": 3} or len(cut.create) > 1
    assert not Layout(the_geometry(), cut.create).places(the_geometry().profiles[0])


def test_a_strategy_comes_close_to_its_shares_over_many_cards() -> None:
    strategy, counts = parse_strategy("inference-optimized"), Counter[int]()
    for _ in range(40):
        for one in filled(Layout(the_geometry()), strategy, counts):
            counts[int(one.profile[0])] += 1

    total = sum(counts.values())
    assert abs(counts[1] / total - 0.7) < 0.05
    assert abs(counts[2] / total - 0.2) < 0.05
    assert abs(counts[3] / total - 0.1) < 0.05


@st.composite
def clusters(draw: st.DrawFn) -> tuple[list[Card], list[Wish]]:
    cards = []
    for number in range(draw(st.integers(1, 4))):
        layout = draw(st.sampled_from(LAYOUTS))
        cut = draw(st.booleans())
        owners = draw(
            st.lists(
                st.sampled_from(("", "team/x", "team/fixed", "a process of no pod")),
                min_size=len(layout),
                max_size=len(layout),
            )
        )
        ages = draw(st.lists(st.sampled_from((0.0, NOW_S)), min_size=len(layout), max_size=len(layout)))
        slices = tuple(
            Slice(where, owner, False, "", None if owner else age, the_pod(owner))
            for where, owner, age in zip(layout, owners, ages, strict=True)
        )
        closed = draw(st.sampled_from(("", "", "unhealthy")))
        owner = draw(st.sampled_from(("", "team/y")))
        cards.append(
            a_card(f"n{number}", *(slices if cut else ()), cut=cut, closed=closed, owner="" if cut else owner)
        )
    profiles = draw(st.lists(st.sampled_from(PROFILES), max_size=8))
    return cards, [a_wish(f"p{number}", profile) for number, profile in enumerate(profiles)]


@given(clusters())
def test_no_plan_overlaps_touches_what_is_used_or_serves_a_pod_twice(
    cluster: tuple[list[Card], list[Wish]],
) -> None:
    cards, wishes = cluster

    found = plan(cards, wishes, Options(idle_ttl_s=500), NOW_S)

    assert len({cut.card.uuid for cut in found.cuts}) == len(found.cuts)
    served = [wish.pod.uid for cut in found.cuts for wish in cut.pods]
    assert len(set(served)) == len(served)
    assert not set(served) & found.unmet.keys()
    for cut in found.cuts:
        there = {one.placement: one for one in cut.card.slices}
        assert not cut.card.closed
        assert not cut.card.owner
        assert all(there[gone].free and there[gone].idle_since_s == 0.0 for gone in cut.destroy)
        after = [where for where in there if where not in cut.destroy] + list(cut.create)
        assert layout_problem(cut.card.geometry, after) == ""
        assert Counter(w.profile for w in cut.pods) <= Counter(p.profile for p in cut.create)


@given(clusters(), st.dictionaries(st.sampled_from(PROFILES), st.integers(1, 4), min_size=1))
def test_a_fit_that_is_planned_really_fits_and_moves_nobody_in_vain(
    cluster: tuple[list[Card], list[Wish]], demand: dict[str, int]
) -> None:
    cards, _ = cluster

    found = plan_fit(cards, demand, fixed=frozenset({"team/fixed"}))

    made = Counter(p.profile for step in found.steps for p in step.create)
    assert Counter(demand) == made + Counter(found.there) + Counter(found.missing)
    for step in found.steps:
        left = [one.placement for one in step.card.slices if one.placement not in step.destroy]
        assert layout_problem(step.card.geometry, left + list(step.create)) == ""
        assert not step.card.closed
        movable = {one.placement for one in step.card.slices if one.owner == "team/x"}
        free = {one.placement for one in step.card.slices if one.free}
        assert {move.placement for move in step.moves} <= movable
        assert set(step.destroy) <= free | {move.placement for move in step.moves}
        for move in step.moves:
            without = [where for where in step.destroy if where != move.placement]
            still = [one.placement for one in step.card.slices if one.placement not in without]
            assert layout_problem(step.card.geometry, still + list(step.create)) != ""


@given(clusters(), st.dictionaries(st.sampled_from(("1g.5gb", "3g.20gb")), st.integers(1, 5), min_size=1))
def test_no_other_fit_serves_more_or_the_same_with_fewer_moves(
    cluster: tuple[list[Card], list[Wish]], demand: dict[str, int]
) -> None:
    cards = cluster[0][:2]

    found = plan_fit(cards, demand, fixed=frozenset({"team/fixed"}))

    served = Counter(demand) - Counter(found.missing)
    assert (-memory_of(served), len(found.moves)) == min(outcomes(cards, Counter(demand)))


def outcomes(cards: list[Card], left: Counter[str]) -> Iterator[tuple[int, int]]:
    """(memory slices served, negative; moves) of everything that could be done."""
    if not cards:
        yield 0, 0
        return
    yield from outcomes(cards[1:], left)
    card, profiles = cards[0], ("1g.5gb", "3g.20gb")
    if card.closed or card.owner:
        return
    geometry = Geometry(8, tuple(p for p in card.geometry.profiles if p.name in profiles))
    for layout in legal_layouts(geometry):
        bits = sum(slices_of(geometry, where) for where in layout)
        hit = [one for one in card.slices if slices_of(card.geometry, one.placement) & bits]
        given = Counter(where.profile for where in layout)
        if given <= left and all(one.free or one.owner == "team/x" for one in hit):
            moves = sum(not one.free for one in hit)
            for memory, more in outcomes(cards[1:], left - given):
                yield memory - memory_of(given), more + moves


def memory_of(count: Counter[str]) -> int:
    return count["1g.5gb"] + 4 * count["3g.20gb"]


def test_a_card_gives_as_much_as_it_can_if_that_is_what_it_takes() -> None:
    small = (a_slice(f"1g.5gb@{start}", f"team/p{start}") for start in (0, 4, 5, 6))

    found = plan_fit([a_card("n1", *small)], {"3g.20gb": 2})

    assert (len(found.moves), found.missing) == (4, {})


def test_a_free_slice_that_is_counted_on_is_not_cut_anew() -> None:
    card = a_card("n1", a_slice("1g.5gb@0"), a_slice("3g.20gb@4", "team/fixed"))

    found = plan_fit([card], {"1g.5gb": 1, "3g.20gb": 1}, fixed=frozenset({"team/fixed"}))

    assert (found.there, found.missing) == ({}, {"1g.5gb": 1})


def test_a_large_cluster_is_planned_for_without_trying_everything() -> None:
    cards = [
        a_card(f"n{number}", *(a_slice(f"1g.5gb@{start}", f"team/p{number}-{start}") for start in range(7)))
        for number in range(200)
    ]

    found = plan_fit(cards, {"1g.5gb": 300, "2g.10gb": 100, "3g.20gb": 100})

    assert found.missing == {}


def test_a_fit_moves_the_fewest() -> None:
    full = a_card("n1", *(a_slice(f"1g.5gb@{i}", f"team/p{i}") for i in range(7)))
    half = a_card("n2", a_slice("1g.5gb@0", "team/q"), a_slice("3g.20gb@4", "team/r"))

    found = plan_fit([full, half], {"3g.20gb": 1})

    assert [(m.owner, m.placement) for s in found.steps for m in s.moves] == [("team/q", place("1g.5gb@0"))]
