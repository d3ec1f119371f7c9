"""Retention as it is configured: a client sees what the rules leave."""

import asyncio
from pathlib import Path

import pytest

from eventer_bridge import limits
from eventer_bridge.model import (
    JsonPayload,
    Order,
    QueryLatestParams,
    QueryTimeseriesParams,
    RegisterEvent,
)
from mariner import client
from tests.support.inprocess import running_gateway


@pytest.mark.parametrize("backend", ["memory", "rocksdb"])
async def test_a_configured_rule(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    monkeypatch.setattr(limits, "RETENTION_PERIOD_S", 0.01)
    monkeypatch.setattr(limits, "RETENTION_MIN_PERIOD_S", 0.01)
    store = {"type": backend, "retention": [{"subscriptions": [["a", "*"]], "max_entries": 3}]}
    if backend == "rocksdb":
        store["path"] = str(tmp_path)
    core = {"server_id": 1, "backend": store}
    async with running_gateway(event_core=core) as gateway:
        app = await client.connect(
            "127.0.0.1", gateway.mariner.port, client_name="app", client_token="secret"
        )
        for n in range(10):
            names = [("a", "x"), ("b",), ("a", "y")]
            await app.register([RegisterEvent(i, None, JsonPayload.of(n)) for i in names])
        upwards = QueryTimeseriesParams([("a", "*")], order=Order.ASCENDING)
        while len((found := await app.query(upwards)).events) != 3:
            await asyncio.sleep(0.01)
        assert [i.payload for i in found.events] == [JsonPayload.of(n) for n in (8, 9, 9)]
        assert len((await app.query(QueryTimeseriesParams([("b",)]))).events) == 10
        latest = await app.query(QueryLatestParams([("a", "*"), ("b",)]))
        assert len(latest.events) == 3
        await app.async_close()
