"""The event model of all wires, the engine and all backends.

It is that of Hat: events, status, queries and the order of events. All records are frozen
``msgspec.Struct`` values whose field names are those of the Mariner protocol, so that its codec
decodes into them directly. A JSON payload is kept as the received bytes (``msgspec.Raw``): the core
does not decode it except for comparison (``payloads``). Decoding into a record refuses unknown
properties, which may hide anything (deeply nested JSON); the Mariner codec removes them then.

Values may be passed between threads. They are not tracked by the cyclic garbage collector
(``gc=False``): nothing in them can form a cycle.
"""

import enum
import math
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Final, NamedTuple, Self, TypeAlias

import msgspec

from eventer_bridge import limits
from eventer_bridge.errors import InvalidEventError

INT64_MIN: Final = -(1 << 63)
INT64_MAX: Final = (1 << 63) - 1

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_US: Final = timedelta(microseconds=1)

Int64: TypeAlias = Annotated[int, msgspec.Meta(ge=INT64_MIN, le=INT64_MAX)]
"""A signed 64-bit integer: the range of every integer of the protocols."""

HistoryId: TypeAlias = Annotated[str, msgspec.Meta(max_length=limits.MAX_HISTORY_ID_CHARACTERS)]
"""Name of a history, which is what a server's ids are worth something in."""

EventType: TypeAlias = tuple[str, ...]
"""Event type: its segments. In queries and subscriptions ``?`` and ``*`` are wildcards."""

WILDCARDS: Final = frozenset(("?", "*"))
"""Segments with a meaning in queries; never part of a registered type."""


class Status(enum.Enum):
    """State of an event server."""

    STANDBY = "STANDBY"
    STARTING = "STARTING"
    OPERATIONAL = "OPERATIONAL"
    STOPPING = "STOPPING"


class Order(enum.Enum):
    """Direction of a timeseries query."""

    DESCENDING = "DESCENDING"
    ASCENDING = "ASCENDING"


class OrderBy(enum.Enum):
    """Sort key of a timeseries query."""

    TIMESTAMP = "TIMESTAMP"
    SOURCE_TIMESTAMP = "SOURCE_TIMESTAMP"


