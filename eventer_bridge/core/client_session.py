"""A client of a core, whichever wire it speaks: what each wire does for its clients, once.

A wire decodes requests and hands them to its connection's :class:`ClientSession`; what is to be
answered comes back to it as calls of :class:`ClientWire`, which encode and send::

    init ─────▶ ClientSession ─▶ authenticate, slot ──▶ send_accepted | send_declined
    register ─▶               ─▶ rights, core ────────▶ send_registered | send_refused, in order
    query ────▶               ─▶ core, one by one ────▶ send_result
    session of the core ─▶ ClientService ─▶ Fanout ──▶ send_notification
    its status ──────────▶               ────────────▶ send_status

Registrations that came together (in one turn of the stream) go to the core together: each becomes
a session of its own, but they are checked, counted, staged and notified at one go.

Nothing of a client grows without bound. It is not read from while the core is full, too many of
its registrations are under way, too many of its queries wait, or a large message of it is dealt
with; that is done in slices, in its turn among those of all clients. Its queries are answered
one after the other beside everything else, each when the answer before it has left, and end
when the client goes.

Runs on the event loop's thread.
"""

import asyncio
import contextlib
import functools
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Generic, TypeAlias, TypeVar

from eventer_bridge import limits, slices
from eventer_bridge.backends.readers import Reading
from eventer_bridge.backends.request_keys import RequestKey, digest, digest_in_steps
from eventer_bridge.core.authentication import Admitted, DeclinedError, Login
from eventer_bridge.core.client_service import ClientService, ClientWire
from eventer_bridge.core.fanout import Filter
from eventer_bridge.core.quotas import ROWS, Account, first_rows, has_ended_early, limit_rows
from eventer_bridge.core.replay import Replay, Start
from eventer_bridge.core.rights import Rights
from eventer_bridge.core.session import Repeated, Session
from eventer_bridge.core.tokens import TokenHash
from eventer_bridge.errors import (
    ClosedError,
    EventerBridgeError,
    InvalidEventError,
    InvalidMessageError,
    Outcome,
    QuotaError,
    RemoteProtocolError,
    RightsError,
    outcome_of,
    refusal_of,
)
from eventer_bridge.excerpts import cut
from eventer_bridge.model import (
    EventId,
    EventType,
    QueryParams,
    RegisterEvent,
    SourceType,
    Status,
)
from eventer_bridge.net.stats import CloseReason
from eventer_bridge.net.stream import Pause, Stream
from eventer_bridge.net.throttle import EVENTS, QUERIES
from eventer_bridge.subscription import Subscription

mlog = logging.getLogger(__name__)
audit = logging.getLogger("audit")

RequestT = TypeVar("RequestT")

_Gathered: TypeAlias = tuple[RequestT, Sequence[RegisterEvent], RequestKey | None]


