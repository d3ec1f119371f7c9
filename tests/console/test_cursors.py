"""Cursors, parked events and connections on the page: looked at, changed, and no markup."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final, Literal, NamedTuple

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page

from eventer_bridge.control.client import Addressee, Identity
from eventer_bridge.model import Event, EventId, JsonPayload, RegisterEvent
from mariner import client
from mariner.gateway import cursor_requests
from mariner.gateway.cursor_requests import CursorAnswer, CursorRequest
from tests.console import hostile
from tests.console.browsing import NARROW, Seen, browser, logged_in, needs_browser
from tests.console.support import Console, console, watched
from tests.support.gateway import Gateway, gateway
from tests.support.peer import RawPeer

pytestmark = [pytest.mark.asyncio(loop_scope="module"), needs_browser]

NAMES: Final = [i[:64] for i in hostile.TEXTS if i != "a\x00\x1b[31m\u202e\u2028b"]


class Running(NamedTuple):
    """What the tests of this module share; each deletes the cursors that it made.

    The console watches the gateway twice, once as one of another machine.
    """

    gateway: Gateway
    console: Console
    browser: Browser
    socket: Path
    audit: Path

    def ask(self, do: Literal["show", "delete"], cursor: str) -> CursorAnswer:
        """Ask the gateway, without the console."""
        to = Addressee(store=Identity.of(self.socket.parent))
        return cursor_requests.ask(self.socket, CursorRequest(do, "app", cursor), to)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Running]:
    path = tmp_path_factory.mktemp("cursors")
    socket, audit = path / "events" / "control.sock", path / "audit.jsonl"
    async with (
        gateway(path, http=True, audit={"file": str(audit)}) as served,
        console(
            path, [watched(served, control=str(socket)), watched(served, name="remote")]
        ) as made,
        browser() as opened,
    ):
        yield Running(served, made, opened, socket, audit)


def text_of(event_id: EventId) -> str:
    return f"{event_id.server}/{event_id.session}/{event_id.instance}"


async def park(served: Gateway, name: str, reason: str) -> list[Event]:
    """Have a cursor, register three events, and park two of them."""
    async with await client.connect(
        served.host,
        served.port,
        client_name="app",
        client_token="secret",
        subscriptions=[("a", name)],
        cursor=name,
    ) as connection:
        events = [RegisterEvent(("a", name), None, JsonPayload.of(i)) for i in range(3)]
        registered = await connection.register(events)
        seen = 0
        async for batch in connection.replay():
            left = {i.id: reason for i in batch.events if i.id in {j.id for j in registered[:2]}}
            await batch.ack(left)
            seen += len(batch.events)
            if seen == len(registered):
                break
        await connection.ping()
    return [*registered]


async def pick(seen: Seen, name: str) -> None:
    row = seen.page.get_by_role("row").filter(has=seen.page.get_by_role("cell", name=name))
    await row.first.click()


async def confirm(seen: Seen, button: str, *texts: str, question: str = "") -> None:
    """Press a button, and again where it is asked."""
    await seen.page.get_by_role("button", name=f"{button} …").click()
    dialog = seen.page.get_by_role("dialog")
    await dialog.get_by_text(question or f"{button} this on gateway?").wait_for()
    for text in texts:
        await dialog.get_by_text(text).wait_for()
    await dialog.get_by_role("button", name=button, exact=True).click()
    await dialog.wait_for(state="detached")


async def test_changes_are_asked_twice_and_audited(running: Running) -> None:
    first, second, _ = [text_of(i.id) for i in await park(running.gateway, "c", "no idea")]
    async with logged_in(running.browser, running.console.url) as seen:
        await seen.open("Cursors")
        await pick(seen, "c")
        await seen.page.get_by_role("cell", name=second).wait_for()
        assert await seen.page.get_by_role("cell", name="no idea").count() == 2
        await seen.page.get_by_role("cell", name="a/c").nth(1).wait_for()
        await pick(seen, first)
        await seen.until("type              a/c")  # and what is in it
        await seen.page.get_by_role("button", name="Drop …").click()
        await seen.until("Drop this on gateway?")
        await seen.page.keyboard.press("Enter")  # on what has the focus: Cancel
        await seen.page.get_by_role("dialog").wait_for(state="detached")
        assert len(running.ask("show", "c").parked) == 2
        await confirm(seen, "Drop", f"{first} of cursor c of client app")
        await seen.until(f"Done: drop {first} of cursor c of client app")
        assert [text_of(i.id) for i in running.ask("show", "c").parked] == [second]
        await seen.page.get_by_role("cell", name=first).first.wait_for(state="detached")
        await confirm(seen, "Redeliver", "all parked events of cursor c")
        await seen.page.get_by_role("cell", name="yes").wait_for()
        assert running.ask("show", "c").parked[0].is_due
        await seen.page.get_by_label("Go on behind").fill("nowhere")
        await seen.page.get_by_role("button", name="Reset …").click()
        await seen.page.get_by_role("alert").get_by_text("'nowhere': expected SERVER").wait_for()
        await seen.page.get_by_label("Go on behind").fill(first)
        await confirm(seen, "Reset", f"to {first}", "A connection that has it is closed.")
        await seen.until("Done: reset")
        assert [text_of(i) for i in running.ask("show", "c").cursors[0].seen] == [first]
        running.ask("delete", "c")
        await seen.until("There is none.")
        await seen.page.get_by_role("button", name="Reset …").wait_for(state="hidden")
    log = running.console.output.read_text()
    assert '"message": "cursor drop", "user": "operator", "gateway": "gateway"' in log
    lines = map(json.loads, running.audit.read_text().splitlines())
    changes = [
        (i["action"], i["ids"], i.get("operator"))
        for i in lines
        if i["action"].startswith("cursor ") and i["cursor"] == "c"
    ]
    assert changes == [
        ("cursor drop", [first], "operator"),
        ("cursor redeliver", [], "operator"),
        ("cursor reset", [first], "operator"),
        ("cursor delete", [], None),  # asked without the console
    ]


async def test_who_may_not_change_them_or_close_connections(running: Running) -> None:
    url = running.console.url
    await park(running.gateway, "d", "no idea")
    async with logged_in(running.browser, url, name="guest", password="guest") as seen:
        await seen.open("Cursors")
        await pick(seen, "d")
        await seen.page.get_by_role("cell", name="no idea").first.wait_for()
        await seen.page.reload()  # the link says which cursor it is
        await seen.page.get_by_role("cell", name="no idea").first.wait_for()
        assert await seen.page.get_by_role("button", name="…").count() == 0
        await seen.open("Connections")
        await seen.page.get_by_role("cell", name="127.0.0.1:").first.wait_for()
        assert await seen.page.locator(".console-row").count() == 0
        assert await seen.page.get_by_role("button", name="…").count() == 0
    async with logged_in(running.browser, url) as seen:
        await seen.page.goto(f"{url}?gateway=remote")
        await seen.open("Cursors")
        await seen.page.get_by_role("cell", name="app", exact=True).wait_for()
        await seen.until("only over the control socket of a gateway on this machine")
        assert await seen.page.locator(".console-row").count() == 0
        assert await seen.page.get_by_role("button", name="…").count() == 0
        await seen.open("Connections")
        await seen.until("Connections are known only from the control socket")
    running.ask("delete", "d")


async def test_a_connection_is_closed_by_who_may_register(running: Running) -> None:
    async with (
        await RawPeer.init(running.gateway.port, subscriptions=[["<b>x</b>"]]) as peer,
        logged_in(running.browser, running.console.url) as seen,
    ):
        host, port = peer.writer.get_extra_info("sockname")
        address = f"{host}:{port}"
        await seen.open("Connections")
        row = seen.page.get_by_role("row").filter(has_text=address)
        await row.get_by_role("cell", name="<b>x</b>").wait_for()
        await seen.page.get_by_role("button", name="Close …").click()
        await seen.until("Open a connection.")
        await row.click()
        text = f"{address} (mariner), client app"
        await confirm(seen, "Close", text, question="Close this connection on gateway?")
        await seen.until(f"Done: closed {text}")
        assert await peer.is_closed_by_server()
        await row.wait_for(state="detached")
    lines = [json.loads(i) for i in running.audit.read_text().splitlines()]
    [line] = [i for i in lines if i["action"] == "connection closed"]
    assert (line["client"], line["peer"], line["operator"]) == ("app", address, "operator")


async def test_no_name_becomes_markup(running: Running) -> None:
    first = {}
    for cursor, reason in zip(NAMES, reversed(hostile.TEXTS), strict=False):
        first[cursor] = text_of((await park(running.gateway, cursor, reason[:500]))[0].id)
    url = running.console.url
    async with logged_in(running.browser, url, viewport=NARROW) as seen:
        page = seen.page
        await page.goto(f"{url}?gateway=remote")  # which tells nothing of single cursors
        await seen.open("Cursors")
        await page.get_by_role("cell", name=f"{len(NAMES)}", exact=True).first.wait_for()
        await check_nothing_runs(page)
        await page.goto(f"{url}?gateway=gateway")
        await seen.open("Cursors")
        for cursor in NAMES:
            await page.get_by_role("cell", name=cursor[:20]).first.wait_for()
        for cursor in NAMES:
            await pick(seen, cursor[:20])
            await seen.until(f"cursor {cursor[:20]}")
            await page.get_by_role("cell", name=first[cursor]).first.wait_for()
            await page.get_by_role("button", name="Drop …").click()
            await page.get_by_role("dialog").get_by_text("all parked").wait_for()
            await page.get_by_role("button", name="Cancel").click()
            await page.get_by_role("dialog").wait_for(state="detached")
        await check_nothing_runs(page)
    for cursor in NAMES:
        running.ask("delete", cursor)


async def check_nothing_runs(page: Page) -> None:
    assert await page.evaluate("window.broken") is None
    assert await page.evaluate("({}).polluted") is None
    assert await page.title() == "Mariner console"
    assert await page.locator("img[src=x], svg[onload]").count() == 0
    width = await page.evaluate("document.documentElement.scrollWidth")
    assert width <= NARROW["width"]
