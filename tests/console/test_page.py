"""The page in a real browser, of a real console, beside a real gateway."""

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Final, NamedTuple

import aiohttp
import psutil
import pytest
import pytest_asyncio
from playwright.async_api import Browser, ViewportSize

from eventer_bridge.model import JsonPayload, QueryLatestParams, RegisterEvent
from mariner import client
from tests.console import hostile
from tests.console.browsing import NARROW, TIMEOUT_MS, WIDE, browser, logged_in, needs_browser
from tests.console.support import Console, console, watched
from tests.support.gateway import Gateway, gateway

pytestmark = [pytest.mark.asyncio(loop_scope="module"), needs_browser]


N_IDLE: Final = 5
"""Connections to the gateway while no page follows it: the application's, and the console's to each
of the two names that it has for the gateway: its own, and one for the next query."""


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
        console(
            path,
            [
                watched(served, control=str(path / "events" / "control.sock")),
                watched(served, name="second", metrics=None),
            ],
        ) as made,
        browser() as opened,
    ):
        yield Running(served, app, made, opened)


@pytest.mark.parametrize("viewport", [WIDE, NARROW])
@pytest.mark.parametrize("is_dark", [False, True])
async def test_the_overview(running: Running, viewport: ViewportSize, is_dark: bool) -> None:
    url = running.console.url
    async with logged_in(running.browser, url, viewport=viewport, is_dark=is_dark) as seen:
        await seen.until("OPERATIONAL")
        late = seen.page.get_by_text("the event loop is late")  # on a machine that is busy
        await seen.page.get_by_text("All is well.").or_(late).first.wait_for()
        await running.app.register([RegisterEvent(("a",), None, JsonPayload.of(1))])
        await seen.page.locator(".console-chart svg path").first.wait_for(state="attached")
        background = await seen.page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (max(map(int, background[4:-1].split(","))) < 64) is is_dark
        width = await seen.page.evaluate("document.documentElement.scrollWidth")
        assert width <= viewport["width"]
        header = await seen.page.locator("header").bounding_box()
        assert header is not None
        assert header["height"] <= 100


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


async def test_a_browser_that_stays_after_a_login_has_ended_has_nothing_to_press(
    running: Running,
) -> None:
    async with logged_in(running.browser, running.console.url) as seen:
        other = await seen.page.context.new_page()
        await other.goto(running.console.url)
        await other.get_by_role("tab", name="Register").click()
        await other.get_by_label("Type").last.fill("late/a")
        await other.get_by_role("button", name="Register …").click()
        await other.get_by_text("Register this on gateway?").wait_for()
        await other.route("**/login?*", lambda route: route.fulfill(status=204))  # it stays
        await seen.page.get_by_role("button", name="Log out").click()
        await other.get_by_text("Register this on gateway?").wait_for(state="detached")
        assert await other.get_by_role("button").count() == 0


async def test_types_are_a_tree_with_their_last_values(running: Running) -> None:
    await running.app.register(
        [
            RegisterEvent(("plant", "1", "power"), None, JsonPayload.of({"value": 41})),
            RegisterEvent(("plant", "2", "power"), None, JsonPayload.of({"value": 42})),
        ]
    )
    async with logged_in(running.browser, running.console.url) as seen:
        await seen.open("Types")
        await seen.page.get_by_label("Types").last.fill("plant/*")
        await seen.page.keyboard.press("Enter")
        await seen.until("2 types")
        await seen.page.locator(".q-tree__arrow").first.click()
        await seen.until("2 (1)")
        await seen.page.locator(".q-tree__arrow").last.click()
        await seen.page.get_by_text('power: {"value":42}').click()
        await seen.until('"value": 42')
        await running.app.register(
            [RegisterEvent(("plant", "2", "power"), None, JsonPayload.of({"value": 43}))]
        )
        await seen.until('"value": 43')
        await seen.until('power: {"value":43}')
        await seen.page.get_by_role("cell", name='{"value":42}').wait_for()  # its values
        await seen.page.reload()
        await seen.until('power: {"value":43}')
        await seen.until('"value": 43')
        await seen.page.get_by_label("Search").fill("1/POW")
        await seen.page.get_by_role("cell", name="plant/1/power").click()
        assert await seen.page.get_by_role("cell", name="plant/2/power").count() == 0
        await seen.until('"value": 41')
        await seen.page.get_by_role("link", name="Tail").click()
        await seen.until("0 so far")
        await seen.page.go_back()
        await seen.page.get_by_role("link", name="Query").click()
        await seen.until("1 event")
        await seen.page.get_by_role("cell", name="plant/1/power").wait_for()


