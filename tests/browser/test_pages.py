"""Every view, as a person sees it, on a cluster whose every name and reason is full of markup."""

import asyncio
from collections.abc import Iterator
from urllib.parse import quote

import pytest
from axe_playwright_python.base import AXE_SCRIPT
from playwright.async_api import Page

from tests.browser.conftest import SIZES, THEMES, Seen, Served, a_browser, a_page, served, take_picture
from tests.browser.world import MARKUP

pytestmark = [pytest.mark.real, pytest.mark.timeout(400)]

NODE = f"node/{quote(f'h100-0000{MARKUP}', safe='')}"
POD = f"pod/{quote(f'team-a{MARKUP}', safe='')}/{quote(f'train-00000{MARKUP}', safe='')}"
VIEWS = {
    "cluster": "cluster",
    "cluster-holder": "cluster?colour=holder&by=namespace",
    "cluster-slices": "cluster?colour=slices&by=model",
    "cluster-table": "cluster?as=table&find=h100-0003",
    "node": NODE,
    "pending": "pending",
    "decisions": "decisions",
    "pod": POD,
    "gangs": "gangs",
    "mig": "mig",
    "workloads": "workloads",
    "cost": "cost?by=team&over=day",
    "savings": f"savings?pod={quote(f'team-a{MARKUP}/p', safe='')}",
    "autoscaler": "autoscaler",
}
STANDARDS = ("wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice")


@pytest.fixture(scope="module")
def hostile() -> Iterator[Served]:
    with served("--nodes", "40", "--hostile") as found:
        yield found


async def opened(seen: Seen, url: str) -> Page:
    await seen.page.goto(url)
    await seen.page.locator("#live[data-is=live]").wait_for()
    await seen.page.locator("main h1").wait_for()
    return seen.page


async def violations(page: Page) -> list[str]:
    # Given by the debugger, so that the page's own policy stays in force.
    if not await page.evaluate("'axe' in window"):
        await page.evaluate(AXE_SCRIPT)
    options = {"runOnly": list(STANDARDS), "resultTypes": ["violations"]}
    found = await page.evaluate(
        "(options) => axe.run(document, options).then((told) => told.violations)", options
    )
    return [
        f"{one['id']}: {one['help']}: {node['target']} {node['any'][:1]}"
        for one in found
        for node in one["nodes"][:3]
    ]


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("size", SIZES)
async def test_every_view_is_accessible_and_makes_no_element_of_a_name(
    chromium: str, hostile: Served, size: str, theme: str
) -> None:
    async with a_browser(chromium) as browser, a_page(browser, size, theme) as seen:
        page = await opened(seen, hostile.url)
        problems: list[str] = []
        for name, place in VIEWS.items():
            await page.goto(f"{hostile.url}#/{place}")
            await page.locator("main h1").wait_for()
            await asyncio.sleep(0.7)

            if await page.locator("img[src=x], main script, nav script").count():
                problems.append(f"{name}: markup became an element")
            text = await page.locator("main").inner_text()
            problems += [f"{name}: {word}" for word in ("[object", "undefined", "NaN") if word in text]
            if not await page.evaluate("document.documentElement.scrollWidth <= innerWidth"):
                problems.append(f"{name}: wider than the window")
            # What a theme changes is seen at one size.
            if (size, theme) != ("narrow", "dark"):
                problems += [f"{name}: {one}" for one in await violations(page)]
            await take_picture(page, f"{name}-{size}-{theme}")

        assert await page.locator("main").inner_text() != ""
        assert problems == []
        assert seen.problems == []


async def test_markup_is_shown_as_it_is_written(chromium: str, hostile: Served) -> None:
    async with a_browser(chromium) as browser, a_page(browser) as seen:
        page = await opened(seen, f"{hostile.url}#/{NODE}")

        assert await page.locator("h1").inner_text() == f"h100-0000{MARKUP}"
        await page.goto(f"{hostile.url}#/{POD}")
        await page.get_by_text("Nearest miss").wait_for()
        assert MARKUP in await page.locator("main").inner_text()
        assert seen.problems == []


