"""Types of options: how a text, or an argument of ``mariner_spark.read``, becomes a value."""

import os
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import date, timedelta
from numbers import Integral, Real
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from eventer_bridge import moments
from eventer_bridge.errors import InvalidSubscriptionError
from eventer_bridge.model import INT64_MAX, INT64_MIN, EventType
from eventer_bridge.subscription import Subscription
from mariner_spark import times, type_path, values
from mariner_spark.errors import OptionError
from mariner_spark.source.offsets import decode_offsets, encode_offsets


class Kind(NamedTuple):
    """Type of an option.

    ``parse`` finds the value of an option's text, or raises ValueError. ``to_text`` finds the text
    of an argument of ``read``, or None, if that has another type than ``expected``.
    """

    parse: Callable[[str], Any]
    to_text: Callable[[Any], str | None]
    expected: str


def local_path(text: str) -> Path:
    """Absolute path of ``PATH``, ``file:PATH`` or ``file://PATH``, as users and Hadoop write it."""
    # tasks may run in another directory
    return Path(os.path.abspath(re.sub(r"^file:(//)?", "", text)))  # noqa: PTH100  # no links


def _text(text: str) -> str:
    if not text:
        raise ValueError("is empty")
    return text


def _string(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def number(first: int, last: int) -> Kind:
    """A whole number, within bounds."""

    def parse(text: str) -> int:
        if not (text.isascii() and text.isdigit() and first <= int(text) <= last):
            raise ValueError(f"expected a number from {first} to {last}")
        return int(text)

    return Kind(parse, integer, "a number")


def integer(value: Any) -> str | None:
    """Text of an integer argument, also of numpy's; None: it is none."""
    return None if isinstance(value, bool) or not isinstance(value, Integral) else str(value)


def _parse_boolean(text: str) -> bool:
    if text.lower() not in {"true", "false"}:
        raise ValueError("expected true or false")
    return text.lower() == "true"


def _moment(parse_text: Callable[[str], int]) -> Kind:
    def parse(text: str) -> int:
        try:
            return parse_text(text)
        except (ValueError, OverflowError) as e:
            raise ValueError(moments.EXPECTED) from e

    return Kind(parse, moment, MOMENT)


MOMENT: Final = "a datetime, a date, a string or seconds"


def moment(value: Any) -> str | None:
    """Text of an argument that is a :data:`MOMENT`; None: it is none."""
    match value:
        case bool():
            return None
        case str():
            return value
        case date():  # includes datetime
            return value.isoformat()
        case Real():  # also of numpy
            # as text, 20240501 would be a date
            try:
                return (times.EPOCH + timedelta(seconds=float(value))).isoformat()
            except (OverflowError, ValueError):
                return str(value)  # refused with the reason
    return None


_HOST: Final = re.compile(
    # an IPv6 address has brackets if there is a port, and needs none otherwise
    r"(?:\[(?P<bracketed>[^\[\]]+)\]|(?P<plain>[^:\[\]]+|[^\[\]]*:[^\[\]]*:[^\[\]]*))(?::(?P<port>\d+))?"
)
PORT: Final = number(1, 65_535)


def _parse_hosts(text: str) -> tuple[tuple[str, int | None], ...]:
    hosts: list[tuple[str, int | None]] = []
    for item in _text(text).split(","):
        match = _HOST.fullmatch(item.strip())
        if match is None:
            raise ValueError("expected HOST or HOST:PORT, separated by commas")
        own_port = None if match["port"] is None else PORT.parse(match["port"])
        hosts.append((match["bracketed"] or match["plain"], own_port))
    if len(set(hosts)) < len(hosts):
        raise ValueError("names a gateway twice")
    return tuple(hosts)


def _parse_servers(text: str) -> frozenset[int]:
    try:
        servers = frozenset(int(i) for i in text.split(","))
    except ValueError:
        raise ValueError("expected ids of servers, separated by commas") from None
    if not all(INT64_MIN <= i <= INT64_MAX for i in servers):
        raise ValueError("ids of servers have 64 bits")
    return servers


def _servers(value: Any) -> str | None:
    items = [integer(i) for i in (value if isinstance(value, Iterable) else [value])]
    texts = [i for i in items if i is not None]
    return ",".join(texts) if len(texts) == len(items) else None


_decode_types: Final = msgspec.json.Decoder(list[str | tuple[str, ...]]).decode


def _parse_types(text: str) -> tuple[EventType, ...]:
    items: list[Any]
    if text.lstrip().startswith("["):
        try:
            items = _decode_types(text)
        except (msgspec.DecodeError, UnicodeError) as e:
            raise ValueError(f"expected a JSON array of event types: {e}") from e
    else:
        items = [i.strip() for i in _text(text).split(",")]
    types = tuple(type_path.decode(i) if isinstance(i, str) else i for i in items)
    if not types:
        raise ValueError("expected an event type")
    try:
        Subscription(types)
    except InvalidSubscriptionError as e:
        raise ValueError(str(e)) from e
    return types


def _types(value: Any) -> str | None:
    if isinstance(value, str) or not isinstance(value, Iterable):
        return _string(value)
    items = list(value)
    # a tuple of strings is ambiguous: one type, or several
    is_unclear = isinstance(value, tuple) and any(isinstance(i, str) for i in items)
    if is_unclear or not all(_is_type(i) for i in items):
        return None
    return msgspec.json.encode(items).decode()


def _is_type(value: Any) -> bool:
    if isinstance(value, str):
        return True
    return isinstance(value, tuple | list) and all(isinstance(i, str) for i in value)


def _parse_starting(text: str) -> Mapping[str, Any] | str:
    if text in {"latest", "earliest"}:
        return text
    try:
        data = msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeError) as e:
        raise ValueError(f"expected earliest, latest or offsets as JSON: {e}") from None
    return encode_offsets(*decode_offsets(data))


def _parse_value_path(text: str) -> str:
    try:
        values.parse(text)
    except OptionError as e:
        raise ValueError(e.reason.partition(": ")[2]) from e
    return text


STRING: Final = Kind(str, _string, "a string")
HOSTS: Final = Kind(_parse_hosts, _string, "HOST or HOST:PORT")
NULL: Final = "null"
CLIP: Final = "clip"
"""Values of ``source_out_of_range``."""


def _parse_out_of_range(text: str) -> str:
    if text not in {NULL, CLIP}:
        raise ValueError(f"expected {NULL} or {CLIP}")
    return text


OUT_OF_RANGE: Final = Kind(_parse_out_of_range, _string, "a string")
BOOLEAN: Final = Kind(
    _parse_boolean,
    lambda value: str(value).lower() if isinstance(value, bool) else None,
    "True or False",
)
PATH: Final = Kind(
    lambda text: local_path(_text(text)),
    lambda value: str(value) if isinstance(value, str | Path) else None,
    "a path",
)
TYPES: Final = Kind(
    _parse_types, _types, "a string, or a list of strings and of tuples of segments"
)
SERVERS: Final = Kind(_parse_servers, _servers, "an id, or a list of ids")
FIRST: Final = _moment(times.parse)
LAST: Final = _moment(times.parse_last)
VALUE_PATH: Final = Kind(_parse_value_path, _string, "a string")
STARTING: Final = Kind(_parse_starting, _string, "a string")
