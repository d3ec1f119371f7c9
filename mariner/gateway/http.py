"""HTTP for operators: ``/healthz``, ``/readyz`` and ``/metrics`` (Prometheus text format).

``/healthz`` is 200 while the process lives and its event loop turns, ``/readyz`` while the status
is OPERATIONAL and nothing is stuck (``EventCore.check_ready``), else 503; the body has the status,
and why. Nothing is registered to find out.

It shows the state of the gateway, never its events; listen on loopback or an inner network. A
connection is for one request, without a body, and has a few seconds for it and its answer. A peer
may end its half of the connection after its request (``nc -N``).
"""

import asyncio
import logging
import time
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Handler
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from typing_extensions import override

from eventer_bridge.core.base import EventCore
from eventer_bridge.errors import EventerBridgeError
from eventer_bridge.net import accepting
from eventer_bridge.net.accepting import Acceptor
from eventer_bridge.net.admission import Admission, Slot
from eventer_bridge.net.stats import CloseReason, ServerStats
from eventer_bridge.resources import Resource, call_on_cancel, closed_on_error
from mariner import limits

mlog = logging.getLogger(__name__)


async def listen(
    core: EventCore,
    registry: CollectorRegistry,
    host: str,
    port: int,
    *,
    admission: Admission,
    stats: ServerStats,
) -> "HttpServer":
    """Listen for HTTP requests; port 0 picks a free one (:attr:`HttpServer.port`).

    Raises OSError if the address cannot be listened on.
    """
    server = HttpServer(core, registry)
    async with closed_on_error(server):
        await server._runner.setup()
        server._acceptor = await accepting.listen(
            host, port, server._create_connection, admission=admission, stats=stats
        )
    return server


class HttpServer(Resource):
    """See the module. Made by :func:`listen`."""

    def __init__(self, core: EventCore, registry: CollectorRegistry) -> None:
        self._core = core
        self._registry = registry
        self._acceptor: Acceptor | None = None
        self._metrics: dict[str, tuple[bytes, float]] = {}  # by type, and how long they are new
        self._answered: set[_Connection] = set()  # with metrics, and not gone
        app = web.Application(middlewares=[_one_request_without_body])
        for name in ("healthz", "readyz", "metrics"):
            app.router.add_get(f"/{name}", getattr(self, f"_on_{name}"))
        self._runner = web.AppRunner(app, handle_signals=False, shutdown_timeout=1)
        self.async_group.spawn(call_on_cancel, self._stop)

    @property
    def port(self) -> int:
        """TCP port that it listens on."""
        assert self._acceptor is not None
        return self._acceptor.port

    def _create_connection(self, slot: Slot) -> "_Connection":
        assert self._runner.server is not None
        return _Connection(self._runner.server, slot, self._answered)

    async def _stop(self) -> None:
        if self._acceptor is not None:
            await self._acceptor.async_close()
        await self._runner.cleanup()

    async def _on_healthz(self, request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _on_readyz(self, request: web.Request) -> web.Response:
        try:
            await self._core.check_ready()
        except EventerBridgeError as e:
            return web.Response(text=f"{self._core.status.name}: {e}\n", status=503)
        return web.Response(text=f"{self._core.status.name}\n")

    async def _on_metrics(self, request: web.Request) -> web.Response:
        encode, content_type = choose_encoder(request.headers.get("Accept", ""))
        began_s = time.monotonic()
        body, until_s = self._metrics.get(content_type, (b"", 0.0))
        if began_s >= until_s or len(self._answered) < limits.METRICS_READERS:
            body = encode(self._registry)
            now_s = time.monotonic()
            until_s = now_s + limits.METRICS_PAUSES * (now_s - began_s)
            self._metrics[content_type] = body, until_s
        assert isinstance(request.protocol, _Connection)
        request.protocol.hold(len(body))
        return web.Response(body=body, headers={"Content-Type": content_type})


class _Connection(web.RequestHandler):
    """One connection, which ends when its time is over, whatever it does."""

    def __init__(self, server: web.Server, slot: Slot, answered: "set[_Connection]") -> None:
        super().__init__(
            server,
            loop=asyncio.get_running_loop(),
            access_log=None,  # type: ignore[arg-type]  # as web.AppRunner passes it on
            lingering_time=0,
            max_line_size=limits.MAX_HTTP_LINE_BYTES,
            max_field_size=limits.MAX_HTTP_LINE_BYTES,
            max_headers=limits.MAX_HTTP_HEADERS,
        )
        self._slot = slot
        self._answered = answered
        self._has_request = False
        self._timer: asyncio.TimerHandle | None = None

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._slot.when_taken(self._abort)
        self._slot.share.when_lost(lambda: self._abort(CloseReason.TOO_MUCH_BUFFERED))
        left_s = self._slot.accepted_at + limits.HTTP_TIMEOUT_S - time.monotonic()
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(left_s, self._abort, "request timeout")

    @override
    def connection_lost(self, exc: BaseException | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._answered.discard(self)
        self._slot.release()
        super().connection_lost(exc)

    def hold(self, n_bytes: int) -> None:
        """Count an answer of so many bytes, until the connection is gone."""
        self._answered.add(self)
        self._slot.share.set(n_bytes)

    @override
    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._has_request |= bool(self._messages)

    def eof_received(self) -> bool:  # type: ignore[override]  # asyncio asks for it
        """Called by asyncio when the peer has ended its half: true keeps ours for the answer."""
        super().eof_received()
        return self._has_request

    def log_exception(self, *args: Any, **kw: Any) -> None:
        """Log errors of peers for debugging only: the answer says what is wrong."""
        mlog.debug("HTTP request failed", extra={"peer": self._slot.peer}, exc_info=True)

    def _abort(self, reason: str | None = None) -> None:
        if reason is not None:
            extra = {"peer": self._slot.peer, "reason": reason}
            mlog.warning("closing HTTP connection", extra=extra)
        if self.transport is not None:
            self.transport.abort()


@web.middleware
async def _one_request_without_body(request: web.Request, handler: Handler) -> web.StreamResponse:
    response: web.StreamResponse
    try:
        if request.can_read_body:
            response = web.Response(text="no body is expected\n", status=413)
        else:
            response = await handler(request)
    except web.HTTPException as e:
        e.force_close()
        raise
    response.force_close()
    return response
