"""The tree of types, when it cannot be loaded."""

import asyncio
from collections.abc import AsyncGenerator

import pytest
from nicegui import Client, ui

from eventer_bridge.errors import ConnectError
from eventer_bridge.model import Event, QueryLatestParams, Status
from mariner_console import limits
from mariner_console.config import WatchedGateway
from mariner_console.page.types import TypesPanel
from mariner_console.watcher import Watcher
from tests.console.support import event
from tests.support.inprocess import running_gateway


async def test_what_failed_is_tried_again_after_some_time(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[QueryLatestParams] = []

    async def latest(params: QueryLatestParams) -> AsyncGenerator[Event, None]:
        asked.append(params)
        if len(asked) < 3:
            raise ConnectError("none today")
        yield event(("a",))

    async with running_gateway() as gateway:
        watcher = Watcher(WatchedGateway("a", "127.0.0.1", "app", gateway.mariner.port, "secret"))
        monkeypatch.setattr(watcher, "latest", latest)
        with Client(ui.page("/types")):
            panel = TypesPanel(watcher)
        while watcher.view.status is not Status.OPERATIONAL:
            await asyncio.sleep(0.01)
        for n_asked in (1, 2):
            for _ in range(3):  # each second
                await panel.refresh()
                assert (len(asked), panel._refusal.text) == (n_asked, "none today")
            panel._failed_at_s -= limits.TIMEOUT_S  # so long ago
        await panel.refresh()
        assert (len(asked), panel._refusal.text, panel._count.text) == (3, "", "1 type")
        await watcher.async_close()
