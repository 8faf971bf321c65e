"""What filter and prioritize answer: pure functions of the pod and the views of the nodes.

Filter gives kube-scheduler only the best nodes. At a pod's first try that is one: it would win anyway, and
kube-scheduler need not score. A pod that comes back gets a few, because what kept it from that one may do so
again. A pod with soft wishes of its own (preferred affinity, spreading) gets all nodes, and every node that
costs next to nothing more than the best gets the top score, so that those wishes still decide.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from gpuloom.kube.objects import JsonObject
from gpuloom.model.request import PodRequest
from gpuloom.placement.fleet.survey import Survey
from gpuloom.placement.reasons import DETAILED, Reason, refusal
from gpuloom.placement.score import MAX_EXTENDER_SCORE, Ranked, extender_scores, in_order
from gpuloom.placement.strategies import Order
from services.scheduler_extender.core.verbs.evaluator import RUNNERS_UP, Evaluator
from services.scheduler_extender.core.verbs.node_names import OfferedNames
from services.scheduler_extender.core.verbs.wire import FilterAnswer
from services.scheduler_extender.core.views.views import ViewOf

UNKNOWN_NODE = "node is not known to GPULoom yet"

_SCHEDULED = "PodScheduled"
_GATED = "SchedulingGated"
"""The API server says this of a pod that nobody may try yet."""


@dataclass(frozen=True, slots=True)
class Preferences:
    """How many nodes a filter answers at most, to a pod that was tried before and at first; how it judges.

    `hint_of`: advice for a pod by its UID, in points by node name. `order_of`: what its strategy wants.
    """

    shortlist: int
    evaluator: Evaluator
    first_shortlist: int = 1
    hint_of: Callable[[str], Mapping[str, float]] = lambda _uid: {}
    order_of: Callable[[JsonObject], Order | None] = lambda _pod: None

    def evaluator_for(self, pod: JsonObject, uid: str) -> Evaluator:
        return self.evaluator.with_hint(self.hint_of(uid)).with_order(self.order_of(pod))

    def wanted(self, pod: JsonObject) -> int | None:
        """How many nodes are enough for this pod; None if it is to choose among all."""
        if has_soft_wishes(pod):
            return None
        return self.shortlist if was_tried(pod) else self.first_shortlist


def filter_nodes(
    request: PodRequest,
    offered: OfferedNames,
    view_of: ViewOf,
    evaluator: Evaluator,
    wanted: int | None,
) -> FilterAnswer:
    """The best nodes, as many as are wanted; None: all that fit.

    If there are enough, nobody asks why others are not among them, so no reasons are given.
    """
    if wanted is not None:
        best = evaluator.best(request, wanted, offered, view_of)
        if best is not None:
            return _shortlisted(request, best, wanted, view_of, evaluator)
    findings = evaluator.on(request, offered.all(), view_of)
    survey = findings.survey
    if wanted is not None and len(survey.fitting) >= wanted:
        best = [scored.ranked for scored in survey.shortlist(wanted + RUNNERS_UP)]
        return _shortlisted(request, best, wanted, view_of, evaluator)
    failed, hopeless = _refused(survey)
    hopeless |= dict.fromkeys(findings.unknown, UNKNOWN_NODE)
    fitting = [scored.ranked for scored in survey.ranked()]
    if wanted is not None:
        evaluator.remember(request, fitting, view_of)
    names = tuple(scored.name for scored in fitting)
    return FilterAnswer(names, failed, hopeless, names[: 1 + RUNNERS_UP])


def refuse_all(names: Iterable[str], reason: str) -> FilterAnswer:
    """For a pod that no node may have, whatever is evicted."""
    return FilterAnswer((), {}, dict.fromkeys(names, reason))


def score_nodes(
    request: PodRequest, names: Sequence[str], view_of: ViewOf, evaluator: Evaluator, soft_wishes: bool
) -> list[tuple[str, int]]:
    """A score for every name asked, in the order asked; 0 for one that no longer fits."""
    known = None if soft_wishes else evaluator.recall(request, names, view_of)
    if known is not None:
        scores = extender_scores(in_order(known))
    else:
        survey = evaluator.on(request, names, view_of).survey
        scores = survey.scores()
        if soft_wishes:
            scores |= {scored.name: MAX_EXTENDER_SCORE for scored in survey.near_best()}
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


def was_tried(pod: JsonObject) -> bool:
    """Whether kube-scheduler has tried to place this pod before, in vain; it says so in the pod's status."""
    conditions = _object(pod.get("status")).get("conditions")
    return any(
        _object(condition).get("type") == _SCHEDULED
        and _object(condition).get("status") == "False"
        and _object(condition).get("reason") != _GATED
        for condition in (conditions if isinstance(conditions, list) else ())
    )


def summary(refusals: Mapping[str, str]) -> str:
    """The reasons with their node counts, the most frequent first."""
    counts = Counter(refusals.values())
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return "; ".join(f"{count} {reason}" for reason, count in ordered)


def _shortlisted(
    request: PodRequest, best: Sequence[Ranked], wanted: int, view_of: ViewOf, evaluator: Evaluator
) -> FilterAnswer:
    # A single node is not asked about again.
    if wanted > 1:
        evaluator.remember(request, best[:wanted], view_of)
    names = tuple(scored.name for scored in best)
    return FilterAnswer(names[:wanted], {}, {}, names[: 1 + RUNNERS_UP])


def _refused(survey: Survey) -> tuple[dict[str, str], dict[str, str]]:
    """What eviction may cure and what it may not. Nodes go by their reason: thousands have the same few."""
    by_resolvable: tuple[dict[str, str], dict[str, str]] = {}, {}
    names = survey.names
    if len(survey.fitting) == len(names):
        return by_resolvable
    for code in map(Reason, np.nonzero(np.bincount(survey.codes))[0].tolist()):
        if code is not Reason.FITS and code not in DETAILED:
            found = refusal(code, survey.request)
            entries = np.nonzero(survey.codes == code.value)[0].tolist()
            refused = dict.fromkeys([names[entry] for entry in entries], found.reason)
            by_resolvable[not found.resolvable].update(refused)
    for entry, detail in survey.details.items():
        found = refusal(Reason(survey.codes[entry]), survey.request, detail)
        by_resolvable[not found.resolvable][names[entry]] = found.reason
    return by_resolvable


def _object(value: object) -> JsonObject:
    return value if isinstance(value, dict) else {}
