"""Members of a group in the process of the test, with their log in a real PostgreSQL."""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Final

from eventer_bridge.backends.request_keys import RequestKey
from eventer_bridge.backends.rocksdb.compare import ext_compare
from eventer_bridge.backends.rocksdb.member import MemberBackend, create_member
from eventer_bridge.backends.rocksdb.store import Store
from eventer_bridge.backends.rocksdb.verify import Finding, ext_verify
from eventer_bridge.core.base import Observer
from eventer_bridge.core.engine import Engine
from eventer_bridge.group.dsn import PostgresqlConfig
from eventer_bridge.group.member import GroupMember
from eventer_bridge.group.postgresql import PostgresqlLog, create_group
from eventer_bridge.model import EventId, JsonPayload, RegisterEvent, SourceType, Status
from eventer_bridge.packed import Batch, batch_of
from tests.support.postgresql import Cluster
from tests.support.waiting import until

TAKEOVER_S: Final = 1.0
SERVER_ID: Final = 1

_names = itertools.count(1)


class Seen(Observer):
    """Ids of the events that observers are notified of, by ``persisted``, in order."""

    def __init__(self) -> None:
        self.ids: dict[bool, list[EventId]] = {False: [], True: []}

    def on_session(self, session: Batch, persisted: bool) -> None:
        """See ``Observer``."""
        self.ids[persisted] += [event.id for event in session.events]


class Server:
    """A member with its parts; ``kill`` leaves it as a dead machine does, but for its lock."""

    def __init__(self, backend: MemberBackend, engine: Engine, log: PostgresqlLog, name: str):
        self.backend, self.engine, self.log = backend, engine, log
        self.seen = Seen()
        engine.add_observer(self.seen)
        self.member = GroupMember(
            engine, backend, log, name, takeover_s=TAKEOVER_S, keep_s=float("inf")
        )

    @property
    def is_operational(self) -> bool:
        """Whether it registers."""
        return self.engine.status is Status.OPERATIONAL

    def submit(self, n: int = 1, key: str | None = None, owner: str = "app") -> Batch:
        """Register ``n`` events."""
        events = [
            RegisterEvent(("t", str(i)), None, JsonPayload.of({"value": i})) for i in range(n)
        ]
        batch = batch_of(events, self.engine.types)
        batch.source = self.engine.create_source(SourceType.CONNECTION)
        if key is not None:
            batch.key = RequestKey(owner, key, b"d" * 16)
        self.engine.submit([batch])
        return batch

    async def register(self, n: int = 1, key: str | None = None) -> list[EventId]:
        """Register ``n`` events; their ids, or raises."""
        batch = self.submit(n, key)
        await asyncio.wait([batch.committed])
        batch.committed.result()
        first = batch.first or batch
        return [event.id for event in first.events]

    async def close(self) -> None:
        """Stop as a gateway does."""
        for part in self.member, self.engine, self.log, self.backend:
            await part.async_close()


class Site:
    """A group: its servers, by name."""

    def __init__(self, cluster: Cluster, path: Path) -> None:
        self.cluster = cluster
        self.path = path
        self.name = f"members {next(_names)}"
        self.config = PostgresqlConfig(cluster.dsn())
        self.servers: dict[str, Server] = {}

    async def start(self, name: str) -> Server:
        """Start a member."""
        backend = await create_member(self.path / name)
        engine = Engine(backend, SERVER_ID)
        await engine.read_histories()
        log = PostgresqlLog(self.config, self.name, TAKEOVER_S)
        server = self.servers[name] = Server(backend, engine, log, name)
        return server

    async def stop(self, name: str) -> None:
        """Stop a member."""
        await self.servers.pop(name).close()

    def active(self) -> Server | None:
        """The one that registers."""
        return next((i for i in self.servers.values() if i.is_operational), None)

    async def equal(self) -> None:
        """Stop all, let each apply the rest of the log, and compare their stores."""
        names = [*self.servers]
        for name in names:
            await self.stop(name)
        log = PostgresqlLog(self.config, self.name, TAKEOVER_S)
        state = await log.state()
        for name in names:
            backend = await create_member(self.path / name)
            for record in await log.read(backend.position, state.position, 1 << 30):
                await backend.apply(state.group_id, record.position, record.epoch, record.parts)
            await backend.async_close()
        await log.async_close()
        await asyncio.to_thread(self._ext_compare, names)

    def _ext_compare(self, names: Sequence[str]) -> None:
        stores = [Store(self.path / name, read_only=True) for name in names]
        found: list[Finding] = []
        try:
            for other in stores[1:]:
                assert ext_compare(stores[0], other, found.append) > 0
            for store in stores:
                ext_verify(store, found.append)
            assert not found
        finally:
            for store in stores:
                store.ext_close()


@contextlib.asynccontextmanager
async def site(cluster: Cluster, path: Path, *names: str) -> AsyncIterator[Site]:
    """A group of members, the first of which is active."""
    made = Site(cluster, path)
    await create_group(made.config, made.name, SERVER_ID, 10.0, unreplicated=False)
    try:
        for name in names:
            server = await made.start(name)
            await until(lambda: made.active() is not None)
            await until(lambda server=server: server.backend.position > 0)  # type: ignore[misc]
        yield made
    finally:
        for name in [*made.servers]:
            await made.stop(name)
