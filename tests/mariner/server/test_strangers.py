"""Who has no name or token: silent ones, and those that guess, Mariner and Eventer alike."""

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Final, TypeAlias

import pytest

from eventer_bridge import chatter, tls
from eventer_bridge import limits as core_limits
from eventer_bridge.errors import InitError
from eventer_bridge.eventer import client as eventer
from eventer_bridge.net import limits as net_limits
from eventer_bridge.net.stats import ServerStats
from mariner.gateway.gateway import Gateway
from tests.support.certificates import make_certificates
from tests.support.inprocess import running_gateway
from tests.support.peer import INIT, RawPeer, event, register_req
from tests.support.waiting import until

TIMEOUT_S: Final = 60.0
FOREVER_S: Final = 3600.0
WRONG: Final = {**INIT, "client_token": "wrong"}
EVENTER: Final = {"host": "127.0.0.1", "port": 0, "token": "secret"}
CORE: Final = {"server_id": 1, "backend": {"type": "memory"}, "eventer_server": EVENTER}

LoginCb: TypeAlias = Callable[[Gateway, str], Any]
"""Logs in with a token, and leaves; tells whether it was let in."""


async def log_in_mariner(gateway: Gateway, token: str) -> bool:
    async with await RawPeer.connect(gateway.mariner.port) as peer:
        answer = await peer.request({**INIT, "client_token": token})
    return bool(answer["success"])


async def log_in_eventer(gateway: Gateway, token: str) -> bool:
    assert gateway.eventer_server is not None
    address = chatter.Address("127.0.0.1", gateway.eventer_server.address.port)
    try:
        async with await eventer.connect(address, "gui", client_token=token):
            return True
    except InitError:
        return False


def stats_of(gateway: Gateway, log_in: LoginCb) -> ServerStats:
    if log_in is log_in_mariner:
        return gateway.mariner.stats
    assert gateway.eventer_server is not None
    return gateway.eventer_server.stats


@contextlib.asynccontextmanager
async def silent(port: int, count: int, said: bytes = b"") -> AsyncIterator[list[RawPeer]]:
    async with contextlib.AsyncExitStack() as stack:
        peers = []
        for _ in range(count):
            peers.append(await stack.enter_async_context(await RawPeer.connect(port)))
            peers[-1].send_raw(said)
        yield peers


