"""All nodes of a cluster and one question to them: who fits, how well, who is best.

Gives exactly what `score.evaluate` gives node by node, for a thousand nodes in some hundred microseconds:
views are kept as arrays (`columns`), fit and points are array operations over them, and of nodes that are
alike one is evaluated for all (`class_results`). Owned by one thread; reads views
and changes nothing but itself.
"""

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from gpuloom.model.gpu import MILLI_PER_GPU
from gpuloom.model.request import Authority, PodRequest
from gpuloom.placement.devices import NodeView
from gpuloom.placement.fit import MODE_OF_AUTHORITY
from gpuloom.placement.fleet.columns import STANDS, Columns, Numbers
from gpuloom.placement.fleet.result_cache import ResultCache
from gpuloom.placement.fleet.survey import NameOrder, Survey
from gpuloom.placement.fleet.verdicts import Codes, judge_hosts, unusable_positions
from gpuloom.placement.points import DEFAULT_WEIGHTS, Market, Scale, ScoreWeights, points, with_advice
from gpuloom.placement.potential import Prices, Supply, neutral_prices, set_prices_micro
from gpuloom.placement.reasons import Reason
from gpuloom.placement.score import Ranked


@dataclass(frozen=True, slots=True)
class Question:
    """`check_host`: refuse for CPU and memory too; behind kube-scheduler that was done already.

    `hint` and `price` are advice by node name, in points, bounded; a node without any is judged as it is.
    """

    request: PodRequest
    check_host: bool = False
    hint: Mapping[str, float] = field(default_factory=dict)
    price: Mapping[str, float] = field(default_factory=dict)


