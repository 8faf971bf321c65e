"""One screen of a running mesh, as lines that fit the terminal; 80 columns and 24 rows suffice. Pure.

It decides what is left out when the terminal is small; it never reads, waits or prints. Red means that
something is broken: a device with two owners, a GPU that fails, a process that is down. What waits or is not
trusted is yellow.
"""

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from rich.text import Text

from gpuloom.cli.nodes.node_rows import closed_texts, unhealthy_texts
from gpuloom.cli.run.node_bars import nodes_section
from gpuloom.cli.run.observation import MeshView
from gpuloom.model.gpu import MILLI_PER_GPU
from gpuloom.model.ledger import Decision, Verdict
from gpuloom.model.money import usd
from gpuloom.sim.processes.supervisor import ProcessState

BROKEN = "bold red"
WAITING = "yellow"
STALE_FACTS_S = 15.0
MOST_REASONS = 4
MOST_PROBLEMS = 5
ROOMY_HEIGHT = 32
LEAST_DECISIONS = 3
_VERDICT_STYLES = {Verdict.BOUND: "green", Verdict.REFUSED: WAITING, Verdict.BIND_FAILED: WAITING}


@dataclass(frozen=True, slots=True)
class Frame:
    """What does not change during a run. `addresses` are shown as they are, the most useful first."""

    title: str
    addresses: Mapping[str, str]
    duration_s: float | None = None


def render(frame: Frame, view: MeshView, width: int, height: int) -> list[Text]:
    """At most `height` lines of at most `width` cells."""
    # A small terminal can do without most addresses, and with the first reasons and problems.
    roomy = height >= ROOMY_HEIGHT
    addresses = _addresses(frame)[: None if roomy else 2]
    top = [
        _header(frame, view),
        _pods(view, width),
        *_reasons(view.pods.pending_reasons, width, MOST_REASONS if roomy else 2),
        _checks(view),
        *_cost(view),
        *_inference(view, width),
        *_problems(view, width, MOST_PROBLEMS if roomy else 3),
    ]
    bottom = [Text(""), *addresses]
    room = height - len(top) - len(bottom)
    nodes = nodes_section(view.nodes, view.allocated_milli, width, max(2, room - LEAST_DECISIONS - 2))
    decisions = _decisions(view.decisions, width, room - len(nodes))
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
    return line


def _pods(view: MeshView, width: int) -> Text:
    """Where they were placed is told if there is room for it."""
    pods = view.pods
    modes = ", ".join(f"{count} {mode}" for mode, count in pods.placed_by_mode.items())
    failed = f" ({pods.failed} failed)" if pods.failed else ""
    for where in (f" ({modes})" if modes else "", ""):
        line = Text.assemble(("Pods  ", "bold"), (f"{pods.placed} placed", "green"), where)
        line.append(f"   {pods.running} running   {pods.finished} finished{failed}")
        line.append(f"   {pods.pending} pending", WAITING if pods.pending else "")
        if line.cell_len <= width:
            break
    return line


def _reasons(counts: Mapping[str, int], width: int, most: int) -> list[Text]:
    reasons = list(counts.items())
    lines = []
    for reason, count in reasons[:most]:
        first, *rest = _wrapped(reason, width - 8) or [""]
        lines += [f"  {count:>4}  {first}", *(f"        {part}" for part in rest)]
    hidden = sum(count for _, count in reasons[most:])
    if hidden:
        lines.append(f"  {hidden:>4}  for other reasons")
    return [Text(line, WAITING) for line in lines]


def _cost(view: MeshView) -> list[Text]:
    """What the cluster costs, and how much of that did something."""
    summary = view.cost
    if summary is None:
        return []
    total = summary.total
    line = Text.assemble(("Cost  ", "bold"), f"{usd(summary.nano_usd_per_hour):,.2f} USD/h")
    line.append(f"   {usd(total.cost):,.4f} so far")
    if total.cost:
        shares = (("used", total.used), ("idle", total.idle), ("unknown", total.unknown))
        line.append(": " + ", ".join(f"{amount / total.cost:.0%} {name}" for name, amount in shares))
        line.append(f", {total.unallocated / total.cost:.0%} not allocated")
    if summary.unpriced_nodes:
        line.append(f"   {summary.unpriced_nodes} nodes without a price", WAITING)
    return [line]


def _inference(view: MeshView, width: int) -> list[Text]:
    """How many replicas each inference service has, and why."""
    lines = []
    for one in view.inference:
        line = Text.assemble(("Inference  ", "bold"), f"{one.name} {one.ready_replicas} ready")
        if one.starting_replicas:
            line.append(f", {one.starting_replicas} starting", WAITING)
        if one.current_replicas is not None:
            line.append(f" of {one.current_replicas}")
        line.append(f"   {one.message}", WAITING if one.obstacle else "")
        line.truncate(width, overflow="ellipsis")
        lines.append(line)
    return lines


