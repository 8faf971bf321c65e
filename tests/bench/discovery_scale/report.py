"""What the measurements mean: the aims, and how costs grow with the cluster; as JSON and as tables. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import orjson

from tests.bench.discovery_scale.measurement import Measured
from tests.bench.measures import Durations, durations
from tests.bench.report import table

MOST_P99_MS = 250.0
MOST_RSS_MIB = 400.0
MOST_CPU_SHARE = 0.10

_ABSENT = "-"


@dataclass(frozen=True, slots=True)
class SizeSummary:
    """`change_ms` is from an agent's word to a reader's mirror, over all readers; None if none arrived.

    `message_yardsticks` is the processor time of a message heard, in pieces of fixed work of the same minute.
    """

    nodes: int
    pods: int
    readers: int
    synced_after_s: float
    change_ms: Durations | None
    messages_in_per_s: float
    deltas_out_per_s: float
    kib_out_per_s: float
    cpu_share: float
    message_us: float
    message_yardsticks: float
    rss_mib: float
    peak_rss_mib: float


@dataclass(frozen=True, slots=True)
class Aim:
    what: str
    measured: float
    most: float
    unit: str

    @property
    def met(self) -> bool:
        return self.measured <= self.most

    def line(self) -> str:
        verdict = "met" if self.met else "MISSED"
        return f"{verdict}: {self.what} {self.measured:.1f} {self.unit}, at most {self.most:g} {self.unit}"


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


def latencies_s(measured: Measured) -> list[float]:
    """Of every change at every reader. Two streams hear of it: now and then the reader's is the faster one."""
    return [
        max(0.0, seen[mark] - told_s)
        for seen in measured.seen_s.values()
        for mark, told_s in measured.told_s.items()
        if mark in seen
    ]


def _size(measured: Measured) -> SizeSummary:
    rest, size = measured.rest, measured.size
    message_s = rest.cpu_s / max(1, rest.own.messages_in)
    return SizeSummary(
        nodes=size.nodes,
        pods=size.pods,
        readers=size.readers,
        synced_after_s=measured.synced_after_s,
        change_ms=durations(latencies_s(measured)),
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
    """How many times as much; a size of which a figure is missing or zero has no ratio."""
    figures = {
        "nodes": (small.nodes, large.nodes),
        "synced_after_s": (small.synced_after_s, large.synced_after_s),
        "change_p50": (
            small.change_ms and small.change_ms.p50_ms,
            large.change_ms and large.change_ms.p50_ms,
        ),
        "change_p99": (
            small.change_ms and small.change_ms.p99_ms,
            large.change_ms and large.change_ms.p99_ms,
        ),
        "messages_in_per_s": (small.messages_in_per_s, large.messages_in_per_s),
        "deltas_out_per_s": (small.deltas_out_per_s, large.deltas_out_per_s),
        "kib_out_per_s": (small.kib_out_per_s, large.kib_out_per_s),
        "cpu_share": (small.cpu_share, large.cpu_share),
        "message_yardsticks": (small.message_yardsticks, large.message_yardsticks),
        "peak_rss_mib": (small.peak_rss_mib, large.peak_rss_mib),
    }
    return {name: after / before for name, (before, after) in figures.items() if before and after}


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
    lines = (
        ("nodes", "nodes", lambda size: f"{size.nodes}"),
        ("pods", "", lambda size: f"{size.pods}"),
        ("readers (the last with usage)", "", lambda size: f"{size.readers}"),
        ("synced after s", "synced_after_s", lambda size: f"{size.synced_after_s:.1f}"),
        ("change to reader, p50 ms", "change_p50", lambda size: _ms(size.change_ms, "p50_ms")),
        ("change to reader, p99 ms", "change_p99", lambda size: _ms(size.change_ms, "p99_ms")),
        ("change to reader, highest ms", "", lambda size: _ms(size.change_ms, "highest_ms")),
        (
            "at rest: messages heard a second",
            "messages_in_per_s",
            lambda size: f"{size.messages_in_per_s:.1f}",
        ),
        ("at rest: deltas told a second", "deltas_out_per_s", lambda size: f"{size.deltas_out_per_s:.1f}"),
        ("at rest: KiB told a second", "kib_out_per_s", lambda size: f"{size.kib_out_per_s:.0f}"),
        ("at rest: CPU % of a core", "cpu_share", lambda size: f"{100 * size.cpu_share:.1f}"),
        ("CPU us a message heard", "", lambda size: f"{size.message_us:.0f}"),
        (
            "CPU yardsticks a message heard",
            "message_yardsticks",
            lambda size: f"{size.message_yardsticks:.3f}",
        ),
        ("RSS MiB", "", lambda size: f"{size.rss_mib:.0f}"),
        ("peak RSS MiB", "peak_rss_mib", lambda size: f"{size.peak_rss_mib:.0f}"),
    )
    heads = ("", *(f"{size.nodes} nodes" for size in summary.sizes), "times")
    rows = [heads]
    for what, ratio, show in lines:
        times = f"{summary.growth[ratio]:.2f}" if ratio in summary.growth else _ABSENT
        rows.append((what, *map(show, summary.sizes), times))
    return rows


def _ms(found: Durations | None, which: str) -> str:
    return _ABSENT if found is None else f"{getattr(found, which):.0f}"
