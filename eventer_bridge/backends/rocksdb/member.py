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
from collections.abc import Awaitable, Callable, Container, Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

from typing_extensions import override

from eventer_bridge import limits
from eventer_bridge.backends import history
from eventer_bridge.backends.passed_time import PassedTime
from eventer_bridge.backends.request_keys import KeyRetention
from eventer_bridge.backends.retention import RetentionRule
from eventer_bridge.backends.rocksdb import control, keys, records
from eventer_bridge.backends.rocksdb.backend import RocksDbBackend
from eventer_bridge.backends.rocksdb.commit import Commit, Group
from eventer_bridge.backends.rocksdb.contents import GroupRow, encode_group
from eventer_bridge.backends.rocksdb.group_commit import CommitObserver
from eventer_bridge.backends.rocksdb.keys import SessionBlock, TypeId
from eventer_bridge.backends.rocksdb.latest import Row
from eventer_bridge.backends.rocksdb.opening import (
    Opened,
    ext_call,
    ext_load,
    ext_open_member,
    unexpected,
)
from eventer_bridge.backends.rocksdb.records import Operation, PartPlace, RowBatch
from eventer_bridge.backends.rocksdb.types import TypeRegistry
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
"""From so much on, parts are encoded and decoded on another thread: 2 ms."""

_STEP_ROWS: Final = 256
"""Rows of a record that are looked at in one step: 0.1 ms."""


class Pending(NamedTuple):
    """A record that was sent, whose outcome is not known, or that could not be written here."""

    epoch: int
    position: int


