"""What a new configuration changes: what a running gateway takes on, and what takes a restart.

A reload replaces certificates and keys, CAs, revocation lists, clients with their rights, tokens
and quotas, payload schemas, retention, ``audit`` and ``log``. Everything else stays as it was at
the start: addresses, whether there is TLS, the store, modules, conditions, and which servers there
are.
"""

from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from eventer_bridge.core.rights import ClientConfig
from mariner.gateway.config import (
    BackendConfig,
    CoreConfig,
    DummyConfig,
    EventerServerConfig,
    GatewayConfig,
    ListenConfig,
    RemoteConfig,
)

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
    if server is not None and wanted.eventer_server is not None:
        # the other servers of a group were told the token
        token = server.token if running.monitor is not None else wanted.eventer_server.token
        server = replace(
            _listener(server, wanted.eventer_server),
            token=token,
            clients=wanted.eventer_server.clients,
            quota=wanted.eventer_server.quota,
        )
    if [_address(i) for i in replication] == [_address(i) for i in wanted.replication]:
        pairs = zip(replication, wanted.replication, strict=True)
        replication = tuple(_remote(i, j) for i, j in pairs)
    if rsb is not None and wanted.rsb is not None:
        rsb = replace(rsb, max_event_types=wanted.rsb.max_event_types)
    return replace(
        running,
        backend=_backend(running.backend, wanted.backend),
        eventer_server=server,
        replication=replication,
        rsb=rsb,
    )


def _address(remote: Any) -> tuple[int, str, int]:
    return remote.server_id, remote.host, remote.port


def _backend(running: BackendConfig, wanted: BackendConfig) -> BackendConfig:
    if isinstance(running, DummyConfig) or isinstance(wanted, DummyConfig):
        return running
    return replace(running, retention=wanted.retention)
