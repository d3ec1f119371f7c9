"""Connections, those that are furthest behind first; who may register may close one.

They are known only from the control socket of a gateway on this machine. What is closed is asked
twice, and kept with the name of the user in the log, and in the audit trail of the gateway.
"""

import logging

import msgspec
from nicegui import ui
from typing_extensions import override

from eventer_bridge.errors import ConfigurationError, ControlError
from mariner.gateway.connection_requests import ConnectionInfo, ConnectionRequest
from mariner_console import texts
from mariner_console.page import parts
from mariner_console.page.parts import Columns, Panel, TextTable
from mariner_console.watcher import Watcher

mlog = logging.getLogger(__name__)


class ConnectionsPanel(Panel):
    """See the module; ``writer`` is the user, if they may close connections."""

    asks = True

    def __init__(self, watcher: Watcher, writer: str | None) -> None:
        self._watcher = watcher
        self._writer = writer
        self._found: dict[str, ConnectionInfo] = {}
        self._picked: ConnectionInfo | None = None
        with parts.card("Connections, those furthest behind first"):
            if watcher.config.control is None:
                parts.note(
                    "Connections are known only from the control socket of a gateway on this"
                    " machine: 'control' of this gateway in the configuration of the console."
                )
                return
            on_pick = None if writer is None else self._pick
            self._failure = parts.failure()
            self._table = TextTable(_COLUMNS, key=_key, empty="There is none.", on_pick=on_pick)
            self._left_out = parts.note("")
            if writer is not None:
                with ui.element("div").classes("console-form"):
                    ui.button("Close …", on_click=self._close)
                    parts.note("The connection that is open. The client may connect again.")
            self._refusal = parts.failure()
            self._done = ui.label("").classes("console-well").props("role=status")

    @override
    async def refresh(self) -> None:
        if self._watcher.config.control is None:
            return
        try:
            answer = await self._watcher.connections()
        except (ConfigurationError, ControlError) as e:
            self._failure.set_text(texts.shown(str(e), 400))
            self._table.set(None)
            return
        self._failure.set_text("")
        self._found = {_key(i): i for i in answer.connections}
        self._table.set(answer.connections)
        self._left_out.set_text(answer.left_out_text)
        if self._picked is not None:
            self._picked = self._found.get(_key(self._picked))

    def _pick(self, key: str | None) -> None:
        self._picked = self._found.get(key or "")
        self._say("", "")

    def _say(self, refusal: str, done: str) -> None:
        self._refusal.set_text(texts.shown(refusal, 400))
        self._done.set_text(done)

    async def _close(self) -> None:
        connection, at = self._picked, self._watcher.config.name
        if connection is None:
            self._say("Open a connection.", "")
            return
        self._say("", "")
        client = texts.shown(connection.client or texts.UNKNOWN)
        what = f"{texts.shown(connection.peer)} ({connection.wire}), client {client}"
        question = f"Close this connection on {texts.shown(at)}?"
        if not await parts.is_confirmed(question, what, "Close"):
            return
        of = {"peer": connection.peer, "wire": connection.wire}
        extra = {"user": self._writer, "gateway": at, **of}
        request = ConnectionRequest("close", **of, operator=self._writer or "")
        try:
            await self._watcher.request_connections(request)
        except (ConfigurationError, ControlError) as e:
            mlog.warning("no connection closed", extra={**extra, "reason": str(e)})
            self._say(str(e), "")
            return
        mlog.info("connection closed", extra=extra)
        self._say("", f"Done: closed {what}")


def _key(connection: ConnectionInfo) -> str:
    """What tells it from others, also where names are cut or escaped alike."""
    return msgspec.json.encode([connection.wire, connection.peer]).decode()


def _rate(bytes_per_s: float | None) -> str:
    return texts.of_number(bytes_per_s, "B")


def _tls(connection: ConnectionInfo) -> str:
    return " ".join(filter(None, [connection.tls or "no", connection.certificate_text]))


_COLUMNS: Columns[ConnectionInfo] = {
    "Client": lambda i: texts.shown(i.client or texts.UNKNOWN),
    "Wire": lambda i: texts.shown(i.wire),
    "Address": lambda i: texts.shown(i.peer),
    "Since (UTC)": lambda i: texts.UNKNOWN if i.since is None else i.since[:19].replace("T", " "),
    "TLS, certificate": lambda i: texts.shown(_tls(i)),
    "Subscription": lambda i: texts.shown(i.subscription_text, 400),
    "In/s": lambda i: _rate(i.received_bytes_per_s),
    "Out/s": lambda i: _rate(i.sent_bytes_per_s),
    "Behind": lambda i: texts.of_seconds(i.behind_s) if i.behind_s else "no",
    "Buffered": lambda i: texts.of_number(i.buffered_bytes, "B"),
    "Not read from": lambda i: texts.shown(", ".join(i.not_read)),
}
