"""From a batch to a stored session (000, "Module engine").

A batch becomes one session. It is checked, gets the next session id, modules look at it and add to
it, it gets a timestamp that never goes backwards, observers are notified, the backend gets it, and
reports when it is durable::

    submit() ─▶ check ─▶ modules ─▶ conditions ─▶ id ─▶ backend ─▶ observers (registered)
                                                           │
                  observers (persisted), Batch.committed ◀── commit

The way back: when a commit is done, observers are notified that its sessions are persisted, and
then the callers who registered them continue (``Batch.committed``). So a client that hears of
persisted events hears of its own before its registration is acknowledged; except where a session
is notified in slices, which its acknowledgement does not wait for. This holds because the first
callback of a commit is that of its sessions: nobody else has the future before (``_track``).

Small batches that come together go to the backend together, and everything but the commit happens
within the call of ``submit``. Other batches go one by one. With modules, they wait in a queue and
are processed one after the other, without waiting for the commit of the one before. A large batch
is handed over and notified in slices; later ones wait, to keep the order.

Where a commit failed and its outcome is not known (``OutcomeUnknownError``), its sessions are not
notified until the backend knows: then they are, if they are stored.

Everything here runs on the event loop's thread.
"""

import asyncio
import contextlib
import logging
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import groupby

import msgspec
from typing_extensions import override

from eventer_bridge import limits
from eventer_bridge.backends.base import Backend, ReadTypeCb, failed
from eventer_bridge.backends.type_budget import TypeQuota
from eventer_bridge.core.base import EventCore
from eventer_bridge.core.clock import ClockWatch
from eventer_bridge.core.conditions import Conditions
from eventer_bridge.core.keyed_requests import KeyedRequests, order_error
from eventer_bridge.core.session import REMOTE_SOURCE, SessionIdAllocator, is_large, resolve
from eventer_bridge.core.validation import TypeChecks, too_many
from eventer_bridge.errors import (
    EventerBridgeError,
    LimitError,
    NotOperationalError,
    OutcomeUnknownError,
    RequestKeyError,
    StorageError,
)
from eventer_bridge.model import EventType, ProcessEvent, RegisterEvent, Source, SourceType, Status
from eventer_bridge.modules.runner import ModuleRunner
from eventer_bridge.packed import Batch, TypeTable, are_keyed, batch_of, extend, totals, unready
from eventer_bridge.slices import Steps, WorkQueue, at_once, parts

mlog = logging.getLogger(__name__)


class _Uncommitted(msgspec.Struct, gc=False):
    """Batches that wait for one commit, their totals, and the last session of each server."""

    batches: list[Batch] = []
    last_sessions: dict[int, int] = {}
    n_events: int = 0
    n_bytes: int = 0
    n_own: int = 0  # registered here, not replicated
    n_large_events: int = 0  # of large ones among them
    n_large_bytes: int = 0


