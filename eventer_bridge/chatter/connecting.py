"""Connecting to a chatter listener (003)."""

import asyncio
import math
import ssl
from collections.abc import Callable
from typing import TypeVar, cast

from hat import aio

from eventer_bridge import limits
from eventer_bridge.chatter.address import Address
from eventer_bridge.chatter.codec import Dialect
from eventer_bridge.chatter.connection import Connection
from eventer_bridge.chatter.handler import ConnectionSettings, Handler
from eventer_bridge.errors import ConfigurationError, ConnectError
from eventer_bridge.net import errors as connection_errors

HandlerT = TypeVar("HandlerT", bound=Handler)


async def connect(
    address: Address,
    make_handler: Callable[[Connection], HandlerT],
    *,
    tls: ssl.SSLContext | None = None,
    server_hostname: str | None = None,
    dialect: Dialect = Dialect.CURRENT,
    connect_timeout_s: float = limits.CONNECT_TIMEOUT_S,
    ping_delay_s: float | None = limits.PING_DELAY_S,
    ping_timeout_s: float = limits.PING_TIMEOUT_S,
    conversation_timeout_s: float = limits.CONVERSATION_TIMEOUT_S,
    max_frame_bytes: int = limits.MAX_ANSWER_FRAME_BYTES,
) -> tuple[Connection, HandlerT]:
    """Connect to a listener.

    Args:
        address: where it listens.
        make_handler: called once, with the connection; what it returns gets its messages.
        tls: TLS context for an address that is ``ssl+sbs``; None: one that verifies the
            listener's certificate by the CAs that this system trusts.
        server_hostname: name to check the listener's certificate for; None: its host.
        dialect: what to speak; a listener answers in it.
        connect_timeout_s: for TCP and TLS together.
        ping_delay_s: ping the peer when it was silent for so long; None: never.
        ping_timeout_s: how long it may then stay silent before the connection is closed.
        conversation_timeout_s: how long the peer may take to go on with a conversation.
        max_frame_bytes: largest message that is accepted (64 KiB before its first).

    Returns:
        The connection, which is its caller's to close, and its handler. It does not
        reconnect.

    Raises:
        ConnectError: no connection; the text says why.
        ConfigurationError: the address is ``tcp+sbs`` and a TLS context was given.
    """
    if tls is not None and not address.is_tls:
        raise ConfigurationError(f"{address}: TLS is given, expected an address of ssl+sbs")
    if tls is None and address.is_tls:
        tls = ssl.create_default_context()
    settings = ConnectionSettings(
        dialect=dialect,
        max_frame_bytes=max_frame_bytes,
        first_message_timeout_s=math.inf,  # its user waits for an answer, or for nothing
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
            await asyncio.get_running_loop().create_connection(
                lambda: connection,
                address.host,
                address.port,
                ssl=tls,
                server_hostname=server_name,
                ssl_shutdown_timeout=limits.CLOSE_TIMEOUT_S if tls else None,
            )
    except OSError as e:
        # TimeoutError is one: ours, or TCP's own
        if isinstance(e, TimeoutError) and timeout.expired():
            text = f"no connection within {timeout_s:g} s"
        else:
            text = connection_errors.refused(e, server_name)
        raise ConnectError(f"{address}: {text}") from e
