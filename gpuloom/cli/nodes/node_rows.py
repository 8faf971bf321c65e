"""Nodes as rows of a table, with totals. Pure: facts in, rows out.

What nobody knows is None and shown as such; it never counts as zero.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from gpuloom.catalog import load_catalog
from gpuloom.model.gpu import MILLI_PER_GPU, DeviceRef, Gpu, GpuHealth
from gpuloom.model.snapshot import NodeFacts
from gpuloom.model.topology import PcieLevel, Topology


@dataclass(frozen=True, slots=True)
class NodeRow:
    """`problems` says what keeps the node, or a part of it, from being used; `closed` counts GPUs.

    `delivery` is how containers get their devices, `links` the best and the worst between two of its GPUs.
    """

    node: str
    mode: str
    model: str
    gpus: int
    allocated: float
    utilization_ratio: float | None
    memory_used_mib: int | None
    memory_mib: int
    healthy: int
    trusted: bool
    closed: int = 0
    problems: tuple[str, ...] = ()
    delivery: str = ""
    links: str = ""
    instance_type: str = ""
    zone: str = ""
    rack: str = ""
    capacity_type: str = ""


@dataclass(frozen=True, slots=True)
class Totals:
    nodes: int
    untrusted_nodes: int
    gpus: int
    healthy: int
    allocated: float
    utilization_ratio: float | None
    memory_used_mib: int | None
    memory_mib: int


def node_row(facts: NodeFacts) -> NodeRow:
    state = facts.state
    known = [reading.utilization_ratio for reading in state.usage if reading.utilization_ratio is not None]
    used = [reading.memory_used_mib for reading in state.usage if reading.memory_used_mib is not None]
    return NodeRow(
        node=state.node_name,
        mode=state.mode.value,
        model=", ".join(sorted({gpu.model for gpu in state.gpus})),
        gpus=len(state.gpus),
        allocated=sum(allocated_milli(facts).values()) / MILLI_PER_GPU,
        utilization_ratio=sum(known) / len(known) if known else None,
        memory_used_mib=sum(used) if used else None,
        memory_mib=sum(gpu.memory_mib for gpu in state.gpus),
        healthy=sum(gpu.health is GpuHealth.HEALTHY for gpu in state.gpus),
        trusted=facts.trusted,
        closed=len(facts.closed_gpus),
        problems=(*unhealthy_texts(facts), *closed_texts(facts)),
        delivery=state.delivery.value,
        links=links_text(state.topology),
        instance_type=facts.place.instance_type,
        zone=facts.place.zone,
        rack=facts.place.rack,
        capacity_type=facts.place.capacity_type,
    )


def links_text(topology: Topology | None) -> str:
    """As NV12, NV12 to SYS, or NVSwitch; empty if there are none, or nobody knows."""
    if topology is None or not topology.pcie:
        return ""
    if topology.nvswitch:
        return "NVSwitch"
    pairs = sorted(zip(topology.nvlinks, topology.pcie, strict=True))
    worst, best = (_link_text(*pair) for pair in (pairs[0], pairs[-1]))
    return best if best == worst else f"{best} to {worst}"


def _link_text(nvlinks: int, level: PcieLevel) -> str:
    return f"NV{nvlinks}" if nvlinks else level.name if level else "?"


def totals_of(rows: Iterable[NodeRow]) -> Totals:
    """Utilisation is the mean over the GPUs of nodes that tell theirs."""
    rows = tuple(rows)
    telling = [(row.utilization_ratio, row.gpus) for row in rows if row.utilization_ratio is not None]
    measured = sum(gpus for _, gpus in telling)
    used = [row.memory_used_mib for row in rows if row.memory_used_mib is not None]
    return Totals(
        nodes=len(rows),
        untrusted_nodes=sum(not row.trusted for row in rows),
        gpus=sum(row.gpus for row in rows),
        healthy=sum(row.healthy for row in rows),
        allocated=sum(row.allocated for row in rows),
        utilization_ratio=sum(ratio * gpus for ratio, gpus in telling) / measured if measured else None,
        memory_used_mib=sum(used) if used else None,
        memory_mib=sum(row.memory_mib for row in rows),
    )


def allocated_milli(facts: NodeFacts) -> dict[str, int]:
    """How much of each GPU is taken, by UUID; never more than all of it.

    Where the kubelet chooses, its choice counts as soon as it shows it, and the prediction until then.
    """
    gpus = {gpu.uuid: gpu for gpu in facts.state.gpus}
    held = {holder.pod.uid for holder in facts.state.holders}
    taken: Counter[str] = Counter()
    for allocation in facts.allocations:
        if not (allocation.advisory and allocation.pod.uid in held):
            for given in allocation.devices:
                taken[given.device.gpu_uuid] += given.milli
    exact = {allocation.pod.uid for allocation in facts.allocations if not allocation.advisory}
    seen = {
        device
        for holder in facts.state.holders
        if not holder.pod.uid or holder.pod.uid not in exact
        for device in holder.devices
    }
    for device in seen:
        taken[device.gpu_uuid] += _milli(device, gpus.get(device.gpu_uuid))
    return {uuid: min(MILLI_PER_GPU, taken[uuid]) for uuid in gpus if taken[uuid]}


def _milli(device: DeviceRef, gpu: Gpu | None) -> int:
    """What a device that is only seen to be held stands for: all of a GPU, or a slice's part of it."""
    model = None if gpu is None else load_catalog().find_gpu(gpu.model)
    for instance in () if gpu is None else gpu.mig_instances:
        if instance.placement == device.mig and model is not None and model.mig_slices:
            return -(-MILLI_PER_GPU * instance.slices // model.mig_slices)
    return MILLI_PER_GPU


def unhealthy_texts(facts: NodeFacts) -> tuple[str, ...]:
    """One for each GPU that fails."""
    failing = (GpuHealth.UNHEALTHY, GpuHealth.LOST)
    return tuple(_health_text(gpu) for gpu in facts.state.gpus if gpu.health in failing)


def closed_texts(facts: NodeFacts) -> tuple[str, ...]:
    """Why the node, or single GPUs of it, are not used for now."""
    indexes = {gpu.uuid: f"GPU {gpu.index}" for gpu in facts.state.gpus}
    closed = (f"{indexes.get(gpu.gpu_uuid, gpu.gpu_uuid)} closed: {gpu.reason}" for gpu in facts.closed_gpus)
    unknown = (_health_text(gpu) for gpu in facts.state.gpus if gpu.health is GpuHealth.UNKNOWN)
    return (*facts.untrusted_reasons, *unknown, *closed)


def _health_text(gpu: Gpu) -> str:
    return f"GPU {gpu.index} {gpu.health}" + (f": {gpu.health_reason}" if gpu.health_reason else "")
