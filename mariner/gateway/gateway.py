"""The gateway: core, servers and HTTP, created and closed in order.

The core is embedded (backend, engine, replications, monitor) or relays to a remote Event Server;
the servers do not know which. When the gateway is closed, the engine stops first: nothing new is
accepted, everything accepted is answered and durable. Then the parts are closed in reverse order.
"""

import asyncio
import contextlib
import functools
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from eventer_bridge import chatter
from eventer_bridge.backends import dummy, rocksdb
from eventer_bridge.backends.base import Backend
from eventer_bridge.backends.rocksdb import RocksDbBackend
from eventer_bridge.backends.rocksdb.member import MemberBackend, create_member
from eventer_bridge.control import server as control_server
from eventer_bridge.control.server import ControlServer
from eventer_bridge.core import engine, tokens
from eventer_bridge.core.base import EventCore
from eventer_bridge.core.client_service import ObserveQueryCb
from eventer_bridge.core.conditions import Conditions
from eventer_bridge.core.quotas import Accounts
from eventer_bridge.core.tokens import ScryptChecks
from eventer_bridge.errors import ConfigurationError, ControlError, EventerBridgeError
from eventer_bridge.eventer import server as eventer_server
from eventer_bridge.eventer.server import EventerServer
from eventer_bridge.group.member import GroupMember
from eventer_bridge.model import QueryParams
from eventer_bridge.net.admission import Admission
from eventer_bridge.net.quota import Descriptors
from eventer_bridge.net.stats import ServerStats
from eventer_bridge.remote import relay, replication
from eventer_bridge.remote.relay import RelayCore
from eventer_bridge.resources import Resource, call_on_cancel, closed_on_error
from eventer_bridge.rsb import bridge as rsb_bridge
from eventer_bridge.rsb.event import parse_scope
from mariner import limits, server
from mariner.gateway import access, connection_requests, cursor_requests, group_requests
from mariner.gateway import config as configs
from mariner.gateway.counts import RegistrationsAudit, RemoteServer, Wire
from mariner.gateway.metrics import CountsCollector, Metrics
from mariner.gateway.tracing import Tracing

if TYPE_CHECKING:
    from eventer_bridge.remote.monitor import Monitor
    from mariner.gateway.http import HttpServer

mlog = logging.getLogger(__name__)

_EVENTER: Final = "event_core.eventer_server"


async def create(config: configs.GatewayConfig, *, accept_loss: bool = False) -> "Gateway":
    """Start a gateway.

    ``accept_loss``: continue without acknowledged events, if the store lost some, or others of its
    group may have some that it has not. Raises ConfigurationError (a certificate or a schema),
    StorageError (the store cannot be opened), OSError (an address cannot be listened on) and
    LimitError (the limit of open files is too low).
    """
    if accept_loss and config.event_core is not None and config.event_core.group is not None:
        raise ConfigurationError(
            "--accept-loss: not of a member of a group, whose events are in the group's log; its"
            " store is restored from a backup of another member (mariner restore --member)"
        )
    gateway = Gateway(config, accept_loss=accept_loss)
    async with closed_on_error(gateway):
        await gateway._start()
    return gateway


async def rehearse(config: configs.GatewayConfig) -> None:
    """Make everything of a gateway that neither listens nor needs its store, and close it again.

    Modules are created as well: with an engine whose events are not stored. Raises
    ConfigurationError, and ModuleError if one cannot be created.
    """
    checks = ScryptChecks()
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(checks.async_close)
        made = access.create(config, checks)
        stack.push_async_callback(made.schemas.async_close)
        if config.event_core is not None:
            backend = dummy.DummyBackend()
            stack.push_async_callback(backend.async_close)
            core = _create_engine(config.event_core, backend)
            stack.push_async_callback(core.async_close)
            await core.start()


class Prepared(NamedTuple):
    """Another configuration of a running gateway, ready to be used; with keys that differ."""

    config: configs.GatewayConfig
    access: access.Access
    changed: list[str]
    needs_restart: list[str]


