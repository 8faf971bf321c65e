"""Victims: only if that helps, no more than needed, the lowest first, and nobody who may not be evicted."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuloom.model.objects import LabelSelector
from gpuloom.placement.fit import Fit, fit
from gpuloom.placement.gangs.preemption import plan_preemption
from gpuloom.placement.gangs.sites import Member, Site, completed, in_tree_refusals
from gpuloom.placement.gangs.victims import DisruptionBudget, Field, PreemptionPlan, Unit, units_of
from tests.effort import examples
from tests.unit.placement.gangs.builders import Cluster, Tenancy, a_member, a_tenant

TOP = 1000


def planned(
    members: list[Member],
    cluster: Cluster,
    *,
    budgets: tuple[DisruptionBudget, ...] = (),
    protected: frozenset[str] = frozenset(),
    priority: int = TOP,
) -> PreemptionPlan | None:
    units = completed(units_of([tenant.victim for tenant in cluster.tenants], priority, protected))
    return completed(plan_preemption(members, Field(cluster.sites, units, cluster.without, budgets)))


def names(plan: PreemptionPlan | None) -> set[str]:
    assert plan is not None
    return {victim.pod.name for victim in plan.victims}


@st.composite
def clusters(draw: st.DrawFn) -> Cluster:
    tenants: list[Tenancy] = []
    cards = {f"n{i}": 4 for i in range(draw(st.integers(1, 3)))}
    for node, total in cards.items():
        left = total
        while left and draw(st.integers(0, 5)):
            size = draw(st.integers(1, left))
            left -= size
            tenants.append(
                a_tenant(
                    f"t{len(tenants)}",
                    node,
                    size,
                    priority=draw(st.sampled_from([0, 10, 2000])),
                    gang=draw(st.sampled_from(["", "", "g"])),
                    usd=draw(st.integers(0, 3)),
                    labels={"app": draw(st.sampled_from(["guarded", "free"]))},
                )
            )
    return Cluster(cards, tenants)


def fits(member: Member, cluster: Cluster, gone: frozenset[str]) -> set[str]:
    """Where the pod has a place without these."""
    sites = ((name, cluster.without(name, gone)) for name in cluster.cards)
    return {
        name
        for name, site in sites
        if site is not None
        and not in_tree_refusals(member, site)
        and isinstance(fit(member.request, site.view), Fit)
    }


def uids(*units: Unit) -> frozenset[str]:
    return frozenset().union(*(unit.uids for unit in units))


@given(clusters(), st.integers(1, 5), st.integers(0, 2), st.sets(st.integers(0, 8)))
@settings(max_examples=examples(400), deadline=None)
def test_victims_suffice_and_none_is_needless_and_none_is_spared_by_right(
    cluster: Cluster, cards: int, allowed: int, protected: set[int]
) -> None:
    member = a_member("wants", cards, priority=TOP)
    budget = DisruptionBudget("default", LabelSelector({"app": "guarded"}), allowed)
    kept = frozenset(f"uid-t{i}" for i in protected)

    plan = planned([member], cluster, budgets=(budget,), protected=kept)

    if plan is None or not plan.units:
        if plan is None and allowed >= 12:
            everyone = completed(units_of([tenant.victim for tenant in cluster.tenants], TOP, kept))
            assert not fits(member, cluster, uids(*everyone))
        return
    node = plan.seats[0].node_name
    gone = uids(*plan.units)
    assert node in fits(member, cluster, gone)
    for unit in plan.units:
        assert node not in fits(member, cluster, gone - unit.uids), "a victim that was not needed"
    assert not gone & kept
    assert all(victim.pod.priority < TOP for victim in plan.victims)
    assert sum(budget.covers(victim.pod) for victim in plan.victims) <= allowed
    gangs = {victim.gang for victim in plan.victims} - {""}
    whole_gangs = {tenant.victim.uid for tenant in cluster.tenants if tenant.victim.gang in gangs}
    assert whole_gangs <= gone, "a gang was torn"


@given(clusters(), st.lists(st.integers(1, 4), min_size=2, max_size=4))
@settings(max_examples=examples(400), deadline=None)
def test_for_a_gang_all_its_pods_have_room_and_nobody_leaves_in_vain(
    cluster: Cluster, sizes: list[int]
) -> None:
    members = [a_member(f"m{i}", cards, priority=TOP) for i, cards in enumerate(sizes)]

    plan = planned(members, cluster)

    if plan is None:
        return
    wanted = Counter[str]()
    for seat in plan.seats:
        wanted[seat.node_name] += len(seat.devices)
    devices = [(seat.node_name, item.device) for seat in plan.seats for item in seat.devices]
    assert len(devices) == len(set(devices)) == sum(sizes)
    assert wanted <= free_cards(cluster, uids(*plan.units))
    for unit in plan.units:
        left = free_cards(cluster, uids(*plan.units) - unit.uids)
        assert not has_room(left, sizes), "not needed"


def has_room(free: Counter[str], sizes: Sequence[int]) -> bool:
    """Whether there is any way to place pods of these sizes, by trying all."""
    if not sizes:
        return True
    return any(
        has_room(free - Counter({name: sizes[0]}), sizes[1:]) for name in free if free[name] >= sizes[0]
    )


def free_cards(cluster: Cluster, gone: frozenset[str]) -> Counter[str]:
    free = Counter(cluster.cards)
    for tenant in cluster.tenants:
        if tenant.victim.uid not in gone:
            free[tenant.victim.node_name] -= tenant.cards
    return free


@given(clusters(), st.integers(1, 5))
@settings(max_examples=examples(200), deadline=None)
def test_somebody_is_found_exactly_if_evicting_all_who_may_go_would_help(
    cluster: Cluster, cards: int
) -> None:
    member = a_member("wants", cards, priority=TOP)
    everyone = completed(units_of([tenant.victim for tenant in cluster.tenants], TOP, frozenset()))

    plan = planned([member], cluster)

    helps = {
        name
        for name in fits(member, cluster, uids(*everyone))
        if any(name == victim.node_name for unit in everyone for victim in unit.victims)
    }
    assert (plan is not None) == bool(helps)


def test_one_is_evicted_where_one_is_enough() -> None:
    tenants = [a_tenant(f"s{i}", "n1", 1) for i in range(4)] + [a_tenant("big", "n2", 4)]

    plan = planned([a_member("wants", 4, priority=TOP)], Cluster({"n1": 4, "n2": 4}, tenants))

    assert names(plan) == {"big"}


def test_the_lowest_priority_goes_first_and_of_equals_the_cheapest() -> None:
    tenants = [
        a_tenant("high", "n1", priority=10),
        a_tenant("dear", "n1", usd=500),
        a_tenant("cheap", "n1", usd=100),
    ]

    plan = planned([a_member("wants", 1, priority=TOP)], Cluster({"n1": 3}, tenants))

    assert names(plan) == {"cheap"}
    assert plan is not None
    assert plan.lost_nano_usd == 100


def test_a_gang_leaves_whole() -> None:
    tenants = [a_tenant("a", "n1", gang="g"), a_tenant("b", "n2", gang="g"), a_tenant("c", "n2", 1)]

    plan = planned(
        [a_member("wants", 1, priority=TOP)], Cluster({"n1": 1, "n2": 2}, tenants[:2] + tenants[2:])
    )
    alone = planned([a_member("wants", 1, priority=TOP)], Cluster({"n1": 1, "n2": 1}, tenants[:2]))

    assert names(plan) == {"c"}
    assert names(alone) == {"a", "b"}


def test_nobody_leaves_for_equal_priority_or_for_a_pod_that_would_not_fit() -> None:
    cluster = Cluster({"n1": 1}, [a_tenant("t", "n1", priority=TOP)])
    small = Cluster({"n1": 1}, [a_tenant("t", "n1")])

    assert planned([a_member("wants", 1, priority=TOP)], cluster) is None
    assert planned([a_member("wants", 2, priority=TOP)], small) is None
    # In-tree resources would still be short.
    hungry = a_member("wants", 1, priority=TOP, cpu=100_000)
    assert planned([hungry], small) is None


def test_a_budget_that_allows_nothing_is_never_broken() -> None:
    budget = DisruptionBudget("default", LabelSelector({}), 0)
    cluster = Cluster({"n1": 1}, [a_tenant("t", "n1")])

    assert planned([a_member("wants", 1, priority=TOP)], cluster, budgets=(budget,)) is None
    elsewhere = replace(budget, namespace="other")
    assert names(planned([a_member("wants", 1, priority=TOP)], cluster, budgets=(elsewhere,))) == {"t"}


def test_a_gang_evicts_no_more_than_all_its_pods_need() -> None:
    tenants = [a_tenant("a", "n1", 4), a_tenant("b", "n2", 4), a_tenant("c", "n3", 4)]
    members = [a_member(f"m{i}", 2, priority=TOP) for i in range(4)]

    plan = planned(members, Cluster(dict.fromkeys(("n1", "n2", "n3"), 4), tenants))

    assert plan is not None
    assert len(plan.victims) == 2
    assert len(plan.seats) == 4
    devices = [(seat.node_name, item.device) for seat in plan.seats for item in seat.devices]
    assert len(devices) == len(set(devices)) == 8


def test_a_gang_evicts_nobody_for_one_pod_whose_place_is_made_by_the_eviction_for_another() -> None:
    tenants = [a_tenant("small", "n1", 1), a_tenant("big", "n2", 2, priority=1)]
    members = [a_member(f"m{i}", 1, priority=TOP) for i in range(2)]

    plan = planned(members, Cluster({"n1": 1, "n2": 2}, tenants))

    assert names(plan) == {"big"}


@pytest.mark.parametrize("pods", [1, 4], ids=["a pod", "a gang"])
def test_few_nodes_are_looked_at_and_others_run_in_between(pods: int) -> None:
    nodes = [f"n{i:03d}" for i in range(100)]
    tenants = [a_tenant(f"{node}-{card}", node) for node in nodes for card in range(4)]
    cluster = Cluster(dict.fromkeys(nodes, 4), tenants)
    members = [a_member(f"m{i}", 4, priority=TOP) for i in range(pods)]
    looked: list[str] = []

    def without(name: str, gone: frozenset[str]) -> Site | None:
        looked.append(name)
        return cluster.without(name, gone)

    units = completed(units_of([tenant.victim for tenant in tenants], TOP, frozenset()))
    steps = plan_preemption(members, Field(cluster.sites, units, without))
    most = before = 0
    try:
        while True:
            next(steps)
            most, before = max(most, len(looked) - before), len(looked)
    except StopIteration as done:
        plan: PreemptionPlan | None = done.value

    assert len(names(plan)) == 4 * pods
    assert most <= 4
    assert len(looked) < len(nodes) * pods
