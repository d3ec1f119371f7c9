"""Which events of a lake are meant, compared with what the gateway means by types."""

from typing import Final

from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from eventer_bridge.model import EventType
from eventer_bridge.subscription import Subscription
from mariner_spark import type_path
from mariner_spark.reports.reading import matches
from tests.spark.support import event_types

_segments: Final = st.sampled_from(("", "a", "b", "/", "~", "?"))
_patterns: Final = st.builds(
    lambda segments, end: (*segments, *end),
    st.lists(_segments, max_size=3),
    st.sampled_from(((), ("*",))),
)
_few_types: Final = st.lists(_segments.filter(lambda i: i != "?"), max_size=4).map(tuple)


@settings(max_examples=2, deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate))
@given(
    st.lists(_few_types | event_types, min_size=40, max_size=60),
    st.lists(_patterns, min_size=30, max_size=40),
)
def test_types_are_chosen_as_by_subscriptions(
    spark: SparkSession, types: list[EventType], patterns: list[EventType]
) -> None:
    rows = [(list(i), type_path.encode(i)) for i in types]
    frame = spark.createDataFrame(rows, "type array<string>, type_path string").coalesce(1)
    columns = [matches([pattern]) for pattern in patterns] + [matches(patterns)]
    found = [tuple(row) for row in frame.select(*columns).collect()]
    chosen = [Subscription([pattern]) for pattern in patterns] + [Subscription(patterns)]
    assert found == [tuple(i.matches(event_type) for i in chosen) for event_type in types]
