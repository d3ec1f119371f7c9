"""Outgoing connections.

Runs on the event loop's thread.
"""

import asyncio
import ssl
from typing import Any

from eventer_bridge.net import limits
from eventer_bridge.net.stream import Stream


async def open_connection(
    stream: Stream[Any], host: str, port: int, tls: ssl.SSLContext | None, server_name: str | None
) -> None:
    """Connect to a server.

    Args:
        stream: the connection; it is told of its end if it was told of its beginning.
        host: of the server.
        port: of the server.
        tls: None: without TLS.
        server_name: that the certificate is to have; None without TLS.

    Raises:
        OSError: no connection, or no TLS.
    """
    try:
        await asyncio.get_running_loop().create_connection(
            lambda: stream,
            host,
            port,
            ssl=tls,
            server_hostname=server_name,
            ssl_shutdown_timeout=limits.CLOSE_TIMEOUT_S if tls else None,
        )
    except BaseException:
        # a connection that is made while its task is cancelled: uvloop closes it without a word
        stream.end_opening()
        raise
