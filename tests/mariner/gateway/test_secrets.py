"""Tokens and certificates of clients, from the configuration to the answer on the wire."""

import asyncio
import logging
import socket
import ssl
import struct
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from eventer_bridge import limits, tls
from eventer_bridge.core import tokens
from eventer_bridge.net import limits as net_limits
from tests.support.certificates import Certificates, issue_client, make_certificates, write_crl
from tests.support.inprocess import APP, metrics_of, running_gateway
from tests.support.peer import INIT, RawPeer, event, register_req

CHOSEN = "correct horse"
FOREVER_S = 3600.0


def clients(**properties: Any) -> list[dict[str, Any]]:
    return [{**APP, **properties}]


async def answer(port: int, token: str | None, name: str = "app") -> str | None:
    """Why a login is declined; None: it is accepted."""
    async with await RawPeer.connect(port) as peer:
        peer.send({**INIT, "client_name": name, "client_token": token})
        response = await peer.receive()
        return None if response["success"] else response["error"]


async def test_declined_alike_whatever_is_wrong_and_no_token_is_told(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setattr(net_limits, "FREE_LOGIN_FAILURES", 100)
    old = {"value": "hunter2-old", "expires": "2020-01-01"}
    new = {"value": tokens.sha256_text("hunter2-new")}
    configured = [
        *clients(token=[old, new]),
        *clients(name="chosen", token=tokens.scrypt_text(CHOSEN)),
    ]
    async with running_gateway(configured) as gateway:
        port = gateway.mariner.port
        assert await answer(port, "hunter2-new") is None
        assert await answer(port, CHOSEN, "chosen") is None
        for name, token in (
            ("nobody", "hunter2-new"),
            ("app", "hunter2-old"),
            ("app", "hunter2-wrong"),
            ("app", None),
            ("chosen", "hunter2-wrong"),
            ("chosen", "hunter2-new"),
        ):
            assert await answer(port, token, name) == "invalid client name or token"
    told = str([record.__dict__ for record in caplog.records])
    for secret in ("hunter2", CHOSEN, tokens.sha256("hunter2-new").hex()):
        assert secret not in told
    details = [getattr(i, "detail", "") for i in caplog.records]
    for cause in ("unknown name", "expired token", "wrong token"):
        assert f"invalid client name or token: {cause}" in details


async def test_a_token_of_a_file_and_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "token").write_text(tokens.sha256_text("first") + "\n")
    monkeypatch.setenv("APP_TOKEN", "second")
    sources = [{"file": str(tmp_path / "token")}, {"environment": "APP_TOKEN"}]
    async with running_gateway(clients(token=sources)) as gateway:
        assert await answer(gateway.mariner.port, "first") is None
        assert await answer(gateway.mariner.port, "second") is None
        assert await answer(gateway.mariner.port, "third") is not None


async def test_guessing_a_chosen_token_is_answered_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SCRYPT_COST", 2)
    monkeypatch.setattr(net_limits, "FREE_LOGIN_FAILURES", 2)
    monkeypatch.setattr(net_limits, "LOGIN_FAILURE_PERIOD_S", 0.3)
    async with running_gateway(clients(token=tokens.scrypt_text(CHOSEN))) as gateway:
        port = gateway.mariner.port
        began_s = time.monotonic()
        assert (
            await asyncio.gather(*(answer(port, "guess") for _ in range(5)))
            == ["invalid client name or token"] * 5
        )
        assert time.monotonic() - began_s > 0.6
        monkeypatch.setattr(net_limits, "FREE_LOGIN_FAILURES", 0)
        monkeypatch.setattr(net_limits, "LOGIN_FAILURE_PERIOD_S", FOREVER_S)
        monkeypatch.setattr(net_limits, "MAX_LOGIN_DELAY_S", FOREVER_S)
        guess = asyncio.create_task(answer(port, "guess"))
        while gateway.mariner.stats.frames_in < 6:
            await asyncio.sleep(0.005)
        assert await answer(port, CHOSEN) is None  # who is right is not kept waiting
        assert not guess.done()
        guess.cancel()
        await asyncio.wait([guess])


