"""What a request gets on nodes: on one alone, or on many at once by the fleet that is kept beside the views.

Both say the same of a node. Prices belong to the fleet, so everything here is judged by the same.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass

import numpy as np

from gpuloom.model.request import PodRequest
from gpuloom.placement.devices import NodeView
from gpuloom.placement.fit import Refusal
from gpuloom.placement.fleet.fleet import Fleet, Question
from gpuloom.placement.fleet.survey import Survey
from gpuloom.placement.potential import Prices
from gpuloom.placement.score import Ranked, Scored, ScoreWeights, evaluate
from gpuloom.placement.strategies import Fitting, Order
from services.scheduler_extender.core.verbs.node_names import OfferedNames
from services.scheduler_extender.core.views.views import Viewer, ViewOf

MAX_RECENT = 32
RUNNERS_UP = 2
"""How many nodes beyond those that a filter answers are kept for `explain`."""

# A look at the best nodes alone pays if at least one of so many nodes is offered.
_OFFERED_OF_ALL = 2
# How far down from the best node is looked for those that are offered.
_LEAST_TRIES = 32
_TRIES_FOR_EACH = 4

Outcome = Scored | Refusal
Evaluation = Callable[[NodeView], Outcome]


@dataclass(frozen=True, slots=True)
class Findings:
    """What a request gets on the nodes asked about; `unknown` are those that nobody has shown yet."""

    survey: Survey
    unknown: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Recent:
    prices: Prices
    found: Mapping[str, tuple[NodeView | None, Ranked]]


class Evaluator:
    def __init__(self, weights: ScoreWeights) -> None:
        self.fleet = Fleet(weights)
        self._weights = weights
        self._recent: OrderedDict[PodRequest, _Recent] = OrderedDict()
        self.hint: Mapping[str, float] = {}
        """Advice for the one pod that this is about, in points by node name."""
        self.order: Order | None = None
        """The strategy of the one pod that this is about."""

    def with_hint(self, hint: Mapping[str, float]) -> "Evaluator":
        """The same, with this advice for one pod, in points by node name."""
        if not hint:
            return self
        advised = copy(self)
        advised.hint = hint
        return advised

    def with_order(self, order: Order | None) -> "Evaluator":
        """The same for one pod, which wants nodes in this order before their scores break ties."""
        if order is None:
            return self
        ordered = copy(self)
        ordered.order = order
        return ordered

    def of(self, request: PodRequest) -> Evaluation:
        """Fit and score of this request on any node."""
        self.fleet.show(())
        market = self.fleet.market(request.gpu.authority)
        return lambda view: evaluate(request, view, self._weights, market)

    def on(self, request: PodRequest, names: Sequence[str], view_of: ViewOf) -> Findings:
        """Fit and score of this request on these nodes.

        A viewer that comes with our fleet is asked by it; of others the views are read one by one.
        """
        viewer = self._kept(view_of)
        fleet = self.fleet
        if viewer is None:
            fleet = self._fleet_of(names, view_of)
        else:
            fleet.show(viewer.own_views())
        found = _found(fleet, Question(request, hint=self.hint), names)
        return Findings(self._ordered(fleet, found.survey), found.unknown)

    def best(
        self, request: PodRequest, count: int, offered: OfferedNames, view_of: ViewOf
    ) -> list[Ranked] | None:
        """The best nodes that are offered, `count` and a few more; None if that can't be seen at a glance.

        How good a node is does not depend on who else is offered, and mostly nearly all are. So the best of
        all are likely to be among them, and that is much less to look for than all names.
        """
        viewer = self._kept(view_of)
        if viewer is None or len(self.fleet) > _OFFERED_OF_ALL * len(offered):
            return None
        self.fleet.show(viewer.own_views())
        tries = max(_LEAST_TRIES, _TRIES_FOR_EACH * count)
        question, most = Question(request, hint=self.hint), count + RUNNERS_UP
        if self.order is None:
            # Rankings that are kept are by our score alone.
            found = self.fleet.best(question, most, offered, tries)
        else:
            tried = self._ordered(self.fleet, self.fleet.evaluate(question)).shortlist(tries)
            found = [one.ranked for one in tried if one.name in offered][:most]
        return found if len(found) >= count else None

    def remember(self, request: PodRequest, best: Sequence[Ranked], view_of: ViewOf) -> None:
        """kube-scheduler asks again about the nodes it was given, a moment later."""
        if self.hint or self.order is not None:
            # What is right for this pod is not for others that ask for the same.
            return
        found = {scored.name: (view_of(scored.name), scored) for scored in best}
        self._recent[request] = _Recent(self.fleet.prices, found)
        self._recent.move_to_end(request)
        if len(self._recent) > MAX_RECENT:
            self._recent.popitem(last=False)

    def recall(self, request: PodRequest, names: Iterable[str], view_of: ViewOf) -> list[Ranked] | None:
        """What was remembered of these nodes; None if one of them was not or has changed since."""
        recent = None if self.hint or self.order is not None else self._recent.get(request)
        if recent is None or recent.prices is not self.fleet.prices:
            return None
        found = []
        for name in names:
            view, scored = recent.found.get(name, (None, None))
            # A view is a value that is replaced when its node changes.
            if scored is None or view is None or view_of(name) is not view:
                return None
            found.append(scored)
        return found

    def _kept(self, view_of: ViewOf) -> Viewer | None:
        """This one, if our fleet has what it shows."""
        return view_of if isinstance(view_of, Viewer) and view_of.fleet is self.fleet else None

    def _ordered(self, fleet: Fleet, survey: Survey) -> Survey:
        if self.order is None or not len(survey.fitting):
            return survey
        names = [survey.names[entry] for entry in survey.fitting.tolist()]
        points = survey.points
        resource = points.resource_left.astype(np.float64)
        return survey.ordered_by(
            self.order(Fitting(names, fleet.free_gpus(names), points.topology, resource))
        )

    def _fleet_of(self, names: Sequence[str], view_of: ViewOf) -> Fleet:
        fleet = Fleet(self._weights)
        for view in map(view_of, names):
            if view is not None:
                fleet.put(view)
        fleet.set_prices(self.fleet.prices)
        return fleet


def _found(fleet: Fleet, question: Question, names: Sequence[str]) -> Findings:
    # Every name is known nearly always, so that is tried first.
    try:
        return Findings(fleet.evaluate(question, names))
    except KeyError:
        known = [name for name in names if fleet.view(name) is not None]
        unknown = tuple(name for name in names if fleet.view(name) is None)
        return Findings(fleet.evaluate(question, known), unknown)
