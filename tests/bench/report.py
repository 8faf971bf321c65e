"""The result of a run as JSON and as tables for people. Pure."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tests.bench.measures import Durations, Spread, durations, ratios, spread
from tests.bench.rounds import FILTER_WAITED, RoundResult
from tests.bench.variants import DO_NOTHING, Variant

CALLS = (FILTER_WAITED, "filter", "prioritize", "bind")
_ABSENT = "-"


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What every number of a run belongs to."""

    nodes: int
    modes: tuple[str, ...]
    pods: int
    rounds: int
    seed: int
    shortlist: int
    cores: int
    profiled: bool
    started: str

    def label(self) -> str:
        profiled = ", PROFILED: figures of ours compare to nothing" if self.profiled else ""
        return (
            f"{self.nodes} nodes ({' and '.join(self.modes)}, 8 GPUs each), {self.pods} pods a burst, "
            f"{self.rounds} rounds, shortlist {self.shortlist}, {self.cores} cores{profiled}"
        )


@dataclass(frozen=True, slots=True)
class ProcessSummary:
    """Processor time of a burst, and the highest peak of all rounds."""

    cpu_s: Spread
    peak_rss_mib: float


@dataclass(frozen=True, slots=True)
class CallRatios:
    p50: float
    p99: float


@dataclass(frozen=True, slots=True)
class VariantSummary:
    variant: Variant
    pods_per_s: Spread | None
    ratio_to_bare: Spread | None
    cpu_ratio_to_bare: Spread | None
    """Of the processor time that a pod takes in all processes together."""
    calls: Mapping[str, Durations]
    ratios_to_noop: Mapping[str, Mapping[str, CallRatios]]
    """By do-nothing variant and call."""
    processes: Mapping[str, ProcessSummary]
    writes_per_pod: Mapping[str, float]
    problems: tuple[str, ...]


def summarize(results: Sequence[RoundResult]) -> list[VariantSummary]:
    """One summary per variant, in the order of `Variant`."""
    variants = [variant for variant in Variant if any(result.variant is variant for result in results)]
    of = {variant: [result for result in results if result.variant is variant] for variant in variants}
    bare, bare_cpu = _rates(of.get(Variant.BARE, ())), _cpu(of.get(Variant.BARE, ()))
    calls = {variant: _calls(of[variant]) for variant in variants}
    return [
        VariantSummary(
            variant=variant,
            pods_per_s=spread(list(_rates(of[variant]).values())),
            ratio_to_bare=spread(ratios(_rates(of[variant]), bare)),
            cpu_ratio_to_bare=spread(ratios(_cpu(of[variant]), bare_cpu)),
            calls=calls[variant],
            ratios_to_noop={
                other.value: _call_ratios(calls[variant], calls.get(other, {}))
                for other in DO_NOTHING
                if other is not variant
            },
            processes=_processes(of[variant]),
            writes_per_pod=_writes_per_pod(of[variant]),
            problems=tuple(
                f"round {result.number}: {problem}" for result in of[variant] for problem in result.problems
            ),
        )
        for variant in variants
    ]


def to_json(facts: RunFacts, results: Sequence[RoundResult]) -> dict[str, Any]:
    return {
        "run": asdict(facts),
        "variants": {summary.variant.value: asdict(summary) for summary in summarize(results)},
        "rounds": [asdict(result) for result in results],
    }


def render(facts: RunFacts, summaries: Sequence[VariantSummary]) -> str:
    sections = (
        ("pods/s, first to last binding; ratio to bare within the same round", _throughput(summaries)),
        ("calls during the burst, all rounds; ratios to the do-nothing extenders", _call_rows(summaries)),
        ("processor time of a burst (median of rounds) and highest memory", _process_rows(summaries)),
        ("API writes per pod", _write_rows(summaries)),
    )
    parts = [facts.label()]
    parts += [f"{title}\n{table(rows)}" for title, rows in sections if len(rows) > 1]
    problems = [f"PROBLEM {entry.variant}: {text}" for entry in summaries for text in entry.problems]
    return "\n\n".join(parts + (["\n".join(problems)] if problems else [])) + "\n"


