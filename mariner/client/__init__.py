"""Asyncio client of the Mariner protocol: :func:`connect` and :class:`Client`.

:class:`ReconnectingClient` outlives its connections, :class:`BufferedClient` the application as
well: what it registers is on the local disk first.

::

    async with await mariner.connect("gateway", 23014, client_name="app") as connection:
        await connection.register("lamp/1", {"on": True})

All of it can be imported from ``mariner``.
"""

from mariner.client.buffer_file import BufferStatus, WhenFull
from mariner.client.buffered import BufferedClient
from mariner.client.client import Client, connect
from mariner.client.reconnecting import ReconnectingClient
from mariner.client.replay import ReplayBatch
from mariner.client.values import event, latest, timeseries

__all__ = [
    "BufferStatus",
    "BufferedClient",
    "Client",
    "ReconnectingClient",
    "ReplayBatch",
    "WhenFull",
    "connect",
    "event",
    "latest",
    "timeseries",
]
