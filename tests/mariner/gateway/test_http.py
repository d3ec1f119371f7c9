"""HTTP: what strangers may do to it. What it answers: ``test_serve``."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Final

import pytest
from prometheus_client import CollectorRegistry, Gauge, Metric

from eventer_bridge import limits as core_limits
from eventer_bridge.memory import account_of_process
from eventer_bridge.net import limits as net_limits
from mariner import limits
from mariner.gateway.gateway import Gateway
from tests.support.inprocess import metrics_of_wire, running_gateway

TIMEOUT_S: Final = 60.0
HTTP: Final = {"host": "127.0.0.1", "port": 0}


async def ask(gateway: Gateway, request: bytes) -> bytes:
    """What comes until the connection ends."""
    assert gateway.http is not None
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.http.port)
    with contextlib.closing(writer):
        writer.write(request)
        async with asyncio.timeout(TIMEOUT_S):
            return await reader.read(-1)


@contextlib.asynccontextmanager
async def serving() -> AsyncIterator[Gateway]:
    async with running_gateway(http=HTTP) as gateway:
        yield gateway


@pytest.mark.parametrize(
    "half",
    [
        b"",
        b"GET /heal",
        b"GET /healthz HTTP/1.1\r\nHost: a\r\n",
        b"POST /healthz HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\nX:",
    ],
)
async def test_half_a_request_has_its_time(half: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "HTTP_TIMEOUT_S", 0.2)
    async with serving() as gateway:
        with contextlib.suppress(ConnectionError):
            assert await ask(gateway, half) == b""
        monkeypatch.undo()  # whole ones have theirs
        assert (await ask(gateway, b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n")).endswith(b"ok\n")


async def test_who_does_not_read_the_answer_has_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "HTTP_TIMEOUT_S", 0.5)
    async with serving() as gateway:
        assert gateway.http is not None
        large = Gauge(
            "large", "More than the kernel takes.", ["text"], registry=gateway.http._registry
        )
        for i in range(20):
            large.labels(str(i % 10) * 1_000_000 + str(i))
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.http.port, limit=1)
        writer.write(b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n")
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await reader.readexactly(1)  # of what follows, nothing
        monkeypatch.undo()  # who asks for the metrics has its time
        await until_connections(gateway, 0)
        writer.close()
        del reader


async def test_metrics_that_nobody_reads_are_on_the_account(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(core_limits, "MAX_MEMORY_BYTES", 25_000_000)
    monkeypatch.setattr(limits, "METRICS_READERS", 1)
    n_rendered = 0

    class Counted(CollectorRegistry):
        def collect(self) -> Iterable[Metric]:
            nonlocal n_rendered
            n_rendered += 1
            return super().collect()

    async with serving() as gateway, contextlib.AsyncExitStack() as stack:
        assert gateway.http is not None
        gateway.http._registry = Counted()
        large = Gauge("large", "More than it takes.", ["text"], registry=gateway.http._registry)
        for i in range(10):
            large.labels(str(i) * 1_000_000)
        for _ in range(4):
            _, writer = await asyncio.open_connection("127.0.0.1", gateway.http.port, limit=1)
            stack.callback(writer.close)
            writer.transport.pause_reading()  # type: ignore[attr-defined]
            writer.write(b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n")
        account = account_of_process()
        async with asyncio.timeout(TIMEOUT_S):
            while len(gone := [i for i in caplog.records if "HTTP" in i.message]) < 2:
                await asyncio.sleep(0.01)
        assert 20_000_000 < account.n_bytes < 25_000_000
        assert {i.__dict__["reason"] for i in gone} == {"too much is buffered"}
        assert n_rendered < 4, "what was rendered just now is given to others, too"
    assert account.n_bytes == 0


async def until_connections(gateway: Gateway, count: int) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        # the one that asks is one of them
        while (await metrics_of_wire(gateway, "http"))["connections"] != count + 1:
            await asyncio.sleep(0.01)


async def test_a_connection_is_for_one_request() -> None:
    async with serving() as gateway:
        request = b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n"
        answer = await ask(gateway, 3 * request)
        assert answer.count(b"HTTP/1.1 200 OK") == 1
        assert b"Connection: close" in answer


@pytest.mark.parametrize(
    ("request_", "answer"),
    [
        (b"GET /healthz HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello", b"413 "),
        (b"GET /healthz HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999\r\n\r\nhello", b"413 "),
        (b"GET /healthz HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1", b"413 "),
        (b"POST /healthz HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n", b"405 "),
        (b"GET /elsewhere HTTP/1.1\r\nHost: a\r\n\r\n", b"404 "),
        (b"GET /" + bytes([97]) * limits.MAX_HTTP_LINE_BYTES + b" HTTP/1.1\r\n\r\n", b"400 "),
        (
            b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * (limits.MAX_HTTP_HEADERS + 1) + b"\r\n",
            b"400 ",
        ),
        (b"\x16\x03\x01\x00\xee\x01\x00\x00\xea\x03\x03\r\n\r\n", b"400 "),
    ],
)
async def test_what_is_too_much_is_refused_at_once(
    request_: bytes, answer: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    async with serving() as gateway:
        caplog.clear()
        assert (await ask(gateway, request_))[len("HTTP/1.1 ") :].startswith(answer)
        await until_connections(gateway, 0)
        assert not caplog.records


@pytest.mark.parametrize("path", [b"/healthz", b"/readyz", b"/metrics"])
@pytest.mark.parametrize("n_pieces", [1, 2, 9])
async def test_who_has_ended_its_half_is_answered(path: bytes, n_pieces: int) -> None:
    """As ``printf … | nc -N`` does."""
    request = b"GET " + path + b" HTTP/1.1\r\nHost: a\r\n\r\n"
    n_bytes = -(-len(request) // n_pieces)
    async with serving() as gateway:
        assert gateway.http is not None
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.http.port)
        with contextlib.closing(writer):
            for begin in range(0, len(request), n_bytes):
                await asyncio.sleep(0.01)  # pieces that the kernel joined are answered as well
                writer.write(request[begin : begin + n_bytes])
            writer.write_eof()  # there before the last piece is read
            async with asyncio.timeout(TIMEOUT_S):
                answer = await reader.read(-1)
        assert answer.startswith(b"HTTP/1.1 200 OK")
        assert answer.rstrip().rpartition(b"\n")[2]
        await until_connections(gateway, 0)


@pytest.mark.parametrize("half", [b"", b"GET /healthz HTTP/1.1\r\nHost:"])
async def test_who_has_ended_half_a_request_is_closed_at_once(half: bytes) -> None:
    async with serving() as gateway:
        assert gateway.http is not None
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.http.port)
        with contextlib.closing(writer):
            writer.write(half)
            writer.write_eof()
            async with asyncio.timeout(limits.HTTP_TIMEOUT_S / 2):
                assert await reader.read(-1) == b""
        await until_connections(gateway, 0)


async def test_connections_are_counted_and_bounded(
    monkeypatch: pytest.MonkeyPatch, set_new_connections: Callable[[int], None]
) -> None:
    monkeypatch.setattr(limits, "HTTP_TIMEOUT_S", 60.0)
    set_new_connections(5)
    async with serving() as gateway, contextlib.AsyncExitStack() as stack:
        assert gateway.http is not None
        for _ in range(20):
            _, writer = await asyncio.open_connection("127.0.0.1", gateway.http.port)
            writer.write(b"GET /healthz HTTP/1.1\r\n")
            stack.callback(writer.close)
        await until_connections(gateway, 4)
        found = await metrics_of_wire(gateway, "http")
        assert found["connections_accepted_total"] > 20
        assert found['connections_refused_total{reason="place needed for another"}'] >= 16


@pytest.fixture
def set_new_connections(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    def set_bounds(count: int) -> None:
        monkeypatch.setattr(net_limits, "MAX_NEW_CONNECTIONS", count)
        monkeypatch.setattr(net_limits, "NEW_CONNECTION_GRACE_S", 0.0)

    return set_bounds
