"""Links from a report to the events behind a row of it, in a query of the console."""

from datetime import datetime
from typing import Final, NamedTuple
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import msgspec

from eventer_bridge.model import EventType, format_event_type
from mariner_spark import times, type_path
from mariner_spark.errors import OptionError, quoted

_LIMIT: Final = 1_000
"""Events that such a query shows: the first ones."""


class Behind(NamedTuple):
    """Events that a row is about: those of a pattern, from a moment to another one, included."""

    pattern: EventType
    begin: datetime | None = None
    end: datetime | None = None


def of_type(path: str, begin: datetime | None = None, end: datetime | None = None) -> Behind:
    """Those of a type."""
    return Behind(type_path.decode(path), begin, end)


def of_prefix(path: str, begin: datetime | None = None, end: datetime | None = None) -> Behind:
    """Those of the types that begin like a path."""
    return Behind((*type_path.decode(path), "*"), begin, end)


def check(console: str) -> None:
    """Refuse what cannot be the address of a console; raises OptionError."""
    try:
        console.encode()  # to a page
        parts = urlsplit(console)
        is_address = (
            parts.scheme in {"http", "https"}
            and bool(parts.hostname)
            and not parts.fragment
            and parts.username is None
            and parts.port != 0
        )
    except ValueError:
        is_address = False
    if not is_address:
        example = "http://127.0.0.1:23080"
        raise OptionError("console", f"{quoted(console)}: expected an address as {example}")


def link(console: str, behind: Behind) -> str:
    """Address of a query of the console; ``console`` may name a gateway: ``…/?gateway=plant``."""
    parts = urlsplit(console)
    query = {
        **dict(parse_qsl(parts.query)),
        "view": "Query",
        "types": _pattern(behind.pattern),
        **{
            name: times.to_iso(times.from_datetime(moment))
            for name, moment in (("from", behind.begin), ("to", behind.end))
            if moment is not None
        },
        "limit": str(_LIMIT),
        "order": "old",
    }
    return urlunsplit(parts._replace(path=parts.path or "/", query=urlencode(query)))


def _pattern(pattern: EventType) -> str:
    """As the console takes it: without blanks, which separate patterns there."""
    text = format_event_type(pattern)
    if any(map(str.isspace, text)):
        text = msgspec.json.encode(pattern).decode()
    return "".join(f"\\u{ord(i):04x}" if i.isspace() else i for i in text)
