"""A gang has places for all its pods, or for none."""

from collections import Counter
from dataclasses import replace
from itertools import combinations_with_replacement

from hypothesis import given, settings
from hypothesis import strategies as st

from gpuloom.model.objects import LabelSelector
from gpuloom.placement.constraints.objects import PodTerm, SpreadConstraint
from gpuloom.placement.fit import Fit, fit
from gpuloom.placement.gangs.gang import NOT_TOGETHER, DomainWish, GangPlan, GangRefusal, plan_gang
from gpuloom.placement.gangs.sites import Member, Site, completed
from tests.effort import examples
from tests.unit.placement.builders import MEMORY_MIB, a_card, a_node, a_share
from tests.unit.placement.gangs.builders import a_member, a_site, a_tenant, tainted

RACK = "example.com/rack"


def planned(
    members: list[Member], sites: list[Site], wish: DomainWish | None = None
) -> GangPlan | GangRefusal:
    return completed(plan_gang(members, sites, wish))


def a_gang(size: int, cards: int = 1, **pod: object) -> list[Member]:
    return [a_member(f"m{i}", cards, **pod) for i in range(size)]  # type: ignore[arg-type]


@given(
    frees=st.lists(st.integers(0, 8), min_size=1, max_size=5),
    sizes=st.lists(st.integers(1, 8), min_size=1, max_size=6),
)
@settings(max_examples=examples(150), deadline=None)
def test_a_plan_places_every_pod_once_and_gives_no_device_twice(frees: list[int], sizes: list[int]) -> None:
    sites = [a_site(f"n{i}", 8, [a_tenant(f"t{i}", f"n{i}", 8 - free)]) for i, free in enumerate(frees)]
    members = [a_member(f"m{i}", size) for i, size in enumerate(sizes)]

    plan = planned(members, sites)

    if isinstance(plan, GangPlan):
        assert Counter(seat.uid for seat in plan.seats) == Counter(member.uid for member in members)
        devices = [(seat.node_name, item.device) for seat in plan.seats for item in seat.devices]
        assert len(devices) == len(set(devices)) == sum(sizes)
        views = {site.name: site.view for site in sites}
        free = {(name, card.gpu.uuid) for name, view in views.items() for card in view.gpus if card.untouched}
        assert {(name, device.gpu_uuid) for name, device in devices} <= free
    else:
        assert plan.missing > 0


@given(
    frees=st.lists(st.integers(0, 4), min_size=1, max_size=3), cards=st.integers(1, 4), size=st.integers(1, 6)
)
@settings(max_examples=examples(150), deadline=None)
def test_equal_pods_are_placed_whenever_that_is_possible_at_all(
    frees: list[int], cards: int, size: int
) -> None:
    sites = [a_site(f"n{i}", 4, [a_tenant(f"t{i}", f"n{i}", 4 - free)]) for i, free in enumerate(frees)]

    plan = planned(a_gang(size, cards), sites)

    possible = any(
        all(each.count(i) * cards <= free for i, free in enumerate(frees))
        for each in combinations_with_replacement(range(len(frees)), size)
    )
    assert isinstance(plan, GangPlan) == possible


def test_a_gang_that_does_not_fit_has_no_place_at_all_and_says_what_is_missing() -> None:
    plan = planned(a_gang(3, 4), [a_site("n1", 8)])

    assert isinstance(plan, GangRefusal)
    assert plan.missing == 1
    assert plan.reason.startswith("1 of 3 pods have no place")


def test_a_node_that_kube_scheduler_would_not_offer_is_not_planned_on() -> None:
    sites = [tainted(a_site("a", 8)), a_site("b", 8, cpu=50), a_site("c", 8)]

    plan = planned(a_gang(2, 4), sites)

    assert isinstance(plan, GangPlan)
    assert {seat.node_name for seat in plan.seats} == {"c"}


def test_a_node_to_avoid_is_avoided_by_the_pod_that_it_was_not_offered_to() -> None:
    first, second = a_gang(2, 4)

    plan = planned([replace(first, avoid=frozenset({"a"})), second], [a_site("a", 4), a_site("b", 4)])

    assert isinstance(plan, GangPlan)
    assert {seat.uid: seat.node_name for seat in plan.seats} == {first.uid: "b", second.uid: "a"}


