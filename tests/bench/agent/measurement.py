"""One run: all agents watched in the same period, then scraped. It measures; `report.py` judges."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from gpuloom.runtime.clock import Clock
from tests.bench.agent.looks import QUIET_S, Sample, calls_between
from tests.bench.agent.observation import Memory, OwnFigures, memory, yardstick_s
from tests.bench.agent.scrapes import Page, Scrape, Scraper
from tests.bench.agent.stage import RunningAgent, open_stage
from tests.bench.agent.variants import AIMED, BUSY, VARIANTS, Layout, Variant, devices

# Until the slowest one has looked twice: activity is what happened between two looks.
_SETTLE_S = 14.0
_GLANCE_INTERVAL_S = 0.05
_YARDSTICK_INTERVAL_S = 1.0
# As Prometheus does by default in most clusters.
_SCRAPE_INTERVAL_S = 15.0
_ACTIVITY = "DCGM_FI_PROF_GR_ENGINE_ACTIVE{"


@dataclass(frozen=True, slots=True)
class Effort:
    """How long agents are watched, and how often they are scraped afterwards."""

    seconds: float
    scrapes: int
    written_scrapes: int


@dataclass(frozen=True, slots=True)
class Watched:
    """One agent in the period that all have in common."""

    samples: tuple[Sample, ...]
    own: OwnFigures
    messages_read: int
    last_words: str


@dataclass(frozen=True, slots=True)
class Measured:
    watched: Mapping[Variant, Watched]
    memory: Mapping[Variant, Memory]
    """In the end, when everything was done to the agents."""
    yardsticks_s: tuple[float, ...]
    scrapes: Mapping[Page, list[Scrape]]
    calls_while_scraped: int
    written_anew: int
    """How often the agent says that it wrote the text, during the scrapes that were to find a new look."""
    shown_devices: int
    """With their activity and the pod that has them."""


async def measure(folder: Path, effort: Effort, clock: Clock) -> Measured:
    async with (
        open_stage(folder, VARIANTS, clock) as agents,
        aiohttp.ClientSession(auto_decompress=False) as session,
    ):
        scraper = Scraper(session, clock)
        await clock.sleep(_SETTLE_S)
        watched, yardsticks_s = await _watch_all(agents, scraper, effort.seconds, clock)
        text = (await scraper.gpu_metrics(agents[AIMED])).decode()
        kept, calls = await _scrape_between_looks(agents[AIMED], scraper, effort.scrapes, clock)
        before = await scraper.own_figures(agents[BUSY])
        written = await scraper.written(agents[BUSY], effort.written_scrapes)
        after = await scraper.own_figures(agents[BUSY])
        return Measured(
            watched=watched,
            memory={variant: memory(agent.pid) for variant, agent in agents.items()},
            yardsticks_s=yardsticks_s,
            scrapes={**kept, **written},
            calls_while_scraped=calls,
            written_anew=after.since(before).written,
            shown_devices=_shown_devices(text),
        )


async def _watch_all(
    agents: Mapping[Variant, RunningAgent], scraper: Scraper, seconds: float, clock: Clock
) -> tuple[Mapping[Variant, Watched], tuple[float, ...]]:
    before = {variant: await scraper.own_figures(agent) for variant, agent in agents.items()}
    read_before = {variant: agent.messages_read for variant, agent in agents.items()}
    samples: dict[Variant, list[Sample]] = {variant: [] for variant in agents}
    yardsticks_s: list[float] = []
    # Looks that were cut off at either end don't count, so one interval more is watched.
    end_s = clock.monotonic() + seconds + AIMED.interval_s
    yardstick_due_s = clock.monotonic()
    scrape_due_s = clock.monotonic() + _SCRAPE_INTERVAL_S
    while clock.monotonic() < end_s:
        for variant, agent in agents.items():
            samples[variant].append(agent.glance(clock))
        if clock.monotonic() >= yardstick_due_s:
            yardsticks_s.append(yardstick_s())
            yardstick_due_s += _YARDSTICK_INTERVAL_S
        if clock.monotonic() >= scrape_due_s:
            for agent in agents.values():
                await scraper.gpu_metrics(agent, "gzip")
            scrape_due_s += _SCRAPE_INTERVAL_S
        await clock.sleep(_GLANCE_INTERVAL_S)
    watched = {
        variant: Watched(
            samples=tuple(samples[variant]),
            own=(await scraper.own_figures(agent)).since(before[variant]),
            messages_read=agent.messages_read - read_before[variant],
            last_words=agent.last_words(),
        )
        for variant, agent in agents.items()
    }
    return watched, tuple(yardsticks_s)


async def _scrape_between_looks(
    agent: RunningAgent, scraper: Scraper, count: int, clock: Clock
) -> tuple[Mapping[Page, list[Scrape]], int]:
    """The scrapes, and the NVML calls made meanwhile: none, if scrapes make none."""
    await _wait_for_look(agent, clock)
    before = agent.glance(clock)
    scrapes = await scraper.kept(agent, count)
    return scrapes, calls_between(before, agent.glance(clock))


async def _wait_for_look(agent: RunningAgent, clock: Clock) -> None:
    """Return when one has just ended."""
    began = last = agent.glance(clock)
    changed_at_s = last.at_s
    while calls_between(began, last) == 0 or last.at_s - changed_at_s < QUIET_S:
        await clock.sleep(_GLANCE_INTERVAL_S)
        now = agent.glance(clock)
        if calls_between(last, now):
            changed_at_s = now.at_s
        last = now


def _shown_devices(text: str) -> int:
    pods = {given.pod for given in devices(Layout.SLICES)}
    lines = [line for line in text.splitlines() if line.startswith(_ACTIVITY)]
    return sum(any(f'pod="{pod}"' in line for line in lines) for pod in pods)
