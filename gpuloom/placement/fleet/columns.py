"""All nodes as arrays: one column per fact, one row per node, one cell per GPU.

A row is replaced as a whole when its node changes, which takes microseconds; questions about all nodes are
then a few array operations. Holds what the views say and what follows from one view alone; judges nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from gpuloom.catalog import slice_milli
from gpuloom.model.gpu import MILLI_PER_GPU, SharingMode
from gpuloom.model.node import Delivery, NodeMode
from gpuloom.model.topology import MAX_GPUS_PER_NODE
from gpuloom.placement.devices import GpuView, NodeView
from gpuloom.placement.fleet.equivalence import EquivalenceClasses
from gpuloom.placement.fleet.interning import Interner
from gpuloom.placement.fleet.shapes import Shapes
from gpuloom.placement.potential import Room, Supply


@dataclass(frozen=True, slots=True)
class Stand:
    """What matters of a node as a whole: whether it is closed, who gives its GPUs out, and how."""

    closed: bool
    mode: NodeMode
    delivery: Delivery


STANDS = tuple(
    Stand(closed, mode, delivery) for closed in (False, True) for mode in NodeMode for delivery in Delivery
)

_FIRST_ROWS = 64
_FIRST_GPUS = 8
_NO_NODES = (0,) * (MAX_GPUS_PER_NODE + 1)

_NODE_COLUMNS = (
    "stand",
    "shape",
    "whole",
    "gpu_milli",
    "host_known",
    "cpu_milli",
    "memory_bytes",
    "cpu_total_milli",
    "memory_total_bytes",
)
_GPU_COLUMNS = (
    "kind",
    "memory_mib",
    "free_milli",
    "free_memory_mib",
    "share_milli",
    "is_card",
    "is_usable",
    "is_limited",
    "least_milli",
)
_MASK_COLUMNS = ("cards", "usable", "free")
_STAND_NUMBERS = {(stand.closed, stand.mode, stand.delivery): number for number, stand in enumerate(STANDS)}

Item = TypeVar("Item", bound=np.generic)
Numbers = NDArray[np.int64]
Masks = NDArray[np.uint64]
Kind = tuple[str, str]
# A MIG profile and what an instance of it stands for; 0 milli where that is not known.
SliceKind = tuple[str, int]


@dataclass(frozen=True, slots=True, eq=False)
class Cells:
    """Columns of all rows, or of some: those are copied column by column, when one is asked for.

    Masks: `cards` are not in MIG mode; `free` are usable and whole.
    """

    node: Numbers
    gpu: Numbers
    mask: Masks
    rows: Numbers | None = None

    def __len__(self) -> int:
        return self.node.shape[1] if self.rows is None else len(self.rows)

    def of_node(self, column: str) -> Numbers:
        return self._taken(self.node[_NODE_COLUMNS.index(column)])

    def of_gpu(self, column: str) -> Numbers:
        """One row per node, one entry per GPU; entries beyond a node's GPUs are 0."""
        return self._taken(self.gpu[_GPU_COLUMNS.index(column)])

    def masks(self, column: str) -> Masks:
        return self._taken(self.mask[_MASK_COLUMNS.index(column)])

    def room(self) -> Room:
        return Room(
            self.of_node("gpu_milli"),
            self.of_node("cpu_milli"),
            self.of_node("memory_bytes"),
            self.of_node("host_known") > 0,
        )

    def _taken(self, column: NDArray[Item]) -> NDArray[Item]:
        return column if self.rows is None else column.take(self.rows, axis=0)


