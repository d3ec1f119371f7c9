"""What lets clients and servers in: everything that is made of secrets, certificates and rights.

A gateway has one :class:`Access` at a time. It is made as a whole, with all files read and checked,
before anything of it is used, at the start as well as by a reload.
"""

import functools
import hashlib
import ssl
from collections.abc import Awaitable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from msgspec.structs import replace

from eventer_bridge import chatter, tls
from eventer_bridge import limits as core_limits
from eventer_bridge.core import tokens
from eventer_bridge.core.authentication import Authenticator, OneForAll
from eventer_bridge.core.payload_schemas import PayloadSchemas
from eventer_bridge.core.tokens import ScryptChecks
from eventer_bridge.errors import ConfigurationError
from eventer_bridge.eventer import client
from eventer_bridge.eventer.client import ConnectCb
from eventer_bridge.resources import read_regular
from mariner import limits
from mariner.gateway import config as configs
from mariner.gateway import config_check
from mariner.gateway.config import EventerServerConfig, GatewayConfig


class Access(NamedTuple):
    """Made by :func:`create`; all by their keys in the configuration, except ``schemas``.

    ``authenticators`` and ``contexts`` are the listeners', ``connects`` are to remote servers.
    ``contents`` tell whether a file or token has changed.
    """

    schemas: PayloadSchemas
    authenticators: Mapping[str, Authenticator]
    contexts: Mapping[str, ssl.SSLContext]
    connects: Mapping[str, ConnectCb]
    expiries: Mapping[str, datetime]
    contents: Mapping[str, object]


class Connector:
    """Connects to a remote server, as the configuration in use says: ``connect`` is replaced."""

    def __init__(self, connect: ConnectCb) -> None:
        self.connect = connect

    def __call__(self, **arguments: Any) -> Awaitable[client.EventerClient]:
        """See ``ConnectCb``."""
        return self.connect(**arguments)


def create(
    config: GatewayConfig,
    checks: ScryptChecks,
    before: tuple[GatewayConfig, Access] | None = None,
    wanted: GatewayConfig | None = None,
) -> Access:
    """Read and check all files that a configuration names, again if they are replaced meanwhile.

    Schemas that are in use (``before``) are kept if they are the same; ``wanted``, what the next
    restart takes, is checked as well. Raises ConfigurationError. Any thread; blocks.
    """
    for _ in range(limits.MAX_READS_OF_FILES):
        contents = contents_of(config)
        try:
            if wanted is not None:
                config_check.check(wanted)
            access = _create(config, checks, before, contents)
        except ConfigurationError:
            if contents_of(config) == contents:
                raise
        else:
            if contents_of(config) == contents:
                return access
    raise ConfigurationError("certificates or tokens were replaced again while they were read")


def _create(
    config: GatewayConfig,
    checks: ScryptChecks,
    before: tuple[GatewayConfig, Access] | None,
    contents: Mapping[str, object],
) -> Access:
    if before is not None and before[0].schemas == config.schemas:
        schemas = before[1].schemas
    else:
        schemas = PayloadSchemas(config.schemas)
    contexts: dict[str, ssl.SSLContext] = {}
    authenticators: dict[str, Authenticator] = {}
    for key, listener in configs.listeners(config).items():
        crl = None if listener.tls is None else listener.tls.crl
        revoked = [] if crl is None else tls.read_crl(crl)
        if listener.tls is not None:
            contexts[key] = configs.server_context(listener.tls)
        eventer = listener if isinstance(listener, EventerServerConfig) else None
        clients = config.clients if eventer is None else eventer.clients
        if eventer is not None and clients is None:
            quota = eventer.quota.over(config.quota)
            authenticators[key] = OneForAll(eventer.token, quota, checks, revoked)
        else:
            own = [replace(i, quota=i.quota.over(config.quota)) for i in clients or ()]
            authenticators[key] = Authenticator(own, schemas, checks, revoked)
    core = config.event_core
    name = f"mariner/{config.name}" if core is None else f"event/{core.server_id}"
    connects = {
        key: _connect_to(key, remote, name) for key, remote in configs.remotes(config).items()
    }
    return Access(schemas, authenticators, contexts, connects, configs.expiries(config), contents)


def _connect_to(key: str, remote: configs.RemoteConfig, client_name: str) -> ConnectCb:
    address = chatter.Address(remote.host, remote.port, remote.tls is not None)
    context = None
    if remote.tls is not None:
        context = tls.client_context(remote.tls.ca, remote.tls.cert, remote.tls.key)
    return functools.partial(
        client.connect,
        address,
        client_name,
        client_token=tokens.read_own(remote.token, f"{key}.token"),
        keeps_bounds=True,
        tls=context,
    )


def contents_of(config: GatewayConfig) -> dict[str, object]:
    """What tells whether a file or token has changed, by its key. Any thread; blocks."""
    files = configs.tls_files(config)
    found: dict[str, object] = {key: _digest(file) for key, file in files.items()}
    for key, listener in configs.listeners(config).items():
        of_all, clients, of_each = None, config.clients, "clients"
        if isinstance(listener, EventerServerConfig):
            of_all, clients, of_each = listener.token, listener.clients or (), f"{key}.clients"
        of_clients = {f"{of_each}[{client.name}].token": client.token for client in clients}
        for token_key, token in {f"{key}.token": of_all, **of_clients}.items():
            try:
                found[token_key] = tokens.read(token, token_key)
            except ConfigurationError as e:
                found[token_key] = str(e)
    for key, remote in configs.remotes(config).items():
        try:
            found[f"{key}.token"] = tokens.digest_of_own(remote.token)
        except ConfigurationError as e:
            found[f"{key}.token"] = str(e)
    return found


def _digest(file: Path) -> bytes | None:
    try:
        return hashlib.sha256(read_regular(file, core_limits.MAX_PEM_FILE_BYTES)).digest()
    except OSError:
        return None
