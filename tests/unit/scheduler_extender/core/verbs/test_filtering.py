"""What filter and prioritize answer."""

from gpuloom.placement.devices import NodeView
from gpuloom.placement.score import ScoreWeights
from services.scheduler_extender.core.verbs.evaluator import Evaluator
from services.scheduler_extender.core.verbs.filtering import (
    UNKNOWN_NODE,
    Preferences,
    filter_nodes,
    has_soft_wishes,
    neutral_scores,
    refuse_all,
    score_nodes,
    summary,
    was_tried,
)
from services.scheduler_extender.core.verbs.node_names import OfferedNames
from services.scheduler_extender.core.views.views import ViewOf
from tests.unit.placement.builders import a_card, a_node, a_share, whole

OUTCOMES = Evaluator(ScoreWeights())


def seen(*nodes: NodeView) -> ViewOf:
    return {node.name: node for node in nodes}.get


def some_nodes(count: int) -> list[NodeView]:
    """Each next one is a little emptier, so a share fits it a little worse."""
    return [a_node(a_card(free_milli=500 + 50 * number), name=f"n{number}") for number in range(count)]


def test_a_filter_answers_the_best_few_nodes_in_order() -> None:
    nodes = some_nodes(5)

    answer = filter_nodes(
        a_share(500), OfferedNames([node.name for node in nodes]), seen(*nodes), OUTCOMES, 2
    )

    assert answer.node_names == ("n0", "n1")
    assert answer.failed == answer.hopeless == {}


def test_a_pod_with_soft_wishes_gets_every_node_that_fits() -> None:
    nodes = some_nodes(5)

    answer = filter_nodes(
        a_share(500), OfferedNames([node.name for node in nodes]), seen(*nodes), OUTCOMES, None
    )

    assert set(answer.node_names) == {node.name for node in nodes}


def a_condition(status: str, reason: str = "", kind: str = "PodScheduled") -> dict[str, str]:
    return {"type": kind, "status": status, "reason": reason}


def test_a_first_try_gets_the_best_node_and_one_that_comes_back_a_few() -> None:
    preferences = Preferences(shortlist=8, evaluator=OUTCOMES)
    wishes = {"spec": {"topologySpreadConstraints": [{"whenUnsatisfiable": "ScheduleAnyway"}]}}
    refused = {"status": {"conditions": [a_condition("False", "Unschedulable")]}}

    assert preferences.wanted({}) == 1
    assert preferences.wanted(refused) == 8
    assert preferences.wanted(wishes) is preferences.wanted(wishes | refused) is None
    assert Preferences(8, OUTCOMES, first_shortlist=4).wanted({}) == 4


def test_a_pod_was_tried_if_kube_scheduler_says_that_it_failed() -> None:
    tried = [a_condition("False", "Unschedulable"), a_condition("False", "SchedulerError")]
    untried = [
        a_condition("True"),
        a_condition("False", "SchedulingGated"),
        a_condition("False", "ContainersNotReady", kind="Ready"),
    ]

    assert all(was_tried({"status": {"conditions": [condition]}}) for condition in tried)
    assert not any(was_tried({"status": {"conditions": [condition]}}) for condition in untried)
    assert was_tried({"status": {"conditions": [*untried, *tried]}})


def test_whatever_stands_in_a_status_a_pod_without_a_failed_try_was_not_tried() -> None:
    broken: list[object] = [None, "False", 7, {}, [None, "PodScheduled", []], [{"type": ["PodScheduled"]}]]

    for conditions in broken:
        assert not was_tried({"status": {"conditions": conditions}})
    assert not was_tried({"status": "PodScheduled"})


def test_every_refused_node_has_a_reason_and_eviction_is_offered_only_where_it_helps() -> None:
    full, closed = a_node(a_card(free_milli=0), name="full"), a_node(name="closed", closed_reason="stale")

    answer = filter_nodes(
        whole(1), OfferedNames(["full", "closed", "unknown"]), seen(full, closed), OUTCOMES, 2
    )

    assert answer.node_names == ()
    assert answer.failed == {"full": "not enough free GPUs: 1 asked"}
    assert answer.hopeless == {"closed": "node closed: stale", "unknown": UNKNOWN_NODE}


def test_the_best_node_alone_has_ten() -> None:
    nodes = some_nodes(4)
    names = tuple(node.name for node in reversed(nodes))

    scores = score_nodes(a_share(500), names, seen(*nodes), OUTCOMES, False)

    assert [name for name, _ in scores] == list(names)
    assert [name for name, score in scores if score == 10] == ["n0"]
    assert all(type(score) is int and 0 <= score <= 10 for _, score in scores)


def test_equal_nodes_have_one_winner_by_name() -> None:
    nodes = [a_node(a_card(), name=name) for name in ("b", "a", "c")]

    scores = score_nodes(whole(1), ("b", "a", "c"), seen(*nodes), OUTCOMES, False)

    assert [name for name, score in scores if score == 10] == ["a"]


def test_nodes_nearly_as_good_share_the_top_score_when_the_pod_has_wishes_of_its_own() -> None:
    nodes = [a_node(a_card(), name="a"), a_node(a_card(), name="b")]

    scores = score_nodes(whole(1), ("a", "b"), seen(*nodes), OUTCOMES, True)

    assert scores == [("a", 10), ("b", 10)]


def test_a_node_that_no_longer_fits_or_is_not_known_scores_nothing() -> None:
    nodes = [a_node(a_card(), name="good"), a_node(a_card(free_milli=0), name="full")]

    scores = score_nodes(whole(1), ("full", "good", "unknown"), seen(*nodes), OUTCOMES, True)

    assert scores == [("full", 0), ("good", 10), ("unknown", 0)]


def test_refusing_all_offers_no_eviction() -> None:
    answer = refuse_all(["a", "b"], "no sense in it")

    assert answer.hopeless == {"a": "no sense in it", "b": "no sense in it"}
    assert answer.failed == {}
    assert neutral_scores(["a", "b"]) == [("a", 0), ("b", 0)]


def test_preferred_affinity_and_soft_spreading_are_soft_wishes() -> None:
    preferred = {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": "here"}}
    wishes = [
        {"affinity": {"nodeAffinity": preferred}},
        {"affinity": {"podAffinity": preferred}},
        {"affinity": {"podAntiAffinity": preferred}},
        {"topologySpreadConstraints": [{"whenUnsatisfiable": "ScheduleAnyway"}]},
    ]
    none = [
        {},
        {"affinity": {"nodeAffinity": required}},
        {"affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}}},
        {"topologySpreadConstraints": [{"whenUnsatisfiable": "DoNotSchedule"}]},
        {"affinity": "nonsense", "topologySpreadConstraints": {"not": "a list"}},
    ]

    assert [has_soft_wishes({"spec": spec}) for spec in wishes] == [True] * len(wishes)
    assert [has_soft_wishes({"spec": spec}) for spec in none] == [False] * len(none)


def test_a_summary_counts_reasons_with_the_most_frequent_first() -> None:
    refusals = {"a": "full", "b": "closed", "c": "full", "d": "also closed"}

    assert summary(refusals) == "2 full; 1 also closed; 1 closed"