class Columns:
    def __init__(self) -> None:
        self.kinds: Interner[Kind] = Interner()
        self.shapes = Shapes()
        self.views: list[NodeView | None] = []
        self._rows: dict[str, int] = {}
        self._spare: list[int] = []
        self._node = np.zeros((len(_NODE_COLUMNS), _FIRST_ROWS), dtype=np.int64)
        self._gpu = np.zeros((len(_GPU_COLUMNS), _FIRST_ROWS, _FIRST_GPUS), dtype=np.int64)
        self._mask = np.zeros((len(_MASK_COLUMNS), _FIRST_ROWS), dtype=np.uint64)
        self._slices: dict[SliceKind, NDArray[np.int16]] = {}
        self._slice_counts: dict[SliceKind, int] = {}
        self._classes = EquivalenceClasses()
        self._reuses = 0
        self._able = [list(_NO_NODES) for _ in STANDS]

    @property
    def size(self) -> int:
        """Rows in use, spare ones between them included."""
        return len(self.views)

    @property
    def count(self) -> int:
        """Nodes that have a row."""
        return len(self._rows)

    def row(self, name: str) -> int | None:
        return self._rows.get(name)

    def rows(self, names: Sequence[str]) -> Numbers:
        """Raise KeyError for a name that was never put."""
        return np.fromiter(map(self._rows.__getitem__, names), dtype=np.int64, count=len(names))

    def names(self) -> list[str]:
        return list(self._rows)

    def cells(self, rows: Numbers | None = None) -> Cells:
        """Of these rows, or of all."""
        size = self.size
        return Cells(self._node[:, :size], self._gpu[:, :size], self._mask[:, :size], rows)

    def slices(self, kind: SliceKind, cells: Cells) -> NDArray[np.int16]:
        """By node and GPU: how many such instances exist, and how many are free."""
        counts = self._slices[kind][:, : self.size]
        return counts if cells.rows is None else counts.take(cells.rows, axis=1)

    def slice_kinds(self) -> list[SliceKind]:
        return list(self._slices)

    @property
    def classes(self) -> EquivalenceClasses:
        """Of all rows, brought up to date."""
        return self._classes

    def supply(self) -> Supply:
        """What there is in all, of nodes that are open or closed."""
        cells = self.cells()
        kinds, free_milli = cells.of_gpu("kind"), cells.of_gpu("share_milli")
        by_kind = np.bincount(kinds.ravel(), weights=free_milli.ravel(), minlength=self.kinds.capacity)
        usable = cells.of_gpu("is_usable").sum(axis=1)
        counted = (usable > 0) & (cells.of_node("host_known") > 0)
        gpus = float(usable[counted].sum())
        total_milli, free_cpu_milli = cells.of_node("cpu_total_milli"), cells.of_node("cpu_milli")
        return Supply(
            free={kind: float(by_kind[number]) / MILLI_PER_GPU for number, kind in self.kinds.items()},
            gpus=gpus,
            used_gpus=gpus - float(cells.of_node("gpu_milli")[counted].sum()) / MILLI_PER_GPU,
            cores=float(total_milli[counted].sum()) / 1000,
            used_cores=float((total_milli - free_cpu_milli)[counted].sum()) / 1000,
        )

    def whole_cards(self, stands: Sequence[int]) -> list[int]:
        """How many nodes of these stands have so many fully free cards, by that number."""
        lists = [self._able[stand] for stand in stands if any(self._able[stand])]
        if len(lists) == 1:
            # Mostly all nodes that are asked about stand alike.
            return list(lists[0])
        return [sum(of_number) for of_number in zip(_NO_NODES, *lists, strict=True)]

    def put(self, view: NodeView) -> int:
        """The node as it is now; returns its row."""
        row = self._rows.get(view.name)
        if row is None:
            row = self._rows[view.name] = self._new_row()
        elif self.views[row] is view:
            return row
        before = self.views[row]
        if before is not None and _differs_in_use_alone(before, view):
            self._write_use(row, before, view)
        else:
            self._replace(row, before, view)
        self.views[row] = view
        self._note_class(row, view.name)
        return row

    def remove(self, name: str) -> None:
        row = self._rows.pop(name, None)
        if row is None:
            return
        view = self.views[row]
        if view is not None:
            self._release(row, view)
        self._classes.forget(row, name)
        self._node[:, row] = 0
        self._mask[:, row] = 0
        self.views[row] = None
        self._spare.append(row)

    def _note_class(self, row: int, name: str) -> None:
        reuses = self.kinds.reuses + self.shapes.reuses
        if reuses != self._reuses or self._classes.is_full(self.size):
            # What was noted may hold a number that means something else now.
            self._reuses = reuses
            self._classes.begin_anew(
                (other, other_name, self._content(other)) for other_name, other in self._rows.items()
            )
        else:
            self._classes.note(row, name, self._content(row))

    def _content(self, row: int) -> bytes:
        """Everything that a node is judged by."""
        parts = [self._node[:, row].tobytes(), self._gpu[:, row].tobytes(), self._mask[:, row].tobytes()]
        for kind, counts in self._slices.items():
            on_node = counts[:, row]
            if on_node.any():
                parts += (repr(kind).encode(), on_node.tobytes())
        return b"".join(parts)

    def _replace(self, row: int, before: NodeView | None, view: NodeView) -> None:
        if len(view.gpus) > self._gpu.shape[2]:
            self._widen(len(view.gpus))
        shape = self.shapes.acquire(view.links)
        kinds = [self.kinds.acquire((one.gpu.model, one.gpu.architecture)) for one in view.gpus]
        if before is not None:
            self._release(row, before)
        cells = [_gpu_cells(kind, one) for kind, one in zip(kinds, view.gpus, strict=True)]
        if cells:
            self._gpu[:, row, : len(cells)] = np.array(cells, dtype=np.int64).T
        masks = [0] * len(_MASK_COLUMNS)
        for position, one in enumerate(view.gpus):
            masks = _with_card(masks, position, one)
            if one.gpu.mig_instances and one.gpu.mig_enabled:
                self._count_slices(row, position, one, 1)
        self._write_node(row, view, shape, masks, sum(cell[4] for cell in cells))

    def _write_use(self, row: int, before: NodeView, view: NodeView) -> None:
        """What a bind changes: what is free of some GPUs, and of the host."""
        stand, shape, whole, gpu_milli = self._node[:4, row].tolist()
        masks = self._mask[:, row].tolist()
        self._able[stand][whole] -= 1
        for position, (old, new) in enumerate(zip(before.gpus, view.gpus, strict=True)):
            if old is not new:
                _, *use = _gpu_cells(0, new)
                self._gpu[1:, row, position] = use
                gpu_milli += new.free_share_milli - old.free_share_milli
                masks = _with_card(masks, position, new)
        self._write_node(row, view, shape, masks, gpu_milli)

    def _write_node(self, row: int, view: NodeView, shape: int, masks: list[int], gpu_milli: int) -> None:
        host = view.host
        stand = _STAND_NUMBERS[bool(view.closed_reason), view.mode, view.delivery]
        whole = masks[2].bit_count()
        self._able[stand][whole] += 1
        self._mask[:, row] = masks
        self._node[:, row] = (
            stand,
            shape,
            whole,
            gpu_milli,
            host is not None,
            0 if host is None else max(0, host.cpu_free_milli),
            0 if host is None else max(0, host.memory_free_bytes),
            0 if host is None else host.cpu_total_milli,
            0 if host is None else host.memory_total_bytes,
        )

    def _release(self, row: int, view: NodeView) -> None:
        stand, shape, whole = self._node[:3, row].tolist()
        self._able[stand][whole] -= 1
        self.shapes.release(shape)
        for position, one in enumerate(view.gpus):
            self.kinds.release(int(self._gpu[0, row, position]))
            if one.gpu.mig_instances and one.gpu.mig_enabled:
                self._count_slices(row, position, one, -1)
        self._gpu[:, row] = 0

    def _count_slices(self, row: int, position: int, view: GpuView, sign: int) -> None:
        for column, instances in ((0, view.gpu.mig_instances), (1, view.free_mig)):
            for instance in instances:
                known = view.mig_slices
                milli = slice_milli(instance.slices, known) if known else 0
                kind = (instance.placement.profile, milli)
                if kind not in self._slices:
                    self._slices[kind] = np.zeros((2, *self._gpu.shape[1:]), dtype=np.int16)
                    self._slice_counts[kind] = 0
                self._slices[kind][column, row, position] += sign
                self._slice_counts[kind] += sign
                if not self._slice_counts[kind]:
                    del self._slices[kind], self._slice_counts[kind]

    def _new_row(self) -> int:
        if self._spare:
            return self._spare.pop()
        if self.size == self._node.shape[1]:
            self._resize(2 * self.size, self._gpu.shape[2])
        self.views.append(None)
        return self.size - 1

    def _widen(self, gpus: int) -> None:
        self._resize(self._node.shape[1], min(MAX_GPUS_PER_NODE, max(gpus, 2 * self._gpu.shape[2])))

    def _resize(self, rows: int, gpus: int) -> None:
        self._node = _grown(self._node, (len(_NODE_COLUMNS), rows))
        self._mask = _grown(self._mask, (len(_MASK_COLUMNS), rows))
        self._gpu = _grown(self._gpu, (len(_GPU_COLUMNS), rows, gpus))
        self._slices = {kind: _grown(counts, (2, rows, gpus)) for kind, counts in self._slices.items()}


