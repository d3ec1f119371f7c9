"""Looks at the files, directories and variables that a configuration names, and changes nothing.

:func:`check` refuses what cannot be used; :func:`audit` finds what lets strangers in, or keeps
clients out, now or soon, in a configuration that can. Nothing of it shows a token.
"""

import errno
import functools
import json
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import msgspec

from eventer_bridge import tls
from eventer_bridge.backends.rocksdb import database, directories
from eventer_bridge.core import payload_schemas, tokens
from eventer_bridge.core.rights import ClientConfig
from eventer_bridge.core.tokens import TokenConfig
from eventer_bridge.errors import ConfigurationError, StorageError
from eventer_bridge.group.dsn import PostgresqlConfig, require_driver
from eventer_bridge.resources import open_regular
from mariner import limits
from mariner.gateway import config as configs
from mariner.gateway import tracing
from mariner.gateway.config import GatewayConfig, TlsConfig, client_tokens, listeners, remotes
from mariner.gateway.config_problems import show
from mariner.gateway.logs.audit import AuditConfig


def check(config: GatewayConfig) -> None:
    """Check the files, directories and variables of the environment that a configuration names.

    Raises ConfigurationError with a line for each that is missing or does not fit.
    """
    problems: list[str] = []
    for key, look in _looks(config):
        try:
            look()
        except ConfigurationError as e:
            problems.append(str(e) if str(e).startswith(key) else f"{key}: {e}")
    if problems:
        raise ConfigurationError("\n".join(problems))


def _looks(config: GatewayConfig) -> Iterator[tuple[str, Callable[[], object]]]:
    """Keys with files or variables, and what reads them."""
    for key, listener in listeners(config).items():
        if listener.tls is not None:
            yield f"{key}.tls", functools.partial(configs.server_context, listener.tls)
    for key, remote in remotes(config).items():
        if (its := remote.tls) is not None:
            yield f"{key}.tls", functools.partial(tls.client_context, its.ca, its.cert, its.key)
        yield f"{key}.token", functools.partial(tokens.read_own, remote.token, f"{key}.token")
    yield "audit.file", functools.partial(_look_at_trail, config.audit)
    if config.control is not None:
        yield "control", functools.partial(_look_at_socket, config.control)
    if config.traces is not None:
        yield "traces", tracing.load_library
    for key, token in client_tokens(config).items():
        yield key, functools.partial(tokens.read, token, key)
    core = config.event_core
    if core is not None and isinstance(core.backend, configs.RocksDbConfig):
        yield "event_core.backend.path", functools.partial(_look_at_store, core.backend.path)
    if core is not None and core.monitor is not None and core.eventer_server is not None:
        # the other servers of the group present it
        key = "event_core.eventer_server.token"
        yield key, functools.partial(tokens.read_own, core.eventer_server.token, key)
    if core is not None and core.group is not None:
        yield "event_core.group", require_driver
        yield "event_core.group.log.password_file", core.group.log.password
        for name, file in core.group.log.files().items():
            yield f"event_core.group.log.dsn: {name}", functools.partial(_look_at_file, file)


def _look_at_file(path: Path) -> None:
    try:
        open_regular(path).close()
    except OSError as e:
        raise ConfigurationError(f"{path}: {e.strerror}") from None


def _look_at_trail(audit: AuditConfig | None) -> None:
    trail = None if audit is None else audit.file
    if trail is not None and (trail.is_dir() or not trail.parent.is_dir()):
        raise ConfigurationError(f"audit.file: {trail}: expected a file in an existing directory")


def _look_at_socket(path: Path) -> None:
    if path.is_dir() or not path.parent.is_dir():
        raise ConfigurationError(f"{path}: expected a socket in an existing directory")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise ConfigurationError(f"{path.parent}: {os.strerror(errno.EACCES)}")


