"""Rollups: those of plain Python, however the events came."""

import random
import re
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import msgspec
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

import mariner_spark
from eventer_bridge.model import Event, EventId, JsonPayload, Timestamp
from mariner_spark import limits
from mariner_spark.errors import LakeError, OptionError
from mariner_spark.lake import maintenance, rollups, sql
from mariner_spark.lake.maintenance import compact, info
from mariner_spark.lake.tables import ROLLUPS, Lake
from mariner_spark.times import EVER, Interval
from tests.spark.lake.oracle import buckets, check_rollups, compare
from tests.spark.lake.support import append, named, opened, parquet_files
from tests.spark.support import Row, plain_events

NUMBERS = ("1", "-2.5", "0", "1e308", "1.7976931348623157e308", "-1.7e308", "5e-324", "0.1",
           "1e999", "null", '"12"', "true", "123456789012345678901234567890")  # fmt: skip
EDGES = (-62_135_596_800, -1, 59, 60, 3_599, 3_600, 86_399, 86_400, 253_402_300_799)
COLUMNS = ("type_path", "bucket", "events", "last")
TYPES = (("a",), ("a", "b"), (), ("é/~",))
SECONDS = st.one_of(
    st.integers(0, 200),
    st.integers(0, 3 * 86_400),
    st.sampled_from(EDGES),
)
Draft = tuple[int, int, int, tuple[str, ...], str]
DRAFTS = st.lists(
    st.tuples(
        st.sampled_from((1, 2, 3)),
        SECONDS,
        st.sampled_from((0, 1, 999_999)),
        st.sampled_from(TYPES),
        st.sampled_from(NUMBERS),
    ),
    min_size=20,
    max_size=80,
)