class _Record(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """A value without cycles, of known properties."""


class Timestamp(_Record, frozen=True, order=True):
    """A moment in UTC: seconds since 1970-01-01, which may be negative, and microseconds.

    Ranges are checked where a timestamp enters: by decoding, or by :meth:`checked`.
    """

    s: Int64
    us: Annotated[int, msgspec.Meta(ge=0, lt=1_000_000)]

    @classmethod
    def checked(cls, s: int, us: int) -> Self:
        """A timestamp of values that may be out of range, by ``InvalidEventError``."""
        if not (INT64_MIN <= s <= INT64_MAX and 0 <= us < 1_000_000):
            raise InvalidEventError(
                f"timestamp out of range: s={s} us={us}"
                " (expected a signed 64-bit s and 0 <= us < 1000000)"
            )
        return cls(s, us)

    @classmethod
    def now(cls) -> Self:
        """The wall clock of this machine."""
        s, ns = divmod(time.time_ns(), 1_000_000_000)
        return cls(s, ns // 1000)

    @classmethod
    def from_float(cls, seconds: float) -> Self:
        """From seconds since 1970-01-01, rounded to microseconds; raises as :meth:`checked`."""
        s, us = divmod(round(seconds * 1_000_000), 1_000_000)
        return cls.checked(s, us)

    @classmethod
    def of(cls, moment: datetime) -> Self:
        """From a datetime with a time zone; ``InvalidEventError``: it has none."""
        if moment.utcoffset() is None:
            raise InvalidEventError(
                f"{moment.isoformat()} has no time zone: expected a datetime with one, such as"
                " datetime.now(UTC) or moment.astimezone()"
            )
        return cls(*divmod((moment - _EPOCH) // _US, 1_000_000))

    def to_datetime(self) -> datetime:
        """A datetime in UTC; ``OverflowError``: the calendar does not reach that far."""
        return _EPOCH + timedelta(seconds=self.s, microseconds=self.us)

    def to_float(self) -> float:
        """Seconds since 1970-01-01; exact to about a microsecond for present dates."""
        return self.s + self.us / 1_000_000

    def to_iso(self) -> str:
        """ISO 8601 in UTC with microseconds; seconds where the calendar does not reach."""
        try:
            moment = self.to_datetime()
        except OverflowError:
            return f"{self.s}.{self.us:06}"
        return moment.replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"


class EventId(_Record, frozen=True, order=True):
    """Identifier of an event: server, session of that server, instance from 1."""

    server: Int64
    session: Int64
    instance: Int64


class JsonPayload(_Record, frozen=True, tag_field="payload_type", tag="json"):
    """A JSON payload, kept as encoded bytes (UTF-8)."""

    data: msgspec.Raw

    @classmethod
    def of(cls, value: Any) -> Self:
        """Encode a Python value; ``TypeError``: it has no JSON form.

        ``InvalidEventError``: it has NaN or an infinity, for which JSON has no number.
        """
        data = msgspec.json.encode(value)
        if b"null" in data:  # what an encoder makes of them
            _check_finite(value)
        return cls(msgspec.Raw(data))

    def value(self) -> Any:
        """The decoded value (dict, list, str, int, float, bool or None)."""
        return msgspec.json.decode(self.data)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({bytes(self.data)!r})"


class BinaryPayload(_Record, frozen=True, tag_field="payload_type", tag="binary"):
    """A payload of bytes, with a type label that only its users understand."""

    data_type: str
    data: bytes


Payload: TypeAlias = JsonPayload | BinaryPayload


def _check_finite(value: Any) -> None:
    """Raise ``InvalidEventError`` for a value with NaN or an infinity, with the way to it."""
    # whatever has another form than a Python value of JSON has no such number
    left = [("payload", msgspec.to_builtins(value, enc_hook=lambda _: None))]
    while left:
        way, part = left.pop()
        if isinstance(part, float) and not math.isfinite(part):
            raise InvalidEventError(f"{way}: {part} has no JSON form, expected a finite number")
        if isinstance(part, dict):
            left.extend((f"{way}[{key!r}]", inner) for key, inner in part.items())
        elif isinstance(part, list | tuple):
            left.extend((f"{way}[{index}]", inner) for index, inner in enumerate(part))


class RegisterEvent(_Record, frozen=True):
    """An event to be registered."""

    type: EventType
    source_timestamp: Timestamp | None
    payload: Payload | None


class Event(_Record, frozen=True):
    """A registered event; never changes."""

    id: EventId
    type: EventType
    timestamp: Timestamp
    source_timestamp: Timestamp | None
    payload: Payload | None

    def __str__(self) -> str:
        """Type, time, id and payload, for people: ``lamp/1 2026-01-02T…Z 1/42/1 {"on":true}``."""
        event_type, event_id = format_event_type(self.type), format_event_id(self.id)
        shown = f"{event_type} {self.timestamp.to_iso()} {event_id} {payload_text(self.payload)}"
        return printable(shown.rstrip())


def natural_key(event: Event) -> tuple[Timestamp, EventId]:
    """Sort key of the natural order: events of one server by id, of several by timestamp.

    Timestamps of one server never go backwards when its ids rise. Ties between servers are broken
    by id, so that the order is total.
    """
    return event.timestamp, event.id


def check_registrable(event_type: EventType) -> None:
    """Raise ``InvalidEventError`` for a type that only queries may have."""
    if not WILDCARDS.isdisjoint(event_type):
        raise InvalidEventError(
            f"event type {'/'.join(event_type)!r}: '?' and '*' are for queries only,"
            " expected plain segments"
        )


def parse_event_type(text: str) -> EventType:
    """An event type, with or without wildcards, as people write it: ``lamp/*``.

    One with a ``/`` in a segment, or without segments, is a JSON array: ``["a/b", "c"]``. Raises
    ``InvalidEventError``.
    """
    if text.startswith("["):
        try:
            return msgspec.json.decode(text, type=EventType)
        except (msgspec.DecodeError, UnicodeError) as e:
            raise InvalidEventError(f"expected a JSON array of strings: {e}") from e
    if not text:
        raise InvalidEventError("an empty event type is written as []")
    return tuple(text.split("/"))


def format_event_type(event_type: EventType) -> str:
    """The opposite of :func:`parse_event_type`."""
    text = "/".join(event_type)
    if not text or text.startswith("[") or any("/" in segment for segment in event_type):
        return msgspec.json.encode(event_type).decode()
    return text


def format_event_id(event_id: EventId) -> str:
    """An event id for people: ``server/session/instance``."""
    return f"{event_id.server}/{event_id.session}/{event_id.instance}"


def payload_text(payload: Payload | None) -> str:
    """A payload for people: JSON as it is written; of bytes, how many; "" without a payload."""
    if payload is None:
        return ""
    if isinstance(payload, BinaryPayload):
        return f"{len(payload.data)} bytes of {payload.data_type!r}"
    return bytes(payload.data).decode(errors="replace")


class SourceType(enum.Enum):
    """Kind of a source."""

    CONNECTION = "CONNECTION"
    MODULE = "MODULE"
    ENGINE = "ENGINE"


class Source(NamedTuple):
    """Source of registrations: unique for one execution of the server."""

    type: SourceType
    id: int


class ProcessEvent(msgspec.Struct, frozen=True, gc=False):
    """An event while its session is processed: its source is known, its id maybe not yet."""

    source: Source
    type: EventType
    source_timestamp: Timestamp | None
    payload: Payload | None
    id: EventId | None = None


class QueryLatestParams(msgspec.Struct, frozen=True, gc=False):
    """Latest event of each type that matches; None means all types.

    ``last_event_id`` continues after the end of an answer, as of every answer with
    ``more_follows``: only types after that of this event are returned. Types are in the order of
    their first registration, so that the pages of a query have each type once, whatever is
    registered meanwhile. If the server no longer has that event, it cannot continue: the answer
    has no events, and ``more_follows``.
    """

    event_types: Sequence[EventType] | None = None
    last_event_id: EventId | None = None


class QueryTimeseriesParams(msgspec.Struct, frozen=True, gc=False):
    """Sequence of events ordered by timestamp or source timestamp.

    All bounds are inclusive. ``max_results`` is at least 0. All conditions must hold.

    ``ids``, ``payload`` and ``unique_type`` are known by our servers only. They apply before
    paging: ``unique_type`` chooses among the events that satisfy all other conditions, then the
    events up to and including ``last_event_id`` are discarded, then ``max_results`` counts. So the
    pages of a query add up to its whole answer. (With ``unique_type`` only as long as no new event
    replaces ``last_event_id``, which a ``t_to`` in the past ensures.)

    Attributes:
        ids: only events with these ids; at most ``limits.MAX_QUERY_IDS``; empty for no event.
        payload: only events with the same payload, as ``payloads`` compares them.
        unique_type: at most one event of each type, the first in the requested order. By source
            timestamp, an event without one counts only if no other of its type has one.
    """

    event_types: Sequence[EventType] | None = None
    t_from: Timestamp | None = None
    t_to: Timestamp | None = None
    source_t_from: Timestamp | None = None
    source_t_to: Timestamp | None = None
    order: Order = Order.DESCENDING
    order_by: OrderBy = OrderBy.TIMESTAMP
    max_results: int | None = None
    last_event_id: EventId | None = None
    ids: Sequence[EventId] | None = None
    payload: Payload | None = None
    unique_type: bool = False


class QueryServerParams(msgspec.Struct, frozen=True, gc=False):
    """Events of one server in ascending natural order."""

    server_id: int
    persisted: bool = False
    max_results: int | None = None
    last_event_id: EventId | None = None


QueryParams: TypeAlias = QueryLatestParams | QueryTimeseriesParams | QueryServerParams


class QueryResult(msgspec.Struct, frozen=True, gc=False):
    """Events that match a query, and whether there are more.

    ``deleted``: of a server's events, the last one behind ``last_event_id`` that retention deleted,
    of the types that may be seen; None: none was, or that is not known. ``n_deletions``: how often
    retention had deleted when the answer was found; 0: not known.
    """

    events: Sequence[Event]
    more_follows: bool
    deleted: EventId | None = None
    n_deletions: int = 0


_ELLIPSIS: Final = "…"


def cut(text: str, max_characters: int = limits.MAX_REASON_CHARACTERS) -> str:
    """An excerpt of a peer's text for answers and logs: all of it, or its beginning with "…"."""
    if len(text) <= max_characters:
        return text
    return text[: max_characters - 1] + _ELLIPSIS


def printable(text: str) -> str:
    """Untrusted text with control characters escaped, so that it cannot control the terminal."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )


def quoted_type(event_type: EventType) -> str:
    """An event type or query type in quotes, its segments joined by "/", cut."""
    size = limits.MAX_REASON_CHARACTERS // 2
    # never joined in full: it may be as long as a message
    segments = [segment[: size + 1] for segment in event_type[: size + 1]]
    return repr(cut("/".join(segments), size))
