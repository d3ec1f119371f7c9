"""Reports of many odd events, compared with plain Python that does the same the slow way."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable
from datetime import timedelta
from itertools import pairwise
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from mariner_spark.reports.activity import activity
from mariner_spark.reports.availability import runs
from mariner_spark.reports.gaps import gaps
from mariner_spark.reports.latency import latency
from mariner_spark.reports.latest import latest
from mariner_spark.reports.top import top
from mariner_spark.reports.values import values
from tests.spark.reports.support import E, S, at, frame, rows
from tests.spark.support import few, not_simplest

WIDTH: Final = timedelta(seconds=7)
WIDTH_US: Final = 7 * S

# few types and moments, so that they meet; on both sides of 1970
_types = st.sampled_from(("a", "a/b", "a/b/c", "a/d/c", "~", "", "a/~1", "ab/b"))
_moments = st.integers(-20, 20).map(lambda i: i * S) | st.integers(-25 * S, 25 * S)
_numbers = st.integers(-9, 9).map(lambda i: f'{{"value": {i}}}')
_payloads = st.none() | st.binary(max_size=3) | _numbers
_events = not_simplest(
    st.lists(
        st.builds(
            E,
            _types,
            _moments,
            _payloads,
            st.none() | _moments,
            server=st.integers(1, 2),
            session=st.integers(1, 9),
            instance=st.integers(1, 2),
        ),
        min_size=30,
        max_size=60,
        unique_by=lambda event: event[4:],
    )
)


def by_type(events: Iterable[E]) -> dict[str, list[E]]:
    """Events of each type, in order."""
    found = defaultdict(list)
    for event in sorted(events, key=order):
        found[event.type].append(event)
    return found


def order(event: E) -> tuple[Any, ...]:
    return event.at, event.server, event.session, event.instance


def prefix(event: E) -> str:
    return "/".join(event.type.split("/")[:2])


def size(event: E) -> int:
    return len(event.payload or "")


def value(event: E) -> float | None:
    is_number = isinstance(event.payload, str)
    return float(str(event.payload).split()[1][:-1]) if is_number else None


def begin(event: E) -> int:
    monday = 4 * 24 * 3600 * S
    return monday + (event.at - monday) // WIDTH_US * WIDTH_US


@few
@given(_events)
def test_activity(spark: SparkSession, events: list[E]) -> None:
    counts: Counter[tuple[str, int]] = Counter()
    sizes: Counter[tuple[str, int]] = Counter()
    for event in events:
        counts[prefix(event), begin(event)] += 1
        sizes[prefix(event), begin(event)] += size(event)
    expected = [(*key, counts[key], sizes[key]) for key in sorted(counts)]
    found = rows(activity(frame(spark, events), width=WIDTH))
    assert found == [(i, at(j), 7.0, n, n_bytes) for i, j, n, n_bytes in expected]


@few
@given(_events)
def test_latest(spark: SparkSession, events: list[E]) -> None:
    last = {name: members[-1] for name, members in by_type(events).items()}
    found = {row[0]: row for row in rows(latest(frame(spark, events)))}
    assert {name: (row[1], *row[7:10], row[3]) for name, row in found.items()} == {
        name: (at(i.at), i.server, i.session, i.instance, value(i)) for name, i in last.items()
    }
    assert Counter(i.type for i in events) == {name: row[10] for name, row in found.items()}


@few
@given(_events, st.none() | st.integers(1, 5))
def test_gaps(spark: SparkSession, events: list[E], expected_s: int | None) -> None:
    end = max(event.at for event in events)
    expected = []
    for name, members in by_type(events).items():
        moments = sorted({event.at for event in members})
        lengths = sorted(j - i for i, j in pairwise(moments))
        if expected_s is None and len(lengths) < 5:
            continue
        usual = expected_s * S if expected_s else lengths[math.ceil(len(lengths) / 2) - 1]
        largest = usual if expected_s else 3 * usual
        expected += [
            (name, at(i), at(j), (j - i) / S, usual / S, j == end and i == moments[-1])
            for i, j in pairwise([*moments, end])
            if j - i > largest
        ]
    interval = None if expected_s is None else timedelta(seconds=expected_s)
    found = rows(gaps(frame(spark, events), expected=interval))
    assert sorted((*row[:5], row[6]) for row in found) == sorted(expected)
    ratios = sorted((row[3] / row[4] for row in found), reverse=True)
    assert [row[5] for row in found] == pytest.approx(ratios)


@few
@given(_events)
def test_latency(spark: SparkSession, events: list[E]) -> None:
    found = {row[0]: row[1:] for row in rows(latency(frame(spark, events)))}
    assert found.keys() == {prefix(event) for event in events}
    for name, row in found.items():
        members = [event for event in events if prefix(event) == name]
        all_ = sorted(i.at - i.source for i in members if i.source is not None)
        past = [latency for latency in all_ if latency >= 0]
        percentiles = [
            past[math.ceil(part * len(past)) - 1] / S if past else None
            for part in (0.5, 0.95, 0.99)
        ]
        ends = (all_[0] / S, all_[-1] / S) if all_ else (None, None)
        n_late = sum(latency > 60 * S for latency in all_)
        counts = (len(members), len(all_), n_late, len(all_) - len(past))
        assert row == (*counts, ends[0], *percentiles, ends[1])


@few
@given(_events)
def test_values(spark: SparkSession, events: list[E]) -> None:
    numbers = by_type(event for event in events if value(event) is not None)
    expected = {}
    for name, members in numbers.items():
        for bucket in {begin(event) for event in members}:
            inside = [event for event in members if begin(event) == bucket]
            found = [value(event) or 0.0 for event in inside]
            mean = sum(found) / len(found)
            weighted = _mean_over_time(members, bucket, bucket + WIDTH_US)
            expected[name, at(bucket)] = (
                *(7.0, len(found), min(found), max(found)),
                pytest.approx(mean, abs=1e-9),
                *(found[0], found[-1]),
                pytest.approx(mean if weighted is None else weighted, abs=1e-9),
            )
    report = rows(values(frame(spark, events), width=WIDTH))
    assert {row[:2]: row[2:] for row in report} == expected


def _mean_over_time(members: list[E], first: int, end: int) -> float | None:
    """Mean of what each number is from its moment until the next, over the time of a bucket."""
    total = weight = 0.0
    for this, following in pairwise(members):
        length = min(following.at, end) - max(this.at, first)
        if length > 0:
            total += (value(this) or 0.0) * length
            weight += length
    return total / weight if weight else None


@few
@given(_events)
def test_top(spark: SparkSession, events: list[E]) -> None:
    first, last = min(i.at for i in events), max(i.at for i in events)
    all_bytes = sum(map(size, events))
    expected = {}
    for name, members in by_type(events).items():
        n_later = sum(event.at > (first + last) // 2 for event in members)
        n_earlier, n_bytes = len(members) - n_later, sum(map(size, members))
        expected[name] = (
            *(len(members), n_bytes, len(members) / len(events)),
            n_bytes / all_bytes if all_bytes else None,
            *(at(members[0].at), at(members[-1].at)),
            n_later / n_earlier - 1 if n_earlier and first < last else None,
        )
    assert {row[0]: row[1:] for row in rows(top(frame(spark, events)))} == expected


_actions: st.SearchStrategy[list[tuple[int, str, str, int]]] = not_simplest(
    st.lists(
        st.tuples(
            st.integers(1, 2),
            st.sampled_from(("other", "kill", "stop", "CONNECTED", "CONNECTED", "DISCONNECTED")),
            st.sampled_from("ab"),
            st.integers(0, 2),
        ),
        min_size=30,
        max_size=50,
    )
)


@few
@given(_actions)
def test_runs(spark: SparkSession, actions: list[tuple[int, str, str, int]]) -> None:
    servers = {1: _Server(1), 2: _Server(2)}
    for server, action, name, delay_s in actions:
        servers[server].do(action, name, delay_s)
    for mine in servers.values():
        mine.do("other", "a", 1)  # of a last run nobody can tell that it was killed
        mine.end(None)
    found = rows(runs(frame(spark, [i for mine in servers.values() for i in mine.events])))
    expected = [run for mine in servers.values() for run in mine.runs]
    assert Counter((*row[:5], *row[6:]) for row in found) == Counter(expected)


class _Server:
    """A server that lives as it is told: its events, and when what was up."""

    def __init__(self, server: int) -> None:
        self.server = server
        self.events: list[E] = []
        self.runs: list[tuple[Any, ...]] = []
        self._now = self._last = 0
        self._started: int | None = None
        self._connected: dict[str, list[int]] = defaultdict(list)

    def do(self, action: str, name: str, delay_s: int) -> None:
        self._now += delay_s * S
        if self._started is None:
            self._say("engine", "STARTED")
            self._started = self._now
        connections = self._connected[name]
        if action == "kill":
            self.end("killed")
        elif action == "stop":
            self._say("engine", "STOPPED")
            self.end("stopped")
        elif action == "CONNECTED":
            self._say(f"eventer/{name}", action)
            connections.append(connections[0] if connections else self._now)
        elif action == "DISCONNECTED" and connections:
            self._say(f"eventer/{name}", action)
            begin = connections.pop()
            if not connections:
                self._add("eventer", name, begin, "disconnected")
        else:
            self._say("other", action)

    def end(self, how: str | None) -> None:
        if self._started is None:
            return
        self._add("engine", None, self._started, how)
        for name, connections in self._connected.items():
            if connections:
                self._add("eventer", name, connections[0], how)
        self._started = None
        self._connected.clear()

    def _say(self, kind: str, text: str) -> None:
        event_type = f"event/{self.server}/{kind}"
        self.events.append(E(event_type, self._now, f'"{text}"', server=self.server))
        self._last = self._now

    def _add(self, kind: str, name: str | None, begin: int, how: str | None) -> None:
        self.runs.append((self.server, kind, name, at(begin), at(self._last), True, how))