def _checks(view: MeshView) -> Text:
    """What must hold all the time: no device with two owners, and every process up."""
    running = sum(process.state is ProcessState.RUNNING for process in view.processes)
    all_run = running == len(view.processes)
    line = Text("Audit ", "bold")
    if view.audit is None:
        line.append("not read yet", "dim")
    else:
        double = len(view.audit.double_bookings)
        line.append(f"{double} double bookings", BROKEN if double else "green")
        line.append(f" in {view.audit.starts} starts", "default")
    line.append("   Processes ", "bold")
    line.append(f"{running}/{len(view.processes)} running", "default" if all_run else BROKEN)
    if view.restarts:
        line.append(f", {view.restarts} restarts", "dim")
    if view.claims:
        told = ", ".join(f"{count} {state}" for state, count in view.claims.items())
        line.append("   Cloud ", "bold")
        line.append(told, "default")
    return line


def _problems(view: MeshView, width: int, most: int) -> list[Text]:
    """What is broken first."""
    found = [(text, BROKEN) for text in _broken(view)] + [(text, WAITING) for text in _closed(view)]
    hidden = len(found) - most + 1
    if hidden > 1:
        found[most - 1 :] = [(f"and {hidden} more problems", found[most - 1][1])]
    return [Text(f"  {line}", style) for text, style in found for line in _wrapped(text, width - 2)]


def _broken(view: MeshView) -> Iterator[str]:
    if view.audit is not None:
        yield from map(str, view.audit.findings)
    for process in view.processes:
        if process.state is not ProcessState.RUNNING:
            why = f", it {process.last_exit}" if process.last_exit else ""
            yield f"{process.name} is {_STATE_WORDS[process.state]}{why}"
    if view.facts_age_s > STALE_FACTS_S:
        yield "discovery is silent: devices are shown as last heard"
    for facts in view.nodes:
        yield from (f"{facts.state.node_name}: {text}" for text in unhealthy_texts(facts))


_STATE_WORDS = {
    ProcessState.STARTING: "starting",
    ProcessState.RUNNING: "running",
    ProcessState.WAITING: "down",
    ProcessState.GIVEN_UP: "down for good",
    ProcessState.STOPPED: "stopped",
}


def _closed(view: MeshView) -> Iterator[str]:
    """What is not used for now, and why; nobody has to do anything about it."""
    if view.fault is not None:
        yield f"injected fault, heals by itself: {view.fault}"
    for facts in view.nodes:
        yield from (f"{facts.state.node_name}: {text}" for text in closed_texts(facts))


def _decisions(decisions: Sequence[Decision], width: int, rows: int) -> list[Text]:
    """The newest first, as many as there is room for."""
    if rows < 3:
        return []
    newest = list(reversed(decisions[-rows:]))
    pod_width = min(28, max((len(str(decision.pod)) for decision in newest), default=0))
    lines = [Text(""), Text("Last decisions", "bold")]
    for decision in newest:
        told = _decision(decision, pod_width, width)
        if len(lines) + len(told) > rows:
            break
        lines += told
    return lines


def _decision(decision: Decision, pod_width: int, width: int) -> list[Text]:
    line = Text(f"  {decision.time:%H:%M:%S}  ", "dim")
    line.append(f"{decision.verdict:<11}", _VERDICT_STYLES[decision.verdict])
    line.append(f"  {decision.pod!s:<{pod_width}}", "")
    if decision.node_name:
        line.append(f"  {decision.node_name}", "")
    if decision.devices:
        line.append(f"  {_devices_text(decision)}", "")
    if not decision.reason:
        return [line]
    if line.cell_len + 2 + len(decision.reason) <= width:
        return [line.append(f"  {decision.reason}", "dim")]
    return [line, *(Text(f"            {part}", "dim") for part in _wrapped(decision.reason, width - 12))]


def _devices_text(decision: Decision) -> str:
    count, first = len(decision.devices), decision.devices[0]
    if first.device.mig is not None:
        return f"{count} x {first.device.mig.profile}"
    if first.milli < MILLI_PER_GPU:
        return f"{first.milli} milli of a GPU"
    return "1 GPU" if count == 1 else f"{count} GPUs"


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, max(10, width), max_lines=2, placeholder=" …")


def _addresses(frame: Frame) -> list[Text]:
    width = max((len(name) for name in frame.addresses), default=0)
    return [
        Text.assemble((f"{name:<{width}}  ", "bold"), address) for name, address in frame.addresses.items()
    ]


def _clock_text(seconds: float) -> str:
    whole = int(seconds)
    return f"{whole // 60}:{whole % 60:02d}"
