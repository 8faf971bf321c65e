"""A Chromium, and a console to look at."""

import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from playwright.async_api import Browser, Page, Playwright, ViewportSize, async_playwright

ROOT = Path(__file__).parents[2]
PICTURES = ROOT / "build" / "console"
SIZES: dict[str, ViewportSize] = {
    "wide": {"width": 1440, "height": 900},
    "narrow": {"width": 412, "height": 915},
}
THEMES = ("light", "dark")
# Without a sandbox of its own, because in a container it may not make one; it sees nothing but our pages.
ARGUMENTS = ("--no-sandbox", "--disable-dev-shm-usage")


@pytest.fixture(scope="session")
def chromium() -> str:
    """Where it is. Without one tests are skipped, or fail where every real part is required."""
    found = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    if found is None:
        if os.environ.get("GPULOOM_REQUIRE_REAL") == "1":
            pytest.fail("no chromium found")
        pytest.skip("no chromium found; CHROMIUM may name one")
    return found


@asynccontextmanager
async def a_browser(chromium: str) -> AsyncIterator[Browser]:
    async with async_playwright() as playwright:
        yield await _launched(playwright, chromium)


async def _launched(playwright: Playwright, chromium: str) -> Browser:
    return await playwright.chromium.launch(executable_path=chromium, args=list(ARGUMENTS))


@dataclass
class Seen:
    """A page, and what its console said that it should not have."""

    page: Page
    problems: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.on("dialog", lambda dialog: self.problems.append(f"a dialog: {dialog.message}"))
        self.page.on(
            "console",
            lambda said: self.problems.append(said.text) if said.type in ("error", "warning") else None,
        )
        self.page.on(
            "request",
            lambda asked: self.problems.append(asked.url) if "//127.0.0.1" not in asked.url else None,
        )


@asynccontextmanager
async def a_page(browser: Browser, size: str = "wide", theme: str = "light") -> AsyncIterator[Seen]:
    context = await browser.new_context(
        viewport=SIZES[size],
        color_scheme="dark" if theme == "dark" else "light",
        ignore_https_errors=True,
        reduced_motion="reduce",
    )
    try:
        yield Seen(await context.new_page())
    finally:
        await context.close()


@dataclass(frozen=True)
class Served:
    url: str
    pid: int


@contextmanager
def served(*arguments: str) -> Iterator[Served]:
    """The made-up cluster in a process of its own."""
    command = [sys.executable, "-m", "tests.browser.serve", *arguments]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:  # noqa: S603 - ours
        try:
            assert process.stdout is not None
            port = process.stdout.readline().strip()
            assert port, "the server did not start"
            yield Served(f"http://127.0.0.1:{port}/", process.pid)
        finally:
            process.terminate()


async def take_picture(page: Page, name: str) -> Path:
    PICTURES.mkdir(parents=True, exist_ok=True)
    path = PICTURES / f"{name}.png"
    await page.screenshot(path=path)
    return path
