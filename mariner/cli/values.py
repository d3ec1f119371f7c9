"""Parsing moments, events and patterns on the command line.

For event types, see ``eventer_bridge.model``, for moments ``eventer_bridge.moments``.
"""

import re
from collections.abc import Callable
from typing import Any, Final

import click
import msgspec
from typing_extensions import override

from eventer_bridge import model, moments
from eventer_bridge.errors import InvalidEventError
from eventer_bridge.subscription import Subscription

_NULL: Final = msgspec.Raw(b"null")
_UNITS: Final = ((86_400, "d"), (3_600, "h"), (60, "min"))
_EVENT_ID: Final = re.compile(r"(-?[0-9]{1,19})/(-?[0-9]{1,19})/(-?[0-9]{1,19})")


class _RegisterLine(msgspec.Struct, forbid_unknown_fields=True):
    """An event to register, as a line of input."""

    type: tuple[str, ...] | str
    payload: msgspec.Raw = _NULL
    source_timestamp: model.Timestamp | str | float | None = None
    # printed by `query` and `subscribe`; ignored
    id: msgspec.Raw = _NULL
    timestamp: msgspec.Raw = _NULL


class _PayloadProbe(msgspec.Struct):
    payload_type: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


_decode_line: Final = msgspec.json.Decoder(_RegisterLine).decode
_decode_probe: Final = msgspec.json.Decoder(_PayloadProbe).decode
_decode_payload: Final[Callable[[bytes], model.Payload]] = msgspec.json.Decoder(
    model.JsonPayload | model.BinaryPayload
).decode
_decode_raw: Final = msgspec.json.Decoder(msgspec.Raw).decode


def parse_timestamp(value: str | float) -> model.Timestamp:
    """A moment as text (``moments``), or seconds since 1970-01-01; raises InvalidEventError."""
    if isinstance(value, str):
        return moments.parse(value)
    try:
        return model.Timestamp.from_float(value)
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


def duration(seconds: float) -> str:
    """A duration for people: ``3 d 4 h``, ``2 min 5 s``, ``0.2 s``."""
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    whole = round(seconds)
    for index, (unit_s, unit) in enumerate(_UNITS):
        if whole >= unit_s:
            smaller_s, smaller = (*_UNITS, (1, "s"))[index + 1]
            return f"{whole // unit_s} {unit} {whole % unit_s // smaller_s} {smaller}"
    raise AssertionError("unreachable")


def parse_register_event(line: str | bytes) -> model.RegisterEvent:
    """An event to register from its JSON object (see ``mariner register --help``).

    Raises InvalidEventError, with the reason.
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
        event_type = model.parse_event_type(event_type)
    model.check_registrable(event_type)
    source_timestamp = fields.source_timestamp
    if isinstance(source_timestamp, str | float):
        try:
            source_timestamp = parse_timestamp(source_timestamp)
        except InvalidEventError as e:
            raise InvalidEventError(f"source_timestamp: {e}") from e
    return model.RegisterEvent(event_type, source_timestamp, payload)


def _parse_payload(raw: msgspec.Raw) -> model.Payload | None:
    data = bytes(raw)
    if data == b"null":
        return None
    if data.startswith(b"{") and _decode_probe(data).payload_type is not msgspec.UNSET:
        return _decode_payload(data)
    return model.JsonPayload(msgspec.Raw(data))


def parse_payload(text: str) -> model.Payload:
    """A payload as in an event to register, but ``null`` is JSON; raises InvalidEventError."""
    try:
        payload = _parse_payload(_decode_raw(text))
    except (msgspec.DecodeError, UnicodeError, RecursionError) as e:
        raise InvalidEventError(f"expected JSON: {e}") from e
    return model.JsonPayload(_NULL) if payload is None else payload


def parse_typed_event(event_type: str, payload: str) -> model.RegisterEvent:
    """An event to register from its type, and a payload that is JSON or else a text.

    Raises InvalidEventError: what begins as an object, an array or a string has to be JSON.
    """
    try:
        f"{event_type}{payload}".encode()
    except UnicodeError as e:
        raise InvalidEventError(f"not UTF-8 text: {e}") from e
    parsed_type = model.parse_event_type(event_type)
    model.check_registrable(parsed_type)
    try:
        return model.RegisterEvent(parsed_type, None, parse_payload(payload))
    except InvalidEventError as e:
        if payload.lstrip().startswith(("{", "[", '"')):
            raise InvalidEventError(f"payload: {e}") from e
    return model.RegisterEvent(parsed_type, None, model.JsonPayload.of(payload))


def parse_event_id(text: str) -> model.EventId:
    """The opposite of ``model.format_event_id``; raises InvalidEventError."""
    match = _EVENT_ID.fullmatch(text)
    numbers = [int(i) for i in match.groups()] if match else []
    if not numbers or not all(model.INT64_MIN <= i <= model.INT64_MAX for i in numbers):
        raise InvalidEventError(f"{text!r}: expected SERVER/SESSION/INSTANCE, as 1/42/1")
    return model.EventId(*numbers)


class Parsed(click.ParamType):  # type: ignore[type-arg]  # of newer versions
    """The type of an option or argument that a function parses; it raises InvalidEventError."""

    def __init__(self, parse: Callable[[str], object]) -> None:
        self.name = "text"
        self._parse = parse

    @override
    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> object:
        try:
            value.encode()
            return self._parse(value)
        except UnicodeEncodeError:
            self.fail(f"{value!r} is not UTF-8 text", param, ctx)
        except InvalidEventError as e:
            self.fail(str(e), param, ctx)


def _pattern(text: str) -> model.EventType:
    pattern = model.parse_event_type(text)
    Subscription([pattern])  # checks that '*' is last
    return pattern


PATTERN: Final = Parsed(_pattern)
EVENT_ID: Final = Parsed(parse_event_id)
EVENT_ID_METAVAR: Final = "SERVER/SESSION/INSTANCE"


VALUES: Final = {"ignore_unknown_options": True, "help_option_names": ["--help"]}
"""Settings of a command whose arguments may be -1, or -1h: click takes the h for help."""


def _past(parse: Callable[..., object]) -> dict[str, Any]:
    """Attributes of an option for a moment, which may be relative to now."""
    return {
        "metavar": "TIME",
        "type": Parsed(lambda text: parse(text, now=model.Timestamp.now())),
    }


TIME: Final = _past(moments.parse)
LAST_TIME: Final = _past(moments.parse_last)
TIME_HELP: Final = (
    "How long ago (-30m, -1h, -2d; units s, m, h, d, w), now, ISO 8601 (UTC if it names no zone;"
    " eight digits are a date), or seconds since 1970-01-01."
)