class AppliedBlock(NamedTuple):
    """Sessions that a record brought.

    Attributes:
        block: of the sessions.
        values: of the record's events, by their keys.
        type_ids: of the record's events.
        types: all that there are.
    """

    block: SessionBlock
    values: Mapping[bytes, bytes]
    type_ids: Container[TypeId]
    types: TypeRegistry

    @property
    def server(self) -> int:
        """Server of the sessions."""
        return keys.decode_int(self.block.server_key[: keys.INT_BYTES])

    @property
    def last_session(self) -> int:
        """The last of the sessions."""
        return keys.decode_int(self.block.last_session)

    def has_type(self, event_type: EventType) -> bool:
        """Whether the record has events of a type."""
        return self.types.ids.get(event_type) in self.type_ids

    def sessions(self) -> Steps[list[list[Event]]]:
        """The events of each session, made in steps."""
        sessions: list[list[Event]] = []
        names, event_keys = self.types.names, self.block.event_keys()
        while some := [(key, self.values[key]) for key in islice(event_keys, limits.STEP_EVENTS)]:
            for event in keys.decode_events(some, names):
                if not sessions or sessions[-1][0].id.session != event.id.session:
                    sessions.append([])
                sessions[-1].append(event)
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
    backend = MemberBackend(opened, on_commit, retention, opened.clock, keys_kept)
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
        super().__init__(opened, on_commit, (), clock, key_retention)
        self.is_passive = True
        self.rules_when_active = rules
        self.group_row = self._read(self._store.group_row)
        self.pending: Pending | None = None
        self.on_applied: Callable[[Sequence[AppliedBlock]], Awaitable[None]] = _ignore
        self._append_record: AppendCb | None = None
        self._epoch = 0
        self._sending: asyncio.Task[None] | None = None
        self._sent: Pending | None = None
        self._synced = -1

    @property
    def position(self) -> int:
        """Position of the last record that is written here."""
        return 0 if self.group_row is None else self.group_row.position

    # --- as a follower --------------------------------------------------------------------

    async def apply(self, group_id: str, position: int, epoch: int, parts: Sequence[bytes]) -> None:
        """Write a record of the log, the next one.

        ``StoreDamagedError``: it is damaged, or does not follow what is here. ``StorageError``: it
        cannot be written; :meth:`recover` is to be called then.
        """
        self._check_open()
        before = self.group_row or GroupRow(group_id, 0, 0)
        if position != before.position + 1:
            raise StoreDamagedError(
                f"record {position} of the group's log comes after {before.position}: some are"
                " missing"
            )
        decoded = [
            await self._decode(part, PartPlace(before.digest, position, epoch, number, len(parts)))
            for number, part in enumerate(parts)
        ]
        await run(self._learn(decoded))  # who reads finds the type of each row
        row = GroupRow(group_id, position, records.digest_of(parts))
        await run(self._write_parts(decoded, row))
        blocks = await run(self._take_in(decoded))
        if not self.history_id:
            self.history_id = self._read(self._store.history_id) or ""
        pending = self.pending
        is_ours = pending is not None and pending == (epoch, position)
        if pending is not None and pending.position == position:
            self.decide(is_stored=is_ours)  # by which observers are notified
        if blocks and not is_ours:
            await self.on_applied(blocks)

    async def _decode(self, part: bytes, place: PartPlace) -> list[Operation]:
        try:
            if records.plain_bytes(part) < _THREAD_BYTES:
                return records.decode_part(part, place)
            return await asyncio.to_thread(records.decode_part, part, place)
        except ValueError as e:
            text = f"record {place.position} of the group's log is damaged: {e}"
            raise StoreDamagedError(text) from None

    def _learn(self, parts: Sequence[Sequence[Operation]]) -> Steps[None]:
        """Add the types that a record brings."""
        for operations in parts:
            for n_rows, (code, key, value) in enumerate(operations, 1):
                if code == records.PUT_IN["type"]:
                    self._types.learn(key, keys.decode_type(value))
                if n_rows % _STEP_ROWS == 0:
                    yield
            yield

    def _take_in(self, parts: Sequence[Sequence[Operation]]) -> Steps[list[AppliedBlock]]:
        """Note the latest events of a record that was written; returns its new blocks."""
        values: dict[bytes, bytes] = {}
        latest: dict[TypeId, Row] = {}
        blocks: list[SessionBlock] = []
        put_event, put_block = records.PUT_IN["event"], records.PUT_IN["session"]
        for operations in parts:
            for n_rows, (code, key, value) in enumerate(operations, 1):
                if code == put_event:
                    values[key] = value
                    known = latest.get(key[: keys.TYPE_BYTES])
                    if known is None or known[0] < key:
                        latest[key[: keys.TYPE_BYTES]] = key, value
                elif code == put_block:
                    blocks.append(SessionBlock(key, value))
                if n_rows % _STEP_ROWS == 0:
                    yield
            yield
        yield from self._latest.update_in_steps(latest)
        # retention rewrites blocks without their events
        new = [block for block in blocks if next(block.event_keys(), None) in values]
        return [AppliedBlock(block, values, latest.keys(), self._types) for block in new]

    def _write_parts(
        self,
        parts: Sequence[Sequence[Operation]],
        row: GroupRow,
        sessions: AbstractSet[bytes] = frozenset(),
        is_given_up: Callable[[], bool] = lambda: False,
    ) -> Steps[None]:
        """Write a record; with the last part also how far the store has come."""
        families = self._store.all_handles
        for number, operations in enumerate(parts, 1):
            if is_given_up():
                return
            part = Commit()
            part.batch = records.write_batch(operations, families)
            if number == len(parts):
                part.batch.put(keys.GROUP_KEY, encode_group(row), families[0])
                part.sessions = {*sessions}
            self._store.write(part)
            yield
        self._store.undecided = frozenset()
        self.group_row = row

    async def sync(self) -> int:
        """Sync what is written; returns up to which position. ``StorageError``: it failed."""
        position = self.position
        if position != self._synced:
            await self._on_storage_thread(self._store.ext_sync)
            self._synced = position
        return position

    async def recover(self, *, is_to_follow: bool) -> None:
        """After a failure: open the store again, if it failed, and read what memory has of it.

        ``is_to_follow``: :meth:`apply` is all that comes then, and nothing is wrong any more.
        ``StorageError``: it cannot be written yet; call it again.
        """
        await self.follow()
        if self._store.has_failed:
            await self._on_storage_thread(self._store.ext_reopen)
            self._store.undecided = frozenset()
        await self._load()
        if is_to_follow:
            self._set_failure(None)

    def fail(self, error: StorageError) -> None:
        """Nothing can be committed any more, until :meth:`recover`."""
        self._is_committing = False
        self._fail_groups(error)

    async def follow(self) -> None:
        """Take nothing from now on, but :meth:`apply` records; what gathered is refused."""
        self.is_passive = True
        self._append_record = None
        if self._groups:
            self._is_committing = False
            self._refuse_groups(StorageError(NOT_ACTIVE))
        if self._sending is not None:  # it may be writing
            await asyncio.wait([self._sending])
        retention, self._retention = self._retention, None
        if retention is not None:
            await asyncio.to_thread(retention.ext_close)

    def decide(self, *, is_stored: bool) -> None:
        """What was :attr:`pending` is in the log and applied, or never will be."""
        self.pending = None
        decided, self._decided = self._decided, None
        if decided is not None:
            mlog.info("commit that failed is decided", extra={"is_stored": is_stored})
            decided.set_result(is_stored)

    @property
    def base(self) -> str:
        """What tells a store that is in no group yet from all others; empty: it is an empty one."""
        if not self.history_id:
            return ""
        return f"{self.history_id} {self._read(self._store.ext_last_position).hex()}"

    # --- as the active member -------------------------------------------------------------

    async def lead(self, group_id: str, epoch: int, append: AppendCb) -> None:
        """Take commits from now on, which ``append`` appends to the log in an epoch.

        Everything in the log is applied. ``StorageError``: it cannot be read.
        """
        await self._load()
        if self.group_row is None:
            self.group_row = GroupRow(group_id, 0, 0)
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
            self._is_committing = False
            self._refuse_groups(StorageError(NOT_ACTIVE))
            return
        self._store.put_part(commit)
        commit.is_written = True  # it may be in the log from now on
        self._sent = Pending(self._epoch, row.position + 1)
        send = self._send(self._groups[0], append, self._sent, row)
        self._sending = self._loop.create_task(send)

    async def _send(self, group: Group, append: AppendCb, sent: Pending, before: GroupRow) -> None:
        """Append a commit to the log, write it here, and report it as durable.

        Where it is given up meanwhile, it is :attr:`pending`.
        """
        commit = group.commit
        batches: list[RowBatch] = [*commit.before, commit.batch]
        try:
            parts = [
                await _encode(
                    batch,
                    PartPlace(before.digest, sent.position, sent.epoch, number, len(batches)),
                )
                for number, batch in enumerate(batches)
            ]
            row = GroupRow(before.group_id, sent.position, records.digest_of(parts))
            started_s = time.perf_counter()
            try:
                await append(sent.position, parts)
            except StorageError:
                commit.is_written = False  # which is certain
                self._sent = None
                raise
            self._sync_s = time.perf_counter() - started_s
            operations = [batch.operations for batch in batches]
            is_given_up = group.future.done
            await run(self._write_parts(operations, row, commit.sessions, is_given_up))
            if group.is_large and not is_given_up():
                await run(self._latest.update_in_steps(commit.latest))
                commit.latest = {}
            if not is_given_up():
                self._on_durable(group)
        except asyncio.CancelledError:
            raise
        except (StorageError, OutcomeUnknownError) as e:
            self._on_unsent(group, StorageError(str(e)))
        except BaseException as e:  # a panic of RocksDB's binding is no Exception
            self._on_unsent(group, unexpected(e))
        finally:
            if self._sent is sent:  # not that of the next one, which may be on its way
                self._sent = None

    def _on_unsent(self, group: Group, error: StorageError) -> None:
        if not group.future.done():
            self._on_synced(error)

    @override
    def _refuse_groups(self, error: StorageError) -> None:
        if self._sent is not None:
            self.pending = self._sent
        super()._refuse_groups(error)

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
        self.group_row = self._read(self._store.group_row)
        if self.pending is not None and self.pending.position <= self.position:
            self.decide(is_stored=True)  # :meth:`apply` decides what came from others

    async def _on_storage_thread(self, ext_job: Callable[[], object]) -> None:
        done: asyncio.Future[object] = self._loop.create_future()

        def on_done(outcome: object) -> None:
            if not done.done():
                done.set_result(outcome)

        self._thread.run(ext_job, on_done)
        outcome = await done
        if isinstance(outcome, StorageError):
            raise outcome


async def _encode(batch: RowBatch, place: PartPlace) -> bytes:
    if batch.size_in_bytes() < _THREAD_BYTES:
        return records.encode_part(batch.operations, place)
    return await asyncio.to_thread(records.encode_part, batch.operations, place)


async def _ignore(_: Sequence[AppliedBlock]) -> None:
    pass
