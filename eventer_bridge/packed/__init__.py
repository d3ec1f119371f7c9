"""Registrations as they came: read, stored and answered without an object for each event.

Most requests are small messages with events of known types, and nobody looks at these before they
are answered. Such a request stays the bytes that it came as (:class:`Packed`), with a table of
where its events are in it. From there go the rows of the store (:class:`PackedRows`) and the answer
(:func:`encode_answers`, :func:`encode_sbs_answers`). Whoever looks at the events after all has
them decoded.

Compiled when the project is installed (``hatch_build.py``), if the machine has a C compiler and
Python's headers; else :data:`IS_COMPILED` is false, and nothing is packed: everything works as
before, at half the speed. What is unusual (other messages, unknown types, binary payloads,
escapes in keys) is not packed either, and takes the way through Python. Both ways lead to the same
bytes, and tests compare them.

The events of a small answer to a query stay rows likewise (:class:`StoredEvents`): read by
:func:`read_rows`, written as JSON by :func:`encode_stored`.

Knows the form of registrations on both wires (002; 001), of frames (``net.framing``), of the
store's rows (``backends.rocksdb.keys``), which it takes from an iterator, and of events; no
connections, nothing else of the store. Requests belong to the event loop's thread; rows may be read
and :class:`StoredEvents` made on another one.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

try:
    from eventer_bridge.packed._packed import (
        KnownTypes,
        Packed,
        PackedRows,
        StoredEvents,
        content,
        encode_answers,
        encode_events,
        encode_sbs_answers,
        encode_stored,
        pack,
        pack_sbs,
        read_rows,
        stored_events,
    )
except ModuleNotFoundError:  # there was no compiler
    from eventer_bridge.packed._absent import (  # type: ignore[assignment]
        KnownTypes,
        Packed,
        PackedRows,
        StoredEvents,
        content,
        encode_answers,
        encode_events,
        encode_sbs_answers,
        encode_stored,
        pack,
        pack_sbs,
        read_rows,
        stored_events,
    )

if TYPE_CHECKING:
    from eventer_bridge.packed._packed import Staged
else:
    Staged = tuple
    Sequence.register(Packed)
    Sequence.register(StoredEvents)

IS_COMPILED: Final = pack is not None
"""Whether anything can be packed."""

__all__ = [
    "IS_COMPILED",
    "KnownTypes",
    "Packed",
    "PackedRows",
    "Staged",
    "StoredEvents",
    "content",
    "encode_answers",
    "encode_events",
    "encode_sbs_answers",
    "encode_stored",
    "pack",
    "pack_sbs",
    "read_rows",
    "stored_events",
]