@pytest.mark.parametrize("said", [b"", b"\x02\x01", b"\x01\x20{"])
async def test_who_does_not_say_its_name_is_closed(
    said: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(net_limits, "FIRST_MESSAGE_TIMEOUT_S", 0.2)
    monkeypatch.setattr(core_limits, "SWEEP_PERIOD_S", 0.02)
    async with (
        running_gateway() as gateway,
        silent(gateway.mariner.port, 3, said) as peers,
    ):
        for peer in peers:
            assert (await peer.receive())["error"] == "no init_req within 0.2 s"
            assert await peer.is_closed_by_server()
        assert gateway.mariner.stats.closed == {"no first message": 3}
        await until(lambda: not gateway.mariner.stats.connections)


async def test_time_to_init_counts_from_accept_with_the_handshake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(net_limits, "FIRST_MESSAGE_TIMEOUT_S", 60.0)
    monkeypatch.setattr(core_limits, "SWEEP_PERIOD_S", 0.02)
    made = make_certificates(tmp_path)
    server_tls = {"cert": str(made.server_cert), "key": str(made.server_key)}
    listens = {"host": "127.0.0.1", "port": 0, "tls": server_tls}
    async with running_gateway(mariner=listens) as gateway:
        with socket.create_connection(("127.0.0.1", gateway.mariner.port)) as tcp:
            tcp.setblocking(False)
            await until(lambda: gateway.mariner.stats.connections == 1)
            gateway._admission._new.victim_of_all().accepted_at -= (
                net_limits.FIRST_MESSAGE_TIMEOUT_S
            )
            context = tls.client_context(made.ca)
            reader, writer = await asyncio.open_connection(
                sock=tcp, ssl=context, server_hostname="127.0.0.1"
            )
            async with asyncio.timeout(TIMEOUT_S):
                assert b'"error":"no init_req within 60 s"' in await reader.read()
            writer.close()
        await until(lambda: gateway.mariner.stats.closed == {"no first message": 1})


@pytest.mark.parametrize("log_in", [log_in_mariner, log_in_eventer])
async def test_who_knows_the_token_gets_in_among_silent_ones(
    log_in: LoginCb, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(net_limits, "MAX_NEW_CONNECTIONS", 10)
    monkeypatch.setattr(net_limits, "NEW_CONNECTION_GRACE_S", 0.1)
    async with running_gateway(event_core=CORE) as gateway:
        assert gateway.eventer_server is not None
        ports = gateway.mariner.port, gateway.eventer_server.address.port
        async with contextlib.AsyncExitStack() as stack:
            known = await RawPeer.init(gateway.mariner.port)
            for port in ports:
                await stack.enter_async_context(silent(port, 20))
            await until(lambda: stats_of(gateway, log_in_eventer).accepted == 20)
            await asyncio.sleep(0.1)
            async with asyncio.timeout(TIMEOUT_S):
                assert await log_in(gateway, "secret")
            # and who is in stays
            assert (await known.request(register_req(1, event("a"))))["success"]
            known.writer.close()
        of_all = [stats_of(gateway, i).refused.total() for i in (log_in_mariner, log_in_eventer)]
        assert sum(of_all) >= 30


@pytest.mark.parametrize("log_in", [log_in_mariner, log_in_eventer])
async def test_whose_slot_is_taken_as_it_connects_is_closed(
    log_in: LoginCb, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(net_limits, "MAX_NEW_CONNECTIONS", 3)
    monkeypatch.setattr(net_limits, "NEW_CONNECTION_GRACE_S", 0.0)
    async with running_gateway(event_core=CORE) as gateway, contextlib.AsyncExitStack() as stack:
        assert gateway.eventer_server is not None
        assert gateway.eventer_server._listener is not None
        port = gateway.mariner.port
        if log_in is log_in_eventer:
            port = gateway.eventer_server.address.port
        for _ in range(100):  # the kernel holds them; they are accepted many at a time
            stack.enter_context(socket.create_connection(("127.0.0.1", port)))
        stats = stats_of(gateway, log_in)
        await until(lambda: stats.accepted == 100)
        await until(lambda: stats.connections == 3)
        known = {
            *gateway.mariner.connections,
            *gateway.eventer_server._listener.connections,
        }
        assert len(known) == 3


async def test_both_wires_count_against_one_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(net_limits, "MAX_CONNECTIONS", 1)
    async with running_gateway(event_core=CORE) as gateway:
        assert gateway.eventer_server is not None
        address = chatter.Address("127.0.0.1", gateway.eventer_server.address.port)
        async with await RawPeer.init(gateway.mariner.port):
            with pytest.raises(InitError, match="too many connections"):
                await eventer.connect(address, "gui", client_token="secret")
        await until(lambda: gateway.mariner.stats.clients == 0)
        async with await eventer.connect(address, "gui", client_token="secret"):
            assert not await log_in_mariner(gateway, "secret")


@pytest.mark.parametrize("log_in", [log_in_mariner, log_in_eventer])
async def test_guesses_are_answered_late_and_who_is_right_at_once(
    log_in: LoginCb, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(net_limits, "FREE_LOGIN_FAILURES", 3)
    monkeypatch.setattr(net_limits, "LOGIN_FAILURE_PERIOD_S", 0.2)
    async with running_gateway(event_core=CORE) as gateway:
        stats = stats_of(gateway, log_in)
        started = time.monotonic()
        assert not any(await asyncio.gather(*(log_in(gateway, "wrong") for _ in range(9))))
        assert time.monotonic() - started >= 6 * 0.2 - 0.01
        assert stats.declined == 9
        monkeypatch.setattr(net_limits, "LOGIN_FAILURE_PERIOD_S", FOREVER_S)
        monkeypatch.setattr(net_limits, "MAX_LOGIN_DELAY_S", FOREVER_S)
        for _ in range(3):
            assert not await log_in(gateway, "wrong")
        guesses = [asyncio.create_task(log_in(gateway, "wrong")) for _ in range(6)]
        await until(lambda: stats.connections == 6 and stats.frames_in == 18)
        async with asyncio.timeout(TIMEOUT_S):
            assert await log_in(gateway, "secret")
        assert not any(guess.done() for guess in guesses)
        for guess in guesses:
            guess.cancel()
        await asyncio.wait(guesses)


async def test_who_guesses_and_leaves_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(net_limits, "FREE_LOGIN_FAILURES", 0)
    monkeypatch.setattr(net_limits, "LOGIN_FAILURE_PERIOD_S", 0.1)
    async with running_gateway() as gateway:
        for _ in range(5):
            async with await RawPeer.connect(gateway.mariner.port) as peer:
                peer.send(WRONG)
        stats = gateway.mariner.stats
        await until(lambda: stats.closed.total() == 5 and not stats.connections)


async def test_a_gateway_that_closes_does_not_wait_for_answers_to_guesses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(net_limits, "FREE_LOGIN_FAILURES", 0)
    for name in ("LOGIN_FAILURE_PERIOD_S", "MAX_LOGIN_DELAY_S", "CLOSE_TIMEOUT_S"):
        monkeypatch.setattr(net_limits, name, FOREVER_S)
    async with running_gateway() as gateway:
        peer = await RawPeer.connect(gateway.mariner.port)
        peer.send(WRONG)
        await until(lambda: gateway.mariner.stats.frames_in == 1)
    assert await peer.is_closed_by_server()
    peer.writer.close()
