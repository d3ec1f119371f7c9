"""Checks the files, directories and variables that a configuration names, and opens no store."""

import errno
import functools
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from eventer_bridge import tls
from eventer_bridge.backends.rocksdb import database, directories
from eventer_bridge.core import tokens
from eventer_bridge.errors import ConfigurationError, StorageError
from mariner.gateway import tracing
from mariner.gateway.config import (
    GatewayConfig,
    RocksDbConfig,
    client_tokens,
    listeners,
    remotes,
    server_context,
)
from mariner.gateway.logs.audit import AuditConfig


def check(config: GatewayConfig) -> None:
    """Check the files, directories and variables of the environment that a configuration names.

    Raises:
        ConfigurationError: one is missing or does not fit; one line each.
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
            yield f"{key}.tls", functools.partial(server_context, listener.tls)
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
    if core is not None and isinstance(core.backend, RocksDbConfig):
        yield "event_core.backend.path", functools.partial(_look_at_store, core.backend.path)
    if core is not None and core.monitor is not None and core.eventer_server is not None:
        # the other servers of the group present it
        key = "event_core.eventer_server.token"
        yield key, functools.partial(tokens.read_own, core.eventer_server.token, key)


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
    if (path / "CURRENT").exists():
        return
    try:
        directories.refuse_unfinished(path)
        directories.refuse_within_store(path)
        if there == absolute:
            database.refuse_strange_files(path)
    except StorageError as e:
        raise ConfigurationError(str(e)) from e
