"""What JSON is, by Python's parser, to compare with what the codecs say."""

import json
from typing import Any, NoReturn

from eventer_bridge import limits


def parse(message: bytes) -> Any:
    """The value of a message.

    Raises:
        ValueError: it is no UTF-8, no JSON, or has a lone surrogate.
    """
    text = message.decode()
    if "\\ud" in text.lower():  # also in what is given twice
        everything = json.loads(text, parse_constant=_refuse, object_pairs_hook=list)
        json.dumps(everything, ensure_ascii=False).encode()
    return json.loads(text, parse_constant=_refuse)


def _refuse(constant: str) -> NoReturn:
    raise ValueError(constant)


def keeps_bounds(value: Any, levels: int = limits.MAX_JSON_DEPTH) -> bool:
    """Whether a payload may be registered (``payloads.exceeded``)."""
    if isinstance(value, dict | list):
        inner = value.values() if isinstance(value, dict) else value
        return levels > 0 and all(keeps_bounds(i, levels - 1) for i in inner)
    return not isinstance(value, int) or len(str(abs(value))) <= limits.MAX_NUMBER_DIGITS
