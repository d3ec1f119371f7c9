"""Parsing and formatting event types, moments and events on the command line.

An event type is its segments joined by ``/``: ``a/b/*``. A type with a ``/`` in a segment, or
without segments, is a JSON array: ``["a/b", "c"]``. For moments, see ``eventer_bridge.moments``.
"""

import re
from collections.abc import Callable
from typing import Any, Final, TypeVar

import click
import msgspec

from eventer_bridge import moments
from eventer_bridge.errors import InvalidEventError
from eventer_bridge.model import (
    INT64_MAX,
    INT64_MIN,
    BinaryPayload,
    EventId,
    EventType,
    JsonPayload,
    Payload,
    RegisterEvent,
    Timestamp,
    check_registrable,
)
from eventer_bridge.subscription import Subscription

T = TypeVar("T")

_NULL: Final = msgspec.Raw(b"null")
_EVENT_ID: Final = re.compile(r"(-?[0-9]{1,19})/(-?[0-9]{1,19})/(-?[0-9]{1,19})")


class _RegisterLine(msgspec.Struct, forbid_unknown_fields=True):
    """An event to register, as a line of input."""

    type: tuple[str, ...] | str
    payload: msgspec.Raw = _NULL
    source_timestamp: Timestamp | str | float | None = None
    # printed by `query` and `subscribe`; ignored
    id: msgspec.Raw = _NULL
    timestamp: msgspec.Raw = _NULL


class _PayloadProbe(msgspec.Struct):
    payload_type: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


_decode_line: Final = msgspec.json.Decoder(_RegisterLine).decode
_decode_probe: Final = msgspec.json.Decoder(_PayloadProbe).decode
_decode_payload: Final[Callable[[bytes], Payload]] = msgspec.json.Decoder(
    JsonPayload | BinaryPayload
).decode
_decode_raw: Final = msgspec.json.Decoder(msgspec.Raw).decode
_decode_type: Final = msgspec.json.Decoder(tuple[str, ...]).decode


def parse_event_type(text: str) -> EventType:
    """An event type, with or without wildcards.

    Raises:
        InvalidEventError: the text is empty, or begins with ``[`` and is no JSON array of strings.
    """
    if text.startswith("["):
        try:
            return _decode_type(text)
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


def parse_timestamp(value: str | float) -> Timestamp:
    """A moment as text (``moments``), or seconds since 1970-01-01 as number.

    Raises:
        InvalidEventError: it is invalid, or out of range.
    """
    if isinstance(value, str):
        return moments.parse(value)
    try:
        return Timestamp.from_float(value)
    except InvalidEventError:
        raise
    except (ValueError, OverflowError) as e:
        raise InvalidEventError(f"{value!r}: {moments.EXPECTED}") from e


def plural(number: int, one: str) -> str:
    """The word for so many: ``event`` for 1, else ``events``."""
    return one if number == 1 else f"{one}s"


def counted(number: int, one: str) -> str:
    """So many: ``1 event``, ``2 events``."""
    return f"{number} {plural(number, one)}"


def format_timestamp(timestamp: Timestamp) -> str:
    """As :meth:`Timestamp.to_iso`."""
    return timestamp.to_iso()


def parse_register_event(line: str | bytes) -> RegisterEvent:
    """An event to register from its JSON object (see ``mariner register --help``).

    Raises:
        InvalidEventError: it is invalid; the text says why.
    """
    try:
        text = line if isinstance(line, str) else line.decode("utf-8")
        fields = _decode_line(text)
    except UnicodeError as e:
        raise InvalidEventError(f"not UTF-8 text: {e}") from e
    except (msgspec.DecodeError, RecursionError) as e:
        raise InvalidEventError(str(e)) from e
    try:
        payload = _parse_payload(fields.payload)
    except (msgspec.DecodeError, RecursionError) as e:
        raise InvalidEventError(f"payload: {e}") from e
    event_type = fields.type
    if isinstance(event_type, str):
        event_type = parse_event_type(event_type)
    check_registrable(event_type)
    source_timestamp = fields.source_timestamp
    if isinstance(source_timestamp, str | float):
        try:
            source_timestamp = parse_timestamp(source_timestamp)
        except InvalidEventError as e:
            raise InvalidEventError(f"source_timestamp: {e}") from e
    return RegisterEvent(event_type, source_timestamp, payload)


def _parse_payload(raw: msgspec.Raw) -> Payload | None:
    data = bytes(raw)
    if data == b"null":
        return None
    if data.startswith(b"{") and _decode_probe(data).payload_type is not msgspec.UNSET:
        return _decode_payload(data)
    return JsonPayload(msgspec.Raw(data))


def parse_payload(text: str) -> Payload:
    """A payload, as in an event to register; ``null`` is the JSON value.

    Raises:
        InvalidEventError: it is invalid; the text says why.
    """
    try:
        payload = _parse_payload(_decode_raw(text))
    except (msgspec.DecodeError, UnicodeError, RecursionError) as e:
        raise InvalidEventError(f"expected JSON: {e}") from e
    return JsonPayload(_NULL) if payload is None else payload


def parse_event_id(text: str) -> EventId:
    """An event id: ``server/session/instance``.

    Raises:
        InvalidEventError: it is not three integers of 64 bits.
    """
    match = _EVENT_ID.fullmatch(text)
    numbers = [int(i) for i in match.groups()] if match else []
    if not numbers or not all(INT64_MIN <= i <= INT64_MAX for i in numbers):
        raise InvalidEventError(f"{text!r}: expected SERVER/SESSION/INSTANCE, as 1/42/1")
    return EventId(*numbers)


def event_types_option(
    ctx: click.Context, param: click.Parameter, texts: tuple[str, ...]
) -> tuple[EventType, ...] | None:
    """Callback of a repeatable option for event types; None: it was not given.

    Raises:
        click.BadParameter: one of them is invalid.
    """
    try:
        event_types = tuple(parse_event_type(text) for text in texts)
        Subscription(event_types)  # checks that '*' is last
        return event_types or None
    except InvalidEventError as e:
        raise click.BadParameter(str(e), ctx, param) from e


def value_option(parse: Callable[[str], T]) -> Callable[..., T | None]:
    """Callback of an option with a parser; None: it was not given."""

    def callback(ctx: click.Context, param: click.Parameter, text: str | None) -> T | None:
        try:
            return None if text is None else parse(text)
        except InvalidEventError as e:
            raise click.BadParameter(str(e), ctx, param) from e

    return callback


def values_option(parse: Callable[[str], T]) -> Callable[..., tuple[T, ...] | None]:
    """As :func:`value_option`, for a repeatable option."""
    read = value_option(parse)

    def callback(
        ctx: click.Context, param: click.Parameter, texts: tuple[str, ...]
    ) -> tuple[T, ...] | None:
        values = tuple(value for text in texts if (value := read(ctx, param, text)) is not None)
        return values or None

    return callback


EVENT_IDS: Final[dict[str, Any]] = {
    "metavar": "SERVER/SESSION/INSTANCE",
    "multiple": True,
    "callback": values_option(parse_event_id),
}
"""A repeatable option for event ids."""