class Gateway(Resource):
    """See the module. Made by :func:`create`. It closes by itself if one of its parts closes.

    Attributes:
        config, access: in use.
        backend: the store; None: there is none, in relay mode.
        member: of a group; None: it belongs to none.
        mariner, eventer_server, rsb, http: what listens; None: it is not configured.
        is_reloaded: whether the last reload succeeded, for metrics.
        failed: the part that closed by itself (a store that fails); None: no part did.
        waits_for: the part that closing waits for now; may be read on any thread.
    """

    def __init__(self, config: configs.GatewayConfig, *, accept_loss: bool) -> None:
        self.config = config
        self._accept_loss = accept_loss
        self._parts: list[tuple[str, Resource]] = []
        self._registrations: RegistrationsAudit | None = None
        self.waits_for = "nothing"
        self._replications: list[replication.Replication] = []
        self.failed: str | None = None
        self._descriptors = Descriptors.find()
        self._admission = Admission(self._descriptors.bounds)
        self._http_stats = ServerStats()
        self.is_reloaded = True
        self._checks = ScryptChecks()
        self.access = access.create(config, self._checks)
        self._connectors: dict[str, access.Connector] = {}
        self._control: ControlServer | None = None
        self._tracing: Tracing | None = None
        self._observe_query: ObserveQueryCb
        self.backend: Backend | None = None
        self._engine: engine.Engine | None = None
        self._monitor: Monitor | None = None
        self.member: GroupMember | None = None
        self.core: EventCore
        self.mariner: server.MarinerServer
        self.eventer_server: EventerServer | None = None
        self.rsb: rsb_bridge.Bridge | None = None
        self.http: HttpServer | None = None
        self.async_group.spawn(call_on_cancel, self._stop)

    @property
    def accounts(self) -> dict[str, Accounts]:
        """What clients use, by wire."""
        found = {"mariner": self.mariner.accounts}
        if self.eventer_server is not None:
            found["eventer"] = self.eventer_server.accounts
        return found

    @property
    def wires(self) -> dict[str, Wire]:
        """All kinds of connections, by the label of their metrics."""
        mariner, eventer, rsb = self.mariner, self.eventer_server, self.rsb
        wires = {"mariner": Wire(mariner.stats, lambda: mariner.connections)}
        if eventer is not None:
            wires["eventer"] = Wire(eventer.stats, lambda: eventer.connections)
        if rsb is not None:
            wires["rsb"] = Wire(rsb.stats, lambda: rsb.connections)
        return wires | {"http": Wire(self._http_stats, has_clients=False)}

    @property
    def remote_servers(self) -> list[RemoteServer]:
        """The remote Event Servers that are relayed to, or followed."""
        if isinstance(self.core, RelayCore):
            return [self.core]
        of_group = () if self._monitor is None else self._monitor.replications
        return [*self._replications, *of_group]

    @property
    def controls(self) -> list[ControlServer]:
        """Where requests of operators are answered."""
        of_store = self.backend.control if isinstance(self.backend, RocksDbBackend) else None
        return [i for i in (of_store, self._control) if i is not None]

    async def prepare(self, wanted: configs.GatewayConfig) -> Prepared:
        """Read and check everything that another configuration replaces; replaces nothing."""
        return await asyncio.to_thread(self._prepare, self.config, self.access, wanted)

    def _prepare(
        self, running: configs.GatewayConfig, before: access.Access, wanted: configs.GatewayConfig
    ) -> Prepared:
        """What a reload needs. Any thread; blocks."""
        config = configs.taken_on(running, wanted)
        made = access.create(config, self._checks, (running, before), wanted)
        changed = set(configs.differences(running, config))
        contents = before.contents
        changed |= {i for i in made.contents if i in contents and contents[i] != made.contents[i]}
        needs_restart = sorted(configs.differences(config, wanted))
        return Prepared(config, made, sorted(changed), needs_restart)

    async def use(self, prepared: Prepared) -> None:
        """Replace what was prepared, last; nothing else may be prepared meanwhile.

        New connections have the new certificates and clients at once; see ``ClientService.reload``
        for those that are there, and remote servers when they are connected to the next time.
        Raises ControlError if the gateway is stopping.
        """
        if not self.is_open:
            raise ControlError("the gateway is stopping")
        before, self.config = self.config, prepared.config
        schemas, self.access = self.access.schemas, prepared.access
        made = prepared.access
        for key, connector in self._connectors.items():
            connector.connect = made.connects[key]
        if self.rsb is not None and (core := self.config.event_core) and core.rsb is not None:
            self.rsb.max_event_types = core.rsb.max_event_types
        servers = {"mariner": self.mariner, _EVENTER: self.eventer_server}
        for key, listener in servers.items():
            if listener is not None:
                await listener.reload(made.authenticators[key], made.contexts.get(key))
        self._checks.forget()
        if schemas is not made.schemas:
            await schemas.async_close()  # checks under way are repeated with the new ones
        await self._retain(before)

    async def _retain(self, before: configs.GatewayConfig) -> None:
        if self.config.event_core is None or before.event_core is None:
            return
        backend = self.config.event_core.backend
        if isinstance(backend, configs.DummyConfig) or backend == before.event_core.backend:
            return
        if isinstance(self.backend, RocksDbBackend):
            await self.backend.retain(backend.retention)

    def _connector(self, key: str) -> access.Connector:
        found = self._connectors[key] = access.Connector(self.access.connects[key])
        return found

    async def _start(self) -> None:
        config = self.config
        self._log_limits()
        metrics = Metrics()
        self._observe_query = metrics.observe_query
        if config.traces is not None:
            tracing = self._tracing = Tracing(config.traces, config.name)

            def observe(params: QueryParams, seconds: float) -> None:
                metrics.observe_query(params, seconds)
                tracing.observe_query(params, seconds)

            self._observe_query = observe
        if config.eventer is not None:
            remote = config.eventer
            self.core = relay.RelayCore(f"{remote.host}:{remote.port}", self._connector("eventer"))
            self._own(self.core, "relay")
        else:
            assert config.event_core is not None
            self.core = await self._embed(config.event_core, metrics)
        core = self.core
        if self._tracing is not None and isinstance(core, engine.Engine):
            core.add_observer(self._tracing, persisted=False)
        self.mariner = await server.listen(
            core,
            self.access.authenticators["mariner"],
            config.mariner.host,
            config.mariner.port,
            tls_context=self.access.contexts.get("mariner"),
            admission=self._admission,
            observe_query=self._observe_query,
        )
        self._own(self.mariner, "mariner server")
        metrics.registry.register(CountsCollector(self))
        self.async_group.spawn(metrics.watch_loop)
        self._registrations = RegistrationsAudit(
            lambda: self.accounts,
            lambda: self.config.audit is not None and self.config.audit.registrations,
        )
        self.async_group.spawn(self._registrations.run)
        if config.http is not None:
            from mariner.gateway import http  # noqa: PLC0415  # slow to import

            self.http = await http.listen(
                core,
                metrics.registry,
                config.http.host,
                config.http.port,
                admission=self._admission,
                stats=self._http_stats,
            )
            self._own(self.http, "http server")
        if config.control is not None:
            self._control = await self._listen_to_operators(config.control)
        handlers = {
            of.REQUEST: functools.partial(of.answer, self)
            for of in (connection_requests, group_requests)
        }
        if self.core.cursors is not None:
            answer = functools.partial(cursor_requests.answer, self.core.cursors)
            handlers[cursor_requests.REQUEST] = answer
        for control in self.controls:
            for name, handler in handlers.items():
                control.handle(name, handler)

    async def _listen_to_operators(self, path: Path) -> ControlServer:
        try:
            control = await control_server.listen(path)
        except OSError as e:
            raise OSError(e.errno, f"{path}: {e.strerror}") from e
        core = self.config.event_core
        if core is not None and isinstance(core.backend, configs.RocksDbConfig):
            control.store = core.backend.path
        self._own(control, "control socket")
        return control

    def _log_limits(self) -> None:
        found = self._descriptors
        level = logging.INFO if found.are_enough else logging.WARNING
        extra = {
            "open_files": found.limit,
            "max_clients": found.bounds.known,
            "max_connections_before_init": found.bounds.new,
        }
        mlog.log(level, "limit of open files", extra=extra)

    async def _embed(self, config: configs.CoreConfig, metrics: Metrics) -> engine.Engine:
        backend = self.backend = await _create_backend(
            config, metrics, config.server_id if self._accept_loss else None
        )
        self._own(backend, "backend")
        core = self._engine = _create_engine(config, backend)
        self._own(core, "engine")
        if config.monitor is None and config.group is None:
            await core.start()
        else:  # it answers clients before it is active
            await core.read_histories()
        for index, remote in enumerate(config.replication):
            connector = self._connector(f"event_core.replication[{index}]")
            part = replication.Replication(core, remote.server_id, connector)
            self._own(part, f"replication of server {remote.server_id}")
            self._replications.append(part)
        if config.eventer_server is not None:
            listener = config.eventer_server
            self.eventer_server = await eventer_server.listen(
                core,
                chatter.Address(listener.host, listener.port, listener.tls is not None),
                self.access.authenticators[_EVENTER],
                tls=self.access.contexts.get(_EVENTER),
                admission=self._admission,
                observe_query=self._observe_query,
            )
            self._own(self.eventer_server, "eventer server")
        if config.monitor is not None:
            self._monitor = self._join(config, config.monitor, core)
            self._own(self._monitor, "monitor")
        if config.group is not None:
            self.member = self._follow(config.group, core)
            self._own(self.member, "member of the group")
        if config.rsb is not None:
            self.rsb = await rsb_bridge.create(
                core,
                self._rsb_settings(config.rsb),
                admission=self._admission,
                observe_times=metrics.rsb.observe,
            )
            self._own(self.rsb, "RSB bridge")
        return core

    def _join(
        self, config: configs.CoreConfig, group: configs.MonitorConfig, core: engine.Engine
    ) -> "Monitor":
        # slow to import, and few gateways have a monitor
        from eventer_bridge.remote import monitor  # noqa: PLC0415

        assert config.eventer_server is not None
        assert self.eventer_server is not None
        token = tokens.read_own(config.eventer_server.token, f"{_EVENTER}.token")
        address = self.eventer_server.address
        member = monitor.Member(self.config.name, group.group, address, token)
        at = chatter.Address(group.host, group.port)
        return monitor.Monitor(core, at, member, self._replications, accepts_loss=self._accept_loss)

    def _follow(self, config: configs.GroupConfig, core: engine.Engine) -> "GroupMember":
        # asyncpg is an extra
        from eventer_bridge.group.postgresql import PostgresqlLog  # noqa: PLC0415

        assert isinstance(self.backend, MemberBackend)
        log = PostgresqlLog(
            config.log, config.name, config.takeover_s, unreplicated=config.unreplicated
        )
        self._own(log, "log of the group")
        return GroupMember(
            core,
            self.backend,
            log,
            config.member,
            takeover_s=config.takeover_s,
            keep_s=config.keep,
        )

    def _rsb_settings(self, config: configs.RsbConfig) -> rsb_bridge.BridgeSettings:
        return rsb_bridge.BridgeSettings(
            config.host,
            config.port,
            is_server=config.mode == "server",
            scopes_in=tuple(parse_scope(scope) for scope in config.scopes_in),
            scopes_out=tuple(parse_scope(scope) for scope in config.scopes_out),
            prefix=config.prefix,
            name=self.config.name,
            max_event_types=config.max_event_types,
        )

    def _own(self, part: Resource, name: str) -> None:
        self._parts.append((name, part))
        self.async_group.spawn(self._watch, part, name)

    async def _watch(self, part: Resource, name: str) -> None:
        await part.wait_closing()
        if self.is_open:
            self.failed = name
            mlog.error("part of the gateway closed unexpectedly", extra={"part": name})
            self.close()

    async def _stop(self) -> None:
        if self._engine is not None:
            # clients are notified, and their requests answered, before they are closed
            try:
                async with asyncio.timeout(limits.STOP_TIMEOUT_S):
                    if self._monitor is not None:  # it would start the engine again
                        self.waits_for = "monitor"
                        await self._monitor.async_close()
                    if self.member is not None:  # likewise
                        self.waits_for = "member of the group"
                        await self.member.async_close()
                    self.waits_for = "engine"
                    await self._engine.stop(is_last=True)
            except TimeoutError:
                mlog.error("sessions did not end", extra={"timeout_s": limits.STOP_TIMEOUT_S})
            except EventerBridgeError as e:  # the rest ends all the same
                mlog.error("engine did not stop", extra={"reason": str(e)})
        for name, part in reversed(self._parts):
            self.waits_for = name
            await part.async_close()
        if self._registrations is not None:
            self._registrations.write()
        self.waits_for = "schema checks"
        await self.access.schemas.async_close()
        self.waits_for = "token checks"
        await self._checks.async_close()
        if self._tracing is not None:
            self.waits_for = "traces"
            await self._tracing.async_close()
        self.waits_for = "threads"


def _create_engine(config: configs.CoreConfig, backend: Backend) -> engine.Engine:
    confs = config.backend.conditions
    return engine.Engine(
        backend,
        config.server_id,
        config.modules,
        Conditions(confs) if confs else None,
        config.cursors.hold_retention,
        is_in_pair=config.monitor is not None,
    )


async def _create_backend(
    config: configs.CoreConfig, metrics: Metrics, accept_loss_of: int | None
) -> Backend:
    match backend := config.backend:
        case configs.DummyConfig():
            return dummy.DummyBackend()
        case configs.MemoryConfig():
            return await rocksdb.create_temporary(
                backend.retention, key_retention=backend.request_keys
            )
        case configs.RocksDbConfig() if config.group is not None:
            return await create_member(
                backend.path,
                on_commit=metrics.on_commit,
                retention=backend.retention,
                key_retention=backend.request_keys,
            )
        case configs.RocksDbConfig():
            return await rocksdb.create(
                backend.path,
                on_commit=metrics.on_commit,
                retention=backend.retention,
                key_retention=backend.request_keys,
                accept_loss_of=accept_loss_of,
            )
