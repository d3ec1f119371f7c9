"""Members of a group, with their log in a real PostgreSQL with a quorum of standbys."""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path

import pytest

from eventer_bridge.backends import rocksdb
from eventer_bridge.backends.rocksdb import control
from eventer_bridge.backends.rocksdb.latest import Row
from eventer_bridge.backends.visible_query import VisibleQuery
from eventer_bridge.core.cursors import Cursors
from eventer_bridge.core.engine import Engine
from eventer_bridge.errors import (
    ConfigurationError,
    NotOperationalError,
    OutcomeUnknownError,
    StorageError,
)
from eventer_bridge.group.log import FencedError, LogError
from eventer_bridge.model import EventId, QueryTimeseriesParams, Status
from eventer_bridge.slices import Steps
from eventer_bridge.subscription import EVERYTHING
from mariner.gateway import config_file
from mariner.gateway.gateway import create
from tests.support.group import SERVER_ID, TAKEOVER_S, Server, Site, site
from tests.support.inprocess import APP
from tests.support.postgresql import Cluster
from tests.support.waiting import until


@pytest.fixture
async def pair(postgresql: Cluster, tmp_path: Path) -> AsyncIterator[Site]:
    async with site(postgresql, tmp_path, "a", "b") as made:
        yield made


async def stored(server: Server) -> list[int]:
    """Sessions of the stored events."""
    params = QueryTimeseriesParams(event_types=[("t", "*")])
    answer = await server.engine.answer(VisibleQuery(params, EVERYTHING))
    return sorted(event.id.session for event in answer.events)


async def test_followers_have_what_the_active_one_acknowledged(pair: Site) -> None:
    a, b = pair.servers["a"], pair.servers["b"]
    assert b.engine.status is Status.STANDBY
    assert b.engine.hindrance == "member 'a' of the group is active"
    small = await a.register(3)
    large = await a.register(5_000)  # in parts
    await until(lambda: large[-1] in b.seen.ids[True])
    assert b.seen.ids[False] == b.seen.ids[True]
    assert b.seen.ids[True][-5_003:] == [*small, *large]
    params = QueryTimeseriesParams(ids=[large[-1]])
    [event] = (await b.engine.answer(VisibleQuery(params, EVERYTHING))).events
    assert event.id == large[-1]
    refused = b.submit()
    with pytest.raises(NotOperationalError, match="server is STANDBY, not OPERATIONAL"):
        refused.committed.result()
    await pair.equal()


async def test_another_member_goes_on_when_the_active_one_steps_down(pair: Site) -> None:
    a, b = pair.servers["a"], pair.servers["b"]
    first = await a.register(2, "key 1")
    began_s = time.monotonic()
    a.member.step_down()
    await until(lambda: b.is_operational)
    assert time.monotonic() - began_s < TAKEOVER_S  # nobody waited for its beat
    assert a.engine.status is Status.STANDBY
    assert await b.register(2, "key 1") == first  # stored once
    [second] = await b.register(1, "key 2")
    assert second.session > first[-1].session
    assert second.server == first[0].server == SERVER_ID
    await pair.equal()


async def test_the_last_member_claims_again(postgresql: Cluster, tmp_path: Path) -> None:
    async with site(postgresql, tmp_path, "a") as made:
        a = made.servers["a"]
        a.member.step_down()
        await until(lambda: not a.is_operational)
        await until(lambda: a.is_operational)
        assert a.member.state is not None
        assert a.member.state.epoch == 2


async def test_a_silent_member_is_replaced_and_writes_nothing_more(pair: Site) -> None:
    a, b = pair.servers["a"], pair.servers["b"]
    before = await a.register()
    epoch = a.member.state.epoch  # type: ignore[union-attr]
    # as one that is stopped: it neither beats nor learns of anything
    hung: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def hang(*_: object) -> None:
        await asyncio.shield(hung)

    goes_on = a.log.beat, a.log.append
    a.log.beat = a.log.append = hang  # type: ignore[assignment, method-assign]
    late = a.submit()
    try:
        began_s = time.monotonic()
        await until(lambda: b.is_operational)
        assert TAKEOVER_S <= time.monotonic() - began_s < 4 * TAKEOVER_S
        [after] = await b.register()
        a.log.beat, a.log.append = goes_on  # type: ignore[method-assign]
        with pytest.raises(FencedError, match="b has claimed epoch 2 since"):
            await a.log.append(epoch, a.backend.position + 1, [b"late"])
    finally:
        hung.set_exception(FencedError("it comes too late"))
    await until(lambda: not a.member.is_active)
    assert isinstance(late.committed.exception(), StorageError)
    await until(lambda: a.backend.position == b.backend.position)
    assert await stored(a) == await stored(b) == [before[0].session, after.session]
    await pair.equal()


