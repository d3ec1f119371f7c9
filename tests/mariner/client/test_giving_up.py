"""What no server will ever take is raised, and what may pass is tried again."""

import asyncio
import contextlib
import functools
import logging
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import pytest

from eventer_bridge.model import QueryLatestParams
from eventer_bridge.net import limits as net_limits
from mariner import client, limits
from mariner.client import BufferedClient, ReconnectingClient
from mariner.client.reconnecting import Connect
from mariner.errors import (
    BusyError,
    ConnectError,
    InitError,
    InvalidEventError,
    LocalProtocolError,
    MarinerError,
    OutcomeUnknownError,
    UnknownHostError,
)
from tests.eventer_bridge.backends.faults import held_sync
from tests.support.inprocess import APP, running_gateway
from tests.support.waiting import until

DECLINED: Final = "invalid client name or token"
NOWHERE: Final = "no-such-host.invalid"


@pytest.fixture(autouse=True)
def retry_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(net_limits, "RECONNECT_MAX_S", 0.05)


def connecting(port: int, host: str = "127.0.0.1", **options: Any) -> Connect:
    named = {"client_name": "app", "client_token": "secret", **options}
    return functools.partial(client.connect, host, port, **named)


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [i.message for i in caplog.records if i.name == "mariner.client.reconnecting"]


@contextlib.asynccontextmanager
async def closed_port() -> AsyncIterator[int]:
    async with running_gateway() as running:
        port = running.mariner.port
    yield port


@pytest.mark.parametrize("wrong", [{"client_token": "wrong"}, {"client_name": "nobody"}])
async def test_a_decline_is_raised(wrong: Any, caplog: pytest.LogCaptureFixture) -> None:
    async with running_gateway([APP]) as running:
        port = running.mariner.port
        connection = ReconnectingClient([connecting(port, **wrong)], start="earliest")
        expected = f"^127.0.0.1:{port}: {DECLINED}$"
        for _ in range(2):
            with pytest.raises(InitError, match=expected):
                await connection.register("a", 1)
            with pytest.raises(InitError, match=expected):
                await connection.query(QueryLatestParams())
            with pytest.raises(InitError, match=expected):
                await anext(connection.replay())
        await connection.wait_closed()
        assert connection.close_reason == f"127.0.0.1:{port}: {DECLINED}"
    assert told(caplog) == [f"client gives up: {connection.close_reason}"]


async def test_a_decline_after_a_connection_is_raised(tmp_path: Path) -> None:
    tokens = ["secret", "wrong"]
    async with running_gateway([APP], path=tmp_path / "store") as running:
        port = running.mariner.port

        async def connect(**options: Any) -> client.Client:
            return await connecting(port, client_token=tokens.pop(0))(**options)

        async with ReconnectingClient([connect]) as connection:
            await connection.register("a", 1)
            with held_sync():
                sent = asyncio.create_task(connection.register("a", 2))
                await until(lambda: connection._answers)
                assert connection._client is not None
                connection._client.close()
                reason = f"127.0.0.1:{port}: {DECLINED}"
                with pytest.raises(InitError, match=f"^{reason}$"):
                    await connection.register("a", 3)
                with pytest.raises(OutcomeUnknownError, match=f"^outcome unknown: {reason}$"):
                    await sent


async def test_all_have_to_decline(caplog: pytest.LogCaptureFixture) -> None:
    async with closed_port() as port, running_gateway([APP]) as running:
        declining = connecting(running.mariner.port, client_token="wrong")
        async with ReconnectingClient([declining, connecting(port)]) as connection:
            await until(lambda: told(caplog))
            assert connection.is_open
            reasons = (
                f"127.0.0.1:{running.mariner.port}: {DECLINED};"
                f" 127.0.0.1:{port}: connection refused"
            )
            assert told(caplog)[0].startswith(f"client is not connected: {reasons}; next try in")
        async with ReconnectingClient([declining, declining]) as connection:
            twice = "; ".join([f"127.0.0.1:{running.mariner.port}: {DECLINED}"] * 2)
            with pytest.raises(InitError, match=f"^{twice}$"):
                await connection.register("a", 1)


async def test_a_decline_that_may_pass() -> None:
    quota = {**APP, "quota": {"max_connections": 1}}
    async with running_gateway([quota]) as running:
        connect = connecting(running.mariner.port)
        first = await connect()
        with pytest.raises(BusyError, match=r"^too many connections of this client \(max_conn"):
            await connect()
        async with ReconnectingClient([connect]) as connection:
            registering = asyncio.create_task(connection.register("a", 1))
            await asyncio.wait([registering], timeout=0.2)
            assert connection.is_open
            await first.async_close()
            await registering


async def test_an_unknown_host_is_raised_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "UNKNOWN_HOST_S", 0.2)
    async with ReconnectingClient([connecting(1, NOWHERE)]) as connection:
        begun_at = asyncio.get_running_loop().time()
        with pytest.raises(UnknownHostError, match=rf"^{NOWHERE}:1: the host name cannot be reso"):
            await connection.register("a", 1)
        assert asyncio.get_running_loop().time() - begun_at >= 0.1