def _look_at_store(path: Path) -> None:
    """Whether it is a directory, or can be made, as opening the store does."""
    absolute = path.absolute()
    there = next(i for i in (absolute, *absolute.parents) if os.path.lexists(i))
    if not there.is_dir():
        raise ConfigurationError(f"{path}: expected a directory: {there} is none")
    if not os.access(there, os.R_OK | os.W_OK | os.X_OK):
        raise ConfigurationError(f"{path}: {there}: {os.strerror(errno.EACCES)}")
    _try_to_write(path, there)
    if (path / "CURRENT").exists():
        for file in sorted(path.iterdir()):
            is_usable = not file.is_file() or os.access(file, os.R_OK | os.W_OK)
            if not is_usable and file.exists():  # not removed meanwhile
                raise ConfigurationError(f"{path}: {file}: {os.strerror(errno.EACCES)}")
        return
    try:
        directories.refuse_unfinished(path)
        directories.refuse_within_store(path)
        if there == absolute:
            database.refuse_strange_files(path)
    except StorageError as e:
        raise ConfigurationError(str(e)) from e


def _try_to_write(path: Path, there: Path) -> None:
    """Make a file without a name in a directory: it may be on a file system that is read-only."""
    try:
        os.close(os.open(there, os.O_TMPFILE | os.O_RDWR, 0o600))
    except OSError as e:
        if e.errno in _NOT_WRITABLE:  # not if it is full, or has no such files
            raise ConfigurationError(f"{path}: {there}: {e.strerror}") from None


_NOT_WRITABLE: Final = (errno.EACCES, errno.EPERM, errno.EROFS)


# --- findings -----------------------------------------------------------------------------


def audit(path: Path, config: GatewayConfig) -> list[str]:
    """The findings about a configuration and its file: lines that begin with the file."""
    found = [*_client_findings("clients", config.clients, config.mariner.tls)]
    found += _nobody_findings(config)
    found += _segment_findings(msgspec.to_builtins(config, enc_hook=str))
    server = None if config.event_core is None else config.event_core.eventer_server
    key = "event_core.eventer_server"
    if server is not None and server.clients is not None:
        found += _client_findings(f"{key}.clients", server.clients, server.tls)
    elif server is not None and server.token is None:
        who = _whoever(server.tls, "connects")
        found.append(f"{key}.token: null: {who} may do everything")
    if _has_tokens(config) and (mode := _open_mode(path)):
        found.append(f"has tokens, and users other than its owner can read it: mode {mode}")
    if (
        (log := _log_of_group(config)) is not None
        and log.has_password
        and (mode := _open_mode(path))
    ):
        found.append(f"has a password, and users other than its owner can read it: mode {mode}")
    for key, token in client_tokens(config).items():
        found += _token_findings(key, token)
    for key, file in _secret_files(config):
        if mode := _open_mode(file):
            found.append(f"{key}: {file}: users other than its owner can read it: mode {mode}")
    found += payload_schemas.unused_problems(config.schemas)
    found += _ca_findings(config)
    now = datetime.now(UTC)
    for key, moment in configs.beginnings(config).items():
        if moment > now:
            found.append(f"{key}: not valid yet: good from {moment:%Y-%m-%d %H:%M} UTC on")
    for key, moment in configs.expiries(config).items():
        if (days := (moment - now).days) < limits.MIN_DAYS_LEFT:
            found.append(
                f"{key}: {days} {'day' if days == 1 else 'days'} left: good until {moment:%Y-%m-%d}"
            )
    found += _store_findings(config)
    return [f"{path}: {line}" for line in found]


def _nobody_findings(config: GatewayConfig) -> Iterator[str]:
    """Of a gateway that nobody may connect to."""
    core = config.event_core
    server = None if core is None else core.eventer_server
    if not config.clients and server is None and (core is None or core.rsb is None):
        yield "clients: none: nobody can connect"
    if server is not None and server.clients == ():
        yield "event_core.eventer_server.clients: none: no Eventer client can connect"


