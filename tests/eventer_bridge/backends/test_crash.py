"""kill -9 in the middle of registering: nothing acknowledged is lost, no id comes twice."""

import subprocess
import sys
from collections import defaultdict
from pathlib import Path

from eventer_bridge.backends import rocksdb
from eventer_bridge.backends.rocksdb import RocksDbBackend
from eventer_bridge.model import (
    Event,
    EventId,
    Order,
    OrderBy,
    QueryServerParams,
    QueryTimeseriesParams,
)
from tests.eventer_bridge.backends import crash_child

ROUNDS = 3
SESSIONS_A_ROUND = 1000


async def test_kill_in_the_middle_of_registering(tmp_path: Path) -> None:
    seen: set[int] = set()
    done: set[int] = set()
    for _ in range(ROUNDS):
        new = run_and_kill(tmp_path)
        assert min(new["seen"]) > max(seen, default=0), "an id was given again"
        seen |= new["seen"]
        done |= new["done"]
        async with await rocksdb.create(tmp_path) as backend:
            assert backend.server_mark(crash_child.SERVER).session >= max(seen)
            stored = await check(backend)
        assert done <= stored <= seen
        done = stored  # what was found once stays


def run_and_kill(path: Path) -> dict[str, set[int]]:
    """Let the child run until some sessions are acknowledged; return what it said."""
    said: dict[str, set[int]] = defaultdict(set)
    with subprocess.Popen(
        [sys.executable, "-m", crash_child.__name__, path],
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[3],
    ) as child:
        assert child.stdout is not None
        for line in child.stdout:
            word, session = line.split()
            said[word.decode()].add(int(session))
            if len(said["done"]) == SESSIONS_A_ROUND:
                child.kill()  # what is in the pipe already is still read
    return said


async def check(backend: RocksDbBackend) -> set[int]:
    """Sessions are whole, each once, and equal in all indexes; returns their ids."""
    events = await every_event(backend)
    assert len({i.id for i in events}) == len(events)
    sessions = {i.id.session for i in events}
    assert events == [event for i in sorted(sessions) for event in crash_child.events_of(i)]
    for query in (
        QueryTimeseriesParams(order=Order.ASCENDING),
        QueryTimeseriesParams(order_by=OrderBy.SOURCE_TIMESTAMP),
        QueryTimeseriesParams([("crash", str(i)) for i in range(10)]),
    ):
        n_expected = sum(query.event_types is None or i.type in query.event_types for i in events)
        n_found, last = 0, None
        while True:
            page = await backend.query(
                QueryTimeseriesParams(
                    query.event_types,
                    order=query.order,
                    order_by=query.order_by,
                    last_event_id=last,
                )
            )
            n_found += len(page.events)
            if not page.more_follows:
                break
            last = page.events[-1].id
        assert n_found == n_expected
    return sessions


async def every_event(backend: RocksDbBackend) -> list[Event]:
    events: list[Event] = []
    last: EventId | None = None
    while True:
        page = await backend.query(QueryServerParams(crash_child.SERVER, last_event_id=last))
        events += page.events
        if not page.more_follows:
            return events
        last = page.events[-1].id
