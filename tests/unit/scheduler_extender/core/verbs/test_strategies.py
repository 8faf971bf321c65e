"""A pod's strategy orders the nodes that fit, our score breaks ties, and no strategy makes a node fit."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuloom.kube.cache import Change
from gpuloom.kube.objects import JsonObject
from gpuloom.model.request import PodRequest
from gpuloom.placement.devices import NodeView
from gpuloom.placement.score import ScoreWeights
from gpuloom.placement.strategies import Candidate, order_of
from services.scheduler_extender.adapters.strategies import Strategies
from services.scheduler_extender.core.inquiries.evaluation import Judge
from services.scheduler_extender.core.inquiries.explain import judged
from services.scheduler_extender.core.verbs.evaluator import Evaluator
from services.scheduler_extender.core.verbs.filtering import filter_nodes, score_nodes
from services.scheduler_extender.core.verbs.node_names import OfferedNames
from services.scheduler_extender.core.views.views import ViewOf
from tests.unit.placement.builders import a_card, a_node, whole
from tests.unit.placement.strategies import clusters, requests

STRATEGIES = ("leastLoaded", "random", "costOptimized", "topology", "fragmentation")


def seen(*nodes: NodeView) -> ViewOf:
    return {node.name: node for node in nodes}.get


def a_pod(strategy: str | None, uid: str = "uid-1") -> JsonObject:
    annotations = {} if strategy is None else {"gpuloom.dev/strategy": strategy}
    return {"metadata": {"uid": uid, "annotations": annotations}}


def nodes_with_free_cards(**free: int) -> list[NodeView]:
    """Of four cards each."""
    return [
        a_node(*(a_card(free_milli=1000 if card < count else 0, index=card) for card in range(4)), name=name)
        for name, count in free.items()
    ]


def chosen(strategy: str | None, nodes: Sequence[NodeView], *, known: Strategies | None = None) -> list[str]:
    evaluator = Evaluator(ScoreWeights()).with_order((known or Strategies({})).of(a_pod(strategy)))
    names = OfferedNames([node.name for node in nodes])
    return list(filter_nodes(whole(1), names, seen(*nodes), evaluator, len(nodes)).node_names)


def labelled(strategies: Strategies, name: str, labels: dict[str, str]) -> None:
    strategies.observe_node(Change(None, {"metadata": {"name": name, "labels": labels}}))


def test_least_loaded_takes_the_node_with_the_most_free_gpus_and_our_score_does_not() -> None:
    nodes = nodes_with_free_cards(a=1, b=4, c=2)

    assert chosen("leastLoaded", nodes) == ["b", "c", "a"]
    assert chosen(None, nodes)[0] == "a"


def test_cost_optimized_prefers_nodes_that_are_labelled_cheap_then_the_emptiest() -> None:
    nodes, strategies = nodes_with_free_cards(a=1, b=4, c=2), Strategies({})
    for name in ("a", "c"):
        labelled(strategies, name, {"gpu-orchestrator/cheap-node": "true"})

    assert chosen("costOptimized", nodes, known=strategies) == ["c", "a", "b"]
    labelled(strategies, "c", {})
    assert chosen("costOptimized", nodes, known=strategies) == ["a", "b", "c"]


def test_random_is_the_same_for_one_pod_and_spreads_many() -> None:
    nodes = nodes_with_free_cards(a=2, b=2, c=2)
    evaluator, names = Evaluator(ScoreWeights()), OfferedNames(["a", "b", "c"])

    def first(uid: str) -> str:
        ordered = evaluator.with_order(Strategies({}).of(a_pod("random", uid)))
        return filter_nodes(whole(1), names, seen(*nodes), ordered, 1).node_names[0]

    firsts = [first(f"uid-{number}") for number in range(60)]

    assert firsts == [first(f"uid-{number}") for number in range(60)]
    assert min(firsts.count(name) for name in "abc") > 5


def test_a_plug_in_orders_nodes_and_one_that_fails_leaves_them_to_our_score() -> None:
    def by_name_backwards(nodes: Sequence[Candidate], uid: str) -> Sequence[Candidate]:
        return sorted(nodes, key=lambda node: node.name, reverse=True)

    def broken(nodes: Sequence[Candidate], uid: str) -> Sequence[Candidate]:
        raise RuntimeError("not today")

    nodes = nodes_with_free_cards(a=1, b=4, c=2)
    known = Strategies({"backwards": by_name_backwards, "broken": broken})

    assert chosen("backwards", nodes, known=known) == ["c", "b", "a"]
    assert chosen("broken", nodes, known=known) == chosen(None, nodes)
    assert chosen("unheard-of", nodes, known=known) == chosen(None, nodes)


@given(request=requests(), nodes=clusters(), strategy=st.sampled_from(STRATEGIES))
def test_a_strategy_changes_the_order_of_nodes_and_never_which_fit(
    request: PodRequest, nodes: tuple[NodeView, ...], strategy: str
) -> None:
    plain, names = Evaluator(ScoreWeights()), [node.name for node in nodes]
    cheap = set(names[::2])
    ordered = plain.with_order(order_of(strategy, "uid", cheap, {}))
    offered = OfferedNames(names)

    without = filter_nodes(request, offered, seen(*nodes), plain, None)
    answer = filter_nodes(request, offered, seen(*nodes), ordered, None)
    scores = dict(score_nodes(request, answer.node_names, seen(*nodes), ordered, soft_wishes=False))

    assert sorted(answer.node_names) == sorted(without.node_names)
    assert (answer.failed, answer.hopeless) == (without.failed, without.hopeless)
    falling = [scores[name] for name in answer.node_names]
    assert falling == sorted(falling, reverse=True)
    assert falling.count(10) == min(1, len(falling))


@given(nodes=clusters(), strategy=st.sampled_from(("leastLoaded", "random", "costOptimized", "topology")))
def test_nodes_that_are_kept_as_arrays_are_ordered_as_nodes_that_are_read_one_by_one(
    nodes: tuple[NodeView, ...], strategy: str
) -> None:
    # Explain refuses for CPU and memory too.
    nodes = tuple(replace(node, host=None) for node in nodes)
    kept, offered = Evaluator(ScoreWeights()), [node.name for node in nodes]
    for node in nodes:
        kept.fleet.put(node)
    order: Any = order_of(strategy, "uid", (), {})

    by_arrays = kept.with_order(order).on(whole(1), offered, seen(*nodes)).survey.ranked()
    judge = Judge(kept, order_of=lambda pod: order).about({})
    steps = judged(whole(1), nodes, judge)
    try:
        while True:
            next(steps)
    except StopIteration as end:
        offers = end.value.offers

    assert [offer.node_name for offer in offers] == [one.name for one in by_arrays[: len(offers)]]


@pytest.mark.parametrize("annotations", [None, [], {"gpuloom.dev/strategy": 3}, {}])
def test_a_pod_without_a_readable_strategy_has_none(annotations: object) -> None:
    assert Strategies({}).of({"metadata": {"uid": "u", "annotations": annotations}}) is None
