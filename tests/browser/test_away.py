"""What a page says and does while the server gives it nothing, or not all."""

import asyncio
import os
import signal
from collections.abc import Iterator

import pytest
from playwright.async_api import Route, expect

from tests.browser.conftest import Served, a_browser, a_page, served

pytestmark = [pytest.mark.real, pytest.mark.timeout(120)]


@pytest.fixture(scope="module")
def small() -> Iterator[Served]:
    with served("--nodes", "4") as found:
        yield found


async def test_what_was_not_heard_is_not_zero(chromium: str, small: Served) -> None:
    async def nothing(route: Route) -> None:
        await route.fulfill(json={"version": "a.0", "sections": {}})

    async with a_browser(chromium) as browser, a_page(browser) as seen:
        await seen.page.route("**/api/state", nothing)
        await seen.page.route("**/api/events*", lambda route: route.fulfill(status=503))
        await seen.page.goto(small.url)
        await expect(seen.page.locator("#live")).to_have_attribute("data-is", "lost")

        told = [await tile.inner_text() for tile in await seen.page.locator(".tile dd").all()]
        assert told
        assert not [text for text in told if any(map(str.isdigit, text))]
        assert await seen.page.locator("#views .count").count() == 0
        await seen.page.goto(f"{small.url}#/pending")
        await expect(seen.page.locator("main .empty")).to_have_text("It is not known yet which pods wait.")


async def test_a_page_that_gets_no_stream_asks_ever_more_rarely(chromium: str, small: Served) -> None:
    asked: list[str] = []
    async with a_browser(chromium) as browser, a_page(browser) as seen:
        seen.page.on("request", lambda one: asked.append(one.url) if one.url.endswith("/api/state") else None)
        await seen.page.route("**/api/events*", lambda route: route.fulfill(status=503))
        await seen.page.clock.install()
        await seen.page.goto(small.url)
        await expect(seen.page.locator("#live")).to_have_attribute("data-is", "lost")

        # Twenty seconds of the page's time.
        for _ in range(40):
            await seen.page.clock.fast_forward(500)
            await asyncio.sleep(0.05)

        assert 2 <= len(asked) <= 8


async def test_a_connection_that_dies_without_a_word_is_noticed(chromium: str) -> None:
    with served("--nodes", "4") as stopped:
        async with a_browser(chromium) as browser, a_page(browser) as seen:
            live = seen.page.locator("#live")
            await seen.page.clock.install()
            await seen.page.goto(stopped.url)
            await expect(live).to_have_attribute("data-is", "live", timeout=20_000)
            os.kill(stopped.pid, signal.SIGSTOP)
            try:
                await seen.page.clock.fast_forward(60_000)
                await expect(live).to_have_attribute("data-is", "lost")
            finally:
                os.kill(stopped.pid, signal.SIGCONT)

            await expect(live).to_have_attribute("data-is", "live", timeout=20_000)
