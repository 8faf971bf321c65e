"""Where replicas of a pod would go: placed one after the other on a copy of the nodes' views. Pure.

Each replica sees what the ones before it have taken. All ask for the same, and how good a node is depends on
that node alone, so only the node that was just used is judged anew. What capacity is worth to others is taken
as it is now.
"""

from collections.abc import Sequence
from heapq import heapify, heappop, heappush

from gpuloom.model.explanation import Forecast, Offer
from gpuloom.model.request import PodRequest
from gpuloom.placement.devices import NodeView
from gpuloom.placement.occupancy.taken import with_taken
from gpuloom.placement.score import Scored
from services.scheduler_extender.core.inquiries.evaluation import Judge
from services.scheduler_extender.core.inquiries.explain import Steps, judged
from services.scheduler_extender.core.inquiries.wording import described

MAX_REPLICAS = 1000

_Entry = tuple[float, str, Scored]


def forecast(request: PodRequest, views: Sequence[NodeView], replicas: int, judge: Judge) -> Steps[Forecast]:
    scratch = {view.name: view for view in views}
    waiting: list[_Entry] = []
    evaluation = judge.of(request)
    for view in views:
        outcome = evaluation(view)
        if isinstance(outcome, Scored):
            waiting.append(_entry(outcome))
        yield
    heapify(waiting)
    placed: list[Offer] = []
    while waiting and len(placed) < replicas:
        _, name, scored = heappop(waiting)
        offer = judge.offer(request, scratch[name], scored)
        if offer is None:
            continue
        placed.append(offer)
        scratch[name] = with_taken(scratch[name], request, offer.devices)
        outcome = evaluation(scratch[name])
        if isinstance(outcome, Scored):
            heappush(waiting, _entry(outcome))
        yield
    judgement = None
    if len(placed) < replicas:
        judgement = yield from judged(request, tuple(scratch.values()), judge)
    return Forecast(replicas, described(request), "", tuple(placed), judgement)


def _entry(scored: Scored) -> _Entry:
    """Smallest first is best first, equals by name, as `in_order` has it."""
    return -scored.total, scored.name, scored
