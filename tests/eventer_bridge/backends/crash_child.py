"""Registers as fast as it can until it is killed; ``test_crash`` starts it and kills it.

Lines on stdout: ``seen N`` where session N was handed to the backend (its id may have been
shown to somebody), ``done N`` where it was acknowledged.
"""

import asyncio
import os
import sys
from functools import partial
from pathlib import Path

from eventer_bridge.backends import rocksdb
from eventer_bridge.model import Event, EventId, JsonPayload, Timestamp

SERVER = 1
IN_FLIGHT = 32
RESERVED = 300


def events_of(session: int) -> list[Event]:
    """The events of a session: their number and payloads follow from its id."""
    return [
        Event(
            EventId(SERVER, session, instance),
            ("crash", str((session + instance) % 50)),
            Timestamp(session // 10, 0),
            Timestamp(-session, instance) if instance % 2 else None,
            JsonPayload.of({"session": session, "instance": instance}),
        )
        for instance in range(1, 2 + session % 5)
    ]


def say(word: str, session: int) -> None:
    os.write(1, f"{word} {session}\n".encode())


def acknowledged(session: int, future: asyncio.Future[None]) -> None:
    future.result()
    say("done", session)


async def main(path: Path) -> None:
    backend = await rocksdb.create(path)
    session = backend.server_mark(SERVER).session
    while True:
        ceiling = session + RESERVED
        await backend.reserve(SERVER, ceiling)
        flying: set[asyncio.Future[None]] = set()
        for session in range(session + 1, ceiling + 1):  # noqa: B020
            say("seen", session)
            future = backend.register(events_of(session))
            future.add_done_callback(partial(acknowledged, session))
            flying.add(future)
            if len(flying) >= IN_FLIGHT:
                _, flying = await asyncio.wait(flying, return_when=asyncio.FIRST_COMPLETED)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
