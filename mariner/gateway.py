"""The gateway: backend, engine, Mariner server and HTTP, made and closed in order.

Data moves down this list and results come back up through futures and observers. When it
is closed, the engine stops first: nothing new is accepted, what was is answered and
durable. Then the parts are closed in the opposite order.
"""

import asyncio
import logging
import ssl

from hat import aio

from eventer_bridge import engine
from eventer_bridge.backends import memory, rocksdb
from eventer_bridge.backends.base import Backend
from eventer_bridge.conditions import Conditions
from mariner import http, limits, server, tls
from mariner.config import GatewayConfig, ListenConfig, MemoryConfig
from mariner.metrics import GatewayCollector, Metrics

mlog = logging.getLogger(__name__)


async def create(config: GatewayConfig) -> "Gateway":
    """Start a gateway.

    Raises:
        ConfigurationError: a certificate or a schema cannot be used.
        StorageError: the store cannot be opened.
        OSError: an address cannot be listened on.
    """
    gateway = Gateway(config)
    try:
        await gateway._start()
    except BaseException:
        await aio.uncancellable(gateway.async_close())
        raise
    return gateway


class Gateway(aio.Resource):
    """See the module. Made by :func:`create`.

    It closes when it is told to, and by itself when one of its parts closes (a store that
    fails, for example): :attr:`failed` tells which of the two it was.
    """

    def __init__(self, config: GatewayConfig) -> None:
        self._config = config
        self._async_group = aio.Group()
        self._parts: list[aio.Resource] = []
        self._failed_part: str | None = None
        self._engine: engine.Engine | None = None
        self.mariner: server.MarinerServer
        self.http: http.HttpServer | None = None
        self.async_group.spawn(aio.call_on_cancel, self._stop)

    @property
    def async_group(self) -> aio.Group:
        """Group of the gateway's tasks."""
        return self._async_group

    @property
    def failed(self) -> str | None:
        """The part that closed by itself and took the gateway with it, if one did."""
        return self._failed_part

    async def _start(self) -> None:
        config = self._config
        metrics = Metrics()
        tls_context = _tls_context(config.mariner)

        backend = await _create_backend(config, metrics)
        self._own(backend, "backend")
        core = await engine.create(
            backend,
            config.event_core.server_id,
            modules=config.event_core.modules,
            conditions=Conditions(config.event_core.backend.conditions),
        )
        self._engine = core
        self._own(core, "engine")
        self.mariner = await server.listen(
            core,
            config.clients,
            config.schemas,
            config.mariner.host,
            config.mariner.port,
            tls_context=tls_context,
            observe_query=metrics.observe_query,
        )
        self._own(self.mariner, "mariner server")
        metrics.registry.register(GatewayCollector(core, backend, self.mariner))
        if config.http is not None:
            self.http = await http.listen(
                core, metrics.registry, config.http.host, config.http.port
            )
            self._own(self.http, "http server")

    def _own(self, part: aio.Resource, name: str) -> None:
        self._parts.append(part)
        self.async_group.spawn(self._watch, part, name)

    async def _watch(self, part: aio.Resource, name: str) -> None:
        await part.wait_closing()
        if self.is_open:
            self._failed_part = name
            mlog.error("a part of the gateway closed by itself", extra={"part": name})
            self.close()

    async def _stop(self) -> None:
        if self._engine is not None:
            # clients are told, and what they asked for is answered, before they are closed
            try:
                async with asyncio.timeout(limits.STOP_TIMEOUT_S):
                    await self._engine.stop()
            except TimeoutError:
                mlog.error("sessions did not end", extra={"timeout_s": limits.STOP_TIMEOUT_S})
        for part in reversed(self._parts):
            await part.async_close()


async def _create_backend(config: GatewayConfig, metrics: Metrics) -> Backend:
    backend = config.event_core.backend
    if isinstance(backend, MemoryConfig):
        return memory.create()
    return await rocksdb.create(backend.path, on_commit=metrics.observe_commit)


def _tls_context(listen: ListenConfig) -> ssl.SSLContext | None:
    if listen.tls is None:
        return None
    return tls.server_context(listen.tls.cert, listen.tls.key, listen.tls.client_ca)