async def test_a_link_opens_a_view_after_a_login_as_well(running: Running) -> None:
    await running.app.register([RegisterEvent(("link", str(i)), None, None) for i in range(3)])
    url = f"{running.console.url}?gateway=second&view=Query&types=link/*&limit=2&order=old"
    async with logged_in(running.browser, url) as seen:
        await seen.until("the oldest 2 events; there are more")
        [event_id, *_] = await seen.page.get_by_role("cell").all_inner_texts()
        await seen.open("Alarms")
        await seen.page.wait_for_url("**view=Alarms")
        await seen.page.go_back()
        await seen.until("the oldest 2 events; there are more")
        await seen.page.get_by_label("Types").last.fill("*")
        await seen.page.get_by_label("Ids").fill(f"{event_id} 1/{2**62}/1")
        await seen.page.keyboard.press("Enter")
        await seen.until("1 event")
        await seen.page.get_by_role("cell", name="link/0").click()
        await seen.until(f"id                {event_id}")
        await seen.page.wait_for_url("**&types=*&ids=*")
        # a pattern is no type to pick: it would be asked for each second
        await seen.page.goto(f"{running.console.url}?gateway=second&view=Types&type=*/b")
        await seen.page.wait_for_url(lambda url: "&type=" not in url)
        await seen.until("Pick a type, or the beginning of some.")


async def test_a_gateway_that_hangs_is_red_within_seconds(running: Running) -> None:
    process = psutil.Process(running.gateway.pid)
    async with logged_in(running.browser, running.console.url) as seen:
        await seen.open("Tail")
        await seen.page.get_by_label("Types").last.fill("outage")
        await seen.page.keyboard.press("Enter")
        await seen.until("0 so far")
        await seen.open("Overview")
        await seen.page.locator(".console-row-bad").first.wait_for(state="detached")
        old = seen.page.locator(".console-value.console-old")
        await old.first.wait_for(state="detached")
        process.suspend()
        try:
            started_s = time.monotonic()
            await seen.until("✖ NO ANSWER")
            seconds = time.monotonic() - started_s
            await seen.until("✖ no answer since")
            await seen.page.locator(".console-row-bad").nth(1).wait_for()
            assert await old.count() >= 12
            tabs = await seen.page.get_by_role("tab").all_inner_texts()
            for panel in tabs[1:]:
                await seen.open(panel)
                await seen.page.get_by_role("alert").get_by_text("✖ no answer since").wait_for()
                assert await seen.page.get_by_text("There is none.").count() == 0
        finally:
            process.resume()
        assert seconds < 5
        await seen.open("Tail")
        await seen.page.get_by_text("✖ no answer since").wait_for(state="detached")
        await running.app.register("outage", 1)
        await seen.until("1 so far")
        await seen.open("Overview")
        await seen.page.locator(".console-row-bad").first.wait_for(state="detached")


async def test_the_tail_is_paused_and_filtered(running: Running) -> None:
    async def register(name: str) -> None:
        await running.app.register([RegisterEvent(("tail", name), None, JsonPayload.of([name]))])

    async with logged_in(running.browser, running.console.url) as seen:
        await seen.open("Tail")
        await seen.page.get_by_label("Types").last.fill("tail/?")
        await seen.page.keyboard.press("Enter")
        await seen.until("0 so far")
        await register("first")
        await seen.until('["first"]')
        await seen.page.get_by_role("button", name="Pause").click()
        await seen.until("1 so far, paused")
        await register("second")
        await seen.until("2 so far, paused")
        assert await seen.page.get_by_text('["second"]').count() == 0
        await seen.page.get_by_role("button", name="Go on").click()
        await seen.until('["second"]')
        await seen.page.get_by_label("Show only").fill("FIRST")
        await seen.page.get_by_text('["second"]').wait_for(state="detached")
        await seen.page.get_by_role("cell", name="tail/first").click()
        await seen.until("type              tail/first")
        await seen.until("1 of the newest 2 contain that")
        await seen.page.get_by_role("button", name="Stop").click()
        await seen.page.get_by_label("Types").last.fill("*/wrong")
        await seen.page.get_by_role("button", name="Follow").click()
        await seen.page.get_by_role("alert").get_by_text("'*'").wait_for()