def racks(*cards: tuple[str, int]) -> list[Site]:
    return [a_site(f"n{i}", count, labels={RACK: rack}) for i, (rack, count) in enumerate(cards)]


def test_a_required_domain_takes_all_or_refuses() -> None:
    sites = racks(("r1", 4), ("r2", 4), ("r2", 4))

    two, three = (
        planned(a_gang(2, 4), sites, DomainWish(RACK)),
        planned(a_gang(3, 4), sites, DomainWish(RACK)),
    )

    assert isinstance(two, GangPlan)
    assert two.domain == "r2"
    assert isinstance(three, GangRefusal)
    assert RACK in three.reason


def test_shares_of_little_memory_find_room_on_cards_that_have_little_left() -> None:
    (site,) = racks(("r1", 1))
    site = replace(site, view=a_node(a_card(0, 1000, MEMORY_MIB // 10), name=site.name))
    members = [a_member(f"m{i}", 0, a_share(400, 100)) for i in range(2)]

    assert isinstance(planned(members, [site], DomainWish(RACK)), GangPlan)


def test_a_preferred_domain_gives_way_to_the_fewest_domains() -> None:
    sites = racks(("r1", 4), ("r2", 4), ("r2", 4), ("r3", 4))

    plan = planned(a_gang(3, 4), sites, DomainWish(RACK, required=False))

    assert isinstance(plan, GangPlan)
    labels = {site.name: site.node.labels[RACK] for site in sites}
    assert Counter(labels[seat.node_name] for seat in plan.seats)["r2"] == 2


def test_pods_that_come_after_others_go_to_their_domain() -> None:
    plan = planned(a_gang(1, 4), racks(("r1", 4), ("r2", 4)), DomainWish(RACK, value="r2"))

    assert isinstance(plan, GangPlan)
    assert plan.domain == "r2"


def with_rule(members: list[Member], **rule: object) -> list[Member]:
    return [replace(member, pod=replace(member.pod, **rule)) for member in members]  # type: ignore[arg-type]


OWN = LabelSelector({"app": "gang"})


def test_pods_that_keep_apart_are_on_different_nodes_or_nowhere() -> None:
    sites = [a_site(name, 8, labels={"host": name}) for name in ("a", "b")]
    apart = {"anti_affinity": (PodTerm("host", OWN),)}

    two = planned(with_rule(a_gang(2, 1, labels={"app": "gang"}), **apart), sites)
    three = planned(with_rule(a_gang(3, 1, labels={"app": "gang"}), **apart), sites)

    assert isinstance(two, GangPlan)
    assert {seat.node_name for seat in two.seats} == {"a", "b"}
    assert isinstance(three, GangRefusal)


def test_pods_that_want_to_be_together_are() -> None:
    sites = [a_site(name, 2, labels={"host": name}) for name in ("a", "b")]
    together = {"affinity": (PodTerm("host", OWN),)}

    two = planned(with_rule(a_gang(2, 1, labels={"app": "gang"}), **together), sites)
    three = planned(with_rule(a_gang(3, 1, labels={"app": "gang"}), **together), sites)

    assert isinstance(two, GangPlan)
    assert len({seat.node_name for seat in two.seats}) == 1
    assert isinstance(three, GangRefusal)


def test_a_rule_that_holds_for_some_order_only_refuses_the_gang() -> None:
    """The first pod may go anywhere; where it may not be with the others there, there is no plan."""
    sites = [a_site(name, 1, labels={"zone": name}) for name in ("a", "b", "c")]
    rule = SpreadConstraint("zone", 1, OWN)
    members = with_rule(a_gang(2, 1, labels={"app": "gang"}), spread=(rule,))
    members[1] = replace(members[1], pod=replace(members[1].pod, affinity=(PodTerm("zone", OWN),), spread=()))

    plan = planned(members, sites)

    assert isinstance(plan, GangRefusal)
    assert plan.reason == NOT_TOGETHER or "no place" in plan.reason


def test_seats_stand_when_asked_again_one_by_one() -> None:
    sites = [a_site("a", 8), a_site("b", 8)]

    plan = planned(a_gang(5, 3), sites[:]), planned(a_gang(4, 3), sites[:])

    assert isinstance(plan[0], GangRefusal)
    assert isinstance(plan[1], GangPlan)
    assert all(isinstance(fit(a_gang(1, 3)[0].request, site.view), Fit) for site in sites)
