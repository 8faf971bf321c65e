"""A real `gpuloom run`, looked at: it loads, goes on, and comes back after its server was killed."""

import asyncio
import json
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from playwright.async_api import Page, expect

from tests.browser.conftest import SIZES, THEMES, Seen, a_browser, a_page, take_picture
from tests.scenarios.test_run_command import LONGEST_RUN_S, running, wait_for_line

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]

VIEWS = ("cluster", "pending", "decisions", "gangs", "mig", "workloads", "cost", "autoscaler")
RECOVERED_MS = 30_000
GPUS = re.compile(r"^1[4-9]\d ")
"""143, and those of nodes that the autoscaler adds."""


@pytest.fixture(scope="module")
def mesh() -> Iterator[tuple[str, Path]]:
    with TemporaryDirectory(prefix="gpuloom-browser-") as folder:
        directory = Path(folder).resolve() / "run"
        arguments = ("--nodes", "24", "--dir", str(directory), "--headless", "--no-faults")
        with running(*arguments) as process:
            wait_for_line(process, "Console: https://127.0.0.1:")
            wait_for_line(process, "placed=[1-9]")
            # Its lines are read no more, and must not fill the pipe.
            url = json.loads((directory / "endpoints.json").read_text())["console"]
            yield url, directory
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=LONGEST_RUN_S)


async def opened(seen: Seen, url: str) -> Page:
    await seen.page.goto(url)
    await expect(seen.page.locator("#live")).to_have_attribute("data-is", "live", timeout=20_000)
    return seen.page


async def test_every_view_of_a_running_mesh_goes_on_by_itself(chromium: str, mesh: tuple[str, Path]) -> None:
    url, _ = mesh
    async with a_browser(chromium) as browser, a_page(browser) as seen:
        page = await opened(seen, url)
        await expect(page.locator(".tile dd").first).to_contain_text(GPUS)
        await page.goto(f"{url}#/decisions")
        newest = page.locator("article").first
        await newest.wait_for()
        before = await newest.text_content()
        assert before
        await expect(newest).not_to_have_text(before, timeout=40_000)

        await page.goto(f"{url}#/pod/{(await newest.locator('a').first.inner_text())}")
        await expect(page.locator("[role=status] .tag").first).to_be_visible(timeout=10_000)
        for view in VIEWS:
            await page.goto(f"{url}#/{view}")
            await expect(page.locator("main h1")).to_be_visible()
        assert seen.problems == []


async def test_pictures_of_a_running_mesh(chromium: str, mesh: tuple[str, Path]) -> None:
    url, _ = mesh
    async with a_browser(chromium) as browser:
        for theme in THEMES:
            for size in SIZES:
                async with a_page(browser, size, theme) as seen:
                    page = await opened(seen, url)
                    for view in VIEWS:
                        await page.goto(f"{url}#/{view}")
                        await asyncio.sleep(0.4)
                        if view == "cluster" and size == "wide":
                            await page.locator("canvas").hover(position={"x": 68, "y": 48})
                        picture = await take_picture(page, f"live-{view}-{size}-{theme}")
                        assert picture.stat().st_size > 10_000
                    assert seen.problems == []


async def test_a_page_comes_back_after_its_server_was_killed(chromium: str, mesh: tuple[str, Path]) -> None:
    url, directory = mesh
    async with a_browser(chromium) as browser, a_page(browser) as seen:
        page = await opened(seen, url)
        os.kill(process_of("console", directory), signal.SIGKILL)
        live = page.locator("#live")
        await expect(live).to_have_attribute("data-is", "lost", timeout=RECOVERED_MS)

        await expect(live).to_have_attribute("data-is", "live", timeout=RECOVERED_MS)

        await expect(page.locator(".tile dd").first).to_contain_text(GPUS, timeout=RECOVERED_MS)


def process_of(service: str, directory: Path) -> int:
    """Of this run, by what it was started with."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes().split(b"\0")
            environment = (folder / "environ").read_bytes()
        except OSError:
            continue
        if f"services.{service}".encode() in command and str(directory).encode() in environment:
            return int(folder.name)
    raise AssertionError(f"no process of {service}")
