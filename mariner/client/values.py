"""What people write, as what is sent: event types, moments, payloads, registrations, queries.

Every conversion of the clients is here. An event type is its segments, or a text as on the command
line: ``"lamp/*"``, or ``'["a/b", "c"]'`` where a segment has a ``/``. A moment is a
:class:`Timestamp` or a datetime with a time zone, a payload any Python value that has a JSON form,
or a :class:`BinaryPayload`. Errors begin with the name of the argument. Any thread.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

from eventer_bridge.errors import InvalidEventError
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
    QueryServerParams,
    QueryTimeseriesParams,
    RegisterEvent,
    Timestamp,
    parse_event_type,
)
from mariner.errors import RemoteProtocolError

TypeText: TypeAlias = str | EventType
"""An event type as people write it: ``"lamp/*"`` or ``("lamp", "*")``."""

Moment: TypeAlias = Timestamp | datetime

_TIMES: Final = ("t_from", "t_to", "source_t_from", "source_t_to")


# --- for applications -----------------------------------------------------------------------


def event(
    event_type: TypeText, payload: Any = None, *, source_timestamp: Moment | None = None
) -> RegisterEvent:
    """An event to be registered; without a ``payload``, it has none.

    ``JsonPayload.of(None)`` is the payload ``null``. Raises InvalidEventError for what no event can
    have, TypeError for a payload without a JSON form.
    """
    return RegisterEvent(
        event_type_of(event_type, "type"),
        _moment_of(source_timestamp, "source_timestamp"),
        payload_of(payload),
    )


def latest(*event_types: TypeText, last_event_id: EventId | None = None) -> QueryLatestParams:
    """A query for the latest event of each type that matches; without ``event_types``, of all.

    Raises InvalidEventError.
    """
    return QueryLatestParams(event_types_of(event_types, "event_types") or None, last_event_id)


def timeseries(
    *event_types: TypeText,
    t_from: Moment | None = None,
    t_to: Moment | None = None,
    source_t_from: Moment | None = None,
    source_t_to: Moment | None = None,
    order: Order = Order.DESCENDING,
    order_by: OrderBy = OrderBy.TIMESTAMP,
    max_results: int | None = None,
    last_event_id: EventId | None = None,
) -> QueryTimeseriesParams:
    """A query for events of the types that match, of all without ``event_types``; by time.

    Bounds are inclusive. Raises InvalidEventError.
    """
    return QueryTimeseriesParams(
        event_types_of(event_types, "event_types") or None,
        _moment_of(t_from, "t_from"),
        _moment_of(t_to, "t_to"),
        _moment_of(source_t_from, "source_t_from"),
        _moment_of(source_t_to, "source_t_to"),
        order=order,
        order_by=order_by,
        max_results=max_results,
        last_event_id=last_event_id,
    )


# --- for the clients ------------------------------------------------------------------------


def event_type_of(value: object, name: str) -> EventType:
    """An event type; raises InvalidEventError."""
    if isinstance(value, str):
        try:
            return parse_event_type(value)
        except InvalidEventError as e:
            raise InvalidEventError(f"{name}: {e}") from e
    if isinstance(value, tuple | list) and all(isinstance(i, str) for i in value):
        return tuple(value)
    raise InvalidEventError(
        f"{name}: expected a text such as 'lamp/*', or a tuple of segments, got {value!r}"
    )


def event_types_of(values: str | Iterable[object], name: str) -> tuple[EventType, ...]:
    """Event types; a text is one. Raises InvalidEventError."""
    if isinstance(values, str):
        return (event_type_of(values, name),)
    return tuple(event_type_of(i, f"{name}[{index}]") for index, i in enumerate(values))


def _moment_of(value: object, name: str) -> Timestamp | None:
    if value is None or isinstance(value, Timestamp):
        return value
    if not isinstance(value, datetime):
        raise InvalidEventError(
            f"{name}: expected a Timestamp or a datetime with a time zone, got {value!r}"
        )
    try:
        return Timestamp.of(value)
    except InvalidEventError as e:
        raise InvalidEventError(f"{name}: {e}") from e


def payload_of(value: object) -> Payload | None:
    """A payload; None: there is none. Raises as :func:`event`."""
    if value is None or isinstance(value, JsonPayload | BinaryPayload):
        return value
    if isinstance(value, bytes | bytearray | memoryview):
        raise InvalidEventError(
            "payload: bytes have no JSON form, expected BinaryPayload(data_type, data)"
        )
    return JsonPayload.of(value)


def events_of(events: Iterable[RegisterEvent]) -> tuple[RegisterEvent, ...]:
    """Events to be registered, as they are sent; raises as :func:`event`."""
    if isinstance(events, RegisterEvent):
        raise TypeError("events: expected a list of RegisterEvent, got one")
    return tuple(_event_of(i, index) for index, i in enumerate(events))


def _event_of(value: RegisterEvent, index: int) -> RegisterEvent:
    if not isinstance(value, RegisterEvent):
        raise TypeError(
            f"events[{index}]: expected a RegisterEvent, as of mariner.event('lamp/1', 5), got"
            f" {value!r}"
        )
    source, payload = value.source_timestamp, value.payload
    if (
        type(value.type) is tuple
        and (source is None or type(source) is Timestamp)
        and (payload is None or type(payload) is JsonPayload or type(payload) is BinaryPayload)
    ):  # nearly always
        return value
    try:
        return event(value.type, payload, source_timestamp=source)
    except InvalidEventError as e:
        raise InvalidEventError(f"events[{index}]: {e}") from e


def query_of(params: QueryParams) -> QueryParams:
    """A query as it is sent; raises as :func:`timeseries`."""
    if isinstance(params, QueryServerParams):
        return params
    changes: dict[str, Any] = {}
    if params.event_types is not None:
        changes["event_types"] = event_types_of(params.event_types, "event_types")
    if isinstance(params, QueryTimeseriesParams):
        changes |= {name: _moment_of(getattr(params, name), name) for name in _TIMES}
        changes["payload"] = payload_of(params.payload)
    return msgspec.structs.replace(params, **changes)


class Asked(NamedTuple):
    """A registration, as ``register`` of a client was called; ``is_one``: by type and payload."""

    events: tuple[RegisterEvent, ...]
    request_key: str | None
    is_one: bool

    def answer(self, events: Sequence[Event]) -> Any:
        """What ``register`` returns: the event, or all of them."""
        if not self.is_one:
            return events
        if len(events) != 1:
            raise RemoteProtocolError(f"register_res: expected one event, got {len(events)}")
        return events[0]


def asked(
    events: TypeText | Sequence[RegisterEvent],
    payload: Any,
    request_key: str | None,
    source_timestamp: Moment | None,
) -> Asked:
    """A registration of one event, by its type, or of some, with the key in place of a payload.

    Raises as :func:`event`.
    """
    is_type = isinstance(events, tuple | list) and events and isinstance(events[0], str)
    if isinstance(events, str) or is_type:
        one = event(events, payload, source_timestamp=source_timestamp)  # type: ignore[arg-type]
        return Asked((one,), request_key, True)
    if source_timestamp is not None:
        raise TypeError("source_timestamp: expected with an event type only")
    if payload is not None and (request_key is not None or not isinstance(payload, str)):
        raise TypeError("payload: expected with an event type only")
    return Asked(events_of(events), payload if request_key is None else request_key, False)  # type: ignore[arg-type]
