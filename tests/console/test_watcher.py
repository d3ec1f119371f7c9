"""What a console says of a gateway that it cannot read from."""

import asyncio
import socket

import pytest

from mariner_console.config import WatchedGateway
from mariner_console.watcher import Watcher


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
