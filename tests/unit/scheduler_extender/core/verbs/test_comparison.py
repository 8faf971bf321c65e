"""Why a bound pod went where it is: the scores of its node and of the runners-up, kept with the decision."""

from collections.abc import Mapping
from typing import Any

import orjson

from gpuloom.kube.cache import Change
from gpuloom.placement.score import ScoreWeights
from services.scheduler_extender.core.ledger.ledger import Ledger
from services.scheduler_extender.core.verbs.comparison import MAX_PODS, Comparison
from services.scheduler_extender.core.verbs.evaluator import Evaluator
from services.scheduler_extender.core.verbs.filtering import Preferences
from services.scheduler_extender.inquiries.decisions import DecisionLog
from services.scheduler_extender.state.cluster import ClusterState
from services.scheduler_extender.verbs.binding import BindContext, Bindings
from services.scheduler_extender.verbs.verbs import Verbs
from tests.unit.scheduler_extender.builders import (
    HandClock,
    a_gpu,
    a_node,
    a_pod,
    a_ref,
    gpuloom_share,
    some_facts,
)
from tests.unit.scheduler_extender.kubernetes import ScriptedApi

POD = a_ref("pod")
NAMES = ("n1", "n2", "n3", "n4")


class Desk:
    """Four nodes of 1 to 4 cards: the fewer a node has, the better a share fits."""

    def __init__(self, hint: Mapping[str, float] | None = None) -> None:
        clock = HandClock()
        self.state = ClusterState(Ledger(90.0), lambda: False, clock)
        self.decisions = DecisionLog(clock)
        evaluator = Evaluator(ScoreWeights())
        self.state.views.keep(evaluator.fleet)
        comparison = Comparison(evaluator.of, evaluator.fleet.view, lambda _uid: hint or {})
        context = BindContext(
            self.state.ledger, self.state.views, self.decisions, clock, comparison=comparison
        )
        self.pod = a_pod(POD, gpuloom_share(500))
        api = ScriptedApi(self.pod)
        preferences = Preferences(8, evaluator, hint_of=lambda _uid: hint or {})
        self._verbs = Verbs(context, Bindings(context, api, api, timeout_s=4.0), preferences)
        for cards, name in enumerate(NAMES, start=1):
            gpus = [a_gpu(f"GPU-{name}-{index}", index) for index in range(cards)]
            self.state.observe_node(Change(None, a_node(name)))
            self.state.observe_facts(f"uid-{name}", some_facts(name, *gpus))

    async def answer(self, verb: str, **fields: Any) -> Any:
        return orjson.loads(await self._verbs.answer(verb, orjson.dumps(fields)))

    async def bind(self, node: str) -> None:
        call = {"PodName": POD.name, "PodNamespace": POD.namespace, "PodUID": POD.uid, "Node": node}
        assert (await self.answer("bind", **call))["Error"] == ""


async def test_a_bind_is_kept_with_the_scores_of_its_node_and_of_two_runners_up_that_were_offered() -> None:
    desk = Desk()

    filtered = await desk.answer("filter", Pod=desk.pod, NodeNames=["n1", "n3", "n4"])
    await desk.bind("n1")

    (decision,) = desk.decisions.about(POD.uid)
    assert filtered["NodeNames"] == ["n1"]
    assert [score.node_name for score in decision.scores] == ["n1", "n3", "n4"]
    totals = [score.total for score in decision.scores]
    assert totals == sorted(totals, reverse=True)
    assert totals[0] > totals[1]


async def test_a_node_that_is_not_the_best_is_still_shown_first_if_it_was_chosen() -> None:
    desk = Desk()

    await desk.answer("filter", Pod=desk.pod, NodeNames=list(NAMES))
    await desk.bind("n2")

    (decision,) = desk.decisions.about(POD.uid)
    assert [score.node_name for score in decision.scores] == ["n2", "n1", "n3"]


async def test_a_hint_moves_the_choice_between_nodes_that_fit_and_is_shown() -> None:
    desk = Desk({"n4": 10.0, "n1": -3.0, "nowhere": 10.0})

    filtered = await desk.answer("filter", Pod=desk.pod, NodeNames=list(NAMES))
    await desk.bind("n4")

    (decision,) = desk.decisions.about(POD.uid)
    assert filtered["NodeNames"] == ["n4"]
    assert (decision.scores[0].node_name, decision.scores[0].hint) == ("n4", 10.0)
    assert decision.scores[0].total > decision.scores[1].total


async def test_without_a_filter_the_node_is_shown_alone() -> None:
    desk = Desk()

    await desk.bind("n4")

    (decision,) = desk.decisions.about(POD.uid)
    assert [score.node_name for score in decision.scores] == ["n4"]


async def test_pods_that_are_never_bound_are_forgotten() -> None:
    comparison = Comparison()

    for number in range(MAX_PODS + 10):
        comparison.note_best(f"uid-{number}", ("n1",))

    assert len(comparison._best) == MAX_PODS
