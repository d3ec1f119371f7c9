"""Numbers of JSON payloads."""

import json
import math
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession

from mariner_spark.errors import OptionError
from mariner_spark.reader import with_value
from mariner_spark.values import find, find_numbers, find_unit, parse
from tests.spark.reports.nasty import JSON_TEXTS
from tests.spark.reports.oracle import number_of

NUMBERS: list[tuple[str | None, float | None]] = [
    ('{"value": 1}', 1.0),
    (' {"unit": "V", "value": -2.5e1} ', -25.0),
    ('{"value": 5e-324}', 5e-324),
    ('{"value": 123456789012345678901234567890}', 123456789012345678901234567890.0),
    ('{"value": 1, "value": 2}', 2.0),
    ('{"rsb": {"value": 7}, "value": 3}', 3.0),
    ('{"value": "2"}', None),
    ('{"value": true}', None),
    ('{"value": null}', None),
    ('{"value": [1]}', None),
    ('{"value": {"value": 1}}', None),
    ('{"value": 1e999}', None),
    ('{"value": -1e999}', None),
    ('{"value": ' + "9" * 5_000 + "}", None),
    ('{"value": "NaN"}', None),
    ('{"value": NaN}', None),
    ('{"VALUE": 1}', None),
    ("12.5", 12.5),
    ("\n-3e2 ", -300.0),
    ("1e999", None),
    ("9" * 400, None),
    ('"8"', None),
    ("null", None),
    ("[1]", None),
    ('[{"value": 1}]', None),
    # malformed
    ("", None),
    ("{", None),
    ('{"value": 1', None),
    ('{"value": 1} x', None),
    ('{"value": 1}, {"value": 2}', None),
    ("{'value': 1}", None),
    ('{"value": 01}', None),
    ("1, 2", None),
    ("1d", None),
    ('{"a": ' + "[" * 5_000 + "]" * 5_000 + ', "value": 1}', None),
    (None, None),
]


def found(texts: list[str | None], path: str = "$.value") -> list[float | None]:
    numbers: list[float | None] = find_numbers(pa.array(texts, pa.string()), path).to_pylist()
    return numbers


@pytest.mark.parametrize(("text", "number"), NUMBERS)
def test_only_numbers_count(text: str | None, number: float | None) -> None:
    assert found([text]) == [number]
    assert found([text, '{"value": 1}', text]) == [number, 1.0, number]


@pytest.mark.parametrize(
    ("path", "numbers"),
    [
        ("$", [None, None, None, 5.0]),
        ("$.a", [4.0, None, None, 5.0]),
        ("$.a.b", [None, 1.5, None, 5.0]),
        ("$.a['b.c d']", [None, 3.0, None, 5.0]),
        ('$["a"].x', [None, None, None, 5.0]),
    ],
)
def test_the_path_says_where(path: str, numbers: list[float | None]) -> None:
    texts = ['{"a": 4}', '{"a": {"b": 1.5, "b.c d": 3}}', '{"a": [1]}', "5"]
    assert found([*texts, None], path) == [*numbers, None]


@pytest.mark.parametrize("path", ["", "value", "$value", "$.", "$..a", "$.a[0]", "$.a ", "$['a'"])
def test_a_wrong_path_is_refused_before_anything_is_read(spark: SparkSession, path: str) -> None:
    frame = spark.createDataFrame([], "payload_json string")
    with pytest.raises(OptionError, match=r"^value_path: .*expected a path as \$\.value"):
        with_value(frame, path)


def test_the_columns_are_added_or_replaced_by_one_look(spark: SparkSession) -> None:
    frame: DataFrame = spark.createDataFrame([], "value string, payload_json string, a int")
    numbers = with_value(frame)
    assert numbers.dtypes == [
        ("value", "double"),
        ("payload_json", "string"),
        ("a", "int"),
        ("value_unread", "boolean"),
    ]
    columns = with_value(frame.drop("value")).columns
    assert columns == ["payload_json", "a", "value", "value_unread"]
    plan = numbers._jdf.queryExecution().optimizedPlan().toString()
    assert plan.count("ArrowEvalPython") == 1


