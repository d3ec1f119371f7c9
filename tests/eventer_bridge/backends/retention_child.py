"""Registers and deletes as fast as it can until it is killed; ``test_retention`` does that.

Lines on stdout: ``done N`` where session N was acknowledged.
"""

import asyncio
import os
import sys
from functools import partial
from pathlib import Path

from eventer_bridge import limits
from eventer_bridge.backends import rocksdb
from eventer_bridge.backends.retention import RetentionRule
from eventer_bridge.model import Event, EventId, JsonPayload, Timestamp
from tests.eventer_bridge.backends.putting import put

SERVER = 1
MAX_ENTRIES = 400
IN_FLIGHT = 10


def events_of(session: int) -> list[Event]:
    """The events of a session: their number and payloads follow from its id."""
    return [
        Event(
            EventId(SERVER, session, instance),
            ("kill", str((session + instance) % 50)),
            Timestamp(session // 10, 0),
            Timestamp(-session, instance) if instance % 2 else None,
            JsonPayload.of({"session": session, "instance": instance}),
        )
        for instance in range(1, 2 + session % 5)
    ]


def acknowledged(session: int, future: asyncio.Future[None]) -> None:
    future.result()
    os.write(1, f"done {session}\n".encode())


async def main(path: Path) -> None:
    rules = [RetentionRule((("*",),), max_entries=MAX_ENTRIES)]
    backend = await rocksdb.create(path, retention=rules)
    session = backend.high_water_mark(SERVER).session
    while True:
        for session in range(session + 1, session + 1 + IN_FLIGHT):  # noqa: B020
            future = put(backend, events_of(session))
            future.add_done_callback(partial(acknowledged, session))
        await backend.flush()


if __name__ == "__main__":
    limits.RETENTION_MIN_PERIOD_S = 0.001  # type: ignore[misc]  # for this process alone
    limits.RETENTION_PERIOD_S = 0.001  # type: ignore[misc]
    limits.RETENTION_BATCH_EVENTS = 500  # type: ignore[misc]
    limits.RETENTION_RANGE_ROWS = 3  # type: ignore[misc]
    limits.RETENTION_CPU_SHARE = 0.5  # type: ignore[misc]
    asyncio.run(main(Path(sys.argv[1])))
