"""From a registration request to a stored session (000, "Module engine").

One registration request is one session. It is checked, gets the next session id, modules look at it
and add to it, its events get one timestamp that never goes backwards, observers are notified, the
backend gets the events, and reports when they are durable::

    register() ─▶ check ─▶ modules ─▶ conditions ─▶ events ─▶ backend ─▶ observers (registered)
                                                                 │
                     observers (persisted), Session.committed ◀── commit

The way back: when a commit is done, observers are notified that its sessions are persisted, and
then the callers who registered them continue (``Session.committed``). So a client that hears of
persisted events hears of its own before its registration is acknowledged; except where a session
is notified in slices, which its acknowledgement does not wait for. This holds because the first
callback of a commit is that of its sessions: nobody else has the future before (``_track``).

Without modules, everything but the commit happens within the call of ``register``. With modules,
sessions wait in a queue and are processed one by one, without waiting for the commit of the one
before. A large session is handed over and notified in slices; later ones wait, to keep the order.
Small ones that come together wait, and are handed over, together.

Where a commit failed and its outcome is not known (``OutcomeUnknownError``), its sessions are not
notified until the backend knows: then they are, if they are stored.

Everything here runs on the event loop's thread.
"""

import asyncio
import functools
import logging
from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import NamedTuple

from eventer_bridge import limits
from eventer_bridge.backends.base import Backend, ReadTypeCb
from eventer_bridge.backends.request_keys import RequestKey
from eventer_bridge.backends.type_budget import TypeQuota
from eventer_bridge.core.base import EventCore, tried
from eventer_bridge.core.clock import ClockWatch
from eventer_bridge.core.conditions import Conditions
from eventer_bridge.core.hand_over import HandOver, all_packed
from eventer_bridge.core.keyed_requests import KeyedRequests, order_error
from eventer_bridge.core.session import (
    PackedSessions,
    Repeated,
    Session,
    SessionIdAllocator,
    Tracked,
    is_large,
    payload_bytes,
    payload_sizes,
    resolve,
)
from eventer_bridge.core.type_checks import TypeChecks
from eventer_bridge.core.validation import too_many
from eventer_bridge.errors import (
    EventerBridgeError,
    LimitError,
    NotOperationalError,
    OutcomeUnknownError,
    StorageError,
)
from eventer_bridge.model import (
    Event,
    EventType,
    ProcessEvent,
    RegisterEvent,
    Source,
    SourceType,
    Status,
)
from eventer_bridge.modules.runner import ModuleRunner
from eventer_bridge.packed import KnownTypes
from eventer_bridge.slices import Steps, WorkQueue

mlog = logging.getLogger(__name__)


class _Uncommitted(NamedTuple):
    """What waits for one commit, and the last session of each server there."""

    tracked: list[Tracked]
    last_sessions: dict[int, int]


