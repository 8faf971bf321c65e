"""How the node that a pod got compares with the best others: kept from its filter to its bind, for `explain`.

Pure, and decides nothing: whatever is missing here only makes an explanation shorter.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from gpuloom.model.ledger import NodeScore
from gpuloom.model.request import PodRequest
from gpuloom.placement.devices import NodeView
from gpuloom.placement.fit import Refusal
from gpuloom.placement.points import MAX_ADVICE
from gpuloom.placement.score import Scored
from services.scheduler_extender.core.verbs.evaluator import RUNNERS_UP, Evaluation

Entry = TypeVar("Entry")

MAX_PODS = 512
"""Pods between their filter and the end of their bind; the oldest make room."""


class Comparison:
    """`evaluation_of` scores a request on any node as of now, `view_of` is a node as everybody sees it."""

    def __init__(
        self,
        evaluation_of: Callable[[PodRequest], Evaluation] | None = None,
        view_of: Callable[[str], NodeView | None] = lambda name: None,
        hint_of: Callable[[str], Mapping[str, float]] = lambda uid: {},
    ) -> None:
        self._evaluation_of = evaluation_of
        self._view_of = view_of
        self._hint_of = hint_of
        self._best: OrderedDict[str, tuple[str, ...]] = OrderedDict()
        self._scores: OrderedDict[str, tuple[NodeScore, ...]] = OrderedDict()

    def note_best(self, pod_uid: str, names: Sequence[str]) -> None:
        """The best nodes of a filter, best first."""
        _keep(self._best, pod_uid, tuple(names))

    def compare(self, pod_uid: str, request: PodRequest, chosen: NodeView) -> None:
        """Score the node that is about to be given, and those that its pod could have had instead."""
        if self._evaluation_of is None:
            return
        evaluation = self._evaluation_of(request)
        others = [name for name in self._best.pop(pod_uid, ()) if name != chosen.name][:RUNNERS_UP]
        views = [chosen, *(view for view in map(self._view_of, others) if view is not None)]
        found = map(evaluation, views)
        hint = self._hint_of(pod_uid)
        scores = tuple(
            _node_score(scored, hint.get(scored.name, 0.0))
            for scored in found
            if not isinstance(scored, Refusal)
        )
        _keep(self._scores, pod_uid, scores)

    def take(self, pod_uid: str, node_name: str) -> tuple[NodeScore, ...]:
        """What was compared when this node was chosen; nothing if another was chosen since."""
        scores = self._scores.pop(pod_uid, ())
        return scores if scores and scores[0].node_name == node_name else ()


def _node_score(scored: Scored, hint: float) -> NodeScore:
    hint = max(-MAX_ADVICE, min(MAX_ADVICE, hint))
    total = max(0.0, scored.total + hint)
    return NodeScore(scored.name, total, scored.topology, scored.resource, scored.balance, hint)


def _keep(kept: OrderedDict[str, Entry], pod_uid: str, entry: Entry) -> None:
    kept[pod_uid] = entry
    kept.move_to_end(pod_uid)
    if len(kept) > MAX_PODS:
        kept.popitem(last=False)
