"""Configuration of the gateway, as ``schemas/gateway.yaml`` describes it.

``config_file`` reads one and checks it, ``config_check`` checks the files that it names. A reload
replaces certificates and keys, CAs, revocation lists, clients with their rights, tokens and quotas,
payload schemas, retention, ``audit`` and ``log`` (:func:`taken_on`). Everything else stays as it
was at the start: addresses, whether there is TLS, the store, modules, conditions, and which servers
there are.
"""

import socket
import ssl
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, TypeVar

import msgspec
from msgspec.structs import replace

from eventer_bridge import limits as core_limits
from eventer_bridge import tls
from eventer_bridge.backends.request_keys import KeyRetention
from eventer_bridge.backends.retention import RetentionRule
from eventer_bridge.core.quotas import ClientQuota
from eventer_bridge.core.rights import ClientConfig
from eventer_bridge.core.tokens import TokenConfig, TokenSource, without_token
from eventer_bridge.group.dsn import PostgresqlConfig
from eventer_bridge.model import EventType
from mariner.gateway.logs.audit import AuditConfig
from mariner.gateway.tracing import TracesConfig

DEFAULT_HTTP_PORT: Final = 23080


class TlsConfig(msgspec.Struct, frozen=True):
    """TLS of a listener; with ``client_ca`` clients need a certificate of that CA.

    Certificates on the revocation list ``crl`` are refused.
    """

    cert: Path
    key: Path
    client_ca: Path | None = None
    crl: Path | None = None


class ListenConfig(msgspec.Struct, frozen=True):
    """Where Mariner clients connect."""

    host: str
    port: int
    tls: TlsConfig | None = None


class DummyConfig(msgspec.Struct, frozen=True, tag_field="type", tag="dummy"):
    """Nothing is stored: events are only distributed."""

    conditions: tuple[dict[str, Any], ...] = ()


class MemoryConfig(msgspec.Struct, frozen=True, tag_field="type", tag="memory"):
    """A store that lives as long as the process."""

    conditions: tuple[dict[str, Any], ...] = ()
    retention: tuple[RetentionRule, ...] = ()
    request_keys: KeyRetention = KeyRetention()


class RocksDbConfig(msgspec.Struct, frozen=True, tag_field="type", tag="rocksdb"):
    """A durable store; ``path`` is its directory."""

    path: Path
    conditions: tuple[dict[str, Any], ...] = ()
    retention: tuple[RetentionRule, ...] = ()
    request_keys: KeyRetention = KeyRetention()


BackendConfig: TypeAlias = DummyConfig | MemoryConfig | RocksDbConfig


class ClientTlsConfig(msgspec.Struct, frozen=True):
    """TLS to a remote server: the CA that verifies it, and our own certificate."""

    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None


class RemoteConfig(msgspec.Struct, frozen=True):
    """A remote Event Server."""

    host: str
    port: int
    token: str | TokenSource | None = None
    tls: ClientTlsConfig | None = None

    def __repr__(self) -> str:
        return without_token(self, "token")


class ReplicationConfig(RemoteConfig, frozen=True, kw_only=True):
    """A remote Event Server whose events are also kept here."""

    server_id: int


class EventerServerConfig(msgspec.Struct, frozen=True):
    """Where Eventer clients connect; ``clients`` has the rights of each, by its name.

    Without ``clients``, ``quota`` is that of all of them together.
    """

    host: str
    port: int
    token: TokenConfig = None
    tls: TlsConfig | None = None
    clients: tuple[ClientConfig, ...] | None = None
    quota: ClientQuota = ClientQuota()

    def __repr__(self) -> str:
        return without_token(self, "token")


class MonitorConfig(msgspec.Struct, frozen=True):
    """Where the Monitor Server listens, and the group that this server belongs to."""

    host: str
    port: int
    group: str


class GroupConfig(msgspec.Struct, frozen=True):
    """The commit log of a group, and this gateway in it; ``keep`` is in seconds."""

    log: PostgresqlConfig
    name: str
    member: str = msgspec.field(default_factory=socket.gethostname)
    takeover_s: float = 5.0
    keep: float = 7 * 86_400.0
    unreplicated: bool = False


class RsbConfig(msgspec.Struct, frozen=True):
    """The RSB bus; events on ``scopes_in`` are registered, those on ``scopes_out`` sent."""

    host: str
    port: int
    mode: Literal["server", "client"]
    scopes_in: tuple[str, ...] = ()
    scopes_out: tuple[str, ...] = ()
    prefix: EventType = ("rsb",)
    max_event_types: int = core_limits.MAX_CLIENT_EVENT_TYPES