class Fleet:
    def __init__(self, weights: ScoreWeights = DEFAULT_WEIGHTS) -> None:
        self._weights = weights
        # Only if both parts of the potential weigh the same, its rise alone puts kinds in order.
        self._keeps_order = (
            weights.resource * DEFAULT_WEIGHTS.balance == weights.balance * DEFAULT_WEIGHTS.resource
        )
        self._columns = Columns()
        self._results = ResultCache()
        self._known: _Everybody | None = None
        self._shown: Sequence[NodeView] | None = ()
        """What `show` was last told; None if a node of it has changed since."""
        self._shown_names: Container[str] = ()
        self._beneath: dict[str, NodeView] = {}
        """What was put for the nodes that are shown otherwise."""
        self.prices = neutral_prices()

    def __len__(self) -> int:
        return self._columns.count

    def put(self, view: NodeView) -> None:
        """A node appeared or changed. The same view again costs nothing."""
        self._uncover(view.name)
        known = self._columns.row(view.name)
        if known is None:
            self._known = None
        elif self._columns.views[known] is view:
            return
        self._columns.put(view)

    def show(self, views: Sequence[NodeView]) -> None:
        """Judge these nodes by these views from now on, and all others by what was put.

        What differs from the last time is written and nothing else; the same sequence again costs nothing.
        """
        if views is self._shown:
            return
        wanted = {view.name: view for view in views}
        for name in [name for name in self._beneath if name not in wanted]:
            self._columns.put(self._beneath.pop(name))
        for name, view in wanted.items():
            row = self._columns.row(name)
            present = None if row is None else self._columns.views[row]
            if present is not None and present is not view:
                self._beneath.setdefault(name, present)
                self._columns.put(view)
        self._shown, self._shown_names = views, wanted.keys()

    def remove(self, name: str) -> None:
        self._uncover(name)
        self._columns.remove(name)
        self._known = None

    def view(self, name: str) -> NodeView | None:
        """What was put of this node, however it is shown."""
        if name in self._beneath:
            return self._beneath[name]
        row = self._columns.row(name)
        return None if row is None else self._columns.views[row]

    def supply(self) -> Supply:
        """What there is in all, for `prices_for`."""
        self.show(())
        return self._columns.supply()

    def set_prices(self, prices: Prices) -> None:
        self.prices = prices

    def market(self, authority: Authority) -> Market:
        """What `score.evaluate` needs to say the same of a single node."""
        if not self.prices.sets[authority]:
            return Market(self.prices)
        whole = self._columns.whole_cards(_open_stands(authority))
        able = {count: sum(whole[count:]) for count, _ in self.prices.sets[authority]}
        return Market(self.prices, set_prices_micro(self.prices, authority, able))

    def evaluate(self, question: Question, names: Sequence[str] | None = None) -> Survey:
        """Fit and points on these nodes, or on all. Raise KeyError for a name that was never put."""
        request = question.request
        rows = self._everybody().rows if names is None else self._columns.rows(names)
        names = self._everybody().names if names is None else names
        results = self._results.on(request, self._columns, self.prices).results
        alike = self._columns.classes.at(rows)
        codes = results.codes(alike, rows)
        if question.check_host:
            judge_hosts(request, self._columns.cells(rows), codes)
        fitting = np.nonzero(codes == Reason.FITS.value)[0]
        market = self.market(request.gpu.authority)
        scored = points(request, market, results.rises(alike[fitting]), self._weights)
        fitting_names = (
            [names[entry] for entry in fitting.tolist()] if question.hint or question.price else []
        )
        return Survey(
            request=request,
            names=names,
            codes=codes,
            details=self._details(request, codes, rows) if len(fitting) < len(rows) else {},
            fitting=fitting,
            name_order=NameOrder(self._everybody().order, rows[fitting]),
            points=with_advice(scored, fitting_names, (question.hint, question.price)),
        )

    def free_gpus(self, names: Sequence[str]) -> NDArray[np.float64]:
        """Of these nodes, as they are shown; a card that is partly in use counts for what is left of it."""
        free = self._columns.cells(self._columns.rows(names)).of_node("gpu_milli")
        return free.astype(np.float64) / MILLI_PER_GPU

    def best(self, question: Question, count: int, among: Container[str], tries: int) -> list[Ranked]:
        """The best nodes among these, best first; equals by name. As `evaluate` finds them, but much faster.

        Goes down from the best node of all and gives up after so many: then they are fewer than `count`.
        """
        if question.check_host or question.hint or question.price or not self._keeps_order:
            tried = self.evaluate(question).shortlist(tries)
            return [one.ranked for one in tried if one.name in among][:count]
        likely = islice(self._ranked(question.request), tries)
        return list(islice((one for one in likely if one.name in among), count))

    def _uncover(self, name: str) -> None:
        """This node is about to be what is put, however it is shown."""
        if name in self._shown_names:
            self._shown = None
            self._beneath.pop(name, None)

    def _ranked(self, request: PodRequest) -> Iterator[Ranked]:
        """All nodes that fit, best first; equals by name."""
        ranking = self._results.on(request, self._columns, self.prices).ranking
        scale = Scale(request, self.market(request.gpu.authority), self._weights)
        for total, kinds in ranking.kinds(scale):
            for name in self._columns.classes.names(kinds):
                yield Ranked(name, total)

    def _details(self, request: PodRequest, codes: Codes, rows: Numbers) -> dict[int, str]:
        views = self._columns.views
        details = {}
        for entry in np.nonzero(codes == Reason.CLOSED.value)[0].tolist():
            view = views[rows[entry]]
            details[entry] = view.closed_reason if view is not None else ""
        unusable = np.nonzero(codes == Reason.UNUSABLE.value)[0]
        if len(unusable):
            positions = unusable_positions(request.gpu, self._columns, rows[unusable])
            for entry, position in zip(unusable.tolist(), positions, strict=True):
                view = views[rows[entry]]
                details[entry] = view.gpus[position].unusable_reason if view is not None else ""
        return details

    def _everybody(self) -> "_Everybody":
        if self._known is None:
            names = sorted(self._columns.names())
            rows = self._columns.rows(names)
            order = np.zeros(self._columns.size, dtype=np.int64)
            order[rows] = np.arange(len(names))
            self._known = _Everybody(names, rows, order)
        return self._known


@cache
def _open_stands(authority: Authority) -> list[int]:
    """Of nodes that give out GPUs on this authority."""
    mode = MODE_OF_AUTHORITY[authority]
    return [number for number, stand in enumerate(STANDS) if stand.mode is mode and not stand.closed]


@dataclass(frozen=True, slots=True, eq=False)
class _Everybody:
    """All nodes by name, their rows in that order, and by row the place of its name."""

    names: list[str]
    rows: Numbers
    order: Numbers
