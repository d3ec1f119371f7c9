"""Batches: registrations from any wire, from when they came until they are stored and answered.

A registration is a :class:`Batch`: the bytes that came, and a table of where its events are in
them. Rows of the store are made from it (``backends.rocksdb.rows``), and its answer
(:func:`encode_answers`, :func:`encode_sbs_answers`). Events as objects are a view of it, made when
they are looked at. What has objects only, because it was
registered by a module or written in an unusual way, becomes a batch by :func:`batch_of`.

There are two implementations of it. One is compiled when the project is installed
(``hatch_build.py``), if the machine has a C compiler and Python's headers; else
:data:`IS_COMPILED` is false, and the one in ``plain`` is used: it has objects from the beginning,
and takes half as long again. Both lead to the same rows and answers, and tests compare them.

The events of a small answer to a query stay rows likewise (:class:`StoredEvents`): read by
:func:`read_rows`, written as JSON by :func:`encode_stored`.

Knows the form of registrations on both wires, of frames (``net.framing``), of the
store's rows (``backends.rocksdb.keys``), which it takes from an iterator, and of events; no
connections, nothing else of the store. Batches belong to the event loop's thread; rows may be read
and :class:`StoredEvents` made on another one.
"""

import struct
from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from eventer_bridge import limits
from eventer_bridge.errors import InvalidEventError
from eventer_bridge.model import (
    Event,
    EventType,
    JsonPayload,
    Payload,
    ProcessEvent,
    RegisterEvent,
)
from eventer_bridge.packed.views import session_events

try:
    from eventer_bridge.packed._packed import (
        Batch,
        BatchRows,
        StoredEvents,
        TypeTable,
        are_alike,
        are_keyed,
        assign,
        claim,
        content,
        encode_answers,
        encode_events,
        encode_sbs_answers,
        encode_stored,
        extend_batch,
        make_batch,
        read_json,
        read_rows,
        read_sbs,
        stored_events,
        totals,
        unready,
    )
except ModuleNotFoundError:  # there was no compiler
    from eventer_bridge.packed.plain import (  # type: ignore[assignment]
        Batch,
        BatchRows,
        StoredEvents,
        TypeTable,
        are_alike,
        are_keyed,
        assign,
        claim,
        content,
        encode_answers,
        encode_events,
        encode_sbs_answers,
        encode_stored,
        extend_batch,
        make_batch,
        read_json,
        read_rows,
        read_sbs,
        stored_events,
        totals,
        unready,
    )

if TYPE_CHECKING:
    from eventer_bridge.packed._packed import Staged
else:
    Staged = tuple
    if read_json is not None:
        Sequence.register(Batch)
        Sequence.register(StoredEvents)

IS_COMPILED: Final = read_json is not None
"""Whether the compiled implementation is used."""

_LABEL: Final = struct.Struct(">I")

__all__ = [
    "IS_COMPILED",
    "Batch",
    "BatchRows",
    "Staged",
    "StoredEvents",
    "TypeTable",
    "append",
    "are_alike",
    "are_keyed",
    "assign",
    "batch_of",
    "batch_parts",
    "claim",
    "content",
    "encode_answers",
    "encode_events",
    "encode_sbs_answers",
    "encode_stored",
    "encode_type",
    "extend",
    "make_events",
    "read_json",
    "read_rows",
    "read_sbs",
    "session_events",
    "stored_batch",
    "stored_events",
    "stored_in_steps",
    "totals",
    "unready",
]


def batch_of(
    events: Sequence[RegisterEvent | ProcessEvent],
    types: TypeTable,
    register_id: int = 0,
    request_key: str | None = None,
    after_key: str | None = None,
) -> Batch:
    """A batch of events that are objects.

    Args:
        events: the events.
        types: theirs.
        register_id: of the request.
        request_key: what the client calls it; None: nothing.
        after_key: that of the request that must be stored first; None: there is none.

    Raises:
        InvalidEventError: a type is not Unicode text.
    """
    return make_batch(events, types, _payload, register_id, request_key, after_key)


def append(batch: Batch, events: Sequence[RegisterEvent]) -> None:
    """Add events to a request that is read in steps; raises as :func:`extend`.

    Types that are too long to be registered are not looked up, which takes 15 ms per 16 MB.
    """
    extend_batch(batch, events, _payload, is_request=True)
    batch.requested = len(batch)


def extend(batch: Batch, events: Sequence[RegisterEvent | ProcessEvent]) -> None:
    """Add events that were not requested.

    Raises:
        InvalidEventError: a type is not Unicode text.
    """
    extend_batch(batch, events, _payload)


def stored_batch(events: Sequence[Event], types: TypeTable) -> Batch:
    """A batch of the events of one session, which have their ids and timestamp already."""
    instances = [event.id.instance for event in events]
    batch = make_batch(events, types, _payload, 0, None, None, instances)
    first, moment = events[0].id, events[0].timestamp
    assign([batch], first.server, first.session, moment.s, moment.us)
    return batch


def stored_in_steps(events: Sequence[Event], types: TypeTable) -> Generator[None, None, Batch]:
    """As :func:`stored_batch`, of many events (``slices``)."""
    size = limits.STEP_EVENTS
    batch = stored_batch(events[:size], types)
    for begin in range(size, len(events), size):
        yield
        some = events[begin : begin + size]
        extend_batch(batch, some, _payload, [event.id.instance for event in some])
    batch.requested = len(batch)
    return batch


def make_events(batch: Batch, events: list[Event]) -> Generator[None, None, None]:
    """Make ``Batch.events`` of a large one in steps, in an empty list, if it has none yet."""
    if batch.has_events:
        return
    for part in batch_parts(batch):
        events += session_events(batch, part)
        yield
    batch.keep_events(events)


def batch_parts(batch: Batch) -> list[slice]:
    """Parts of a large batch, each of which is work for one step (``slices``)."""
    return batch.parts(limits.STEP_EVENTS, limits.STEP_BYTES)


def encode_type(event_type: EventType) -> bytes:
    """Segments of a type as JSON.

    Raises:
        InvalidEventError: a segment cannot be encoded as UTF-8 (a lone surrogate).
    """
    try:
        return msgspec.json.encode(event_type)
    except UnicodeEncodeError as e:
        raise InvalidEventError(f"event type {event_type!a} is not Unicode text: {e}") from e


def _payload(payload: Payload | None) -> tuple[int, bytes, int]:
    """The kind of a payload (``keys``), as it is in a row, and its size."""
    if payload is None:
        return 0, b"", 0
    if isinstance(payload, JsonPayload):
        data = bytes(payload.data)
        return 1, data, len(data)
    # the label is only stored and returned, and need not be valid Unicode
    label = payload.data_type.encode("utf-8", "surrogatepass")
    return 2, b"".join((_LABEL.pack(len(label)), label, payload.data)), len(payload.data)
