"""One screen of a running mesh, as lines that fit the terminal. Pure: a view in, lines out.

It decides what is left out when the terminal is small; it never reads, waits or prints.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.text import Text

from gpuloom.cli.bars import Bar, narrow_bar, wide_bar
from gpuloom.cli.observation import MeshView
from gpuloom.model.gpu import MILLI_PER_GPU, GpuHealth
from gpuloom.model.ledger import Decision, Verdict
from gpuloom.model.snapshot import NodeFacts
from gpuloom.sim.supervisor import ProcessState

STALE_FACTS_S = 15.0
MOST_REASONS = 4
ROOMY_HEIGHT = 32
LEAST_DECISIONS = 3
_GRID_GAP = 2
_VERDICT_STYLES = {Verdict.BOUND: "green", Verdict.REFUSED: "yellow", Verdict.BIND_FAILED: "red"}


@dataclass(frozen=True, slots=True)
class Frame:
    """What does not change during a run. `addresses` are shown as they are, name by name."""

    title: str
    addresses: Mapping[str, str]
    duration_s: float | None = None


def render(frame: Frame, view: MeshView, width: int, height: int) -> list[Text]:
    """At most `height` lines of at most `width` cells."""
    top = [_header(frame, view), *_pods(view)]
    # What to look at elsewhere is the first thing that a small terminal can do without.
    addresses = _addresses(frame) if height >= ROOMY_HEIGHT else _addresses(frame)[:1]
    bottom = [Text(""), _processes(view), *addresses]
    room = height - len(top) - len(bottom)
    nodes = _nodes(view, width, max(2, room - LEAST_DECISIONS - 2))
    decisions = _decisions(view.decisions, room - len(nodes))
    lines = [*top, *nodes, *decisions]
    lines += [Text("")] * max(0, height - len(lines) - len(bottom))
    lines = [*lines, *bottom][:height]
    for line in lines:
        line.no_wrap = True
        line.truncate(width, overflow="ellipsis")
    return lines


def _header(frame: Frame, view: MeshView) -> Text:
    gpus = [gpu for facts in view.nodes for gpu in facts.state.gpus]
    allocated = sum(view.allocated_milli.get(gpu.uuid, 0) for gpu in gpus)
    busy = [
        usage.utilization_ratio
        for facts in view.nodes
        for usage in facts.state.usage
        if usage.utilization_ratio is not None
    ]
    end = f" of {_clock_text(frame.duration_s)}" if frame.duration_s is not None else ""
    line = Text.assemble((f" {frame.title} ", "bold reverse"), f"  {_clock_text(view.elapsed_s)}{end}")
    line.append(f"   {len(view.nodes)} nodes, {len(gpus)} GPUs")
    if gpus:
        line.append(f", {allocated / MILLI_PER_GPU / len(gpus):.0%} allocated")
    if busy:
        line.append(f", {sum(busy) / len(busy):.0%} busy")
    if view.facts_age_s > STALE_FACTS_S:
        line.append("   discovery is silent: devices as last heard", "bold red")
    return line


def _pods(view: MeshView) -> list[Text]:
    pods = view.pods
    modes = ", ".join(f"{mode} {count}" for mode, count in pods.placed_by_mode.items())
    line = Text.assemble(
        ("Pods  ", "bold"),
        (f"{pods.placed} placed", "green"),
        f" ({modes})" if modes else "",
        f"   {pods.running} running   {pods.finished} finished",
        f" ({pods.failed} failed)" if pods.failed else "",
    )
    line.append(f"   {pods.pending} pending", "yellow" if pods.pending else "")
    reasons = list(pods.pending_reasons.items())
    lines = [line, *(Text(f"  {count:>4}  {reason}", "yellow") for reason, count in reasons[:MOST_REASONS])]
    rest = sum(count for _, count in reasons[MOST_REASONS:])
    return [*lines, Text(f"  {rest:>4}  for other reasons", "yellow")] if rest else lines


def _nodes(view: MeshView, width: int, rows: int) -> list[Text]:
    """A row per node with wide bars, or a grid with narrow ones when there are more nodes than rows."""
    legend = Text.assemble(
        ("Nodes ", "bold"),
        ("fill: allocated   colour: ", "dim"),
        ("idle", "blue"),
        (" ", ""),
        ("low", "green"),
    )
    legend.append(" ").append("busy", "yellow").append(" ").append("full", "red")
    legend.append("   x unhealthy   ? untrusted", "dim")
    lines = [Text(""), legend]
    rows -= len(lines)
    if len(view.nodes) <= rows:
        name_width = max((len(facts.state.node_name) for facts in view.nodes), default=0)
        return [*lines, *(_node_row(facts, view.allocated_milli, name_width) for facts in view.nodes)]
    return [*lines, *_node_grid(view, width, max(1, rows))]


def _node_row(facts: NodeFacts, allocated: Mapping[str, int], name_width: int) -> Text:
    state = facts.state
    model = state.gpus[0].model if state.gpus else "no GPU"
    line = Text(f"  {state.node_name:<{name_width}}  {state.mode:<7}  {model:<22.22}  ")
    for bar in _bars_of(facts, allocated):
        line.append_text(wide_bar(bar)).append(" ")
    if facts.untrusted_reasons:
        line.append(f" {'; '.join(facts.untrusted_reasons)}", "red")
    return line


def _node_grid(view: MeshView, width: int, rows: int) -> list[Text]:
    cells = [_node_cell(facts, view.allocated_milli) for facts in view.nodes]
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


def _node_cell(facts: NodeFacts, allocated: Mapping[str, int]) -> Text:
    cell = Text(f"{facts.state.node_name} {facts.state.mode[:1]} ")
    for bar in _bars_of(facts, allocated):
        cell.append_text(narrow_bar(bar))
    return cell


def _bars_of(facts: NodeFacts, allocated: Mapping[str, int]) -> list[Bar]:
    busy = {usage.gpu_uuid: usage.utilization_ratio for usage in facts.state.usage}
    return [
        Bar(
            allocated_ratio=allocated.get(gpu.uuid, 0) / MILLI_PER_GPU,
            utilization_ratio=busy.get(gpu.uuid),
            unhealthy=gpu.health in (GpuHealth.UNHEALTHY, GpuHealth.LOST),
            untrusted=not facts.trusted,
        )
        for gpu in facts.state.gpus
    ]


def _decisions(decisions: Sequence[Decision], rows: int) -> list[Text]:
    """The newest first."""
    if rows < 3:
        return []
    newest = [_decision(decision) for decision in reversed(decisions[-(rows - 2) :])]
    return [Text(""), Text("Last decisions", "bold"), *newest]


def _decision(decision: Decision) -> Text:
    line = Text(f"  {decision.time:%H:%M:%S}  ", "dim")
    line.append(f"{decision.verdict:<11}", _VERDICT_STYLES[decision.verdict])
    line.append(f"  {decision.pod!s:<28}", "")
    if decision.node_name:
        line.append(f"  on {decision.node_name}", "")
    if decision.devices:
        line.append(f": {_devices_text(decision)}", "")
    if decision.reason:
        line.append(f"  {decision.reason}", "dim")
    return line


def _devices_text(decision: Decision) -> str:
    count, milli = len(decision.devices), decision.devices[0].milli
    if milli < MILLI_PER_GPU:
        return f"{milli} milli of a GPU"
    return "1 GPU" if count == 1 else f"{count} GPUs"


def _processes(view: MeshView) -> Text:
    running = sum(process.state is ProcessState.RUNNING for process in view.processes)
    line = Text.assemble(("Processes  ", "bold"), f"{running} of {len(view.processes)} running")
    for process in view.processes:
        if process.state is not ProcessState.RUNNING:
            why = f", it {process.last_exit}" if process.last_exit else ""
            line.append(f"   {process.name} {process.state}{why}", "bold red")
        elif process.restarts:
            line.append(f"   {process.name} restarted {process.restarts} times", "yellow")
    return line


def _addresses(frame: Frame) -> list[Text]:
    width = max((len(name) for name in frame.addresses), default=0)
    return [
        Text.assemble((f"{name:<{width}}  ", "bold"), address) for name, address in frame.addresses.items()
    ]


def _clock_text(seconds: float) -> str:
    whole = int(seconds)
    return f"{whole // 60}:{whole % 60:02d}"
