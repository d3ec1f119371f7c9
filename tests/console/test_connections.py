"""Connections on the page: looked at, and one of them closed."""

import json
from pathlib import Path

from tests.console.browsing import browser, logged_in, needs_browser
from tests.console.support import console, watched
from tests.support.gateway import gateway
from tests.support.peer import RawPeer

pytestmark = [needs_browser]


async def test_one_is_closed_by_who_may_register(tmp_path: Path) -> None:
    audit = tmp_path / "audit.jsonl"
    async with (
        gateway(tmp_path, http=True, audit={"file": str(audit)}) as served,
        console(
            tmp_path, [watched(served, control=str(tmp_path / "events" / "control.sock"))]
        ) as made,
        browser() as opened,
        await RawPeer.init(served.port, subscriptions=[["<b>x</b>"]]) as peer,
    ):
        host, port = peer.writer.get_extra_info("sockname")
        address = f"{host}:{port}"
        async with logged_in(opened, made.url) as seen:
            await seen.open("Connections")
            row = seen.page.get_by_role("row").filter(has_text=address)
            await row.get_by_role("cell", name="<b>x</b>").wait_for()
            await seen.page.get_by_role("button", name="Close …").click()
            await seen.until("Open a connection.")
            await row.click()
            await seen.page.get_by_role("button", name="Close …").click()
            dialog = seen.page.get_by_role("dialog")
            await dialog.get_by_text("Close this connection on gateway?").wait_for()
            await dialog.get_by_text(f"{address} (mariner), client app").wait_for()
            await dialog.get_by_role("button", name="Close", exact=True).click()
            await seen.until(f"Done: closed {address} (mariner), client app")
            assert await peer.is_closed_by_server()
            await row.wait_for(state="detached")
    lines = [json.loads(i) for i in audit.read_text().splitlines()]
    [line] = [i for i in lines if i["action"] == "connection closed"]
    assert (line["client"], line["peer"], line["operator"]) == ("app", address, "operator")
