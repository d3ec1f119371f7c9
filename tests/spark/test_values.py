"""Numbers of JSON payloads."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession

from mariner_spark.errors import OptionError
from mariner_spark.values import with_value

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


def numbers_of(
    spark: SparkSession, texts: list[str | None], path: str = "$.value"
) -> list[float | None]:
    rows = list(enumerate(texts))
    frame = spark.createDataFrame(rows, "number int, payload_json string").coalesce(1)
    found = with_value(frame, path).sort("number").toArrow().column("value").to_pylist()
    return list(found)


def test_only_numbers_count(spark: SparkSession) -> None:
    texts = [text for text, _ in NUMBERS]
    assert numbers_of(spark, texts) == [number for _, number in NUMBERS]


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
def test_the_path_says_where(spark: SparkSession, path: str, numbers: list[float | None]) -> None:
    texts: list[str | None] = ['{"a": 4}', '{"a": {"b": 1.5, "b.c d": 3}}', '{"a": [1]}', "5"]
    assert numbers_of(spark, texts, path) == numbers


@pytest.mark.parametrize("path", ["", "value", "$value", "$.", "$..a", "$.a[0]", "$.a ", "$['a'"])
def test_a_wrong_path_is_refused_before_anything_is_read(spark: SparkSession, path: str) -> None:
    frame = spark.createDataFrame([], "payload_json string")
    with pytest.raises(OptionError, match=r"^value_path: .*expected a path as \$\.value"):
        with_value(frame, path)


def test_the_column_is_added_or_replaced(spark: SparkSession) -> None:
    frame: DataFrame = spark.createDataFrame([], "value string, payload_json string, a int")
    assert with_value(frame).dtypes == [
        ("value", "double"),
        ("payload_json", "string"),
        ("a", "int"),
    ]
    assert with_value(frame.drop("value")).columns == ["payload_json", "a", "value"]


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda i: st.lists(i, max_size=3) | st.dictionaries(st.sampled_from(("value", "a")), i),
    max_leaves=4,
)


@settings(max_examples=2, deadline=None)
@given(st.lists(_JSON, min_size=50, max_size=100))
def test_as_python_reads_them(spark: SparkSession, documents: list[Any]) -> None:
    texts: list[str | None] = [json.dumps(i) for i in documents]
    assert numbers_of(spark, texts) == [_number_of(i) for i in documents]


def _number_of(document: Any) -> float | None:
    found = document.get("value") if isinstance(document, dict) else document
    if isinstance(found, bool) or not isinstance(found, int | float):
        return None
    try:
        number = float(found)
    except OverflowError:
        return None
    return number if abs(number) < float("inf") else None
