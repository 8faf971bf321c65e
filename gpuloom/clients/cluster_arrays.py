"""The cluster as numpy columns: one row per node and one per GPU, kept up to date node by node.

    arrays = ClusterArrays()
    mirror.on_change(arrays.observe)
    free = arrays.gpus.live & (arrays.gpus.allocated_milli == 0)

Pure; it decides nothing but which number stands for what. A row stays the same while its node, or its GPU on
that node, is there, and is given to another afterwards. All columns of one kind have the same length; rows
that nobody has are blank and not `live`.

Use it on the event loop that feeds it. Between two awaits nothing moves; after an await, take the columns
from `nodes` and `gpus` again, for they may have grown. Another thread works on a `copy`.
"""

import math
from collections.abc import Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from gpuloom.clients.rows import Rows, TextCodes
from gpuloom.model.gpu import GpuHealth, GpuUsage
from gpuloom.model.node import Delivery, NodeMode
from gpuloom.model.snapshot import NodeFacts
from gpuloom.model.spot import SpotNoticeKind

Booleans: TypeAlias = NDArray[np.bool_]
Codes: TypeAlias = NDArray[np.int32]
Counts: TypeAlias = NDArray[np.int64]
Readings: TypeAlias = NDArray[np.float64]

NO_NUMA_NODE = -1
NO_NODE = -1
NO_SPOT_NOTICE = -1
FIRST_ROWS = 64

_LARGEST = int(np.iinfo(np.int64).max)


def _numbered(kind: type[StrEnum]) -> dict[Any, int]:
    return {member: number for number, member in enumerate(kind)}


# 0 is what is not known.
MODE_CODES: Mapping[NodeMode, int] = _numbered(NodeMode)
DELIVERY_CODES: Mapping[Delivery, int] = _numbered(Delivery)
HEALTH_CODES: Mapping[GpuHealth, int] = _numbered(GpuHealth)
SPOT_CODES: Mapping[SpotNoticeKind, int] = _numbered(SpotNoticeKind)


# What a row holds that nobody has.
_BOOLEAN = {"blank": np.bool_(False)}
_CODE = {"blank": np.int32(0)}
_NONE = {"blank": np.int32(-1)}
_COUNT = {"blank": np.int64(0)}
_NO_NUMBER = {"blank": np.int64(-1)}
_READING = {"blank": np.float64(math.nan)}


@dataclass(slots=True)
class NodeColumns:
    """`region` … `instance_type` are numbers of `ClusterArrays.texts`; 0 is not known."""

    live: Booleans = field(metadata=_BOOLEAN)
    trusted: Booleans = field(metadata=_BOOLEAN)
    unschedulable: Booleans = field(metadata=_BOOLEAN)
    mode: Codes = field(metadata=_CODE)
    delivery: Codes = field(metadata=_CODE)
    spot: Codes = field(metadata=_NONE)
    gpu_count: Counts = field(metadata=_COUNT)
    allocations: Counts = field(metadata=_COUNT)
    cpu_milli: Counts = field(metadata=_COUNT)
    memory_bytes: Counts = field(metadata=_COUNT)
    region: Codes = field(metadata=_CODE)
    zone: Codes = field(metadata=_CODE)
    rack: Codes = field(metadata=_CODE)
    nvlink_domain: Codes = field(metadata=_CODE)
    capacity_type: Codes = field(metadata=_CODE)
    instance_type: Codes = field(metadata=_CODE)