def _gpu_cells(kind: int, view: GpuView) -> tuple[int, ...]:
    return (
        kind,
        view.gpu.memory_mib,
        view.free_milli,
        view.free_memory_mib,
        view.free_share_milli,
        not view.gpu.mig_enabled,
        not view.unusable_reason,
        view.gpu.sharing is SharingMode.MPS,
        view.gpu.least_milli,
    )


def _with_card(masks: list[int], position: int, view: GpuView) -> list[int]:
    """The masks, with what they say of this GPU now."""
    bit = 1 << position
    is_card = not view.gpu.mig_enabled
    is_usable = is_card and not view.unusable_reason
    says = is_card, is_usable, is_usable and view.untouched
    return [mask | bit if said else mask & ~bit for mask, said in zip(masks, says, strict=True)]


def _differs_in_use_alone(before: NodeView, view: NodeView) -> bool:
    """Whether the machine is the same, and has no MIG instances."""
    return (
        before.links is view.links
        and len(before.gpus) == len(view.gpus)
        and all(
            old is new or (old.gpu is new.gpu and not new.gpu.mig_instances)
            for old, new in zip(before.gpus, view.gpus, strict=True)
        )
    )


def _grown(array: NDArray[Item], shape: tuple[int, ...]) -> NDArray[Item]:
    grown = np.zeros(shape, dtype=array.dtype)
    grown[tuple(slice(0, length) for length in array.shape)] = array
    return grown