class CursorsConfig(msgspec.Struct, frozen=True):
    """How long retention keeps events that a cursor is behind of, at most."""

    hold_retention: float = 0.0


class CoreConfig(msgspec.Struct, frozen=True):
    """The embedded event server."""

    server_id: int
    backend: BackendConfig
    cursors: CursorsConfig = CursorsConfig()
    modules: tuple[dict[str, Any], ...] = ()
    eventer_server: EventerServerConfig | None = None
    replication: tuple[ReplicationConfig, ...] = ()
    monitor: MonitorConfig | None = None
    group: GroupConfig | None = None
    rsb: RsbConfig | None = None


class HttpConfig(msgspec.Struct, frozen=True):
    """Where health and metrics are served."""

    host: str = "127.0.0.1"
    port: int = DEFAULT_HTTP_PORT


class GatewayConfig(msgspec.Struct, frozen=True):
    """A whole configuration; it has either ``event_core`` or ``eventer``.

    ``log`` is for ``logging.config.dictConfig``. ``control`` is a socket besides the one that a
    store has. ``quota`` is for what clients' own quotas do not say.
    """

    name: str
    mariner: ListenConfig
    clients: tuple[ClientConfig, ...]
    event_core: CoreConfig | None = None
    eventer: RemoteConfig | None = None
    schemas: tuple[dict[str, Any], ...] = ()
    http: HttpConfig | None = None
    control: Path | None = None
    quota: ClientQuota = ClientQuota()
    audit: AuditConfig | None = None
    traces: TracesConfig | None = None
    log: dict[str, Any] | None = None


def server_context(listener: TlsConfig) -> ssl.SSLContext:
    """TLS of a listener; raises ConfigurationError."""
    return tls.server_context(listener.cert, listener.key, listener.client_ca, listener.crl)


def listeners(config: GatewayConfig) -> dict[str, ListenConfig | EventerServerConfig]:
    """The listeners that may have TLS, by their keys."""
    found: dict[str, ListenConfig | EventerServerConfig] = {"mariner": config.mariner}
    if config.event_core is not None and config.event_core.eventer_server is not None:
        found["event_core.eventer_server"] = config.event_core.eventer_server
    return found


def remotes(config: GatewayConfig) -> dict[str, RemoteConfig]:
    """The remote servers, by their keys."""
    if config.eventer is not None:
        return {"eventer": config.eventer}
    several = () if config.event_core is None else config.event_core.replication
    return {f"event_core.replication[{index}]": remote for index, remote in enumerate(several)}


def client_tokens(config: GatewayConfig) -> dict[str, TokenConfig]:
    """The tokens of clients, by their keys."""
    found = {f"clients[{i}].token": client.token for i, client in enumerate(config.clients)}
    core = config.event_core
    if core is not None and core.eventer_server is not None:
        key = "event_core.eventer_server"
        found[f"{key}.token"] = core.eventer_server.token
        for i, client in enumerate(core.eventer_server.clients or ()):
            found[f"{key}.clients[{i}].token"] = client.token
    return found


def tls_files(config: GatewayConfig) -> dict[str, Path]:
    """Files for TLS by their keys, as ``mariner.tls.cert``."""
    places = {**listeners(config), **remotes(config)}
    return {
        f"{key}.tls.{name}": file
        for key, place in places.items()
        if place.tls is not None
        for name, file in msgspec.structs.asdict(place.tls).items()
        if file is not None
    }


_EXPIRY: Final[Mapping[str, Callable[[Path], datetime | None]]] = {
    "cert": tls.expiry,
    "ca": tls.ca_expiry,
    "client_ca": tls.ca_expiry,
    "crl": tls.crl_expiry,
}


_BEGINNING: Final[Mapping[str, Callable[[Path], datetime]]] = {
    "cert": tls.beginning,
    "ca": tls.ca_beginning,
    "client_ca": tls.ca_beginning,
    "crl": tls.crl_beginning,
}


def beginnings(config: GatewayConfig) -> dict[str, datetime]:
    """As :func:`expiries`: before these moments, nobody accepts them."""
    return {
        key: read(file)
        for key, file in tls_files(config).items()
        if (read := _BEGINNING.get(key.rpartition(".")[2])) is not None
    }


