"""Whether all column families of a store say the same."""

from pathlib import Path

from eventer_bridge.backends.rocksdb import keys
from eventer_bridge.backends.rocksdb.keys import ENTRY_BYTES
from eventer_bridge.backends.rocksdb.store import Store
from eventer_bridge.backends.rocksdb.verify import Finding, ext_verify


def check_store(path: Path) -> set[bytes]:
    """Walk a store that nobody has open, and compare its families.

    Returns:
        Keys of its events.
    """
    store = Store(path)
    try:
        ext_verify(store, _fail)
        return check_open_store(store)
    finally:
        store.ext_close()


def _fail(finding: Finding) -> None:
    raise AssertionError(str(finding))


def check_open_store(store: Store) -> set[bytes]:
    """As :func:`check_store`; others may go on meanwhile."""
    snapshot = store.snapshot()
    types = {type_id for type_id, _ in store.ext_types()}
    events = dict(snapshot.rows("event"))
    assert {key[: keys.TYPE_BYTES] for key in events} <= types

    sources = {key for key, _ in snapshot.rows("source")}
    assert sources == {
        source_key for key, value in events.items() if (source_key := keys.source_key(key, value))
    }
    in_order = [keys.by_source(*row) for row in sorted(events.items()) if keys.is_in_order(row[1])]
    assert in_order == sorted(in_order)

    servers: dict[bytes, bytes] = {}
    from_sessions: set[bytes] = set()
    ends: dict[bytes, bytes] = {}  # the last session of each server so far
    for key, entries in snapshot.rows("session"):
        assert entries
        assert len(entries) % ENTRY_BYTES == 0
        timestamp, server, first = key[:12], key[12:20], key[20:]
        assert ends.get(server, b"") < first <= entries[:8]
        ids = [entries[i : i + 16] for i in range(0, len(entries), ENTRY_BYTES)]
        assert ids == sorted(set(ids))
        for begin, local_id in zip(range(16, len(entries), ENTRY_BYTES), ids, strict=True):
            from_sessions.add(entries[begin : begin + 4] + timestamp + server + local_id)
        ends[server] = ids[-1][:8]
        servers[server + first] = timestamp
    assert from_sessions == set(events)
    assert dict(snapshot.rows("server")) == servers
    return set(events)
