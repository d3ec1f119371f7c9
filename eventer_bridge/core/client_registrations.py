"""Registrations of a client: handed to the core together, answered in their order.

What came in one iteration of the loop goes to the core together, with that of other clients
(``gathering``): each request becomes a session of its own, but they are checked, counted, staged
and notified at one go. A large message is dealt with in slices, in its turn among those of all
clients. The client is not read from while the core is full, or too many of its registrations are
under way.

Runs on the event loop's thread.
"""

import asyncio
import functools
from collections import deque
from collections.abc import Coroutine, Sequence
from itertools import chain
from typing import Any, Generic, TypeAlias

import msgspec

from eventer_bridge import limits, slices
from eventer_bridge.backends.request_keys import RequestKey, digest_in_steps, digests
from eventer_bridge.backends.type_budget import TypeQuota
from eventer_bridge.core.client_service import ClientService, ClientWire
from eventer_bridge.core.gathering import Gathered, RequestT
from eventer_bridge.core.held import objects_bytes
from eventer_bridge.core.quotas import Account
from eventer_bridge.core.rights import Rights
from eventer_bridge.core.session import PackedSessions, Repeated, Session, joined
from eventer_bridge.errors import (
    EventerBridgeError,
    InvalidMessageError,
    Outcome,
    QuotaError,
    RemoteProtocolError,
    RightsError,
    outcome_of,
    refusal_of,
)
from eventer_bridge.model import RegisterEvent, Source, cut
from eventer_bridge.net.stream import Pause, Stream
from eventer_bridge.net.throttle import EVENTS

_Result: TypeAlias = Session | Repeated | EventerBridgeError
"""What became of a request."""


class _Together(msgspec.Struct, Generic[RequestT]):
    """Requests that became small sessions of one commit, which are answered together.

    Attributes:
        commit: theirs.
        requests: the requests.
        sessions: the session of each.
        n_events: number of requested events.
        n_bytes: size of their payloads.
        held_bytes: memory that is counted for them until they are answered (``Stream.hold``).
    """

    commit: asyncio.Future[None]
    requests: Sequence[RequestT]
    sessions: Sequence[Session]
    n_events: int
    n_bytes: int
    held_bytes: int


class _One(msgspec.Struct, Generic[RequestT]):
    """A request that is answered by itself.

    Attributes:
        request: the request.
        outcome: what became of it.
        held_bytes: as of :class:`_Together`.
    """

    request: RequestT
    outcome: _Result
    held_bytes: int = 0


