"""A source that is restored from a backup while others follow it: nobody mixes two histories."""

import asyncio
import contextlib
import re
import shutil
from collections.abc import AsyncIterator, Iterable, Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from eventer_bridge.backends import history, rocksdb
from eventer_bridge.backends.rocksdb.commit import Commit
from eventer_bridge.backends.rocksdb.store import Store
from eventer_bridge.core.engine import Engine
from eventer_bridge.errors import ClosedError
from eventer_bridge.model import Event, JsonPayload, QueryServerParams, Status
from eventer_bridge.net import limits
from mariner.gateway.gateway import Gateway
from tests.support.event_servers import event_server, eventer_port, events_of
from tests.support.inprocess import metrics_of, running_gateway
from tests.support.peer import RawPeer, event, register_req
from tests.support.restoring import back_up, restore
from tests.support.waiting import until

HTTP = {"host": "127.0.0.1", "port": 0}


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that is back is found at once."""
    monkeypatch.setattr(limits, "RECONNECT_MAX_S", 0.2)


async def register(gateway: Gateway, values: Iterable[str]) -> None:
    async with await RawPeer.init(gateway.mariner.port) as peer:
        for value in values:
            assert (await peer.request(register_req(1, event("a", value=value))))["success"]


def values(events: Iterable[Event]) -> list[str]:
    """Payloads of what was registered by these tests."""
    ours = [i.payload for i in events if i.type == ("a",)]
    return [i.value() for i in ours if isinstance(i, JsonPayload)]


async def until_kept(gateway: Gateway, wanted: Sequence[str], server_id: int = 1) -> list[Event]:
    while values(found := await events_of(gateway, server_id)) != list(wanted):
        await asyncio.sleep(0.02)
    return found


def refusals(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Why a server was not replicated."""
    return [
        record.__dict__["reason"]
        for record in caplog.records
        if record.message.startswith("server is not replicated: its store is not the one")
    ]


async def until_refused(caplog: pytest.LogCaptureFixture) -> str:
    while not (reasons := refusals(caplog)):
        await asyncio.sleep(0.01)
    return reasons[-1]


class Damage:
    """A source that was followed, and set back.

    Attributes:
        port: where the source listens for replicas.
        lost: what the replica has of it, of what the source no longer has.
        printed: what the restore said.
    """

    SHARED = ("1", "2")
    LOST = ("3 of the first", "4 of the first")

    def __init__(self, path: Path) -> None:
        self._path = path
        self.port = 0
        self.kept: list[Event] = []
        self.printed = ""

    async def do(self) -> None:
        """Back up, go on, have it replicated, restore."""
        path = self._path
        async with event_server(path, 1) as source:
            self.port = eventer_port(source)
            await register(source, self.SHARED)
            async with event_server(path, 2, remotes={1: self.port}) as replica:
                await until_kept(replica, self.SHARED)
                await register(replica, ["own"])
                await back_up(path / "store2", path / "backup2")
        # it gave back what it had reserved: without a restore's doing, ids would come again
        await back_up(path / "store1", path / "backup1")
        async with event_server(path, 1, port=self.port) as source:
            await register(source, self.LOST)
            async with event_server(path, 2, remotes={1: self.port}) as replica:
                await until_kept(replica, [*self.SHARED, *self.LOST])
        self.kept = await kept_in(path / "store2")
        self.printed = restore(path / "backup1", path / "store1")

    @contextlib.asynccontextmanager
    async def source(self) -> AsyncIterator[Gateway]:
        """The source that was restored, and went on."""
        async with event_server(self._path, 1, port=self.port) as source:
            yield source


@pytest.fixture
async def damage(tmp_path: Path) -> Damage:
    damage = Damage(tmp_path)
    await damage.do()
    return damage


