"""Accepting, with real sockets and TLS."""

import asyncio
import contextlib
import errno
import logging
import resource
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, Final, cast

import pytest

from eventer_bridge import tls
from eventer_bridge.net import accepting, limits
from eventer_bridge.net.accepting import Acceptor
from eventer_bridge.net.admission import Admission, Slot
from eventer_bridge.net.quota import Bounds
from eventer_bridge.net.stats import ServerStats
from tests.support.certificates import Certificates, make_certificates
from tests.support.waiting import within

TIMEOUT_S: Final = 60.0
N_SILENT: Final = 20


class Echo(asyncio.Protocol):
    """Sends back what comes; whoever sends "hello" first is known."""

    def __init__(self, slot: Slot) -> None:
        self._slot = slot

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._slot.when_taken(self._transport.abort)

    def data_received(self, data: bytes) -> None:
        if data != b"hello" or self._slot.establish():
            self._transport.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._slot.release()


class Running:
    """An acceptor and what it counts."""

    def __init__(self) -> None:
        self.stats = ServerStats()
        self.acceptor: Acceptor

    async def until(self, condition: Callable[[ServerStats], bool]) -> None:
        async with asyncio.timeout(TIMEOUT_S):
            while not condition(self.stats):
                await asyncio.sleep(0.005)


@contextlib.asynccontextmanager
async def listening(
    bounds: Bounds | None = None, *, host: str = "127.0.0.1", **arguments: Any
) -> AsyncIterator[Running]:
    it = Running()
    arguments = {"admission": Admission(bounds), **arguments}
    it.acceptor = await accepting.listen(host, 0, Echo, stats=it.stats, **arguments)
    async with it.acceptor:
        yield it


@contextlib.asynccontextmanager
async def silent(port: int, hosts: list[str]) -> AsyncIterator[list[socket.socket]]:
    """Connections from these addresses that say nothing."""
    loop = asyncio.get_running_loop()
    with contextlib.ExitStack() as opened:
        sockets = []
        for host in hosts:
            tcp = opened.enter_context(socket.socket())
            tcp.setblocking(False)
            tcp.bind((host, 0))
            await loop.sock_connect(tcp, ("127.0.0.1", port))
            sockets.append(tcp)
        yield sockets


async def says_hello(port: int, context: ssl.SSLContext | None = None) -> bool:
    """Whether a newcomer gets in."""
    async with asyncio.timeout(TIMEOUT_S):
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
        try:
            writer.write(b"hello")
            return await reader.readexactly(5) == b"hello"
        except (ConnectionError, asyncio.IncompleteReadError):
            return False
        finally:
            writer.close()


@pytest.fixture(name="certificates")
def make(tmp_path: Path) -> Certificates:
    return make_certificates(tmp_path)


async def test_connections_are_counted_from_accept_to_their_end() -> None:
    async with listening() as it:
        async with silent(it.acceptor.port, ["127.0.0.1"] * 3):
            await it.until(lambda stats: stats.connections == 3)
        await it.until(lambda stats: stats.connections == 0)
        assert (it.stats.accepted, it.stats.refused) == (3, {})


@pytest.mark.parametrize("is_tls", [False, True])
async def test_a_connection_that_cannot_be_handled_gives_its_slot_back(
    is_tls: bool, certificates: Certificates
) -> None:
    def fail(slot: Slot) -> Echo:
        raise MemoryError("no")

    errors: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
    context = tls.server_context(certificates.server_cert, certificates.server_key)
    stats, admission = ServerStats(), Admission()
    async with await accepting.listen(
        "127.0.0.1", 0, fail, admission=admission, stats=stats, tls=context if is_tls else None
    ) as acceptor:
        client_context = tls.client_context(certificates.ca) if is_tls else None
        for _ in range(2):  # nor does it end the acceptor
            assert not await says_hello(acceptor.port, client_context)
            assert stats.connections == 0
            assert not len(admission._new)
    assert "no" in [str(i.get("exception")) for i in errors]


