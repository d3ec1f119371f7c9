"""Numbers of JSON payloads, found in Python: the column ``value`` of ``values`` without Spark."""

from collections.abc import Callable
from typing import Any, Final

import msgspec
import pyarrow as pa

from mariner_spark import values

_decode_number: Final = msgspec.json.Decoder(float).decode


def find_numbers(payloads: pa.Array, path: str) -> pa.Array:
    """Numbers at a path, as ``values`` explains it.

    Args:
        payloads: JSON texts, or null.
        path: the path.

    Returns:
        The number of each payload; null: it has none, or one that cannot be read.

    Raises:
        OptionError: the path is invalid.
    """
    find = _finder(values.parse(path))
    found = [None if i is None else find(i) for i in payloads.to_pylist()]
    return pa.array(found, pa.float64())


def _finder(keys: list[str]) -> Callable[[str], float | None]:
    decoders = [_decoder(key) for key in keys]

    def find(text: str) -> float | None:
        found: Any = text
        try:
            if text[:1] == "{" or text.lstrip()[:1] == "{":
                for decode in decoders:
                    found = decode(found).found
            return _decode_number(found)
        except (msgspec.DecodeError, RecursionError):  # no such number, or too deep to find it
            return None

    return find


def _decoder(key: str) -> Callable[[Any], Any]:
    """Decoder of objects: ``found`` is the raw text of the last member of that name, or empty."""
    field = msgspec.field(name=key, default=msgspec.Raw())
    return msgspec.json.Decoder(
        msgspec.defstruct("_Object", [("found", msgspec.Raw, field)], gc=False)
    ).decode