@dataclass(slots=True)
class GpuColumns:
    """`model` is a number of `ClusterArrays.texts`. A reading that is not known is NaN.

    `allocated_…` sum up what pods were given by their allocations, MIG instances and predictions included;
    `holders` counts who holds the GPU or a part of it as the node sees it.
    """

    live: Booleans = field(metadata=_BOOLEAN)
    closed: Booleans = field(metadata=_BOOLEAN)
    mig_enabled: Booleans = field(metadata=_BOOLEAN)
    node_row: Codes = field(metadata=_NONE)
    index: Codes = field(metadata=_CODE)
    model: Codes = field(metadata=_CODE)
    health: Codes = field(metadata=_CODE)
    numa_node: Counts = field(metadata=_NO_NUMBER)
    memory_mib: Counts = field(metadata=_COUNT)
    mig_instances: Counts = field(metadata=_COUNT)
    holders: Counts = field(metadata=_COUNT)
    allocated_milli: Counts = field(metadata=_COUNT)
    allocated_mib: Counts = field(metadata=_COUNT)
    utilization_ratio: Readings = field(metadata=_READING)
    memory_used_mib: Readings = field(metadata=_READING)
    power_w: Readings = field(metadata=_READING)
    temperature_c: Readings = field(metadata=_READING)


Columns = TypeVar("Columns", NodeColumns, GpuColumns)


class ClusterArrays:
    def __init__(self) -> None:
        self.nodes = _blank(NodeColumns, FIRST_ROWS)
        self.gpus = _blank(GpuColumns, FIRST_ROWS)
        self.texts = TextCodes()
        self._node_rows: Rows[str] = Rows()
        self._gpu_rows: Rows[tuple[str, str]] = Rows()
        self._gpus_of: dict[str, list[str]] = {}

    def observe(self, uid: str, facts: NodeFacts | None) -> None:
        """The node is now like this, or gone. Fits `ClusterMirror.on_change`."""
        if facts is None:
            self._remove(uid)
            return
        row = self._node_rows.take(uid)
        self.nodes = _grown(self.nodes, row)
        self._write_node(row, facts)
        uuids = [gpu.uuid for gpu in facts.state.gpus]
        self._release_gpus(uid, set(self._gpus_of.get(uid, ())).difference(uuids))
        self._gpus_of[uid] = uuids
        if uuids:
            self._write_gpus(uid, row, facts)

    def copy(self) -> "ClusterArrays":
        """As it is now, for another thread or for a what-if."""
        return deepcopy(self)

    def node_row(self, uid: str) -> int | None:
        return self._node_rows.row(uid)

    def node_uid(self, row: int) -> str | None:
        """None if nobody has the row."""
        return self._node_rows.key(row)

    def gpu_rows(self, uid: str) -> NDArray[np.intp]:
        """The rows of a node's GPUs, by index; empty if there is no such node."""
        rows = (self._gpu_rows.row((uid, uuid)) for uuid in self._gpus_of.get(uid, ()))
        return np.array([row for row in rows if row is not None], dtype=np.intp)

    def gpu_uuid(self, row: int) -> str | None:
        """None if nobody has the row."""
        key = self._gpu_rows.key(row)
        return None if key is None else key[1]

    def _remove(self, uid: str) -> None:
        if self._node_rows.row(uid) is not None:
            _clear(self.nodes, self._node_rows.release(uid))
            self._release_gpus(uid, self._gpus_of.pop(uid))

    def _release_gpus(self, uid: str, uuids: Iterable[str]) -> None:
        for uuid in uuids:
            _clear(self.gpus, self._gpu_rows.release((uid, uuid)))

    def _write_node(self, row: int, facts: NodeFacts) -> None:
        nodes, state, place = self.nodes, facts.state, facts.place
        nodes.live[row] = True
        nodes.trusted[row] = facts.trusted
        nodes.unschedulable[row] = place.unschedulable
        nodes.mode[row] = MODE_CODES[state.mode]
        nodes.delivery[row] = DELIVERY_CODES[state.delivery]
        nodes.spot[row] = NO_SPOT_NOTICE if state.spot is None else SPOT_CODES[state.spot.kind]
        nodes.gpu_count[row] = len(state.gpus)
        nodes.allocations[row] = len(facts.allocations)
        nodes.cpu_milli[row] = _bounded(place.cpu_milli)
        nodes.memory_bytes[row] = _bounded(place.memory_bytes)
        for name in ("region", "zone", "rack", "nvlink_domain", "capacity_type", "instance_type"):
            getattr(nodes, name)[row] = self.texts.code(getattr(place, name))

    def _write_gpus(self, uid: str, node_row: int, facts: NodeFacts) -> None:
        cards = facts.state.gpus
        rows = np.array([self._gpu_rows.take((uid, gpu.uuid)) for gpu in cards], dtype=np.intp)
        self.gpus = gpus = _grown(self.gpus, int(rows.max()))
        given = _sums(facts)
        closed = {gpu.gpu_uuid for gpu in facts.closed_gpus}
        gpus.live[rows] = True
        gpus.closed[rows] = [gpu.uuid in closed for gpu in cards]
        gpus.mig_enabled[rows] = [gpu.mig_enabled for gpu in cards]
        gpus.node_row[rows] = node_row
        gpus.index[rows] = [gpu.index for gpu in cards]
        gpus.model[rows] = [self.texts.code(gpu.model) for gpu in cards]
        gpus.health[rows] = [HEALTH_CODES[gpu.health] for gpu in cards]
        gpus.numa_node[rows] = [NO_NUMA_NODE if gpu.numa_node is None else gpu.numa_node for gpu in cards]
        gpus.memory_mib[rows] = [_bounded(gpu.memory_mib) for gpu in cards]
        gpus.mig_instances[rows] = [len(gpu.mig_instances) for gpu in cards]
        gpus.holders[rows] = [given[gpu.uuid].holders for gpu in cards]
        gpus.allocated_milli[rows] = [_bounded(given[gpu.uuid].milli) for gpu in cards]
        gpus.allocated_mib[rows] = [_bounded(given[gpu.uuid].mib) for gpu in cards]
        self._write_usage(rows, facts)

    def _write_usage(self, rows: NDArray[np.intp], facts: NodeFacts) -> None:
        by_uuid = {usage.gpu_uuid: usage for usage in facts.state.usage}
        readings = [by_uuid.get(gpu.uuid, GpuUsage(gpu.uuid)) for gpu in facts.state.gpus]
        for name in ("utilization_ratio", "memory_used_mib", "power_w", "temperature_c"):
            values = (getattr(reading, name) for reading in readings)
            getattr(self.gpus, name)[rows] = [math.nan if value is None else value for value in values]


