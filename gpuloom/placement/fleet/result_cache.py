"""Results of the requests that were asked about last, for as long as they hold.

They hold until prices change, and until the numbers of classes begin anew.
"""

from collections import OrderedDict
from dataclasses import dataclass

from gpuloom.model.request import PodRequest
from gpuloom.placement.fleet.class_results import ClassResults
from gpuloom.placement.fleet.columns import Columns
from gpuloom.placement.fleet.ranking import Ranking
from gpuloom.placement.potential import Prices

MAX_REQUESTS = 32


@dataclass(frozen=True, slots=True, eq=False)
class RequestResults:
    """Of one request: by equivalence class of nodes, and the classes in order."""

    results: ClassResults
    ranking: Ranking


class ResultCache:
    def __init__(self) -> None:
        self._by_request: OrderedDict[PodRequest, RequestResults] = OrderedDict()
        self._prices: Prices | None = None
        self._epoch = -1

    def on(self, request: PodRequest, columns: Columns, prices: Prices) -> RequestResults:
        classes = columns.classes
        if prices is not self._prices or classes.epoch != self._epoch:
            self._prices, self._epoch = prices, classes.epoch
            self._by_request.clear()
        known = self._by_request.get(request)
        if known is None:
            results = ClassResults(request, columns, prices)
            known = self._by_request[request] = RequestResults(results, Ranking(results, classes))
            if len(self._by_request) > MAX_REQUESTS:
                self._by_request.popitem(last=False)
        self._by_request.move_to_end(request)
        return known
