"""The gate before the page: nothing behind it is reached without a login.

It is the outermost ASGI application: also scripts, styles and the web socket are behind it. Forms
and web sockets of other sites are refused (the cookie is ``SameSite=Strict``, ``Origin`` is
compared).

A stranger's bytes are compared, never interpreted by costly code: what is behind is not shown the
cookies, which Python parses in a time that grows with the square of their length. A stranger's
connection is for one request.
"""

import asyncio
import html
import importlib.resources
import logging
from collections.abc import Coroutine, Mapping
from typing import Any, Final
from urllib.parse import parse_qs

from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from eventer_bridge.net import Slot
from mariner_console import limits
from mariner_console.door import SLOT
from mariner_console.login import Logins, UserSession

mlog = logging.getLogger(__name__)

LOGIN: Final = "console_login"
"""Key of the scope of a request: its :class:`UserSession`."""

_FORM: Final = (importlib.resources.files(__package__) / "login.html").read_text("utf-8")

_HEADERS: Final = {
    "cache-control": "no-store",
    "referrer-policy": "same-origin",  # without any, a form has no Origin
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}

_LOGIN_POLICY: Final = (
    "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; base-uri 'none';"
    " frame-ancestors 'none'"
)

_PAGE_POLICY: Final = (
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; style-src 'self'"
    " 'unsafe-inline'; img-src 'self' data:; font-src 'self' data:; connect-src 'self' {websocket};"
    " object-src 'none'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
"""NiceGUI compiles its templates in the browser; nothing is loaded from, or sent to, elsewhere."""


class Gate:
    """See the module.

    Args:
        app: what is behind it.
        logins: who may pass.
        is_tls: whether the page has TLS.
    """

    def __init__(self, app: ASGIApp, logins: Logins, *, is_tls: bool) -> None:
        self.app: Final = app
        self._logins = logins
        self._is_tls = is_tls

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        key = self._key(scope)
        login = self._logins.find(key) if key else None
        slot = _slot(scope)
        has_room = login is None or slot.establish()
        if not has_room:
            mlog.warning("too many connections", extra={"peer": slot.peer})
        behind = {**scope, LOGIN: login, "headers": _without_cookies(scope)}
        if scope["type"] == "websocket":
            if login is None or not has_room or not _is_same_origin(scope):
                await send({"type": "websocket.close", "code": 1008})
            else:
                await self.app(behind, receive, send)
            return
        try:
            answer = (
                await self._answer(Request(scope, receive), login, key)
                if has_room
                else PlainTextResponse("too many connections\n", 503)
            )
        except ClientDisconnect:
            return
        if answer is not None:
            if login is None or not has_room:
                answer.headers["connection"] = "close"
            await answer(scope, receive, _with_headers(send, _LOGIN_POLICY))
            return
        policy = _PAGE_POLICY.format(
            websocket=f"{'wss' if self._is_tls else 'ws'}://{_header(scope, b'host')}"
        )
        await self.app(behind, receive, _with_headers(send, policy))

    async def _answer(
        self, request: Request, login: UserSession | None, key: str
    ) -> Response | None:
        """The answer to a request that does not pass; None: it does."""
        is_post = request.method == "POST"
        if is_post and not _is_same_origin(request.scope):
            return PlainTextResponse("another site sent this\n", 403)
        match request.scope["path"]:
            case "/login":
                return await self._log_in(request) if is_post else _form(request, "")
            case "/logout" if is_post:
                self._logins.log_out(key)
                response = RedirectResponse("/login", 303)
                response.delete_cookie(
                    self._cookie(request.scope),
                    secure=self._is_tls,
                    httponly=True,
                    samesite="strict",
                )
                return response
        if login is not None:
            return None
        if request.method == "GET" and request.scope["path"] == "/":
            return RedirectResponse("/login", 303)
        return PlainTextResponse("not logged in\n", 401)

    async def _log_in(self, request: Request) -> Response:
        fields = await _fields(request)
        if fields is None:
            return _form(request, "That is no login.", 400)
        slot = _slot(request.scope)
        name = fields.get("name", "")
        extra = {"user": name[:100], "peer": slot.peer}
        try:
            key = await _while_there(
                request, self._logins.log_in(slot, name, fields.get("password", ""))
            )
        except TimeoutError:
            mlog.warning("login refused: too many others", extra=extra)
            return _form(request, "Too many others try to log in. Try again later.", 503)
        if key is None:
            mlog.warning("login failed", extra=extra)
            return _form(request, "Name or password is wrong.", 403)
        mlog.info("logged in", extra=extra)
        response = RedirectResponse("/", 303)
        response.set_cookie(
            self._cookie(request.scope),
            key,
            max_age=limits.SESSION_S,
            secure=self._is_tls,
            httponly=True,
            samesite="strict",
        )
        return response

    def _cookie(self, scope: Scope) -> str:
        """Name of the cookie. It has the port: cookies do not tell ports apart."""
        return f"{'__Host-' if self._is_tls else ''}mariner_console_{scope['server'][1]}"

    def _key(self, scope: Scope) -> str:
        """The key that the cookie has; empty: none. Its text is one that needs no quotes."""
        wanted = self._cookie(scope)
        for cookie in _header(scope, b"cookie").split(";"):
            name, _, value = cookie.strip().partition("=")
            if name == wanted:
                return value
        return ""


async def _fields(request: Request) -> Mapping[str, str] | None:
    """The fields of a form; None: it is too large, or none."""
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > limits.MAX_LOGIN_BYTES:
            return None
    try:
        found = parse_qs(body.decode(), strict_parsing=True, max_num_fields=4)
    except ValueError:
        return None
    return {name: values[0] for name, values in found.items()}


def _form(request: Request, text: str, status: int = 200) -> Response:
    return HTMLResponse(_FORM.replace("{message}", html.escape(text)), status)


async def _while_there(request: Request, work: Coroutine[Any, Any, str | None]) -> str | None:
    """Do work while the browser is there. Its request has been read.

    Raises:
        ClientDisconnect: it has gone.
    """
    leaving = asyncio.ensure_future(request.receive())
    working = asyncio.create_task(work)
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnect
        return working.result()
    finally:
        for task in (leaving, working):
            task.cancel()
        await asyncio.wait((leaving, working))


def _slot(scope: Scope) -> Slot:
    slot: Slot = scope["state"][SLOT]
    return slot


def _header(scope: Scope, name: bytes) -> str:
    """The last header of a name; empty: none."""
    found: bytes = dict(scope["headers"]).get(name, b"")
    return found.decode("latin-1")


def _without_cookies(scope: Scope) -> list[tuple[bytes, bytes]]:
    return [i for i in scope["headers"] if i[0] != b"cookie"]


def _is_same_origin(scope: Scope) -> bool:
    """Whether a page of ours sent this; what is in front of the console may add TLS."""
    host, origin = _header(scope, b"host"), _header(scope, b"origin")
    if origin in {f"http://{host}", f"https://{host}"}:
        return True
    extra = {"peer": _slot(scope).peer, "origin": origin, "host": host}
    mlog.warning("another site sent this, or its proxy changes the host", extra=extra)
    return False


def _with_headers(send: Send, policy: str) -> Send:
    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            found = dict(message.get("headers", ()))
            for name, value in {**_HEADERS, "content-security-policy": policy}.items():
                # scripts and styles of a version never change
                if not (name == "cache-control" and name.encode() in found):
                    found[name.encode()] = value.encode("latin-1")
            # several cookies are several headers of one name
            cookies = [i for i in message.get("headers", ()) if i[0] == b"set-cookie"]
            found.pop(b"set-cookie", None)
            message = {**message, "headers": [*found.items(), *cookies]}
        await send(message)

    return send_with_headers