@dataclass(slots=True)
class _Given:
    milli: int = 0
    mib: int = 0
    holders: int = 0


def _sums(facts: NodeFacts) -> dict[str, _Given]:
    """What of each GPU is given out and held. A device that is no GPU of this node counts nowhere."""
    given = {gpu.uuid: _Given() for gpu in facts.state.gpus}
    nowhere = _Given()
    for allocation in facts.allocations:
        for held in allocation.devices:
            card = given.get(held.device.gpu_uuid, nowhere)
            card.milli += held.milli
            card.mib += held.memory_mib
    for holder in facts.state.holders:
        for uuid in {device.gpu_uuid for device in holder.devices}:
            given.get(uuid, nowhere).holders += 1
    return given


def _blank(kind: type[Columns], rows: int) -> Columns:
    return kind(**{column.name: np.full(rows, column.metadata["blank"]) for column in fields(kind)})


def _grown(columns: Columns, row: int) -> Columns:
    """Columns in which the row has a place: the same ones, or twice as long."""
    length = len(columns.live)
    if row < length:
        return columns
    more = _blank(type(columns), max(length, row + 1 - length))
    return type(columns)(
        **{
            column.name: np.concatenate([getattr(columns, column.name), getattr(more, column.name)])
            for column in fields(columns)
        }
    )


def _clear(columns: NodeColumns | GpuColumns, row: int) -> None:
    for column in fields(columns):
        getattr(columns, column.name)[row] = column.metadata["blank"]


def _bounded(amount: int) -> int:
    """A sender may say more than a column can hold; nothing real is that large."""
    return min(amount, _LARGEST)
