"""What a request got on a node, remembered while the node stays as it is.

A burst of equal pods asks the same question about a thousand nodes again and again, and each bind changes one
of them. A view is a value that is replaced when its node changes, so the same view object means the same
answer. Only the answers are kept alive, not the views.
"""

from collections import OrderedDict
from collections.abc import Callable
from weakref import ReferenceType, ref

from gpuloom.model.request import PodRequest
from gpuloom.placement.devices import NodeView
from gpuloom.placement.fit import Refusal
from gpuloom.placement.score import Scored, ScoreWeights, evaluate

MAX_REQUESTS = 32

Outcome = Scored | Refusal
Evaluation = Callable[[NodeView], Outcome]


class Outcomes:
    """Keeps the outcomes of the requests asked last; one per node and request, so its size is bounded."""

    def __init__(self, weights: ScoreWeights) -> None:
        self._weights = weights
        self._by_request: OrderedDict[PodRequest, dict[str, tuple[ReferenceType[NodeView], Outcome]]] = (
            OrderedDict()
        )

    def of(self, request: PodRequest) -> Evaluation:
        """Fit and score of this request on any node."""
        remembered = self._by_request.setdefault(request, {})
        self._by_request.move_to_end(request)
        if len(self._by_request) > MAX_REQUESTS:
            self._by_request.popitem(last=False)

        def evaluation(view: NodeView) -> Outcome:
            entry = remembered.get(view.name)
            if entry is None or entry[0]() is not view:
                entry = remembered[view.name] = ref(view), evaluate(request, view, self._weights)
            return entry[1]

        return evaluation
