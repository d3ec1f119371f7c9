"""The overview without a browser: what it says of gateways as more of them is known."""

import time

import pytest
from nicegui import Client, ui

from eventer_bridge.model import Status
from mariner_console import limits
from mariner_console.page.overview import OverviewPanel
from mariner_console.view import GatewayView


async def test_what_is_known_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    view, at_s = GatewayView("a"), 100.0
    monkeypatch.setattr(time, "monotonic", lambda: at_s)
    with Client(ui.page("/overview")):
        panel = OverviewPanel(view, [view])

    async def shown() -> list[str]:
        await panel.refresh()
        return [i.text for i in panel._problems.descendants() if isinstance(i, ui.label)]

    assert await shown() == ["Connecting …"]
    view.on_answer(Status.OPERATIONAL, at_s, 0)
    assert await shown() == ["All is well."]
    assert "console-old" not in panel._figures["ping"]._value.classes
    at_s += limits.SILENT_S
    assert await shown() == ["✖ no answer since 00:00:00 UTC"]
    assert "console-old" in panel._figures["ping"]._value.classes
    view.on_answer(Status.STANDBY, at_s, 0)
    assert await shown() == ["✖ status STANDBY: nothing can be registered"]
    view.on_lost("gone")
    assert await shown() == ["✖ not connected: gone"]


async def test_the_worst_gateway_comes_first() -> None:
    well, standby, lost, new = (GatewayView(i) for i in ("well", "standby", "lost", "new"))
    well.on_answer(Status.OPERATIONAL, time.monotonic(), 0)
    well.on_scrape_failed("refused", 0)
    standby.on_answer(Status.STANDBY, time.monotonic(), 0)
    lost.on_lost("gone")
    views = [new, well, standby, lost]
    with Client(ui.page("/worst")):
        panel = OverviewPanel(well, views)
    await panel.refresh()
    rows = panel._gateways._table.rows
    assert [(i["column0"], i["column1"], i["style"]) for i in rows] == [
        ("standby", "✖ STANDBY", "console-row-bad"),
        ("lost", "✖ NOT CONNECTED", "console-row-bad"),
        ("well", "▲ OPERATIONAL", "console-row-warning"),
        ("new", "CONNECTING", "console-row-unknown"),
    ]
    assert rows[1]["column2"] == "not connected: gone"
