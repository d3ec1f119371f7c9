"""Summary of a store, as far as it is known without reading every row.

Runs on a thread that may block.
"""

from collections.abc import Iterator

import msgspec

from eventer_bridge.backends.rocksdb import keys
from eventer_bridge.backends.rocksdb.contents import FORMAT
from eventer_bridge.backends.rocksdb.store import Store
from eventer_bridge.model import Timestamp


class ServerInfo(msgspec.Struct, frozen=True):
    """First and last stored session of a server; ``mark``: the greatest id it may have given."""

    server_id: int
    first_session: int
    last_session: int
    first_timestamp: Timestamp
    last_timestamp: Timestamp
    mark: int


class StoreInfo(msgspec.Struct, frozen=True):
    """See the module; printed by ``mariner store info --json``.

    ``group_position`` is that of a member of a group in its log; None: it is of none.
    ``events`` is an estimate (``verify`` counts them), ``spent`` the cost of the types that each
    client registered first (``type_budget``), ``index_bytes`` those of sorted files by column
    family, without rows that are only in the log.
    """

    format: int
    history: str | None
    events: int
    event_types: int
    spent: dict[str, int]
    first_timestamp: Timestamp | None
    last_timestamp: Timestamp | None
    servers: list[ServerInfo]
    index_bytes: dict[str, int]
    disk_bytes: int
    group_position: int | None


def ext_info(store: Store) -> StoreInfo:
    """Summarise a store: reads all event types, and a few rows for each server."""
    snapshot = store.snapshot()
    sessions = snapshot.iterator("session")
    sessions.seek_to_first()
    first = sessions.key() if sessions.valid() else None
    last = snapshot.seek_last(sessions, b"")
    return StoreInfo(
        format=FORMAT,
        history=store.history_id(),
        events=store.n_events(),
        event_types=len(store.ext_types()),
        spent=store.ext_spent(),
        first_timestamp=None if first is None else keys.decode_timestamp(first),
        last_timestamp=None if last is None else keys.decode_timestamp(last),
        servers=list(ext_servers(store)),
        index_bytes={name: store.file_bytes(name) for name in store.families},
        disk_bytes=store.disk_bytes(),
        group_position=None if (row := store.group_row()) is None else row.position,
    )


def ext_servers(store: Store) -> Iterator[ServerInfo]:
    """The servers that have events, by id; a few reads for each."""
    snapshot = store.snapshot()
    iterator = snapshot.iterator("server")
    iterator.seek_to_first()
    while iterator.valid():
        first: bytes = iterator.key()
        server = first[: keys.INT_BYTES]
        first_block = snapshot.known_block(first)
        last_block = snapshot.last_block(server) or first_block
        server_id = keys.decode_int(server)
        yield ServerInfo(
            server_id=server_id,
            first_session=keys.decode_int(first_block.first_session),
            last_session=keys.decode_int(last_block.last_session),
            first_timestamp=keys.decode_timestamp(first_block.key),
            last_timestamp=keys.decode_timestamp(last_block.key),
            mark=store.mark(server_id).session,
        )
        iterator.seek(server + keys.KEY_MAX)
    with store.errors():
        iterator.status()
