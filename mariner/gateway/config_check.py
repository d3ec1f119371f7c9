"""Checks the files and variables of the environment that a configuration names."""

import functools
from collections.abc import Callable, Iterator

from eventer_bridge import tls
from eventer_bridge.core import tokens
from eventer_bridge.errors import ConfigurationError
from mariner.gateway.config import GatewayConfig, client_tokens, listeners, remotes, server_context
from mariner.gateway.logs.audit import AuditConfig


def check(config: GatewayConfig) -> None:
    """Check the files and variables of the environment that a configuration names.

    Raises:
        ConfigurationError: a certificate, key or token is missing or does not fit; one line each.
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
    for key, token in client_tokens(config).items():
        yield key, functools.partial(tokens.read, token, key)
    core = config.event_core
    if core is not None and core.monitor is not None and core.eventer_server is not None:
        # the other servers of the group present it
        key = "event_core.eventer_server.token"
        yield key, functools.partial(tokens.read_own, core.eventer_server.token, key)


def _look_at_trail(audit: AuditConfig | None) -> None:
    trail = None if audit is None else audit.file
    if trail is not None and (trail.is_dir() or not trail.parent.is_dir()):
        raise ConfigurationError(f"audit.file: {trail}: expected a file in an existing directory")
