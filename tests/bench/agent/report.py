"""What the measurements mean: the aims, the costs and their ratios, as JSON and as tables. Pure."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import orjson

from tests.bench.agent.looks import LookCost, Tier, cpu_share, looks_of
from tests.bench.agent.measurement import Measured
from tests.bench.agent.scrapes import WRITTEN_PAGES, Page, Scrape
from tests.bench.agent.variants import AIMED, BUSY, GPUS, SLICES, STILL, VARIANTS, WHOLE, Variant
from tests.bench.measures import Aim, Durations, Spread, durations, spread
from tests.bench.report import table

MOST_RSS_MIB = 128.0
MOST_CPU_SHARE = 0.02

_ABSENT = "-"
# One sample alone says more of the machine than of the agent.
_FEWEST_COMPARED = 3


@dataclass(frozen=True, slots=True)
class AgentSummary:
    """`look_ms` is the mean by the agent's own histogram."""

    layout: str
    interval_s: float
    looks: int
    look_ms: float | None
    cpu_share: float
    rss_mib: float
    peak_rss_mib: float


@dataclass(frozen=True, slots=True)
class LookSummary:
    """One tier of one agent. `yardsticks`: processor time in pieces of fixed work of the same period."""

    count: int
    nvml_calls: Spread
    cpu_ms: Spread
    yardsticks: float


@dataclass(frozen=True, slots=True)
class ScrapeSummary:
    durations: Durations
    cpu_ms: float
    size_bytes: int
    ratio_to_own: float
    """Of the medians, to a scrape of the service's own metrics."""
    cpu_ratio_to_own: float


@dataclass(frozen=True, slots=True)
class Summary:
    agents: Mapping[str, AgentSummary]
    looks: Mapping[str, Mapping[Tier, LookSummary]]
    slices_to_whole: Mapping[Tier, float]
    """Processor time of a sample at 8 GPUs x 7 slices, to one at 8 whole GPUs."""
    scrapes: Mapping[Page, ScrapeSummary]
    calls_while_scraped: int
    yardstick_ms: float
    aims: tuple[Aim, ...]
    problems: tuple[str, ...]

    @property
    def failures(self) -> tuple[str, ...]:
        return (*(aim.line() for aim in self.aims if not aim.met), *self.problems)


def summarize(measured: Measured) -> Summary:
    seen = {variant: looks_of(watched.samples) for variant, watched in measured.watched.items()}
    yardstick_s = statistics.median(measured.yardsticks_s)
    agents = {variant.name: _agent(variant, measured, looks) for variant, looks in seen.items()}
    looks = {variant.name: _tiers(seen[variant], yardstick_s) for variant in seen}
    return Summary(
        agents=agents,
        looks=looks,
        slices_to_whole=_ratios(looks.get(BUSY.name, {}), looks.get(WHOLE.name, {})),
        scrapes=_scrapes(measured.scrapes),
        calls_while_scraped=measured.calls_while_scraped,
        yardstick_ms=1000 * yardstick_s,
        aims=_aims(agents),
        problems=tuple(_problems(measured)),
    )


def to_json(summary: Summary) -> bytes:
    # Some keys are enumerations.
    options = orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS | orjson.OPT_APPEND_NEWLINE
    return orjson.dumps({**asdict(summary), "failures": summary.failures}, option=options)


def render(summary: Summary) -> str:
    sections = (
        ("agents in the same period, each with a reader and a scrape every 15 s", _agent_rows(summary)),
        (
            "one sample, by what it reads (medians; a yardstick is a fixed piece of Python)",
            _look_rows(summary),
        ),
        (f"a scrape, alone on a kept connection (8x7: {GPUS * SLICES} devices)", _scrape_rows(summary)),
    )
    parts = [f"{title}\n{table(rows)}" for title, rows in sections]
    calls = f"NVML calls while the kept text was scraped: {summary.calls_while_scraped}"
    lines = [calls, *(aim.line() for aim in summary.aims)]
    lines += [f"PROBLEM: {problem}" for problem in summary.problems]
    return "\n\n".join([*parts, "\n".join(lines)]) + "\n"


def _agent(variant: Variant, measured: Measured, looks: Sequence[LookCost]) -> AgentSummary:
    watched, memory = measured.watched[variant], measured.memory[variant]
    return AgentSummary(
        layout=variant.layout.value,
        interval_s=variant.interval_s,
        looks=watched.own.looks,
        look_ms=1000 * watched.own.look_s / watched.own.looks if watched.own.looks else None,
        cpu_share=cpu_share(watched.samples, looks),
        rss_mib=memory.rss_mib,
        peak_rss_mib=memory.peak_rss_mib,
    )


def _tiers(looks: Sequence[LookCost], yardstick_s: float) -> dict[Tier, LookSummary]:
    found = {}
    for tier in Tier:
        costs = [look for look in looks if look.tier is tier]
        calls = spread([float(cost.calls) for cost in costs])
        cpu_ms = spread([1000 * cost.cpu_s for cost in costs])
        if calls is not None and cpu_ms is not None:
            found[tier] = LookSummary(len(costs), calls, cpu_ms, cpu_ms.median / 1000 / yardstick_s)
    return found


