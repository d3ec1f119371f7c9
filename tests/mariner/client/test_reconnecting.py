"""The client that outlives its connections: each event is stored once, in order."""

import asyncio
import contextlib
import functools
import itertools
import logging
import os
import random
import re
import signal
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, Final

import pytest

from eventer_bridge import limits
from eventer_bridge.backends.rocksdb import RocksDbBackend
from eventer_bridge.model import (
    Event,
    JsonPayload,
    Order,
    QueryLatestParams,
    QueryTimeseriesParams,
    RegisterEvent,
    Status,
)
from eventer_bridge.net import limits as net_limits
from mariner import client
from mariner import limits as client_limits
from mariner.client import ReconnectingClient
from mariner.errors import (
    ConnectionLostError,
    LocalProtocolError,
    OutcomeUnknownError,
    RegisterError,
    UnsupportedError,
)
from tests.eventer_bridge.backends.faults import full_disk, held_sync
from tests.support import proxy
from tests.support.gateway import gateway
from tests.support.inprocess import APP, running_gateway
from tests.support.peer import RawPeer
from tests.support.waiting import until

READER: Final = {**APP, "register_events": [{"subscriptions": [["a"]]}]}


@pytest.fixture(autouse=True)
def retry_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(net_limits, "RECONNECT_MAX_S", 0.05)
    monkeypatch.setattr(limits, "STORE_RETRY_PERIOD_S", 0.02)


def reconnecting(*ports: int, **options: Any) -> ReconnectingClient:
    named = {"client_name": "app", "client_token": "secret", **options}
    return ReconnectingClient(
        [functools.partial(client.connect, "127.0.0.1", port, **named) for port in ports]
    )


def numbered(number: int, event_type: str = "a") -> list[RegisterEvent]:
    return [RegisterEvent((event_type,), None, JsonPayload.of(number))]


def number_of(event: Event) -> int:
    assert isinstance(event.payload, JsonPayload)
    value: int = event.payload.value()
    return value


async def stored(connection: ReconnectingClient, event_type: str = "a") -> list[Event]:
    params = QueryTimeseriesParams([(event_type,)], order=Order.ASCENDING)
    return [i async for i in connection.query_all(params)]


async def register_all(
    connection: ReconnectingClient, numbers: Sequence[int]
) -> list[Sequence[Event]]:
    return await asyncio.gather(*(connection.register(numbered(i)) for i in numbers))


async def test_registered_once_over_many_connections(tmp_path: Path) -> None:
    plans = itertools.islice(proxy.by_chance(random.Random(7), 20_000), 15)
    async with (
        running_gateway(path=tmp_path / "store") as running,
        proxy.create(running.mariner.port, plans) as link,
        reconnecting(link.port) as connection,
    ):
        found = [event for (event,) in await register_all(connection, range(1_000))]
        assert link.n_cuts == 15
        assert await stored(connection) == found
    assert [number_of(i) for i in found] == [*range(1_000)]


async def test_registered_once_whoever_is_killed(tmp_path: Path) -> None:
    answers: list[asyncio.Task[Sequence[Event]]] = []
    async with contextlib.AsyncExitStack() as stack:
        port = 0
        for round_ in range(3):
            async with gateway(tmp_path, port=port) as running:
                if not port:
                    port = running.port
                    connection = await stack.enter_async_context(reconnecting(port))
                answers += [
                    asyncio.create_task(connection.register(numbered(number)))
                    for number in range(round_ * 500, round_ * 500 + 500)
                ]
                await answers[-400]
                os.kill(running.pid, signal.SIGKILL)
        async with gateway(tmp_path, port=port):
            found = [event for (event,) in await asyncio.gather(*answers)]
            assert await stored(connection) == found
    assert [number_of(i) for i in found] == [*range(1_500)]


async def test_the_order_is_kept_when_the_disk_fails(tmp_path: Path) -> None:
    async with (
        running_gateway(path=tmp_path / "store") as running,
        reconnecting(running.mariner.port) as connection,
    ):
        backend = running.backend
        assert isinstance(backend, RocksDbBackend)
        await connection.register(numbered(0))
        for begin in range(1, 1_000, 200):
            with full_disk():
                registering = asyncio.create_task(
                    register_all(connection, range(begin, begin + 200))
                )
                while backend.failure is None:
                    await asyncio.sleep(0)
            await registering
        assert [number_of(i) for i in await stored(connection)] == [*range(1_001)]


