"""A real browser: Debian's ``chromium`` (or Chrome), driven by Playwright."""

import contextlib
import shutil
from collections.abc import AsyncIterator
from typing import Final

import pytest
from playwright.async_api import Browser, Page, ViewportSize, async_playwright

from tests.console.support import PASSWORD

PROGRAM: Final = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)

needs_browser: Final = pytest.mark.skipif(
    PROGRAM is None, reason="no Chromium here, and pip has none (Debian: apt-get install chromium)"
)

WIDE: Final = ViewportSize(width=1280, height=900)
NARROW: Final = ViewportSize(width=390, height=844)

TIMEOUT_MS: Final = 30_000
"""For the page to show something; it takes a second, and a busy machine some times that."""


@contextlib.asynccontextmanager
async def browser() -> AsyncIterator[Browser]:
    """A browser."""
    assert PROGRAM is not None
    async with async_playwright() as playwright:
        made = await playwright.chromium.launch(
            executable_path=PROGRAM, args=["--no-sandbox", "--disable-background-networking"]
        )
        yield made
        await made.close()


class Seen:
    """A page of the browser, and what went wrong on it.

    Attributes:
        errors: of scripts, of the policy and of requests, as lines.
    """

    def __init__(self, page: Page) -> None:
        self.page: Final = page
        self.errors: list[str] = []
        page.set_default_timeout(TIMEOUT_MS)
        page.on("pageerror", lambda e: self.errors.append(str(e)))
        page.on("console", lambda i: self.errors.append(i.text) if i.type == "error" else None)

    async def open(self, panel: str) -> None:
        """Open a panel."""
        await self.page.get_by_role("tab", name=panel).click()

    async def until(self, text: str) -> None:
        """Wait until a text is to be seen."""
        await self.page.get_by_text(text).first.wait_for()


@contextlib.asynccontextmanager
async def logged_in(
    browser: Browser,
    url: str,
    *,
    viewport: ViewportSize = WIDE,
    is_dark: bool = False,
    name: str = "operator",
    password: str = PASSWORD,
) -> AsyncIterator[Seen]:
    """A page of someone who is logged in; nothing may go wrong on it."""
    context = await browser.new_context(
        viewport=viewport, color_scheme="dark" if is_dark else "light", ignore_https_errors=True
    )
    seen = Seen(await context.new_page())
    await seen.page.goto(url)
    await seen.page.get_by_label("Name").fill(name)
    await seen.page.get_by_label("Password").fill(password)
    await seen.page.keyboard.press("Enter")
    await seen.until("Log out")
    yield seen
    await context.close()
    assert seen.errors == []
