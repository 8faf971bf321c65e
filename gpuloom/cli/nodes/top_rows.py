"""What `gpuloom top` shows: GPUs, pods or namespaces as rows, by what they use. Pure: facts in, rows out.

Of a card that several hold it is only known what the whole card does; such a row says `shared`.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from gpuloom.cli.nodes.node_rows import allocated_milli
from gpuloom.model.gpu import MILLI_PER_GPU, GpuUsage
from gpuloom.model.node import PodRef
from gpuloom.model.snapshot import NodeFacts


class By(StrEnum):
    GPU = "gpu"
    POD = "pod"
    NAMESPACE = "namespace"


class Order(StrEnum):
    UTIL = "util"
    MEMORY = "memory"
    NAME = "name"


@dataclass(frozen=True, slots=True)
class GpuRow:
    node: str
    index: int
    uuid: str
    model: str
    health: str
    allocated: float
    utilization_ratio: float | None
    memory_used_mib: int | None
    memory_mib: int
    power_w: float | None
    temperature_c: float | None
    pods: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PodRow:
    """`shared`: others hold a part of one of its cards, and the figures are those of the whole cards."""

    namespace: str
    pod: str
    node: str
    gpus: float
    utilization_ratio: float | None
    memory_used_mib: int | None
    shared: bool


@dataclass(frozen=True, slots=True)
class NamespaceRow:
    namespace: str
    pods: int
    gpus: float
    utilization_ratio: float | None
    memory_used_mib: int | None


def gpu_rows(nodes: Iterable[NodeFacts], order: Order) -> list[GpuRow]:
    rows = [row for facts in nodes for row in _gpus(facts)]
    return sorted(
        rows, key=lambda row: (*_rank(order, row.utilization_ratio, row.memory_used_mib), row.node, row.index)
    )


def pod_rows(nodes: Iterable[NodeFacts], order: Order) -> list[PodRow]:
    rows = [row for facts in nodes for row in _pods(facts)]
    return sorted(
        rows,
        key=lambda row: (*_rank(order, row.utilization_ratio, row.memory_used_mib), row.namespace, row.pod),
    )


def namespace_rows(pods: Sequence[PodRow], order: Order) -> list[NamespaceRow]:
    """The mean utilisation of a namespace is weighted by how much of its GPUs each pod has."""
    rows = []
    for namespace in {row.namespace for row in pods}:
        own = [row for row in pods if row.namespace == namespace]
        telling = [(row.utilization_ratio, row.gpus) for row in own if row.utilization_ratio is not None]
        weight = sum(gpus for _, gpus in telling)
        used = [row.memory_used_mib for row in own if row.memory_used_mib is not None and not row.shared]
        rows.append(
            NamespaceRow(
                namespace,
                len(own),
                sum(row.gpus for row in own),
                sum(ratio * gpus for ratio, gpus in telling) / weight if weight else None,
                sum(used) if used else None,
            )
        )
    return sorted(
        rows, key=lambda row: (*_rank(order, row.utilization_ratio, row.memory_used_mib), row.namespace)
    )


def _gpus(facts: NodeFacts) -> Iterator[GpuRow]:
    usage = {reading.gpu_uuid: reading for reading in facts.state.usage}
    taken, held = allocated_milli(facts), _given(facts)
    closed = {gpu.gpu_uuid: gpu.reason for gpu in facts.closed_gpus}
    for gpu in facts.state.gpus:
        read = usage.get(gpu.uuid, GpuUsage(gpu.uuid))
        health = gpu.health.value if facts.trusted else "untrusted"
        yield GpuRow(
            node=facts.state.node_name,
            index=gpu.index,
            uuid=gpu.uuid,
            model=gpu.model,
            health="closed" if gpu.uuid in closed and health == "healthy" else health,
            allocated=taken.get(gpu.uuid, 0) / MILLI_PER_GPU,
            utilization_ratio=read.utilization_ratio,
            memory_used_mib=read.memory_used_mib,
            memory_mib=gpu.memory_mib,
            power_w=read.power_w,
            temperature_c=read.temperature_c,
            pods=tuple(
                sorted(f"{pod.namespace}/{pod.name}" for pod, milli in held.items() if gpu.uuid in milli)
            ),
        )


def _pods(facts: NodeFacts) -> Iterator[PodRow]:
    usage = {reading.gpu_uuid: reading for reading in facts.state.usage}
    held = _given(facts)
    for pod, milli in held.items():
        shared = any(uuid in other for name, other in held.items() if name != pod for uuid in milli)
        readings = [(usage[uuid], part) for uuid, part in milli.items() if uuid in usage]
        known = [
            (read.utilization_ratio, part) for read, part in readings if read.utilization_ratio is not None
        ]
        memory = [read.memory_used_mib for read, _ in readings if read.memory_used_mib is not None]
        weight = sum(part for _, part in known)
        yield PodRow(
            namespace=pod.namespace,
            pod=pod.name,
            node=facts.state.node_name,
            gpus=sum(milli.values()) / MILLI_PER_GPU,
            utilization_ratio=sum(ratio * part for ratio, part in known) / weight if weight else None,
            memory_used_mib=sum(memory) if memory else None,
            shared=shared,
        )


def _given(facts: NodeFacts) -> dict[PodRef, dict[str, int]]:
    """Milli by GPU of every pod: what the node shows it to hold, else what it was given."""
    given: dict[PodRef, dict[str, int]] = {}
    for allocation in facts.allocations:
        parts = given.setdefault(allocation.pod, {})
        for device in allocation.devices:
            uuid = device.device.gpu_uuid
            parts[uuid] = parts.get(uuid, 0) + device.milli
    advisory = {allocation.pod for allocation in facts.allocations if allocation.advisory}
    for holder in facts.state.holders:
        if not holder.pod.uid or (holder.pod in given and holder.pod not in advisory):
            continue
        advisory.discard(holder.pod)
        given[holder.pod] = {device.gpu_uuid: MILLI_PER_GPU for device in holder.devices}
    return given


def _rank(order: Order, utilization: float | None, memory: int | None) -> tuple[float, ...]:
    """The busiest first; what is not known last."""
    value = {Order.UTIL: utilization, Order.MEMORY: memory, Order.NAME: 0}[order]
    return (1.0, 0.0) if value is None else (0.0, -float(value))
