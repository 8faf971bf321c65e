"""What is known about the requests that were asked about last, for as long as it holds.

It holds until prices change, and until the numbers of likeness begin anew.
"""

from collections import OrderedDict
from dataclasses import dataclass

from gpuloom.model.request import PodRequest
from gpuloom.placement.answers import Answers
from gpuloom.placement.columns import Columns
from gpuloom.placement.potential import Prices
from gpuloom.placement.ranking import Ranking

MAX_REQUESTS = 32


@dataclass(frozen=True, slots=True, eq=False)
class Opinion:
    """Of one request: by kind of node, and the kinds in order."""

    answers: Answers
    ranking: Ranking


class Opinions:
    def __init__(self) -> None:
        self._by_request: OrderedDict[PodRequest, Opinion] = OrderedDict()
        self._prices: Prices | None = None
        self._epoch = -1

    def on(self, request: PodRequest, columns: Columns, prices: Prices) -> Opinion:
        likeness = columns.likeness
        if prices is not self._prices or likeness.epoch != self._epoch:
            self._prices, self._epoch = prices, likeness.epoch
            self._by_request.clear()
        known = self._by_request.get(request)
        if known is None:
            answers = Answers(request, columns, prices)
            known = self._by_request[request] = Opinion(answers, Ranking(answers, likeness))
            if len(self._by_request) > MAX_REQUESTS:
                self._by_request.popitem(last=False)
        self._by_request.move_to_end(request)
        return known