async def test_silent_handshakes_are_counted_and_end(
    certificates: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    context = tls.server_context(certificates.server_cert, certificates.server_key)
    async with (
        listening(tls=context, handshake_timeout_s=0.3) as it,
        silent(it.acceptor.port, ["127.0.0.1"] * 3) as sockets,
    ):
        peers = [f"127.0.0.1:{i.getsockname()[1]}" for i in sockets]
        await it.until(lambda stats: stats.accepted == 3)
        await it.until(lambda stats: stats.connections == 0)
        loop = asyncio.get_running_loop()
        assert [await loop.sock_recv(i, 1) for i in sockets] == [b""] * 3
        assert it.stats.closed == {"no handshake": 3}
    expected = {(logging.WARNING, peer, "not within 0.3 s") for peer in peers}
    assert {
        (r.levelno, r.__dict__["peer"], r.__dict__["reason"]) for r in caplog.records
    } == expected


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "the peer speaks HTTP, not TLS"),
        (bytes(100), "the peer does not speak TLS"),
        (b"", "the peer left"),
    ],
)
async def test_a_failed_handshake_leaves_a_line(
    certificates: Certificates, caplog: pytest.LogCaptureFixture, said: bytes, reason: str
) -> None:
    context = tls.server_context(certificates.server_cert, certificates.server_key)
    async with listening(tls=context) as it:
        async with silent(it.acceptor.port, ["127.0.0.1"]) as [tcp]:
            peer = f"127.0.0.1:{tcp.getsockname()[1]}"
            await asyncio.get_running_loop().sock_sendall(tcp, said)
            if not said:
                tcp.shutdown(socket.SHUT_WR)
            await it.until(lambda stats: stats.closed["no handshake"] == 1)
        await it.until(lambda stats: stats.connections == 0)
        assert await says_hello(it.acceptor.port, tls.client_context(certificates.ca))
    [record] = caplog.records
    assert record.message == "TLS handshake failed"
    assert (record.__dict__["peer"], record.__dict__["reason"]) == (peer, reason)


async def test_a_handshake_without_the_certificate_leaves_a_line(
    certificates: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    context = tls.server_context(certificates.server_cert, certificates.server_key, certificates.ca)
    async with listening(tls=context) as it:
        assert not await says_hello(it.acceptor.port, tls.client_context(certificates.ca))
        await it.until(lambda stats: stats.closed["no handshake"] == 1)
    [record] = caplog.records
    assert record.__dict__["reason"] == "the peer has no certificate"


@pytest.mark.parametrize("is_tls", [False, True])
@pytest.mark.parametrize("are_many", [False, True])
async def test_a_newcomer_gets_in_among_silent_ones(
    certificates: Certificates,
    monkeypatch: pytest.MonkeyPatch,
    is_tls: bool,
    are_many: bool,
) -> None:
    monkeypatch.setattr(limits, "NEW_CONNECTION_GRACE_S", 0.2)
    server = tls.server_context(certificates.server_cert, certificates.server_key)
    client = tls.client_context(certificates.ca)
    hosts = [f"127.0.0.{i + 2 if are_many else 2}" for i in range(N_SILENT)]
    bounds = Bounds(8, 6, 100, 100)
    async with (
        listening(bounds, tls=server if is_tls else None) as it,
        silent(it.acceptor.port, hosts),
    ):
        for _ in range(3):
            assert await says_hello(it.acceptor.port, client if is_tls else None)
            assert it.stats.connections <= bounds.new + 1
        assert it.stats.accepted > bounds.new


async def test_an_address_cannot_take_all_places() -> None:
    async with (
        listening(Bounds(100, 5, 100, 100)) as it,
        silent(it.acceptor.port, ["127.0.0.2"] * N_SILENT),
    ):
        await it.until(lambda stats: stats.accepted == N_SILENT)
        await it.until(lambda stats: stats.connections == 5)
        assert it.stats.refused == {"place needed for another": N_SILENT - 5}


@pytest.mark.parametrize("is_tls", [False, True])
async def test_who_sent_something_is_not_driven_out_by_silent_ones_of_its_address(
    certificates: Certificates, monkeypatch: pytest.MonkeyPatch, is_tls: bool
) -> None:
    monkeypatch.setattr(limits, "NEW_CONNECTION_GRACE_S", TIMEOUT_S)
    server = tls.server_context(certificates.server_cert, certificates.server_key)
    client = tls.client_context(certificates.ca) if is_tls else None
    loop = asyncio.get_running_loop()
    async with (
        listening(Bounds(9, 3, 100, 100), tls=server if is_tls else None) as it,
        silent(it.acceptor.port, ["127.0.0.1"]) as [slow],
    ):
        await loop.sock_sendall(slow, b"\x16")  # a TLS record begins with it
        if not is_tls:
            assert await loop.sock_recv(slow, 1)
        async with silent(it.acceptor.port, ["127.0.0.1"] * N_SILENT):
            assert await says_hello(it.acceptor.port, client)
            assert it.stats.refused == {"place needed for another": N_SILENT - 1}
            await it.until(lambda stats: stats.connections == 3)  # the others are gone
            with pytest.raises(BlockingIOError):  # it is open
                slow.recv(1)


async def test_closing_ends_handshakes_and_frees_the_port(certificates: Certificates) -> None:
    context = tls.server_context(certificates.server_cert, certificates.server_key)
    async with contextlib.AsyncExitStack() as stack:
        async with listening(tls=context) as it:
            port = it.acceptor.port
            [tcp] = await stack.enter_async_context(silent(port, ["127.0.0.1"]))
            await it.until(lambda stats: stats.connections == 1)
        assert await asyncio.get_running_loop().sock_recv(tcp, 1) == b""
        await it.until(lambda stats: stats.connections == 0)
    async with await accepting.listen("127.0.0.1", port, Echo) as again:
        assert again.port == port
        assert await says_hello(port)
        again.stop()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", port)


async def test_an_address_that_is_taken_is_named() -> None:
    async with listening() as it:
        with pytest.raises(OSError, match=f"127.0.0.1:{it.acceptor.port}: ") as caught:
            await accepting.listen("127.0.0.1", it.acceptor.port, Echo)
        assert caught.value.errno == errno.EADDRINUSE


@pytest.mark.parametrize("host", ["localhost", "", "0.0.0.0"])  # noqa: S104  # as configured
async def test_names_and_all_addresses(host: str) -> None:
    async with listening(host=host) as it:
        assert await says_hello(it.acceptor.port)


@pytest.fixture
def no_more_descriptors() -> Iterator[Callable[[], None]]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)

    def set_limit() -> None:
        with socket.socket() as lowest_free:
            resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free.fileno(), before[1]))

    yield set_limit
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


