"""Numbers of JSON payloads, found in Python: the column ``value`` of ``values`` without Spark."""

from collections.abc import Callable
from functools import cache
from typing import Any, Final, TypeAlias

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from mariner_spark import values

_Other: TypeAlias = bool | str | list[msgspec.Raw] | None
_Leaf: TypeAlias = float | _Other | dict[str, msgspec.Raw]

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
    names = tuple(values.parse(path))
    try:
        found = _find_all(payloads, names)
    except (msgspec.DecodeError, RecursionError):  # some number cannot be read: which one?
        find = _finder(names)
        found = [None if i is None else find(i) for i in payloads.to_pylist()]
    return pa.array(found, pa.float64())


def _find_all(payloads: pa.Array, names: tuple[str, ...]) -> list[float | None]:
    """Numbers of payloads, decoded as one array: in a third of the time.

    Raises:
        DecodeError, RecursionError: one cannot be decoded.
    """
    texts = pa.ListArray.from_arrays([0, len(payloads)], pc.fill_null(payloads, "null"))
    [text] = pc.binary_join(texts, ",")
    found = roots = _array_decoder(names)(b"[%b]" % text.as_buffer())
    if len(roots) != len(payloads):
        raise msgspec.DecodeError
    for _ in names:
        found = [getattr(i, "found", None) for i in found]
    # a payload may be a number itself, whatever the path
    pairs = zip(found, roots, strict=True)
    return [i if type(i) is float else j if type(j) is float else None for i, j in pairs]


@cache
def _array_decoder(names: tuple[str, ...]) -> Callable[[bytes], list[Any]]:
    kind: Any = _Leaf
    for name in reversed(names):
        field = msgspec.field(name=name, default=None)
        kind = msgspec.defstruct("_Object", [("found", kind, field)], gc=False) | float | _Other
    return msgspec.json.Decoder(list[kind]).decode


def _finder(names: tuple[str, ...]) -> Callable[[str], float | None]:
    decoders = [_decoder(name) for name in names]

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
