"""What the measurements mean: the aims, and how costs grow with the cluster; as JSON and as tables. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain

import orjson

from tests.bench.discovery_scale.measurement import Measured
from tests.bench.measures import Aim, Durations, durations, percentile
from tests.bench.report import table

MOST_P99_MS = 250.0
MOST_RSS_MIB = 400.0
MOST_CPU_SHARE = 0.10

_ABSENT = "-"


@dataclass(frozen=True, slots=True)
class SizeSummary:
    """`change_ms` is from an agent's word to a reader's mirror, over all readers; None if none arrived.
    `reader_p99_ms` is the same for each reader alone.

    `message_yardsticks` is the processor time of a message heard, in pieces of fixed work of the same minute.
    """

    nodes: int
    pods: int
    readers: int
    synced_after_s: float
    change_ms: Durations | None
    reader_p99_ms: Mapping[str, float]
    messages_in_per_s: float
    deltas_out_per_s: float
    kib_out_per_s: float
    cpu_share: float
    message_us: float
    message_yardsticks: float
    rss_mib: float
    peak_rss_mib: float


@dataclass(frozen=True, slots=True)
class Summary:
    """Sizes, the smallest first; the aims are of the largest. `growth` is from the first to the last."""

    sizes: tuple[SizeSummary, ...]
    growth: Mapping[str, float]
    aims: tuple[Aim, ...]
    problems: tuple[str, ...]

    @property
    def failures(self) -> tuple[str, ...]:
        return (*(aim.line() for aim in self.aims if not aim.met), *self.problems)


def summarize(measured: Sequence[Measured]) -> Summary:
    sizes = tuple(_size(one) for one in sorted(measured, key=lambda one: one.size.nodes))
    return Summary(
        sizes=sizes,
        growth=_growth(sizes[0], sizes[-1]) if len(sizes) > 1 else {},
        aims=_aims(sizes[-1]),
        problems=tuple(problem for one in measured for problem in _problems(one)),
    )


def to_json(summary: Summary) -> bytes:
    options = orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE
    return orjson.dumps({**asdict(summary), "failures": summary.failures}, option=options)


def render(summary: Summary) -> str:
    parts = [f"discovery, by the size of the cluster\n{table(_rows(summary))}"]
    lines = [aim.line() for aim in summary.aims] + [f"PROBLEM: {problem}" for problem in summary.problems]
    return "\n\n".join([*parts, "\n".join(lines)]) + "\n"


def latencies_s(measured: Measured) -> dict[str, list[float]]:
    """Of every change, by reader. Both hear of it by streams: the reader's may be the faster one."""
    told_s = measured.told_s
    return {
        reader: [max(0.0, seen[mark] - told_s[mark]) for mark in told_s if mark in seen]
        for reader, seen in measured.seen_s.items()
    }


def _size(measured: Measured) -> SizeSummary:
    rest, size = measured.rest, measured.size
    message_s = rest.cpu_s / max(1, rest.own.messages_in)
    waits_s = latencies_s(measured)
    return SizeSummary(
        nodes=size.nodes,
        pods=size.pods,
        readers=size.readers,
        synced_after_s=measured.synced_after_s,
        change_ms=durations(list(chain.from_iterable(waits_s.values()))),
        reader_p99_ms={reader: 1000 * percentile(waits, 99) for reader, waits in waits_s.items() if waits},
        messages_in_per_s=rest.own.messages_in / rest.took_s,
        deltas_out_per_s=rest.own.deltas_out / rest.took_s,
        kib_out_per_s=rest.own.bytes_out / 1024 / rest.took_s,
        cpu_share=rest.cpu_s / rest.took_s,
        message_us=1e6 * message_s,
        message_yardsticks=message_s / rest.yardstick_s,
        rss_mib=rest.memory.rss_mib,
        peak_rss_mib=rest.memory.peak_rss_mib,
    )


def _growth(small: SizeSummary, large: SizeSummary) -> dict[str, float]:
    """How many times as much; what is missing, or nothing, in one of them has no ratio."""
    before, after = _figures(small), _figures(large)
    return {name: after[name] / before[name] for name in before if before[name] and name in after}