async def test_a_replica_does_not_mix(
    tmp_path: Path, damage: Damage, caplog: pytest.LogCaptureFixture
) -> None:
    """Also when the source has come as far as it was before, and further."""
    async with damage.source() as source:
        await register(source, [f"{i} of the second" for i in range(3, 9)])
        here = {i.id: i for i in await events_of(source, 1)}
        both = [i for i in damage.kept if i.id in here]
        assert len(both) < len(damage.kept)
        assert all(here[i.id] == i for i in both)  # no id was given twice
        remotes = {1: damage.port}
        async with event_server(tmp_path, 2, remotes=remotes, http=HTTP) as replica:
            reason = await until_refused(caplog)
            assert (await metrics_of(replica, "mariner_re")).items() >= {
                ('plication_synced{server="server 1"}', 0),
                ('mote_connected{server="server 1"}', 1),
            }
            await register(source, ["live"])
            assert await events_of(replica, 1) == damage.kept
    told = history.read_all(here.values())[1]
    [span] = told.before
    session = damage.kept[-1].id.session
    assert span.last < session
    assert reason == (
        f"it was restored: its history {told.id} continues {span.id} from session"
        f" {span.last}, but that was followed up to session {session}"
    )
    assert f"history {told.id} begins" in damage.printed
    assert f"server 1 has nothing behind session {span.last};" in damage.printed
    [mark] = re.findall(r"server 1 .*; new ids have sessions above (\d+)", damage.printed)
    assert told.first == int(mark) + 1


async def test_who_has_not_come_so_far_goes_on(
    tmp_path: Path, damage: Damage, caplog: pytest.LogCaptureFixture
) -> None:
    """A replica that was set back, too."""
    restore(tmp_path / "backup2", tmp_path / "store2")
    async with damage.source() as source:
        await register(source, ["3 of the second"])
        wanted = [*Damage.SHARED, "3 of the second"]
        for _ in range(2):  # it is followed, and so it is after a restart
            async with event_server(tmp_path, 2, remotes={1: damage.port}) as replica:
                await until_kept(replica, wanted)
                await register(source, [f"{len(wanted) + 1} of the second"])
                wanted.append(f"{len(wanted) + 1} of the second")
                kept = await until_kept(replica, wanted)
                assert kept == (await events_of(source, 1))[: len(kept)]
    assert not refusals(caplog)


async def test_with_another_identifier_nothing_is_lost(tmp_path: Path, damage: Damage) -> None:
    """The way out that the log and the restore tell of."""
    (tmp_path / "store1").rename(tmp_path / "store3")
    async with contextlib.AsyncExitStack() as stack:
        enter = stack.enter_async_context
        async with event_server(tmp_path, 2) as replica:
            port = eventer_port(replica)
        remotes = {1: port, 2: port}
        renamed = await enter(event_server(tmp_path, 3, port=damage.port, remotes=remotes))
        replica = await enter(event_server(tmp_path, 2, port=port, remotes={3: damage.port}))
        while (found := await events_of(renamed, 1)) != damage.kept:
            assert found == damage.kept[: len(found)]
            await asyncio.sleep(0.02)
        await until_kept(renamed, ["own"], 2)
        await register(renamed, ["after"])
        await until_kept(replica, ["after"], 3)


async def test_a_second_restore_of_the_same_backup(
    tmp_path: Path, damage: Damage, caplog: pytest.LogCaptureFixture
) -> None:
    """What the first one gave ids is not what the second one gives them to."""
    restore(tmp_path / "backup2", tmp_path / "store2")
    async with damage.source() as source:
        await register(source, ["3 of the second"])
        async with event_server(tmp_path, 2, remotes={1: damage.port}) as replica:
            await until_kept(replica, [*Damage.SHARED, "3 of the second"])
    first = await kept_in(tmp_path / "store2")
    restore(tmp_path / "backup1", tmp_path / "store1")
    async with damage.source() as source:
        await register(source, ["3 of the third", "4 of the third"])
        async with event_server(tmp_path, 2, remotes={1: damage.port}) as replica:
            assert "was followed up to session" in await until_refused(caplog)
            assert await events_of(replica, 1) == first
        here = {i.id: i for i in await events_of(source, 1)}
        assert all(here.get(i.id, i) == i for i in first)


