"""The page in a real browser, of a real console, beside a real gateway."""

from collections.abc import AsyncIterator
from typing import NamedTuple

import pytest
import pytest_asyncio
from playwright.async_api import Browser, ViewportSize

from eventer_bridge.model import JsonPayload, RegisterEvent
from mariner import client
from tests.console.browsing import NARROW, WIDE, browser, logged_in, needs_browser
from tests.console.support import Console, console, watched
from tests.support.gateway import Gateway, gateway

pytestmark = [pytest.mark.asyncio(loop_scope="module"), needs_browser]


class Running(NamedTuple):
    """What the tests of this module share."""

    gateway: Gateway
    app: client.Client
    console: Console
    browser: Browser


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Running]:
    path = tmp_path_factory.mktemp("console")
    async with (
        gateway(path, http=True) as served,
        await client.connect(
            served.host, served.port, client_name="app", client_token="secret"
        ) as app,
        console(path, [watched(served), watched(served, name="second", metrics=None)]) as made,
        browser() as opened,
    ):
        yield Running(served, app, made, opened)


@pytest.mark.parametrize("viewport", [WIDE, NARROW])
@pytest.mark.parametrize("is_dark", [False, True])
async def test_the_overview(running: Running, viewport: ViewportSize, is_dark: bool) -> None:
    url = running.console.url
    async with logged_in(running.browser, url, viewport=viewport, is_dark=is_dark) as seen:
        await seen.until("All is well.")
        await seen.until("OPERATIONAL")
        await running.app.register([RegisterEvent(("a",), None, JsonPayload.of(1))])
        await seen.page.locator(".console-chart svg path").first.wait_for(state="attached")
        background = await seen.page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (max(map(int, background[4:-1].split(","))) < 64) is is_dark
        width = await seen.page.evaluate("document.documentElement.scrollWidth")
        assert width <= viewport["width"]


async def test_a_console_of_two_gateways(running: Running) -> None:
    async with logged_in(running.browser, running.console.url) as seen:
        await seen.until("State of gateway")
        await seen.page.get_by_role("cell", name="OPERATIONAL").nth(1).wait_for()
        await seen.page.goto(f"{running.console.url}?gateway=second")
        await seen.until("State of second")
        await seen.page.goto(f"{running.console.url}?gateway=<b>other</b>")
        await seen.until("State of gateway")


async def test_logging_out_ends_all_pages(running: Running) -> None:
    async with logged_in(running.browser, running.console.url) as seen:
        other = await seen.page.context.new_page()
        await other.goto(running.console.url)
        await other.get_by_text("OPERATIONAL").first.wait_for()
        await seen.page.get_by_role("button", name="Log out").click()
        await seen.page.get_by_label("Password").wait_for()
        await other.get_by_label("Password").wait_for()
