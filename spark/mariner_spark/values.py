"""Numbers of JSON payloads, as a column.

What counts as the number of an event is at a *path* of its JSON payload: ``$`` and then keys,
as ``$.value``, ``$.phase.current`` or ``$['a key'].value``. A payload that is itself a number
has no keys, and is the number, whatever the path; ``$`` means those alone.

Only JSON numbers count: no texts (``"12"``), no booleans, and nothing beyond what a double
holds (``1e999``). Everything else, also a payload that is malformed, has no number. Of the
same key twice the last one counts.
"""

import re
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.types import ArrayType, DataType, DoubleType, StructField, StructType

from mariner_spark.errors import OptionError

DEFAULT_PATH: Final = "$.value"

_KEY: Final = re.compile(r"""\.([^.\[\]'"\s]+)|\['([^']+)'\]|\["([^"]+)"\]""")
_BARE_NUMBER: Final = r"^\s*[-0-9]"
_STRICT: Final = {"allowNonNumericNumbers": "false", "allowSingleQuotes": "false"}


def with_value(events: DataFrame, path: str = DEFAULT_PATH) -> DataFrame:
    """Events with their numbers.

    Args:
        events: with a column ``payload_json``.
        path: where the number is; see the module.

    Returns:
        The same rows, with a column ``value`` (double) after the others, or in the place of
        one of this name. Null where an event has no number.

    Raises:
        OptionError: the path is none.
    """
    keys = parse(path)
    text = sf.col("payload_json")
    value = sf.when(text.rlike(_BARE_NUMBER), _number(text, []))
    if keys:
        value = value.otherwise(_number(text, keys))
    return events.withColumn("value", value)


def _number(text: Column, keys: list[str]) -> Column:
    """The number below these keys of a JSON text; null where there is none."""
    data_type: DataType = DoubleType()
    for key in reversed(keys):
        data_type = StructType([StructField(key, data_type)])
    # Spark reads no plain numbers, takes an array for its first object, and does not mind what
    # follows an object: in brackets all three are as they should be
    found = sf.from_json(sf.concat(sf.lit("["), text, sf.lit("]")), ArrayType(data_type), _STRICT)
    for key in keys:
        found = found.getField(key)
    # a lambda's argument is evaluated once, a column that is named twice is parsed twice
    return sf.get(sf.transform(sf.array(found), _only_number), 0)


def _only_number(found: Column) -> Column:
    number = sf.get(found, 0)
    # a number beyond all doubles was read as infinity
    return sf.when((sf.size(found) == 1) & (sf.abs(number) < float("inf")), number)


def parse(path: str) -> list[str]:
    """Keys of a path.

    Raises:
        OptionError: it is none.
    """
    keys: list[str] = []
    position = 1
    while match := _KEY.match(path, position):
        keys.append(match[1] or match[2] or match[3])
        position = match.end()
    if not path.startswith("$") or position < len(path):
        raise OptionError("value_path", f"{path!r}: expected a path as $.value or $.a['b c']")
    return keys
