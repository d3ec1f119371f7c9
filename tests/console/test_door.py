"""The door of the console: what strangers may do to it, and that others get in meanwhile."""

import asyncio
import contextlib
import json
import random
import socket
import struct
import sys
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Final

import aiohttp
import psutil
import pytest
import uvicorn
from starlette.types import Receive, Scope, Send

from eventer_bridge import limits as core_limits
from eventer_bridge.core import tokens
from eventer_bridge.net import accepting
from eventer_bridge.net import limits as net_limits
from eventer_bridge.net.admission import Admission
from eventer_bridge.net.quota import Bounds
from eventer_bridge.net.stats import ServerStats
from mariner_console import door, limits
from mariner_console.config import User
from mariner_console.gate import Gate, Logins
from tests.console.support import PASSWORD, Console, console, log_in

TIMEOUT_S: Final = 60.0

HEAD: Final = b"GET /login HTTP/1.1\r\nHost: a\r\n"
GUESS: Final = (
    b"POST /login HTTP/1.1\r\nHost: a\r\nOrigin: http://a\r\nContent-Length: 26\r\n\r\n"
    b"name=chosen&password=guess"
)

COOKIE: Final = b"Cookie: " + b"\\" * 9_999


class Door:
    """A door with a gate, and something simple behind it, which notes what it is shown."""

    def __init__(self) -> None:
        self.stats = ServerStats()
        self.scopes: list[Scope] = []
        self.logins = Logins(
            [
                User("operator", tokens.sha256_text(PASSWORD)),
                User("chosen", tokens.scrypt_text("chosen")),
            ]
        )
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    async def behind(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.scopes.append(scope)
        if scope["type"] == "websocket":
            await send({"type": "websocket.accept"})
            while (await receive())["type"] != "websocket.disconnect":
                pass
            return
        await send({"type": "http.response.start", "status": 200})
        await send({"type": "http.response.body", "body": b"in"})

    async def until_connections(self, count: int) -> None:
        async with asyncio.timeout(TIMEOUT_S):
            while self.stats.connections != count:
                await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def opened(bounds: Bounds = limits.CONNECTIONS) -> AsyncIterator[Door]:
    made = Door()
    server = uvicorn.Server(door.settings(Gate(made.behind, made.logins, is_tls=False)))
    acceptor = await accepting.listen(
        "127.0.0.1",
        0,
        partial(door.BrowserConnection, server),
        admission=Admission(bounds),
        stats=made.stats,
    )
    made.port = acceptor.port
    try:
        yield made
    finally:
        await acceptor.async_close()
        for connection in [*server.server_state.connections]:
            connection.transport.abort()
        await made.until_connections(0)
        await made.logins.async_close()


@contextlib.asynccontextmanager
async def connected(port: int) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    with contextlib.closing(writer):
        yield reader, writer


async def ask(port: int, request: bytes) -> bytes:
    """What comes until the connection ends."""
    async with connected(port) as (reader, writer), asyncio.timeout(TIMEOUT_S):
        writer.write(request)
        with contextlib.suppress(ConnectionError):
            return await reader.read(-1)
        return b""


@contextlib.asynccontextmanager
async def browser() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as session:
        yield session


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[Console]:
    nowhere = {"name": "gateway", "host": "127.0.0.1", "port": 1, "client": "app"}
    async with console(tmp_path, [nowhere]) as made:
        yield made


def port_of(running: Console) -> int:
    return int(running.url.rstrip("/").rpartition(":")[2])


async def test_cookies_of_strangers_take_no_time() -> None:
    """Python's own parser takes 0.5 s for each of these, and 8 s for one of 60 kB."""
    async with opened() as made:
        value = b'"' + b"\\" * (limits.MAX_HEAD_BYTES - 200) + b'"'
        cookie = b"Cookie: a=" + value + f"; mariner_console_{made.port}=".encode() + value[:50]
        began = asyncio.get_running_loop().time()
        for _ in range(30):
            answer = await ask(made.port, HEAD + cookie + b"\r\n\r\n")
            assert answer.startswith(b"HTTP/1.1 200 ")
        assert asyncio.get_running_loop().time() - began < 8


async def test_cookies_end_at_the_gate() -> None:
    async with opened() as made, browser() as session:
        await log_in(session, made.url)
        async with session.get(made.url) as answer:
            assert await answer.text() == "in"
        async with session.ws_connect(made.url, origin=made.url.rstrip("/")):
            pass
        assert [i["type"] for i in made.scopes] == ["http", "websocket"]
        names = [{name for name, _ in i["headers"]} for i in made.scopes]
        assert all(b"host" in i and b"cookie" not in i for i in names)


async def test_headers_without_end_end(running: Console) -> None:
    process = psutil.Process(running.process.pid)
    reason = '"reason": "no HTTP request, or too large a one"'
    for line in (b"a: " + b"b" * 90 + b"\r\n", b"a:\r\n", b"a: b\r\n c\r\n", COOKIE):
        before, n_told = process.memory_info().rss, running.output.read_text().count(reason)
        part = line * (100_000 // len(line))
        async with connected(port_of(running)) as (_, writer):
            writer.write(HEAD)
            with contextlib.suppress(ConnectionError):
                for _ in range(500):
                    if writer.is_closing():
                        break
                    writer.write(part)
                    await writer.drain()
                else:
                    pytest.fail(f"it takes 50 MB of {line[:10]!r}")
        assert process.memory_info().rss - before < 20 << 20
        async with asyncio.timeout(TIMEOUT_S):
            while running.output.read_text().count(reason) == n_told:
                await asyncio.sleep(0.01)  # another thread writes it


async def test_what_is_too_large_says_so() -> None:
    async with opened() as made:
        answer = await ask(made.port, HEAD + b"a: " + 2 * limits.MAX_HEAD_BYTES * b"b")
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert b"headers of at most 16384 bytes together" in answer


@pytest.mark.parametrize(
    ("half", "reason"),
    [
        (b"", "no request within 0.3 s"),
        (HEAD, "half a request within 0.3 s"),
        (b"POST /login HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\na", "half a request"),
    ],
)
async def test_half_a_request_has_its_time(
    half: bytes, reason: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(limits, "REQUEST_TIMEOUT_S", 0.3)
    if half.startswith(b"POST"):
        half = half.replace(b"Host: a", b"Host: a\r\nOrigin: http://a")
    async with opened() as made:
        async with connected(made.port) as (reader, writer), asyncio.timeout(TIMEOUT_S):
            writer.write(half)
            with contextlib.suppress(ConnectionError):
                assert await reader.read(-1) == b""
        await made.until_connections(0)
    [line] = [i for i in caplog.records if i.name == door.__name__]
    assert vars(line)["reason"].startswith(reason)
    assert vars(line)["peer"].startswith("127.0.0.1:")


async def test_so_has_the_next_one_of_a_browser(monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened() as made, browser() as session:
        await log_in(session, made.url)
        [cookie] = session.cookie_jar
        monkeypatch.setattr(limits, "REQUEST_TIMEOUT_S", 0.5)
        async with connected(made.port) as (reader, writer), asyncio.timeout(TIMEOUT_S):
            writer.write(
                f"GET / HTTP/1.1\r\nHost: a\r\nCookie: {cookie.key}={cookie.value}\r\n\r\n".encode()
            )
            assert (await reader.readuntil(b"in")).startswith(b"HTTP/1.1 200 ")
            with contextlib.suppress(ConnectionError):
                for _ in range(100):
                    if writer.is_closing() or reader.at_eof():
                        break
                    writer.write(b"G")  # uvicorn itself waits for a silent one only
                    await asyncio.sleep(0.05)
                else:
                    pytest.fail("it waits for ever")


@pytest.mark.parametrize("half", [b"", HEAD])
async def test_who_says_nothing_keeps_nobody_out(
    half: bytes, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(net_limits, "NEW_CONNECTION_GRACE_S", 0.0)
    async with opened(Bounds(4, 4, 9, 9)) as made, contextlib.AsyncExitStack() as stack:
        for _ in range(30):
            _, writer = await stack.enter_async_context(connected(made.port))
            writer.write(half)
        async with browser() as session:
            assert await log_in(session, made.url) == (303, "")
        assert made.stats.accepted > 30
        reasons = [vars(i).get("reason") for i in caplog.records if i.name == door.__name__]
        assert "place needed for another" in reasons


async def test_a_login_has_a_place_of_its_own() -> None:
    async with opened(Bounds(1, 1, 2, 2)) as made, browser() as session:
        await log_in(session, made.url)
        async with session.ws_connect(made.url, origin=made.url.rstrip("/")) as socket:
            for _ in range(3):  # each takes the place of the one before
                async with connected(made.port):
                    pass
            async with session.get(made.url) as answer:
                assert await answer.text() == "in"
            await made.until_connections(2)
            [cookie] = session.cookie_jar
            head = f"GET / HTTP/1.1\r\nHost: a\r\nCookie: {cookie.key}={cookie.value}\r\n\r\n"
            answer_of_third = await ask(made.port, head.encode())
            assert answer_of_third.startswith(b"HTTP/1.1 503 ")
            assert answer_of_third.endswith(b"too many connections\n")
            await socket.ping()
    assert made.stats.connections == 0


async def test_a_strangers_connection_is_for_one_request() -> None:
    async with opened() as made:
        answer = await ask(made.port, (HEAD + b"\r\n") * 3)
        assert answer.count(b"HTTP/1.1 200 ") == 1
        assert b"connection: close" in answer


async def test_a_login_whose_browser_leaves_is_not_checked(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened() as made:
        never = asyncio.Event()
        monkeypatch.setattr(made.logins._checks, "_run", never.wait)
        async with connected(made.port) as (_, writer), asyncio.timeout(TIMEOUT_S):
            writer.write(GUESS)
            while not made.logins._checks:
                await asyncio.sleep(0.01)
            reset = struct.pack("ii", 1, 0)
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
        async with asyncio.timeout(core_limits.SCRYPT_TIMEOUT_S / 2):
            while made.logins._checks:
                await asyncio.sleep(0.01)
    assert [i.getMessage() for i in caplog.records if i.levelname in {"WARNING", "ERROR"}] == []


@pytest.mark.parametrize("pieces", [[GUESS], [GUESS[:9], GUESS[9:-3], GUESS[-3:]]])
async def test_who_has_ended_its_half_is_answered(pieces: list[bytes]) -> None:
    async with opened() as made:
        async with connected(made.port) as (reader, writer), asyncio.timeout(TIMEOUT_S):
            for piece in pieces:
                await asyncio.sleep(0.01)
                writer.write(piece)
            writer.write_eof()
            assert (await reader.read(-1)).startswith(b"HTTP/1.1 403 ")
        async with connected(made.port) as (reader, writer):
            writer.write(HEAD)
            writer.write_eof()
            async with asyncio.timeout(limits.REQUEST_TIMEOUT_S / 2):
                assert await reader.read(-1) == b""


def _mangled(chance: random.Random) -> bytes:
    made = bytearray(
        b"POST /login HTTP/1.1\r\nHost: [\r\nOrigin: http://[\r\nTransfer-Encoding: chunked\r\n"
        b"Connection: upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: a\r\n\r\n"
        b"5\r\nname=\r\n0\r\n\r\n"
    )
    for _ in range(chance.randrange(6)):
        begin = chance.randrange(len(made))
        made[begin : begin + chance.randrange(4)] = chance.randbytes(chance.randrange(3))
    return bytes(made)


def _half_chunk(chance: random.Random) -> bytes:
    origin = chance.choice([b"http://a", b"http://b"])
    return (
        b"POST /login HTTP/1.1\r\nHost: a\r\nOrigin: " + origin + b"\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n5\r\nname=\r\n" + chance.randbytes(9)
    )


@pytest.mark.parametrize("make", [_mangled, _half_chunk])
async def test_no_bytes_of_strangers_are_a_traceback(
    running: Console, make: Callable[[random.Random], bytes]
) -> None:
    chance = random.Random(17)
    for _ in range(150):
        async with connected(port_of(running)) as (reader, writer), asyncio.timeout(TIMEOUT_S):
            writer.write(make(chance))
            if chance.randrange(2):
                await asyncio.sleep(0.01)
                writer.write(chance.randbytes(50))
            writer.write_eof()
            with contextlib.suppress(OSError):
                await reader.read(-1)
    text = running.output.read_text()
    assert "Traceback" not in text
    assert "ERROR" not in text
    async with browser() as session:
        assert await log_in(session, running.url) == (303, "")


async def test_an_address_in_use_is_named(running: Console) -> None:
    conf = running.output.with_name("second.json")
    first = json.loads(running.output.with_name("console.json").read_text())
    conf.write_text(json.dumps({**first, "listen": {"port": port_of(running)}}))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "mariner_console", "--conf", str(conf)),
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(TIMEOUT_S):
        _, stderr = await process.communicate()
    assert process.returncode == 1
    assert f"127.0.0.1:{port_of(running)}: Address already in use\n" in stderr.decode()
