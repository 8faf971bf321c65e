"""What filter and prioritize answer: pure functions of the pod and the views of the nodes.

Filter gives kube-scheduler only the best few nodes: it then has less to score itself, and the winner is the
same. A pod with soft wishes of its own (preferred affinity, spreading) gets all nodes, and every node that is
nearly as good as the best gets the top score, so that those wishes still decide.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gpuloom.kube.objects import JsonObject
from gpuloom.model.request import PodRequest
from gpuloom.placement.devices import NodeView
from gpuloom.placement.fit import Refusal
from gpuloom.placement.score import (
    MAX_EXTENDER_SCORE,
    Scored,
    best_of,
    extender_scores,
    in_order,
)
from services.scheduler_extender.outcomes import Evaluation, Outcome, Outcomes
from services.scheduler_extender.views import ViewOf
from services.scheduler_extender.wire import FilterAnswer

UNKNOWN_NODE = "node is not known to GPULoom yet"
NEARLY_AS_GOOD = 0.95

_UNKNOWN = Refusal(UNKNOWN_NODE, resolvable=False)


@dataclass(frozen=True, slots=True)
class Preferences:
    """How many nodes a filter answers at most, and how nodes are judged."""

    shortlist: int
    outcomes: Outcomes


def filter_nodes(
    request: PodRequest, names: Iterable[str], view_of: ViewOf, preferences: Preferences, soft_wishes: bool
) -> FilterAnswer:
    evaluation = preferences.outcomes.of(request)
    fitting: list[Scored] = []
    failed: dict[str, str] = {}
    hopeless: dict[str, str] = {}
    for name in names:
        outcome = _evaluate(evaluation, view_of(name))
        if isinstance(outcome, Scored):
            fitting.append(outcome)
        elif outcome.resolvable:
            failed[name] = outcome.reason
        else:
            hopeless[name] = outcome.reason
    best = in_order(fitting) if soft_wishes else best_of(fitting, preferences.shortlist)
    return FilterAnswer(tuple(scored.name for scored in best), failed, hopeless)


def refuse_all(names: Iterable[str], reason: str) -> FilterAnswer:
    """For a pod that no node may have, whatever is evicted."""
    return FilterAnswer((), {}, dict.fromkeys(names, reason))


def score_nodes(
    request: PodRequest, names: tuple[str, ...], view_of: ViewOf, preferences: Preferences, soft_wishes: bool
) -> list[tuple[str, int]]:
    """A score for every name asked, in the order asked; 0 for one that no longer fits."""
    evaluation = preferences.outcomes.of(request)
    outcomes = (_evaluate(evaluation, view_of(name)) for name in names)
    ranked = in_order(outcome for outcome in outcomes if isinstance(outcome, Scored))
    scores = extender_scores(ranked)
    if soft_wishes and ranked:
        near = ranked[0].total * NEARLY_AS_GOOD
        scores |= {scored.name: MAX_EXTENDER_SCORE for scored in ranked if scored.total >= near}
    return [(name, scores.get(name, 0)) for name in names]


def neutral_scores(names: Iterable[str]) -> list[tuple[str, int]]:
    return [(name, 0) for name in names]


def has_soft_wishes(pod: JsonObject) -> bool:
    """Whether the pod prefers some nodes by rules that only kube-scheduler evaluates."""
    spec = _object(pod.get("spec"))
    affinity = _object(spec.get("affinity"))
    preferred = any(
        _object(affinity.get(kind)).get("preferredDuringSchedulingIgnoredDuringExecution")
        for kind in ("nodeAffinity", "podAffinity", "podAntiAffinity")
    )
    spread = spec.get("topologySpreadConstraints")
    return preferred or any(
        _object(constraint).get("whenUnsatisfiable") == "ScheduleAnyway"
        for constraint in (spread if isinstance(spread, list) else ())
    )


def summary(refusals: Mapping[str, str]) -> str:
    """The reasons with their node counts, the most frequent first."""
    counts = Counter(refusals.values())
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return "; ".join(f"{count} {reason}" for reason, count in ordered)


def _evaluate(evaluation: Evaluation, view: NodeView | None) -> Outcome:
    return _UNKNOWN if view is None else evaluation(view)


def _object(value: object) -> JsonObject:
    return value if isinstance(value, dict) else {}