class ClientRegistrations(Generic[RequestT]):
    """See the module.

    What was accepted is answered, and counted, after the client has gone as well.

    Args:
        service: of the server.
        stream: the client's connection.
        wire: what is sent there.
        source: of its events.

    Attributes:
        type_quota: of the client, for new event types; from when it is accepted.
        gathered: registrations of this turn that the core does not know of yet; None: none.
        unanswered: requests that are not answered, with what became of them.
    """

    __slots__ = (
        "_account",
        "_answering",
        "_awaited_commit",
        "_encoding",
        "_large_bytes",
        "_n_unanswered",
        "_owner",
        "_rights",
        "_service",
        "_taking_in",
        "_waits_as",
        "_wire",
        "gathered",
        "source",
        "stream",
        "type_quota",
        "unanswered",
    )

    def __init__(
        self,
        service: ClientService,
        stream: Stream[Any],
        wire: ClientWire[RequestT],
        source: Source,
    ) -> None:
        self._service = service
        self.stream = stream
        self._wire = wire
        self.source = source
        self._rights: Rights  # from when it is accepted
        self._account: Account
        self.type_quota: TypeQuota
        self._owner: str  # of its request keys
        self.gathered: Gathered[RequestT] | None = None
        self.unanswered: deque[_Together[RequestT] | _One[RequestT]] = deque()
        self._n_unanswered = 0
        self._waits_as: str | None = None  # for the core to have room; None: it does not
        self._taking_in: asyncio.Task[None] | None = None  # waits for the lane
        self._large_bytes = 0  # of the large message that is dealt with
        self._awaited_commit: asyncio.Future[None] | None = None
        self._answering: asyncio.Task[None] | None = None
        self._encoding: list[Session | Repeated] = []  # large ones, for their answers

    @property
    def is_answering(self) -> bool:
        """Whether the client waits for an answer."""
        is_waiting = self.gathered is not None or self._taking_in is not None
        return bool(self.unanswered) or is_waiting

    def use(self, rights: Rights, account: Account) -> None:
        """What the client may do from now on, and where it is counted."""
        self._rights, self._account, self.type_quota = rights, account, rights.type_quota
        self._owner = self.stream.client or ""

    def register(
        self,
        request: RequestT,
        events: Sequence[RegisterEvent],
        key: str | None = None,
        after: str | None = None,
    ) -> None:
        """Register events, all or none, with what else comes in this iteration of the loop.

        Rights are checked at once: schemas take time, which the turn is to notice. Where nothing
        is gained, or the core is full, nothing is gathered.

        Args:
            request: to be answered.
            events: its events.
            key: what the client calls the request, so that it can be repeated.
            after: key of the request that must be stored first.
        """
        rights = self._rights
        if not rights.may_register_everything and (refusal := rights.refusal(events)):
            self._refuse(request, RightsError(refusal))
            return
        keyed = ((), ()) if key is None else ((key,), (after,))
        self.gather(Gathered([request], [events], len(events) or 1, *keyed))

    @property
    def room(self) -> int:
        """Events that may come by :meth:`gather`; 0: each request by :meth:`register`."""
        core, gathered = self._service.core, self.gathered
        if gathered is not None:
            return self._account.max_gathered - gathered.n_events
        return 0 if core.is_full or core.registers_one_by_one else self._account.max_gathered

    def n_allowed(self, requests: Sequence[Sequence[RegisterEvent]]) -> int:
        """How many of these, from the first on, may come by :meth:`gather`."""
        return self._rights.n_allowed(requests)

    def gather(self, requests: Gathered[RequestT]) -> None:
        """As :meth:`register` of each, but faster.

        Args:
            requests: those that come while there is :attr:`room`, and that may be registered
                (:meth:`n_allowed`).
        """
        core, stream = self._service.core, self.stream
        requests.held_bytes = n_bytes = stream.take_bytes()
        if not stream.hold(n_bytes):
            return
        gathered = self.gathered
        if gathered is None:
            self.gathered = gathered = requests
        else:
            gathered.add(requests)
        if core.is_full:
            self.wait_for_room()
        elif gathered.n_events >= self._account.max_gathered or core.registers_one_by_one:
            self.hand_over_gathered()
        elif gathered is requests:  # the first ones
            self._service.gathering.add(self)

    def wait_for_room(self) -> None:
        """See ``GatheringClient``; the client is not read from meanwhile."""
        if self._waits_as is not None or self.gathered is None:
            return
        self._waits_as = self.stream.owner
        self._service.core.wait_for_room(self._waits_as, self._go_on)
        self.stream.pause_reading(Pause.CORE_FULL)
        n_bytes = objects_bytes(self.gathered.events)
        self.gathered.held_bytes += n_bytes
        self.stream.hold(n_bytes)

    def _go_on(self) -> None:
        self._waits_as = None
        self.hand_over_gathered()
        # what follows is taken in its turn: many may go on at once
        resume = functools.partial(self.stream.resume_reading, Pause.CORE_FULL)
        self.stream.slot.turns.wait(resume, self.stream.owner)

    def leave(self) -> None:
        """The client is gone. What waits until the core has room is not registered any more."""
        if self._taking_in is not None:
            self._taking_in.cancel()
        if self._waits_as is not None:
            self._service.core.wait_no_longer(self._waits_as, self._go_on)
            self._waits_as = None
            self.gathered = None

    def hand_over_gathered(self) -> None:
        """Have the core register what came so far; never raises."""
        if self.gathered is None:
            return
        gathered, self.gathered = self.gathered, None
        try:
            for outcome in self._hand_over(gathered, self._keys(gathered)):
                self.answer_large(outcome)
        except Exception as e:
            self.stream.on_failed(e)

    def take_gathered(self) -> Gathered[RequestT] | None:
        """See ``GatheringClient``."""
        if self._waits_as is not None:
            return None
        if self.gathered is not None and self.gathered.names:  # of which the core knows by client
            self.hand_over_gathered()
            return None
        gathered, self.gathered = self.gathered, None
        return gathered

    async def register_large(
        self,
        request: RequestT,
        events: Sequence[RegisterEvent],
        key: str | None = None,
        after: str | None = None,
    ) -> None:
        """As :meth:`register`, within what :meth:`take_in` does."""
        rights = None
        while rights is not self._rights:  # they may change meanwhile
            rights = self._rights
            refusal = await rights.refusal_of_large(events)
        if self.stream.close_reason is not None:
            return
        if refusal is not None:
            self._refuse(request, RightsError(refusal))
            return
        keys: list[RequestKey] = []
        if key is not None:
            digested = await slices.run(digest_in_steps(events))
            keys = [RequestKey(self._owner, key, digested, after)]
        if self._service.core.is_full and not await self._until_room():
            return
        held_bytes = self._large_bytes  # may be answered after its turn
        self.stream.hold(held_bytes)
        # ``keys`` has its key
        gathered = Gathered([request], [events], len(events) or 1, held_bytes=held_bytes)
        outcomes = self._hand_over(gathered, keys)
        del events  # which take long to be freed
        for outcome in outcomes:
            await self._answer_large(outcome)

    async def _until_room(self) -> bool:
        """Wait in line while the core is full; whether the connection is open then."""
        core, owner = self._service.core, self.stream.owner
        has_room: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def go_on() -> None:
            if not has_room.done():
                has_room.set_result(None)

        core.wait_for_room(owner, go_on)
        try:
            await has_room
        finally:
            if not has_room.done() or has_room.cancelled():
                core.wait_no_longer(owner, go_on)
        return self.stream.close_reason is None

    def refuse(self, request: RequestT, reason: str) -> None:
        """Refuse an invalid registration, after those that came before it were answered."""
        self._refuse(request, InvalidMessageError(cut(reason)))

    def _refuse(self, request: RequestT, error: EventerBridgeError) -> None:
        self.hand_over_gathered()
        self._count_rejected(error)
        self.unanswered.append(_One(request, error))
        self._n_unanswered += 1
        self._account.spend(self.stream, EVENTS, 1)
        self.answer()
        if self._n_unanswered >= limits.MAX_REGISTRATIONS_IN_FLIGHT:
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
        stream = self.stream
        self.hand_over_gathered()
        stream.pause_reading(Pause.LARGE_MESSAGE)
        self._large_bytes = n_bytes = stream.take_bytes()
        if not stream.hold(n_bytes):
            work.close()
            return

        def end(_: object) -> None:
            work.close()  # it may not have begun
            stream.hold(-n_bytes)
            stream.resume_reading(Pause.LARGE_MESSAGE)

        self._answering = self._taking_in = self._service.spawn(self._take_in(work))
        self._taking_in.add_done_callback(end)

    async def _take_in(self, work: Coroutine[None, None, None]) -> None:
        stream = self.stream
        try:
            async with self._service.core.lane.place(stream.owner):
                self._taking_in = None  # from here on it goes on, also if the client leaves
                await slices.next_turn()  # it took long to come in
                if stream.close_reason is None:
                    await work
        except RemoteProtocolError as e:
            stream.on_protocol_error(e)
        except Exception as e:
            stream.on_failed(e)

    def _keys(self, gathered: Gathered[RequestT]) -> list[RequestKey | None]:
        """What the client calls its requests; empty: nothing."""
        if not gathered.names:
            return []
        owner, contents = self._owner, digests(gathered.events)
        return [
            None if name is None else RequestKey(owner, name, content, after)
            for name, content, after in zip(gathered.names, contents, gathered.afters, strict=True)
        ]

    def _hand_over(
        self, gathered: Gathered[RequestT], keys: Sequence[RequestKey | None]
    ) -> "list[Session | Repeated]":
        """Hand requests to the core, in their order, with their keys if any has one.

        Returns:
            Those with a large session, which are answered when they are encoded.
        """
        core, source, quota = self._service.core, self.source, self.type_quota
        asked = gathered.events
        outcomes: Sequence[_Result]
        if keys:
            outcomes = core.register_keyed(source, asked, quota, keys)
        else:
            outcomes = core.register_all([source] * len(asked), asked, [quota] * len(asked))
        return self.take_outcomes(gathered, outcomes)

    def take_outcomes(
        self,
        gathered: Gathered[RequestT],
        outcomes: Sequence[_Result],
    ) -> "list[Session | Repeated]":
        """See ``GatheringClient``."""
        requests, held_bytes = gathered.requests, gathered.held_bytes
        self._n_unanswered += len(requests)
        large: list[Session | Repeated] = []
        is_any_ended = False
        if isinstance(outcomes, PackedSessions) and _is_one_answer(
            outcomes.n_events, outcomes.n_bytes
        ):
            commit, size = outcomes.committed, (outcomes.n_events, outcomes.n_bytes)
            self.unanswered.append(_Together(commit, requests, outcomes, *size, held_bytes))
            self._await_commit(commit)
        elif not self._take_together(requests, outcomes, held_bytes):
            # all of it is counted until the last one is answered
            for request, outcome in zip(requests, outcomes, strict=True):
                if self._take_together([request], [outcome]):
                    continue
                self.unanswered.append(_One(request, outcome))
                if isinstance(outcome, EventerBridgeError):
                    self._count_rejected(outcome)
                    is_any_ended = True
                elif outcome.is_large:
                    large.append(outcome)
                    self._encoding.append(outcome)
                else:
                    self._await_commit(outcome.committed)
            self.unanswered[-1].held_bytes += held_bytes
        if self._account.throttle is not None:
            self._account.spend(self.stream, EVENTS, gathered.n_events)
        if is_any_ended:
            self.answer()
        if self._n_unanswered >= limits.MAX_REGISTRATIONS_IN_FLIGHT:
            self.stream.pause_reading(Pause.REGISTRATIONS_FULL)
        return large

    def _take_together(
        self,
        requests: Sequence[RequestT],
        outcomes: Sequence[_Result],
        held_bytes: int = 0,
    ) -> bool:
        """Have requests answered together, if they became small sessions of one commit."""
        first = outcomes[0]
        if not isinstance(first, Session):
            return False
        commit, n_events, n_bytes = first.committed, first.requested, first.payload_bytes
        sessions = [
            i
            for i in outcomes
            # what has no events yet may get more of them from modules
            if type(i) is Session
            and i.committed is commit
            and (i.packed or i.decoded)
            and not i.is_large
        ]
        if len(sessions) < len(outcomes):
            return False
        if len(sessions) > 1:
            n_events = sum([i.requested for i in sessions])
            n_bytes = sum([i.payload_bytes for i in sessions])
            if not _is_one_answer(n_events, n_bytes):
                return False
        # of one event each, it would cost more than it gives
        if (
            n_events > len(sessions)
            and not self._service.core.tells_of_persisted
            and n_events == sum([len(i.decoded) for i in sessions if i.packed is None])
        ):
            self._wire.keep_encoded(requests, sessions)
        self.unanswered.append(_Together(commit, requests, sessions, n_events, n_bytes, held_bytes))
        self._await_commit(commit)
        return True

    def _await_commit(self, commit: asyncio.Future[None]) -> None:
        """Answer what is committed together when that is done."""
        # one that is done already may have been answered: a repeated request can be of such a one
        if commit is not self._awaited_commit or commit.done():
            self._awaited_commit = commit
            self._service.gathering.await_commit(commit, self)

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
        finally:
            self._encoding.remove(outcome)
        self.answer()
        await asyncio.sleep(0)  # before the session is freed

    def answer_large(self, outcome: Session | Repeated) -> None:
        """See ``GatheringClient``."""
        self._answering = self._service.spawn(self._answer_large(outcome))

    def answer(self) -> None:
        """Answer what has ended, in the order of the requests; never raises.

        The client may be gone: it is counted all the same.
        """
        stream = self.stream
        try:
            while self.unanswered:
                if not (self._answer_stored() or self._answer_first()):
                    break
            if stream.pauses and self._n_unanswered <= limits.MAX_REGISTRATIONS_IN_FLIGHT // 2:
                stream.resume_reading(Pause.REGISTRATIONS_FULL)
            if stream.has_ended:
                stream.close_if_answered()
        except Exception as e:
            stream.on_failed(e)

    def _answer_stored(self) -> bool:
        """Answer small sessions that are stored, up to the first of another kind."""
        unanswered = self.unanswered
        stored: list[_Together[RequestT]] = []
        n_events = n_bytes = held_bytes = 0
        while unanswered:
            first = unanswered[0]
            if not isinstance(first, _Together):
                break
            if not first.commit.done() or first.commit.exception():
                break
            if stored and not _is_one_answer(n_events, n_bytes):
                break
            unanswered.popleft()
            stored.append(first)
            n_events += first.n_events
            n_bytes += first.n_bytes
            held_bytes += first.held_bytes
        if not stored:
            return False
        self.stream.hold(-held_bytes)
        requests, sessions = stored[0].requests, stored[0].sessions
        if len(stored) > 1:
            requests = [*chain.from_iterable([i.requests for i in stored])]
            sessions = joined([i.sessions for i in stored])
        self._n_unanswered -= len(requests)
        self._service.stats.events_registered += n_events
        self._account.n_registered += n_events
        self._wire.send_registered(requests, sessions)
        return True

    def _answer_first(self) -> bool:
        """Answer the first requests, unless they have not ended."""
        first = self.unanswered[0]
        if isinstance(first, _Together):
            error = first.commit.exception() if first.commit.done() else None
            if error is None:
                return False
            for request in first.requests:
                self._answer_failed(request, error)
            self._n_unanswered -= len(first.requests)
        elif self._answer_one(first.request, first.outcome):
            self._n_unanswered -= 1
        else:
            return False
        self.unanswered.popleft()
        self.stream.hold(-first.held_bytes)
        return True

    def _answer_one(self, request: RequestT, outcome: _Result) -> bool:
        if isinstance(outcome, EventerBridgeError):
            self._wire.send_refused(request, cut(str(outcome)), outcome_of(outcome))
            return True
        session = outcome.session if isinstance(outcome, Repeated) else outcome
        if not session.committed.done():
            return False
        if error := session.committed.exception():
            self._answer_failed(request, error)
        elif isinstance(outcome, Repeated):
            has_events = session.is_encoded or session.events
            if not has_events or not self._is_answerable(session, outcome):
                return False
            self._wire.send_repeated(request, session)
        elif not self._is_answerable(session, outcome):
            return False
        else:
            self._service.stats.events_registered += session.requested
            self._account.n_registered += session.requested
            self._wire.send_registered([request], [session])
        return True

    def _is_answerable(self, session: Session, outcome: Session | Repeated) -> bool:
        if not session.is_large or self._service.encoding.is_answerable(session):
            return True
        if outcome not in self._encoding:  # what modules added made it large
            self._encoding.append(outcome)
            self.answer_large(outcome)
        return False

    def _answer_failed(self, request: RequestT, error: BaseException) -> None:
        reason = cut(str(error)) if isinstance(error, EventerBridgeError) else "internal error"
        outcome = outcome_of(error)
        if outcome is Outcome.UNKNOWN:
            self._service.stats.outcome_unknown += 1
        else:
            self._count_rejected(error)
        self._wire.send_refused(request, reason, outcome)

    async def drain(self) -> None:
        """Answer those that are under way."""
        self.hand_over_gathered()
        if self._answering is not None:
            await asyncio.wait([self._answering])
        while self.unanswered and self.stream.close_reason is None:
            commit = self._commit_of(self.unanswered[0])
            if commit is None or commit.done():
                await asyncio.sleep(0)
            else:
                await asyncio.wait([commit])

    def last_commit(self) -> asyncio.Future[None] | None:
        """The last one of what was registered that is still under way; None: there is none."""
        commits = map(self._commit_of, reversed(self.unanswered))
        return next((i for i in commits if i is not None and not i.done()), None)

    @staticmethod
    def _commit_of(
        unanswered: _Together[RequestT] | _One[RequestT],
    ) -> asyncio.Future[None] | None:
        if isinstance(unanswered, _Together):
            return unanswered.commit
        outcome = unanswered.outcome
        return None if isinstance(outcome, EventerBridgeError) else outcome.committed


def _is_one_answer(n_events: int, n_bytes: int) -> bool:
    """Whether so many events and bytes of their payloads can be answered at one go."""
    return n_events <= limits.ANSWERED_EVENTS and n_bytes <= limits.ANSWERED_BYTES
