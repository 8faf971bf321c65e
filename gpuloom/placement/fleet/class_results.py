"""What a request gets on each equivalence class of nodes: one node is evaluated for all of its class.

A result depends on the request, on prices and on everything that classes are made of, and on nothing else.
What many nodes together decide (which sets of cards have become rare) is not in it: that is `points`.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gpuloom.model.request import PodRequest
from gpuloom.placement.devices import NodeView
from gpuloom.placement.fit import Fit, fit_or_reason
from gpuloom.placement.fleet.columns import Columns, Numbers
from gpuloom.placement.fleet.effects import Placement
from gpuloom.placement.fleet.verdicts import Codes, judge
from gpuloom.placement.points import Rise, Rises, rises
from gpuloom.placement.potential import Prices
from gpuloom.placement.reasons import Reason
from gpuloom.placement.score import rise

_UNKNOWN = -1
# For so few examples plain numbers are faster than arrays.
_ONE_BY_ONE = 4
_FIRST_NUMBERS = 64


class ClassResults:
    """Of one request at these prices. All arrays are by the number of the class."""

    def __init__(self, request: PodRequest, columns: Columns, prices: Prices) -> None:
        self._request = request
        self._columns = columns
        self._prices = prices
        self._codes: Codes = np.full(_FIRST_NUMBERS, _UNKNOWN, dtype=np.int8)
        self._micro = np.zeros((2, _FIRST_NUMBERS), dtype=np.int64)
        self._topology = np.zeros(_FIRST_NUMBERS)
        self._whole: NDArray[np.int8] = np.zeros((2, _FIRST_NUMBERS), dtype=np.int8)

    def codes(self, alike: Numbers, rows: Numbers) -> Codes:
        """Who fits, or why not, for these rows; `alike` are their numbers."""
        self._make_room(len(self._columns.classes))
        codes = self._codes.take(alike)
        unknown = np.nonzero(codes == _UNKNOWN)[0]
        if len(unknown):
            numbers, examples = np.unique(alike[unknown], return_index=True)
            self._work_out(numbers, rows[unknown[examples]])
            codes = self._codes.take(alike)
        return codes

    def rises(self, alike: Numbers) -> Rises:
        """For nodes that fit."""
        resource, balance = self._micro.take(alike, axis=1)
        whole_before, whole_after = self._whole.take(alike, axis=1)
        return Rises(resource, balance, self._topology.take(alike), whole_before, whole_after)

    def of(self, numbers: Sequence[int]) -> list[Rise | None]:
        """By how much the request raises the potential of these kinds; None for one that it does not fit.

        Each must be some node's now.
        """
        rows = self._columns.rows([self._columns.classes.first_name(number) for number in numbers])
        if len(numbers) <= _ONE_BY_ONE:
            return [self._of_one(self._columns.views[row]) for row in rows.tolist()]
        alike = np.array(numbers)
        codes, found = self.codes(alike, rows), self.rises(alike)
        parts = (found.resource, found.balance, found.topology, found.whole_before, found.whole_after)
        return [
            Rise(*entry) if code == Reason.FITS.value else None
            for code, *entry in zip(codes.tolist(), *(part.tolist() for part in parts), strict=True)
        ]

    def _of_one(self, view: NodeView | None) -> Rise | None:
        outcome = None if view is None else fit_or_reason(self._request, view)
        if view is None or not isinstance(outcome, Fit):
            return None
        return rise(self._request, view, outcome, self._prices)

    def _work_out(self, numbers: Numbers, rows: Numbers) -> None:
        """`rows` has one example for each number."""
        verdicts = judge(self._request, self._columns, self._columns.cells(rows))
        self._codes[numbers] = verdicts.codes
        fitting = np.nonzero(verdicts.codes == Reason.FITS.value)[0]
        placement = Placement(self._request, self._columns, self._prices)
        found = rises(self._request, self._prices, placement.effects(rows[fitting], verdicts.at(fitting)))
        fitting_numbers = numbers[fitting]
        self._micro[:, fitting_numbers] = found.resource, found.balance
        self._topology[fitting_numbers] = found.topology
        self._whole[:, fitting_numbers] = found.whole_before, found.whole_after

    def _make_room(self, count: int) -> None:
        have = len(self._codes)
        if count <= have:
            return
        more = max(count, 2 * have) - have
        self._codes = np.concatenate((self._codes, np.full(more, _UNKNOWN, dtype=np.int8)))
        self._micro = np.pad(self._micro, ((0, 0), (0, more)))
        self._topology = np.pad(self._topology, (0, more))
        self._whole = np.pad(self._whole, ((0, 0), (0, more)))
