"""Type paths: one for every type, one type for every path."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eventer_bridge.model import EventType
from mariner_spark import type_path
from tests.spark.support import event_types


@given(event_types)
def test_a_path_is_turned_back(event_type: EventType) -> None:
    assert type_path.decode(type_path.encode(event_type)) == event_type


@given(st.text("a~/01", max_size=8))
def test_every_path_stands_for_one_type(path: str) -> None:
    try:
        event_type = type_path.decode(path)
    except ValueError:
        assert re.search("~([^01]|$)", path)
    else:
        assert type_path.encode(event_type) == path


@given(event_types.filter(bool), event_types.filter(bool))
def test_a_prefix_of_segments_is_a_prefix_of_the_path(first: EventType, second: EventType) -> None:
    for longer in (second, first + second):
        is_prefix = longer[: len(first)] == first and len(longer) > len(first)
        path = type_path.encode(longer)
        assert path.startswith(type_path.encode(first) + "/") == is_prefix


@pytest.mark.parametrize(
    ("event_type", "path"),
    [
        (("a", "b"), "a/b"),
        ((), "~"),
        (("",), ""),
        (("", ""), "/"),
        (("a/b", "c~"), "a~1b/c~0"),
        (("~1",), "~01"),
    ],
)
def test_how_paths_are_written(event_type: EventType, path: str) -> None:
    assert type_path.encode(event_type) == path


def test_what_is_no_path_says_why() -> None:
    with pytest.raises(ValueError, match=r"^after '~' expected 0"):
        type_path.decode("a~b")
