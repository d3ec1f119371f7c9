"""Formats of numbers, moments and texts on the page; no line break before a unit."""

import itertools
import math
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final

from mariner_spark import limits

NOTHING: Final = "\N{EN DASH}"
"""Shown if there is no value."""

_MINUS: Final = "\N{MINUS SIGN}"
_SPACE: Final = "\N{NO-BREAK SPACE}"
_TIMES: Final = "\N{MULTIPLICATION SIGN}"
_BYTE_UNITS: Final = ("kB", "MB", "GB", "TB", "PB", "EB")
_TIME_UNITS: Final = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))
_SMALL_UNITS: Final = (("µs", 1e-6, 999.5e-6), ("ms", 1e-3, 999.5e-3), ("s", 1.0, 59.95))
"""Units, their seconds, and the number of seconds that rounds to one of the next unit."""


def count(number: int) -> str:
    """A number of things: ``1,234``."""
    return f"{number:,}"


def size(n_bytes: int) -> str:
    """A number of bytes: ``1.23 MB``."""
    if n_bytes < 1_000:
        return f"{n_bytes}{_SPACE}B"
    number = float(n_bytes)
    for unit in _BYTE_UNITS:
        number /= 1_000
        if number < 999.5 or unit == _BYTE_UNITS[-1]:
            break
    return f"{_digits(number, 3)}{_SPACE}{unit}"


def duration(seconds: float) -> str:
    """A time, rounded: ``350 µs``, ``1.5 s``, ``2 h 5 min``, ``12 d``.

    Below ten of a unit, the next smaller unit follows.
    """
    if seconds < 0:
        return _MINUS + duration(-seconds)
    if seconds == 0:
        return f"0{_SPACE}s"
    for unit, scale, end in _SMALL_UNITS:
        if seconds < end:
            return f"{_digits(seconds / scale, 3)}{_SPACE}{unit}"
    for (unit, length), (small_unit, small) in itertools.pairwise(_TIME_UNITS):
        number, rest = divmod(round(seconds / small), length // small)
        if number >= 10:
            return f"{count(round(seconds / length))}{_SPACE}{unit}"
        if number:
            tail = f"{_SPACE}{rest}{_SPACE}{small_unit}" if rest else ""
            return f"{number}{_SPACE}{unit}{tail}"
    raise AssertionError("a minute and more has a unit")


def share(part: float) -> str:
    """A part of a whole: ``12.3 %``; ``100 %`` and ``0 %`` only if exact."""
    percent = part * 100
    if 0 < percent < 0.1:
        return f"<{_SPACE}0.1{_SPACE}%"
    if 99.9 < percent < 100:
        return f">{_SPACE}99.9{_SPACE}%"
    return f"{percent:.1f}".removesuffix(".0") + f"{_SPACE}%"


def growth(ratio: float) -> str:
    """A change: ``+25 %``; ``0 %``, without a sign, only if exact."""
    sign = "+" if ratio else ""
    return f"{ratio * 100:{sign},.0f}{_SPACE}%".replace("-", _MINUS)


def number(value: float) -> str:
    """Any number, to six digits: ``1,234.5``, ``1.5e+20``."""
    if not math.isfinite(value):
        return NOTHING
    if value != 0 and not 1e-4 <= abs(value) < 1e12:
        text = f"{value:.6g}"
    else:
        digits = max(0, 5 - math.floor(math.log10(abs(value)))) if value else 0
        text = f"{value:,.{digits}f}"
        text = text.rstrip("0").rstrip(".") if "." in text else text
    return text.replace("-", _MINUS) if not text.startswith("-0") or value else "0"


def plain(value: float) -> str:
    """A number as users write it: ``3600``, ``0.5``."""
    return f"{value:.15g}"


def ratio(value: float) -> str:
    """A ratio: ``12`` and a multiplication sign."""
    return f"{_digits(value, 2) if value < 1_000 else count(round(value))}{_TIMES}"


def moment(value: datetime) -> str:
    """A moment by its clock, to milliseconds: ``2025-01-01 12:00:00.25``."""
    text = value.replace(tzinfo=None).isoformat(sep=" ", timespec="milliseconds")
    return text.rstrip("0").removesuffix(".") if "." in text else text


def flag(value: bool) -> str:
    """Yes or no."""
    return "yes" if value else "no"


def text(value: str) -> str:
    """Untrusted text with control characters escaped."""
    if value.isprintable():
        return value
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape", "replace").decode()
        for char in value
    )


def name(value: str) -> str:
    """Untrusted name, short enough for a sentence or a table."""
    return _shortened(text(value), limits.NAME_CHARACTERS)


def label(value: str) -> str:
    """Untrusted name, short enough for a label beside a chart."""
    return _shortened(text(value), limits.LABEL_CHARACTERS) or "(empty)"


def _shortened(shown: str, n_characters: int) -> str:
    """Text with its middle left out, because the end says more."""
    if len(shown) <= n_characters:
        return shown
    tail = n_characters * 2 // 3
    return f"{shown[: n_characters - tail - 1]}…{shown[-tail:]}"


def _digits(value: float, n_digits: int) -> str:
    """A positive number with ``n_digits`` significant digits, without trailing zeros."""
    n_decimals = max(0, n_digits - 1 - math.floor(math.log10(value))) if value else 0
    shown = f"{value:.{n_decimals}f}"
    return shown.rstrip("0").rstrip(".") if "." in shown else shown


FORMATS: Final[Mapping[str, Callable[[Any], str]]] = {
    "count": count,
    "size": size,
    "duration": duration,
    "share": share,
    "growth": growth,
    "number": number,
    "ratio": ratio,
    "moment": moment,
    "flag": flag,
    "text": text,
    "path": name,
}
"""Formats of columns, by their names."""


def show(kind: str, value: Any) -> str:
    """A value in a format of :data:`FORMATS`; :data:`NOTHING` for none."""
    return NOTHING if value is None else FORMATS[kind](value)