def _ratios(own: Mapping[Tier, LookSummary], other: Mapping[Tier, LookSummary]) -> dict[Tier, float]:
    return {
        tier: look.cpu_ms.median / other[tier].cpu_ms.median
        for tier, look in own.items()
        if tier in other and min(look.count, other[tier].count) >= _FEWEST_COMPARED
    }


def _scrapes(scrapes: Mapping[Page, Sequence[Scrape]]) -> dict[Page, ScrapeSummary]:
    own_s = statistics.median(scrape.took_s for scrape in scrapes[Page.OWN])
    own_cpu_s = statistics.median(scrape.cpu_s for scrape in scrapes[Page.OWN])
    found = {}
    for page, made in scrapes.items():
        took = durations([scrape.took_s for scrape in made])
        if took is None:
            continue
        cpu_s = statistics.median(scrape.cpu_s for scrape in made)
        found[page] = ScrapeSummary(
            durations=took,
            cpu_ms=1000 * cpu_s,
            size_bytes=made[-1].size_bytes,
            ratio_to_own=took.p50_ms / 1000 / own_s,
            cpu_ratio_to_own=cpu_s / own_cpu_s,
        )
    return found


def _aims(agents: Mapping[str, AgentSummary]) -> tuple[Aim, ...]:
    aimed, busy = agents[AIMED.name], agents[BUSY.name]
    return (
        Aim("peak RSS at 10 s", aimed.peak_rss_mib, MOST_RSS_MIB, "MiB"),
        Aim("peak RSS at 1 s", busy.peak_rss_mib, MOST_RSS_MIB, "MiB"),
        Aim("CPU at 10 s", 100 * aimed.cpu_share, 100 * MOST_CPU_SHARE, "% of a core"),
    )


def _problems(measured: Measured) -> list[str]:
    """Why the figures are not those of an agent that does its work."""
    found = []
    for variant, watched in measured.watched.items():
        if watched.own.troubled_looks:
            found.append(
                f"{variant.name}: {watched.own.troubled_looks} looks could not read everything: "
                f"{watched.last_words}"
            )
        if not watched.messages_read:
            found.append(f"{variant.name}: its reader heard nothing")
        if variant is not STILL and watched.own.looks < 2:
            found.append(f"{variant.name}: only {watched.own.looks} looks were made")
    if measured.shown_devices != GPUS * SLICES:
        found.append(f"{measured.shown_devices} of {GPUS * SLICES} devices were shown with activity and pod")
    if measured.calls_while_scraped:
        found.append(f"{measured.calls_while_scraped} NVML calls were made while the agent was scraped")
    wanted = sum(len(measured.scrapes[page]) for page in WRITTEN_PAGES)
    if measured.written_anew < wanted:
        found.append(f"{measured.written_anew} of {wanted} scrapes found a sample that was new")
    return found


def _agent_rows(summary: Summary) -> list[tuple[str, ...]]:
    heads = ("agent", "CPU % of a core", "RSS MiB", "peak MiB", "looks", "mean ms a sample")
    rows: list[tuple[str, ...]] = [heads]
    for variant in VARIANTS:
        agent = summary.agents[variant.name]
        figures = (f"{100 * agent.cpu_share:.2f}", f"{agent.rss_mib:.1f}", f"{agent.peak_rss_mib:.1f}")
        look_ms = _ABSENT if agent.look_ms is None else f"{agent.look_ms:.1f}"
        name = f"{agent.layout} " + ("not looking" if variant is STILL else f"at {agent.interval_s:g} s")
        rows.append((name, *figures, str(agent.looks), look_ms))
    return rows


def _look_rows(summary: Summary) -> list[tuple[str, ...]]:
    heads = ("look", "count", "NVML calls", "CPU ms", "highest", "yardsticks", "to 8 whole GPUs")
    rows: list[tuple[str, ...]] = [heads]
    for variant in (BUSY, WHOLE, AIMED):
        for tier, look in summary.looks[variant.name].items():
            ratio = summary.slices_to_whole.get(tier) if variant is BUSY else None
            rows.append(
                (
                    f"{variant.name}, what is read {tier}",
                    str(look.count),
                    f"{look.nvml_calls.median:.0f}",
                    f"{look.cpu_ms.median:.1f}",
                    f"{look.cpu_ms.highest:.1f}",
                    f"{look.yardsticks:.1f}",
                    _ABSENT if ratio is None else f"{ratio:.2f}",
                )
            )
    return rows


def _scrape_rows(summary: Summary) -> list[tuple[str, ...]]:
    heads = ("page", "count", "bytes", "p50 ms", "p99 ms", "to own", "agent's CPU ms", "to own")
    rows: list[tuple[str, ...]] = [heads]
    for page, scrape in summary.scrapes.items():
        took = scrape.durations
        rows.append(
            (
                page,
                str(took.count),
                str(scrape.size_bytes),
                f"{took.p50_ms:.2f}",
                f"{took.p99_ms:.2f}",
                f"{scrape.ratio_to_own:.2f}",
                f"{scrape.cpu_ms:.2f}",
                f"{scrape.cpu_ratio_to_own:.2f}",
            )
        )
    return rows
