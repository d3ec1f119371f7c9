"""A member of a group: follows the commit log, or is active and writes it.

::

    follow: read records, apply them ──── the active one's beat stands still, or it released
       ▲                                                    │ claim the next epoch
       │                                                    ▼
       └── stopped, or another one claimed ──── active: beat, append each commit

The log decides who is active, not a clock: whoever claimed an earlier epoch cannot append. A member
claims when it has seen the same beat for ``takeover_s`` by its own clock while the log answered. It
reads and applies what is left, and starts its engine.

Where an append fails, nobody is answered that it succeeded. The active member asks the log what
became of it (:meth:`CommitLog.settle`) until it answers: it goes on, or finds that another one
claimed. Meanwhile its backend has a ``failure``, so that the server is STANDBY. If its own store
fails, it releases the epoch, and follows again when it can.

Belongs to the event loop's thread.
"""

import asyncio
import logging
import time
from collections.abc import Sequence
from functools import partial
from typing import Final

from eventer_bridge import limits as core_limits
from eventer_bridge.backends.rocksdb.member import MemberBackend
from eventer_bridge.core.engine import Engine
from eventer_bridge.errors import (
    ClosedError,
    EventerBridgeError,
    ModuleError,
    OutcomeUnknownError,
    StorageError,
    StoreDamagedError,
    StoreFormatError,
)
from eventer_bridge.group import limits
from eventer_bridge.group.log import CommitLog, FencedError, LogError, LogState, MemberState
from eventer_bridge.resources import Resource, uncancellable

mlog = logging.getLogger(__name__)
audit = logging.getLogger("audit")

_UNREACHABLE: Final = "the log of the group cannot be used"


class MemberError(EventerBridgeError):
    """This store cannot be a member of the group; the message says why, and what to do."""


