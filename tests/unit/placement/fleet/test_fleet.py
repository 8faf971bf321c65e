"""The fleet says of many nodes at once what the scalar functions say of each."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuloom.model.allocation import AllocatedDevice
from gpuloom.model.node import Delivery, NodeMode
from gpuloom.model.request import PodRequest, TopologyPreference
from gpuloom.placement.choose import choose_devices
from gpuloom.placement.demand import Demand
from gpuloom.placement.devices import HostCapacity, NodeView
from gpuloom.placement.fit import host_refusal
from gpuloom.placement.fleet.fleet import Fleet, Question
from gpuloom.placement.fleet.survey import Survey
from gpuloom.placement.potential import prices_for
from gpuloom.placement.reasons import Refusal
from gpuloom.placement.score import Scored, ScoreWeights, evaluate, extender_scores, in_order
from tests.effort import examples
from tests.unit.placement.builders import a_card, a_cut_card, a_node, a_shaped_node, a_share, a_slice, whole
from tests.unit.placement.strategies import clusters, nodes, requests


def a_fleet(*views: NodeView, learned: list[PodRequest] | None = None) -> Fleet:
    fleet = Fleet()
    for view in views:
        fleet.put(view)
    demand = Demand()
    for request in learned or ():
        demand = demand.with_pod(request)
    fleet.set_prices(prices_for(demand, fleet.supply()))
    return fleet


def one_by_one(fleet: Fleet, question: Question, views: tuple[NodeView, ...]) -> list[Scored | Refusal]:
    """What the scalar functions say of each node."""
    market = fleet.market(question.request.gpu.authority)
    outcomes = []
    for view in views:
        outcome = evaluate(question.request, view, market=market)
        lacking = host_refusal(question.request, view) if question.check_host else None
        outcomes.append(lacking if isinstance(outcome, Scored) and lacking is not None else outcome)
    return outcomes


def outcomes_of(survey: Survey) -> list[Scored | Refusal]:
    return [survey.outcome(entry) for entry in range(len(survey))]


@settings(max_examples=examples(120))
@given(clusters(), requests(), st.lists(requests(), max_size=30), st.booleans())
def test_the_fleet_says_exactly_what_the_scalar_functions_say(
    cluster: tuple[NodeView, ...], request: PodRequest, learned: list[PodRequest], check_host: bool
) -> None:
    fleet = a_fleet(*cluster, learned=learned)
    question = Question(request, check_host)

    survey = fleet.evaluate(question, [node.name for node in cluster])
    expected = one_by_one(fleet, question, cluster)

    assert outcomes_of(survey) == expected
    ranked = in_order(outcome for outcome in expected if isinstance(outcome, Scored))
    assert survey.ranked() == ranked
    assert survey.shortlist(2) == ranked[:2]
    assert survey.winner == (ranked[0] if ranked else None)
    assert survey.scores() == extender_scores(ranked)
    refused = [(n.name, o) for n, o in zip(cluster, expected, strict=True) if isinstance(o, Refusal)]
    assert list(survey.refusals()) == refused
    assert survey.refusal_counts() == Counter(outcome for _, outcome in refused)


@settings(max_examples=examples(150))
@given(
    clusters(max_nodes=8),
    st.lists(requests(), min_size=1, max_size=3),
    st.lists(requests(), max_size=30),
    st.data(),
)
def test_the_best_nodes_stay_the_same_as_of_all_while_nodes_come_change_and_go(
    cluster: tuple[NodeView, ...], pods: list[PodRequest], learned: list[PodRequest], data: st.DataObject
) -> None:
    fleet, names = a_fleet(*cluster, learned=learned), [node.name for node in cluster]
    changes = data.draw(st.lists(st.tuples(st.sampled_from([*names, "new"]), st.booleans()), max_size=6))

    for name, goes in [*changes, ("new", False)]:
        for request in pods:
            offered = data.draw(st.sets(st.sampled_from([*names, "new", "unknown"])))
            ranked = [scored.ranked for scored in fleet.evaluate(Question(request)).ranked()]
            best = fleet.best(Question(request), 3, offered, tries=100)
            assert best == [one for one in ranked if one.name in offered][:3]
            assert fleet.best(Question(request), 3, offered, tries=2) == [
                one for one in ranked[:2] if one.name in offered
            ]
        if goes:
            fleet.remove(name)
        else:
            # Mostly like another one, so that kinds are left and come back.
            version = data.draw(st.one_of(nodes(name), st.sampled_from(cluster or (a_node(),))))
            fleet.put(replace(version, name=name))


@pytest.mark.parametrize(
    "question",
    [
        Question(whole(1), check_host=True),
        Question(whole(1), hint={"c": 5.0}),
        Question(whole(1), price={"b": -5.0, "a": -9.0}),
    ],
)
def test_the_best_nodes_heed_advice_and_hosts(question: Question) -> None:
    small = HostCapacity(1000, 0, 1 << 30, 0)
    question = replace(question, request=replace(question.request, cpu_milli=500))
    fleet = a_fleet(*(a_node(a_card(), name=name, host=small if name == "a" else None) for name in "abcd"))

    ranked = [scored.ranked for scored in fleet.evaluate(question).ranked()]

    assert fleet.best(question, 4, "abcd", tries=4) == ranked
    assert [one.name for one in ranked] != ["a", "b", "c", "d"]


@settings(max_examples=examples(40))
@given(clusters(), requests(), st.lists(requests(), max_size=10))
def test_other_weights_rank_the_best_as_all_are_ranked(
    cluster: tuple[NodeView, ...], request: PodRequest, learned: list[PodRequest]
) -> None:
    for weights in (ScoreWeights(10, 80, 10), ScoreWeights(0, 35, 25), ScoreWeights(90, 7, 5)):
        fleet = Fleet(weights)
        for node in cluster:
            fleet.put(node)
        fleet.set_prices(a_fleet(*cluster, learned=learned).prices)

        ranked = fleet.evaluate(Question(request)).ranked()

        names = {node.name for node in cluster}
        assert fleet.best(Question(request), 9, names, tries=9) == [scored.ranked for scored in ranked]


@settings(max_examples=examples(40))
@given(clusters(), clusters(), requests(), st.data())
def test_a_changed_fleet_equals_a_new_one(
    before: tuple[NodeView, ...], after: tuple[NodeView, ...], request: PodRequest, data: st.DataObject
) -> None:
    changed = a_fleet(*before)
    changed.evaluate(Question(request))
    for node in before:
        if data.draw(st.booleans()):
            changed.remove(node.name)
    for node in after:
        changed.put(node)
    for name in {node.name for node in before} - {node.name for node in after}:
        changed.remove(name)
    names = [node.name for node in after]
    new = a_fleet(*after)
    new.set_prices(changed.prices)

    survey = changed.evaluate(Question(request), names)

    assert len(changed) == len(after)
    assert changed.supply() == new.supply()
    assert outcomes_of(survey) == outcomes_of(new.evaluate(Question(request), names))


@settings(max_examples=examples(60))
@given(st.lists(nodes("changing"), min_size=2, max_size=5), nodes("steady"), st.lists(requests(), min_size=3))
def test_every_change_of_a_node_is_seen_at_once(
    versions: list[NodeView], steady: NodeView, pods: list[PodRequest]
) -> None:
    fleet = a_fleet(versions[0], steady, learned=pods)

    for version in versions:
        fleet.put(version)

        for request in pods:
            survey = fleet.evaluate(Question(request), ["changing", "steady"])
            assert outcomes_of(survey) == one_by_one(fleet, Question(request), (version, steady))


def test_slices_and_cpu_of_a_changed_node_are_counted_anew() -> None:
    layout = (("1g.5gb", 0), ("1g.5gb", 1))
    request = replace(a_slice("1g.5gb", milli=125), cpu_milli=4000)
    fleet = a_fleet(a_node(a_cut_card(0, *layout), host=HostCapacity(64_000, 64_000, 1 << 38, 1 << 38)))
    before = fleet.evaluate(Question(request)).winner

    used = a_node(a_cut_card(0, *layout, used=1), host=HostCapacity(64_000, 5000, 1 << 38, 1 << 38))
    fleet.put(used)
    after = fleet.evaluate(Question(request)).winner
    fleet.put(a_node(a_cut_card(0, *layout, used=2), host=used.host))

    assert before != after == evaluate(request, used, market=fleet.market(request.gpu.authority))
    assert fleet.evaluate(Question(request)).winner is None


@settings(max_examples=examples(40))
@given(clusters(), requests(), st.data())
def test_some_nodes_are_judged_as_they_are_among_all(
    cluster: tuple[NodeView, ...], request: PodRequest, data: st.DataObject
) -> None:
    fleet = a_fleet(*cluster)
    some = (
        data.draw(st.lists(st.sampled_from([node.name for node in cluster]), unique=True)) if cluster else []
    )

    survey = fleet.evaluate(Question(request), some)
    among_all = fleet.evaluate(Question(request))

    of_all = dict(zip(among_all.names, outcomes_of(among_all), strict=True))
    assert outcomes_of(survey) == [of_all[name] for name in some]


@settings(max_examples=examples(40))
@given(clusters(), requests())
def test_the_winner_can_be_given_devices(cluster: tuple[NodeView, ...], request: PodRequest) -> None:
    fleet = a_fleet(*cluster)

    winner = fleet.evaluate(Question(request)).winner

    if winner is not None:
        view = fleet.view(winner.name)
        assert view is not None
        devices = choose_devices(request, view, fleet.prices)
        assert not isinstance(devices, Refusal)
        assert all(isinstance(device, AllocatedDevice) for device in devices)
        assert len(devices) == request.gpu.count


def test_large_shapes_are_answered_by_their_own_table() -> None:
    wish = whole(2, topology=TopologyPreference.NVLINK, required=True)
    pair = (a_shaped_node("dgx-2", 0b11, name="large"), a_shaped_node("dgx-1v", 0b100001, name="small"))
    fleet = a_fleet(*pair)

    survey = fleet.evaluate(Question(wish), ["large", "small"])

    assert outcomes_of(survey) == one_by_one(fleet, Question(wish), pair)
    assert [entry.name for entry in survey.shortlist()] == ["large"]


def test_reasons_are_counted_by_their_text() -> None:
    fleet = a_fleet(
        a_node(a_card(0, 0), name="full"),
        a_node(a_card(0, 500), name="half"),
        a_node(a_card(0), name="closed", closed_reason="facts are old"),
        a_node(a_card(0, closed_reason="two owners"), name="contested"),
        a_node(a_card(0), name="of another", mode=NodeMode.NVIDIA),
        a_node(a_card(0), name="mute", delivery=Delivery.NONE),
        a_node(a_cut_card(0, ("1g.5gb", 0)), name="cut"),
    )

    counts = fleet.evaluate(Question(whole(1))).refusal_counts()

    assert {refusal.reason: count for refusal, count in counts.items()} == {
        "not enough free GPUs: 1 asked": 2,
        "node closed: facts are old": 1,
        "too few usable GPUs: two owners": 1,
        "node gives out GPUs as nvidia.com/gpu, the pod asks for gpuloom.dev/*": 1,
        "node cannot hand chosen GPUs to a container: it needs NRI": 1,
        "node has fewer than 1 GPUs outside MIG mode": 1,
    }


def test_the_host_is_looked_at_only_when_asked() -> None:
    fleet = a_fleet(a_node(a_card(0), host=HostCapacity(8000, 1000, 1 << 30, 1 << 30)))
    request = replace(whole(1), cpu_milli=2000)

    assert fleet.evaluate(Question(request)).winner is not None
    counts = fleet.evaluate(Question(request, check_host=True)).refusal_counts()
    assert counts == {Refusal("not enough free CPU", resolvable=True): 1}


def test_advice_moves_a_node_but_only_so_far() -> None:
    fleet = a_fleet(*(a_node(a_card(0), name=name) for name in "abc"))
    neutral = fleet.evaluate(Question(whole(1)), list("abc"))

    hinted = fleet.evaluate(Question(whole(1), hint={"b": 1000.0}, price={"c": 4.0, "b": -2.0}), list("abc"))

    moved = hinted.points.total - neutral.points.total
    assert moved == pytest.approx([0.0, 8.0, 4.0])
    assert [entry.name for entry in hinted.ranked()] == ["b", "c", "a"]


def test_the_shortlist_takes_equals_by_name() -> None:
    names = [f"node-{number:03d}" for number in range(100)]
    fleet = a_fleet(*(a_node(a_card(0), name=name) for name in reversed(names)))

    survey = fleet.evaluate(Question(a_share(300)))

    assert [entry.name for entry in survey.shortlist()] == names[:8]
    assert list(survey.scores().values()).count(10) == 1
    assert survey.shortlist(0) == []


def test_near_the_best_is_measured_in_gpus() -> None:
    fleet = a_fleet(
        a_node(a_card(0, 500), name="best"),
        a_node(a_card(0, 510), name="near"),
        a_node(*(a_card(i) for i in range(8)), name="far"),
        learned=[a_share(500)] * 50,
    )

    survey = fleet.evaluate(Question(a_share(500)))

    assert [entry.name for entry in survey.near_best()] == ["best", "near"]
    assert len(survey.near_best(gpus=1.0)) == 3
    assert a_fleet().evaluate(Question(whole(1))).near_best() == []


def test_an_unknown_name_is_an_error_and_no_nodes_are_none() -> None:
    fleet = a_fleet()

    assert fleet.evaluate(Question(a_slice("1g.5gb"))).winner is None
    with pytest.raises(KeyError):
        fleet.evaluate(Question(whole(1)), ["nobody"])


def test_the_last_node_for_a_large_set_is_kept() -> None:
    host = HostCapacity(64_000, 64_000, 1 << 38, 1 << 38)
    last = a_node(*(a_card(i) for i in range(4)), name="a-last", host=host)
    rest = a_node(*(a_card(i, 1000 if i else 0) for i in range(8)), name="b-rest", host=host)
    sets = [whole(4)] * 50

    kept = a_fleet(last, rest, learned=[*sets, *[whole(1)] * 50]).evaluate(Question(whole(1))).winner
    careless = a_fleet(last, rest, learned=[whole(1)] * 50).evaluate(Question(whole(1))).winner

    assert kept is not None
    assert careless is not None
    assert (kept.name, careless.name) == ("b-rest", "a-last")


def test_a_model_that_others_insist_on_is_left_to_them() -> None:
    wanted = a_node(a_card(0), name="a-wanted")
    other = a_node(a_card(0, model="T4"), name="b-other")
    fleet = a_fleet(wanted, other, learned=[whole(1, models=("A100-SXM4-40GB",))] * 30)

    names = [entry.name for entry in fleet.evaluate(Question(whole(1))).ranked()]

    assert names == ["b-other", "a-wanted"]


def test_totals_are_finite_for_absurd_amounts() -> None:
    fleet = a_fleet(a_node(a_card(0), host=HostCapacity(1, 1, 1, 1)))

    survey = fleet.evaluate(Question(replace(whole(1), cpu_milli=10**12, memory_bytes=10**17)))

    assert np.isfinite(survey.points.total).all()


VIEWS = {
    name: [a_node(*(a_card(i, free) for i in range(2)), name=name) for free in (0, 500, 1000)]
    for name in ("n1", "n2", "n3")
}


@settings(max_examples=examples(200))
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["put", "remove", "show", "show again", "show nothing"]),
            st.sampled_from(sorted(VIEWS)),
            st.integers(0, 2),
            st.sampled_from(sorted(VIEWS)),
        ),
        max_size=20,
    )
)
def test_what_is_shown_stands_in_for_what_was_put_and_nothing_else_does(
    steps: list[tuple[str, str, int, str]],
) -> None:
    fleet, put, shown = Fleet(), dict[str, NodeView](), tuple[NodeView, ...]()

    for step, name, number, other in steps:
        if step == "put":
            put[name] = VIEWS[name][number]
            fleet.put(put[name])
        elif step == "remove":
            put.pop(name, None)
            fleet.remove(name)
        elif step == "show":
            shown = tuple({name: VIEWS[name][number], other: VIEWS[other][2 - number]}.values())
        elif step == "show nothing":
            shown = ()
        fleet.show(shown)

        seen = put | {view.name: view for view in shown if view.name in put}
        anew = a_fleet(*seen.values())
        for request in (whole(2), a_share(300)):
            fresh, kept = (one.evaluate(Question(request), sorted(seen)) for one in (anew, fleet))
            assert outcomes_of(kept) == outcomes_of(fresh)
        assert {name: fleet.view(name) for name in put} == put
