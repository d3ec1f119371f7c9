"""Asyncio client of the Mariner protocol (002): :func:`connect` and :class:`Client`.

:class:`ReconnectingClient` outlives its connections.

::

    async with await client.connect("gateway", 23014, client_name="app") as conn:
        [event] = await conn.register([RegisterEvent(("a", "b"), None, JsonPayload.of(1))])
"""

from mariner.client.client import Client, connect
from mariner.client.reconnecting import ReconnectingClient

__all__ = ["Client", "ReconnectingClient", "connect"]
