"""Make the pictures of README.md, of a real run: ``python -m tests.console.pictures``.

A gateway, a console, a browser, and the measurements of this machine for a minute and a half.
"""

import asyncio
import os
import sys
import tempfile
from pathlib import Path
from typing import Final

import uvloop

from tests.console.browsing import WIDE, Seen, browser, logged_in
from tests.console.support import console, watched
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
        path = Path(name)
        async with (
            gateway(path, http=True, modules=[alarms]) as served,
            console(
                path,
                [watched(served, control=str(path / "events" / "control.sock"))],
            ) as running,
            browser() as opened,
            logged_in(opened, running.url, viewport=WIDE) as seen,
        ):
            await _measure(served)
            await _take(seen, "overview")
            await _query(seen)
            await _take(seen, "query")


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


async def _take(seen: Seen, name: str) -> None:
    await seen.page.screenshot(path=ROOT / "deploy" / f"console-{name}.png")


if __name__ == "__main__":
    uvloop.run(main())