def of_servers(drafts: list[Draft]) -> Iterator[list[Event]]:
    """Events of each server: two of a session, which have one timestamp."""
    for server in (1, 2, 3):
        mine = sorted((i for i in drafts if i[0] == server), key=lambda i: i[1:3])
        yield [
            Event(
                EventId(server, 1 + n // 2, 1 + n % 2),
                kind,
                Timestamp(*mine[n // 2 * 2][1:3]),
                None,
                JsonPayload(msgspec.Raw(f'{{"value": {number}}}'.encode())),
            )
            for n, (_, _, _, kind, number) in enumerate(mine)
        ]


@given(DRAFTS, st.randoms(use_true_random=False))
@settings(max_examples=4, deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate])
def test_nasty_events_in_any_order(
    tmp_path_factory: pytest.TempPathFactory,
    drafts: list[Draft],
    chance: random.Random,
) -> None:
    """A server's events come in order; which server's come next is by chance."""
    root = tmp_path_factory.mktemp("lake")
    append(root, [])
    parts = [[members[:i] for i in range(0, len(members) + 9, 9)] for members in of_servers(drafts)]
    left = [i for i, of_server in enumerate(parts) for _ in of_server]
    chance.shuffle(left)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "ROLLED_ROWS", chance.choice((1, 5, 1_000)))
        patch.setattr(limits, "FILE_ROWS", chance.choice((3, 1_000)))
        for server in left:
            append(root, parts[server].pop(0))
            match chance.randrange(4):
                case 0:
                    maintenance.compact(str(root))
                case 1 | 2:
                    maintenance.update(str(root))
        maintenance.update(str(root))
        check_rollups(root)
        maintenance.update(str(root), is_new=True)
    check_rollups(root)


@pytest.fixture(scope="module")
def nasty_lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Many of these events, in two commits for each server."""
    root, chance = tmp_path_factory.mktemp("nasty"), random.Random(5)
    drafts: list[Draft] = [
        (
            chance.choice((1, 2, 3)),
            chance.choice((chance.randrange(2_000), chance.randrange(20 * 86_400), *EDGES)),
            chance.choice((0, 1, 999_999)),
            chance.choice(TYPES),
            chance.choice(("1", "2.5", *NUMBERS)),
        )
        for _ in range(400)
    ]
    whole = list(of_servers(drafts))
    for part in (*(i[: len(i) // 2] for i in whole), *whole):
        append(root, part)
        maintenance.update(str(root))
    return root


def test_reading(spark: SparkSession, nasty_lake: Path) -> None:
    """By DuckDB and by Spark."""
    events = opened(nasty_lake).to_pyarrow_table().to_pylist()
    for every in ("1m", "5m", "1h", "6h", "1d", "7d"):
        width_us = rollups.parse_width(every)
        expected = in_order(buckets(events, timedelta(microseconds=width_us)))
        assert len(expected) > 20
        found = rollups.find(Lake(str(nasty_lake)).open(ROLLUPS), width_us, EVER)
        paths = [str(nasty_lake / ROLLUPS / i.path) for i in found.files]
        query = sql.buckets(f"read_parquet({paths})", width_us, sql.DIALECTS["duckdb"])
        with duckdb.connect() as connection:
            connection.execute("SET TimeZone = 'UTC'")
            compare(in_order(connection.sql(query).to_arrow_table().to_pylist()), expected)
    frame = mariner_spark.read(spark, lake=nasty_lake, every="7d")
    compare(in_order(frame.toArrow().to_pylist()), expected)


def test_selected_rollups(spark: SparkSession, nasty_lake: Path) -> None:
    first, last = datetime(1970, 1, 1, 0, 1, tzinfo=UTC), datetime(1970, 1, 10, tzinfo=UTC)
    begin, width = first.replace(hour=12, minute=0), timedelta(hours=12)  # the first whole bucket
    chosen = [
        i
        for i in opened(nasty_lake).to_pyarrow_table().to_pylist()
        if i["type_path"] in {"a", "é~1~0"} and begin <= i["timestamp"] < last + width
    ]
    frame = mariner_spark.read(
        spark, lake=nasty_lake, every=width, types="?", from_=first, to=last, columns=COLUMNS
    )
    assert frame.columns == list(COLUMNS)
    expected = [{i: row[i] for i in COLUMNS} for row in in_order(buckets(chosen, width))]
    assert in_order(frame.toArrow().to_pylist()) == expected
    assert len(expected) > 5


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"every": "90s"}, "every: '90s': expected some minutes, hours or days, as '15m'"),
        ({"every": "0m"}, "every: '0m': expected"),
        ({"every": timedelta(seconds=90)}, "expected some minutes"),
        ({"every": timedelta.max}, "expected some minutes"),
        ({"every": 5}, "every: 5: expected"),
        ({"every": "1h", "version": 1}, "every: cannot be combined with version or as_of"),
        ({"every": "1h", "servers": 7}, "servers: cannot be combined with every: a rollup has"),
        ({"every": "1h", "source_to": 7}, "source_from, source_to: cannot be combined"),
        ({"every": "1h", "columns": ["value"]}, "columns: no column 'value', expected some of typ"),
    ],
)
def test_what_rollups_cannot_be(
    spark: SparkSession, nasty_lake: Path, arguments: Any, message: str
) -> None:
    with pytest.raises(OptionError, match=re.escape(message)):
        mariner_spark.read(spark, lake=nasty_lake, **arguments)


def test_without_rollups(spark: SparkSession, tmp_path: Path) -> None:
    append(tmp_path, plain_events(10))
    with pytest.raises(LakeError, match="table rollups is not made yet: `mariner lake rebuild` or"):
        mariner_spark.read(spark, lake=tmp_path, every="1h")
    with pytest.raises(OptionError, match="every: is for a lake"):
        mariner_spark.read(spark, store=tmp_path, every="1h")


KILLED = """
import os, signal, sys
from mariner_spark.lake import maintenance
from mariner_spark.lake.tables import Lake

commit = Lake.commit

def kill(*arguments, **options):
    if sys.argv[2] == "after":
        commit(*arguments, **options)
    os.kill(os.getpid(), signal.SIGKILL)

Lake.commit = kill
maintenance._update(Lake(sys.argv[1]), "rollups")
"""


@pytest.mark.parametrize("moment", ["before", "after"])
def test_an_update_that_is_killed_is_done_or_not(tmp_path: Path, moment: str) -> None:
    """Around its commit, of which the files are written."""
    append(tmp_path, plain_events(100))
    maintenance.update(str(tmp_path))
    before, files = named(tmp_path, ROLLUPS), parquet_files(tmp_path, ROLLUPS)
    append(tmp_path, plain_events(200))
    command = sys.executable, "-c", KILLED, str(tmp_path), moment
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    assert parquet_files(tmp_path, ROLLUPS) > files
    if moment == "before":
        assert named(tmp_path, ROLLUPS) == before
    else:
        check_rollups(tmp_path)
    n_behind = info(str(tmp_path)).tables[ROLLUPS].behind
    assert n_behind == (1 if moment == "before" else 0)
    maintenance.update(str(tmp_path))
    check_rollups(tmp_path)


def test_tables_are_made_anew_once_beside_an_ingestion(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However often it updates them meanwhile."""
    n_events, anew = 100, 0
    append(tmp_path, plain_events(n_events))
    renew = rollups.renew

    def beside(lake: Lake, events: DeltaTable, table: DeltaTable | None, paths: list[str]) -> Any:
        nonlocal n_events, anew
        done = renew(lake, events, table, paths)
        if table is None:
            anew += 1
            n_events += 100
            append(tmp_path, plain_events(n_events))
            with monkeypatch.context() as patch:
                patch.setattr(rollups, "renew", renew)
                maintenance.update(str(tmp_path))
        return done

    monkeypatch.setattr(rollups, "renew", beside)
    maintenance.update(str(tmp_path), is_new=True)
    assert (anew, n_events) == (1, 200)
    check_rollups(tmp_path)
    assert info(str(tmp_path)).tables[ROLLUPS].behind == 0


def test_only_files_with_changed_buckets_are_replaced(tmp_path: Path) -> None:
    append(tmp_path, plain_events(86_400, every=43_200))
    maintenance.update(str(tmp_path))
    before = named(tmp_path, ROLLUPS)
    late = Timestamp(1_735_689_600 + 3 * 3_600, 0)
    append(tmp_path, [Event(EventId(9, 1, 1), ("a",), late, None, JsonPayload.of(1))])
    maintenance.update(str(tmp_path))
    replaced = before - named(tmp_path, ROLLUPS)
    assert [i.partition("/")[0] for i in replaced] == ["every=1d"]
    check_rollups(tmp_path)


@pytest.mark.parametrize("n_rows", [1_000, 300, 100])
def test_an_update_holds_a_bounded_number_of_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, n_rows: int
) -> None:
    """Late events are all over a time, with many types, of which hours and days are made anew."""
    n_types, n_hours, begin_s = 60, 10, 1_735_689_600

    def event(session: int, kind: int, second: int) -> Event:
        at, number = Timestamp(begin_s + second, 0), JsonPayload.of(session)
        return Event(EventId(8 + (kind < 0), session, 1), (f"t{kind % 60}",), at, None, number)

    seconds = [3_600 * i + 60 * j for i in range(n_hours) for j in range(10)]
    in_time = [
        event(1 + i, i % n_types, seconds[i // n_types]) for i in range(n_types * len(seconds))
    ]
    append(tmp_path, in_time)
    maintenance.update(str(tmp_path))
    append(tmp_path, [event(1 + i, i - n_hours, 3_600 * i + 9) for i in range(n_hours)])
    held = count_rolled(monkeypatch)
    monkeypatch.setattr(limits, "ROLLED_ROWS", n_rows)
    maintenance.update(str(tmp_path))
    assert max(held) < 2 * n_rows
    check_rollups(tmp_path)


@pytest.mark.parametrize("is_by_type", [False, True])
def test_so_it_does_of_events_that_come_in_bursts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_by_type: bool
) -> None:
    """Nearly all rows of a file are in few of its minutes."""
    begin_s, n_each = 1_735_689_600, 200

    def event(server: int, session: int, second: int) -> Event:
        at, kind = Timestamp(begin_s + second, 0), (f"t{session % 20}",)
        return Event(EventId(server, session, 1), kind, at, None, JsonPayload.of(session))

    hours = [3_600 * i for i in range(30)]
    bursts = [
        event(1, 1 + i * n_each + j, hours[i] + j // 5) for i in range(30) for j in range(n_each)
    ]
    append(tmp_path, bursts)
    maintenance.update(str(tmp_path))
    maintenance.compact(str(tmp_path), is_by_type=is_by_type)
    append(tmp_path, [event(2, 1 + i, hour + 9) for i, hour in enumerate(hours)])
    held = count_rolled(monkeypatch)
    monkeypatch.setattr(limits, "ROLLED_ROWS", 600)
    maintenance.update(str(tmp_path))
    assert max(held) < 1_200
    check_rollups(tmp_path)


def count_rolled(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of rows that are rolled at a time."""
    held: list[int] = []
    roll = rollups.roll

    def counted(pieces: pa.Table, width_us: int) -> pa.Table:
        held.append(pieces.num_rows)
        return roll(pieces, width_us)

    monkeypatch.setattr(rollups, "roll", counted)
    return held


def test_one_full_minute_does_not_have_all_read_in_shares(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drafts = [(day * 86_400 + i, f"t{i % 7}") for day in range(5) for i in range(100)]
    drafts[200:300] = [(2 * 86_400, f"t{i % 7}") for i in range(100)]
    events = [
        Event(EventId(1, i, 1), (kind,), Timestamp(second, 0), None, JsonPayload.of(i))
        for i, (second, kind) in enumerate(drafts, 1)
    ]
    append(tmp_path, events)
    n_read, read = 0, rollups._pieces

    def counted(rows: pa.Table) -> pa.Table:
        nonlocal n_read
        n_read += 1
        return read(rows)

    monkeypatch.setattr(rollups, "_pieces", counted)
    monkeypatch.setattr(limits, "ROLLED_ROWS", 60)
    maintenance.update(str(tmp_path))
    n_shares, n_minutes = 2, 9
    assert n_read < n_minutes + 2 * n_shares
    check_rollups(tmp_path)


def test_days_with_and_without_full_minutes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some days are made in shares of types, others at once; each once."""
    days = range(0, 5 * 86_400, 86_400)

    def add(server: int, seconds: Iterable[int]) -> None:
        append(
            tmp_path,
            [
                Event(EventId(server, i, 1), (f"t{i % 20}",), Timestamp(at, 0), None, None)
                for i, at in enumerate(seconds, 1)
            ],
        )
        maintenance.update(str(tmp_path))

    held = count_rolled(monkeypatch)
    monkeypatch.setattr(limits, "ROLLED_ROWS", 40)
    add(1, (day + 60 * i for day in days for i in range(150)))
    full = (day + 20_000 + i // 2 for day in days[1:] for i in range(100))
    add(2, sorted([*full, *(day + 60 * i + 9 for day in days for i in range(140))]))
    check_rollups(tmp_path)
    assert max(held) < 3 * 40
    held.clear()
    maintenance.update(str(tmp_path), is_new=True)
    check_rollups(tmp_path)
    assert max(held) < 3 * 40


def in_order(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=lambda i: (i["type_path"], i["bucket"]))


def test_only_rollups_that_say_all_of_a_selection_are_used_for_it(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path))
    day, hour, minute = (sql.WIDTHS_US[i] for i in ("1d", "1h", "1m"))

    def found(width_us: int, origin_us: int = sql.ORIGIN_US, time: Interval = EVER) -> str | None:
        files = maintenance.find_rollups(lake, version, width_us, origin_us, time)
        return files and files.every

    append(tmp_path, plain_events(10))
    version = lake.open().version()
    assert found(day) is None  # there are none yet
    maintenance.update(str(tmp_path))
    assert found(day) == found(7 * day) == "1d"
    assert found(day, sql.ORIGIN_US - 2 * hour) == "1h"  # days of another time zone
    assert found(day, sql.ORIGIN_US - 330 * minute) == "1m"
    assert found(2 * hour) == "1h"
    assert found(minute // 2) is None
    assert found(day, time=Interval(5 * hour, 9 * day - 1)) == "1h"
    assert found(day, time=Interval(5 * hour, 9 * day)) is None
    append(tmp_path, plain_events(20))
    assert found(day) == "1d"
    maintenance.update(str(tmp_path))
    assert found(day) is None  # they have others as well
    version = lake.open().version()
    assert found(day) == "1d"
    compact(str(tmp_path))
    maintenance.update(str(tmp_path))
    assert lake.open().version() > version
    assert found(day) == "1d"  # of the version before, too
    append(tmp_path, plain_events(30))
    version = lake.open().version()
    assert found(day) is None  # they lack some
