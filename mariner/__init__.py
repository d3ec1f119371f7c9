"""Mariner: the gateway's outer protocol, its server, client and command line.

What an application needs is here, and imported when it is first used: the command line and the
gateway do not pay for it::

    import mariner

    async with await mariner.connect("gateway", 23014, client_name="app") as connection:
        await connection.register("lamp/1", {"on": True})

Where nothing is awaited, :mod:`mariner.sync` has the same.
"""

import importlib
from typing import TYPE_CHECKING, Any, Final

from mariner.version import __version__

if TYPE_CHECKING:
    from eventer_bridge import tls
    from eventer_bridge.errors import ConfigurationError
    from eventer_bridge.model import (
        BinaryPayload,
        Event,
        EventId,
        EventType,
        JsonPayload,
        Order,
        OrderBy,
        Payload,
        QueryLatestParams,
        QueryParams,
        QueryResult,
        QueryServerParams,
        QueryTimeseriesParams,
        RegisterEvent,
        Status,
        Timestamp,
    )
    from mariner import client, errors, sync
    from mariner.client import (
        BufferedClient,
        BufferStatus,
        Client,
        ReconnectingClient,
        ReplayBatch,
        WhenFull,
        connect,
        event,
        latest,
        timeseries,
    )
    from mariner.errors import (
        BufferFullError,
        BufferUnusableError,
        BusyError,
        ClosedError,
        ConnectError,
        ConnectionLostError,
        CursorLostError,
        GapError,
        InitError,
        InvalidEventError,
        LocalProtocolError,
        MarinerError,
        OtherHistoryError,
        OutcomeUnknownError,
        ProtocolError,
        RegisterError,
        RemoteProtocolError,
        UnavailableError,
        UnknownHostError,
        UnsupportedError,
    )

__all__ = [
    "BinaryPayload",
    "BufferFullError",
    "BufferStatus",
    "BufferUnusableError",
    "BufferedClient",
    "BusyError",
    "Client",
    "ClosedError",
    "ConfigurationError",
    "ConnectError",
    "ConnectionLostError",
    "CursorLostError",
    "Event",
    "EventId",
    "EventType",
    "GapError",
    "InitError",
    "InvalidEventError",
    "JsonPayload",
    "LocalProtocolError",
    "MarinerError",
    "Order",
    "OrderBy",
    "OtherHistoryError",
    "OutcomeUnknownError",
    "Payload",
    "ProtocolError",
    "QueryLatestParams",
    "QueryParams",
    "QueryResult",
    "QueryServerParams",
    "QueryTimeseriesParams",
    "ReconnectingClient",
    "RegisterError",
    "RegisterEvent",
    "RemoteProtocolError",
    "ReplayBatch",
    "Status",
    "Timestamp",
    "UnavailableError",
    "UnknownHostError",
    "UnsupportedError",
    "WhenFull",
    "__version__",
    "client",
    "connect",
    "errors",
    "event",
    "latest",
    "sync",
    "timeseries",
    "tls",
]

_MODULES: Final = {
    "client": "mariner.client",
    "errors": "mariner.errors",
    "sync": "mariner.sync",
    "tls": "eventer_bridge.tls",
}
_PLACES: Final = (
    "eventer_bridge.model",
    "eventer_bridge.errors",
    "mariner.errors",
    "mariner.client",
)
"""Where the other names are, from what is cheap to import to what is dear."""


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        found: Any = importlib.import_module(_MODULES[name])
    elif name in __all__:
        modules = map(importlib.import_module, _PLACES)
        found = next(getattr(i, name) for i in modules if hasattr(i, name))
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