class SessionCore(EventCore):
    """See the module; :class:`~eventer_bridge.core.engine.Engine` adds its life cycle.

    Args:
        backend: where events are kept.
        server_id: identifier of this server.
        conditions: conditions of events; None: there are none.
        has_modules: whether modules look at sessions.
        is_in_pair: whether it may take over from the servers whose events it replicates: what it
            registers has later timestamps than those.
    """

    def __init__(
        self,
        backend: Backend,
        server_id: int,
        conditions: Conditions | None,
        *,
        has_modules: bool,
        is_in_pair: bool,
    ) -> None:
        self._backend = backend
        self._types = TypeChecks(backend, lambda: self._phase is Status.STARTING)
        super().__init__(limits.MAX_PENDING_BYTES)
        self._server_id = server_id
        self.registers_one_by_one = has_modules or conditions is not None
        self._loop = asyncio.get_running_loop()
        self._phase = Status.STANDBY
        self._is_before_stop = False  # modules may register for the last time
        self._session_ids = SessionIdAllocator(backend, server_id)
        self._is_in_pair = is_in_pair
        if is_in_pair:
            for i in backend.servers():
                if (timestamp := backend.last_session(i).timestamp) is not None:
                    self._session_ids.see(timestamp)
        self._conditions = conditions
        self._clock = ClockWatch(
            lambda: self._session_ids.newest, self._notify_status, backend.note_newest
        )
        self._runner: ModuleRunner | None = None
        self._n_own = 0  # sessions under way that were registered here, not replicated
        self._own_ended = asyncio.Event()  # set while there are none of them
        self._own_ended.set()
        self._uncommitted: dict[asyncio.Future[None], _Uncommitted] = {}
        self._persisted: dict[int, int] = {}
        self._note_stored()
        self._unnotified: set[Batch] = set()  # of those whose outcome is not known
        self._handing_over = WorkQueue()
        self._last_replicated: dict[int, asyncio.Future[None]] = {}  # by server
        self._keyed = KeyedRequests(backend, self._register)

    def _note_stored(self) -> None:
        backend = self._backend
        self._persisted = {i: backend.last_session(i).session for i in backend.servers()}

    @property
    @override
    def status(self) -> Status:
        if self._phase is Status.OPERATIONAL and self.fault is not None:
            return Status.STANDBY
        return self._phase

    @property
    def is_following(self) -> bool:  # type: ignore[override]
        """See ``EventCore``."""
        return self._backend.is_passive

    @property
    def fault(self) -> str | None:
        """What is known to keep it from registering, however it is started; None: nothing."""
        return self._backend.failure or self._clock.fault

    @override
    def text_for_client(self, error: EventerBridgeError) -> str:
        """Without the directory of the store: what RocksDB says names its files."""
        text, path = str(error), self._backend.path
        if path is None:
            return text
        text = text.replace(f"{path}: ", "").replace(f"{path}/", "")
        return text.replace(str(path), "the event store") if path.is_absolute() else text

    @override
    def servers(self) -> list[int]:
        return sorted(self._persisted)

    @override
    def last_persisted(self, server_id: int) -> int:
        return self._persisted.get(server_id, 0)

    @property
    @override
    def extensions(self) -> tuple[str, ...]:
        if not self._backend.is_keeping:
            return ("latest_paging",)
        return ("latest_paging", "request_key", "replay", "cursor")

    @override
    def type_table(self, read: ReadTypeCb) -> TypeTable:
        return self._backend.type_table(read, self._types.known)

    @override
    def submit(self, batches: list[Batch]) -> None:
        if are_keyed(batches):
            if self._backend.is_passive:
                error = NotOperationalError(f"server is {self.status.name}, not OPERATIONAL")
                for batch in batches:
                    batch.committed = failed(self._loop.create_future(), error)
                return
            if self._backend.is_keeping:
                self._keyed.register(batches)
                return
            batches = self._refuse_keys(batches)
        self._register(batches)

    def _register(self, batches: list[Batch]) -> None:
        """Register batches, small ones together if each of their types was registered before."""
        n_events, _, n_bytes = totals(batches)
        if (
            self.registers_one_by_one
            or self._phase is not Status.OPERATIONAL
            or self._clock.fault is not None
            or is_large(n_events, n_bytes)
            or not (batches and all(batches))
        ):
            self._register_each(batches)
        elif unready(batches):
            self._register_runs(batches)
        elif self._handing_over.is_busy:
            self._begin(batches, self._loop.create_future())
            self._handing_over.add(partial(self._take_over, batches))
        else:
            try:
                commit = at_once(self._hand_over(batches))
            except LimitError:  # it may be of the last ones only
                self._register_each(batches)
            except EventerBridgeError as e:
                for batch in batches:
                    batch.committed = failed(self._loop.create_future(), e)
            else:
                self._begin(batches, commit)
                self._track(batches, commit)

    def _register_runs(self, batches: list[Batch]) -> None:
        """Register batches, of which some have types to be checked: those one by one."""
        if len(batches) == 1 or batches[0].key is not None:  # which may depend on each other
            self._register_each(batches)
            return
        for is_unready, run in groupby(batches, lambda batch: bool(unready([batch]))):
            register = self._register_each if is_unready else self._register
            register([*run])

    def _register_each(self, batches: list[Batch]) -> None:
        before: Batch | None = None
        for batch in batches:
            try:
                if before is not None and before.has_failed and batch.key and batch.key.after:
                    raise order_error(batch.key.after)
                before = batch
                self._check_ready(batch.source)
                self._register_one(batch)
            except EventerBridgeError as e:
                batch.committed = failed(self._loop.create_future(), e)

    def _refuse_keys(self, batches: Sequence[Batch]) -> list[Batch]:
        """Refuse batches with a key; returns the others."""
        error = RequestKeyError("this server does not keep a request_key")
        for batch in batches:
            if batch.key is not None:
                batch.committed = failed(self._loop.create_future(), error)
        return [batch for batch in batches if batch.key is None]

    def _check_ready(self, source: Source) -> None:
        is_last_of_module = self._is_before_stop and source.type is SourceType.MODULE
        if self._phase is not Status.OPERATIONAL and not is_last_of_module:
            raise NotOperationalError(f"server is {self._phase.name}, not OPERATIONAL")
        self._check_clock()

    def _check_clock(self) -> None:
        if self._clock.fault is not None:
            raise NotOperationalError(self._clock.fault)

    def _register_own(
        self, source: Source, events: Sequence[RegisterEvent], quota: TypeQuota | None = None
    ) -> Batch:
        """As :meth:`register`, whatever the status is."""
        batch = batch_of(events, self.types)
        batch.source, batch.quota = source, quota
        self._register_one(batch)
        return batch

    def check_types(self, event_types: Iterable[EventType], quota: TypeQuota | None = None) -> None:
        """See :meth:`TypeChecks.check`."""
        self._types.check(event_types, quota)

    def _register_one(self, batch: Batch) -> None:
        """Register a batch by itself; raises why it is refused."""
        n_events, n_bytes = len(batch), batch.payload_bytes
        if n_events > limits.MAX_SESSION_EVENTS:
            raise too_many(n_events)
        batch.is_large = batch.is_stepwise = is_large(n_events, n_bytes)
        has_modules = self._runner is not None and not self._runner.is_abandoned
        if not batch.is_stepwise or has_modules:
            new_types = self._types.unchecked(i for _, i in unready([batch]))
            batch.is_stepwise |= len(new_types) > limits.MANY_NEW_TYPES
            if new_types and (not batch.is_stepwise or has_modules):
                self._types.check_new(new_types, batch.quota)
        if not n_events:
            batch.committed = self._loop.create_future()
            batch.committed.set_result(None)
        elif not has_modules and not batch.is_stepwise and not self._handing_over.is_busy:
            commit = at_once(self._hand_over([batch]))
            self._begin([batch], commit)
            self._track([batch], commit)
        else:
            self._begin([batch], self._loop.create_future())
            if batch.is_large:
                self._count_large(n_events, n_bytes)
            if has_modules:
                assert self._runner is not None
                self._runner.submit(batch)
            else:
                self._handing_over.add(partial(self._take_over, [batch]))

    def _hand_over(
        self, batches: list[Batch], session_id: int | None = None
    ) -> Steps[asyncio.Future[None]]:
        """Hand over batches; in one step, unless the only one is stepwise.

        Args:
            batches: the batches. Types that a small one requests are checked already.
            session_id: of the only one; None: they get the next ones.

        Raises:
            EventerBridgeError: they are refused, or the commit failed at once.
        """
        first = batches[0]
        if first.is_stepwise:
            yield from self._check_in_steps(first)
        elif self._conditions is not None:
            for batch in batches:
                self._conditions.check(batch)
        self._session_ids.assign(batches, session_id)
        commit = yield from self._backend.register(batches)
        if commit.done() and (error := commit.exception()):
            raise error
        return commit

    def _check_in_steps(self, batch: Batch) -> Steps[None]:
        """Check a batch, and the types that were requested: those that modules added were."""
        for part in parts(len(batch)):
            found = unready([batch], part.start, min(part.stop, batch.requested))
            new_types = [*self._types.unchecked(i for _, i in found)]
            for begin in range(0, len(new_types), limits.STEP_NEW_TYPES):
                self._types.check_new(new_types[begin : begin + limits.STEP_NEW_TYPES], batch.quota)
                yield
            if self._conditions is not None:
                self._conditions.check(batch[part])
            yield
        self._keyed.check_order(batch.key)

    def _begin(self, batches: list[Batch], committed: asyncio.Future[None]) -> None:
        """Count what is under way."""
        for batch in batches:
            batch.committed = committed
        n_events, _, n_bytes = totals(batches)
        self.pending_events += n_events
        self._pending_bytes += n_bytes
        if not self._n_own:
            self._own_ended.clear()
        self._n_own += len(batches)

    def _count_large(self, n_events: int, n_bytes: int) -> None:
        """So much of what is under way is of large sessions; negative: so much less."""
        self._large_pending_events += n_events
        self._large_pending_bytes += n_bytes

    def _next_session(self) -> int:
        """For modules, which are not to look at what cannot be stored."""
        if self._backend.failure is not None:
            raise StorageError(self._backend.failure)
        return self._session_ids.next_sessions()

    def _on_processed(self, batch: Batch, session_id: int, events: Sequence[ProcessEvent]) -> None:
        """Modules have processed a batch, and added these events behind those requested."""
        self._keyed.check_order(batch.key)
        added = events[batch.requested :]
        self.check_types([event.type for event in added])
        with self._counting([batch]):
            extend(batch, added)  # fails before anything is handed over
        if self._handing_over.is_busy or batch.is_stepwise:
            self._handing_over.add(partial(self._take_over, [batch], session_id))
            return
        with self._counting([batch]):
            commit = at_once(self._hand_over([batch], session_id))
        self._track([batch], commit)

    @contextlib.contextmanager
    def _counting(self, batches: list[Batch]) -> Iterator[None]:
        """Count what is added to batches under way."""
        n_events_before, _, n_bytes_before = totals(batches)
        try:
            yield
        finally:
            n_events, _, n_bytes = totals(batches)
            self._add_pending(n_events - n_events_before, n_bytes - n_bytes_before)
            if len(batches) == 1:  # several are small, and answered together
                batch = batches[0]
                if batch.is_large:
                    self._count_large(-n_events_before, -n_bytes_before)
                batch.is_large = is_large(n_events, n_bytes)
                batch.is_stepwise |= batch.is_large
                if batch.is_large:
                    self._count_large(n_events, n_bytes)

    def _on_failed(self, batch: Batch, error: EventerBridgeError) -> None:
        self._fail([batch], error)

    def _fail(self, batches: list[Batch], error: BaseException) -> None:
        """Fail batches that were not handed over."""
        if not isinstance(error, EventerBridgeError):
            mlog.error("session failed", exc_info=error)
            error = StorageError(f"the session failed: {error!r}")
        if batches[0].is_large:
            self._count_large(-len(batches[0]), -batches[0].payload_bytes)
        self._n_own -= len(batches)
        n_events, _, n_bytes = totals(batches)
        self._end_pending(len(batches), n_events, n_bytes)
        resolve(batches[0].committed, error)
        self._notify_drained()

    def _take_over(self, batches: list[Batch], session_id: int | None = None) -> Steps[None]:
        """Hand batches over in their turn: one, or small ones that came together."""
        try:
            if not batches[0].is_stepwise:
                self._keyed.check_order(batches[0].key)
                if len(batches) > 1 and unready(batches):
                    raise StorageError("the event store was opened again")
            with self._counting(batches):
                commit = yield from self._hand_over(batches, session_id)
        except (GeneratorExit, asyncio.CancelledError):
            raise
        except BaseException as e:  # a panic of RocksDB's binding is no Exception
            self._fail(batches, e)
        else:
            self._track(batches, commit)

    def _track(self, batches: list[Batch], commit: asyncio.Future[None]) -> None:
        """Wait for the commit of batches, and notify observers meanwhile."""
        uncommitted = self._uncommitted.get(commit)
        if uncommitted is None:
            uncommitted = self._uncommitted[commit] = _Uncommitted()
            # callbacks are called in the order in which they are added, and this is the first:
            # observers hear of persisted events before these are acknowledged
            commit.add_done_callback(self._on_committed)
        last = batches[-1]
        n_events, _, n_bytes = totals(batches)
        uncommitted.batches += batches
        uncommitted.last_sessions[last.server] = last.session
        uncommitted.n_events += n_events
        uncommitted.n_bytes += n_bytes
        if last.source is not REMOTE_SOURCE:
            uncommitted.n_own += len(batches)
            if batches[0].is_large:
                uncommitted.n_large_events += n_events
                uncommitted.n_large_bytes += n_bytes
        if last.is_stepwise or self._notifying.is_busy:
            try:
                for batch in batches:
                    self._notifying.add(partial(self._notify_registered_in_turn, batch))
            except Exception as e:
                self._on_unnotified(e, persisted=False)
        elif self._hearing[False]:
            self._notify_sessions(batches, persisted=False)

    def _on_committed(self, commit: asyncio.Future[None]) -> None:
        uncommitted = self._uncommitted.pop(commit)
        batches = uncommitted.batches
        error = commit.exception()
        if error is None:
            self._persisted.update(uncommitted.last_sessions)
        if isinstance(error, OutcomeUnknownError) and error.decided is not None:
            error.decided.add_done_callback(partial(self._on_decided, batches, error))
        if error is None and (self._notifying.is_busy or batches[0].is_stepwise):
            self._notifying.add(partial(self._end_in_turn, uncommitted, commit))
        else:
            self._end(uncommitted, commit)
            if error is None and self._hearing[True]:
                self._notify_sessions(batches, persisted=True)
        self._notify_drained()

    def _on_decided(self, batches: Sequence[Batch], error: OutcomeUnknownError, _: object) -> None:
        """It is known at last whether these are stored."""
        unnotified, self._unnotified = self._unnotified, set()
        if not error.is_stored():
            return
        for session in batches:
            self._persisted[session.server] = session.session
            for persisted in (False, True) if session in unnotified else (True,):
                self._notifying.add(partial(self._notify_in_turn, session, persisted=persisted))

    def _end(self, uncommitted: _Uncommitted, commit: asyncio.Future[None]) -> None:
        batches = uncommitted.batches
        self._n_own -= uncommitted.n_own
        if uncommitted.n_large_events:
            self._count_large(-uncommitted.n_large_events, -uncommitted.n_large_bytes)
        for batch in batches:
            if batch.committed is not commit and not batch.committed.done():
                resolve(batch.committed, commit.exception())
        self._end_pending(len(batches), uncommitted.n_events, uncommitted.n_bytes)

    def _end_in_turn(self, uncommitted: _Uncommitted, commit: asyncio.Future[None]) -> Steps[None]:
        self._end(uncommitted, commit)
        self._notify_drained()
        try:
            for batch in uncommitted.batches:
                yield from self._notify_in_turn(batch, persisted=True)
                yield
        except Exception as e:
            self._on_unnotified(e, persisted=True)

    def _notify_registered_in_turn(self, session: Batch) -> Steps[None]:
        """Notify observers of a session, unless its commit failed meanwhile."""
        error = session.committed.exception() if session.committed.done() else None
        if error is None:
            yield from self._notify_in_turn(session, persisted=False)
        elif isinstance(error, OutcomeUnknownError):
            if error.is_stored() is None:
                self._unnotified.add(session)
            elif error.is_stored():
                yield from self._notify_in_turn(session, persisted=False)

    def _notify_in_turn(self, session: Batch, *, persisted: bool) -> Steps[None]:
        if session.is_stepwise:
            yield from self._notify_in_steps(session, persisted=persisted)
        else:
            self._notify_session(session, persisted=persisted)

    @override
    def _notify_drained(self) -> None:
        if not self._n_own:
            self._own_ended.set()
        if self._waiting.clients:
            super()._notify_drained()
