"""The tail: what it keeps, and that it always reads."""

import asyncio
import re

import pytest
from nicegui import Client, ui

from eventer_bridge.model import BinaryPayload, JsonPayload, RegisterEvent
from mariner import client
from mariner.errors import InitError
from mariner_console import limits
from mariner_console.config import WatchedGateway
from mariner_console.page.events import TailPanel
from mariner_console.watcher import Kept, Watcher
from tests.console.support import event
from tests.support.inprocess import running_gateway


def test_the_newest_are_kept_and_all_are_counted() -> None:
    kept = Kept()
    kept.put([event(("a",), session=i) for i in range(limits.MAX_TAIL_EVENTS)])
    kept.put([event(("a",), session=i) for i in range(10_000, 12_000)])
    assert kept.n_seen == limits.MAX_TAIL_EVENTS + 2_000
    assert len(kept) == limits.MAX_TAIL_EVENTS
    assert [i.id.session for i in kept.newest()[:2]] == [11_999, 11_998]


def test_large_payloads_are_kept_within_bounds() -> None:
    kept = Kept()
    large = BinaryPayload("a", bytes(limits.MAX_TAIL_BYTES // 4))
    for i in range(10):
        kept.put([event(("a",), large, session=i)])
    assert [i.id.session for i in kept.newest()] == [9, 8, 7, 6]
    kept.put([event(("a",), BinaryPayload("a", bytes(2 * limits.MAX_TAIL_BYTES)), session=10)])
    assert [i.id.session for i in kept.newest()] == [10]
    kept.put([event(("a",), session=11)])
    assert [i.id.session for i in kept.newest()] == [11]


async def test_a_flood_is_read_and_counted() -> None:
    async with running_gateway() as gateway:
        port = gateway.mariner.port
        watcher = Watcher(WatchedGateway("a", "127.0.0.1", "app", port, "secret"))
        tail = await watcher.follow([("flood", "*")])
        async with await client.connect(
            "127.0.0.1", port, client_name="app", client_token="secret"
        ) as app:
            batch = [RegisterEvent(("flood", str(i)), None, JsonPayload.of(i)) for i in range(500)]
            await app.register([RegisterEvent(("other",), None, None)])
            await asyncio.gather(*(app.register(batch) for _ in range(100)))
        while tail.kept.n_seen < 50_000:
            await asyncio.sleep(0.01)
        assert tail.kept.n_seen == 50_000
        assert len(tail.kept) == limits.MAX_TAIL_EVENTS
        assert tail.lost_s is None
        await tail.async_close()
        await watcher.async_close()


async def test_what_is_begun_while_the_page_closes_is_not_followed() -> None:
    async with running_gateway() as gateway:
        watcher = Watcher(WatchedGateway("a", "127.0.0.1", "app", gateway.mariner.port, "secret"))
        with Client(ui.page("/tail")):
            panel = TailPanel(watcher)

        def is_following() -> bool:
            return panel._tail is not None

        await panel._start()
        assert is_following()
        beginning = asyncio.create_task(panel._start())
        await asyncio.sleep(0)  # it closes the tail before
        await panel._stop()
        await beginning
        assert not is_following()
        await watcher.async_close()


async def test_a_wrong_token_is_told() -> None:
    async with running_gateway() as gateway:
        watcher = Watcher(WatchedGateway("a", "127.0.0.1", "app", gateway.mariner.port, "wrong"))
        with pytest.raises(InitError):
            await watcher.follow([("*",)])
        await watcher.async_close()


async def test_one_that_is_refused_ends_and_says_why() -> None:
    async with running_gateway() as gateway:
        port = gateway.mariner.port
        watcher = Watcher(WatchedGateway("a", "127.0.0.1", "app", port, "secret"))
        with Client(ui.page("/tail")):
            panel = TailPanel(watcher)
        await panel._start()
        tail = panel._tail
    assert tail is not None
    async with running_gateway([], mariner={"host": "127.0.0.1", "port": port}):
        while tail.refusal is None:
            await asyncio.sleep(0.01)
        await panel.refresh()
        text = "Not followed any more: invalid client name or token"
        assert panel._failure.text == text
        assert re.fullmatch(r"▲ Interrupted at \d\d:\d\d:\d\d UTC\.", panel._interrupted.text)
        assert (tail.is_closed, panel.state()) == (True, {})
        await watcher.async_close()


async def test_it_goes_on_after_an_outage() -> None:
    async with running_gateway() as gateway:
        port = gateway.mariner.port
        watcher = Watcher(WatchedGateway("a", "127.0.0.1", "app", port, "secret"))
        tail = await watcher.follow([("again",)])
    while tail.lost_s is None:
        await asyncio.sleep(0.01)
    async with (
        running_gateway(mariner={"host": "127.0.0.1", "port": port}),
        await client.connect("127.0.0.1", port, client_name="app", client_token="secret") as app,
    ):
        while tail.back_s is None:
            await asyncio.sleep(0.01)
        await app.register("again", 1)
        while not tail.kept.n_seen:
            await asyncio.sleep(0.01)
        assert [i.type for i in tail.kept.newest()] == [("again",)]
        await tail.async_close()
        await watcher.async_close()