async def test_a_copy_that_is_set_back_by_hand(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It has the same history, but of a type no event as late as the one that is kept."""
    async with event_server(tmp_path, 1) as source:
        port = eventer_port(source)
        await register(source, ["1"])
    shutil.copytree(tmp_path / "store1", tmp_path / "copy")
    async with event_server(tmp_path, 1, port=port) as source:
        async with await RawPeer.init(source.mariner.port) as peer:
            assert (await peer.request(register_req(1, event("rare", value=1))))["success"]
        async with event_server(tmp_path, 2, remotes={1: port}) as replica:
            while ("rare",) not in [i.type for i in await events_of(replica, 1)]:
                await asyncio.sleep(0.01)
    kept = await kept_in(tmp_path / "store2")
    shutil.rmtree(tmp_path / "store1")
    (tmp_path / "copy").rename(tmp_path / "store1")
    skip_ids(tmp_path / "store1", 1_000)
    async with event_server(tmp_path, 1, port=port) as source:
        await register(source, ["2"])  # past it
        assert (await events_of(source, 1))[-1].id.session > 1_000 > kept[-1].id.session
        async with event_server(tmp_path, 2, remotes={1: port}) as replica:
            assert "is a different one there" in await until_refused(caplog)
            assert await events_of(replica, 1) == kept


async def test_one_that_begins_while_it_is_followed(tmp_path: Path) -> None:
    """It had no history when it was connected to, as in a new pair; and then it has one."""
    group = {"monitor": {"host": "127.0.0.1", "port": 1, "group": "g"}}  # not there: it waits
    async with event_server(tmp_path, 1, core=group) as source:
        remotes = {1: eventer_port(source)}
        async with event_server(tmp_path, 2, remotes=remotes) as replica:
            [replication] = replica._replications
            await until(lambda: replication.is_synced)
            assert isinstance(source.core, Engine)
            await source.core.start()
            await register(source, ["1"])
            kept = await until_kept(replica, ["1"])
            while "DISCONNECTED" not in str(kept[-1].payload):  # of who registered
                kept = await events_of(replica, 1)
            assert source.eventer_server is not None
            assert source.eventer_server.stats.accepted == 1  # it was not connected to again
            # another one is told of
            [begun] = [i for i in kept if history.is_history(i.type)]
            last = kept[-1]
            other = replace(
                begun,
                id=replace(last.id, session=last.id.session + 1),
                timestamp=last.timestamp,
                payload=JsonPayload.of({"id": "x"}),
            )
            with pytest.raises(ClosedError) as e:
                await replication._deliver([other])
    told = history.read_all(kept)[1]
    assert str(e.value) == (
        "server 1 continues with another history: its history is x, but"
        f" {told.id} was followed up to session {last.id.session}"
    )


async def kept_in(store: Path) -> list[Event]:
    """What a store that nobody has open has of the source."""
    async with await rocksdb.create(store) as backend:
        return list((await backend.query(QueryServerParams(1))).events)


def skip_ids(path: Path, session: int) -> None:
    """As if a gateway was killed that had reserved ids up to this session."""
    store = Store(path)
    commit = Commit()
    store.stage_reservation(commit, 1, session)
    store.ext_write_synced(commit)
    store.ext_close()


@pytest.mark.parametrize("is_lost", [False, True])
async def test_a_relay(tmp_path: Path, is_lost: bool) -> None:
    """Who hears of what is registered hears of one history only, and is not disconnected without
    need."""
    async with contextlib.AsyncExitStack() as stack:
        async with event_server(tmp_path, 1) as source:
            port = eventer_port(source)
            relay = await stack.enter_async_context(
                running_gateway(eventer={"host": "127.0.0.1", "port": port, "token": None})
            )
            watcher = await RawPeer.init(relay.mariner.port, subscriptions=[["a"]])
            stack.callback(watcher.writer.close)
            await until_operational(relay)
            if is_lost:
                await back_up(tmp_path / "store1", tmp_path / "backup")
            await register(source, ["1"])
            assert await heard(watcher) == ["1"]
        if not is_lost:
            await back_up(tmp_path / "store1", tmp_path / "backup")
        restore(tmp_path / "backup", tmp_path / "store1")
        await stack.enter_async_context(event_server(tmp_path, 1, port=port))
        if is_lost:
            with pytest.raises(asyncio.IncompleteReadError):
                await heard(watcher)
            watcher = await RawPeer.init(relay.mariner.port, subscriptions=[["a"]])
            stack.callback(watcher.writer.close)
        await until_operational(relay)
        await register(relay, ["2"])
        assert await heard(watcher) == ["2"]


async def until_operational(relay: Gateway) -> None:
    while relay.core.status is not Status.OPERATIONAL:
        await asyncio.sleep(0.01)


async def heard(watcher: RawPeer) -> list[str]:
    """What it is told of next."""
    while (message := await watcher.receive())["msg_type"] != "events":
        pass
    return [i["payload"]["data"] for i in message["events"]]
