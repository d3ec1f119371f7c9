"""Why a gateway is STANDBY, as ``/readyz``, ``mariner status`` and the console tell: as the log."""

import asyncio
import contextlib
import logging
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import aiohttp
import pytest

from eventer_bridge import limits
from eventer_bridge.net import limits as net_limits
from mariner.gateway.counts import StatusReport
from mariner.gateway.gateway import Gateway
from mariner_console import limits as console_limits
from mariner_console.config import WatchedGateway
from mariner_console.view import Problem, find_problems
from mariner_console.watcher import Watcher
from tests.eventer_bridge.backends.faults import full_disk
from tests.support.event_servers import event_server, eventer_port
from tests.support.hat_peers import HOST, hat_event_server, monitor_server
from tests.support.inprocess import running_gateway
from tests.support.pair import core
from tests.support.peer import RawPeer, event, register_req
from tests.support.shifted import ShiftedClock

HTTP: Final = {"host": HOST, "port": 0}
POLL_INTERVAL_S: Final = 0.05


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(console_limits, "SCRAPE_PERIOD_S", 0.1)
    monkeypatch.setattr(net_limits, "RECONNECT_MAX_S", 0.1)
    caplog.set_level(logging.INFO, "eventer_bridge")


async def readyz(gateway: Gateway) -> tuple[int, str]:
    assert gateway.http is not None
    url = f"http://{HOST}:{gateway.http.port}/readyz"
    async with aiohttp.ClientSession() as session, session.get(url) as response:
        return response.status, await response.text()


async def told(gateway: Gateway, begin: str) -> str:
    """Wait until all screens tell the same reason, which begins so; returns it."""
    assert gateway.http is not None
    metrics = f"http://{HOST}:{gateway.http.port}/metrics"
    async with Watcher(
        WatchedGateway("a", HOST, "app", gateway.mariner.port, token="secret", metrics=metrics)
    ) as watcher:
        while True:
            reason = gateway.core.hindrance
            if reason is not None and reason.startswith(begin):
                status = await StatusReport(gateway).collect()
                problem = Problem(True, f"status STANDBY: nothing can be registered: {reason}")
                is_told = (
                    await readyz(gateway) == (503, f"STANDBY: {reason}\n"),
                    (status.status, status.not_ready) == ("STANDBY", reason),
                    problem in find_problems(watcher.view, 0.0, time.monotonic()),
                )
                if all(is_told):
                    return reason
            await asyncio.sleep(POLL_INTERVAL_S)


async def none_told(gateway: Gateway) -> None:
    """Wait until it is OPERATIONAL, and nobody tells a reason any more."""
    while await readyz(gateway) != (200, "OPERATIONAL\n"):
        await asyncio.sleep(POLL_INTERVAL_S)
    assert gateway.core.hindrance is None
    assert (await StatusReport(gateway).collect()).not_ready is None


def logged(caplog: pytest.LogCaptureFixture, message: str) -> set[str]:
    """The reasons of the lines with a message."""
    return {vars(i)["reason"] for i in caplog.records if i.getMessage() == message}


@contextlib.contextmanager
def nobody_listens() -> Iterator[int]:
    """A port that is taken, and refuses connections."""
    with socket.socket() as closed:
        closed.bind((HOST, 0))
        yield closed.getsockname()[1]


async def test_monitor_server_is_not_reachable(caplog: pytest.LogCaptureFixture) -> None:
    with nobody_listens() as port:
        conf = {**core(1, port), "backend": {"type": "memory"}}
        async with running_gateway(event_core=conf, http=HTTP) as gateway:
            reason = await told(gateway, "monitor server is not reachable: ")
    address = f"tcp+sbs://{HOST}:{port}"
    assert reason == f"monitor server is not reachable: {address}: connection refused"
    assert logged(caplog, "monitor server is not reachable") == {f"{address}: connection refused"}


