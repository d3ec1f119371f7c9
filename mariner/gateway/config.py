"""Configuration of the gateway, as ``schemas/gateway.yaml`` describes it.

``config_file`` reads one and checks it, ``config_check`` checks the files that it names.
"""

import ssl
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

import msgspec

from eventer_bridge import limits as core_limits
from eventer_bridge import tls
from eventer_bridge.backends.request_keys import KeyRetention
from eventer_bridge.backends.retention import RetentionRule
from eventer_bridge.core.quotas import ClientQuota
from eventer_bridge.core.rights import ClientConfig
from eventer_bridge.core.tokens import TokenConfig, TokenSource, without_token
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
    rsb: RsbConfig | None = None


class HttpConfig(msgspec.Struct, frozen=True):
    """Where health and metrics are served."""

    host: str = "127.0.0.1"
    port: int = DEFAULT_HTTP_PORT


class GatewayConfig(msgspec.Struct, frozen=True):
    """A whole configuration; it has either ``event_core`` or ``eventer``.

    ``log`` is for ``logging.config.dictConfig``. ``control`` is a socket for requests of operators,
    besides the one that a store has. ``quota`` is for what clients' own quotas do not say;
    ``audit`` turns the audit trail on, ``traces`` those of OpenTelemetry.
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
    """TLS of a listener.

    Raises:
        ConfigurationError: a file is missing or invalid.
    """
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
