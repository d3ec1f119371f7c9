"""Stores with given events, and what reading them has to give."""

import atexit
import functools
import os
import shutil
import tempfile
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, Final, TypeVar

from hypothesis import Phase, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame

from eventer_bridge.backends.rocksdb.commit import Commit
from eventer_bridge.backends.rocksdb.keys import TypeId
from eventer_bridge.backends.rocksdb.store import Store
from eventer_bridge.backends.rocksdb.types import TypeRegistry
from eventer_bridge.model import (
    INT64_MAX,
    INT64_MIN,
    BinaryPayload,
    Event,
    EventId,
    JsonPayload,
    Timestamp,
)
from eventer_bridge.slices import at_once
from tests.eventer_bridge.backends.putting import stage

T = TypeVar("T")


def not_simplest(strategy: st.SearchStrategy[T]) -> st.SearchStrategy[T]:
    """The same values, but not the simplest one, which is always tried first: of few examples
    it would be the only one."""
    # in the simplest example of all, zero is drawn however often it is refused
    return st.tuples(st.integers(0, 99).filter(bool), strategy).map(itemgetter(1))


EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

COLUMNS: Final = (
    "server", "session", "instance", "type", "timestamp", "source_timestamp",
    "payload_kind", "payload_json", "payload_type", "payload_binary",
)  # fmt: skip
"""All columns but ``type_path``, which is tested by itself."""

EXAMPLES: Final = int(os.environ.get("SPARK_EXAMPLES", "1"))
"""How many times as many examples as usual: ``make torture`` takes more."""

few: Final = settings(
    max_examples=EXAMPLES,
    deadline=None,
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
)
"""For tests of which each example takes jobs of Spark: to make them smaller would take minutes."""

Row = dict[str, Any]


def fill(path: Path, events: Iterable[Event]) -> None:
    """Add events to a store, in sessions as their ids say."""
    if not path.exists():
        shutil.copytree(_empty_store(), path)
    store = Store(path)
    try:
        types = TypeRegistry(store.ext_types())
        commit = Commit()
        for _, session in groupby(events, lambda i: (i.id.server, i.id.session)):
            members = list(session)
            new: list[tuple[TypeId, bytes]] = []
            at_once(types.intern([(0, i.type) for i in members], new))
            store.stage_types(commit, new)
            stage(store, commit, [members], types.ids)
        store.write(commit)
        store.ext_sync()
    finally:
        store.ext_close()


@functools.cache
def _empty_store() -> Path:
    """A new store, of which a copy is made six times faster than another one."""
    directory = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, directory)
    Store(directory / "store").ext_close()
    return directory / "store"


def row_of(event: Event) -> Row:
    """What Spark has to show of an event, without ``type_path``."""
    payload = event.payload
    is_json, is_binary = isinstance(payload, JsonPayload), isinstance(payload, BinaryPayload)
    return {
        "server": event.id.server,
        "session": event.id.session,
        "instance": event.id.instance,
        "type": list(event.type),
        "timestamp": moment(event.timestamp),
        "source_timestamp": event.source_timestamp and moment(event.source_timestamp),
        "payload_kind": "json" if is_json else "binary" if is_binary else None,
        "payload_json": bytes(payload.data).decode() if isinstance(payload, JsonPayload) else None,
        "payload_type": payload.data_type if isinstance(payload, BinaryPayload) else None,
        "payload_binary": payload.data if isinstance(payload, BinaryPayload) else None,
    }


def moment(timestamp: Timestamp) -> datetime:
    """A timestamp, or the first or last moment that Spark has."""
    try:
        return EPOCH + timedelta(seconds=timestamp.s, microseconds=timestamp.us)
    except OverflowError:
        edge = datetime.min if timestamp.s < 0 else datetime.max
        return edge.replace(tzinfo=UTC)


def rows_of(events: Iterable[Event]) -> list[Row]:
    """All of :func:`row_of`, by id."""
    return in_order([row_of(i) for i in events])


def safe_rows_of(events: Iterable[Event]) -> list[Row]:
    """As :func:`rows_of`, with null for source timestamps that Python or pandas refuse."""
    rows = rows_of(events)
    for row in rows:
        source = row["source_timestamp"]
        if source is not None and not 1678 <= source.year <= 2261:
            row["source_timestamp"] = None
    return rows


