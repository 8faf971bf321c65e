"""What one request gets on every node asked about: reasons, points, the best ones, kube-scheduler's integers.

Read-only. A refusal's text is made when somebody asks for it.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from gpuloom.model.request import PodRequest
from gpuloom.placement.points import Points
from gpuloom.placement.reasons import DETAILED, Reason, Refusal, refusal
from gpuloom.placement.score import Scored, extender_scores, falling_scores

DEFAULT_SHORTLIST = 8
# Where others have wishes too, a tenth of a GPU is no reason to overrule them.
NEAR_BEST_GPUS = 0.1

Numbers = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class NameOrder:
    """Where the name of each entry stands among all names; looked up for those that it matters for."""

    by_row: Numbers
    rows: Numbers

    def at(self, entries: Numbers) -> Numbers:
        return self.by_row.take(self.rows.take(entries))


@dataclass(frozen=True, slots=True, eq=False)
class Survey:
    """`names` and `codes` have one entry per node asked about; `details` is what nodes say of their refusal.

    `fitting` are the entries that fit, `points` theirs, and `name_order` ranks their names.
    """

    request: PodRequest
    names: Sequence[str]
    codes: NDArray[np.int8]
    details: dict[int, str]
    fitting: Numbers
    name_order: NameOrder
    points: Points
    wanted: NDArray[np.float64] | None = None
    """By a strategy: how much each fitting node is wanted. It goes before points."""

    def __len__(self) -> int:
        return len(self.names)

    @property
    def winner(self) -> Scored | None:
        best = self.shortlist(1)
        return best[0] if best else None

    def shortlist(self, count: int = DEFAULT_SHORTLIST) -> list[Scored]:
        """The best nodes, best first; equals by name."""
        if self.wanted is None:
            return self._scored(best_entries(self.points.total, self.name_order, count))
        everybody = np.arange(len(self.fitting))
        order = np.lexsort((self.name_order.at(everybody), -self.points.total, -self.wanted))
        return self._scored(order[:count])

    def ordered_by(self, wanted: NDArray[np.float64]) -> "Survey":
        """The same where a strategy comes first; one value for each fitting entry, higher is better."""
        return replace(self, wanted=wanted)

    def ranked(self) -> list[Scored]:
        """All nodes that fit, best first; equals by name."""
        return self.shortlist(len(self.fitting))

    def near_best(self, gpus: float = NEAR_BEST_GPUS) -> list[Scored]:
        """The nodes that cost at most so much more than the best; best first."""
        if not len(self.fitting):
            return []
        total = self.points.total
        if self.wanted is not None:
            # Points decide among the most wanted alone.
            total = total[self.wanted == self.wanted.max()]
        threshold = total.max() - gpus * self.points.per_gpu
        return self.shortlist(int((total >= threshold).sum()))

    def scores(self) -> dict[str, int]:
        """kube-scheduler's integers for the nodes that fit: exactly one has 10."""
        return extender_scores(self.ranked()) if self.wanted is None else falling_scores(self.ranked())

    def outcome(self, entry: int) -> Scored | Refusal:
        if self.codes[entry] == Reason.FITS.value:
            return self._scored(np.searchsorted(self.fitting, [entry]))[0]
        return refusal(Reason(self.codes[entry]), self.request, self.details.get(entry, ""))

    def refusals(self) -> Iterator[tuple[str, Refusal]]:
        """The nodes that do not fit, with the reason."""
        plain = {
            code: refusal(code, self.request)
            for code in map(Reason, np.unique(self.codes))
            if code is not Reason.FITS and code not in DETAILED
        }
        codes = self.codes.tolist()
        for entry in np.nonzero(self.codes != Reason.FITS.value)[0].tolist():
            found = plain.get(codes[entry])
            yield self.names[entry], found if found is not None else self._detailed(entry)

    def refusal_counts(self) -> dict[Refusal, int]:
        """How many nodes are refused for what, the most frequent first."""
        counts: Counter[Refusal] = Counter()
        for code, count in zip(*np.unique(self.codes, return_counts=True), strict=True):
            if code != Reason.FITS.value and Reason(code) not in DETAILED:
                counts[refusal(Reason(code), self.request)] += int(count)
        counts.update(self._detailed(entry) for entry in self.details)
        return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0].reason)))

    def _detailed(self, entry: int) -> Refusal:
        return refusal(Reason(self.codes[entry]), self.request, self.details[entry])

    def _scored(self, places: Numbers) -> list[Scored]:
        parts = (part.tolist() for part in self.points.parts(places))
        entries = self.fitting[places].tolist()
        return [Scored(self.names[entry], *scored) for entry, *scored in zip(entries, *parts, strict=True)]


def best_entries(total: NDArray[np.float64], name_order: NameOrder, count: int) -> Numbers:
    """Where the `count` largest totals are, largest first; of equals those whose names come first."""
    entries = leading_entries(total, count)
    ordered: Numbers = entries[np.lexsort((name_order.at(entries), -total[entries]))][:count]
    return ordered


def leading_entries(total: NDArray[np.float64], count: int) -> Numbers:
    """Where the `count` largest totals are, largest first, and those that are equal to the last of them."""
    falling = -total
    order = np.argsort(falling, kind="stable")
    if not 0 < count < len(total):
        return order[:count]
    ordered = falling.take(order)
    return order[: int(np.searchsorted(ordered, ordered[count - 1], side="right"))]
