"""Make the pictures of the operator's guide, of a real run: ``python -m tests.console.pictures``.

Two gateways, one of which hangs, a console, a browser, and the measurements of this machine for a
minute and a half.
"""

import asyncio
import os
import sys
import tempfile
from pathlib import Path
from typing import Final

import psutil
import uvloop

from tests.console.browsing import NARROW, WIDE, Seen, browser, logged_in
from tests.console.support import console, watched
from tests.console.test_cursors import park
from tests.support.gateway import Gateway, gateway

ROOT: Final = Path(__file__).parents[2]

SECONDS: Final = 90
"""Of measurements: the charts are for five minutes."""


async def main() -> None:
    """Make them."""
    alarms = {
        "module": "eventer_bridge.modules.threshold",
        "thresholds": [
            {"subscriptions": [["machine", "cpu", "?"]], "path": ["value"], "limit": 98}
        ],
    }
    with tempfile.TemporaryDirectory() as name:
        path, second = Path(name), Path(name) / "second"
        second.mkdir()
        async with (
            gateway(path, http=True, modules=[alarms]) as served,
            gateway(second, http=True) as hanging,
            console(
                path,
                [
                    watched(served, name="plant", control=str(path / "events" / "control.sock")),
                    watched(hanging, name="laboratory"),
                ],
            ) as running,
            browser() as opened,
            logged_in(opened, running.url, viewport=WIDE) as seen,
            logged_in(opened, running.url, viewport=NARROW, is_dark=True) as narrow,
        ):
            await _measure(served)
            await _take(seen, "overview")
            await seen.page.get_by_role("cell", name="laboratory").click()
            await seen.until("State of laboratory")
            await seen.until("All is well.")
            process = psutil.Process(hanging.pid)
            process.suspend()
            try:
                await seen.until("no answer since")
                await asyncio.sleep(5)
                await _take(seen, "outage")
            finally:
                process.resume()
            await seen.page.get_by_role("cell", name="plant").click()
            await seen.until("State of plant")
            await _query(seen)
            await _take(seen, "query")
            await park(served, "c", "unit kW: expected W")
            await narrow.open("Cursors")
            await narrow.page.get_by_role("cell", name="c", exact=True).click()
            await narrow.page.get_by_role("cell", name="unit kW").first.click()
            await narrow.until("type              a/c")
            await _take(narrow, "narrow")


async def _measure(served: Gateway) -> None:
    """Register measurements, as the demo does."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, str(ROOT / "deploy" / "demo" / "machine.py")),
        *("--host", served.host, "--port", str(served.port)),
        *("--name", "app", "--count", str(SECONDS)),
        env={**os.environ, "MARINER_TOKEN": "secret"},
    )
    assert await process.wait() == 0


async def _query(seen: Seen) -> None:
    await seen.open("Query")
    await seen.page.get_by_label("Types").last.fill("machine/cpu/?")
    await seen.page.keyboard.press("Enter")
    await seen.until("100 events")
    await seen.page.get_by_label("Numbers of").get_by_text("machine/cpu/1").wait_for()
    await seen.page.get_by_role("cell", name="machine/cpu/").first.click()
    await seen.until("timestamp  ")


async def _take(seen: Seen, name: str) -> None:
    await seen.page.screenshot(path=ROOT / "deploy" / f"console-{name}.png")


if __name__ == "__main__":
    uvloop.run(main())
