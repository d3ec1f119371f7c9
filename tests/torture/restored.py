"""A source that is killed and restored from an older backup while a replica follows it.

Every second replica has come past the backup: it has to refuse to go on, keep what it has, and
say so; then it begins anew with an empty store. The others have not, and go on. No id is ever
seen for two events.
"""

import asyncio
import os
import random
import shutil
import signal
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Final

import aiohttp

from eventer_bridge.backends import rocksdb
from eventer_bridge.model import Event, EventId, QueryServerParams
from tests.support.gateway import Gateway, gateway
from tests.support.restoring import restore
from tests.torture.clients import connected, loaded
from tests.torture.ledger import SERVER_ID, Ledger, ViolationError, read_store
from tests.torture.report import Progress

MAX_WORK_EVENTS: int = 400
"""Up to so many events are acknowledged before a backup, and as many after it."""

CATCH_UP_TIMEOUT_S: Final = 60.0
"""Until a replica has what the source has, or has refused it."""

REFUSAL: Final = "server is not replicated: its store is not the one whose events are kept here"


async def run(directory: Path, rounds: int, chance: random.Random, progress: Progress) -> str:
    """Set the source back ``rounds`` times.

    Raises:
        ViolationError: an id was given again, or the replica has other events than the source.
    """
    runs = _Runs(directory, chance)
    for n in range(1, rounds + 1):
        await runs.set_back(is_past=n % 2 == 1)
        progress(n, rounds)
    return (
        f"{rounds} restores, {runs.n_lost} acknowledged events set back by them: no id given twice;"
        f" of the replicas {runs.n_refused} refused to mix, {rounds - runs.n_refused} went on"
    )


class _Runs:
    """A source and its replicas.

    Attributes:
        n_lost: events that were acknowledged and are gone by restores.
        n_refused: replicas that refused to go on.
    """

    def __init__(self, directory: Path, chance: random.Random) -> None:
        self.n_lost = self.n_refused = 0
        self._ledger = Ledger()
        self._chance = chance
        self._source_path, self._replica_path = directory / "source", directory / "replica"
        for path in (self._source_path, self._replica_path):
            path.mkdir()
        self._backup = directory / "backup"
        self._port = 0

    async def set_back(self, *, is_past: bool) -> None:
        """Restore the source while a replica follows it, or is away, and go on."""
        shutil.rmtree(self._backup, ignore_errors=True)
        kept: list[Event] = []
        async with self._source() as source:
            assert source.eventer_port is not None
            self._port = source.eventer_port
            async with self._replica() as replica, loaded(source, self._ledger, 1) as load:
                await load.until_acknowledged(self._n_events())
                await _until_kept(replica, max(self._ledger.acknowledged))
        is_stopped = self._chance.random() < 0.5  # then it has given back the ids it reserved
        if is_stopped:
            await self._back_up()
        async with self._source() as source:
            async with loaded(source, self._ledger, 1) as load:
                await load.until_acknowledged(1)
                if not is_stopped:
                    await self._back_up()
                await load.until_acknowledged(self._n_events())
                if is_past:
                    async with self._replica() as replica:
                        await _until_kept(replica, max(self._ledger.acknowledged))
                os.kill(source.pid, signal.SIGKILL)
            await source.process.wait()
        if is_past:
            async with self._replica() as replica, connected(replica) as client:
                kept = await read_store(client)
        restore(self._backup, self._source_path / "events")
        async with self._source() as source, self._replica() as replica:
            await self._forget(source)
            async with loaded(source, self._ledger, 1) as load:
                await load.until_acknowledged(self._n_events())
            if is_past:
                await _until_refused(replica)
                await _compare(replica, kept)
                self.n_refused += 1
            else:
                await self._check_same(source, replica)
        if is_past:  # the way out
            shutil.rmtree(self._replica_path / "events")
            async with self._source() as source, self._replica() as replica:
                await self._check_same(source, replica)

    async def _back_up(self) -> None:
        await asyncio.to_thread(rocksdb.checkpoint, self._source_path / "events", self._backup)

    def _n_events(self) -> int:
        return self._chance.randint(1, MAX_WORK_EVENTS)

    def _source(self) -> AbstractAsyncContextManager[Gateway]:
        listen = {"host": "127.0.0.1", "port": self._port}
        return gateway(self._source_path, core={"eventer_server": listen})

    def _replica(self) -> AbstractAsyncContextManager[Gateway]:
        remote = {"server_id": SERVER_ID, "host": "127.0.0.1", "port": self._port}
        core = {"server_id": 2, "replication": [remote]}
        return gateway(self._replica_path, core=core, http=True)

    async def _forget(self, source: Gateway) -> None:
        """What was restored away is no longer to be found."""
        async with connected(source) as client:
            stored = {event.id for event in await read_store(client)}
        acknowledged = self._ledger.acknowledged
        lost = acknowledged.keys() - stored
        self.n_lost += len(lost)
        for event_id in lost:
            del acknowledged[event_id]

    async def _check_same(self, source: Gateway, replica: Gateway) -> None:
        async with connected(source) as client:
            stored = await read_store(client)
        self._ledger.check(stored)
        await _until_kept(replica, stored[-1].id)
        await _compare(replica, stored)


async def _until_kept(replica: Gateway, event_id: EventId) -> None:
    """Wait until a replica has an event, or a later one."""
    before = EventId(event_id.server, event_id.session, event_id.instance - 1)
    params = QueryServerParams(SERVER_ID, persisted=True, max_results=1, last_event_id=before)
    async with asyncio.timeout(CATCH_UP_TIMEOUT_S), connected(replica) as client:
        while not (await client.query(params)).events:
            await asyncio.sleep(0.02)


async def _until_refused(replica: Gateway) -> None:
    """Wait until a replica says that it does not go on, in its log and its metrics.

    Raises:
        ViolationError: it says that it is in step.
    """
    async with asyncio.timeout(CATCH_UP_TIMEOUT_S):
        while REFUSAL not in replica.stderr_path.read_text():
            await asyncio.sleep(0.02)
    url = f"http://{replica.host}:{replica.http_port}/metrics"
    async with aiohttp.ClientSession() as session, session.get(url) as response:
        text = await response.text()
    if f'mariner_replication_synced{{server="server {SERVER_ID}"}} 0.0' not in text:
        raise ViolationError("a replica of another history is called synced")


async def _compare(replica: Gateway, wanted: Sequence[Event]) -> None:
    async with connected(replica) as client:
        kept = await read_store(client)
    if kept != list(wanted):
        raise ViolationError(f"{len(kept)} events are kept, {len(wanted)} are to be, or others")
