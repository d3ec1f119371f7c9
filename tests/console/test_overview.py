"""The overview without a browser: what it says of a gateway as more of that is known."""

from nicegui import Client, ui

from eventer_bridge.model import Status
from mariner_console.page.overview import OverviewPanel
from mariner_console.view import GatewayView


async def test_what_is_known_is_shown() -> None:
    view = GatewayView("a")
    with Client(ui.page("/overview")):
        panel = OverviewPanel(view, [view])

    async def shown() -> list[str]:
        await panel.refresh()
        return [i.text for i in panel._problems.descendants() if isinstance(i, ui.label)]

    assert await shown() == ["Connecting …"]
    view.on_connected(Status.OPERATIONAL)
    assert await shown() == ["All is well."]
    view.on_connected(Status.STANDBY)
    assert await shown() == ["✖ status STANDBY: nothing can be registered"]
    view.on_lost("gone")
    assert await shown() == ["✖ not connected: gone"]