async def test_what_became_of_an_unknown_append_is_found_out(pair: Site) -> None:
    a, b = pair.servers["a"], pair.servers["b"]
    cluster_, primary = pair.cluster, pair.cluster.primary
    for node in cluster_.nodes[1:]:  # nothing is acknowledged any more
        node.pause()
    try:
        batch = a.submit()
        await until(batch.committed.done)
        error = batch.committed.exception()
        assert isinstance(error, OutcomeUnknownError)
        assert a.engine.status is Status.STANDBY
        assert a.engine.hindrance is not None
        with pytest.raises(StorageError, match="no answer within 1 s"):
            await a.register()
        assert not b.is_operational
    finally:
        for node in cluster_.nodes[1:]:
            node.resume()
    await until(lambda: pair.active() is not None)
    await until(lambda: error.is_stored() is not None)
    await until(lambda: a.backend.position == b.backend.position > 0)
    assert (batch.session in await stored(a)) is error.is_stored()
    assert (batch.last_id in a.seen.ids[True]) is error.is_stored()
    assert primary.is_running
    await pair.equal()


async def test_the_log_away_is_told_and_over_at_once_when_it_is_back(pair: Site) -> None:
    a, b = pair.servers["a"], pair.servers["b"]
    await a.register()
    pair.cluster.primary.kill()
    try:
        await until(lambda: not a.is_operational)  # without a registration, too
        assert a.engine.hindrance is not None
        assert "127.0.0.1" in a.engine.hindrance
        batch = a.submit()
        assert isinstance(batch.committed.exception(), StorageError)
        await until(lambda: "cannot be used" in (b.engine.hindrance or ""))
    finally:
        pair.cluster.primary.start()
    began_s = time.monotonic()
    await until(lambda: pair.active() is a)
    assert time.monotonic() - began_s < 5.0
    assert a.member.state is not None
    assert a.member.state.epoch == 1
    await a.register()
    await pair.equal()


async def test_ids_and_types_that_were_never_stored_are_no_trace(pair: Site) -> None:
    a, b = pair.servers["a"], pair.servers["b"]

    async def refuse(*_: object) -> None:
        raise FencedError("group: epoch 1 is over")

    a.log.append = refuse  # type: ignore[assignment, method-assign]
    batch = a.submit(40)  # 40 new types
    await until(batch.committed.done)
    assert isinstance(batch.committed.exception(), StorageError)
    await until(lambda: pair.active() is b)
    await b.register(20)
    del a.log.append
    b.member.step_down()
    await until(lambda: pair.active() is a)
    await a.register(30)
    await pair.equal()


async def refusal(made: Site, name: str) -> str:
    """Start a server that cannot be a member; why."""
    server = await made.start(name)
    await until(lambda: not server.member.is_open)
    assert server.member.failed is not None
    await made.stop(name)
    return str(server.member.failed)


