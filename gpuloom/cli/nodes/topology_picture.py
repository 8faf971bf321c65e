"""A node's GPUs as text: who is where, what links them, how they are cut. Pure: facts in, lines out."""

from collections.abc import Iterable

from gpuloom.catalog import load_catalog
from gpuloom.cli.nodes.node_rows import allocated_milli
from gpuloom.model.gpu import MILLI_PER_GPU, DeviceRef, Gpu, GpuHealth
from gpuloom.model.snapshot import NodeFacts
from gpuloom.model.topology import PcieLevel, Topology

_LEVELS = {
    PcieLevel.UNKNOWN: "?",
    PcieLevel.SYS: "SYS",
    PcieLevel.NODE: "NODE",
    PcieLevel.PHB: "PHB",
    PcieLevel.PXB: "PXB",
    PcieLevel.PIX: "PIX",
    PcieLevel.BOARD: "BOARD",
}
_MEANINGS = {
    "NV#": "# NVLinks",
    "BOARD": "one board",
    "PIX": "one PCIe switch",
    "PXB": "several PCIe switches",
    "PHB": "one host bridge",
    "NODE": "one NUMA node",
    "SYS": "across NUMA nodes",
    "?": "not known",
}
_MIB_PER_GIB = 1024
_SLICE_CELLS = 9


def node_picture(facts: NodeFacts) -> list[str]:
    """Everything about one node."""
    state = facts.state
    lines = [f"{state.node_name}  {_summary(facts)}"]
    lines += [f"  not used: {reason}" for reason in facts.untrusted_reasons]
    lines += [f"  {detail}" for detail in facts.details]
    allocated = allocated_milli(facts)
    for numa, gpus in _by_numa(state.gpus):
        lines.append("" if numa is None else f"  NUMA node {numa}")
        for gpu in gpus:
            lines += _gpu_lines(gpu, allocated.get(gpu.uuid, 0), _owners(facts, gpu))
    return [*lines, "", *_matrix(state.topology)] if state.gpus else [*lines, "  no GPUs"]


def shape_pictures(nodes: Iterable[NodeFacts]) -> list[str]:
    """One picture for all nodes that are built alike, the most numerous first."""
    alike: dict[object, list[NodeFacts]] = {}
    for facts in nodes:
        alike.setdefault(_shape(facts), []).append(facts)
    if not alike:
        return ["no GPU nodes"]
    lines: list[str] = []
    groups = sorted(alike.values(), key=lambda group: (-len(group), min(f.state.node_name for f in group)))
    for group in groups:
        names = sorted(facts.state.node_name for facts in group)
        shown = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
        lines += [f"{len(group)} x {_summary(group[0], with_place=False)}", f"  {shown}"]
        lines += _numa_lines(group[0].state.gpus)
        lines += ["", *_matrix(group[0].state.topology), ""]
    return lines[:-1]


def mig_bar(gpu: Gpu) -> str:
    """The memory slices of a GPU from first to last, with what is cut out of them."""
    model = load_catalog().find_gpu(gpu.model)
    instances = sorted(gpu.mig_instances, key=lambda instance: instance.placement)
    end = max((instance.end for instance in instances), default=0)
    slices = max(end, 0 if model is None else model.mig_slices)
    cells, at = [], 0
    for instance in instances:
        if instance.placement.start > at:
            cells.append(_cell("free", instance.placement.start - at, "·"))
        cells.append(_cell(instance.placement.profile, instance.slices, "!" if instance.fault else " "))
        at = max(at, instance.end)
    if at < slices:
        cells.append(_cell("free", slices - at, "·"))
    return f"[{'|'.join(cells)}]" if cells else "[]"


def _cell(text: str, slices: int, fill: str) -> str:
    width = slices * _SLICE_CELLS + slices - 1
    return text[:width].center(width, fill)


def _summary(facts: NodeFacts, *, with_place: bool = True) -> str:
    state = facts.state
    models = ", ".join(
        f"{sum(gpu.model == model for gpu in state.gpus)} x {model}"
        for model in sorted({gpu.model for gpu in state.gpus})
    )
    place = [facts.place.zone, facts.place.rack, facts.place.capacity_type] if with_place else []
    nvswitch = "NVSwitch" if state.topology is not None and state.topology.nvswitch else ""
    return ", ".join(part for part in (models or "no GPUs", nvswitch, f"mode {state.mode}", *place) if part)