async def test_connection_to_the_monitor_server_is_lost(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with contextlib.AsyncExitStack() as stack:
        async with monitor_server(tmp_path / "monitor", rank=1) as monitor:
            conf = {**core(1, monitor.port), "backend": {"type": "dummy"}}
            gateway = await stack.enter_async_context(running_gateway(event_core=conf, http=HTTP))
            await none_told(gateway)
        begin = "monitor server is not reachable: "
        assert (await told(gateway, begin)).endswith(": connection refused")


async def test_another_server_of_the_group_is_active(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    message = "this server does not become active"
    async with monitor_server(tmp_path / "monitor", rank=1) as monitor:
        ours = {**core(1, monitor.port), "backend": {"type": "dummy"}}
        other = {**core(2, monitor.port), "backend": {"type": "dummy"}}
        async with contextlib.AsyncExitStack() as stack:
            async with running_gateway(name="other", event_core=other, http=HTTP) as active:
                await none_told(active)
                gateway = await stack.enter_async_context(
                    running_gateway(event_core=ours, http=HTTP)
                )
                reason = await told(gateway, "the monitor server chose")
                assert reason == "the monitor server chose 'other' to be active"
                assert logged(caplog, message) == {reason}
            await none_told(gateway)


async def test_a_relay_that_is_not_connected(caplog: pytest.LogCaptureFixture) -> None:
    with nobody_listens() as port:
        remote = {"host": HOST, "port": port, "token": None}
        async with running_gateway(eventer=remote, http=HTTP) as gateway:
            reason = await told(gateway, "feed is not connected: ")
    [of_log] = logged(caplog, "feed is not connected")
    assert reason == f"feed is not connected: {of_log}"
    assert of_log.endswith(f"{HOST}:{port}: connection refused")


async def test_a_relay_that_is_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with hat_event_server(tmp_path, server_token="right") as server:
        remote = {"host": server.host, "port": server.port, "token": "wrong"}
        async with running_gateway(eventer=remote, http=HTTP) as gateway:
            reason = await told(gateway, "feed is not connected: ")
    [of_log] = logged(caplog, "feed is not connected")
    assert reason == f"feed is not connected: {of_log}"
    assert "token" in of_log


async def test_a_relay_whose_server_is_standby(tmp_path: Path) -> None:
    with nobody_listens() as port:
        server = {**core(1, port), "backend": {"type": "memory"}}
        async with running_gateway(event_core=server) as remote:
            assert remote.eventer_server is not None
            remote_port = remote.eventer_server.address.port
            eventer = {"host": HOST, "port": remote_port, "token": "pair"}
            async with running_gateway(eventer=eventer, http=HTTP) as gateway:
                reason = f"event server {HOST}:{remote_port} is STANDBY"
                assert await told(gateway, reason) == reason


async def test_a_relay_that_lost_its_server(tmp_path: Path) -> None:
    async with contextlib.AsyncExitStack() as stack:
        async with event_server(tmp_path, 1) as server:
            port = eventer_port(server)
            remote = {"host": HOST, "port": port, "token": None}
            gateway = await stack.enter_async_context(running_gateway(eventer=remote, http=HTTP))
            await none_told(gateway)
        assert (await told(gateway, "feed ")).startswith("feed is not connected: ")
        async with event_server(tmp_path, 1, port=port):
            await none_told(gateway)


async def test_a_store_that_fails(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with running_gateway(path=tmp_path / "store", http=HTTP) as gateway:
        with full_disk():
            async with await RawPeer.init(gateway.mariner.port) as peer:
                peer.send(register_req(1, event("a")))
                reason = await told(gateway, "")
            assert str(tmp_path / "store") in reason
            assert reason in {str(vars(i).get("reason")) for i in caplog.records}
        await none_told(gateway)


async def test_a_clock_that_was_ahead(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(limits, "CLOCK_PERIOD_S", 0.001)
    clock = ShiftedClock(monkeypatch)
    async with running_gateway(http=HTTP) as gateway:
        async with await RawPeer.init(gateway.mariner.port) as peer:
            clock.seconds = 10 * 365 * 86_400.0
            assert (await peer.request(register_req(1, event("a"))))["success"]
            clock.seconds = 0
        reason = await told(gateway, "events up to ")
    assert "are ahead of the clock of this machine by more than 86400 s" in reason
    assert logged(caplog, "registrations are refused") == {reason}


async def test_the_console_asks_by_the_control_socket_where_it_knows_no_metrics(
    tmp_path: Path,
) -> None:
    control = tmp_path / "control.sock"
    with nobody_listens() as port:
        remote = {"host": HOST, "port": port, "token": None}
        async with running_gateway(eventer=remote, control=str(control)) as gateway:
            StatusReport(gateway)
            async with Watcher(
                WatchedGateway("a", HOST, "app", gateway.mariner.port, "secret", control=control)
            ) as watcher:
                while watcher.view.hindrance is None:
                    await asyncio.sleep(POLL_INTERVAL_S)
                assert watcher.view.hindrance.startswith("feed is not connected: ")
