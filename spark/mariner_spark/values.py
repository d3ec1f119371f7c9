"""Numbers, and other values, of JSON payloads: found by whoever reads or ingests the events.

The number of an event is at a *path* in its JSON payload: ``$`` and keys, as ``$.value``,
``$.phase.current`` or ``$['a key'].value``. A payload that is itself a number is used for any path;
``$`` selects only those.

Only JSON numbers count, not texts (``"12"``) or booleans. Of duplicate keys the last one counts. A
number that cannot be read is null, and *unread*: one out of the range of a double (``1e999``), and
any number in a payload that is malformed.
"""

import re
from collections.abc import Callable
from functools import cache
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from mariner_spark.errors import OptionError

DEFAULT_PATH: Final = "$.value"

_KEY: Final = re.compile(r"""\.([^.\[\]'"\s]+)|\['([^']+)'\]|\["([^"]+)"\]""")
_REFUSED: Final = re.compile(r'["\\\x00-\x1f\ud800-\udfff]')
"""In a key: msgspec has no fields of such names."""


def parse(path: str) -> list[str]:
    """Keys of a path; raises OptionError if it is invalid."""
    keys: list[str] = []
    position = 1
    while match := _KEY.match(path, position):
        keys.append(match[1] or match[2] or match[3])
        position = match.end()
    if not path.startswith("$") or position < len(path):
        raise OptionError("value_path", f"{path!r}: expected a path as $.value or $.a['b c']")
    if refused := _REFUSED.search("".join(keys)):
        raise OptionError("value_path", f"{path!r}: a key cannot have {refused[0]!r}")
    return keys


class Numbers(NamedTuple):
    """Numbers of payloads.

    ``values`` (double): null where there is none, or it cannot be read; ``unread`` (boolean): where
    it cannot be read.
    """

    values: pa.Array
    unread: pa.Array


def find_numbers(payloads: pa.Array, path: str) -> pa.Array:
    """The number of each payload (a JSON text or null); null: none, or one that cannot be read."""
    return find(payloads, path).values


def find(payloads: pa.Array, path: str) -> Numbers:
    """As :func:`find_numbers`, and which of them cannot be read; raises as :func:`parse`."""
    names = tuple(parse(path))
    try:
        found, unread = _find_all(payloads, names), [False] * len(payloads)
    except (msgspec.DecodeError, RecursionError):  # some number cannot be read: which one?
        find_one = _finder(names)
        pairs = [(None, False) if i is None else find_one(i) for i in payloads.to_pylist()]
        found, unread = [i for i, _ in pairs], [i for _, i in pairs]
    return Numbers(pa.array(found, pa.float64()), pa.array(unread, pa.bool_()))


def find_typed(payloads: pa.Array, path: str, kind: type[float | str | bool]) -> pa.Array:
    """The value of each payload that is of a type, at a path; null: there is none.

    Unlike :func:`find`, a payload that is itself such a value counts for the path ``$`` only.
    Raises as :func:`parse`.
    """
    names = tuple(parse(path))
    try:
        found, _ = _decode_all(payloads, names)
    except (msgspec.DecodeError, RecursionError):  # some payload cannot be read: which one?
        found = [None if i is None else _find_one(i, names) for i in payloads.to_pylist()]
    type_ = {float: pa.float64(), str: pa.string(), bool: pa.bool_()}[kind]
    return pa.array([i if type(i) is kind else None for i in found], type_)


def _find_one(payload: str, names: tuple[str, ...]) -> Any:
    try:
        [found], _ = _decode_all(pa.array([payload]), names)
    except (msgspec.DecodeError, RecursionError):
        return None
    return found


def find_unit(payload: str | None, path: str) -> str | None:
    """Text of the key ``unit`` beside the number of a payload; null: none, or it is cut.

    Raises as :func:`parse`.
    """
    names = parse(path)
    found: Any = payload
    try:
        for name in (*names[:-1], "unit") if names and payload else ():
            found = _decoder(name)(found).found
        return _decode_text(found) if names and payload else None
    except (msgspec.DecodeError, RecursionError):
        return None


_Other: TypeAlias = bool | str | list[msgspec.Raw] | None
_Leaf: TypeAlias = float | _Other | dict[str, msgspec.Raw]

_decode_number: Final = msgspec.json.Decoder(float).decode
_decode_text: Final = msgspec.json.Decoder(str).decode


def _find_all(payloads: pa.Array, names: tuple[str, ...]) -> list[float | None]:
    """Numbers of payloads; raises as :func:`_decode_all`."""
    found, roots = _decode_all(payloads, names)
    # a payload may be a number itself, whatever the path
    pairs = zip(found, roots, strict=True)
    return [i if type(i) is float else j if type(j) is float else None for i, j in pairs]


def _decode_all(payloads: pa.Array, names: tuple[str, ...]) -> tuple[list[Any], list[Any]]:
    """What payloads have at a path, and they themselves, decoded as one array.

    That takes a third of the time of one by one; raises DecodeError or RecursionError if one fails.
    """
    texts = pa.ListArray.from_arrays([0, len(payloads)], pc.fill_null(payloads, "null"))
    [text] = pc.binary_join(texts, ",")
    found = roots = _array_decoder(names)(b"[%b]" % text.as_buffer())
    if len(roots) != len(payloads):
        raise msgspec.DecodeError
    for _ in names:
        found = [getattr(i, "found", None) for i in found]
    return found, roots


@cache
def _array_decoder(names: tuple[str, ...]) -> Callable[[bytes], list[Any]]:
    kind: Any = _Leaf
    for name in reversed(names):
        field = msgspec.field(name=name, default=None)
        kind = msgspec.defstruct("_Object", [("found", kind, field)], gc=False) | float | _Other
    return msgspec.json.Decoder(list[kind]).decode


def _finder(names: tuple[str, ...]) -> Callable[[str], tuple[float | None, bool]]:
    """Finds the number of one payload, and whether it cannot be read."""
    decoders = [_decoder(name) for name in names]

    def find_one(text: str) -> tuple[float | None, bool]:
        raw = text.lstrip().encode()
        try:
            for decode in decoders if raw[:1] == b"{" else ():
                raw = bytes(decode(raw).found)
                if not raw:  # no such key
                    return None, False
        except msgspec.ValidationError:  # a key on the way leads to no object
            return None, False
        except (msgspec.DecodeError, RecursionError):
            return None, True
        if not (raw[:1].isdigit() or raw[:1] == b"-"):
            return None, False
        try:
            return _decode_number(raw), False
        except msgspec.DecodeError:
            return None, True

    return find_one


def _decoder(key: str) -> Callable[[Any], Any]:
    """Decoder of objects: ``found`` is the raw text of the last member of that name, or empty."""
    field = msgspec.field(name=key, default=msgspec.Raw())
    return msgspec.json.Decoder(
        msgspec.defstruct("_Object", [("found", msgspec.Raw, field)], gc=False)
    ).decode
