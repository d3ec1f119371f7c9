"""kill -9 in the middle of registering: what was acknowledged is there, once and whole.

A gateway process is killed again and again while clients register through TCP; a
``persisted: false`` subscriber sees ids before their commit. After each kill the store is
checked over the wire.
"""

import asyncio
import contextlib
import os
import random
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.support.gateway import gateway
from tests.support.peer import RawPeer, event, register_req

ROUNDS = 20
CLIENTS = 3
EVENTS_PER_REQUEST = 3

Id = tuple[int, int]


class History:
    """What clients were told over all rounds."""

    def __init__(self) -> None:
        self.acknowledged: dict[Id, Any] = {}
        self.seen: set[Id] = set()
        self.sent = 0


def event_id(stored: dict[str, Any]) -> Id:
    return stored["id"]["session"], stored["id"]["instance"]


async def register_until_killed(port: int, history: History) -> None:
    peer = await RawPeer.init(port)
    with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
        for register_id in range(1_000_000):
            if register_id >= 16:  # so many are in flight
                response = await peer.receive()
                assert response["success"], response
                history.acknowledged.update({event_id(e): e for e in response["events"]})
            history.sent += 1
            values = [f"{history.sent}:{i}" for i in range(EVENTS_PER_REQUEST)]
            peer.send(register_req(register_id, *(event("crash", v, value=v) for v in values)))
    peer.writer.close()


async def watch_until_killed(port: int, history: History) -> None:
    peer = await RawPeer.init(port, subscriptions=[["*"]])
    with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
        while True:
            history.seen |= {event_id(e) for e in (await peer.receive())["events"]}
    peer.writer.close()


async def all_stored(port: int) -> list[dict[str, Any]]:
    request = {"msg_type": "query_req", "query_id": 1, "query_type": "server", "server_id": 1}
    stored: list[dict[str, Any]] = []
    async with await RawPeer.init(port) as peer:
        while True:
            last = {"last_event_id": stored[-1]["id"]} if stored else {}
            response = await peer.request({**request, "persisted": True, **last})
            stored.extend(response["events"])
            if not response["more_follows"]:
                return stored


def check(stored: list[dict[str, Any]], history: History) -> None:
    ids = [event_id(e) for e in stored]
    assert ids == sorted(set(ids)), "ids do not rise strictly"
    by_id = dict(zip(ids, stored, strict=True))
    for acknowledged_id, acknowledged in history.acknowledged.items():
        assert by_id.get(acknowledged_id) == acknowledged, "acknowledged, but not stored"
    ours = [e for e in stored if e["type"][0] == "crash"]
    sessions: dict[int, list[dict[str, Any]]] = {}
    for e in ours:
        sessions.setdefault(e["id"]["session"], []).append(e)
    values = [e["payload"]["data"] for e in ours]
    assert len(values) == len(set(values)), "stored twice"
    for events in sessions.values():
        assert len(events) == EVENTS_PER_REQUEST, "part of a request"
        assert len({e["payload"]["data"].split(":")[0] for e in events}) == 1
        assert len({(e["timestamp"]["s"], e["timestamp"]["us"]) for e in events}) == 1


@pytest.mark.timeout(180)
async def test_twenty_kills(tmp_path: Path) -> None:
    history = History()
    chance = random.Random(20)
    for _ in range(ROUNDS):
        seen_before = set(history.seen)
        acknowledged_before = len(history.acknowledged)
        async with gateway(tmp_path) as running:
            check(await all_stored(running.port), history)
            tasks = [
                asyncio.create_task(watch_until_killed(running.port, history)),
                *(
                    asyncio.create_task(register_until_killed(running.port, history))
                    for _ in range(CLIENTS)
                ),
            ]
            target = acknowledged_before + chance.randrange(100, 600)
            while len(history.acknowledged) < target:
                assert not any(t.done() for t in tasks), "a client stopped before the kill"
                await asyncio.sleep(0)
            os.kill(running.pid, signal.SIGKILL)
            await running.process.wait()
            await asyncio.gather(*tasks)
        assert history.seen > seen_before
        new = history.seen - seen_before
        assert not seen_before or min(new) > max(seen_before), "an id was given again"
    async with gateway(tmp_path) as running:
        stored = await all_stored(running.port)
        check(stored, history)
        assert len(stored) >= len(history.acknowledged) > ROUNDS * 100
