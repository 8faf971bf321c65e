"""The nodes of a screen: a row each with wide bars, or a grid where there are more nodes than rows. Pure."""

from collections.abc import Mapping, Sequence

from rich.text import Text

from gpuloom.cli.run.bars import LOAD_STYLES, WIDE_CELLS, Bar, narrow_bar, wide_bar
from gpuloom.model.gpu import MILLI_PER_GPU, DeviceRef, Gpu, GpuHealth
from gpuloom.model.snapshot import NodeFacts

_GRID_GAP = 2


def nodes_section(
    nodes: Sequence[NodeFacts], allocated: Mapping[str, int], width: int, rows: int
) -> list[Text]:
    """With a blank line and a legend above; at least one row of nodes."""
    rows -= 2
    if len(nodes) <= rows:
        return [Text(""), _legend("fill: allocated"), *_node_rows(nodes, allocated, width)]
    return [Text(""), _legend("n nvidia, g gpuloom"), *_node_grid(nodes, allocated, width, max(1, rows))]


def _legend(first: str) -> Text:
    legend = Text.assemble(("Nodes ", "bold"), (f"{first}, colour:", "dim"))
    for word, style in LOAD_STYLES.items():
        legend.append(f" {word}", style)
    return legend.append(", ", "dim").append("■ cut", "magenta").append(", x bad, ? untrusted", "dim")


def _node_rows(nodes: Sequence[NodeFacts], allocated: Mapping[str, int], width: int) -> list[Text]:
    """All bars as wide as leaves room for those of the largest node."""
    name_width = max((len(facts.state.node_name) for facts in nodes), default=0)
    model_width = max((len(_model(facts)) for facts in nodes), default=0)
    most_gpus = max((len(facts.state.gpus) for facts in nodes), default=0)
    left = width - name_width - model_width - 15
    cells = max(1, min(WIDE_CELLS, left // max(1, most_gpus) - 1))
    lines = []
    for facts in nodes:
        state = facts.state
        line = Text(f"  {state.node_name:<{name_width}}  {state.mode:<7}  {_model(facts):<{model_width}} ")
        for bar in _bars_of(facts, allocated):
            line.append(" ").append_text(wide_bar(bar, cells))
        lines.append(line)
    return lines


def _model(facts: NodeFacts) -> str:
    return facts.state.gpus[0].model[:22] if facts.state.gpus else "no GPU"


def _node_grid(nodes: Sequence[NodeFacts], allocated: Mapping[str, int], width: int, rows: int) -> list[Text]:
    name_width = max(len(facts.state.node_name) for facts in nodes)
    cells = [_node_cell(facts, allocated, name_width) for facts in nodes]
    cell_width = max(cell.cell_len for cell in cells) + _GRID_GAP
    columns = max(1, (width - _GRID_GAP) // cell_width)
    hidden = len(cells) - rows * columns
    if hidden > 0:
        rows -= 1
        hidden = len(cells) - rows * columns
    lines = []
    for start in range(0, min(len(cells), rows * columns), columns):
        line = Text("  ")
        for cell in cells[start : start + columns]:
            cell.pad_right(cell_width - cell.cell_len)
            line.append_text(cell)
        lines.append(line)
    return [*lines, Text(f"  and {hidden} more nodes", "dim")] if hidden > 0 else lines


def _node_cell(facts: NodeFacts, allocated: Mapping[str, int], name_width: int) -> Text:
    cell = Text(f"{facts.state.node_name:<{name_width}} {facts.state.mode[:1]} ")
    for bar in _bars_of(facts, allocated):
        cell.append_text(narrow_bar(bar))
    return cell


def _bars_of(facts: NodeFacts, allocated: Mapping[str, int]) -> list[Bar]:
    busy = {usage.gpu_uuid: usage.utilization_ratio for usage in facts.state.usage}
    given = frozenset(device.device for one in facts.allocations for device in one.devices) | frozenset(
        device for holder in facts.state.holders for device in holder.devices
    )
    return [
        Bar(
            allocated_ratio=allocated.get(gpu.uuid, 0) / MILLI_PER_GPU,
            utilization_ratio=busy.get(gpu.uuid),
            unhealthy=gpu.health in (GpuHealth.UNHEALTHY, GpuHealth.LOST),
            untrusted=not facts.trusted,
            slices=_slices_of(gpu, given),
        )
        for gpu in facts.state.gpus
    ]


def _slices_of(gpu: Gpu, given: frozenset[DeviceRef]) -> str:
    if gpu.changing:
        return "*"
    if not gpu.mig_enabled:
        return ""
    end = max((instance.end for instance in gpu.mig_instances), default=1)
    text = ["."] * max(8, end)
    for instance in gpu.mig_instances:
        used = DeviceRef(gpu.uuid, instance.placement) in given
        mark = "*" if instance.changing else "#" if used else "="
        text[instance.placement.start : instance.end] = mark * instance.slices
    return "".join(text)
