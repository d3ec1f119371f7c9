"""Eventer over TLS: our client and hat-event's on our server, with certificates both ways."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from hat.drivers import net
from hat.event import common
from hat.event import eventer as hat_eventer

from eventer_bridge import tls
from eventer_bridge.core.authentication import Authenticator
from eventer_bridge.core.payload_schemas import PayloadSchemas
from eventer_bridge.core.rights import ClientConfig, RegisterRule
from eventer_bridge.errors import ClosedError, ConnectError, InitError
from eventer_bridge.eventer import client as eventer
from eventer_bridge.model import QueryLatestParams
from tests.eventer_bridge.eventer.peers import closed, register_event, serving
from tests.support.certificates import make_certificates

EVERYTHING = (("*",),)


async def test_tls(tmp_path: Path) -> None:
    made = make_certificates(tmp_path / "certs")
    server_tls = tls.server_context(made.server_cert, made.server_key, None)
    client_tls = tls.client_context(made.ca, None, None)
    async with serving(tls=server_tls) as (server, _):
        assert str(server.address).startswith("ssl+sbs://")
        heard: asyncio.Queue[Any] = asyncio.Queue()
        async with await eventer.connect(
            server.address,
            "gui",
            subscriptions=[("a",)],
            on_events=heard.put_nowait,
            tls=client_tls,
        ) as client:
            large = register_event("a", value="x" * 1_000_000)
            registered = await client.register([large])
            assert (await client.query(QueryLatestParams([("a",)]))).events == registered
            assert await heard.get() == registered
        hat = await hat_eventer.connect(
            net.TcpAddress("127.0.0.1", server.address.port), "hat", ssl=client_tls
        )
        [event] = await hat.register(
            [common.RegisterEvent(("b",), None, common.EventPayloadJson(1))], with_response=True
        )
        result = await hat.query(common.QueryLatestParams([("b",)]))
        assert list(result.events) == [event]
        await hat.async_close()
        # who is not told which certificates to trust verifies all the same
        with pytest.raises(ConnectError, match="was not issued by a certificate authority"):
            await eventer.connect(server.address, "gui")
        with pytest.raises((ConnectError, ClosedError)):
            await eventer.connect(server.address._replace(is_tls=False), "gui")


@pytest.mark.parametrize(("name", "is_let_in"), [("development", True), ("other", False)])
async def test_mutual_tls(tmp_path: Path, name: str, is_let_in: bool) -> None:
    made = make_certificates(tmp_path / "certs")
    server_tls = tls.server_context(made.server_cert, made.server_key, made.ca)
    client_tls = tls.client_context(made.ca, made.client_cert, made.client_key)
    nobody = tls.client_context(made.ca, None, None)
    client = ClientConfig("gui", None, EVERYTHING, (RegisterRule(EVERYTHING),), name)
    authenticator = Authenticator([client], PayloadSchemas())
    async with serving(authenticator=authenticator, tls=server_tls) as (server, _):
        if is_let_in:
            async with await eventer.connect(server.address, "gui", tls=client_tls) as ours:
                assert await ours.register([register_event("a")])
        else:
            with pytest.raises(InitError, match="invalid client name or token"):
                await eventer.connect(server.address, "gui", tls=client_tls)
        # without a certificate there is not even a connection
        with pytest.raises((ConnectError, ClosedError)):
            await eventer.connect(server.address, "gui", tls=nobody)
        assert server.stats.accepted == 2
        await closed(server, "no handshake")
