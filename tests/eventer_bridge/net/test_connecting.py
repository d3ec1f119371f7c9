"""Who gives up while the connection is made closes it, at once."""

import asyncio
import ssl
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Final

import pytest

from eventer_bridge import chatter
from eventer_bridge.net import limits
from eventer_bridge.net.stream import Stream
from eventer_bridge.rsb import transport as rsb
from mariner import client
from tests.eventer_bridge.chatter.peers import Recorder
from tests.support.certificates import make_certificates
from tests.support.waiting import within

Connect = Callable[[int, ssl.SSLContext | None], Coroutine[Any, Any, object]]


def mariner(port: int, tls: ssl.SSLContext | None) -> Coroutine[Any, Any, object]:
    return client.connect("127.0.0.1", port, client_name="app", ssl=tls)


def eventer(port: int, tls: ssl.SSLContext | None) -> Coroutine[Any, Any, object]:
    scheme = "tcp" if tls is None else "ssl"
    address = chatter.parse_address(f"{scheme}+sbs://127.0.0.1:{port}")
    return chatter.connect(address, Recorder, tls=tls)


def bus(port: int, _: ssl.SSLContext | None) -> Coroutine[Any, Any, object]:
    return rsb.connect("127.0.0.1", port, lambda *_: None)


CASES: Final = [(mariner, False), (mariner, True), (eventer, False), (eventer, True), (bus, False)]


@pytest.mark.parametrize(("connect", "is_tls"), CASES)
async def test_given_up_in_the_moment_it_is_made(
    connect: Connect, is_tls: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """uvloop then closes it without a word to whom it told of it."""
    monkeypatch.setattr(limits, "CLOSE_TIMEOUT_S", 1000.0)
    made: list[Stream[Any]] = []
    connection_made = Stream.connection_made

    def give_up(stream: Stream[Any], transport: asyncio.BaseTransport) -> None:
        connection_made(stream, transport)
        made.append(stream)
        connecting.cancel()

    monkeypatch.setattr(Stream, "connection_made", give_up)
    server_tls, client_tls = _contexts(tmp_path) if is_tls else (None, None)
    server = await asyncio.start_server(_serve, "127.0.0.1", 0, ssl=server_tls)
    async with server:
        connecting = asyncio.create_task(connect(server.sockets[0].getsockname()[1], client_tls))
        async with within("the end of what was given up"):
            with pytest.raises(asyncio.CancelledError):
                await connecting
    [stream] = made
    assert stream.lost.done()


def _contexts(directory: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    made = make_certificates(directory)
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server.load_cert_chain(made.server_cert, made.server_key)
    return server, ssl.create_default_context(cafile=made.ca)


async def _serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()
    writer.close()
