"""What was measured, beside the aims and beside an extender that does nothing; as JSON and text. Pure."""

from dataclasses import asdict, dataclass

import orjson

from tests.bench.extender_scale.measurement import Measured, Use
from tests.bench.measures import Aim, Durations, durations
from tests.bench.report import table

MOST_P99_MS = 15.0
MOST_RSS_MIB = 300.0

_ABSENT = "-"
_MOST_PROBLEMS = 20


@dataclass(frozen=True, slots=True)
class CallSummary:
    """One kind of call. None if there was none."""

    ours: Durations | None
    do_nothing: Durations | None

    @property
    def p50_ratio(self) -> float | None:
        return None if not (self.ours and self.do_nothing) else self.ours.p50_ms / self.do_nothing.p50_ms

    @property
    def p99_ratio(self) -> float | None:
        return None if not (self.ours and self.do_nothing) else self.ours.p99_ms / self.do_nothing.p99_ms


@dataclass(frozen=True, slots=True)
class Summary:
    """`decision` is a filter and a prioritize of the same pod together; processor time is of one pod."""

    nodes: int
    residents: int
    pods: int
    decision: CallSummary
    filter: CallSummary
    prioritize: CallSummary
    bind: CallSummary
    cpu_ms: float
    do_nothing_cpu_ms: float
    ready_after_s: float
    ready_cpu_s: float
    ready_rss_mib: float
    end_rss_mib: float
    peak_rss_mib: float
    load_average: float
    aims: tuple[Aim, ...]
    problems: tuple[str, ...]

    @property
    def failures(self) -> tuple[str, ...]:
        return (*(aim.line() for aim in self.aims if not aim.met), *self.problems)


def summarize(measured: Measured) -> Summary:
    size, ours, other = measured.size, measured.ours.waits, measured.do_nothing.waits
    decision = CallSummary(durations(ours.decision_s()), durations(other.decision_s()))
    return Summary(
        nodes=size.nodes,
        residents=size.residents,
        pods=size.pods,
        decision=decision,
        filter=CallSummary(durations(ours.filter_s), durations(other.filter_s)),
        prioritize=CallSummary(durations(ours.prioritize_s), durations(other.prioritize_s)),
        bind=CallSummary(durations(ours.bind_s), durations(other.bind_s)),
        cpu_ms=_cpu_ms(measured.ours, size.pods),
        do_nothing_cpu_ms=_cpu_ms(measured.do_nothing, size.pods),
        ready_after_s=measured.ready_after_s,
        ready_cpu_s=measured.ready_cpu_s,
        ready_rss_mib=measured.ready.rss_mib,
        end_rss_mib=measured.end.rss_mib,
        peak_rss_mib=measured.end.peak_rss_mib,
        load_average=measured.load_average,
        aims=_aims(decision, measured.end.peak_rss_mib),
        problems=_problems(measured),
    )


def to_json(summary: Summary) -> bytes:
    options = orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE
    ratios = {"p50": summary.decision.p50_ratio, "p99": summary.decision.p99_ratio}
    more = {"decision_ratios": ratios, "failures": summary.failures}
    return orjson.dumps(asdict(summary) | more, option=options)


def render(summary: Summary) -> str:
    heading = (
        f"{summary.nodes} nodes, {summary.residents} pods on them, {summary.pods} more one at a time; "
        "as waited for by the caller"
    )
    times = (
        "" if not summary.do_nothing_cpu_ms else f" ({summary.cpu_ms / summary.do_nothing_cpu_ms:.2f} times)"
    )
    lines = [
        f"processor time a pod, bind and informers included: {summary.cpu_ms:.2f} ms; "
        f"do nothing: {summary.do_nothing_cpu_ms:.2f} ms{times}",
        f"ready after {summary.ready_after_s:.1f} s, {summary.ready_cpu_s:.1f} s of them processor time",
        f"memory {summary.ready_rss_mib:.0f} MiB when ready, {summary.end_rss_mib:.0f} MiB at the end, "
        f"{summary.peak_rss_mib:.0f} MiB at the peak",
        f"load of the machine before the calls: {summary.load_average:.1f}",
    ]
    verdicts = [aim.line() for aim in summary.aims] + [f"PROBLEM: {problem}" for problem in summary.problems]
    return "\n\n".join([f"{heading}\n{table(_rows(summary))}", "\n".join(lines), "\n".join(verdicts)]) + "\n"


def _aims(decision: CallSummary, peak_rss_mib: float) -> tuple[Aim, ...]:
    memory = Aim("peak RSS", peak_rss_mib, MOST_RSS_MIB, "MiB")
    if decision.ours is None:
        return (memory,)
    return (Aim("filter and prioritize, p99", decision.ours.p99_ms, MOST_P99_MS, "ms"), memory)


def _problems(measured: Measured) -> tuple[str, ...]:
    """Why the figures are not those of extenders that do their work."""
    found = [
        f"{name}: {problem}"
        for name, use in (("ours", measured.ours), ("do nothing", measured.do_nothing))
        for problem in (*use.waits.problems, *_missing(use, measured.size.pods))
    ]
    return (*found, *measured.problems)[:_MOST_PROBLEMS]


def _missing(use: Use, pods: int) -> list[str]:
    bound = len(use.waits.bind_s)
    return [f"{bound} of {pods} pods were bound"] if bound < pods else []


def _cpu_ms(use: Use, pods: int) -> float:
    return 1000 * use.cpu_s / max(1, pods)


def _rows(summary: Summary) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [
        ("call", "p50 ms", "p99 ms", "highest ms", "do nothing: p50", "p99", "p50 ratio", "p99 ratio")
    ]
    named = {
        "filter and prioritize": summary.decision,
        "filter": summary.filter,
        "prioritize": summary.prioritize,
        "bind": summary.bind,
    }
    for name, call in named.items():
        ours, other = call.ours, call.do_nothing
        figures = (None,) * 3 if ours is None else (ours.p50_ms, ours.p99_ms, ours.highest_ms)
        others = (None,) * 2 if other is None else (other.p50_ms, other.p99_ms)
        rows.append((name, *map(_number, (*figures, *others, call.p50_ratio, call.p99_ratio))))
    return rows


def _number(value: float | None) -> str:
    return _ABSENT if value is None else f"{value:.2f}"
