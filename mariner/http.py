"""HTTP for operators: ``/healthz``, ``/readyz`` and ``/metrics``.

* ``/healthz``: 200 while the process lives and its event loop turns.
* ``/readyz``: 200 while the status is OPERATIONAL, else 503; the body names the status.
* ``/metrics``: Prometheus text format.

It tells how the gateway is, never what it stored; listen on loopback or an inner network.
"""

from aiohttp import web
from hat import aio
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from eventer_bridge.core import EventCore
from eventer_bridge.model import Status


async def listen(
    core: EventCore, registry: CollectorRegistry, host: str, port: int
) -> "HttpServer":
    """Listen for HTTP requests.

    Args:
        core: whose status is told.
        registry: whose metrics are told.
        host: address or name to listen on.
        port: TCP port; 0 takes a free one (see :attr:`HttpServer.port`).

    Raises:
        OSError: the address cannot be listened on.
    """
    server = HttpServer(core, registry)
    try:
        await server._listen(host, port)
    except BaseException:
        await aio.uncancellable(server.async_close())
        raise
    return server


class HttpServer(aio.Resource):
    """See the module. Made by :func:`listen`."""

    def __init__(self, core: EventCore, registry: CollectorRegistry) -> None:
        self._core = core
        self._registry = registry
        self._async_group = aio.Group()
        app = web.Application()
        app.add_routes(
            [
                web.get("/healthz", self._on_healthz),
                web.get("/readyz", self._on_readyz),
                web.get("/metrics", self._on_metrics),
            ]
        )
        self._runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=1)
        self.async_group.spawn(aio.call_on_cancel, self._runner.cleanup)

    @property
    def async_group(self) -> aio.Group:
        """Group of the server's tasks."""
        return self._async_group

    @property
    def port(self) -> int:
        """TCP port that is listened on."""
        return int(self._runner.addresses[0][1])

    async def _listen(self, host: str, port: int) -> None:
        await self._runner.setup()
        await web.TCPSite(self._runner, host, port).start()

    async def _on_healthz(self, request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _on_readyz(self, request: web.Request) -> web.Response:
        status = self._core.status
        code = 200 if status is Status.OPERATIONAL else 503
        return web.Response(text=f"{status.name}\n", status=code)

    async def _on_metrics(self, request: web.Request) -> web.Response:
        encode, content_type = choose_encoder(request.headers.get("Accept", ""))
        return web.Response(body=encode(self._registry), headers={"Content-Type": content_type})
