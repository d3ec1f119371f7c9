"""Finds what lets strangers in, in a configuration that can be used.

The findings have keys, names and files, never a token.
"""

import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from eventer_bridge.core.rights import ClientConfig
from mariner.gateway.config import EventerServerConfig, GatewayConfig, TlsConfig


def audit(path: Path, config: GatewayConfig) -> list[str]:
    """The findings about a configuration.

    Args:
        path: its file.
        config: its content.

    Returns:
        Lines, each of which begins with the file; empty if there are no findings.
    """
    found = [*_client_findings("clients", config.clients, config.mariner.tls)]
    server = None if config.event_core is None else config.event_core.eventer_server
    if server is not None:
        found += _eventer_findings("event_core.eventer_server", server)
    if _has_tokens(config) and (mode := _open_mode(path)):
        found.append(f"has tokens, and others than its owner can read it: mode {mode}")
    listeners = {"mariner": config.mariner, "event_core.eventer_server": server}
    for key, listener in listeners.items():
        if listener and listener.tls and (mode := _open_mode(listener.tls.key)):
            found.append(
                f"{key}.tls.key: {listener.tls.key}: others than its owner can read it: mode {mode}"
            )
    return [f"{path}: {line}" for line in found]


def _eventer_findings(key: str, server: EventerServerConfig) -> Iterator[str]:
    if server.clients is not None:
        yield from _client_findings(f"{key}.clients", server.clients, server.tls)
    elif server.token is None:
        yield f"{key}.token: null: {_whoever(server.tls, 'connects')} may do everything"


def _client_findings(
    key: str, clients: Iterable[ClientConfig], tls: TlsConfig | None
) -> Iterator[str]:
    for index, client in enumerate(clients):
        if client.token is None and client.certificate is None:
            who = _whoever(tls, f"gives the name {client.name!r}")
            yield f"{key}[{index}].token: null, and no certificate: {who} has its rights"


def _whoever(tls: TlsConfig | None, does: str) -> str:
    if tls is None or tls.client_ca is None:
        return f"whoever {does}"
    return f"whoever {does}, with any certificate of client_ca,"


def _has_tokens(config: GatewayConfig) -> bool:
    tokens = [client.token for client in config.clients]
    if config.eventer is not None:
        tokens.append(config.eventer.token)
    if (core := config.event_core) is not None:
        tokens += [remote.token for remote in core.replication]
        if (server := core.eventer_server) is not None:
            tokens += [server.token, *(client.token for client in server.clients or ())]
    return any(token is not None for token in tokens)


def _open_mode(file: Path) -> str | None:
    """The mode of a file that too many users can read; None: it is fine.

    Its group may read it if that is how we read it (root:mariner, 0640).
    """
    status = file.stat()
    mode = stat.S_IMODE(status.st_mode)
    is_owner = status.st_uid == os.geteuid()
    is_open = mode & stat.S_IROTH or (mode & stat.S_IRGRP and is_owner)
    return f"{mode:04o}" if is_open else None
