"""Stores a small session and a large one, and dies while that is written.

``test_rocksdb_unfinished`` looks at what is left then.

Arguments: path of the store, and how many parts of the large session are written before.
"""

import asyncio
import os
import signal
import sys
from pathlib import Path

from eventer_bridge import limits, slices
from eventer_bridge.backends import rocksdb
from eventer_bridge.backends.rocksdb.store import Store
from eventer_bridge.backends.type_budget import TypeQuota
from eventer_bridge.model import Event, EventId, JsonPayload, Timestamp
from tests.eventer_bridge.backends.putting import put, put_in_steps

SMALL, LARGE = 3, limits.LARGE_SESSION_EVENTS + 500

QUOTA = TypeQuota("client", 10_000)


def make_parts_small() -> None:
    """So that a session has several of them, in this process."""
    limits.COMMIT_PART_ROWS = 640  # type: ignore[misc]


def events_of(session: int, n_events: int) -> list[Event]:
    """The events of a session, of types that every session has and of types of its own."""
    return [
        Event(
            EventId(1, session, instance),
            ("all", str(instance % 7)) if instance % 3 else ("of", str(session), str(instance)),
            Timestamp(session, 0),
            Timestamp(-instance, instance) if instance % 2 else None,
            JsonPayload.of(instance),
        )
        for instance in range(1, 1 + n_events)
    ]


async def main(path: Path, n_parts: int) -> None:
    ext_sync = Store.ext_sync

    def deadly(self: Store) -> None:
        nonlocal n_parts
        ext_sync(self)
        n_parts -= 1
        if not n_parts:
            os.kill(os.getpid(), signal.SIGKILL)

    make_parts_small()
    backend = await rocksdb.create(path)
    await put(backend, events_of(1, SMALL), QUOTA, SMALL)
    Store.ext_sync = deadly  # type: ignore[method-assign]
    await slices.run(put_in_steps(backend, events_of(2, LARGE), QUOTA, LARGE))
    await backend.flush()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2])))
