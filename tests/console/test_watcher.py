"""What a console asks of a gateway, and what it says of one that it cannot read from."""

import asyncio
import socket
from typing import Any

import pytest

from eventer_bridge.backends.visible_query import VisibleQuery
from eventer_bridge.model import QueryLatestParams, QueryResult, QueryTimeseriesParams
from mariner_console.config import WatchedGateway
from mariner_console.watcher import Watcher
from tests.support.inprocess import running_gateway


@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_metrics_are_refused_in_the_words_of_other_connections(scheme: str) -> None:
    with socket.socket() as closed:  # bound, so that nobody else listens there
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
        url = f"{scheme}://127.0.0.1:{port}/metrics"
        watcher = Watcher(WatchedGateway("a", "127.0.0.1", "app", port, metrics=url))
        try:
            while (failure := watcher.view.scrape_failure) is None:
                await asyncio.sleep(0.01)
        finally:
            await watcher.async_close()
    assert failure == f"127.0.0.1:{port}: connection refused"


async def test_a_slow_query_delays_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    slow, is_done = QueryTimeseriesParams([("slow", "*")]), asyncio.Event()
    async with running_gateway() as gateway:
        answer, n_asked = gateway.core.answer, 0

        async def answer_slowly(query: VisibleQuery, *args: Any) -> QueryResult:
            nonlocal n_asked
            if isinstance(query.params, QueryTimeseriesParams):
                n_asked += 1
                await is_done.wait()
            return await answer(query, *args)

        async def wait_connections(count: int) -> None:
            while len(gateway.mariner.connections) != count:
                await asyncio.sleep(0.01)

        monkeypatch.setattr(gateway.core, "answer", answer_slowly)
        port = gateway.mariner.port
        watcher = Watcher(WatchedGateway("a", "127.0.0.1", "app", port, "secret"))
        while watcher.view.status is None:
            await asyncio.sleep(0.01)
        asked = [asyncio.create_task(watcher.query(slow, 10)) for _ in range(2)]
        while n_asked < 2:
            await asyncio.sleep(0.01)
        for _ in range(3):  # as a page is refreshed each second
            assert await watcher.query(QueryLatestParams([("a",)]), 1) == ([], False)
        await wait_connections(4)  # that of the watcher, two that are busy, and one for all others
        asked[0].cancel()
        await wait_connections(3)
        is_done.set()
        assert await asked[1] == ([], False)
        await wait_connections(2)
        await watcher.async_close()
        await wait_connections(0)