async def test_a_page_is_used_by_keyboard_alone(chromium: str, hostile: Served) -> None:
    async with a_browser(chromium) as browser, a_page(browser) as seen:
        page = await opened(seen, hostile.url)
        detail = page.locator("#detail")

        await page.locator("canvas").focus()
        first = await detail.inner_text()
        await page.keyboard.press("ArrowRight")
        second = await detail.inner_text()
        await page.keyboard.press("ArrowDown")
        below = await detail.inner_text()
        assert len({first, second, below}) == 3
        await page.keyboard.press("Enter")
        await page.wait_for_url("**#/node/**")

        await page.keyboard.press("p")
        await page.wait_for_url("**#/pending")
        await page.keyboard.press("/")
        await page.keyboard.type("l40s-0002")
        await page.locator("#found li").first.wait_for()
        await page.keyboard.press("Enter")
        await page.wait_for_url("**#/node/l40s-0002**")
        await page.keyboard.press("?")
        await page.get_by_role("heading", name="Keyboard").wait_for()
        await page.keyboard.press("Escape")
        assert seen.problems == []


async def test_who_types_while_a_view_opens_goes_on_typing(chromium: str, hostile: Served) -> None:
    async with a_browser(chromium) as browser, a_page(browser) as seen:
        page = await opened(seen, hostile.url)

        # As by two keys in quick succession: the page hears of its new address only after this.
        await page.evaluate("location.hash = '#/pending'; document.getElementById('search').focus()")
        await page.get_by_role("heading", name="Pending pods").wait_for()
        await page.keyboard.type("l40s-0002")

        await page.locator("#found li").first.wait_for()


async def test_what_is_seen_is_in_the_address_and_the_theme_is_kept(chromium: str, hostile: Served) -> None:
    async with a_browser(chromium) as browser, a_page(browser) as seen:
        page = await opened(seen, hostile.url)
        await page.get_by_role("button", name="Memory").click()
        await page.get_by_role("button", name="Pool").click()
        assert page.url.endswith("#/cluster?colour=memory&by=pool")
        # From what the system says to light, then to dark.
        await page.keyboard.press("t")
        await page.keyboard.press("t")

        await page.reload()

        await page.locator("main h1").wait_for()
        assert await page.get_by_role("button", name="Memory").get_attribute("aria-pressed") == "true"
        assert await page.locator("html").get_attribute("data-theme") == "dark"


@pytest.mark.parametrize(("system", "chosen", "painted"), [("dark", "", "dark"), ("dark", "light", "light")])
async def test_the_first_paint_has_the_theme_already(
    chromium: str, hostile: Served, system: str, chosen: str, painted: str
) -> None:
    async with a_browser(chromium) as browser, a_page(browser, theme=system) as seen:
        # Modules run after the first paint: here they never do.
        await seen.page.route("**/static/app.js", lambda route: route.abort())
        await seen.page.add_init_script(f"localStorage.setItem('gpuloom-theme', '{chosen}')")

        await seen.page.goto(hostile.url)

        assert await seen.page.locator("html").get_attribute("data-theme") == painted


async def test_the_heat_map_shows_what_changes(chromium: str, hostile: Served) -> None:
    async with a_browser(chromium) as browser, a_page(browser) as seen:
        page = await opened(seen, hostile.url)
        before = await pixels(page)

        for _ in range(20):
            await asyncio.sleep(0.5)
            if await pixels(page) != before:
                break

        assert await pixels(page) != before
        detail = page.locator("#detail dl")
        for below in range(24, 80, 4):
            await page.locator("canvas").hover(position={"x": 8, "y": below})
            if await detail.count():
                break
        assert "UUID" in await detail.inner_text()


async def pixels(page: Page) -> str:
    found = await page.evaluate("document.querySelector('canvas').toDataURL()")
    return str(found)


async def test_a_page_without_a_view_says_so(chromium: str, hostile: Served) -> None:
    async with a_browser(chromium) as browser, a_page(browser) as seen:
        page = await opened(seen, f"{hostile.url}#/%E0%A4%A/absent")

        assert await page.get_by_role("heading", name="There is no such page").count() == 1
