"""Text of what events contain, for people: bounded, without characters that are not seen.

What is returned is text, never markup; who shows it must show it as text.
"""

import itertools
import math
import re
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from eventer_bridge import model
from eventer_bridge.model import (
    Event,
    EventType,
    Payload,
    format_event_id,
    format_event_type,
    printable,
)
from mariner_console import limits

_DIGITS: Final = re.compile("([0-9]+)")

UNKNOWN: Final = "\N{EN DASH}"
"""In place of a value."""


def shown(text: str, max_characters: int = limits.MAX_EXCERPT_CHARACTERS) -> str:
    """A line of text: what cannot be printed is escaped, what is too long is cut."""
    return printable(model.cut(text, max_characters))


def of_type(event_type: EventType) -> str:
    """An event type, as the command line writes it."""
    return shown(format_event_type(event_type))


def of_payload(payload: Payload | None) -> str:
    """The beginning of a payload, in a line."""
    if payload is None:
        return ""
    if isinstance(payload, model.BinaryPayload):
        start_hex = payload.data[: limits.BINARY_SHOWN_BYTES].hex(" ")
        return shown(f"{len(payload.data)} bytes of {payload.data_type!r}: {start_hex}")
    # a character has up to 4 bytes, an escape 12
    start = bytes(memoryview(payload.data)[: 12 * limits.MAX_EXCERPT_CHARACTERS])
    return shown(start.decode(errors="replace"))


def unfolded(payload: Payload | None) -> str:
    """A payload in several lines; JSON is indented."""
    if not isinstance(payload, model.JsonPayload):
        return of_payload(payload) or "(no payload)"
    data = bytes(memoryview(payload.data)[: limits.MAX_UNFOLDED_BYTES])
    rest = len(memoryview(payload.data)) - len(data)
    if not rest:
        data = msgspec.json.format(data, indent=2)
        rest = max(0, len(data) - 4 * limits.MAX_UNFOLDED_BYTES)
        data = data[: 4 * limits.MAX_UNFOLDED_BYTES]
    lines = data.decode(errors="replace").split("\n")
    more = f"\n… {rest:,} bytes more" if rest else ""
    return "\n".join(map(printable, lines)) + more


def of_event(event: Event) -> str:
    """All of an event, in several lines."""
    lines = [
        f"id                {format_event_id(event.id)}",
        f"type              {shown(format_event_type(event.type), limits.MAX_UNFOLDED_BYTES)}",
        f"timestamp         {event.timestamp.to_iso()}",
    ]
    if event.source_timestamp is not None:
        lines.append(f"source timestamp  {event.source_timestamp.to_iso()}")
    return "\n".join([*lines, "", unfolded(event.payload)])


def is_large(payload: Payload | None) -> bool:
    """Whether no :func:`numbers` are looked for in a payload."""
    if not isinstance(payload, model.JsonPayload):
        return False
    return len(memoryview(payload.data)) > limits.MAX_UNFOLDED_BYTES


def numbers(payload: Payload | None) -> dict[str, float]:
    """Numbers in a JSON payload by their paths, as ``motor.speed``; the root has an empty one.

    At most one more than ``limits.MAX_NUMBERS``.
    """
    if not isinstance(payload, model.JsonPayload) or is_large(payload):
        return {}
    try:
        # one more than can be drawn tells that there are more
        return dict(itertools.islice(_numbers(payload.value(), "", 4), limits.MAX_NUMBERS + 1))
    except (msgspec.DecodeError, RecursionError, OverflowError, UnicodeError):
        return {}


def _numbers(value: Any, path: str, depth: int) -> Iterator[tuple[str, float]]:
    if isinstance(value, int | float) and not isinstance(value, bool):
        number = float(value)
        if math.isfinite(number):
            yield path, number
    elif depth and isinstance(value, dict):
        for key, item in value.items():
            name = shown(key, 60)
            yield from _numbers(item, f"{path}.{name}" if path else name, depth - 1)
    elif depth and isinstance(value, list):
        for index, item in enumerate(value[: limits.MAX_NUMBERS]):
            yield from _numbers(item, f"{path}[{index}]", depth - 1)


def natural(text: str) -> list[Any]:
    """A key to sort texts by in the order of people: ``sensor2`` before ``sensor10``."""
    parts = _DIGITS.split(text)
    # numbers of any length: the one with more digits is larger
    parts[1::2] = [(len(i), i) for i in (j.lstrip("0") for j in parts[1::2])]
    return parts


def of_moment(timestamp: model.Timestamp) -> str:
    """Date and time in UTC, to milliseconds."""
    text = timestamp.to_iso()
    return f"{text[:10]} {text[11:23]}" if text.endswith("Z") else text


def of_number(value: float | None, unit: str = "") -> str:
    """Three digits, and a prefix as k or M; a dash for what is not known."""
    if value is None:
        return UNKNOWN
    for limit, factor, prefix in ((1e12, 1e12, "T"), (1e9, 1e9, "G"), (1e6, 1e6, "M")):
        if abs(value) >= limit:
            return f"{value / factor:.3g} {prefix}{unit}"
    if abs(value) >= 10_000:
        return f"{value / 1e3:.3g} k{unit}"
    text = f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"
    return f"{text} {unit}".rstrip()


def of_seconds(value: float | None) -> str:
    """A duration, from microseconds to days."""
    if value is None:
        return UNKNOWN
    if not value:
        return "0 s"
    for limit, factor, unit in ((1e-3, 1e6, "µs"), (1.0, 1e3, "ms"), (120.0, 1.0, "s")):
        if value < limit:
            return f"{value * factor:.3g} {unit}"
    if value < 7_200:
        return f"{value / 60:.0f} min"
    return f"{value / 3_600:.0f} h" if value < 172_800 else f"{value / 86_400:.0f} days"
