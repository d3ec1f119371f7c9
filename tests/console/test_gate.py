"""The gate of a real console: nothing is behind it for those who are not logged in."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
import pytest_asyncio

from eventer_bridge.tls import client_context
from tests.console.support import Console, console, log_in, watched
from tests.support.certificates import make_certificates
from tests.support.gateway import gateway

pytestmark = pytest.mark.asyncio(loop_scope="module")

WEB_SOCKET = "_nicegui_ws/socket.io/?EIO=4&transport=websocket"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Console]:
    path = tmp_path_factory.mktemp("console")
    async with (
        gateway(path, backend="memory", http=True) as served,
        console(path, [watched(served)]) as made,
    ):
        yield made


@pytest_asyncio.fixture(loop_scope="module")
async def browser() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as session:
        yield session


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("", 303),
        ("?gateway=gateway", 303),
        ("other", 401),
        ("favicon.ico", 401),
        ("_nicegui/3.12.1/static/nicegui.css", 401),
        ("_nicegui_ws/socket.io/?EIO=4&transport=polling", 401),
        ("login/../", 303),
        ("//", 401),
        ("docs", 401),
        ("openapi.json", 401),
    ],
)
async def test_nothing_without_a_login(
    running: Console, browser: aiohttp.ClientSession, path: str, status: int
) -> None:
    async with browser.get(f"{running.url}{path}", allow_redirects=False) as answer:
        assert answer.status == status
        assert (await answer.text()) in {"", "not logged in\n"}
        if status == 303:
            assert answer.headers["Location"] == "/login" + path[path.find("?") :] * ("?" in path)


async def test_no_web_socket_without_a_login(
    running: Console, browser: aiohttp.ClientSession
) -> None:
    with pytest.raises(aiohttp.WSServerHandshakeError) as caught:
        await browser.ws_connect(f"{running.url}{WEB_SOCKET}", origin=running.url.rstrip("/"))
    assert caught.value.status == 403


@pytest.mark.parametrize("origin", [None, "http://evil.example", "null", "http://["])
async def test_no_web_socket_of_another_site(
    running: Console, browser: aiohttp.ClientSession, origin: str | None
) -> None:
    assert (await log_in(browser, running.url))[0] == 303
    with pytest.raises(aiohttp.WSServerHandshakeError) as caught:
        await browser.ws_connect(f"{running.url}{WEB_SOCKET}", origin=origin)
    assert caught.value.status == 403
    # it is the origin that was wrong
    async with browser.ws_connect(f"{running.url}{WEB_SOCKET}", origin=running.url.rstrip("/")):
        pass


async def test_a_login_opens_the_page_and_a_logout_ends_it(
    running: Console, browser: aiohttp.ClientSession
) -> None:
    assert await log_in(browser, running.url) == (303, "")
    [cookie] = browser.cookie_jar
    assert cookie["httponly"]
    assert cookie["samesite"] == "strict"
    assert not cookie["secure"]
    async with browser.get(running.url) as answer:
        assert answer.status == 200
        assert "Mariner console" in await answer.text()
        assert answer.headers["Cache-Control"] == "no-store"
        assert answer.headers["X-Frame-Options"] == "DENY"
        assert "default-src 'self'" in answer.headers["Content-Security-Policy"]
    key = cookie.value
    async with browser.post(
        f"{running.url}logout", headers={"Origin": running.url.rstrip("/")}, allow_redirects=False
    ) as answer:
        assert answer.headers["Location"] == "/login"
    assert len(browser.cookie_jar) == 0
    headers = {"Cookie": f"{cookie.key}={key}"}
    async with browser.get(running.url, headers=headers, allow_redirects=False) as answer:
        assert answer.status == 303


async def test_a_wrong_password_says_so_and_nothing_else(
    running: Console, browser: aiohttp.ClientSession
) -> None:
    status, text = await log_in(browser, running.url, password="<b>wrong</b>")
    assert status == 403
    assert "Name or password is wrong." in text
    assert "<b>" not in text
    assert len(browser.cookie_jar) == 0


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://[", "http://", "//"])
async def test_a_form_of_another_site_is_refused(
    running: Console, browser: aiohttp.ClientSession, origin: str
) -> None:
    assert await log_in(browser, running.url, origin=origin) == (
        403,
        "another site sent this\n",
    )
    async with asyncio.timeout(60):
        while f'"origin": "{origin}"' not in running.output.read_text():
            await asyncio.sleep(0.01)  # another thread writes it
    assert "Traceback" not in running.output.read_text()


@pytest.mark.parametrize("body", [b"a", b"\xff=1", b"name=" + b"x" * 10_000, b"a=1&" * 9])
async def test_what_is_no_form(
    running: Console, browser: aiohttp.ClientSession, body: bytes
) -> None:
    headers = {"Origin": running.url.rstrip("/")}
    async with browser.post(f"{running.url}login", data=body, headers=headers) as answer:
        assert answer.status == 400
        assert "That is no login." in await answer.text()


async def test_with_tls_the_cookie_is_for_tls_only(tmp_path: Path) -> None:
    made = make_certificates(tmp_path / "certs")
    pair = {"cert": str(made.server_cert), "key": str(made.server_key)}
    async with (
        gateway(tmp_path, backend="memory", http=True) as served,
        console(tmp_path, [watched(served)], tls=pair) as running,
        aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as browser,
    ):
        assert running.url.startswith("https://127.0.0.1:")
        origin = running.url.rstrip("/")
        fields = {"name": "operator", "password": "a random one"}
        async with browser.post(
            f"{running.url}login",
            data=fields,
            headers={"Origin": origin},
            allow_redirects=False,
            ssl=client_context(made.ca),
        ) as answer:
            [cookie] = answer.cookies.values()
        assert cookie.key.startswith("__Host-")
        assert cookie["secure"]
        assert cookie["httponly"]
