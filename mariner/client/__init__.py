"""Asyncio client of the Mariner protocol (002): :func:`connect` and :class:`Client`.

:class:`ReconnectingClient` outlives its connections, :class:`BufferedClient` the application as
well: what it registers is on the local disk first.

::

    async with await client.connect("gateway", 23014, client_name="app") as conn:
        [event] = await conn.register([RegisterEvent(("a", "b"), None, JsonPayload.of(1))])
"""

from mariner.client.buffer_file import BufferStatus, WhenFull
from mariner.client.buffered import BufferedClient
from mariner.client.client import Client, connect
from mariner.client.reconnecting import ReconnectingClient
from mariner.client.replay import ReplayBatch

__all__ = [
    "BufferStatus",
    "BufferedClient",
    "Client",
    "ReconnectingClient",
    "ReplayBatch",
    "WhenFull",
    "connect",
]