class ClientSession(Generic[RequestT]):
    """One client, from its connection on. See the module.

    The wire lets go of it when the connection is gone (``Stream.on_closed``): they would hold each
    other until garbage is collected.

    Args:
        service: of the server.
        stream: its connection.
        wire: what is sent there.

    Attributes:
        stream: its connection.
        rights: None until it is accepted.
        is_persisted: whether it hears of events when they are durable, not before.
        n_subscriptions: query types that it asked for.
    """

    __slots__ = (
        "_account",
        "_answering",
        "_awaited_commit",
        "_delayed",
        "_filter",
        "_gathered",
        "_has_keys",
        "_heard",
        "_n_gathered",
        "_preparing",
        "_proof",
        "_queries",
        "_querying",
        "_replay",
        "_service",
        "_source",
        "_unanswered",
        "_wanted",
        "_wire",
        "is_persisted",
        "n_subscriptions",
        "rights",
        "stream",
    )

    def __init__(
        self, service: ClientService, stream: Stream[Any], wire: ClientWire[RequestT]
    ) -> None:
        self._service = service
        self.stream = stream
        self._wire = wire
        self._source = service.core.create_source(SourceType.CONNECTION)
        self.rights: Rights | None = None
        self.is_persisted = False
        self.n_subscriptions = 0
        self._account: Account  # from when it is accepted
        self._proof: TokenHash | None = None
        self._filter: Filter | None = None  # what it wanted, within its rights
        self._wanted: Subscription
        # registrations of this turn that the core does not know of yet
        self._gathered: list[_Gathered[RequestT]] = []
        self._has_keys = False  # one of them
        self._n_gathered = 0  # their events
        self._unanswered: deque[tuple[RequestT, Session | Repeated | EventerBridgeError]] = deque()
        self._awaited_commit: asyncio.Future[None] | None = None
        self._answering: asyncio.Task[None] | None = None
        self._queries: list[tuple[RequestT, QueryParams]] = []  # an empty deque takes 0.7 kB
        self._querying: asyncio.Task[None] | None = None  # before init: checks its token
        self._heard: list[asyncio.Future[None]] = []  # commits of large sessions
        self._delayed: asyncio.TimerHandle | None = None
        self._replay: Replay | None = None
        self._preparing: asyncio.Task[None] | None = None  # before init: looks for gaps

    @property
    def is_answering(self) -> bool:
        """Whether it waits for an answer."""
        return bool(self._unanswered or self._queries or self._querying or self._preparing)

    # --- init ---------------------------------------------------------------------------

    def init(
        self,
        name: str,
        token: str | None,
        subscriptions: Sequence[EventType],
        server_id: int | None,
        *,
        persisted: bool,
        start: Start | None = None,
    ) -> None:
        """It says who it is and what it wants to hear of (001, ``MsgInitReq``; 002, ``init_req``).

        It is accepted, or declined at once, or after a while if it guesses names or tokens, or
        wants to hear of what it missed (``start``).
        """
        stream = self.stream
        stream.client = cut(name)
        authenticator = self._service.authenticator
        accept = functools.partial(self._accept, subscriptions, server_id, persisted, start)
        try:
            names = authenticator.names_of(stream.ssl_object)
            login = Login(name, token, names, stream.slot.address)
            admitted = authenticator.authenticate(login)
        except DeclinedError as e:
            self._decline_later(e)
            return
        if isinstance(admitted, Admitted):
            accept(admitted)
        else:
            stream.pause_reading(Pause.LOGIN)
            self._querying = self._service.spawn(self._accept_later(admitted, accept))

    async def _accept_later(
        self, login: Awaitable[Admitted], accept: Callable[[Admitted], None]
    ) -> None:
        """Accept or decline a client whose token takes long to check; ends if it leaves."""
        try:
            admitted = await login
            # the configuration may have changed meanwhile
            rights = self._service.authenticator.readmit(
                admitted.name, admitted.proof, self.stream.ssl_object
            )
            admitted = admitted._replace(rights=rights)
        except DeclinedError as e:
            self._decline_later(e)
        except Exception as e:
            self.stream.on_failed(e)
        else:
            accept(admitted)
        self._querying = None
        self.stream.resume_reading(Pause.LOGIN)

    def _accept(
        self,
        subscriptions: Sequence[EventType],
        server_id: int | None,
        persisted: bool,
        start: Start | None,
        admitted: Admitted,
    ) -> None:
        service, stream = self._service, self.stream
        try:
            wanted = Subscription(subscriptions)
            subscription = admitted.rights.subscription.intersection(wanted)
        except InvalidEventError as e:
            self.decline(str(e))
            return
        wanted_filter = Filter(subscription, server_id, persisted)
        if start is not None and self._replay is None:
            self._replay = Replay(service, self, start, wanted_filter)
            accept = functools.partial(self._accept, subscriptions, server_id, persisted, start)
            self._prepare_replay(self._replay, start, accept, admitted, persisted=persisted)
            return
        account = service.accounts.of(admitted.rights)
        if refusal := account.refusal(len(subscriptions)):
            self.decline(refusal)
            return
        if not stream.slot.establish():
            self.decline("too many connections")
            return
        stream.clear_first_deadline()
        stream.client = name = admitted.name
        self.rights, self._proof = admitted.rights, admitted.proof
        self._wanted = subscription if subscription == wanted else wanted  # usually one object
        self.is_persisted = persisted
        self._filter = wanted_filter
        self.n_subscriptions = len(subscriptions)
        service.clients.add(self)
        service.stats.clients += 1
        if self._replay is None:
            service.fanout.add(self, self._filter)
        else:
            self._replay.use(self._filter)
        self._account = account
        account.join(self)
        self._wire.use_rights(admitted.rights)
        self._wire.send_accepted(service.core.status, service.core.extensions)
        if self._replay is not None:
            self._replay.begin()
        mlog.debug("client connected", extra=stream.log_extra)
        audit.info("connected", extra=stream.log_extra)
        service.core.announce(self._source, name, is_connected=True)

    def _prepare_replay(
        self,
        replay: Replay,
        start: Start,
        accept: Callable[[Admitted], None],
        admitted: Admitted,
        *,
        persisted: bool,
    ) -> None:
        """Find out whether a client can be told of what it missed, and then accept it."""
        if not persisted:
            self.decline("start: expected with persisted events only")
        elif "replay" not in self._service.core.extensions:
            self.decline("start: this server does not keep events")
        else:
            self.stream.pause_reading(Pause.REPLAY)
            preparing = self._find_gaps(replay, start, accept, admitted)
            self._preparing = self._service.spawn(preparing)

    async def _find_gaps(
        self,
        replay: Replay,
        start: Start,
        accept: Callable[[Admitted], None],
        admitted: Admitted,
    ) -> None:
        try:
            has_gaps = await replay.find_gaps()
            # the configuration may have changed meanwhile
            rights = self._service.authenticator.readmit(
                admitted.name, admitted.proof, self.stream.ssl_object
            )
        except DeclinedError as e:
            self._decline_later(e)
        except EventerBridgeError as e:
            self.decline(str(e))
        except Exception as e:
            self.stream.on_failed(e)
        else:
            if has_gaps and start.declines_gap:
                self.decline("start: events that this client did not see were deleted")
            elif self.stream.close_reason is None:
                accept(admitted._replace(rights=rights))
        self._preparing = None
        self.stream.resume_reading(Pause.REPLAY)

    def readmit(self) -> None:
        """Go on with the rights of a new configuration, or close if it does not let the client in.

        Registrations and queries that begin from now on have the new rights, notifications too. An
        answer to a query that began before is sent only if it has them. An expired token does not
        end the connection, but one that is no longer configured does.
        """
        if self._filter is None:
            return
        service, stream = self._service, self.stream
        try:
            rights = service.authenticator.readmit(
                stream.client or "", self._proof, stream.ssl_object
            )
            subscription = rights.subscription.intersection(self._wanted)
        except (DeclinedError, InvalidEventError) as e:
            detail = e.cause if isinstance(e, DeclinedError) else str(e)
            stream.close(CloseReason.REMOVED, detail=detail, level=logging.WARNING)
            audit.info("removed", extra={**stream.log_extra, "reason": detail})
            return
        self.rights = rights
        account = service.accounts.of(rights)
        if account is not self._account:  # the server's clients have names now, or none any more
            self._account.leave(self)
            self._account = account
            account.join(self)
        self._wire.use_rights(rights)
        if subscription != self._filter.subscription:
            before, self._filter = self._filter, self._filter._replace(subscription=subscription)
            if self._replay is not None:
                self._replay.use(self._filter)
            else:
                service.fanout.remove(self, before)
                service.fanout.add(self, self._filter)

    def decline(self, reason: str, cause: str | None = None) -> None:
        """Close the connection of a client that cannot be accepted.

        Args:
            reason: for the client.
            cause: more than it is told, for the log.
        """
        if self.stream.close_reason is not None:
            return
        self._service.stats.declined += 1
        reason = cut(reason)
        self._wire.send_declined(reason)
        detail = reason if cause is None else f"{reason}: {cause}"
        audit.info("declined", extra={**self.stream.log_extra, "reason": detail})
        # the client gets time to read why, and to close first (001)
        self.stream.close(
            CloseReason.DECLINED,
            detail=detail,
            level=logging.WARNING,
            linger_s=limits.DECLINED_LINGER_S,
        )

    def _decline_later(self, error: DeclinedError) -> None:
        """Decline at once or, if it guesses, after a while in which it is not heard."""
        delay_s = self.stream.slot.login_failed()
        if not delay_s:
            self.decline(str(error), error.cause)
            return
        self.stream.pause_reading(Pause.DECLINED)
        self._delayed = asyncio.get_running_loop().call_later(
            delay_s, self.decline, str(error), error.cause
        )

    def leave(self) -> None:
        """Its connection is closed."""
        if self._delayed is not None:
            self._delayed.cancel()
        self._queries.clear()
        for task in (self._querying, self._preparing):
            if task is not None:
                task.cancel()
        replay, self._replay = self._replay, None  # they would hold each other
        if replay is not None:
            replay.end()
        if self._filter is None:
            return
        service = self._service
        service.fanout.remove(self, self._filter)
        service.clients.discard(self)
        service.stats.clients -= 1
        self._account.leave(self)
        self._filter = None
        announce = functools.partial(service.core.announce, is_connected=False)
        # not within a notification, which this may be the end of
        asyncio.get_running_loop().call_soon(announce, self._source, self.stream.client)

    async def drain(self) -> None:
        """Answer the registrations that are under way, and take no more; bounded in time."""
        self.stream.pause_reading(Pause.CLOSING)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limits.DRAIN_TIMEOUT_S):
                if self._answering is not None:
                    await asyncio.wait([self._answering])
                while self._unanswered and self.stream.close_reason is None:
                    _, head = self._unanswered[0]
                    if isinstance(head, Repeated):
                        head = head.session
                    if not isinstance(head, Session) or head.committed.done():
                        await asyncio.sleep(0)
                    else:
                        await asyncio.wait([head.committed])

    # --- notifications (fanout.Receiver) ------------------------------------------------

    @property
    def account(self) -> Account:
        """What its client uses; from when it is accepted."""
        return self._account

    def notify(self, message: bytes, event_count: int, session: Session) -> None:
        """See ``fanout.Receiver``."""
        self._wire.send_notification(message)
        self._service.stats.events_notified += event_count
        self._account.n_notified += event_count

    def delay_queries(self, commit: asyncio.Future[None]) -> None:
        """See ``fanout.Receiver``."""
        self._heard = [i for i in self._heard if not i.done()] + [commit]

    def on_failed(self, error: Exception) -> None:
        """See ``fanout.Receiver``."""
        self.stream.close(CloseReason.INTERNAL_ERROR, detail=str(error), level=logging.ERROR)

    def acknowledge(
        self,
        ids: Sequence[EventId],
        parked: Sequence[tuple[EventId, str]],
        done: Sequence[EventId],
    ) -> None:
        """See ``Replay.acknowledge``."""
        if self._replay is None:
            raise RemoteProtocolError("events_ack: this client has no cursor")
        self._replay.acknowledge(ids, parked, done)

    def notify_status(self, status: Status) -> None:
        """The status of the core is another one now."""
        try:
            self._wire.send_status(status)
        except Exception as e:
            self.on_failed(e)

    # --- registrations ------------------------------------------------------------------

    def register(
        self,
        request: RequestT,
        events: Sequence[RegisterEvent],
        key: str | None = None,
        after: str | None = None,
    ) -> None:
        """Register events, all or none, with what else comes in this turn of the stream.

        Rights are checked at once: schemas take time, which the turn is to notice. Where nothing
        is gained, or the core is full, nothing is gathered.

        Args:
            request: to be answered.
            events: its events.
            key: what the client calls the request, so that it can be repeated.
            after: key of the request that must be stored first.
        """
        rights, core = self.rights, self._service.core
        assert rights is not None
        if not rights.may_register_everything and (refusal := rights.refusal(events)):
            self._refuse(request, RightsError(refusal))
            return
        gathered = self._gathered
        if key is None:
            gathered.append((request, events, None))
        else:
            self._has_keys = True
            named = RequestKey(self.stream.client or "", key, digest(events), after)
            gathered.append((request, events, named))
        self._n_gathered += len(events) or 1
        if self._n_gathered >= self._account.max_gathered:
            self._hand_over_gathered()
        elif len(gathered) == 1:
            if core.is_full or core.registers_one_by_one:
                self._hand_over_gathered()
            else:
                self.stream.at_turn_end(self._hand_over_gathered)

    def _hand_over_gathered(self) -> None:
        """Have the core register what came in this turn so far."""
        if not self._gathered:
            return
        gathered, self._gathered, self._n_gathered = self._gathered, [], 0
        for outcome in self._hand_over(gathered):  # many, but short events
            self._answering = self._service.spawn(self._answer_large(outcome))

    async def register_large(
        self,
        request: RequestT,
        events: Sequence[RegisterEvent],
        key: str | None = None,
        after: str | None = None,
    ) -> None:
        """As :meth:`register`, within what :meth:`take_in` does."""
        assert self.rights is not None
        rights = None
        while rights is not self.rights:  # they may change meanwhile
            rights = self.rights
            refusal = await rights.refusal_of_large(events)
        if self.stream.close_reason is not None:
            return
        if refusal is not None:
            self._refuse(request, RightsError(refusal))
            return
        named = None
        if key is not None:
            digested = await slices.run(digest_in_steps(events))
            named = RequestKey(self.stream.client or "", key, digested, after)
            self._has_keys = True
        gathered: list[_Gathered[RequestT]] = [(request, events, named)]
        del events  # which take long to be freed
        for outcome in self._hand_over(gathered):
            gathered.clear()
            await self._answer_large(outcome)

    def refuse(self, request: RequestT, reason: str) -> None:
        """Refuse an invalid registration, after those that came before it were answered."""
        self._refuse(request, InvalidMessageError(cut(reason)))

    def _refuse(self, request: RequestT, error: EventerBridgeError) -> None:
        self._hand_over_gathered()
        self._count_rejected(error)
        self._unanswered.append((request, error))
        self._account.spend(self, EVENTS, 1)
        self._answer()
        if len(self._unanswered) >= limits.MAX_REGISTRATIONS_IN_FLIGHT:
            self.stream.pause_reading(Pause.REGISTRATIONS_FULL)

    def _count_rejected(self, error: BaseException) -> None:
        self._service.stats.rejected[refusal_of(error)] += 1
        if isinstance(error, QuotaError):
            self._account.hit(error.name)

    def take_in(self, work: Coroutine[None, None, None]) -> None:
        """Deal with a large message, in its turn among those of all clients.

        Args:
            work: what is to be done in this turn; nothing more is read meanwhile.
        """
        self._hand_over_gathered()
        self.stream.pause_reading(Pause.LARGE_MESSAGE)
        self._answering = self._service.spawn(self._take_in(work))

    async def _take_in(self, work: Coroutine[None, None, None]) -> None:
        try:
            async with self._service.core.lane:
                await slices.next_turn()  # it took long to come in
                if self.stream.close_reason is None:
                    await work
        except RemoteProtocolError as e:
            self.stream.on_protocol_error(e)
        except Exception as e:
            self.stream.on_failed(e)
        finally:
            work.close()
        self.stream.resume_reading(Pause.LARGE_MESSAGE)

    def _hand_over(self, gathered: Sequence[_Gathered[RequestT]]) -> "list[Session | Repeated]":
        """Hand requests to the core, in their order.

        Returns:
            Those with a large session, which are answered when they are encoded.
        """
        assert self.rights is not None
        core, unanswered, quota = self._service.core, self._unanswered, self.rights.type_quota
        asked = [events for _, events, _ in gathered]
        outcomes: Sequence[Session | Repeated | EventerBridgeError]
        if self._has_keys:
            outcomes = self._hand_over_keyed(asked, [key for _, _, key in gathered])
        else:
            outcomes = core.register_all(self._source, asked, quota)
        large: list[Session | Repeated] = []
        is_any_ended = False
        for (request, _, _), outcome in zip(gathered, outcomes, strict=True):
            unanswered.append((request, outcome))
            if isinstance(outcome, EventerBridgeError):
                self._count_rejected(outcome)
                is_any_ended = True
            elif outcome.is_large:
                large.append(outcome)
            elif outcome.committed is not self._awaited_commit:
                # sessions that are committed together are answered together
                self._awaited_commit = outcome.committed
                outcome.committed.add_done_callback(self._answer)
        stream = self.stream
        if self._account.throttle is not None:
            self._account.spend(self, EVENTS, sum(len(events) or 1 for events in asked))
        if is_any_ended:
            self._answer()
        if len(unanswered) >= limits.MAX_REGISTRATIONS_IN_FLIGHT:
            stream.pause_reading(Pause.REGISTRATIONS_FULL)
        if core.is_full:
            stream.pause_reading(Pause.CORE_FULL)
            core.when_drained(lambda: stream.resume_reading(Pause.CORE_FULL))
        return large

    def _hand_over_keyed(
        self, asked: Sequence[Sequence[RegisterEvent]], keys: Sequence[RequestKey | None]
    ) -> "Sequence[Session | Repeated | EventerBridgeError]":
        assert self.rights is not None
        self._has_keys = False
        quota = self.rights.type_quota
        return self._service.core.register_keyed(self._source, asked, quota, keys)

    async def _answer_large(self, outcome: Session | Repeated) -> None:
        session = outcome.session if isinstance(outcome, Repeated) else outcome
        await asyncio.wait([session.committed])
        try:
            if isinstance(outcome, Repeated):
                await slices.run(outcome.make_events())
            if session.committed.exception() is None:
                await slices.run(self._service.encoding.prepare(session))
        except Exception as e:
            self.stream.on_failed(e)
            return
        self._answer()
        await asyncio.sleep(0)  # before the session is freed

    def _answer(self, _: object = None) -> None:
        """Answer what has ended, in the order of the requests.

        The client may be gone: it is counted all the same.
        """
        unanswered, stream = self._unanswered, self.stream
        try:
            while unanswered:
                if stored := self._take_stored():
                    self._wire.send_registered(stored)
                elif not self._answer_first():
                    break
            if stream.pauses and len(unanswered) <= limits.MAX_REGISTRATIONS_IN_FLIGHT // 2:
                stream.resume_reading(Pause.REGISTRATIONS_FULL)
            if stream.has_ended:
                stream.close_if_answered()
        except Exception as e:
            stream.on_failed(e)

    def _take_stored(self) -> list[tuple[RequestT, Session]]:
        """Take requests that are stored, up to the first that is not, or is large."""
        stored: list[tuple[RequestT, Session]] = []
        n_events = n_bytes = 0
        commit = None
        for request, outcome in self._unanswered:
            if type(outcome) is not Session or outcome.is_large:
                break
            if outcome.committed is not commit:
                commit = outcome.committed
                if not commit.done() or commit.exception():
                    break
            n_events += outcome.requested
            n_bytes += outcome.payload_bytes
            stored.append((request, outcome))
            if n_events > limits.ANSWERED_EVENTS or n_bytes > limits.ANSWERED_BYTES:
                break
        self._service.stats.events_registered += n_events
        self._account.n_registered += n_events
        for _ in stored:
            self._unanswered.popleft()
        return stored

    def _answer_first(self) -> bool:
        """Answer the first request, unless it has not ended."""
        request, outcome = self._unanswered[0]
        if isinstance(outcome, EventerBridgeError):
            self._wire.send_refused(request, cut(str(outcome)), outcome_of(outcome))
        elif isinstance(outcome, Repeated):
            return self._answer_repeated(request, outcome.session)
        elif not outcome.committed.done():
            return False
        elif error := outcome.committed.exception():
            self._answer_failed(request, error)
        elif not self._is_answerable(outcome):
            return False
        else:
            self._service.stats.events_registered += outcome.requested
            self._account.n_registered += outcome.requested
            self._wire.send_registered([(request, outcome)])
        self._unanswered.popleft()
        return True

    def _answer_repeated(self, request: RequestT, session: Session) -> bool:
        if not session.committed.done():
            return False
        if error := session.committed.exception():
            self._answer_failed(request, error)
        elif not session.events or not self._is_answerable(session):
            return False
        else:
            self._wire.send_repeated(request, session)
        self._unanswered.popleft()
        return True

    def _is_answerable(self, session: Session) -> bool:
        return not session.is_large or self._service.encoding.is_answerable(session)

    def _answer_failed(self, request: RequestT, error: BaseException) -> None:
        reason = cut(str(error)) if isinstance(error, EventerBridgeError) else "internal error"
        outcome = outcome_of(error)
        if outcome is Outcome.UNKNOWN:
            self._service.stats.outcome_unknown += 1
        else:
            self._count_rejected(error)
        self._wire.send_refused(request, reason, outcome)

    # --- queries ------------------------------------------------------------------------

    def query(self, request: RequestT, params: QueryParams) -> None:
        """Answer a query, after those that came before it."""
        self._hand_over_gathered()
        self._queries.append((request, params))
        if len(self._queries) >= limits.MAX_QUERIES_WAITING:
            self.stream.pause_reading(Pause.QUERIES_FULL)
        if self._querying is None:
            self._querying = self._service.spawn(self._answer_queries())

    async def _answer_queries(self) -> None:
        # one after the other, and the next only when the answer before it has left
        stream = self.stream
        try:
            while self._queries:
                await stream.drain()
                if (throttle := self._account.throttle) is not None:
                    await throttle.until_paid()
                request, params = self._queries[0]
                started_s = time.perf_counter()
                with Reading() as reading:
                    await self._answer_query(request, params, reading)
                if throttle is not None:
                    throttle.spend(QUERIES, reading.seconds * 1_000)
                if not self._queries:  # the connection was closed meanwhile
                    break
                self._service.observe_query(params, time.perf_counter() - started_s)
                del self._queries[0]
                stream.resume_reading(Pause.QUERIES_FULL)
        except ClosedError:
            stream.close(CloseReason.QUERY_FAILED, detail="closed")
        except EventerBridgeError as e:
            stream.close(CloseReason.QUERY_FAILED, detail=str(e), level=logging.WARNING)
        except Exception as e:
            stream.on_failed(e)
        finally:
            self._querying = None
        stream.close_if_answered()

    async def _answer_query(self, request: RequestT, params: QueryParams, holding: Reading) -> None:
        assert self.rights is not None
        subscription = None
        asked = params
        if (most := self._account.max_query_rows) is not None:
            params = limit_rows(asked, most)
        while subscription is not self.rights.subscription:  # they may change meanwhile
            subscription = self.rights.subscription
            result = await self._service.core.query(
                params,
                None if subscription.is_everything else subscription,
                self.stream.client or "",
                self._commits_to_find(),
                holding,
            )
            if most is not None:
                result = first_rows(result, most)
                if has_ended_early(asked, result, most):
                    self._account.hit(ROWS)
            steps = self._wire.encode_result(request, result)
            del result  # it may be large
            encoded = await slices.run(steps)
        self._wire.send_result(request, encoded)

    def _commits_to_find(self) -> list[asyncio.Future[None]]:
        """Of what it registered last, or heard of before it was committed."""
        for _, outcome in reversed(self._unanswered):
            if isinstance(outcome, Repeated):
                return [outcome.session.committed, *self._heard]
            if isinstance(outcome, Session):
                return [outcome.committed, *self._heard]
        return self._heard