async def test_one_tail_is_followed_however_often_it_is_asked_for(running: Running) -> None:
    async with logged_in(running.browser, running.console.url) as seen:
        for name in ("second", "gateway"):
            await seen.page.goto(f"{running.console.url}?gateway={name}&view=Query&types=none")
            await seen.until("0 events")
        await until_connections(running, N_IDLE)  # until the pages of other tests are gone
        await seen.open("Tail")
        await seen.page.get_by_label("Types").last.fill("none/*")
        button = seen.page.get_by_role("button", name="Follow")
        await button.evaluate("i => { for (let n = 0; n < 5; n++) i.click() }")
        await seen.until("0 so far")
        await until_connections(running, N_IDLE + 1)
        await button.evaluate("i => { for (let n = 0; n < 5; n++) i.click() }")
        await seen.page.close()
        await until_connections(running, N_IDLE)


async def until_connections(running: Running, n: int) -> None:
    """Wait until the gateway has so many connections."""
    seen: list[int] = []
    try:
        async with asyncio.timeout(TIMEOUT_MS / 1000):
            while not seen or seen[-1] != n:
                seen.append(await n_connections(running))
                await asyncio.sleep(0.01)
    except TimeoutError:
        pytest.fail(f"{n} connections wanted, there were {[k for k, _ in itertools.groupby(seen)]}")


async def n_connections(running: Running) -> int:
    """Of the gateway."""
    url = f"http://127.0.0.1:{running.gateway.http_port}/metrics"
    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        for line in (await answer.text()).splitlines():
            if line.startswith('mariner_connections{wire="mariner"}'):
                return int(float(line.split()[-1]))
    raise AssertionError("there is no such metric")


async def test_a_query_is_a_table_and_a_chart(running: Running) -> None:
    events = [
        RegisterEvent(("query", name), None, JsonPayload.of({"value": i, "other": -i}))
        for i in range(30)
        for name in "ab"
    ]
    await running.app.register(events)
    async with logged_in(running.browser, running.console.url) as seen:
        await seen.open("Query")
        chart = seen.page.get_by_label("Numbers of the payloads over time")
        assert not await chart.is_visible()  # before there is an answer
        await seen.page.get_by_label("Types").last.fill("query/*")
        await seen.page.get_by_label("At most").fill("50")
        await seen.page.keyboard.press("Enter")
        await seen.until("the newest 50 events; there are more")
        await seen.until("query/a")
        await seen.page.get_by_label("Which number of the payloads").wait_for()
        await chart.get_by_text("query/b").wait_for()
        await seen.page.get_by_role("cell", name="query/a").last.click()
        await seen.until('"other": ')
        for ago, found in (("now", "No events."), ("-1h", "50 events")):
            await seen.page.get_by_label("From").fill(ago)
            await seen.page.keyboard.press("Enter")
            await seen.until(found)
        await seen.page.get_by_label("From").fill("never")
        await seen.page.keyboard.press("Enter")
        await seen.page.get_by_role("alert").get_by_text("'never'").wait_for()


async def test_registering_is_asked_twice(running: Running) -> None:
    async with logged_in(running.browser, running.console.url) as seen:
        await seen.open("Register")
        await seen.page.get_by_label("Type", exact=True).fill("from/console")
        await seen.page.get_by_label("Payload").fill("{")
        await seen.page.get_by_role("button", name="Register …").click()
        await seen.page.get_by_role("alert").get_by_text("payload: expected JSON").wait_for()
        await seen.page.get_by_label("Payload").fill('{"a": 1}')
        await seen.page.get_by_role("button", name="Register …").click()
        await seen.until("Register this on gateway?")
        await seen.page.locator("button:focus", has_text="Cancel").wait_for()
        await seen.page.keyboard.press("Enter")
        await seen.page.get_by_text("Register this on gateway?").wait_for(state="detached")
        latest = QueryLatestParams([("from", "console")])
        assert not (await running.app.query(latest)).events
        await seen.page.get_by_role("button", name="Register …").click()
        await seen.page.get_by_role("button", name="Register", exact=True).click()
        await seen.until("Registered as ")
        [registered] = (await running.app.query(latest)).events
        assert isinstance(registered.payload, JsonPayload)
        assert registered.payload.value() == {"a": 1}
    told = '"message": "event registered", "user": "operator"'
    while told not in running.console.output.read_text():  # a thread of its own writes it
        await asyncio.sleep(0.01)