async def test_out_of_descriptors_it_waits_and_goes_on(
    no_more_descriptors: Callable[[], None],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(limits, "ACCEPT_PAUSE_S", 0.05)
    calls = 0
    accept = socket.socket.accept

    def counted(listener: socket.socket) -> tuple[socket.socket, Any]:
        nonlocal calls
        calls += 1
        return accept(listener)

    monkeypatch.setattr(socket.socket, "accept", counted)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    loop = asyncio.get_running_loop()
    async with listening() as it:
        tcp = socket.socket()
        tcp.setblocking(False)
        no_more_descriptors()
        await loop.sock_connect(tcp, ("127.0.0.1", it.acceptor.port))
        while calls < 3:
            await asyncio.sleep(0.005)
        assert it.stats.accepted == 0
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
        await loop.sock_sendall(tcp, b"hello")
        async with asyncio.timeout(TIMEOUT_S):
            assert await loop.sock_recv(tcp, 5) == b"hello"
        tcp.close()
        # it looked once in a while, not all the time
        assert calls < 100
    [record] = [i for i in caplog.records if i.levelno == logging.ERROR]
    assert record.message == "no connections can be accepted at the moment"


async def test_all_listeners_together_accept_so_many_in_a_row(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "ACCEPT_TURN_CONNECTIONS", 8)
    admission = Admission()
    async with contextlib.AsyncExitStack() as stack:
        enter = stack.enter_async_context
        listeners = [await enter(listening(admission=admission)) for _ in range(4)]

        def n_accepted() -> int:
            return sum(i.stats.accepted for i in listeners)

        for running in listeners:
            for _ in range(20):  # accepted by the kernel
                connection = socket.create_connection(("127.0.0.1", running.acceptor.port))
                stack.callback(connection.close)
        n_before, steps = n_accepted(), []
        async with within("all connections"):
            while n_before < 80:
                await asyncio.sleep(0)
                n_now = n_accepted()
                steps.append(n_now - n_before)
                n_before = n_now
    assert max(steps) <= 8
