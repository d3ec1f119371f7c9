"""What a gateway, and one that replicates it, tell of a clock that was ahead for a while."""

import asyncio
import logging
from pathlib import Path
from typing import Final

import aiohttp
import pytest

from eventer_bridge import limits
from mariner.gateway.gateway import Gateway
from tests.support.event_servers import event_server, eventer_port, events_of
from tests.support.inprocess import metrics_of
from tests.support.peer import RawPeer, event, register_req
from tests.support.shifted import ShiftedClock

HTTP: Final = {"host": "127.0.0.1", "port": 0}
YEARS_S: Final = 10 * 365 * 24 * 3600.0
OWN: Final = "mariner_clock_ahead_seconds"
REPLICATED: Final = 'mariner_replication_clock_ahead_seconds{server="server 1"}'


async def readiness(gateway: Gateway) -> tuple[int, str]:
    assert gateway.http is not None
    url = f"http://127.0.0.1:{gateway.http.port}/readyz"
    async with aiohttp.ClientSession() as session, session.get(url) as response:
        return response.status, await response.text()


async def until_ahead(gateway: Gateway, name: str) -> None:
    while (await metrics_of(gateway, name)).get("", 0) < YEARS_S - 3600:
        await asyncio.sleep(0.01)


async def test_of_years(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(limits, "CLOCK_PERIOD_S", 0.001)
    clock = ShiftedClock(monkeypatch)
    async with event_server(tmp_path, 1, http=HTTP) as first:
        async with await RawPeer.init(first.mariner.port) as peer:
            clock.seconds = YEARS_S
            assert (await peer.request(register_req(1, event("a"))))["success"]
            clock.seconds = 0
            assert (await peer.receive()) == {"msg_type": "status", "status": "STANDBY"}
            refused = await peer.request(register_req(2, event("a")))
            assert not refused["success"]
            assert "ahead of the clock of this machine by more than 86400 s" in refused["error"]
        await until_ahead(first, OWN)
        status, _ = await readiness(first)
        assert status == 503

        # a copy is a copy: it is kept, and told
        remotes = {1: eventer_port(first)}
        async with event_server(tmp_path, 2, remotes=remotes, http=HTTP) as replica:
            await until_ahead(replica, REPLICATED)
            assert [i.type for i in await events_of(replica, 1) if i.type == ("a",)] == [("a",)]
            assert await metrics_of(replica, OWN) == {"": 0}
            async with await RawPeer.init(replica.mariner.port) as peer:
                assert (await peer.request(register_req(3, event("a"))))["success"]
    warned = [i for i in caplog.records if i.getMessage().startswith("replicated events are ahead")]
    assert [i.levelno for i in warned] == [logging.WARNING]