def _figures(size: SizeSummary) -> dict[str, float]:
    """What may grow with the cluster."""
    change = size.change_ms
    times = {} if change is None else {"change_p50": change.p50_ms, "change_p99": change.p99_ms}
    return times | {
        "nodes": size.nodes,
        "synced_after_s": size.synced_after_s,
        "messages_in_per_s": size.messages_in_per_s,
        "deltas_out_per_s": size.deltas_out_per_s,
        "kib_out_per_s": size.kib_out_per_s,
        "cpu_share": size.cpu_share,
        "message_yardsticks": size.message_yardsticks,
        "rss_mib": size.rss_mib,
        "peak_rss_mib": size.peak_rss_mib,
    }


def _aims(size: SizeSummary) -> tuple[Aim, ...]:
    aims = (
        Aim("peak RSS", size.peak_rss_mib, MOST_RSS_MIB, "MiB"),
        Aim("CPU at rest", 100 * size.cpu_share, 100 * MOST_CPU_SHARE, "% of a core"),
    )
    if size.change_ms is None:
        return aims
    return (Aim("change to reader, p99", size.change_ms.p99_ms, MOST_P99_MS, "ms"), *aims)


def _problems(measured: Measured) -> list[str]:
    """Why the figures are not those of a discovery that does its work."""
    nodes, end, found = measured.size.nodes, measured.end, []
    if not measured.told_s:
        found.append(f"{nodes} nodes: no agent told of a change")
    for reader, seen in measured.seen_s.items():
        missed = len(measured.told_s.keys() - seen.keys())
        if missed:
            found.append(f"{nodes} nodes: {reader} never saw {missed} of {len(measured.told_s)} changes")
    if (end.trusted_nodes, end.agents_heard) != (nodes, nodes):
        found.append(
            f"{nodes} nodes: {end.trusted_nodes} were trusted and {end.agents_heard} agents heard at the end"
        )
    if end.readers != measured.size.readers:
        found.append(f"{nodes} nodes: {end.readers} of {measured.size.readers} readers were there at the end")
    if end.closed_gpus:
        found.append(f"{nodes} nodes: {end.closed_gpus} GPUs were closed at the end")
    return found


def _rows(summary: Summary) -> list[tuple[str, ...]]:
    columns = [_cells(size) for size in summary.sizes]
    rows = [("", *(f"{size.nodes} nodes" for size in summary.sizes), "times")]
    for line in zip(*columns, strict=True):
        what, name, _ = line[0]
        times = f"{summary.growth[name]:.2f}" if name in summary.growth else _ABSENT
        rows.append((what, *(cell for _, _, cell in line), times))
    return rows


def _cells(size: SizeSummary) -> list[tuple[str, str, str]]:
    """What is shown, by which name its growth is known, and its figure."""
    change = size.change_ms
    p50, p99, highest = (
        (_ABSENT,) * 3
        if change is None
        else (f"{change.p50_ms:.0f}", f"{change.p99_ms:.0f}", f"{change.highest_ms:.0f}")
    )
    return [
        ("pods", "nodes", f"{size.pods}"),
        ("readers (the last with usage)", "", f"{size.readers}"),
        ("synced after s", "synced_after_s", f"{size.synced_after_s:.1f}"),
        ("change to reader, p50 ms", "change_p50", p50),
        ("change to reader, p99 ms", "change_p99", p99),
        ("change to reader, highest ms", "", highest),
        *((f"change to {reader}, p99 ms", "", f"{ms:.0f}") for reader, ms in size.reader_p99_ms.items()),
        ("at rest: messages heard a second", "messages_in_per_s", f"{size.messages_in_per_s:.1f}"),
        ("at rest: deltas told a second", "deltas_out_per_s", f"{size.deltas_out_per_s:.1f}"),
        ("at rest: KiB told a second", "kib_out_per_s", f"{size.kib_out_per_s:.0f}"),
        ("at rest: CPU % of a core", "cpu_share", f"{100 * size.cpu_share:.1f}"),
        ("at rest: CPU us a message heard", "", f"{size.message_us:.0f}"),
        ("at rest: yardsticks a message heard", "message_yardsticks", f"{size.message_yardsticks:.3f}"),
        ("RSS MiB", "rss_mib", f"{size.rss_mib:.0f}"),
        ("peak RSS MiB", "peak_rss_mib", f"{size.peak_rss_mib:.0f}"),
    ]
