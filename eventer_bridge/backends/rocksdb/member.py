"""The store of a member of a group: its commits come from the log of the group, or go there.

Of the members one is *active*. It sends each commit as a record, and writes it here when it is
acknowledged; the others write the records that they read::

    active:    register() ─▶ gathering ─▶ RowBatch ─▶ record ─▶ log ─▶ written ─▶ future done
    follower:                                         record ─▶ apply() ─▶ written ─▶ ``on_applied``

The row ``keys.GROUP_KEY``, written with the last part of each record, says how far the store has
come. What is written is durable in the log already: so it is not synced here, but now and then
(:meth:`MemberBackend.sync`); after a crash the store goes on from the position that it has.

While it is not active, it takes nothing (``is_passive``). A commit that fails, in the log or here,
fails all that wait, as ``group_commit`` says, and names the record whose outcome is not known
(:attr:`MemberBackend.pending`). Who owns it (``eventer_bridge.group.member``) finds out what is in
the log, applies it, and calls :meth:`MemberBackend.lead` or :meth:`~MemberBackend.follow`.

Belongs to the event loop's thread; what is named ``ext_`` runs on another one.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

import msgspec
from typing_extensions import override

from eventer_bridge import limits
from eventer_bridge.backends import history
from eventer_bridge.backends.passed_time import PassedTime
from eventer_bridge.backends.request_keys import KeyRetention
from eventer_bridge.backends.retention import RetentionRule
from eventer_bridge.backends.rocksdb import control, keys, records
from eventer_bridge.backends.rocksdb.backend import RocksDbBackend
from eventer_bridge.backends.rocksdb.commit import Commit, Group
from eventer_bridge.backends.rocksdb.group_commit import CommitObserver
from eventer_bridge.backends.rocksdb.keys import SessionBlock, TypeId
from eventer_bridge.backends.rocksdb.latest import Row
from eventer_bridge.backends.rocksdb.opening import Opened, ext_call, ext_load, ext_open_member
from eventer_bridge.backends.rocksdb.records import Operation, Place
from eventer_bridge.backends.rocksdb.store import Store
from eventer_bridge.errors import (
    OutcomeUnknownError,
    StorageError,
    StoreDamagedError,
    StoreFormatError,
)
from eventer_bridge.model import Event, EventType
from eventer_bridge.slices import Steps, run

mlog = logging.getLogger(__name__)

NOT_ACTIVE: Final = "this member of the group is not active"

AppendCb: TypeAlias = Callable[[int, Sequence[bytes]], Awaitable[None]]
"""Appends the record of a position to the log: its parts. ``StorageError``: it is not there;
``OutcomeUnknownError``: maybe."""


_THREAD_BYTES: Final = 64 << 10
_THREAD_ROWS: Final = 1000
"""From so much on, parts are encoded and decoded on another thread: 1 ms."""


class GroupRow(msgspec.Struct, frozen=True, array_like=True):
    """The row of ``keys.GROUP_KEY``."""

    group_id: str
    position: int


_encode_row: Final = msgspec.msgpack.Encoder().encode
_decode_row: Final = msgspec.msgpack.Decoder(GroupRow).decode


class Pending(NamedTuple):
    """A record that was sent, whose outcome is not known, or that could not be written here."""

    epoch: int
    position: int


class AppliedBlock(NamedTuple):
    """Sessions that a record brought: their block, and the values of its events by their keys."""

    block: SessionBlock
    values: Mapping[bytes, bytes]
    names: Mapping[TypeId, EventType]

    @property
    def server(self) -> int:
        """Server of the sessions."""
        return keys.decode_int(self.block.server_key[: keys.INT_BYTES])

    @property
    def last_session(self) -> int:
        """The last of the sessions."""
        return keys.decode_int(self.block.last_session)

    def sessions(self) -> Steps[list[list[Event]]]:
        """The events of each session, made in steps."""
        sessions: list[list[Event]] = []
        for n_events, key in enumerate(self.block.event_keys()):
            [event] = keys.decode_events([(key, self.values[key])], self.names)
            if not sessions or sessions[-1][0].id.session != event.id.session:
                sessions.append([])
            sessions[-1].append(event)
            if n_events % limits.STEP_EVENTS == limits.STEP_EVENTS - 1:
                yield
        return sessions


async def create_member(
    path: Path,
    on_commit: CommitObserver | None = None,
    retention: Sequence[RetentionRule] = (),
    *,
    key_retention: KeyRetention | None = None,
) -> "MemberBackend":
    """As ``backend.create``, of a member of a group; a new store has no history yet."""
    opened = await asyncio.to_thread(ext_open_member, path)
    mlog.info("event store opened", extra={"path": str(path), "types": len(opened.types)})
    keys_kept = key_retention or KeyRetention()
    # retention begins when it is active
    backend = MemberBackend(opened, on_commit, (), opened.clock, keys_kept)
    backend.rules_when_active = tuple(retention)
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(backend.async_close)
        backend.control = await control.listen(opened.store)
        stack.pop_all()
    return backend


class MemberBackend(RocksDbBackend):
    """See the module. Made by :func:`create_member`.

    Attributes:
        rules_when_active: rules of retention, which the active member follows for all.
        group_row: of its group; None: it belongs to none yet.
        pending: see the module; None: there is none.
        on_applied: called with what :meth:`apply` wrote.
    """

    def __init__(
        self,
        opened: Opened,
        on_commit: CommitObserver | None,
        rules: Sequence[RetentionRule],
        clock: PassedTime,
        key_retention: KeyRetention,
    ) -> None:
        super().__init__(opened, on_commit, rules, clock, key_retention)
        self._store.is_recorded = self.is_passive = True
        self.rules_when_active: Sequence[RetentionRule] = ()
        self.group_row = read_group(self._store)
        self.pending: Pending | None = None
        self.on_applied: Callable[[Sequence[AppliedBlock]], Awaitable[None]] = _ignore
        self._append_record: AppendCb | None = None
        self._epoch = 0
        self._sending: asyncio.Task[None] | None = None
        self._sent: Pending | None = None

    @property
    def position(self) -> int:
        """Position of the last record that is written here."""
        return 0 if self.group_row is None else self.group_row.position

    # --- as a follower --------------------------------------------------------------------

    async def apply(self, group_id: str, position: int, epoch: int, parts: Sequence[bytes]) -> None:
        """Write a record of the log, the next one.

        ``StoreDamagedError``: it is damaged, or not the next one. ``StorageError``: it cannot be
        written; :meth:`recover` is to be called then.
        """
        self._check_open()
        if position != self.position + 1:
            raise StoreDamagedError(
                f"record {position} of the group's log comes after {self.position}: some are"
                " missing"
            )
        decoded: list[list[Operation]] = []
        for number, part in enumerate(parts):
            place = Place(position, epoch, number, len(parts))
            try:
                if len(part) < _THREAD_BYTES:
                    decoded.append(records.decode_part(part, place))
                else:
                    decoded.append(await asyncio.to_thread(records.decode_part, part, place))
            except ValueError as e:
                text = f"record {position} of the group's log is damaged: {e}"
                raise StoreDamagedError(text) from None
        await run(self._write_parts(decoded, GroupRow(group_id, position)))
        pending = self.pending
        values: dict[bytes, bytes] = {}
        for operations in decoded:
            for type_id, data in records.puts(operations, "type"):
                self._types.learn(type_id, keys.decode_type(data))
            values.update(records.puts(operations, "event"))
        latest: dict[TypeId, Row] = {}
        for row in values.items():
            type_id = row[0][: keys.TYPE_BYTES]
            if (known := latest.get(type_id)) is None or known[0] < row[0]:
                latest[type_id] = row
        await run(self._latest.update_in_steps(latest))
        if not self.history_id:
            self.history_id = self._read(self._store.history_id) or ""
        blocks = [
            AppliedBlock(SessionBlock(key, entries), values, self._types.names)
            for operations in decoded
            for key, entries in records.puts(operations, "session")
        ]
        # retention rewrites blocks without their events
        new = [i for i in blocks if next(i.block.event_keys(), None) in values]
        is_ours = pending is not None and pending == (epoch, position)
        if pending is not None and pending.position == position:
            self.decide(is_stored=is_ours)  # by which observers are notified
        if new and not is_ours:
            await self.on_applied(new)

    def _write_parts(
        self,
        parts: Sequence[Sequence[Operation]],
        row: GroupRow,
        sessions: AbstractSet[bytes] = frozenset(),
    ) -> Steps[None]:
        """Write a record; with the last part also how far the store has come."""
        families = self._store.all_handles
        for number, operations in enumerate(parts, 1):
            part = Commit()
            part.batch = records.write_batch(operations, families)
            if number == len(parts):
                part.batch.put(keys.GROUP_KEY, _encode_row(row), families[0])
                part.sessions = {*sessions}
            self._store.write(part)
            yield
        self._store.undecided = frozenset()
        self.group_row = row

    async def sync(self) -> int:
        """Sync what is written; returns up to which position. ``StorageError``: it failed."""
        position = self.position
        await self._on_storage_thread(self._store.ext_sync)
        return position

    async def recover(self) -> None:
        """After a failure: open the store again, if it failed, and read what memory has of it.

        ``StorageError``: it cannot be written yet; call it again.
        """
        self.is_passive = True
        self._append_record = None
        if self._sending is not None:
            await asyncio.wait([self._sending])
        await self._end_retention()
        if self._store.has_failed:
            await self._on_storage_thread(self._store.ext_reopen)
            self._store.undecided = frozenset()
        await self._load()

    def fail(self, error: StorageError) -> None:
        """Nothing can be committed any more, until :meth:`lead` or :meth:`follow`."""
        self._is_committing = False
        self._fail_groups(error)

    async def follow(self) -> None:
        """Take nothing from now on, but :meth:`apply` records; what gathered is refused."""
        self.is_passive = True
        self._append_record = None
        if self._groups:
            self.fail(StorageError(NOT_ACTIVE))
        await self._end_retention()
        self._set_failure(None)

    def decide(self, *, is_stored: bool) -> None:
        """What was :attr:`pending` is in the log and applied, or never will be."""
        self.pending = None
        decided, self._decided = self._decided, None
        if decided is not None:
            mlog.info("commit that failed is decided", extra={"is_stored": is_stored})
            decided.set_result(is_stored)

    # --- as the active member -------------------------------------------------------------

    async def lead(self, group_id: str, epoch: int, append: AppendCb) -> None:
        """Take commits from now on, which ``append`` appends to the log in an epoch.

        Everything in the log is applied. ``StorageError``: it cannot be read.
        """
        await self._load()
        if self.group_row is None:
            self.group_row = GroupRow(group_id, 0)
        self._epoch, self._append_record = epoch, append
        self.is_passive = False
        self._set_failure(None)
        if not self.history_id:
            group = self._gather(0)
            self._store.stage_history(group.commit, history.new_id())
            await asyncio.shield(group.future)
            self.history_id = self._read(self._store.history_id) or ""
        self._rules = self.rules_when_active
        if self._retention is None:
            await self.retain(self._rules)

    @override
    async def retain(self, rules: Sequence[RetentionRule]) -> None:
        self.rules_when_active = rules
        if not self.is_passive:
            await super().retain(rules)

    @override
    def _write(self, commit: Commit) -> None:
        append, row = self._append_record, self.group_row
        if append is None or row is None:
            self._on_synced(StorageError(NOT_ACTIVE))
            return
        self._store.put_part(commit)
        parts = [batch.operations for batch in (*commit.before, commit.batch)]
        commit.is_written = True  # it may be in the log from now on
        self._sent = Pending(self._epoch, row.position + 1)
        self._sending = self._loop.create_task(self._send(append, self._sent, parts))
        group, following = self._groups[0], GroupRow(row.group_id, row.position + 1)
        self._sending.add_done_callback(partial(self._on_sent, group, parts, following))

    async def _send(
        self, append: AppendCb, sent: Pending, parts: Sequence[Sequence[Operation]]
    ) -> None:
        encoded: list[bytes] = []
        for number, operations in enumerate(parts):
            place = Place(sent.position, sent.epoch, number, len(parts))
            if len(operations) < _THREAD_ROWS:
                encoded.append(records.encode_part(operations, place))
            else:
                encoded.append(await asyncio.to_thread(records.encode_part, operations, place))
        started_s = time.perf_counter()
        await append(sent.position, encoded)
        self._sync_s = time.perf_counter() - started_s

    def _on_sent(
        self,
        group: Group,
        parts: Sequence[Sequence[Operation]],
        row: GroupRow,
        task: asyncio.Task[None],
    ) -> None:
        sent, self._sent = self._sent, None
        if not self._groups or self._groups[0] is not group:
            return  # it was given up meanwhile, and is pending
        error = task.exception()
        if error is None:
            self._ending.add(partial(self._end_sent, group, parts, row, sent))
            return
        if isinstance(error, OutcomeUnknownError):
            self.pending = sent
        elif isinstance(error, StorageError):
            group.commit.is_written = False
        else:
            mlog.error("a record cannot be sent", exc_info=error)
            self.pending = sent
        self._on_synced(StorageError(str(error)))

    def _end_sent(
        self,
        group: Group,
        parts: Sequence[Sequence[Operation]],
        row: GroupRow,
        sent: Pending | None,
    ) -> Steps[None]:
        """Write a commit that is in the log, and then report it as durable."""
        try:
            yield from self._write_parts(parts, row, group.commit.sessions)
        except StorageError as e:
            if not group.future.done():
                self.pending = sent
                self._on_synced(e)
            return
        if group.is_large:
            yield from self._latest.update_in_steps(group.commit.latest)
            group.commit.latest = {}
        if not group.future.done():
            self._on_durable(group)

    @override
    def _fail_groups(self, error: StorageError) -> None:
        if self._sent is not None:
            self.pending = self._sent
        super()._fail_groups(error)

    @override
    def _retry(self, error: StorageError) -> None:
        """Whoever owns it recovers."""
        if isinstance(error, (StoreDamagedError, StoreFormatError)):
            super()._retry(error)

    # --- both -----------------------------------------------------------------------------

    async def _load(self) -> None:
        opened = await asyncio.to_thread(ext_call, ext_load, self._store)
        self._adopt(opened)
        self._clock.go_on(opened.clock.encode())
        self.group_row = read_group(self._store)

    async def _end_retention(self) -> None:
        retention, self._retention = self._retention, None
        if retention is not None:
            await asyncio.to_thread(retention.ext_close)

    async def _on_storage_thread(self, ext_job: Callable[[], object]) -> None:
        done: asyncio.Future[object] = self._loop.create_future()

        def on_done(outcome: object) -> None:
            if not done.done():
                done.set_result(outcome)

        self._thread.run(ext_job, on_done)
        outcome = await done
        if isinstance(outcome, StorageError):
            raise outcome


async def _ignore(_: Sequence[AppliedBlock]) -> None:
    pass


def read_group(store: Store) -> GroupRow | None:
    """The group of a store, and how far it has come; None: it belongs to none."""
    with store.in_use(), store.errors():
        found: bytes | None = store.family("default").get(keys.GROUP_KEY)
    if found is None:
        return None
    try:
        return _decode_row(found)
    except msgspec.DecodeError as e:
        raise StoreDamagedError(f"{store.path}: the event store is damaged: its group: {e}") from e
