"""Events as columns: what a gateway answers."""

from collections.abc import Callable, Sequence
from typing import Any, Final

import pyarrow as pa

from eventer_bridge.model import BinaryPayload, Event, EventType, JsonPayload
from mariner_spark import times
from mariner_spark.source.columns import BINARY, JSON, to_utf8, type_column


class EventRows:
    """Some events; see ``columns.Rows``.

    Args:
        events: the events; at least one.
    """

    def __init__(self, events: Sequence[Event]) -> None:
        self._events = events

    def column(self, field: pa.Field) -> pa.Array:
        """See ``columns.Rows``."""
        if field.name in {"type", "type_path"}:
            places: dict[EventType, int] = {}
            indices = [places.setdefault(i.type, len(places)) for i in self._events]
            return type_column(field, list(places), pa.array(indices))
        value = _VALUES[field.name]
        return pa.array([value(i) for i in self._events], field.type)


def _source_timestamp(event: Event) -> int | None:
    return None if event.source_timestamp is None else times.to_us(event.source_timestamp)


def _kind(event: Event) -> str | None:
    if event.payload is None:
        return None
    return JSON if isinstance(event.payload, JsonPayload) else BINARY


def _json(event: Event) -> bytes | None:
    return bytes(event.payload.data) if isinstance(event.payload, JsonPayload) else None


def _binary_type(event: Event) -> bytes | None:
    payload = event.payload
    return to_utf8(payload.data_type) if isinstance(payload, BinaryPayload) else None


def _binary(event: Event) -> bytes | None:
    return event.payload.data if isinstance(event.payload, BinaryPayload) else None


_VALUES: Final[dict[str, Callable[[Event], Any]]] = {
    "server": lambda i: i.id.server,
    "session": lambda i: i.id.session,
    "instance": lambda i: i.id.instance,
    "timestamp": lambda i: times.to_us(i.timestamp),
    "source_timestamp": _source_timestamp,
    "payload_kind": _kind,
    "payload_json": _json,
    "payload_type": _binary_type,
    "payload_binary": _binary,
}
