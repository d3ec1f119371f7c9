"""Finds what lets strangers in, or soon keeps everybody out, in a configuration that can be used.

The findings have keys, names and files, never a token.
"""

import os
import stat
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path

from eventer_bridge.core import tokens
from eventer_bridge.core.rights import ClientConfig
from eventer_bridge.core.tokens import TokenConfig
from mariner import limits
from mariner.gateway.config import (
    EventerServerConfig,
    GatewayConfig,
    TlsConfig,
    client_tokens,
    listeners,
    remotes,
)
from mariner.gateway.expiries import expiries


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
        found.append(f"has tokens, and users other than its owner can read it: mode {mode}")
    for key, token in client_tokens(config).items():
        found += _token_findings(key, token)
    for key, file in _secret_files(config):
        if mode := _open_mode(file):
            found.append(f"{key}: {file}: users other than its owner can read it: mode {mode}")
    now = datetime.now(UTC)
    for key, moment in expiries(config).items():
        if (days := (moment - now).days) < limits.MIN_DAYS_LEFT:
            found.append(
                f"{key}: {days} {'day' if days == 1 else 'days'} left: good until {moment:%Y-%m-%d}"
            )
    return [f"{path}: {line}" for line in found]


def _token_findings(key: str, token: TokenConfig) -> Iterator[str]:
    found = tokens.read(token, key)
    for index, (source, i) in enumerate(zip(tokens.sources(token), found, strict=True)):
        place = f"{key}[{index}]" if len(found) > 1 else key
        if i.is_plain and source.value is not None:
            yield f"{place}: is a plain token, its hash is enough: mariner token hash"
        if i.is_expired:
            yield f"{place}: expired: {source.expires}"


def _secret_files(config: GatewayConfig) -> Iterator[tuple[str, Path]]:
    """Files of private keys and of tokens, with their keys."""
    for key, listener in listeners(config).items():
        if listener.tls is not None:
            yield f"{key}.tls.key", listener.tls.key
    for key, remote in remotes(config).items():
        if remote.tls is not None and remote.tls.key is not None:
            yield f"{key}.tls.key", remote.tls.key
    own = {f"{key}.token": remote.token for key, remote in remotes(config).items()}
    for key, token in {**client_tokens(config), **own}.items():
        for source in tokens.sources(token):
            if source.file is not None:
                yield f"{key}.file", source.file


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
    """Whether there is what tells a token, or helps to guess one, in the file itself."""
    of_clients = [i for key, token in client_tokens(config).items() for i in _in_file(key, token)]
    own = [i.value for remote in remotes(config).values() for i in tokens.sources(remote.token)]
    return any(of_clients) or any(own)


def _in_file(key: str, token: TokenConfig) -> Iterator[bool]:
    for source, found in zip(tokens.sources(token), tokens.read(token, key), strict=True):
        is_guessable = found.is_plain or found.hash.salt is not None
        yield is_guessable and source.value is not None


def _open_mode(file: Path) -> str | None:
    """The mode of a file that too many users can read; None: it is fine.

    Its group may read it if that is how we read it (root:mariner, 0640).
    """
    status = file.stat()
    mode = stat.S_IMODE(status.st_mode)
    is_owner = status.st_uid == os.geteuid()
    is_open = mode & stat.S_IROTH or (mode & stat.S_IRGRP and is_owner)
    return f"{mode:04o}" if is_open else None