async def test_a_store_that_cannot_be_a_member_says_what_to_do(
    postgresql: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with site(postgresql, tmp_path / "1", "a") as made:
        a = made.servers["a"]
        await a.register(3)
        position = a.backend.position
        copy = tmp_path / "copy"
        await asyncio.to_thread(control.ext_checkpoint, a.backend._store, copy)
        state = await a.log.state()
        advice = (
            "restore a backup of member 'a', which has come to position"
            f" {position} (`mariner restore --member`), in its place"
        )
        await until(lambda: a.member.members)
        # the store of another group
        async with site(postgresql, tmp_path / "2", "other") as other:
            await other.stop("other")
            (tmp_path / "2/other").rename(tmp_path / "1/b")
        assert (await refusal(made, "b")).endswith(f"not {state.group_id}): {advice}")
        # one with events of its own
        (tmp_path / "1/b").rename(tmp_path / "was b")
        single = await rocksdb.create(tmp_path / "1/c")
        await single.async_close()
        path = tmp_path / "1/c"
        assert (
            await refusal(made, "c") == f"{path}: the event store has events of its own: {advice}"
        )
        # one from before the first record that is left
        await a.register(2)
        await until(lambda: a.member.members[0].position == a.backend.position)
        await a.register()  # by which those before it are acknowledged
        monkeypatch.setattr("eventer_bridge.group.limits.ALONE_KEEP_S", 0.0)
        await a.log.trim(3600.0)
        copy.rename(tmp_path / "1/d")
        text = await refusal(made, "d")
        begin = f"{tmp_path}/1/d: the event store has come to position {position}, and the log of"
        assert text.startswith(f"{begin} the group begins behind {position + 1}: restore a backup")
        # a new one
        text = await refusal(made, "e")
        assert text.startswith(f"{tmp_path}/1/e: the event store has come to position 0, and the")


async def test_a_member_does_not_go_on_alone(postgresql: Cluster, tmp_path: Path) -> None:
    async with site(postgresql, tmp_path, "a") as made:
        await made.stop("a")
        with pytest.raises(StorageError, match="is that of a member of a group, and the others"):
            await rocksdb.create(tmp_path / "a")
        assert (await made.start("a")).backend.group_row is not None


async def test_a_follower_that_is_behind_knows_of_no_departure(pair: Site) -> None:
    a, b = pair.servers["a"], pair.servers["b"]
    [last] = await a.register()
    ahead = EventId(last.server, last.session + 1_000, 1)  # which it will have
    assert b.engine.departure(ahead, None) is None
    assert a.engine.departure(ahead, None) is not None
    await until(lambda: b.engine.histories == a.engine.histories)


async def test_a_keyed_registration_is_refused_by_a_follower(pair: Site) -> None:
    batch = pair.servers["b"].submit(1, "key")
    with pytest.raises(NotOperationalError, match="server is STANDBY, not OPERATIONAL"):
        batch.committed.result()


async def test_a_commit_given_up_while_it_is_written_is_decided(pair: Site) -> None:
    a, b = pair.servers["a"], pair.servers["b"]
    written = asyncio.Event()
    append = a.log.append

    async def append_and_fail(epoch: int, position: int, parts: Sequence[bytes]) -> None:
        await append(epoch, position, parts)
        written.set()
        a.backend.fail(StorageError("the disk is full"))  # before it is written here

    a.log.append = append_and_fail  # type: ignore[method-assign]
    batch = a.submit(3)
    await written.wait()
    a.log.append = append  # type: ignore[method-assign]
    await until(batch.committed.done)
    error = batch.committed.exception()
    assert isinstance(error, OutcomeUnknownError)
    await until(error.is_stored)
    await until(lambda: batch.last_id in a.seen.ids[True])
    assert a.seen.ids[True].count(batch.last_id) == 1
    await until(lambda: a.is_operational)
    await a.register()
    await until(lambda: b.backend.position == a.backend.position)
    await pair.equal()


async def test_an_unknown_commit_behind_another_one_is_decided(pair: Site) -> None:
    a = pair.servers["a"]
    append = a.log.append
    n_appended = 0

    async def lose_the_second(epoch: int, position: int, parts: Sequence[bytes]) -> None:
        nonlocal n_appended
        n_appended += 1
        await append(epoch, position, parts)
        if n_appended == 2:
            raise LogError("the answer was lost", is_unknown=True)

    a.log.append = lose_the_second  # type: ignore[method-assign]
    batches = [a.submit(100) for _ in range(100)]  # three commits
    await until(lambda: all(batch.committed.done() for batch in batches))
    a.log.append = append  # type: ignore[method-assign]
    assert batches[0].committed.exception() is None
    assert type(batches[-1].committed.exception()) is StorageError  # it was not sent
    error = batches[50].committed.exception()
    assert isinstance(error, OutcomeUnknownError)
    await until(error.is_stored)
    last = batches[50].last_id
    await until(lambda: last in a.seen.ids[True])
    assert a.seen.ids[True].count(last) == a.seen.ids[False].count(last) == 1
    await pair.equal()


async def test_what_is_written_already_is_not_decided_otherwise(pair: Site) -> None:
    a = pair.servers["a"]
    update = a.backend._latest.update_in_steps

    def fail_then(written: Mapping[bytes, Row]) -> Steps[None]:
        a.backend._latest.update_in_steps = update  # type: ignore[method-assign]
        a.backend.fail(StorageError("a sync failed"))
        yield from update(written)

    a.backend._latest.update_in_steps = fail_then  # type: ignore[method-assign]
    batch = a.submit(5_000)  # large: its latest events are noted in steps, after it is written
    await until(batch.committed.done)
    error = batch.committed.exception()
    assert isinstance(error, OutcomeUnknownError)
    await until(lambda: error.is_stored() is not None)
    assert error.is_stored()
    await until(lambda: batch.last_id in a.seen.ids[True])
    await pair.equal()


async def test_a_damaged_record_names_who_has_it(postgresql: Cluster, tmp_path: Path) -> None:
    async with site(postgresql, tmp_path, "a") as made:
        a = made.servers["a"]
        await a.register(3)
        await until(lambda: a.member.members)
        of_it = f"name = '{made.name}' AND position = 2"
        damage = f"UPDATE mariner.records SET data = data || '\\x00' WHERE {of_it}"  # noqa: S608
        await asyncio.to_thread(postgresql.primary.sql, damage)
        assert (await refusal(made, "b")).startswith(
            "record 2 of the group's log is damaged: its checksum is another one, or that of the"
            " record before: restore a backup of member 'a', which has come to position"
        )


async def test_a_store_becomes_the_base_of_a_group(postgresql: Cluster, tmp_path: Path) -> None:
    single = await rocksdb.create(tmp_path / "a")
    engine = Engine(single, SERVER_ID)
    await engine.start()
    history_id = single.history_id
    await engine.async_close()
    await single.async_close()
    async with site(postgresql, tmp_path, "a") as made:
        a = made.servers["a"]
        assert a.backend.history_id == history_id
        [first] = await a.register()
        text = await refusal(made, "b")  # an empty one lacks what was before the log
        assert "is empty, and the group did not begin so: restore a backup" in text
        copy = tmp_path / "c"
        await asyncio.to_thread(control.ext_checkpoint, a.backend._store, copy)
        c = await made.start("c")
        [second] = await a.register()
        await until(lambda: c.backend.position == a.backend.position)
        assert await stored(c) == [first.session, second.session]
        await made.equal()


class Holder:
    """A connection that holds a cursor."""

    def __init__(self) -> None:
        self.lost: str | None = None

    def on_cursor_lost(self, reason: str) -> None:
        """See ``CursorHolder``."""
        self.lost = reason

    def redeliver(self) -> None:
        """See ``CursorHolder``."""


async def test_cursors_go_on_where_they_were(pair: Site) -> None:
    a, b = pair.servers["a"], pair.servers["b"]
    assert a.engine.cursors is not None
    assert b.engine.cursors is not None
    [first, second, third] = await a.register(3)
    holder, wanted = Holder(), (EVERYTHING, None)
    cursor = a.engine.cursors.take("app", "c", holder, {}, wanted)
    a.engine.cursors.acknowledge(cursor, [second])
    a.engine.cursors.park(cursor, {first: "why"})
    with pytest.raises(NotOperationalError, match="this server is STANDBY, the active one has cu"):
        b.engine.cursors.look_up("app", "c")
    a.member.step_down()
    await until(lambda: b.is_operational)
    assert holder.lost == "another member of the group has the cursors now"
    found = b.engine.cursors.look_up("app", "c")
    assert found is not None
    assert found.seen == {SERVER_ID: second}
    assert [*b.engine.cursors.parked(found)] == [first]
    # what the former one was told since is not written over it later
    a.engine.cursors.rows.put({b"stale": b"row"})
    b.engine.cursors.acknowledge(found, [third])
    await b.engine.cursors.rows.flush()
    b.member.step_down()
    await until(lambda: a.is_operational)
    again = a.engine.cursors.look_up("app", "c")
    assert again is not None
    assert again.seen == {SERVER_ID: third}
    assert a.backend.reader_rows(b"stale") == {}
    await pair.equal()


async def test_rows_that_are_given_up_while_they_are_written_are_forgotten(pair: Site) -> None:
    a = pair.servers["a"]
    assert a.engine.cursors is not None
    rows = a.engine.cursors.rows
    rows.put({b"stale": b"row"})
    flushing = asyncio.create_task(rows.flush())
    await asyncio.sleep(0)
    a.backend.fail(StorageError("the disk is full"))
    rows.forget()
    with pytest.raises((StorageError, OutcomeUnknownError)):
        await flushing
    assert not rows.has(b"stale")


async def test_events_are_held_until_cursors_are_read() -> None:
    async with await rocksdb.create_temporary() as backend:
        cursors = Cursors(backend, hold_s=10.0)
        assert cursors._held_since() is None
        cursors.give_up()
        assert cursors._held_since() is not None  # another member may have some
        cursors.load()
        assert cursors._held_since() is None


async def test_a_loss_is_not_accepted_of_a_member(tmp_path: Path) -> None:
    log = {"type": "postgresql", "dsn": "postgresql://127.0.0.1/mariner"}
    conf = {
        "name": "test",
        "mariner": {"host": "127.0.0.1", "port": 0},
        "event_core": {
            "server_id": 1,
            "backend": {"type": "rocksdb", "path": str(tmp_path / "events")},
            "group": {"log": log, "name": "plant"},
        },
        "clients": [APP],
    }
    with pytest.raises(ConfigurationError, match="--accept-loss: not of a member of a group"):
        await create(config_file.parse(conf, "test"), accept_loss=True)
