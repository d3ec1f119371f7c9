"""The gate before the page: nothing behind it is reached without a login.

It is the outermost ASGI application: also scripts, styles and the web socket are behind it. Forms
and web sockets of other sites are refused (the cookie is ``SameSite=Strict``, ``Origin`` is
compared). A stranger's bytes are compared, never interpreted by costly code: what is behind is not
shown the cookies, which Python parses in a time that grows with the square of their length. A
stranger's connection is for one request.

Passwords are compared as tokens of clients are (``mariner token``), in turns, so that guessing is
slow for all guessers together. The answers to an address that guesses are delayed, and its
connections with them. A wrong name takes as long as a wrong password, and gets the same answer.
What waits is bounded by the slots of new connections. The browser has a random key of a session.
"""

import asyncio
import hashlib
import html
import importlib.resources
import logging
import secrets
import time
from collections import OrderedDict
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, Final
from urllib.parse import parse_qs

from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from eventer_bridge.core import tokens
from eventer_bridge.core.tokens import ScryptChecks, TokenHash
from eventer_bridge.net.admission import Slot
from mariner_console import limits
from mariner_console.config import User, passwords
from mariner_console.door import SLOT

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


_NOBODY: Final = (TokenHash(bytes(32), bytes(16)),)
"""What the password of an unknown user is compared with: no password has this hash."""


class UserSession:
    """A login of a user."""

    def __init__(self, user: User, until_s: float) -> None:
        self.user: Final = user
        self._until_s = until_s

    @property
    def is_valid(self) -> bool:
        """Whether it has neither ended nor expired."""
        return time.monotonic() < self._until_s

    def end(self) -> None:
        """Log out."""
        self._until_s = 0.0


class Logins:
    """Who may see the page. Belongs to the event loop's thread; to be closed after use.

    Raises ConfigurationError if a password is not a hash.
    """

    def __init__(self, users: Sequence[User]) -> None:
        self._users = {
            i.name: (i, passwords(i, f"users[{index}].password")) for index, i in enumerate(users)
        }
        self._checks = ScryptChecks()
        self._has_chosen = any(i.hash.salt for _, known in self._users.values() for i in known)
        self._logins: OrderedDict[bytes, UserSession] = OrderedDict()

    async def log_in(self, slot: Slot, name: str, password: str) -> str | None:
        """The key of a new session; None: name or password are wrong.

        Raises TimeoutError if too many others try to log in.
        """
        user = await self._find(slot.address, name, password)
        if user is None:
            await asyncio.sleep(slot.login_failed())
            return None
        key = secrets.token_urlsafe(32)
        self._logins[_digest(key)] = UserSession(user, time.monotonic() + limits.SESSION_S)
        if len(self._logins) > limits.MAX_SESSIONS:
            self._logins.popitem(last=False)[1].end()
        return key

    def find(self, key: str) -> UserSession | None:
        """The login of a key; None: there is none."""
        login = self._logins.get(_digest(key))
        if login is not None and not login.is_valid:
            del self._logins[_digest(key)]
            return None
        return login

    def log_out(self, key: str) -> None:
        """End a session, with all its pages."""
        login = self._logins.pop(_digest(key), None)
        if login is not None:
            login.end()

    async def async_close(self) -> None:
        """End."""
        await self._checks.async_close()

    async def _find(self, address: str, name: str, password: str) -> User | None:
        user, known = self._users.get(name, (None, ()))
        random = tokens.sha256(password)
        valid = [i.hash for i in known if not i.is_expired]
        for expected in valid:
            if expected.salt is None and tokens.same(random, expected.digest):
                return user
        if not self._has_chosen:
            return None
        chosen = [i for i in valid if i.salt is not None]
        found = await self._checks.find(address, name, password, chosen or _NOBODY)
        return user if chosen and found is not None else None


def _digest(key: str) -> bytes:
    """What sessions are found by: the time that takes says nothing of the keys."""
    return hashlib.sha256(key.encode("utf-8", "replace")).digest()


# --- ASGI ---------------------------------------------------------------------------------


class Gate:
    """See the module; ``app`` is behind it."""

    def __init__(self, app: ASGIApp, logins: Logins, *, is_tls: bool) -> None:
        self.app: Final = app
        self._logins = logins
        self._is_tls = is_tls
        self._flags: dict[str, Any] = {"secure": is_tls, "httponly": True, "samesite": "strict"}

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
        headers = [i for i in scope["headers"] if i[0] != b"cookie"]
        behind = {**scope, LOGIN: login, "headers": headers}
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
                return await self._log_in(request) if is_post else _form("")
            case "/logout" if is_post:
                self._logins.log_out(key)
                response = RedirectResponse("/login", 303)
                response.delete_cookie(self._cookie(request.scope), **self._flags)
                return response
        if login is not None:
            return None
        if request.method == "GET" and request.scope["path"] == "/":
            return RedirectResponse(f"/login{_query(request.scope)}", 303)
        return PlainTextResponse("not logged in\n", 401)

    async def _log_in(self, request: Request) -> Response:
        fields = await _fields(request)
        if fields is None:
            return _form("That is no login.", 400)
        slot = _slot(request.scope)
        name = fields.get("name", "")
        extra = {"user": name[:100], "peer": slot.peer}
        try:
            work = self._logins.log_in(slot, name, fields.get("password", ""))
            key = await _while_there(request, work)
        except TimeoutError:
            mlog.warning("login refused: too many others", extra=extra)
            return _form("Too many others try to log in. Try again later.", 503)
        if key is None:
            mlog.warning("login failed", extra=extra)
            return _form("Name or password is wrong.", 403)
        mlog.info("logged in", extra=extra)
        response = RedirectResponse(f"/{_query(request.scope)}", 303)
        name = self._cookie(request.scope)
        response.set_cookie(name, key, max_age=limits.SESSION_S, **self._flags)
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


def _form(text: str, status: int = 200) -> Response:
    return HTMLResponse(_FORM.replace("{message}", html.escape(text)), status)


async def _while_there(request: Request, work: Coroutine[Any, Any, str | None]) -> str | None:
    """Work while the browser is there (its request has been read); raises ClientDisconnect."""
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


def _query(scope: Scope) -> str:
    """The view that a link opens, after the login; empty: none."""
    query: bytes = scope["query_string"]
    return f"?{query.decode('latin-1')}" if query else ""


def _slot(scope: Scope) -> Slot:
    slot: Slot = scope["state"][SLOT]
    return slot


def _header(scope: Scope, name: bytes) -> str:
    """The last header of a name; empty: none."""
    found: bytes = dict(scope["headers"]).get(name, b"")
    return found.decode("latin-1")


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