async def test_who_may_not_register_is_not_offered_to(running: Running) -> None:
    async with logged_in(
        running.browser, running.console.url, name="guest", password="guest"
    ) as seen:
        await seen.open("Alarms")
        assert await seen.page.get_by_role("tab", name="Register").count() == 0


async def test_nothing_in_events_becomes_markup(running: Running) -> None:
    async with logged_in(running.browser, running.console.url) as seen:
        page = seen.page
        await seen.open("Tail")
        await page.get_by_label("Types").last.fill("hostile/* ?/hostile alarm/*")
        await page.get_by_role("button", name="Follow").click()
        await seen.until("0 so far")
        await running.app.register(hostile.events())
        await seen.until("28 so far")
        for row in await page.locator(".console-row").all():
            await row.click()
        await seen.open("Query")
        await page.get_by_role("button", name="Query").click()
        await seen.until("events")
        await page.get_by_label("Which number of the payloads").click()
        await page.get_by_role("option").last.click()
        await page.locator(".console-row:visible").nth(5).click()
        chart = page.get_by_label("Numbers of the payloads over time")
        await chart.hover()
        await seen.open("Types")
        await seen.until("types")
        for _ in range(5):
            await page.locator(".q-tree__arrow:not(.q-tree__arrow--rotate)").last.click()
            await page.locator(".q-tree__node--child").last.click()
        await page.get_by_label("Search").fill("hostile")
        await page.get_by_role("cell", name="<img src=x").first.wait_for()
        await seen.open("Alarms")
        await page.get_by_role("cell", name="<img src=x").first.wait_for()
        await seen.open("Overview")
        await seen.until("alarms raised: ")
        assert await page.evaluate("window.broken") is None
        assert await page.evaluate("({}).polluted") is None
        assert await page.title() == "Mariner console"
        assert await page.locator("img[src=x], svg[onload]").count() == 0


async def test_clients_are_shown_the_slowest_first(running: Running) -> None:
    async with logged_in(running.browser, running.console.url) as seen:
        await seen.open("Clients")
        await seen.page.get_by_role("cell", name="app", exact=True).wait_for()
        await seen.until("No connection is too slow.")
        await seen.page.goto(f"{running.console.url}?gateway=second")
        await seen.open("Clients")
        await seen.until("Single clients are known only from the control socket")


@contextlib.contextmanager
def suspended(name: str) -> Iterator[None]:
    """Our child processes with this in their names do nothing."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if name in process.name():
                process.suspend()
                found.append(process)
    assert found
    yield
    for process in found:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.resume()


async def test_a_browser_that_hangs_costs_the_gateway_nothing(
    running: Running, tmp_path: Path
) -> None:
    batch = [RegisterEvent(("flood", str(i)), None, JsonPayload.of("x" * 500)) for i in range(500)]
    async with (
        console(tmp_path, [watched(running.gateway)], program="tests.console.patient") as patient,
        logged_in(running.browser, patient.url) as seen,
    ):
        await seen.open("Tail")
        await seen.page.get_by_label("Types").last.fill("flood/*")
        await seen.page.keyboard.press("Enter")
        await seen.until("0 so far")
        before_bytes = psutil.Process(patient.process.pid).memory_info().rss
        with suspended("chrom"):
            for _ in range(100):
                await running.app.register(batch)
        grown_bytes = psutil.Process(patient.process.pid).memory_info().rss - before_bytes
        assert grown_bytes < 100 << 20
        await seen.until("50,000 so far")
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://127.0.0.1:{running.gateway.http_port}/metrics") as answer,
    ):
        assert (
            'mariner_connections_closed_total{reason="slow consumer",wire="mariner"} 0.0'
            in await answer.text()
        )
