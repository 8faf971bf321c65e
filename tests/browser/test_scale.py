"""1,000 nodes with 8 GPUs each: how soon the page is there, how fluid it stays, and what 50 of them cost."""

import asyncio
import os
import statistics
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import aiohttp
import pytest
from playwright.async_api import Browser, Page

from tests.browser.conftest import Served, a_browser, a_page, served, take_picture
from tests.unit.console.pages import next_event

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]

SOAK = os.environ.get("GPULOOM_CLUSTER_SOAK") == "1"
CLIENTS = 50
WATCH_S = 600.0 if SOAK else 60.0
WARM_UP_S = 30.0
STAGGER_S = 0.2
LONGEST_SILENCE_S = 60.0
SETTLED_S = 3.0
FOR_EVER = aiohttp.ClientTimeout(total=None)
MAX_GROWTH_KIB = 24 * 1024
FRAMES_S = 8.0
MAX_LOST = 0.25
"""Of the frames that an empty page draws in the same time, so many may be missing."""
FRAMES = """(milliseconds) => new Promise((resolve) => {
  const gaps = []; let last = performance.now(); const end = last + milliseconds;
  requestAnimationFrame(function step(now) {
    gaps.push(now - last); last = now;
    if (now < end) requestAnimationFrame(step); else resolve(gaps.slice(1));
  });
})"""
PAINTS = """() => ({
  paint: performance.getEntriesByName('first-contentful-paint')[0]?.startTime,
  map: performance.getEntriesByName('heat-map-drawn').at(-1)?.startTime,
})"""


@pytest.fixture(scope="module")
def large() -> Iterator[Served]:
    with served("--nodes", "1000") as found:
        yield found


async def test_a_large_cluster_is_painted_at_once_and_stays_fluid(chromium: str, large: Served) -> None:
    async with a_browser(chromium) as browser, a_page(browser) as seen:
        page = seen.page
        await page.goto(large.url)
        await page.locator("#live[data-is=live]").wait_for()
        paints = await page.evaluate(PAINTS)
        await asyncio.sleep(SETTLED_S)
        ours, empty = [], []
        for _ in range(2):
            ours += await page.evaluate(FRAMES, FRAMES_S * 500)
            empty += await frames_of_an_empty_page(browser)
        await take_picture(page, "large")

        tell(f"first paint {paints['paint']:.0f} ms, all GPUs drawn {paints['map']:.0f} ms")
        tell(f"frames: {described(ours)}; of an empty page: {described(empty)}")
        assert (await page.locator("main dd").first.inner_text()).startswith("8,000 ")
        assert len(ours) >= len(empty) * (1 - MAX_LOST)
        assert seen.problems == []


async def frames_of_an_empty_page(browser: Browser) -> list[float]:
    page: Page = await browser.new_page()
    try:
        found: list[float] = await page.evaluate(FRAMES, FRAMES_S * 500)
        return found
    finally:
        await page.close()


def tell(figures: str) -> None:
    print(f"\n{figures}")  # noqa: T201 - what the test is for, beside its bounds


def described(gaps: list[float]) -> str:
    cuts = statistics.quantiles(gaps, n=100)
    return f"{len(gaps)} of median {cuts[49]:.1f} ms, 95 % {cuts[94]:.1f} ms, longest {max(gaps):.0f} ms"


async def test_fifty_pages_that_watch_cost_no_memory_that_grows(large: Served) -> None:
    async with AsyncExitStack() as stack:
        session = await stack.enter_async_context(aiohttp.ClientSession(read_bufsize=2**22))
        group = await stack.enter_async_context(asyncio.TaskGroup())
        counts = [0] * CLIENTS
        watching = [group.create_task(watch(session, large.url, counts, one)) for one in range(CLIENTS)]
        await asyncio.sleep(WARM_UP_S)
        before = resident_kib(large.pid)
        middle = list(counts)

        await asyncio.sleep(WATCH_S)

        after = resident_kib(large.pid)
        for task in watching:
            task.cancel()
    tell(f"{CLIENTS} pages for {WATCH_S:.0f} s: {before // 1024} MiB, then {after // 1024} MiB")
    assert all(end > start for start, end in zip(middle, counts, strict=True))
    assert after - before < MAX_GROWTH_KIB


async def watch(session: aiohttp.ClientSession, url: str, counts: list[int], place: int) -> None:
    """Takes every change, as a page does."""
    await asyncio.sleep(place * STAGGER_S)
    version = ""
    while True:
        asked = session.get(f"{url}api/events", params={"after": version}, timeout=FOR_EVER)
        try:
            async with asked as stream:
                while True:
                    _, version, body = await next_event(stream, LONGEST_SILENCE_S)
                    assert body
                    counts[place] += 1
        except (aiohttp.ClientError, asyncio.IncompleteReadError):
            # Cut off by a machine that is too busy: a page comes back with the version that it has.
            continue


def resident_kib(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    raise AssertionError("the server has ended")
