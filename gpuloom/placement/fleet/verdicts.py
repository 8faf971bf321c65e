"""Which nodes can serve a request, all at once: for each node the code of `fit`'s answer.

Says of every node exactly what `fit` says of it alone, in the same order of precedence. Never chooses devices
and never scores.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from gpuloom.model.gpu import MILLI_PER_GPU
from gpuloom.model.node import Delivery, NodeMode
from gpuloom.model.request import Authority, GpuRequest, PodRequest, RequestKind
from gpuloom.placement.fit import MODE_OF_AUTHORITY, is_model
from gpuloom.placement.fleet.columns import STANDS, Cells, Columns, Masks, Numbers, Stand
from gpuloom.placement.reasons import RUNTIME_CLASS, Reason

Codes = NDArray[np.int8]
Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class Verdicts:
    """Codes, and for whole cards the masks of free ones, for a share the GPUs that could hold it."""

    codes: Codes
    free_masks: Masks | None = None
    free_on: Flags | None = None

    def at(self, places: Numbers) -> "Verdicts":
        return Verdicts(
            self.codes[places],
            None if self.free_masks is None else self.free_masks[places],
            None if self.free_on is None else self.free_on[places],
        )


def judge(request: PodRequest, columns: Columns, cells: Cells) -> Verdicts:
    gpu = request.gpu
    if gpu.kind is RequestKind.WHOLE:
        verdicts = _judge_whole(gpu, columns, cells)
    elif gpu.kind is RequestKind.SHARE:
        verdicts = _judge_share(gpu, columns, cells)
    else:
        verdicts = _judge_slices(gpu, columns, cells)
    _refuse_nodes(request, cells, verdicts.codes)
    return verdicts


def judge_hosts(request: PodRequest, cells: Cells, codes: Codes) -> None:
    """Refuse what fits otherwise but finds too little CPU or memory. Unknown amounts pass."""
    fits = (codes == Reason.FITS.value) & (cells.of_node("host_known") > 0)
    lacking = fits & (request.memory_bytes > cells.of_node("memory_bytes"))
    if lacking.any():
        ever = request.memory_bytes <= cells.of_node("memory_total_bytes")
        codes[lacking & ever] = Reason.MEMORY_TAKEN.value
        codes[lacking & ~ever] = Reason.MEMORY_TOO_SMALL.value
    # CPU comes last because the last word counts.
    lacking = fits & (request.cpu_milli > cells.of_node("cpu_milli"))
    if lacking.any():
        ever = request.cpu_milli <= cells.of_node("cpu_total_milli")
        codes[lacking & ever] = Reason.CPU_TAKEN.value
        codes[lacking & ~ever] = Reason.CPU_TOO_SMALL.value


def unusable_positions(gpu: GpuRequest, columns: Columns, rows: Numbers) -> list[int]:
    """For nodes with too few usable GPUs: the first GPU that would have served."""
    cells = columns.cells(rows)
    if gpu.kind is RequestKind.MIG:
        existing_on = _slice_counts(gpu, columns, cells)[0] > 0
    else:
        existing_on = _matching_cards(gpu, columns, cells)
    first: list[int] = np.argmax(existing_on & (cells.of_gpu("is_usable") == 0), axis=1).tolist()
    return first


def share_memory_mib(gpu: GpuRequest, cells: Cells) -> Numbers | int:
    """What a share of each card needs; see `fit.share_memory_mib`."""
    if gpu.memory_mib is not None:
        return gpu.memory_mib
    return np.maximum(1, cells.of_gpu("memory_mib") * gpu.milli // MILLI_PER_GPU)


def _judge_whole(gpu: GpuRequest, columns: Columns, cells: Cells) -> Verdicts:
    cards, usable, free = (cells.masks(column) for column in ("cards", "usable", "free"))
    if gpu.models or gpu.architectures or gpu.memory_mib:
        matching = _packed(_matching_cards(gpu, columns, cells))
        cards, usable, free = cards & matching, usable & matching, free & matching
    free_count, usable_count = _bits(free), _bits(usable)
    codes = _codes(gpu.count, _bits(cards), usable_count, free_count)
    if gpu.topology_required and gpu.count:
        shapes = cells.of_node("shape")
        enough = free_count >= gpu.count
        linked = enough & (columns.shapes.best(shapes, free, gpu, required=True) > 0)
        possible = columns.shapes.best(shapes, usable, gpu, required=True) > 0
        refused = (usable_count >= gpu.count) & ~linked & ~(possible & ~enough)
        codes[refused] = np.where(possible[refused], Reason.NOT_LINKED.value, Reason.NEVER_LINKED.value)
    return Verdicts(codes, free_masks=free)


def _judge_share(gpu: GpuRequest, columns: Columns, cells: Cells) -> Verdicts:
    existing_on = _matching_cards(gpu, columns, cells)
    usable_on = existing_on & (cells.of_gpu("is_usable") > 0)
    free_on = usable_on & (cells.of_gpu("free_milli") >= gpu.milli)
    free_on &= cells.of_gpu("free_memory_mib") >= share_memory_mib(gpu, cells)
    existing, usable, free = (cards.sum(axis=1) for cards in (existing_on, usable_on, free_on))
    return Verdicts(_codes(gpu.count, existing, usable, free), free_on=free_on)


def _judge_slices(gpu: GpuRequest, columns: Columns, cells: Cells) -> Verdicts:
    existing, free = _slice_counts(gpu, columns, cells)
    is_usable = cells.of_gpu("is_usable")
    usable, free = existing * is_usable, free * is_usable
    return Verdicts(_codes(gpu.count, existing.sum(axis=1), usable.sum(axis=1), free.sum(axis=1)))


def _codes(needed: int, existing: Numbers, usable: Numbers, free: Numbers) -> Codes:
    codes = np.full(len(existing), Reason.TAKEN.value, dtype=np.int8)
    codes[usable < needed] = Reason.UNUSABLE.value
    codes[existing < needed] = Reason.TOO_FEW.value
    codes[free >= needed] = Reason.FITS.value
    return codes


def _refuse_nodes(request: PodRequest, cells: Cells, codes: Codes) -> None:
    """What is wrong with the node as a whole counts more than what its GPUs lack."""
    has_class = request.runtime_class == RUNTIME_CLASS
    by_stand = _stand_codes(request.gpu.authority, has_class, request.sees_only_its_allocation)
    found = by_stand[cells.of_node("stand")]
    np.copyto(codes, found, where=found != Reason.FITS.value)


@cache
def _stand_codes(authority: Authority, has_class: bool, sees_only_its_allocation: bool) -> Codes:
    """By the number of the stand: what is wrong with such nodes, or that they may fit."""
    by_environment = Reason.FITS if sees_only_its_allocation else Reason.NEEDS_ENVIRONMENT
    by_delivery = {
        Delivery.NRI: Reason.OPEN_RUNTIME_CLASS if has_class else Reason.FITS,
        Delivery.ENV: by_environment if has_class else Reason.NEEDS_RUNTIME_CLASS,
    }
    if authority is not Authority.GPULOOM:
        by_delivery = dict.fromkeys(Delivery, Reason.FITS)
    found = [_stand_code(stand, MODE_OF_AUTHORITY[authority], by_delivery) for stand in STANDS]
    return np.array([reason.value for reason in found], dtype=np.int8)


def _stand_code(stand: Stand, needed: NodeMode, by_delivery: Mapping[Delivery, Reason]) -> Reason:
    if stand.closed:
        return Reason.CLOSED
    if stand.mode is NodeMode.UNKNOWN:
        return Reason.MODE_UNKNOWN
    if stand.mode is not needed:
        return Reason.WRONG_MODE
    return by_delivery.get(stand.delivery, Reason.NO_DELIVERY)


def _slice_counts(gpu: GpuRequest, columns: Columns, cells: Cells) -> tuple[Numbers, Numbers]:
    """By GPU: the instances that are what the pod asks for, and the free ones of them; see `fit.serves`."""
    counts = np.zeros((2, len(cells), cells.gpu.shape[2]), dtype=np.int64)
    for kind in columns.slice_kinds():
        profile, milli = kind
        if profile == gpu.mig_profile and (gpu.authority is Authority.NVIDIA or milli in (0, gpu.milli)):
            counts += columns.slices(kind, cells)
    existing, free = counts * _is_kind(gpu, columns, cells)
    return existing, free


def _matching_cards(gpu: GpuRequest, columns: Columns, cells: Cells) -> Flags:
    """Cards outside MIG mode, of the right model, with as much memory in all as is asked for."""
    cards: Flags = cells.of_gpu("is_card") > 0
    if gpu.models or gpu.architectures:
        cards &= _is_kind(gpu, columns, cells)
    if gpu.enforced:
        cards &= cells.of_gpu("is_limited") > 0
    if gpu.kind is RequestKind.SHARE:
        cards &= cells.of_gpu("least_milli") <= gpu.milli
    # A share in proportion needs at least 1 MiB.
    needed_mib = gpu.memory_mib or int(gpu.kind is RequestKind.SHARE)
    if needed_mib:
        cards &= cells.of_gpu("memory_mib") >= needed_mib
    return cards


def _is_kind(gpu: GpuRequest, columns: Columns, cells: Cells) -> Flags:
    wanted = np.zeros(columns.kinds.capacity + 1, dtype=np.bool_)
    for number, (model, architecture) in columns.kinds.items():
        wanted[number] = is_model(gpu, model, architecture)
    flags: Flags = wanted[cells.of_gpu("kind")]
    return flags


def _packed(flags: Flags) -> Masks:
    bits = np.uint64(1) << np.arange(flags.shape[1], dtype=np.uint64)
    masks: Masks = np.where(flags, bits, np.uint64(0)).sum(axis=1, dtype=np.uint64)
    return masks


def _bits(masks: Masks) -> Numbers:
    return np.bitwise_count(masks).astype(np.int64)