async def test_a_host_that_was_known_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(limits, "UNKNOWN_HOST_S", 0.0)
    hosts = ["127.0.0.1", NOWHERE, NOWHERE, "127.0.0.1"]
    async with running_gateway() as running:
        port = running.mariner.port

        async def connect(**options: Any) -> client.Client:
            return await connecting(port, hosts.pop(0))(**options)

        async with ReconnectingClient([connect]) as connection:
            await connection.register("a", 1)
            assert connection._client is not None
            connection._client.close()
            await connection.register("a", 2)
        assert hosts == []
    assert "the host name cannot be resolved" in caplog.text


@pytest.mark.parametrize(
    ("wrong", "error", "text"),
    [
        ({"subscriptions": [5]}, InvalidEventError, "subscriptions[0]: expected a text such as"),
        ({"start": "latest"}, LocalProtocolError, "start: expected 'earliest' or ids of events"),
        ({"hots": 1}, TypeError, "unexpected keyword argument 'hots'"),
    ],
)
async def test_what_cannot_even_be_sent(wrong: Any, error: type[Exception], text: str) -> None:
    connect: Any = functools.partial(client.connect, "127.0.0.1", 1, client_name="a", **wrong)
    async with ReconnectingClient([connect]) as connection:
        with pytest.raises(error) as e:
            await connection.query(QueryLatestParams())
    assert text in str(e.value)


async def test_a_server_without_replay_is_raised() -> None:
    core = {"server_id": 1, "backend": {"type": "dummy"}}
    async with running_gateway(event_core=core) as running:
        connection = ReconnectingClient([connecting(running.mariner.port)], cursor="c")
        with pytest.raises(InitError, match=r": start: this server does not keep events$"):
            await anext(connection.replay())
        await connection.wait_closed()


async def test_now_is_for_those_who_reconnect() -> None:
    now: Any = "now"
    with pytest.raises(LocalProtocolError) as e:
        await client.connect("127.0.0.1", 1, client_name="a", start=now)
    assert str(e.value) == (
        "start: expected 'earliest' or ids of events, got 'now': that is for a ReconnectingClient"
    )


async def test_it_tries_for_ever_if_it_is_to(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "mariner.client.reconnecting")
    async with running_gateway([APP]) as running:
        wrong = connecting(running.mariner.port, client_token="wrong")
        async with ReconnectingClient([wrong], gives_up=False) as connection:
            await until(lambda: len(told(caplog)) >= 3)
            assert connection.is_open
            assert connection.close_reason is None


async def test_a_buffer_keeps_what_is_declined(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running_gateway([APP]) as running:
        wrong = connecting(running.mariner.port, client_token="wrong")
        async with await BufferedClient.open(str(tmp_path / "buffer"), [wrong]) as buffered:
            await buffered.register("a", {"on": True})
            await until(lambda: DECLINED in caplog.text)
            await buffered.register("a", {"on": False})
            assert (await buffered.status()).waiting == 2
            assert buffered.is_open
        right = connecting(running.mariner.port)
        async with await BufferedClient.open(str(tmp_path / "buffer"), [right]) as buffered:
            await buffered.drain()
            status = await buffered.status()
            assert (status.forwarded, status.refused) == (2, 0)


class Broken(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        raise BrokenPipeError(record.name)


async def test_what_ends_it_unexpectedly_is_raised(tmp_path: Path) -> None:
    logger, handler = logging.getLogger("mariner.client.reconnecting"), Broken()
    logger.addHandler(handler)
    try:
        async with closed_port() as port:
            connection = ReconnectingClient([connecting(port)], start="earliest")
            buffered = await BufferedClient.open(tmp_path / "buffer", [connecting(port)])
        text = "the client failed: BrokenPipeError('mariner.client.reconnecting')"
        for use in (
            connection.register("a"),
            connection.query(QueryLatestParams()),
            anext(connection.replay()),
        ):
            with pytest.raises(MarinerError, match=f"^{re.escape(text)}$"):
                await use
        await buffered.wait_closed()
        assert (connection.close_reason, buffered.close_reason) == (text, text)
    finally:
        logger.removeHandler(handler)


async def test_what_ends_the_sending_unexpectedly(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        running_gateway() as running,
        ReconnectingClient([connecting(running.mariner.port)]) as connection,
    ):

        async def fail(_client: client.Client) -> None:
            monkeypatch.delattr(connection, "_send")
            raise BrokenPipeError("sending")

        monkeypatch.setattr(connection, "_send", fail)
        await connection.register("a")
    assert "a task failed: sending" in caplog.text


async def test_errors_of_connecting_are_told_apart() -> None:
    with pytest.raises(UnknownHostError, match=rf"^{NOWHERE}:1: the host name cannot be resolved"):
        await client.connect(NOWHERE, 1, client_name="a")
    async with closed_port() as port:
        with pytest.raises(ConnectError) as e:
            await client.connect("127.0.0.1", port, client_name="a")
        assert not isinstance(e.value, UnknownHostError)
