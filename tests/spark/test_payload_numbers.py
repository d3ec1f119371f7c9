"""Numbers that are found in Python are those that Spark finds."""

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from mariner_spark.values import find_numbers
from tests.spark.reports.nasty import JSON_TEXTS
from tests.spark.test_values import NUMBERS, numbers_of


def found(texts: list[str | None], path: str = "$.value") -> list[float | None]:
    numbers: list[float | None] = find_numbers(pa.array(texts, pa.string()), path).to_pylist()
    return numbers


@pytest.mark.parametrize(("text", "number"), NUMBERS)
def test_only_numbers_count(text: str | None, number: float | None) -> None:
    assert found([text]) == [number]


@pytest.mark.parametrize(
    ("path", "numbers"),
    [
        ("$", [None, None, None, 5.0]),
        ("$.a", [4.0, None, None, 5.0]),
        ("$.a.b", [None, 1.5, None, 5.0]),
        ("$.a['b.c d']", [None, 3.0, None, 5.0]),
    ],
)
def test_the_path_says_where(path: str, numbers: list[float | None]) -> None:
    texts = ['{"a": 4}', '{"a": {"b": 1.5, "b.c d": 3}}', '{"a": [1]}', "5"]
    assert found([*texts, None], path) == [*numbers, None]


@pytest.mark.parametrize("path", ["$.value", "$.value.value"])
def test_as_spark_does(spark: SparkSession, path: str) -> None:
    nested = [f'{{"value": {i}, "a": {{"value": 1}}}}' for i in JSON_TEXTS]
    twice = [f'{{"value": {i}, "value": {j}}}' for i in JSON_TEXTS for j in ("1", "null", "{}")]
    texts = [*JSON_TEXTS, *nested, *twice, *(f'{{"value": {i}}}' for i in nested)]
    assert found([*texts], path) == numbers_of(spark, [*texts], path)


@given(st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(2**70), 2**70))
@settings(max_examples=50)
def test_every_number(number: float) -> None:
    assert found([f'{{"value": {number!r}}}', f" {number!r} "]) == [float(number)] * 2
