"""What JSON is, by Python's parser, to compare with what the codecs say."""

import json
import math
from fractions import Fraction
from typing import Any, NoReturn

from eventer_bridge import limits


def parse(message: bytes) -> Any:
    """The value of a message; integers are exact, however they are written.

    Raises:
        ValueError: it is no UTF-8, no JSON, or has a lone surrogate.
    """
    text = message.decode()
    if "\\ud" in text.lower():  # also in what is given twice
        everything = json.loads(text, parse_constant=_refuse, object_pairs_hook=list)
        json.dumps(everything, ensure_ascii=False).encode()
    return json.loads(text, parse_constant=_refuse, parse_float=_number)


def _number(text: str) -> int | float:
    """The exact integer; else a float that is none, infinite if it is out of all bounds."""
    mantissa, _, exponent = text.lower().partition("e")
    if not mantissa.strip("-0."):
        return 0
    if len(exponent) > 6:
        return 0.5 if exponent.startswith("-") else math.inf
    value = Fraction(text)
    if value.denominator == 1 and abs(value) < 10**400:
        return int(value)
    return 0.5 if abs(value) < 10**400 else math.inf


def _refuse(constant: str) -> NoReturn:
    raise ValueError(constant)


def keeps_bounds(value: Any, levels: int = limits.MAX_JSON_DEPTH) -> bool:
    """Whether a payload may be registered (``payloads.exceeded``)."""
    if isinstance(value, dict | list):
        inner = value.values() if isinstance(value, dict) else value
        return levels > 0 and all(keeps_bounds(i, levels - 1) for i in inner)
    return not isinstance(value, int) or len(str(abs(value))) <= limits.MAX_NUMBER_DIGITS