def expiries(config: GatewayConfig) -> dict[str, datetime]:
    """Moments by keys, as ``mariner.tls.cert``; reads the files, and raises ConfigurationError.

    A CA that expired or a revocation list that is out of date keeps every client out, as a
    certificate does.
    """
    found: dict[str, datetime] = {}
    for key, file in tls_files(config).items():
        read = _EXPIRY.get(key.rpartition(".")[2])
        if read is not None and (moment := read(file)) is not None:
            found[key] = moment
    return found


# --- what a new configuration changes -----------------------------------------------------


ListenerT = TypeVar("ListenerT", ListenConfig, EventerServerConfig)
RemoteT = TypeVar("RemoteT", bound=RemoteConfig)


def taken_on(running: GatewayConfig, wanted: GatewayConfig) -> GatewayConfig:
    """What runs after a reload: ``wanted``, except for what takes a restart."""
    eventer, core = running.eventer, running.event_core
    if eventer is not None and wanted.eventer is not None:
        eventer = _remote(eventer, wanted.eventer)
    if core is not None and wanted.event_core is not None:
        core = _core(core, wanted.event_core)
    return replace(
        running,
        clients=wanted.clients,
        schemas=wanted.schemas,
        log=wanted.log,
        quota=wanted.quota,
        audit=wanted.audit,
        mariner=_listener(running.mariner, wanted.mariner),
        eventer=eventer,
        event_core=core,
    )


def differences(before: Any, after: Any, key: str = "") -> Iterator[str]:
    """Keys whose values differ, as ``mariner.port`` or ``clients[app].token``; no values."""
    if before == after:
        return
    if isinstance(before, msgspec.Struct) and type(before) is type(after):
        for name in before.__struct_fields__:
            place = f"{key}.{name}" if key else name
            yield from differences(getattr(before, name), getattr(after, name), place)
    elif _are(before, ClientConfig) and _are(after, ClientConfig):
        yield from _clients(before, after, key)
    elif _are(before, RemoteConfig) and _are(after, RemoteConfig) and len(before) == len(after):
        for index, (i, j) in enumerate(zip(before, after, strict=True)):
            yield from differences(i, j, f"{key}[{index}]")
    else:
        yield key


def _clients(
    before: Sequence[ClientConfig], after: Sequence[ClientConfig], key: str
) -> Iterator[str]:
    old, new = ({client.name: client for client in clients} for clients in (before, after))
    for name in old | new:
        place = f"{key}[{name}]"
        if name not in new:
            yield f"{place}: removed"
        elif name not in old:
            yield f"{place}: added"
        else:
            yield from differences(old[name], new[name], place)


def _are(value: Any, kind: type[Any]) -> bool:
    return isinstance(value, tuple) and all(isinstance(i, kind) for i in value)


def _listener(running: ListenerT, wanted: ListenerT) -> ListenerT:
    if running.tls is None or wanted.tls is None:
        return running
    return replace(running, tls=wanted.tls)


def _remote(running: RemoteT, wanted: RemoteT) -> RemoteT:
    changed = replace(running, token=wanted.token)
    if running.tls is not None and wanted.tls is not None:
        changed = replace(changed, tls=wanted.tls)
    return changed


def _core(running: CoreConfig, wanted: CoreConfig) -> CoreConfig:
    server, replication, rsb = running.eventer_server, running.replication, running.rsb
    backend, other = running.backend, wanted.backend
    if not isinstance(backend, DummyConfig) and not isinstance(other, DummyConfig):
        backend = replace(backend, retention=other.retention)
    if server is not None and wanted.eventer_server is not None:
        # the other servers of a group were told the token
        token = server.token if running.monitor is not None else wanted.eventer_server.token
        server = replace(
            _listener(server, wanted.eventer_server),
            token=token,
            clients=wanted.eventer_server.clients,
            quota=wanted.eventer_server.quota,
        )
    old, new = (
        [(i.server_id, i.host, i.port) for i in several]
        for several in (replication, wanted.replication)
    )
    if old == new:
        pairs = zip(replication, wanted.replication, strict=True)
        replication = tuple(_remote(i, j) for i, j in pairs)
    if rsb is not None and wanted.rsb is not None:
        rsb = replace(rsb, max_event_types=wanted.rsb.max_event_types)
    return replace(
        running,
        backend=backend,
        eventer_server=server,
        replication=replication,
        rsb=rsb,
    )