async def test_each_names_the_one_before_it() -> None:
    said: list[dict[str, Any]] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with RawPeer(reader, writer) as peer:
            await peer.receive()
            accepted = {"msg_type": "init_res", "success": True, "status": "OPERATIONAL"}
            peer.send({**accepted, "extensions": ["request_key"]})
            stored = {"success": True, "events": []}
            unavailable = {"success": False, "outcome": "unavailable"}
            for n_requests, answer in (1, stored), (3, unavailable), (3, stored):
                requests = [await peer.receive() for _ in range(n_requests)]
                said.extend(requests)
                for request in requests:
                    head = {"msg_type": "register_res", "register_id": request["register_id"]}
                    peer.send({**head, **answer})
            await reader.read()

    listener = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with listener, reconnecting(listener.sockets[0].getsockname()[1]) as connection:
        await asyncio.gather(*(connection.register(numbered(i), f"key {i}") for i in range(4)))
    keys = [(i["request_key"], i.get("after_key")) for i in said]
    three = [("key 1", None), ("key 2", "key 1"), ("key 3", "key 2")]
    assert keys == [("key 0", None), *three, *three]


async def test_what_is_refused_for_good_holds_up_nobody() -> None:
    async with (
        running_gateway([READER]) as running,
        reconnecting(running.mariner.port) as connection,
    ):
        outcomes = await asyncio.gather(
            *(connection.register(numbered(i, "ab"[i % 3 == 1])) for i in range(100)),
            return_exceptions=True,
        )
        for number, outcome in enumerate(outcomes):
            assert isinstance(outcome, RegisterError) == (number % 3 == 1), outcome
        found = [number_of(i) for i in await stored(connection)]
        assert found == [i for i in range(100) if i % 3 != 1]
        with pytest.raises(RegisterError, match="no right to register 'b'"):
            await connection.register(numbered(1, "b"))


async def test_invalid_events_are_refused_at_once() -> None:
    async with running_gateway() as running, reconnecting(running.mariner.port) as connection:
        wrong: Any = object()
        outcomes = await asyncio.gather(
            connection.register([RegisterEvent(("\ud800",), None, None)]),
            connection.register([RegisterEvent(("a",), None, wrong)]),
            connection.register(numbered(1)),
            return_exceptions=True,
        )
        assert isinstance(outcomes[0], LocalProtocolError)
        assert isinstance(outcomes[1], TypeError)
        assert not isinstance(outcomes[2], BaseException)


async def test_a_key_of_the_application() -> None:
    async with running_gateway() as running:
        async with reconnecting(running.mariner.port) as connection:
            first = await connection.register(numbered(1), "key")
        async with reconnecting(running.mariner.port) as connection:
            assert await connection.register(numbered(1), "key") == first


async def test_a_server_without_request_keys() -> None:
    core = {"server_id": 1, "backend": {"type": "dummy"}}
    async with (
        running_gateway(event_core=core) as running,
        reconnecting(running.mariner.port) as connection,
    ):
        with pytest.raises(UnsupportedError, match=r"the server does not know 'request_key'$"):
            await connection.register(numbered(1))


async def test_the_next_server_is_used_when_one_ends() -> None:
    async with contextlib.AsyncExitStack() as stack:
        first = await stack.enter_async_context(running_gateway())
        second = await stack.enter_async_context(running_gateway())
        ports = first.mariner.port, second.mariner.port
        connection = await stack.enter_async_context(reconnecting(*ports))
        await connection.register(numbered(1))
        assert connection.address == f"127.0.0.1:{ports[0]}"
        await first.async_close()
        await connection.register(numbered(2))
        assert connection.address == f"127.0.0.1:{ports[1]}"
        assert connection.status is Status.OPERATIONAL
        assert [number_of(i) for i in await stored(connection)] == [2]


async def test_a_server_in_standby_is_left(tmp_path: Path) -> None:
    async with (
        running_gateway(path=tmp_path / "store") as first,
        gateway(tmp_path) as second,  # whose disk is not full: that is of this process
        reconnecting(first.mariner.port, second.port) as connection,
    ):
        await connection.register(numbered(1))
        with full_disk():
            await connection.register(numbered(2))
            assert connection.address == f"127.0.0.1:{second.port}"


async def test_nobody_listens_at_first(caplog: pytest.LogCaptureFixture) -> None:
    async with contextlib.AsyncExitStack() as stack:
        async with gateway_port() as port:
            pass
        connection = await stack.enter_async_context(reconnecting(port))
        registering = asyncio.create_task(connection.register(numbered(1)))
        while "client is not connected" not in caplog.text:
            await asyncio.sleep(0)
        assert connection.address is None
        assert connection.status is Status.STANDBY
        listen = {"host": "127.0.0.1", "port": port}
        await stack.enter_async_context(running_gateway(mariner=listen))
        await registering
        assert len((await connection.query(QueryLatestParams([("a",)]))).events) == 1


