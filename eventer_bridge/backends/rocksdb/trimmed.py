"""How far retention came with each event type, for clients that were away for long.

::

    reader    "t" · type (4)    → position (36) of the last event of the type that was deleted

A retention commit notes it with what it deletes. Runs on the retention thread, and on a reader
thread.
"""

from collections.abc import Collection, Mapping
from typing import Final

from rocksdict import WriteBatch

from eventer_bridge.backends.rocksdb import keys
from eventer_bridge.backends.rocksdb.keys import TypeId
from eventer_bridge.backends.rocksdb.snapshot import Snapshot
from eventer_bridge.backends.rocksdb.store import Store
from eventer_bridge.model import EventId

FAMILY: Final = "reader"
PREFIX: Final = b"t"


def ext_note(store: Store, batch: WriteBatch, last_of_types: Collection[bytes]) -> None:
    """Note what a commit deletes.

    Args:
        store: the store.
        batch: of the commit.
        last_of_types: key in ``event`` of the last event of each type that is deleted.
    """
    _, handle = store.later(FAMILY)
    for key in last_of_types:
        batch.put(PREFIX + key[: keys.TYPE_BYTES], key[keys.TYPE_BYTES :], handle)


def ext_find_gaps(
    store: Store, snapshot: Snapshot, wanted: Collection[TypeId], seen: Mapping[int, EventId]
) -> set[int]:
    """Servers of which events were deleted that somebody did not see, as far as is known.

    Where several servers' events are kept, events of another one may be taken for those of one.

    Args:
        store: the store.
        snapshot: of it.
        wanted: types of interest.
        seen: the last event that was seen of each server.
    """
    times = {server: _time_of(snapshot, last) for server, last in seen.items()}
    family, _ = store.later(FAMILY)
    rows = family.iter()
    rows.seek(PREFIX)
    gaps: set[int] = set()
    while rows.valid() and (key := rows.key()).startswith(PREFIX) and len(gaps) < len(seen):
        snapshot.pause()
        if key[len(PREFIX) :] in wanted:
            deleted = rows.value()
            gaps.update(i for i, last in seen.items() if _is_behind(deleted, last, times[i]))
        rows.next()
    with snapshot.errors():
        rows.status()
    return gaps


def _is_behind(deleted: bytes, last: EventId, time: bytes) -> bool:
    event_id = deleted[keys.TIMESTAMP_BYTES :]
    if event_id.startswith(keys.encode_int(last.server)):
        return event_id > keys.encode_id(last)
    return deleted[: keys.TIMESTAMP_BYTES] > time


def _time_of(snapshot: Snapshot, last: EventId) -> bytes:
    """Timestamp of an event's session or, if that is gone, of what is left before it.

    Zero if nothing is, or if so much was deleted in between that it is not looked for.
    """
    block_key = snapshot.find_block(keys.encode_int(last.server) + keys.encode_int(last.session))
    return bytes(keys.TIMESTAMP_BYTES) if block_key is None else block_key[: keys.TIMESTAMP_BYTES]