def table(rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as they must be: the first to the left, the others to the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        lines.append("  ".join(["  " + row[0].ljust(widths[0]), *cells]).rstrip())
    return "\n".join(lines)


def _throughput(summaries: Iterable[VariantSummary]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [
        ("variant", "median", "lowest", "highest", "ratio to bare", "lowest", "highest", "CPU a pod, ratio")
    ]
    return rows + [
        (
            entry.variant,
            *_cells(entry.pods_per_s, 1),
            *_cells(entry.ratio_to_bare, 2),
            _cells(entry.cpu_ratio_to_bare, 2)[0],
        )
        for entry in summaries
    ]


def _call_rows(summaries: Iterable[VariantSummary]) -> list[tuple[str, ...]]:
    heads = tuple(f"{part} / {other}" for other in DO_NOTHING for part in ("p50", "p99"))
    rows: list[tuple[str, ...]] = [("call", "count", "p50 ms", "p99 ms", "highest ms", *heads)]
    for entry in summaries:
        for call, took in entry.calls.items():
            found = [entry.ratios_to_noop.get(other, {}).get(call) for other in DO_NOTHING]
            compared = (_number(value, 2) for one in found for value in _parts(one))
            figures = (_number(value, 2) for value in (took.p50_ms, took.p99_ms, took.highest_ms))
            rows.append((f"{entry.variant} {call}", str(took.count), *figures, *compared))
    return rows


def _parts(found: CallRatios | None) -> tuple[float | None, float | None]:
    return (None, None) if found is None else (found.p50, found.p99)


def _process_rows(summaries: Iterable[VariantSummary]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [("process", "CPU s", "lowest", "highest", "peak RSS MiB")]
    for entry in summaries:
        for name, use in entry.processes.items():
            rows.append((f"{entry.variant} {name}", *_cells(use.cpu_s, 2), _number(use.peak_rss_mib, 0)))
    return rows


def _write_rows(summaries: Iterable[VariantSummary]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [("variant", "all", "of which")]
    for entry in summaries:
        parts = ", ".join(f"{what} {count:.2f}" for what, count in entry.writes_per_pod.items())
        rows.append((entry.variant, _number(sum(entry.writes_per_pod.values()), 2), parts or _ABSENT))
    return rows


def _rates(results: Iterable[RoundResult]) -> dict[int, float]:
    return {result.number: result.pods_per_s for result in results if result.pods_per_s is not None}


def _cpu(results: Iterable[RoundResult]) -> dict[int, float]:
    """Processor time a pod, of all processes together."""
    return {
        result.number: sum(use.cpu_s for use in result.processes.values()) / result.pods
        for result in results
        if result.pods_per_s is not None and result.processes
    }


def _calls(results: Sequence[RoundResult]) -> dict[str, Durations]:
    found = {}
    for verb in CALLS:
        took = durations([seconds for result in results for seconds in result.calls.get(verb, ())])
        if took is not None:
            found[verb] = took
    return found


def _call_ratios(own: Mapping[str, Durations], other: Mapping[str, Durations]) -> dict[str, CallRatios]:
    return {
        call: CallRatios(own[call].p50_ms / other[call].p50_ms, own[call].p99_ms / other[call].p99_ms)
        for call in own
        if call in other
    }


def _processes(results: Sequence[RoundResult]) -> dict[str, ProcessSummary]:
    summaries = {}
    for name in dict.fromkeys(name for result in results for name in result.processes):
        uses = [result.processes[name] for result in results if name in result.processes]
        used = spread([use.cpu_s for use in uses])
        if used is not None:
            summaries[name] = ProcessSummary(used, max(use.peak_rss_mib for use in uses))
    return summaries


def _writes_per_pod(results: Sequence[RoundResult]) -> dict[str, float]:
    """Median of the rounds; what is not even one in a thousand pods is left out."""
    per_pod = {}
    for what in sorted({what for result in results for what in result.writes}):
        value = statistics.median(result.writes.get(what, 0) / result.pods for result in results)
        if value >= 0.001:
            per_pod[what] = value
    return per_pod


def _cells(found: Spread | None, digits: int) -> tuple[str, str, str]:
    if found is None:
        return _ABSENT, _ABSENT, _ABSENT
    return _number(found.median, digits), _number(found.lowest, digits), _number(found.highest, digits)


def _number(value: float | None, digits: int) -> str:
    return _ABSENT if value is None else f"{value:.{digits}f}"