def in_order(rows: Iterable[Row]) -> list[Row]:
    return sorted(rows, key=lambda i: (i["server"], i["session"], i["instance"]))


def read(frame: DataFrame) -> list[Row]:
    """Rows of a data frame with the columns :data:`COLUMNS`, by id."""
    return in_order(frame.select(*COLUMNS).toArrow().to_pylist())


def count_scanned(frame: DataFrame) -> tuple[int, int]:
    """Number of rows of a data frame, and how many rows its source gave to Spark for it."""
    n_rows = frame.toArrow().num_rows
    plan = frame._jdf.queryExecution().executedPlan()
    leaves = plan.collectLeaves()
    metrics = [leaves.apply(i).metrics() for i in range(leaves.size())]
    return n_rows, sum(i.apply("numOutputRows").value() for i in metrics)


_SECONDS: Final = st.one_of(
    st.integers(INT64_MIN, INT64_MAX),
    st.integers(-(10**11), 10**12),
    st.integers(-2, 2),
    st.sampled_from((INT64_MIN, INT64_MAX, -62_135_596_800, -62_135_596_801, 253_402_300_799,
                     253_402_300_800)),
)  # fmt: skip
timestamps: Final = st.builds(
    Timestamp, _SECONDS, st.sampled_from((0, 1, 999_999)) | st.integers(0, 999_999)
)
_segments: Final = st.sampled_from(
    ("", "a", "/", "~", "~0", "~1", "%2F", "\x00", "\n", "é", "😀")
) | st.text(st.characters(exclude_categories=["Cs"]), max_size=4)
event_types: Final = st.lists(_segments.filter(lambda i: i not in {"?", "*"}), max_size=4).map(
    tuple
)
_payloads: Final = st.one_of(
    st.none(),
    st.builds(
        JsonPayload.of,
        st.recursive(
            st.none()
            | st.booleans()
            | st.integers(-(2**63), 2**63 - 1)
            | st.text(st.characters(exclude_categories=["Cs"])),
            lambda i: st.lists(i, max_size=3) | st.dictionaries(st.text('ab"\\é'), i, max_size=3),
            max_leaves=5,
        ),
    ),
    st.builds(
        BinaryPayload,
        st.text(st.characters(exclude_categories=["Cs"]), max_size=5),
        st.binary(max_size=20),
    ),
)
_drafts: Final = st.tuples(event_types, st.none() | timestamps, _payloads)
_sessions: Final = st.tuples(
    st.sampled_from((2, 3, -5, INT64_MAX)), timestamps, st.lists(_drafts, min_size=1, max_size=4)
)


def _events(sessions: Sequence[tuple[int, Timestamp, list[Any]]]) -> list[Event]:
    """Events of sessions; as on a server, ids rise with time."""
    events: list[Event] = []
    last: dict[int, int] = {}
    for server, timestamp, drafts in sorted(sessions, key=lambda i: i[:2]):
        last[server] = last.get(server, 0) + 1
        for instance, (event_type, source, payload) in enumerate(drafts, 1):
            event_id = EventId(server, last[server], instance)
            events.append(Event(event_id, event_type, timestamp, source, payload))
    return events


events: Final = st.lists(_sessions, max_size=12).map(_events)
"""Odd events of several servers, as they may stand in a store."""

many_events: Final = not_simplest(st.lists(_sessions, min_size=20, max_size=30).map(_events))
"""More of them, for tests of which each example costs much."""


def plain_events(
    n_events: int, *, server: int = 7, n_types: int = 10, every: int = 1
) -> list[Event]:
    """Events of a good-natured plant: one a second from 2025-01-01 on, ten a session.

    Of these, ``every`` so many.
    """
    begin = 1_735_689_600
    return [
        Event(
            EventId(server, 1 + i // 10, 1 + i % 10),
            ("site", f"{i % n_types // 5}", f"d{i % n_types}"),
            Timestamp(begin + i // 10 * 10, 0),
            None if i % 3 else Timestamp(begin + i - 3_600, 5),
            JsonPayload.of({"value": i}),
        )
        for i in range(0, n_events, every)
    ]
