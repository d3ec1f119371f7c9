"""Connects to the remote Event Servers of the configuration."""

import functools
from collections.abc import Awaitable
from typing import Any

from eventer_bridge import chatter, tls
from eventer_bridge.core import tokens
from eventer_bridge.eventer import client
from mariner.gateway.config import RemoteConfig


class Connector:
    """Connects to a remote server, as the configuration in use says (``client.ConnectCb``).

    Args:
        connect: see :attr:`connect`.

    Attributes:
        connect: made by :func:`connect_to`; may be replaced, for the next connection.
    """

    def __init__(self, connect: client.ConnectCb) -> None:
        self.connect = connect

    def __call__(self, **arguments: Any) -> Awaitable[client.EventerClient]:
        """See ``client.ConnectCb``."""
        return self.connect(**arguments)


def connect_to(key: str, remote: RemoteConfig, client_name: str) -> client.ConnectCb:
    """A function that connects to a remote server.

    Args:
        key: where the server is configured, for errors.
        remote: the server.
        client_name: our name there.

    Raises:
        ConfigurationError: a certificate or the token cannot be used.
    """
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
