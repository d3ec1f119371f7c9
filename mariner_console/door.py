"""The door: connections of browsers, bounded before anything is known of who is there.

``net.accepting.listen`` accepts, counts and bounds them, as it does for the gateway: a
connection has a slot (``net.admission``) for new ones until the gate finds a login in one
of its requests. What follows is uvicorn's, with a deadline for each request, and without more bytes
of its head than a browser sends.
"""

import asyncio
import logging
import time
from typing import Any, Final, cast

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from eventer_bridge.net.admission import Slot
from mariner_console import limits

mlog = logging.getLogger(__name__)

SLOT: Final = "slot"
"""Key of the state of a request (of its scope in ASGI): its connection's :class:`Slot`."""

_NO_REQUEST: Final = (
    "Expected a request of HTTP/1.1, with a request line and headers of at most"
    f" {limits.MAX_HEAD_BYTES} bytes together.\n"
)


def settings(app: ASGIApp) -> uvicorn.Config:
    """How uvicorn serves an application whose connections are :class:`BrowserConnection`."""
    made = uvicorn.Config(
        app,
        http="h11",
        h11_max_incomplete_event_size=limits.MAX_HEAD_BYTES,
        ws=_WebSocket,
        ws_max_size=limits.MAX_WEB_SOCKET_BYTES,
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=limits.STOP_TIMEOUT_S,
    )
    made.load()
    return made


class _WebSocket(WebSocketsSansIOProtocol):
    def connection_lost(self, exc: Exception | None) -> None:
        """Called by asyncio when the connection is gone."""
        cast("Slot", self.app_state[SLOT]).release()
        super().connection_lost(exc)


class BrowserConnection(H11Protocol):
    """A connection: a request at a time, each of which is whole in time.

    Its server has our :func:`settings`.
    """

    def __init__(self, server: uvicorn.Server, slot: Slot) -> None:
        super().__init__(server.config, server.server_state, {SLOT: slot})
        self._slot = slot
        self._has_begun = False
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by asyncio when the connection is there, over TLS after the handshake."""
        super().connection_made(cast("asyncio.Transport", transport))
        self._expect_request(self._slot.accepted_at + limits.REQUEST_TIMEOUT_S - time.monotonic())
        self._slot.when_taken(self._on_taken)

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by asyncio when the connection is gone."""
        self._forget_deadline()
        self._slot.release()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Called by asyncio with bytes of the peer."""
        self._has_begun = True
        # h11 looks at the size of heads that are not complete only
        for begin in range(0, len(data), limits.MAX_HEAD_BYTES):
            if self.transport.is_closing() or self.transport.get_protocol() is not self:
                return
            super().data_received(data[begin : begin + limits.MAX_HEAD_BYTES])
        if self._has_request:
            self._forget_deadline()

    def eof_received(self) -> bool:  # type: ignore[override]  # asyncio asks for it
        """Called by asyncio when the peer has ended its half: true keeps ours for the answer."""
        if not self._has_request or self.scheme == "https":  # TLS has no halves
            return False
        self.cycle.keep_alive = False
        return True

    def on_response_complete(self) -> None:
        """Called by uvicorn when an answer is written: the next request has its time."""
        self._has_begun = False
        super().on_response_complete()
        if not self._has_request:
            self._expect_request(limits.REQUEST_TIMEOUT_S)

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        """Called by uvicorn when the connection becomes a web socket."""
        self._forget_deadline()
        super().handle_websocket_upgrade(event)

    def send_400_response(self, msg: str) -> None:
        """Called by uvicorn when the peer does not speak HTTP, or too much of it."""
        self._log("no HTTP request, or too large a one")
        if self.cycle is not None:  # what it answers is not sent any more
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if self.conn.our_state in {h11.IDLE, h11.SEND_RESPONSE}:
            super().send_400_response(_NO_REQUEST)
        else:  # it has an answer, or part of one
            self.transport.close()

    @property
    def _has_request(self) -> bool:
        """Whether a whole request waits for its answer."""
        cycle: Any = self.cycle
        return cycle is not None and not (cycle.response_complete or cycle.more_body)

    def _expect_request(self, within_s: float) -> None:
        self._forget_deadline()
        self._deadline = self.loop.call_later(within_s, self._on_deadline)

    def _forget_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _on_deadline(self) -> None:
        what = "half a request" if self._has_begun else "no request"
        self._log(f"{what} within {limits.REQUEST_TIMEOUT_S:g} s")
        self.transport.abort()

    def _on_taken(self) -> None:
        self._log("place needed for another")
        self.transport.abort()

    def _log(self, reason: str) -> None:
        mlog.warning("closing connection", extra={"peer": self._slot.peer, "reason": reason})