def _gpu_lines(gpu: Gpu, milli: int, owners: list[str]) -> list[str]:
    health = "" if gpu.health is GpuHealth.HEALTHY else f"  {gpu.health.value.upper()} {gpu.health_reason}"
    size = f"{gpu.memory_mib / _MIB_PER_GIB:.0f} GiB"
    line = f"    GPU {gpu.index:<2} {gpu.uuid}  {size}  {milli / MILLI_PER_GPU:.0%} allocated{health}"
    lines = [line, *(f"           {owner}" for owner in owners)]
    if gpu.mig_enabled:
        lines.append(f"           {mig_bar(gpu)}")
        faults = (i for i in gpu.mig_instances if i.fault)
        lines += [f"           {i.placement.profile} at {i.placement.start}: {i.fault}" for i in faults]
    return lines


def _owners(facts: NodeFacts, gpu: Gpu) -> list[str]:
    """A prediction counts until the kubelet shows its choice, as everywhere else."""
    found = set()
    shown = {holder.pod.uid for holder in facts.state.holders}
    for allocation in facts.allocations:
        if not (allocation.advisory and allocation.pod.uid in shown):
            predicted = "  (predicted)" if allocation.advisory else ""
            for given in allocation.devices:
                if given.device.gpu_uuid == gpu.uuid:
                    found.add(f"{allocation.pod}  {_part(given.device, given.milli)}{predicted}")
    exact = {allocation.pod.uid for allocation in facts.allocations if not allocation.advisory}
    for holder in facts.state.holders:
        held = [device for device in holder.devices if device.gpu_uuid == gpu.uuid]
        if holder.pod.uid:
            whose = () if holder.pod.uid in exact else held
            found.update(f"{holder.pod}  {_part(device, MILLI_PER_GPU)}" for device in whose)
        elif held:
            pids = ", ".join(map(str, holder.pids[:8]))
            found.add(f"processes of no pod: {pids}" if pids else "held by somebody unknown")
    return sorted(found)


def _part(device: DeviceRef, milli: int) -> str:
    return f"{milli} milli" if device.mig is None else f"{device.mig.profile} at {device.mig.start}"


def _by_numa(gpus: tuple[Gpu, ...]) -> list[tuple[int | None, list[Gpu]]]:
    numbers = sorted({gpu.numa_node for gpu in gpus}, key=lambda number: (number is None, number or 0))
    return [(number, [gpu for gpu in gpus if gpu.numa_node == number]) for number in numbers]


def _numa_lines(gpus: tuple[Gpu, ...]) -> list[str]:
    return [
        f"  NUMA node {number}: GPU {', '.join(str(gpu.index) for gpu in members)}"
        for number, members in _by_numa(gpus)
        if number is not None
    ]


def _matrix(topology: Topology | None) -> list[str]:
    if topology is None:
        return ["  how the GPUs are linked is not known"]
    if topology.gpu_count < 2:
        return []
    names = [f"GPU{index}" for index in range(topology.gpu_count)]
    rows = [["", *names]]
    for a, name in enumerate(names):
        rows.append([name, *("X" if a == b else _link(topology, a, b) for b in range(topology.gpu_count))])
    width = max(len(cell) for row in rows for cell in row) + 1
    lines = ["  " + "".join(cell.ljust(width) for cell in row).rstrip() for row in rows]
    used = {("NV#" if cell.startswith("NV") else cell) for row in rows[1:] for cell in row[1:]} - {"X"}
    legend = ", ".join(f"{key}: {meaning}" for key, meaning in _MEANINGS.items() if key in used)
    return [*lines, f"  {legend}"]


def _link(topology: Topology, a: int, b: int) -> str:
    links = topology.nvlink_count(a, b)
    return f"NV{links}" if links else _LEVELS[topology.pcie_level(a, b)]


def _shape(facts: NodeFacts) -> object:
    """Nodes of one shape differ in names and load only."""
    gpus = facts.state.gpus
    return (
        facts.state.mode,
        tuple((gpu.model, gpu.numa_node, gpu.mig_enabled) for gpu in gpus),
        facts.state.topology,
    )