async def test_others_are_served_while_a_token_is_guessed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    configured = [*clients(), *clients(name="chosen", token=tokens.scrypt_text(CHOSEN))]
    begun, gate = threading.Event(), threading.Event()

    def check(token: str, salt: bytes) -> bytes:
        begun.set()
        gate.wait(60)
        return bytes(32)

    monkeypatch.setattr(tokens, "scrypt", check)
    async with running_gateway(configured) as gateway:
        port = gateway.mariner.port
        async with await RawPeer.init(port) as honest:
            guess = asyncio.create_task(answer(port, "guess", "chosen"))
            assert await asyncio.to_thread(begun.wait, 60)
            for i in range(3):
                await honest.request({"msg_type": "ping_req", "ping_id": i})
            assert not guess.done()
            gate.set()
            assert await guess == "invalid client name or token"


async def test_a_guesser_who_leaves_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    configured = clients(token=tokens.scrypt_text(CHOSEN))
    gate = threading.Event()
    monkeypatch.setattr(tokens, "scrypt", lambda token, salt: gate.wait(60) and bytes(32))
    async with running_gateway(configured) as gateway:
        for _ in range(10):
            peer = await RawPeer.connect(gateway.mariner.port)
            peer.send({**INIT, "client_token": "guess"})
            await peer.writer.drain()
            tcp = peer.writer.get_extra_info("socket")
            reset = struct.pack("ii", 1, 0)
            tcp.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
            peer.writer.transport.abort()
        async with asyncio.timeout(60):
            while gateway.mariner.stats.connections:
                await asyncio.sleep(0.01)
        assert len(gateway._checks) == 0
        gate.set()


@pytest.fixture
def made(tmp_path: Path) -> Certificates:
    return make_certificates(tmp_path / "certs")


def listener_tls(made: Certificates) -> dict[str, Any]:
    folder = made.ca.parent
    return {
        "cert": str(made.server_cert),
        "key": str(made.server_key),
        "client_ca": str(made.ca),
        "crl": str(folder / "crl.pem"),
    }


async def test_a_client_by_its_certificate_alone(made: Certificates) -> None:
    folder = made.ca.parent
    issue_client(folder, "x", uris=["spiffe://example/app"])
    issue_client(folder, "y", uris=["spiffe://example/other"], days=1)
    write_crl(folder, issue_client(folder, "z", uris=["spiffe://example/app"]))

    def context(name: str) -> ssl.SSLContext:
        return tls.client_context(made.ca, folder / f"{name}.pem", folder / f"{name}.key")

    configured = clients(token=None, certificate="URI:spiffe://example/app")
    mariner = {"host": "127.0.0.1", "port": 0, "tls": listener_tls(made)}
    http = {"host": "127.0.0.1", "port": 0}
    async with running_gateway(configured, mariner=mariner, http=http) as gateway:
        port = gateway.mariner.port
        async with await RawPeer.connect(port, context("x")) as peer:
            peer.send({**INIT, "client_name": "whoever", "client_token": None})
            assert (await peer.receive())["success"]
            assert (await peer.request(register_req(1, event("a"))))["success"]
        async with await RawPeer.connect(port, context("y")) as peer:
            peer.send({**INIT, "client_token": None})
            assert (await peer.receive())["error"] == "invalid client name or token"
        with pytest.raises((ssl.SSLError, ConnectionError, asyncio.IncompleteReadError)):
            await RawPeer.init(port, context("z"), client_token=None)
        moments = await metrics_of(gateway, "mariner_tls_expiry_timestamp_seconds")
        days = {key: (moment - time.time()) / 86_400 for key, moment in moments.items()}
        assert days.keys() == {f'{{key="mariner.tls.{i}"}}' for i in ("cert", "client_ca", "crl")}
        assert 6 < days['{key="mariner.tls.crl"}'] <= 7
        assert days['{key="mariner.tls.cert"}'] > 7