@pytest.mark.parametrize("path", ["$.value", "$.value.value", "$['a']['b']", "$['a'][\"?.[\"]"])
def test_what_a_store_takes_is_read(spark: SparkSession, path: str) -> None:
    """Or it is told that it could not be: keys given twice, and numbers as long as they may be."""
    keys = parse(path)
    texts = [*JSON_TEXTS, *(text.replace('"b"', '"?.[" ') for text in JSON_TEXTS)]
    texts += [text.replace("a", r"\u0061") for text in JSON_TEXTS]
    texts += [f'{{"value": {i}, "value": {j}}}' for i in JSON_TEXTS for j in ("1", "null", "{}")]
    expected = [
        (None, value is not None) if value is None or math.isinf(value) else (value, False)
        for value in (number_of(text, keys) for text in texts)
    ]
    numbers = find(pa.array(texts), path)
    pairs = list(zip(numbers.values.to_pylist(), numbers.unread.to_pylist(), strict=True))
    assert pairs == expected
    rows = list(enumerate(texts))
    frame = spark.createDataFrame(rows, "number int, payload_json string").coalesce(1)
    by_spark = with_value(frame, path).sort("number").select("value", "value_unread").collect()
    assert list(map(tuple, by_spark)) == expected


def test_what_is_malformed_is_told_of() -> None:
    malformed = [
        "{",
        '{"value": 1',
        '{"value": 1} x',
        "1, 2",
        "01",
        '{"value": ' + "9" * 20_000 + "}",
    ]
    fine = ['{"value": "1"}', '{"value": {}}', "[1]", '"1"', "null", "{}", None]
    numbers = find(pa.array(malformed + fine), "$.value")
    assert numbers.values.to_pylist() == [None] * len(malformed + fine)
    assert numbers.unread.to_pylist() == [True] * len(malformed) + [False] * len(fine)


@pytest.mark.parametrize(
    ("payload", "path", "unit"),
    [
        ('{"value": 1, "unit": "°C"}', "$.value", "°C"),
        ('{"a": {"value": 1, "unit": "V"}, "unit": "A"}', "$.a.value", "V"),
        ('{"unit": "a", "unit": "b"}', "$.value", "b"),
        ('{"value": 1, "unit": 5}', "$.value", None),
        ('{"value": 1}', "$.a.value", None),
        ('{"value": 1, "unit": "V', "$.value", None),
        ('{"unit": "V"}', "$", None),
        ("1", "$.value", None),
        (None, "$.value", None),
    ],
)
def test_units(payload: str | None, path: str, unit: str | None) -> None:
    assert find_unit(payload, path) == unit


_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)  # JSON has neither
    | st.text(),
    lambda i: st.lists(i, max_size=3) | st.dictionaries(st.sampled_from(("value", "a")), i),
    max_leaves=4,
)


@settings(deadline=None)
@given(st.lists(_JSON, max_size=50))
def test_as_python_reads_them(documents: list[Any]) -> None:
    texts: list[str | None] = [json.dumps(i) for i in documents]
    assert found(texts) == [_number_of(i) for i in documents]


@given(st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(2**70), 2**70))
def test_every_number(number: float) -> None:
    assert found([f'{{"value": {number!r}}}', f" {number!r} "]) == [float(number)] * 2


def _number_of(document: Any) -> float | None:
    found = document.get("value") if isinstance(document, dict) else document
    if isinstance(found, bool) or not isinstance(found, int | float):
        return None
    try:
        number = float(found)
    except OverflowError:
        return None
    return number if abs(number) < float("inf") else None


@pytest.mark.parametrize("path", ["$['a\"']", "$.a\\b", "$['\x1f']", "$.\udcff"])
def test_a_key_that_no_field_can_be_named_after_is_refused(path: str) -> None:
    with pytest.raises(OptionError, match=r"^value_path: .*: a key cannot have"):
        parse(path)


def test_a_key_may_have_an_apostrophe() -> None:
    texts = pa.array(['{"it\'s": 1}'])
    assert find_numbers(texts, '$["it\'s"]').to_pylist() == [1.0]