def _segment_findings(data: Any, key: str = "") -> Iterator[str]:
    """Of types whose segments have slashes, in all ``subscriptions``."""
    if isinstance(data, Mapping):
        for name, value in data.items():
            place = f"{key}.{name}".removeprefix(".")
            if name == "subscriptions" and isinstance(value, list | tuple):
                yield from _slashes(place, value)
            elif name not in {"schemas", "log"}:
                yield from _segment_findings(value, place)
    elif isinstance(data, list | tuple):
        for index, value in enumerate(data):
            yield from _segment_findings(value, f"{key}[{index}]")


def _slashes(key: str, patterns: Iterable[Any]) -> Iterator[str]:
    for index, pattern in enumerate(patterns):
        is_type = isinstance(pattern, list | tuple)
        texts = [i for i in pattern if isinstance(i, str)] if is_type else []
        if with_slash := next((i for i in texts if "/" in i), None):
            several = json.dumps("/".join(texts).split("/"), ensure_ascii=False)
            yield (
                f"{key}[{index}]: {show(with_slash)}: is one segment of a type: several are written"
                f" as {several}"
            )


def _ca_findings(config: GatewayConfig) -> Iterator[str]:
    """Of authorities that nothing can be verified with."""
    for key, file in configs.tls_files(config).items():
        if key.endswith((".ca", ".client_ca")) and not tls.has_root(file):
            peer = "client" if key.endswith(".client_ca") else "server"
            yield (
                f"{key}: {file}: has only an intermediate authority: no {peer} can be verified"
                " without the root, which is self-signed"
            )


def _store_findings(config: GatewayConfig) -> Iterator[str]:
    core = config.event_core
    if core is None or not isinstance(core.backend, configs.RocksDbConfig):
        return
    path = core.backend.path
    ids = database.servers_with_ids(path) if (path / "CURRENT").exists() else set()
    if ids and core.server_id not in ids:
        servers = " and ".join(map(str, sorted(ids)))
        yield f"event_core.server_id: {core.server_id}: the store {path} is of server {servers}"


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
    for key, file in configs.tls_files(config).items():
        if key.endswith(".tls.key"):
            yield key, file
    own = {f"{key}.token": remote.token for key, remote in remotes(config).items()}
    for key, token in {**client_tokens(config), **own}.items():
        for source in tokens.sources(token):
            if source.file is not None:
                yield f"{key}.file", source.file
    if (log := _log_of_group(config)) is not None:
        if log.password_file is not None:
            yield "event_core.group.log.password_file", log.password_file
        if (key_file := log.files().get("sslkey")) is not None:
            yield "event_core.group.log.dsn: sslkey", key_file


def _log_of_group(config: GatewayConfig) -> PostgresqlConfig | None:
    core = config.event_core
    return None if core is None or core.group is None else core.group.log


def _client_findings(
    key: str, clients: Iterable[ClientConfig], its: TlsConfig | None
) -> Iterator[str]:
    for index, client in enumerate(clients):
        if client.token is None and client.certificate is None:
            who = _whoever(its, f"gives the name {client.name!r}")
            yield f"{key}[{index}].token: null, and no certificate: {who} has its rights"


def _whoever(its: TlsConfig | None, does: str) -> str:
    if its is None or its.client_ca is None:
        return f"whoever {does}"
    return f"whoever {does}, with any certificate of client_ca,"


def _has_tokens(config: GatewayConfig) -> bool:
    """Whether there is what tells a token, or helps to guess one, in the file itself."""
    guessable = [
        source.value is not None
        for key, token in client_tokens(config).items()
        for source, i in zip(tokens.sources(token), tokens.read(token, key), strict=True)
        if i.is_plain or i.hash.salt is not None
    ]
    own = [i.value for remote in remotes(config).values() for i in tokens.sources(remote.token)]
    return any(guessable) or any(own)


def _open_mode(file: Path) -> str | None:
    """The mode of a file that too many users can read; None: it is fine.

    Its group may read it if that is how we read it (root:mariner, 0640).
    """
    status = file.stat()
    mode = stat.S_IMODE(status.st_mode)
    is_owner = status.st_uid == os.geteuid()
    is_open = mode & stat.S_IROTH or (mode & stat.S_IRGRP and is_owner)
    return f"{mode:04o}" if is_open else None