class SessionCore(EventCore):
    """See the module; :class:`~eventer_bridge.core.engine.Engine` adds its life cycle.

    Args:
        backend: where events are kept.
        server_id: identifier of this server.
        conditions: conditions of events; None: there are none.
        has_modules: whether modules look at sessions.
        is_in_group: whether other servers may take over (``group_events``).
    """

    def __init__(
        self,
        backend: Backend,
        server_id: int,
        conditions: Conditions | None,
        *,
        has_modules: bool,
        is_in_group: bool,
    ) -> None:
        super().__init__(limits.MAX_PENDING_BYTES)
        self._backend = backend
        self._server_id = server_id
        self.registers_one_by_one = has_modules or conditions is not None
        self._loop = asyncio.get_running_loop()
        self._phase = Status.STANDBY
        self._is_before_stop = False  # modules may register for the last time
        self._session_ids = SessionIdAllocator(backend, server_id)
        self._types = TypeChecks(backend, server_id, lambda: self._phase is Status.STARTING)
        self._is_in_group = is_in_group and backend.is_keeping
        if is_in_group:
            for i in backend.servers():
                if (timestamp := backend.last_session(i).timestamp) is not None:
                    self._session_ids.see(timestamp)
        self._hand_over = HandOver(
            backend, self._types, conditions, self._session_ids, tells_keys=self._is_in_group
        )
        self._clock = ClockWatch(
            lambda: self._session_ids.newest, self._notify_status, backend.note_newest
        )
        self._runner: ModuleRunner | None = None
        self._n_own = 0  # sessions under way that were registered here, not replicated
        self._own_ended = asyncio.Event()  # set while there are none of them
        self._own_ended.set()
        self._uncommitted: dict[asyncio.Future[None], _Uncommitted] = {}
        self._persisted = {i: backend.last_session(i).session for i in backend.servers()}
        self._unnotified: set[Session] = set()  # of those whose outcome is not known
        self._handing_over = WorkQueue()
        self._last_replicated: dict[int, asyncio.Future[None]] = {}  # by server
        self._keyed = KeyedRequests(backend, self._register_of_one)

    @property
    def status(self) -> Status:
        """See :class:`EventCore`."""
        if self._phase is Status.OPERATIONAL and self.fault is not None:
            return Status.STANDBY
        return self._phase

    @property
    def fault(self) -> str | None:
        """What is known to keep it from registering, however it is started; None: nothing."""
        return self._backend.failure or self._clock.fault

    def register(
        self,
        source: Source,
        register_events: Sequence[RegisterEvent | ProcessEvent],
        quota: TypeQuota | None = None,
        key: RequestKey | None = None,
    ) -> Session:
        """Register events as one session, all or none.

        Returns:
            The session, whose events are durable when its ``committed`` is done; sessions
            are committed in the order of the calls. Of no events, it is done at once.

        Raises:
            NotOperationalError: the status is not OPERATIONAL.
            InvalidEventError: a type cannot be registered.
            LimitError: one of ``limits`` would be exceeded.
            ConditionError: a condition does not hold. This and what follows fails the
                session's ``committed`` if there are modules.
            ModuleError: a module failed.
            StorageError: the store failed.
            OutcomeUnknownError: it did, and nobody knows whether the events are stored.
            ClosedError: the store is closed.
        """
        if self._phase is not Status.OPERATIONAL or self._clock.fault is not None:
            is_last_of_module = self._is_before_stop and source.type is SourceType.MODULE
            self._check_ready(self._phase is Status.OPERATIONAL or is_last_of_module)
        return self._register(source, register_events, quota, key)

    def servers(self) -> list[int]:
        """See :class:`EventCore`."""
        return sorted(self._persisted)

    def last_persisted(self, server_id: int) -> int:
        """See :class:`EventCore`."""
        return self._persisted.get(server_id, 0)

    @property
    def extensions(self) -> tuple[str, ...]:
        """See :class:`EventCore`."""
        if not self._backend.is_keeping:
            return ("latest_paging",)
        return ("latest_paging", "request_key", "replay", "cursor")

    def register_keyed(
        self,
        source: Source,
        requests: Sequence[Sequence[RegisterEvent]],
        quota: TypeQuota | None,
        keys: Sequence[RequestKey | None],
    ) -> "Sequence[Session | Repeated | EventerBridgeError]":
        """See :class:`EventCore`."""
        if not self._backend.is_keeping:
            return super().register_keyed(source, requests, quota, keys)
        return self._keyed.register(source, requests, quota, keys)

    def register_all(
        self,
        sources: Sequence[Source],
        requests: Sequence[Sequence[RegisterEvent]],
        quotas: Sequence[TypeQuota | None],
        keys: Sequence[RequestKey] = (),
    ) -> "Sequence[Session | EventerBridgeError]":
        """See :class:`EventCore`. Most of what clients send is checked and counted at one go.

        Args:
            sources: as there.
            requests: as there.
            quotas: as there.
            keys: what the clients call the requests; empty: nothing. Each is to be stored after
                the one before it, if after any.
        """
        told: Sequence[Sequence[RegisterEvent | ProcessEvent]] = requests
        if keys and self._is_in_group:
            told = [*map(self._hand_over.with_key, requests, keys)]
        n_events = sum(map(len, told))
        # all their types have an id: none is new, for which somebody would have to pay
        packed = all_packed(told)
        if (
            self.registers_one_by_one
            or self._phase is not Status.OPERATIONAL
            or self._clock.fault is not None
            or n_events > limits.LARGE_SESSION_EVENTS
            or not (requests and all(requests))
            or (told is not requests and not self._hand_over.can_tell_together)
            or not (packed or self._are_types_known(requests, quotas))
        ):
            return self._register_each(sources, requests, quotas, keys)
        sizes = [i.payload_bytes for i in packed] if packed else payload_sizes(told)
        n_bytes = sum(sizes)
        if n_bytes > limits.LARGE_SESSION_BYTES:
            return self._register_each(sources, requests, quotas, keys)
        sessions: Sequence[Session]
        if self._handing_over.is_busy:
            commit: asyncio.Future[None] = self._loop.create_future()
            n_requested, events = map(len, requests), (repeat(()), packed or repeat(None))
            sessions = [*map(Session, sources, n_requested, sizes, repeat(commit), *events)]
            waiting = Tracked(sessions, commit, n_events, n_bytes)
            self._begin_own(len(sessions), n_events, n_bytes)
            self._handing_over.add(functools.partial(self._take_over_together, waiting, told, keys))
            return sessions
        try:
            created, commits = self._hand_over.together(told, packed, quotas[0], keys)
        except LimitError:  # it may be of the last ones only
            return self._register_each(sources, requests, quotas, keys)
        commit = commits[0]
        if not created:
            sessions = PackedSessions(packed, sources, commit, n_events, n_bytes)
        elif commit.done() or commits.count(commit) < len(commits):
            return self._track_each(sources, requests, created, commits)
        else:
            n_requested = map(len, requests)
            sessions = [*map(Session, sources, n_requested, sizes, repeat(commit), created)]
        self._begin_own(len(sessions), n_events, n_bytes)
        self._track(Tracked(sessions, commit, n_events, n_bytes), commit)
        return sessions

    def known_types(self, read: ReadTypeCb) -> KnownTypes | None:
        """See :class:`EventCore`."""
        if self.registers_one_by_one:
            return None
        known = self._types.known

        def read_known(text: bytes) -> EventType | None:
            event_type = read(text)
            return event_type if event_type in known else None

        return self._backend.known_types(read_known)

    def _are_types_known(
        self,
        requests: Sequence[Sequence[RegisterEvent]],
        quotas: Sequence[TypeQuota | None],
    ) -> bool:
        """Whether they were checked before, and whoever asks need not pay for one."""
        types = {event.type for events in requests for event in events}
        if not self._types.known.keys() >= types:
            return False
        # for whom would new types be counted? What waits is not to bring any
        is_of_one = quotas.count(quotas[0]) == len(quotas) and not self._handing_over.is_busy
        return is_of_one or self._backend.has_types(types)

    def _register_of_one(
        self,
        source: Source,
        requests: Sequence[Sequence[RegisterEvent]],
        quota: TypeQuota | None,
        keys: Sequence[RequestKey],
    ) -> "Sequence[Session | EventerBridgeError]":
        sources, quotas = [source] * len(requests), [quota] * len(requests)
        return self.register_all(sources, requests, quotas, keys)

    def _register_each(
        self,
        sources: Sequence[Source],
        requests: Sequence[Sequence[RegisterEvent]],
        quotas: Sequence[TypeQuota | None],
        keys: Sequence[RequestKey],
    ) -> "list[Session | EventerBridgeError]":
        outcomes: list[Session | EventerBridgeError] = []
        asked = zip(sources, requests, quotas, keys or repeat(None, len(requests)), strict=True)
        for source, events, quota, key in asked:
            if key and key.after and outcomes and isinstance(outcomes[-1], EventerBridgeError):
                outcomes.append(order_error(key.after))
            else:
                attempt = functools.partial(self.register, source, events, quota, key)
                outcomes.append(tried(attempt))
        return outcomes

    def _track_each(
        self,
        sources: Sequence[Source],
        requests: Sequence[Sequence[RegisterEvent]],
        created: Sequence[Sequence[Event]],
        commits: Sequence[asyncio.Future[None]],
    ) -> "list[Session | EventerBridgeError]":
        """Of sessions that are not committed together."""
        outcomes: list[Session | EventerBridgeError] = []
        of_each = zip(sources, requests, created, commits, strict=True)
        for source, asked, events, commit in of_each:
            if commit.done() and (error := commit.exception()):
                assert isinstance(error, EventerBridgeError)
                outcomes.append(error)
                continue
            session = Session(source, len(asked), payload_bytes(events), commit, events)
            self._begin_own(1, len(events), session.payload_bytes)
            self._track_one(session, commit)
            outcomes.append(session)
        return outcomes

    def _check_ready(self, is_ready: bool) -> None:
        if not is_ready:
            raise NotOperationalError(f"server is {self._phase.name}, not OPERATIONAL")
        if self._clock.fault is not None:
            raise NotOperationalError(self._clock.fault)

    def check_types(
        self, events: Iterable[RegisterEvent | ProcessEvent], quota: TypeQuota | None = None
    ) -> None:
        """See :meth:`TypeChecks.check`."""
        self._types.check(events, quota)

    def _register(
        self,
        source: Source,
        events: Sequence[RegisterEvent | ProcessEvent],
        quota: TypeQuota | None = None,
        key: RequestKey | None = None,
    ) -> Session:
        n_events = len(events)
        if n_events > limits.MAX_SESSION_EVENTS:
            raise too_many(n_events)
        n_bytes = payload_bytes(events)
        is_stepwise = is_large(n_events, n_bytes)
        has_modules = self._runner is not None and not self._runner.is_abandoned
        if (not is_stepwise or has_modules) and (new_types := self._types.unchecked(events)):
            is_stepwise |= len(new_types) > limits.MANY_NEW_TYPES
            if not is_stepwise or has_modules:
                self._types.check_new(new_types, quota)
        if not events:
            nothing: asyncio.Future[None] = self._loop.create_future()
            nothing.set_result(None)
            return Session(source, 0, 0, nothing)
        if not has_modules and not is_stepwise and not self._handing_over.is_busy:
            created, commit = self._hand_over.at_once(events, quota, n_events, key=key)
            session = Session(source, n_events, n_bytes, commit, created)
            self._begin_own(1, n_events, n_bytes)
            self._on_handed_over(session, commit)
            return session
        committed = self._loop.create_future()
        session = Session.sized(source, n_events, n_bytes, committed, quota=quota, key=key)
        session.is_stepwise = is_stepwise
        self._begin_own(1, n_events, n_bytes)
        if session.is_large:
            self._count_large(n_events, n_bytes)
        if has_modules:
            assert self._runner is not None
            self._runner.submit(session, events)
        else:
            self._handing_over.add(functools.partial(self._take_over, session, events))
        return session

    def _begin_own(self, n_sessions: int, n_events: int, n_bytes: int) -> None:
        self.pending_events += n_events
        self._pending_bytes += n_bytes
        if not self._n_own:
            self._own_ended.clear()
        self._n_own += n_sessions

    def _count_large(self, n_events: int, n_bytes: int) -> None:
        """So much of what is under way is of large sessions; negative: so much less."""
        self._large_pending_events += n_events
        self._large_pending_bytes += n_bytes

    def _next_session(self) -> int:
        """For modules, which are not to look at what cannot be stored."""
        if self._backend.failure is not None:
            raise StorageError(self._backend.failure)
        return self._session_ids.next_sessions()

    def _on_processed(
        self, session: Session, session_id: int, events: Sequence[ProcessEvent]
    ) -> None:
        self._keyed.check_order(session.key)
        added = events[session.requested :]
        self.check_types(added)
        added_bytes = payload_bytes(added)  # fails before anything is handed over
        session.is_stepwise |= is_large(len(events), session.payload_bytes + added_bytes)
        if self._handing_over.is_busy or session.is_stepwise:
            self._handing_over.add(functools.partial(self._take_over, session, events, session_id))
            return
        session.events, commit = self._hand_over.at_once(
            events, session.quota, session.requested, session_id, session.key
        )
        self._on_handed_over(session, commit)

    def _on_failed(self, session: Session, error: EventerBridgeError) -> None:
        self._on_failed_together(Tracked.of(session, session.requested), error)

    def _on_failed_together(self, together: Tracked, error: EventerBridgeError) -> None:
        """They were not handed over."""
        n_sessions = len(together.sessions)
        self._n_own -= n_sessions
        self._end_pending(n_sessions, together.n_events, together.n_bytes)
        if together.is_large:
            self._count_large(-together.n_events, -together.n_bytes)
        resolve(together.committed, error)
        self._notify_drained()

    def _take_over(
        self,
        session: Session,
        events: Sequence[RegisterEvent | ProcessEvent],
        session_id: int | None = None,
    ) -> Steps[None]:
        """Hand a session over in its turn, a large one in steps."""
        check = functools.partial(self._keyed.check_order, session.key)
        try:
            commit = yield from self._hand_over.in_turn(session, events, session_id, check)
        except (GeneratorExit, asyncio.CancelledError):
            raise
        except BaseException as e:  # a panic of RocksDB's binding is no Exception
            self._on_refused(Tracked.of(session, session.requested), e)
        else:
            self._on_handed_over(session, commit)

    def _take_over_together(
        self,
        together: Tracked,
        requests: Sequence[Sequence[RegisterEvent | ProcessEvent]],
        keys: Sequence[RequestKey],
    ) -> Steps[None]:
        """The same, of small sessions that came together, in one step."""
        try:
            self._keyed.check_order(keys[0] if keys else None)
            commit = self._hand_over.together_in_turn(together.sessions, requests, keys)
        except BaseException as e:
            self._on_refused(together, e)
        else:
            self._track(together, commit)
        yield

    def _on_refused(self, together: Tracked, error: BaseException) -> None:
        if not isinstance(error, EventerBridgeError):
            mlog.error("session failed", exc_info=error)
            error = StorageError(f"the session failed: {error!r}")
        self._on_failed_together(together, error)

    def _on_handed_over(self, session: Session, commit: asyncio.Future[None]) -> None:
        """Count what was added, too."""
        n_events = len(session.events)
        if n_events != session.requested:
            added_bytes = payload_bytes(session.events[session.requested :])
            self._add_pending(n_events - session.requested, added_bytes)
            if session.is_large:
                self._count_large(-session.requested, -session.payload_bytes)
            session.payload_bytes += added_bytes
            session.is_large = is_large(n_events, session.payload_bytes)
            if session.is_large:
                self._count_large(n_events, session.payload_bytes)
        self._track_one(session, commit)

    def _track_one(self, session: Session, commit: asyncio.Future[None]) -> None:
        self._track(Tracked.of(session, len(session.events)), commit)

    def _track(self, together: Tracked, commit: asyncio.Future[None]) -> None:
        """Wait for the commit of sessions, and notify observers meanwhile."""
        uncommitted = self._uncommitted.get(commit)
        if uncommitted is None:
            uncommitted = self._uncommitted[commit] = _Uncommitted([], {})
            # callbacks are called in the order in which they are added, and this is the first:
            # observers hear of persisted events before these are acknowledged
            commit.add_done_callback(self._on_committed)
        uncommitted.tracked.append(together)
        last = together.last_id
        uncommitted.last_sessions[last.server] = last.session
        if together.is_stepwise or self._notifying.is_busy:
            try:
                for session in together.sessions:
                    self._notifying.add(functools.partial(self._notify_registered_in_turn, session))
            except Exception as e:
                self._on_unnotified(e, persisted=False)
        elif self._hearing[False]:
            self._notify_sessions(together.sessions, persisted=False)

    def _on_committed(self, commit: asyncio.Future[None]) -> None:
        tracked, last_sessions = self._uncommitted.pop(commit)
        error = commit.exception()
        if error is None:
            self._persisted.update(last_sessions)
        if isinstance(error, OutcomeUnknownError) and error.decided is not None:
            sessions = [session for together in tracked for session in together.sessions]
            error.decided.add_done_callback(functools.partial(self._on_decided, sessions, error))
        if error is None and (self._notifying.is_busy or tracked[0].is_stepwise):
            for together in tracked:
                self._notifying.add(functools.partial(self._end_in_turn, together, commit))
        else:
            for together in tracked:
                self._end(together, commit)
            if error is None and self._hearing[True]:
                for together in tracked:
                    self._notify_sessions(together.sessions, persisted=True)
        self._notify_drained()

    def _on_decided(
        self, sessions: Sequence[Session], error: OutcomeUnknownError, _: object
    ) -> None:
        """It is known at last whether these are stored."""
        untold, self._unnotified = self._unnotified, set()
        if not error.is_stored():
            return
        for session in sessions:
            self._persisted[session.server_id] = session.last_id.session
            for persisted in (False, True) if session in untold else (True,):
                self._notifying.add(
                    functools.partial(self._notify_in_turn, session, persisted=persisted)
                )

    def _end(self, together: Tracked, commit: asyncio.Future[None]) -> None:
        n_sessions = len(together.sessions)
        if together.is_own:
            self._n_own -= n_sessions
            if together.is_large:
                self._count_large(-together.n_events, -together.n_bytes)
        if together.committed is not commit:
            resolve(together.committed, commit.exception())
        self._end_pending(n_sessions, together.n_events, together.n_bytes)

    def _end_in_turn(self, together: Tracked, commit: asyncio.Future[None]) -> Steps[None]:
        self._end(together, commit)
        self._notify_drained()
        try:
            for session in together.sessions:
                yield from self._notify_in_turn(session, persisted=True)
                yield
        except Exception as e:
            self._on_unnotified(e, persisted=True)

    def _notify_registered_in_turn(self, session: Session) -> Steps[None]:
        """Notify observers of a session, unless its commit failed meanwhile."""
        error = session.committed.exception() if session.committed.done() else None
        if error is None:
            yield from self._notify_in_turn(session, persisted=False)
        elif isinstance(error, OutcomeUnknownError):
            if error.is_stored() is None:
                self._unnotified.add(session)
            elif error.is_stored():
                yield from self._notify_in_turn(session, persisted=False)

    def _notify_in_turn(self, session: Session, *, persisted: bool) -> Steps[None]:
        if session.is_stepwise:
            yield from self._notify_in_steps(session, persisted=persisted)
        else:
            self._notify_session(session, persisted=persisted)

    def _notify_drained(self) -> None:
        if not self._n_own:
            self._own_ended.set()
        if self._waiting.clients:
            super()._notify_drained()
