"""A snapshot sees one moment, whatever is written after it, and however late it is read."""

from pathlib import Path

from eventer_bridge.backends.rocksdb.commit import Commit
from eventer_bridge.backends.rocksdb.snapshot import READ_FAMILIES
from eventer_bridge.backends.rocksdb.store import Store
from eventer_bridge.model import Event, EventId, Timestamp


def write(store: Store, session: int) -> None:
    commit = Commit()
    event = Event(EventId(1, session, 1), ("a",), Timestamp(session, 0), None, None)
    store.stage(commit, [[event]], [b"\0\0\0\0"], [])
    store.write(commit)
    store.ext_sync()
    assert store.decide()


def test_what_is_written_later_is_not_seen(tmp_path: Path) -> None:
    store = Store(tmp_path)
    try:
        write(store, 1)
        snapshot = store.snapshot()
        write(store, 2)
        for family in READ_FAMILIES:
            assert len(list(snapshot.rows(family))) == 1, family
        assert snapshot.find(EventId(1, 1, 1)) is not None
        assert snapshot.find(EventId(1, 2, 1)) is None
        for family in READ_FAMILIES:
            assert len(list(store.snapshot().rows(family))) == 2, family
        del snapshot
    finally:
        store.ext_close()
