"""Rows of cursors (``core.cursors``) and of the events that they parked.

::

    "c" · ["client","cursor"]             → CursorRow
    "p" · ["client","cursor"] · 0 · id    → ParkedRow

An id is server, session and instance, 8 bytes each. Pure; any thread.
"""

import struct
from typing import Final

import msgspec

from eventer_bridge.model import EventId, EventType, Timestamp

CURSOR_PREFIX: Final = b"c"
PARKED_PREFIX: Final = b"p"

_END: Final = b"\x00"  # of client and name: JSON has no such byte
_ID: Final = struct.Struct(">qqq")
_encode: Final = msgspec.json.Encoder().encode


class CursorRow(msgspec.Struct):
    """A cursor.

    Attributes:
        seen: the last acknowledged event of each server.
        created, acked: when it was created, and last acknowledged.
        types: subscription of the last connection; None: everything, or too much to be kept.
        server_id: the only server it subscribed to; None: all.
        n_resets: how often an operator reset or deleted it.
        histories: history (``history``) of each event of ``seen``, by server, as far as known.
        is_deleted: whether it was deleted, at ``created``. Only ``n_resets`` counts then, from
            which a cursor of the same name goes on.
    """

    seen: list[EventId]
    created: Timestamp
    acked: Timestamp | None = None
    types: list[EventType] | None = None
    server_id: int | None = None
    n_resets: int = 0
    histories: dict[int, str] = {}
    is_deleted: bool = False


class ParkedRow(msgspec.Struct):
    """A parked event: the client's reason, when, and whether it is to be redelivered."""

    reason: str
    at: Timestamp
    is_due: bool = False


def cursor_key(client: str, name: str) -> bytes:
    """Key of a cursor."""
    return CURSOR_PREFIX + _encode([client, name])


def parked_prefix(client: str, name: str) -> bytes:
    """Beginning of the keys of a cursor's parked events."""
    return PARKED_PREFIX + _encode([client, name]) + _END


def encode_id(event_id: EventId) -> bytes:
    """End of the key of a parked event."""
    return _ID.pack(event_id.server, event_id.session, event_id.instance)


def decode_id(key: bytes) -> EventId:
    """The event of the key of a parked event."""
    return EventId(*_ID.unpack(key[-_ID.size :]))


def encode_row(row: CursorRow | ParkedRow) -> bytes:
    """Value of a row."""
    return _encode(row)


def decode_cursor(key: bytes, value: bytes) -> tuple[str, str, CursorRow]:
    """Client, name and row of a cursor; raises ``ValueError`` if it is none."""
    return (*_owner(key[len(CURSOR_PREFIX) :]), msgspec.json.decode(value, type=CursorRow))


def decode_parked(key: bytes, value: bytes) -> tuple[str, str, EventId, ParkedRow]:
    """Client and name of a cursor, parked event and row; raises ``ValueError``."""
    owner, end, event_id = key[len(PARKED_PREFIX) :].partition(_END)
    if not end or len(event_id) != _ID.size:
        raise ValueError("no id of an event")
    row = msgspec.json.decode(value, type=ParkedRow)
    return (*_owner(owner), EventId(*_ID.unpack(event_id)), row)


def _owner(data: bytes) -> tuple[str, str]:
    return msgspec.json.decode(data, type=tuple[str, str])