@contextlib.asynccontextmanager
async def gateway_port() -> AsyncIterator[int]:
    """A port where somebody has listened."""
    async with running_gateway() as running:
        yield running.mariner.port


async def test_why_there_is_no_connection_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "mariner.client.reconnecting")
    async with gateway_port() as port:
        pass
    async with reconnecting(port):
        await until(lambda: len(told(caplog)) >= 3)
    found = told(caplog)
    assert [i.levelno for i in found[:3]] == [logging.WARNING, logging.DEBUG, logging.DEBUG]
    reason = f"127.0.0.1:{port}: connection refused"
    assert found[0].reason == reason  # type: ignore[attr-defined]
    expected = rf"client is not connected: {reason}; next try in 0\.\d s"
    assert all(re.fullmatch(expected, i.message) for i in found)


async def test_why_a_connection_was_lost_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async with running_gateway() as running, reconnecting(running.mariner.port) as connection:
        await connection.register("a")
        address = connection.address
        await running.async_close()
        await until(lambda: told(caplog, "connection lost"))
        expected = f"connection lost: {address}: the server closed the connection; connecting again"
        assert told(caplog, "connection lost")[0].message == expected


def told(
    caplog: pytest.LogCaptureFixture, beginning: str = "client is not connected"
) -> list[logging.LogRecord]:
    of_client = (i for i in caplog.records if i.name == "mariner.client.reconnecting")
    return [i for i in of_client if i.message.startswith(beginning)]


async def test_closed(tmp_path: Path) -> None:
    async with running_gateway(path=tmp_path / "store") as running:
        connection = reconnecting(running.mariner.port)
        await connection.register(numbered(0))
        with held_sync():
            sent = asyncio.create_task(connection.register(numbered(1)))
            while not connection._answers:
                await asyncio.sleep(0)
            await connection.async_close()
        with pytest.raises(OutcomeUnknownError, match=r"^outcome unknown: closed by this client$"):
            await sent
        with pytest.raises(ConnectionLostError, match=r"^closed by this client$"):
            await connection.register(numbered(2))
        with pytest.raises(ConnectionLostError, match=r"^closed by this client$"):
            await connection.query(QueryLatestParams())
    connection = reconnecting(running.mariner.port)
    unsent = asyncio.create_task(connection.register(numbered(1)))
    await asyncio.sleep(0)
    await connection.async_close()
    with pytest.raises(ConnectionLostError, match=r"^closed by this client$"):
        await unsent


async def test_what_is_failed_as_unsent_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running_gateway() as running, reconnecting(running.mariner.port) as connection:
        await connection.register(numbered(0))
        assert connection._client is not None
        begun, sent = asyncio.Event(), asyncio.Event()

        async def send_late(*_: Any, **__: Any) -> None:
            outcome = connection._sent[-1].outcome
            begun.set()
            while not outcome.done():
                await asyncio.sleep(0)
            sent.set()

        monkeypatch.setattr(connection._client, "send_registration", send_late)
        registering = asyncio.create_task(connection.register(numbered(1)))
        await begun.wait()
        connection.close()
        with pytest.raises(ConnectionLostError, match=r"^closed by this client$"):
            await registering
        await connection.wait_closed()
        assert not sent.is_set()


async def test_given_up_before_it_was_sent() -> None:
    async with contextlib.AsyncExitStack() as stack:
        async with gateway_port() as port:
            pass
        connection = await stack.enter_async_context(reconnecting(port))
        tasks = [asyncio.create_task(connection.register(numbered(i))) for i in range(3)]
        await asyncio.sleep(0)
        tasks[1].cancel()
        listen = {"host": "127.0.0.1", "port": port}
        await stack.enter_async_context(running_gateway(mariner=listen))
        await asyncio.wait(tasks)
        assert [number_of(i) for i in await stored(connection)] == [0, 2]


async def test_no_more_than_that_wait() -> None:
    async with gateway_port() as port:
        pass
    async with reconnecting(port) as connection:
        n_asked = client_limits.MAX_UNANSWERED + 10
        tasks = [asyncio.create_task(connection.register(numbered(i))) for i in range(n_asked)]
        for _ in range(5):
            await asyncio.sleep(0)
        assert len(connection._waiting) == client_limits.MAX_UNANSWERED
    await asyncio.gather(*tasks, return_exceptions=True)
