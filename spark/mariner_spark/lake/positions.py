"""Positions: the last event of each server in a lake.

They are application transactions of the table ``events``, which Delta keeps for ever, and commits
together with files. A transaction is a name and an integer, so a position has several, named
``mariner/SERVER/FIELD``: ``session``, ``instance`` and ``timestamp`` of the event, and, where the
server reports its history, both halves of that UUID. ``mariner/servers/N`` are the ids of the
servers, from N = 0.
"""

import struct
import uuid
from collections.abc import Mapping
from typing import Final, TypeAlias

import msgspec
from deltalake import DeltaTable, Transaction

_APP: Final = "mariner"
_FIELDS: Final = ("session", "instance", "timestamp", "history-high", "history-low")
_UUID: Final = struct.Struct(">qq")


class Position(msgspec.Struct, frozen=True, order=True):
    """The last event of a server in a lake; of a server, later ones are greater.

    Attributes:
        session: of the event's id.
        instance: of the event's id.
        timestamp: of the event, microseconds since 1970: reveals another store of a server with
            the same id.
        history: UUID of the history that it belongs to, if the server reported one.
    """

    session: int
    instance: int
    timestamp: int
    history: str | None = None


Positions: TypeAlias = Mapping[int, Position]
"""By id of the server."""


def find_servers(events: DeltaTable) -> list[int]:
    """Ids of the servers with events in a lake, in order of their first commit."""
    found: list[int] = []
    while (server := _get(events, f"servers/{len(found)}")) is not None:
        found.append(server)
    return found


def find(events: DeltaTable, server: int) -> Position | None:
    """Position of a server; None: the lake has no events of it."""
    session, instance, timestamp, *halves = (_get(events, f"{server}/{i}") for i in _FIELDS)
    if session is None or instance is None or timestamp is None:
        return None
    history = None if None in halves else str(uuid.UUID(bytes=_UUID.pack(*halves)))
    return Position(session, instance, timestamp, history)


def find_all(events: DeltaTable | None) -> dict[int, Position]:
    """Positions of all servers; none if there is no table."""
    if events is None:
        return {}
    found = {server: find(events, server) for server in find_servers(events)}
    return {server: position for server, position in found.items() if position is not None}


def transactions(events: DeltaTable, reached: Positions) -> list[Transaction]:
    """Transactions that move servers to new positions.

    Args:
        events: the table; a commit to another version of it conflicts if a position has changed.
        reached: the new positions by server.
    """
    known = find_servers(events)
    servers = [*known, *(i for i in reached if i not in known)]
    numbers = {f"servers/{i}": servers[i] for i in range(len(known), len(servers))}
    for server, position in reached.items():
        history = position.history
        halves = () if history is None else _UUID.unpack(uuid.UUID(history).bytes)
        fields = (position.session, position.instance, position.timestamp, *halves)
        numbers |= {f"{server}/{i}": j for i, j in zip(_FIELDS, fields, strict=False)}
    return [Transaction(f"{_APP}/{name}", number) for name, number in numbers.items()]


def _get(events: DeltaTable, name: str) -> int | None:
    return events.transaction_version(f"{_APP}/{name}")
