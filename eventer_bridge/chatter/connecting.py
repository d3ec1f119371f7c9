"""Connecting to a chatter listener (003)."""

import asyncio
import math
import ssl
from collections.abc import Callable
from typing import TypeVar, cast

from hat import aio

from eventer_bridge.chatter.address import Address
from eventer_bridge.chatter.codec import Dialect
from eventer_bridge.chatter.connection import Connection
from eventer_bridge.chatter.handler import ConnectionSettings, Handler
from eventer_bridge.errors import ConfigurationError, ConnectError
from eventer_bridge.net import errors as connection_errors
from eventer_bridge.net import limits as net_limits
from eventer_bridge.net.connecting import open_connection

HandlerT = TypeVar("HandlerT", bound=Handler)


async def connect(
    address: Address,
    make_handler: Callable[[Connection], HandlerT],
    *,
    tls: ssl.SSLContext | None = None,
    server_hostname: str | None = None,
    dialect: Dialect = Dialect.CURRENT,
    connect_timeout_s: float = net_limits.CONNECT_TIMEOUT_S,
    ping_delay_s: float | None = net_limits.PING_DELAY_S,
    ping_timeout_s: float = net_limits.PING_TIMEOUT_S,
    conversation_timeout_s: float = net_limits.CONVERSATION_TIMEOUT_S,
    max_frame_bytes: int = net_limits.MAX_ANSWER_FRAME_BYTES,
) -> tuple[Connection, HandlerT]:
    """Connect to a listener.

    Args:
        address: of the listener.
        make_handler: called once, with the connection; returns the handler of its messages.
        tls: TLS context for an ``ssl+sbs`` address; None: one that verifies the listener's
            certificate with the CAs that this system trusts.
        server_hostname: name to check the listener's certificate for; None: its host.
        dialect: of our messages; a listener answers in it.
        connect_timeout_s: for TCP and TLS together.
        ping_delay_s: silence before a ping; None: never ping.
        ping_timeout_s: silence after a ping before the connection is closed.
        conversation_timeout_s: time limit for the peer to continue a conversation.
        max_frame_bytes: largest message accepted (64 KiB before the peer's first).

    Returns:
        The connection, which the caller closes, and its handler. It does not reconnect.

    Raises:
        ConnectError: no connection; the text says why.
        ConfigurationError: a TLS context is given for a ``tcp+sbs`` address.
    """
    if tls is not None and not address.is_tls:
        raise ConfigurationError(f"{address}: TLS is given, expected an address of ssl+sbs")
    if tls is None and address.is_tls:
        tls = ssl.create_default_context()
    settings = ConnectionSettings(
        dialect=dialect,
        max_frame_bytes=max_frame_bytes,
        first_message_timeout_s=math.inf,  # its user awaits an answer or nothing
        ping_delay_s=ping_delay_s,
        ping_timeout_s=ping_timeout_s,
        conversation_timeout_s=conversation_timeout_s,
    )
    server_name = (server_hostname or address.host) if tls is not None else None
    connection = Connection(make_handler, settings)
    try:
        await _open(connection, address, tls, server_name, connect_timeout_s)
        if connection.handler is None:
            raise ConnectError(f"{address}: {connection.close_text}")
    except BaseException:
        await aio.uncancellable(connection.async_close())
        raise
    return connection, cast("HandlerT", connection.handler)


async def _open(
    connection: Connection,
    address: Address,
    tls: ssl.SSLContext | None,
    server_name: str | None,
    timeout_s: float,
) -> None:
    timeout = asyncio.timeout(timeout_s)
    try:
        async with timeout:
            await open_connection(connection, address.host, address.port, tls, server_name)
    except OSError as e:
        # TimeoutError, ours or TCP's, is an OSError
        if isinstance(e, TimeoutError) and timeout.expired():
            text = f"no connection within {timeout_s:g} s"
        else:
            text = connection_errors.refused(e, server_name)
        raise ConnectError(f"{address}: {text}") from e
