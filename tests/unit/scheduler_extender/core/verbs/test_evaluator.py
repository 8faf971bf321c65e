"""What a request gets on many nodes at once is what it gets on each of them alone."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from gpuloom.model.request import PodRequest
from gpuloom.placement.demand import Demand
from gpuloom.placement.devices import NodeView
from gpuloom.placement.fit import Refusal
from gpuloom.placement.potential import prices_for
from gpuloom.placement.score import Ranked, Scored, ScoreWeights, extender_scores, in_order
from services.scheduler_extender.core.verbs.evaluator import MAX_RECENT, Evaluator
from services.scheduler_extender.core.verbs.filtering import UNKNOWN_NODE, filter_nodes, score_nodes
from services.scheduler_extender.core.verbs.node_names import OfferedNames
from services.scheduler_extender.core.views.views import ViewOf
from tests.unit.placement.builders import a_card, a_node, a_share, whole
from tests.unit.placement.strategies import clusters, requests

SHORTLIST = 2


def seen(*nodes: NodeView) -> ViewOf:
    return {node.name: node for node in nodes}.get


@given(request=requests(), nodes=clusters(), learned=st.lists(requests(), max_size=5))
def test_filter_and_prioritize_say_of_every_node_what_is_said_of_it_alone(
    request: PodRequest, nodes: tuple[NodeView, ...], learned: list[PodRequest]
) -> None:
    evaluator, demand = Evaluator(ScoreWeights()), Demand()
    for node in nodes:
        evaluator.fleet.put(node)
    for pod in learned:
        demand = demand.with_pod(pod)
    evaluator.fleet.set_prices(prices_for(demand, evaluator.fleet.supply()))
    names = ("unknown", *(node.name for node in nodes))

    answer = filter_nodes(request, OfferedNames(names), seen(*nodes), evaluator, SHORTLIST)
    scores = score_nodes(request, names, seen(*nodes), evaluator, soft_wishes=False)

    alone = {node.name: evaluator.of(request)(node) for node in nodes}
    best = in_order(outcome for outcome in alone.values() if isinstance(outcome, Scored))
    refused = {name: outcome for name, outcome in alone.items() if isinstance(outcome, Refusal)}
    assert answer.node_names == tuple(scored.name for scored in best[:SHORTLIST])
    if len(best) < SHORTLIST:
        assert answer.failed == {name: entry.reason for name, entry in refused.items() if entry.resolvable}
        assert answer.hopeless == {"unknown": UNKNOWN_NODE} | {
            name: entry.reason for name, entry in refused.items() if not entry.resolvable
        }
    else:
        assert answer.failed == answer.hopeless == {}
    assert dict(scores) == dict.fromkeys(names, 0) | extender_scores(best)


def test_what_was_found_a_moment_ago_is_recalled_until_a_node_or_the_prices_change() -> None:
    evaluator, node = Evaluator(ScoreWeights()), a_node(a_card(), name="a")
    best = [Ranked("a", 50.0)]
    evaluator.remember(whole(1), best, seen(node))

    known = evaluator.recall(whole(1), ["a"], seen(node))
    changed = evaluator.recall(whole(1), ["a"], seen(replace(node)))
    another = evaluator.recall(whole(1), ["a", "b"], seen(node))
    otherwise = evaluator.recall(whole(2), ["a"], seen(node))
    evaluator.fleet.set_prices(prices_for(Demand(), evaluator.fleet.supply()))
    repriced = evaluator.recall(whole(1), ["a"], seen(node))

    assert known == best
    assert (changed, another, otherwise, repriced) == (None, None, None, None)


def test_only_the_requests_asked_last_are_remembered() -> None:
    evaluator, node = Evaluator(ScoreWeights()), a_node(a_card(), name="a")

    for milli in range(1, MAX_RECENT + 50):
        evaluator.remember(a_share(milli), [Ranked("a", 50.0)], seen(node))

    assert evaluator.recall(a_share(1), ["a"], seen(node)) is None
    assert evaluator.recall(a_share(MAX_RECENT + 49), ["a"], seen(node)) is not None
