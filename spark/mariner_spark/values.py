"""Numbers of JSON payloads: as a column of a data frame, and found in Python.

The number of an event is at a *path* in its JSON payload: ``$`` and keys, as ``$.value``,
``$.phase.current`` or ``$['a key'].value``. A payload that is itself a number is used for any path;
``$`` selects only those.

Only JSON numbers count, not texts (``"12"``) or booleans. Of duplicate keys the last one counts. A
number that cannot be read is null, and marked by ``value_unread``: one out of the range of a double
(``1e999``), and any number in a payload that is malformed or has a number of more than
``limits.NUMBER_CHARACTERS``.

For duplicate keys below the path, ``spark.sql.variant.allowDuplicateKeys`` must be true, as it is
in the sessions of ``get_session``; otherwise their parent has no number.
"""

import re
from collections.abc import Callable
from functools import cache
from typing import Any, Final, TypeAlias

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.types import ArrayType, DataType, DoubleType, StructField, StructType, VariantType

from mariner_spark import limits
from mariner_spark.errors import OptionError

DEFAULT_PATH: Final = "$.value"

_KEY: Final = re.compile(r"""\.([^.\[\]'"\s]+)|\['([^']+)'\]|\["([^"]+)"\]""")
_REFUSED: Final = re.compile(r'["\\\x00-\x1f\ud800-\udfff]')
"""In a key: msgspec has no fields of such names."""
_BARE_NUMBER: Final = r"^\s*[-0-9]"
_OBJECT: Final = r"^\s*\{"
_NUMBER_TYPE: Final = r"^(BIGINT|DECIMAL|DOUBLE)"
_PARSER_OPTIONS: Final = {
    "allowNonNumericNumbers": "false",
    "allowSingleQuotes": "false",
    "maxNumLen": str(limits.NUMBER_CHARACTERS),
}
_FOUND: Final = "__number_found"
"""A temporary column."""

_UNREAD: Final = float("nan")
"""Stands for a number that could not be read, as infinity does for one that is too large."""


def with_value(events: DataFrame, path: str = DEFAULT_PATH) -> DataFrame:
    """Add the numbers of events, which have a column ``payload_json``; raises as :func:`parse`.

    ``value`` (double) is null if an event has none; ``value_unread``: whether it could not be read.
    """
    found = events.withColumn(_FOUND, _find(parse(path)))
    value = sf.when(_is_finite(_FOUND), sf.col(_FOUND))
    return found.withColumns({"value": value, "value_unread": _is_unread(_FOUND)}).drop(_FOUND)


def with_unread(events: DataFrame, path: str) -> DataFrame:
    """Add the column ``value_unread`` to events with ``payload_json`` and ``value``."""
    found = sf.when(sf.isnull("value"), _find(parse(path)))
    return (
        events.withColumn(_FOUND, found).withColumn("value_unread", _is_unread(_FOUND)).drop(_FOUND)
    )


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


def _is_finite(column: str) -> Column:
    return sf.abs(sf.col(column)) < float("inf")  # NaN is larger


def _is_unread(column: str) -> Column:
    return sf.coalesce(~_is_finite(column), sf.lit(False))


def _find(keys: list[str]) -> Column:
    """The number of a payload; null: there is none; infinity or NaN: it could not be read."""
    text = sf.col("payload_json")
    found = sf.when(text.rlike(_BARE_NUMBER), _find_double(text, []))
    if not keys:
        return found
    is_object = text.rlike(_OBJECT)
    found = found.when(is_object & _names_once(text, keys), _find_double(text, keys))
    return found.when(is_object, _find_variant(text, keys))


def _names_once(text: Column, keys: list[str]) -> Column:
    """Whether a text certainly has none of these keys twice in one object."""
    is_plain = ~sf.contains(text, sf.lit("\\"))  # no key is escaped
    for key in keys:
        is_plain &= sf.substring_index(text, f'"{key}"', 2) == text
    return is_plain


def _find_double(text: Column, keys: list[str]) -> Column:
    """As :func:`_find`; of duplicate keys it finds the last one that is a number."""
    data_type: DataType = DoubleType()
    for key in reversed(keys):
        data_type = StructType([StructField(key, data_type)])
    found = _parse_json(text, data_type)
    for key in keys:
        found = found.getField(key)
    return _of_one(found, lambda number: number)


def _find_variant(text: Column, keys: list[str]) -> Column:
    """As :func:`_find`, also correct for duplicate keys; it takes twice as long."""
    found = _parse_json(text, StructType([StructField(keys[0], VariantType())]))

    def number_of(value: Column) -> Column:
        for key in keys[1:]:
            value = sf.try_variant_get(value, "$", "map<string,variant>").getItem(key)
        is_number = sf.schema_of_variant(value).rlike(_NUMBER_TYPE)
        return sf.when(is_number, sf.try_variant_get(value, "$", "double"))

    return _of_one(found.getField(keys[0]), number_of)


def _parse_json(text: Column, data_type: DataType) -> Column:
    """JSON text parsed into an array of one; null: it is malformed, or of another type."""
    # Spark parses no plain numbers, takes an array for its first object, and ignores what follows
    # an object: in brackets all three are right
    bracketed = sf.concat(sf.lit("["), text, sf.lit("]"))
    return sf.from_json(bracketed, ArrayType(data_type), _PARSER_OPTIONS)


def _of_one(array: Column, number_of: Callable[[Column], Column]) -> Column:
    """Number of the only value in an array; NaN if the array has another size."""

    def number(found: Column) -> Column:
        is_one = sf.coalesce(sf.size(found) == 1, sf.lit(False))
        return sf.when(is_one, number_of(sf.get(found, sf.lit(0)))).otherwise(sf.lit(_UNREAD))

    # a lambda's argument is evaluated once; a column used twice would be parsed twice
    return sf.get(sf.transform(sf.array(array), number), sf.lit(0))


# --- without Spark ------------------------------------------------------------------------

_Other: TypeAlias = bool | str | list[msgspec.Raw] | None
_Leaf: TypeAlias = float | _Other | dict[str, msgspec.Raw]

_decode_number: Final = msgspec.json.Decoder(float).decode


def find_numbers(payloads: pa.Array, path: str) -> pa.Array:
    """The number of each payload (a JSON text or null); null: none, or one that cannot be read."""
    names = tuple(parse(path))
    try:
        found = _find_all(payloads, names)
    except (msgspec.DecodeError, RecursionError):  # some number cannot be read: which one?
        find = _finder(names)
        found = [None if i is None else find(i) for i in payloads.to_pylist()]
    return pa.array(found, pa.float64())


def _find_all(payloads: pa.Array, names: tuple[str, ...]) -> list[float | None]:
    """Numbers of payloads, decoded as one array: in a third of the time; raises if one fails."""
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