class GroupMember(Resource):
    """See the module.

    Closing it stops the engine, and releases the epoch; the caller closes engine, backend and log
    afterwards. It closes by itself if the store cannot be a member of this group.

    Args:
        engine: of the store; is started and stopped here.
        backend: the store.
        log: the log of the group.
        name: of this member.
        takeover_s: how long the beat of the active member may stand still.
        keep_s: how long records are kept for members that do not have them.

    Attributes:
        state: of the group, as it was last read; None: it was not yet.
        changed_at_s: when that was last seen to change (``time.monotonic()``), as it does with each
            beat of the active member.
        members: as they were last read, at ``members_at_s`` (``time.monotonic()``).
        takeovers: claims of this member while the active one had not released the epoch.
        failed: why it closed by itself; None: it did not.
    """

    def __init__(
        self,
        engine: Engine,
        backend: MemberBackend,
        log: CommitLog,
        name: str,
        *,
        takeover_s: float,
        keep_s: float,
    ) -> None:
        self._engine = engine
        self._backend = backend
        self._log = log
        self.name = name
        self._takeover_s = takeover_s
        self._keep_s = keep_s
        self.state: LogState | None = None
        self.changed_at_s = self.members_at_s = time.monotonic()
        self.members: Sequence[MemberState] = ()
        self.takeovers = 0
        self.failed: MemberError | None = None
        self._epoch: int | None = None  # that it claimed
        self._attempted: int | None = None  # that it claims, or did last
        self._acknowledged = 0  # position, of what it appended
        self._alive_s = 0.0  # when the last append or beat that succeeded was begun
        self._appended = asyncio.Event()
        self._changed = asyncio.Event()  # something that may end being active
        self._is_fenced = self._is_to_step_down = self._is_stale = False
        self._claims_after_s = 0.0
        self._behind_since_s: float | None = None
        self._reason: str | None = None
        self._failure_handle = backend.failure_cbs.register(self._changed.set)
        backend.on_applied = engine.note_applied
        engine.waits_for = "the log of the group was not read yet"
        self.async_group.spawn(self._run)
        self.async_group.spawn(self._tell_periodically)
        self.async_group.spawn(self._trim_periodically)

    @property
    def is_active(self) -> bool:
        """Whether it claimed the epoch, and knows of no later one."""
        return self._epoch is not None

    @property
    def position(self) -> int:
        """Of the last record that its store has."""
        return self._backend.position

    @property
    def lag_records(self) -> int:
        """Acknowledged records that its store has not."""
        return max(0, (self.state.acknowledged if self.state else 0) - self.position)

    @property
    def lag_s(self) -> float:
        """For how long it has been behind the acknowledged records."""
        since_s = self._behind_since_s
        return 0.0 if since_s is None else time.monotonic() - since_s

    def step_down(self) -> None:
        """Let another member be active; this one claims again if no other one does."""
        self._is_to_step_down = True
        self._changed.set()

    async def _run(self) -> None:
        try:
            await self._backend.follow()
            self._engine.give_up()
            while True:
                claimed = await self._follow()
                await self._be_active(claimed)
        except MemberError as e:
            self.failed = e
            mlog.error("this server cannot be a member of the group", extra={"reason": str(e)})
        except (ClosedError, StoreDamagedError, StoreFormatError) as e:
            mlog.error("the store of this member cannot go on", extra={"reason": str(e)})
        finally:
            self._failure_handle.cancel()
            self.close()

    # --- following ------------------------------------------------------------------------

    async def _follow(self) -> LogState:
        """Apply what others write until it is this member's turn; returns what it claimed."""
        beat: tuple[int, int] | None = None  # with its epoch, as last seen
        since_s = 0.0
        while True:
            n_read = 0
            try:
                if self._is_stale or self._backend.failure is not None:
                    await self._recover()
                state = await self._read_state()
                self._note_lag()
                n_read = await self._read_some(state.acknowledged)
                now_s = time.monotonic()
                if beat != (state.epoch, state.beat):
                    beat, since_s = (state.epoch, state.beat), now_s
                self._say_who_is_active(state)
                if (state.epoch, state.active) == (self._attempted, self.name):
                    return state  # the answer to the claim was lost
                is_due = state.active is None or now_s - since_s >= self._takeover_s
                if is_due and not n_read and await self._may_claim(now_s):
                    return await self._claim(state)
            except FencedError:
                self._attempted = None  # it was another one
                await asyncio.sleep(limits.POLL_S)
            except LogError as e:
                beat = None  # the active one cannot beat either
                self._wait_for(f"{_UNREACHABLE}: {e}")
                await asyncio.sleep(limits.RETRY_S)
            except (StoreDamagedError, StoreFormatError):
                raise
            except (StorageError, RuntimeError) as e:  # RuntimeError: no more threads
                if self._backend.failure is None:
                    self._backend.fail(StorageError(str(e)))
                self._wait_for(str(e))
                await asyncio.sleep(core_limits.STORE_RETRY_PERIOD_S)
            if not n_read:
                await asyncio.sleep(limits.POLL_S)

    async def _read_state(self) -> LogState:
        state = self._note(await self._log.state())
        await self._check(state)
        pending = self._backend.pending
        if pending and pending.epoch < state.epoch and pending.position > state.position:
            self._backend.decide(is_stored=False)  # nor will it be
        return state

    def _note(self, state: LogState) -> LogState:
        before, self.state = self.state, state
        if before is None or (before.epoch, before.beat) != (state.epoch, state.beat):
            self.changed_at_s = time.monotonic()
        return state

    async def _check(self, state: LogState) -> None:
        """Raise ``MemberError`` if the store does not belong to the log."""
        backend, row = self._backend, self._backend.group_row
        place = f"{backend.path}: "
        if state.server_id != self._engine.server_id:
            raise MemberError(
                f"event_core.server_id is {self._engine.server_id}, that of the group"
                f" {state.server_id}: all members have the same one"
            )
        if row is not None and row.group_id != state.group_id:
            raise MemberError(
                f"{place}the event store is of another group ({row.group_id}, not"
                f" {state.group_id}): {await self._how_to_join()}"
            )
        base = backend.base if row is None else None
        if row is None and state.base is not None and base != state.base:
            text = "has events of its own" if base else "is empty, and the group did not begin so"
            raise MemberError(f"{place}the event store {text}: {await self._how_to_join()}")
        if backend.position < state.trimmed:
            raise MemberError(
                f"{place}the event store has come to position {backend.position}, and the log of"
                f" the group begins behind {state.trimmed}: {await self._how_to_join()}"
            )
        if backend.position > state.position:
            # or it was not asked of the primary, but of one that was
            raise LogError(
                f"{place}the event store has come to position {backend.position}, and the log of"
                f" the group ends at {state.position}: the log lost records that were acknowledged"
            )

    async def _how_to_join(self) -> str:
        members = [i for i in await self._log.members() if i.name != self.name]
        if not members:
            return "restore a backup of a member (`mariner restore --member`) in its place"
        best = max(members, key=lambda i: i.position)
        return (
            f"restore a backup of member {best.name!r}, which has come to position"
            f" {best.position} (`mariner restore --member`), in its place"
        )

    async def _read_some(self, up_to: int) -> int:
        """Apply some of the records up to a position; returns how many, 0: all are applied."""
        backend = self._backend
        if backend.position >= up_to:
            return 0
        records = await self._log.read(backend.position, up_to, limits.READ_BYTES)
        if not records:
            raise LogError(f"the group's log has no record {backend.position + 1}")
        assert self.state is not None
        for record in records:
            try:
                await backend.apply(
                    self.state.group_id, record.position, record.epoch, record.parts
                )
            except StoreDamagedError as e:
                raise MemberError(f"{e}: {await self._how_to_join()}") from None
        return len(records)

    def _note_lag(self) -> None:
        if not self.lag_records:
            self._behind_since_s = None
        elif self._behind_since_s is None:
            self._behind_since_s = time.monotonic()

    async def _may_claim(self, now_s: float) -> bool:
        if now_s < self._claims_after_s:
            return False
        fault = await self._engine.find_fault()
        if fault is not None:
            self._wait_for(fault)
        return fault is None

    async def _claim(self, state: LogState) -> LogState:
        self._alive_s = time.monotonic()
        self._attempted = state.epoch + 1
        claimed = await self._log.claim(state, self.name, self._backend.base)
        extra = {"epoch": claimed.epoch, "before": state.active, "position": claimed.position}
        mlog.info("this member claims to be active", extra=extra)
        self.takeovers += state.active is not None
        return claimed

    def _say_who_is_active(self, state: LogState) -> None:
        if state.active is None:
            self._wait_for("no member of the group is active")
        else:
            self._wait_for(f"member {state.active!r} of the group is active")

    def _wait_for(self, reason: str) -> None:
        if reason != self._reason:
            mlog.info("this member is not active", extra={"reason": reason})
        self._reason = self._engine.waits_for = reason

    # --- being active ---------------------------------------------------------------------

    async def _be_active(self, claimed: LogState) -> None:
        """Be active until it is told not to, or cannot."""
        self._note(claimed)
        self._epoch, self._acknowledged = claimed.epoch, claimed.position
        self._is_fenced = self._is_to_step_down = False
        self._changed.clear()
        self._attempted = None
        beating = asyncio.create_task(self._beat_periodically(claimed.epoch))
        try:
            self._behind_since_s = None
            self._wait_for("it applies the rest of the log first")
            if await self._go_on(claimed.epoch):
                self._engine.waits_for = self._reason = None
                audit.info("active", extra={"member": self.name, "epoch": claimed.epoch})
                # not cancelled half-way: stop() ends what start() began, in the store as well
                await uncancellable(self._start_engine())
                await self._stay_active(claimed.epoch)
        finally:
            await uncancellable(self._end_active(claimed.epoch, beating))

    async def _start_engine(self) -> None:
        try:
            self._engine.take_over()
            await self._engine.start()
        except ModuleError as e:
            raise MemberError(str(e)) from e
        except EventerBridgeError as e:
            mlog.error("engine cannot be started", extra={"reason": str(e)})
            self._is_to_step_down = True
            self._changed.set()

    async def _stay_active(self, epoch: int) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            if self._is_fenced or self._is_to_step_down:
                return
            if self._backend.failure is not None and not await self._go_on(epoch):
                return

    async def _go_on(self, epoch: int) -> bool:
        """Apply what the log has, and append to it from there; false: that cannot be.

        After a claim, and after a failure in its epoch.
        """
        failing_since_s: float | None = None
        while not self._is_to_step_down:
            began_s = time.monotonic()
            is_settled = False
            try:
                position = await self._log.settle(epoch)
                self._alive_s, is_settled = began_s, True
                failing_since_s = failing_since_s or began_s
                return await self._lead(epoch, position)
            except FencedError as e:
                mlog.warning("another member is active now", extra={"reason": str(e)})
                self._is_fenced = True
                return False
            except LogError as e:
                self._backend.fail(e)
                if not is_settled:
                    failing_since_s = None
                if failing_since_s and began_s - failing_since_s >= self._takeover_s:
                    return False  # it can be written, and not read: another member may do better
                await asyncio.sleep(limits.RETRY_S)
        return False

    async def _lead(self, epoch: int, position: int) -> bool:
        """Have the store take commits, which has all up to a position; false: the store fails."""
        backend = self._backend
        try:
            if backend.failure is not None:
                await backend.recover(is_to_follow=False)
            while await self._read_some(position):
                pass
            if backend.pending is not None:  # it is behind the end
                backend.decide(is_stored=False)
            self._acknowledged = position
            assert self.state is not None
            await backend.lead(self.state.group_id, epoch, partial(self._append, epoch))
        except OutcomeUnknownError as e:  # of the first record, which begins the history
            raise LogError(str(e)) from e
        except (LogError, StoreDamagedError, StoreFormatError):
            raise
        except (StorageError, RuntimeError) as e:  # RuntimeError: no more threads
            mlog.error("this member cannot be active", extra={"reason": str(e)})
            return False
        return True

    async def _append(self, epoch: int, position: int, parts: Sequence[bytes]) -> None:
        """See ``AppendCb``."""
        began_s = time.monotonic()
        try:
            await self._log.append(epoch, position, parts)
        except FencedError:
            self._is_fenced = True
            self._changed.set()
            raise
        except LogError as e:
            if e.is_unknown:
                raise OutcomeUnknownError(str(e)) from e
            raise
        self._alive_s, self._acknowledged = began_s, position
        self._appended.set()

    async def _beat_periodically(self, epoch: int) -> None:
        """Show that this member is alive, and followers what is acknowledged."""
        period_s = self._takeover_s / limits.BEATS
        while self._epoch == epoch:
            is_told_soon = not await self._wait_quiet(period_s)
            if self._backend.failure is not None:  # what goes on then is a beat, too
                await asyncio.sleep(limits.RETRY_S)
                continue
            began_s = time.monotonic()
            if is_told_soon and began_s - self._alive_s < period_s / 2:
                continue
            try:
                await self._log.beat(epoch, self._acknowledged)
                self._alive_s = began_s
            except FencedError as e:
                mlog.warning("another member is active now", extra={"reason": str(e)})
                self._is_fenced = True
                self._changed.set()
                return
            except LogError as e:
                if time.monotonic() - self._alive_s >= self._takeover_s:
                    self._backend.fail(LogError(f"{_UNREACHABLE}: {e}"))
                await asyncio.sleep(min(limits.RETRY_S, period_s))

    async def _wait_quiet(self, period_s: float) -> bool:
        """Wait for a record, and until no other one follows; false: none came, or they go on."""
        try:
            async with asyncio.timeout(period_s):
                await self._appended.wait()
                while self._appended.is_set():
                    self._appended.clear()
                    await asyncio.sleep(limits.QUIET_S)
        except TimeoutError:
            self._appended.clear()
            return False
        return True

    async def _end_active(self, epoch: int, beating: asyncio.Task[None]) -> None:
        """Stop the engine, and release the epoch if it is still this member's."""
        engine, backend = self._engine, self._backend
        self._say_why_not()
        if self._is_fenced or backend.failure is not None:
            await backend.follow()
        try:
            await engine.stop(is_last=not self.is_open)
            if not backend.is_passive:
                await engine.settle()
                await backend.flush()
        except EventerBridgeError as e:
            mlog.error("this member did not stop cleanly", extra={"reason": str(e)})
        self._epoch = None
        self._appended.set()  # its statement is not cut off, which would cost the connection
        await asyncio.wait([beating])
        await backend.follow()
        engine.give_up()
        if not self._is_fenced:
            try:
                await self._log.release(epoch)
            except LogError as e:
                mlog.warning(
                    "the group was not told that this member stops", extra={"reason": str(e)}
                )
        self._claims_after_s = time.monotonic() + self._takeover_s + limits.STEP_DOWN_S
        audit.info("not active", extra={"member": self.name, "epoch": epoch})
        self._is_stale = True  # memory may know of types that were never stored

    def _say_why_not(self) -> None:
        if self._is_fenced:
            self._wait_for("another member of the group became active")
        elif not self.is_open or self._is_to_step_down:
            self._wait_for("this member steps down")
        else:
            self._wait_for(self._backend.failure or "this member cannot be active")

    # --- both -----------------------------------------------------------------------------

    async def _recover(self) -> None:
        """Have the store as it is on the disk, so that it can go on."""
        await self._backend.recover(is_to_follow=True)
        self._is_stale = False

    async def _tell_periodically(self) -> None:
        """Sync the store, and tell the group up to where."""
        while True:
            await asyncio.sleep(limits.TELL_PERIOD_S)
            backend = self._backend
            if backend.failure is not None or backend.group_row is None:
                continue
            try:
                position = await backend.sync()
                await self._log.note_member(self.name, position)
                self.members = await self._log.members()
                self.members_at_s = time.monotonic()
                if self.is_active:
                    self._note(await self._log.state())
            except LogError as e:
                mlog.debug("the group is not told of this member", extra={"reason": str(e)})
            except StorageError as e:
                backend.fail(e)

    async def _trim_periodically(self) -> None:
        while True:
            await asyncio.sleep(limits.TRIM_PERIOD_S)
            if self.is_active:
                try:
                    await self._log.trim(self._keep_s)
                except LogError as e:
                    mlog.debug("the log is not trimmed", extra={"reason": str(e)})
