"""How a run ended: the last word to people and to scripts, and the exit code. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuloom.cli.output import exits
from gpuloom.cli.run.tally import PodCounts
from gpuloom.sim.machines.audit import AuditReport

MOST_REASONS = 8
MOST_FINDINGS = 5
MOST_FAULTS = 8


@dataclass(frozen=True, slots=True)
class RunSummary:
    """`failure` says why the run ended before its time, or is empty. Restarts are by process.

    `faults` were injected on purpose; they make no run a bad one.
    """

    duration_s: float
    nodes: int
    seed: int
    pods: PodCounts
    audit: AuditReport
    restarts: Mapping[str, int]
    given_up: tuple[str, ...]
    logs: Path
    failure: str = ""
    faults: tuple[str, ...] = ()

    @property
    def problems(self) -> tuple[str, ...]:
        """Everything that makes this run a bad one."""
        problems = [self.failure] if self.failure else []
        problems += [f"{name} was given up" for name in self.given_up if not self.failure]
        if self.audit.double_bookings:
            problems.append(f"{len(self.audit.double_bookings)} double bookings")
        elif not self.audit.clean:
            problems.append("the kubelets' journals are corrupt")
        if not self.pods.placed:
            problems.append("no pod was placed")
        return tuple(problems)

    @property
    def exit_code(self) -> int:
        return exits.NO if self.problems else exits.FINE


def as_text(summary: RunSummary) -> str:
    pods, audit = summary.pods, summary.audit
    modes = ", ".join(f"{count} on {mode} nodes" for mode, count in pods.placed_by_mode.items())
    restarted = ", ".join(f"{name} {count}" for name, count in summary.restarts.items() if count)
    checked = f"{audit.starts} starts and {audit.ends} ends on {audit.machines} machines checked"
    lines = [
        f"GPULoom ran {summary.duration_s:.0f} s on {summary.nodes} simulated nodes with seed {summary.seed}",
        _row("pods placed", pods.placed, modes),
        _row("running at the end", pods.running),
        _row("finished", pods.finished, f"{pods.failed} of them failed" if pods.failed else ""),
        _row("pending at the end", pods.pending),
        *_reason_rows(pods),
        _row("withdrawn", pods.withdrawn, "deleted before they could be placed" if pods.withdrawn else ""),
        _row("faults injected", len(summary.faults), "--no-faults runs without" if summary.faults else ""),
        *(f"    {fault}" for fault in summary.faults[:MOST_FAULTS]),
        _row("restarts", sum(summary.restarts.values()), restarted),
        _row("double bookings", len(audit.double_bookings), checked),
        *(f"    {finding}" for finding in audit.findings[:MOST_FINDINGS]),
        _row("refused by kubelets", len(audit.refusals)),
        f"Logs are in {summary.logs}",
        *(f"FAILED: {problem}" for problem in summary.problems),
    ]
    return "\n".join(lines)


def as_json(summary: RunSummary) -> dict[str, Any]:
    pods, audit = summary.pods, summary.audit
    return {
        "duration_s": round(summary.duration_s, 1),
        "nodes": summary.nodes,
        "seed": summary.seed,
        "pods": {
            "placed": pods.placed,
            "placed_by_mode": {mode.value: count for mode, count in pods.placed_by_mode.items()},
            "running": pods.running,
            "succeeded": pods.succeeded,
            "failed": pods.failed,
            "withdrawn": pods.withdrawn,
            "pending": pods.pending,
            "pending_reasons": dict(pods.pending_reasons),
        },
        "faults": list(summary.faults),
        "restarts": dict(summary.restarts),
        "given_up": list(summary.given_up),
        "audit": {
            "machines": audit.machines,
            "starts": audit.starts,
            "ends": audit.ends,
            "double_bookings": [str(finding) for finding in audit.double_bookings],
            "findings": [str(finding) for finding in audit.findings],
            "refusals": list(audit.refusals),
        },
        "problems": list(summary.problems),
        "logs": str(summary.logs),
    }


def _row(title: str, count: int, remark: str = "") -> str:
    return f"  {title:<20}{count:>6}   {remark}".rstrip()


def _reason_rows(pods: PodCounts) -> list[str]:
    reasons = list(pods.pending_reasons.items())
    rows = [f"    {count:>4}  {reason}" for reason, count in reasons[:MOST_REASONS]]
    rest = sum(count for _, count in reasons[MOST_REASONS:])
    return [*rows, f"    {rest:>4}  for {len(reasons) - MOST_REASONS} other reasons"] if rest else rows
