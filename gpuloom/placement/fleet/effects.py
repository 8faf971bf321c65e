"""What placing one request does to the nodes that fit, as arrays: the input of `points`.

For each node this is what `score` works out for it alone. Never refuses and never scores.
"""

import numpy as np
from numpy.typing import NDArray

from gpuloom.model.gpu import MILLI_PER_GPU
from gpuloom.model.request import PodRequest, RequestKind, TopologyPreference
from gpuloom.placement.demand import nominal_milli
from gpuloom.placement.fleet.columns import Cells, Columns, Numbers
from gpuloom.placement.fleet.verdicts import Verdicts, share_memory_mib
from gpuloom.placement.points import Effects
from gpuloom.placement.potential import Micros, Prices
from gpuloom.placement.stock import MICRO_PER_GPU
from gpuloom.placement.topology import NEUTRAL_SCORE

# A card's rise, free milli and free MiB as one number, so that one comparison orders by all three.
_MILLI_BITS = 11
_MIB_BITS = 24

Floats = NDArray[np.float64]


class Placement:
    """What placing one request does to nodes that fit."""

    def __init__(self, request: PodRequest, columns: Columns, prices: Prices) -> None:
        self._gpu = request.gpu
        self._columns = columns
        self._prices = prices
        self._cards = prices.card_micro

    def effects(self, rows: Numbers, verdicts: Verdicts) -> Effects:
        """`verdicts` are those of `rows`."""
        gpu, cells = self._gpu, self._columns.cells(rows)
        whole = cells.of_node("whole")
        nodes = len(whole)
        if verdicts.free_on is not None:
            card_micro, taken_milli, whole_after = self._share(cells, verdicts.free_on)
        else:
            card_micro = np.full(nodes, self._fixed_rise())
            taken_milli = np.full(nodes, gpu.count * nominal_milli(gpu))
            whole_after = whole - (gpu.count if gpu.kind is RequestKind.WHOLE else 0)
        return Effects(
            room=cells.room(),
            pin_micro=self._pin(cells),
            topology=self._topology(cells, verdicts),
            card_micro=card_micro,
            taken_milli=taken_milli,
            whole_before=whole,
            whole_after=whole_after,
        )

    def _pin(self, cells: Cells) -> Micros:
        """What pods that take no other model will need of the node's most wanted one."""
        kinds = self._columns.kinds
        pins = np.zeros(kinds.capacity + 1, dtype=np.int64)
        for number, kind in kinds.items():
            pins[number] = self._prices.pins_micro.get(kind, 0)
        highest: Micros = (pins[cells.of_gpu("kind")] * cells.of_gpu("is_usable")).max(axis=1)
        return highest

    def _fixed_rise(self) -> int:
        """Whole cards and slices cost the same wherever they are."""
        gpu = self._gpu
        if gpu.kind is RequestKind.WHOLE:
            return gpu.count * int(self._cards[0] - self._cards[MILLI_PER_GPU])
        return gpu.count * nominal_milli(gpu) * (MICRO_PER_GPU // MILLI_PER_GPU)

    def _topology(self, cells: Cells, verdicts: Verdicts) -> Floats:
        gpu = self._gpu
        shapes = cells.of_node("shape")
        if verdicts.free_masks is None or gpu.topology is TopologyPreference.NONE or gpu.count < 2:
            return np.full(len(shapes), NEUTRAL_SCORE)
        chosen = self._columns.shapes.best(shapes, verdicts.free_masks, gpu, gpu.topology_required)
        return self._columns.shapes.scores(shapes, chosen, gpu.topology)

    def _share(self, cells: Cells, allowed: NDArray[np.bool_]) -> tuple[Micros, Numbers, Numbers]:
        """The card of each node where the share costs least; see `choose.chosen_card` for the order."""
        free_milli, free_mib = cells.of_gpu("free_milli"), cells.of_gpu("free_memory_mib")
        before = cells.of_gpu("share_milli")
        after = self._share_left(cells)
        rise = self._cards[after] - self._cards[before]
        order = (((rise << _MILLI_BITS) + free_milli) << _MIB_BITS) + free_mib
        cards = np.argmin(np.where(allowed, order, np.iinfo(np.int64).max), axis=1)
        nodes = np.arange(len(cards))
        untouched = (cells.masks("free") >> cards.astype(np.uint64)) & np.uint64(1)
        return (
            rise[nodes, cards],
            (before - after)[nodes, cards],
            cells.of_node("whole") - untouched.astype(np.int64),
        )

    def _share_left(self, cells: Cells) -> Numbers:
        """See `choose.share_left_milli`."""
        memory = cells.of_gpu("memory_mib")
        left_mib = cells.of_gpu("free_memory_mib") - share_memory_mib(self._gpu, cells)
        # Floating-point division is faster, and exact enough below 2^43: the quotient of such integers cannot
        # round up to the next whole number.
        by_memory = np.floor(MILLI_PER_GPU * left_mib / np.maximum(memory, 1)).astype(np.int64)
        left = np.minimum(cells.of_gpu("free_milli") - self._gpu.milli, by_memory)
        return np.clip(left, 0, MILLI_PER_GPU)
