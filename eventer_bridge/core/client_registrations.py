"""Registrations of a client: handed to the core together, answered in their order.

What came in one iteration of the loop goes to the core together, with that of other clients
(``gathering``): each request becomes a session of its own, but they are checked, counted, staged
and notified at one go. A large message is dealt with in slices, in its turn among those of all
clients. The client is not read from while the core is full, or too many of its registrations are
under way.

Runs on the event loop's thread.
"""

import asyncio
from collections import deque
from collections.abc import Coroutine, Sequence
from typing import Any, Generic, TypeVar

from eventer_bridge import limits, slices
from eventer_bridge.backends.request_keys import RequestKey, digest, digest_in_steps
from eventer_bridge.backends.type_budget import TypeQuota
from eventer_bridge.core.client_service import ClientService, ClientWire
from eventer_bridge.core.gathering import Gathered
from eventer_bridge.core.quotas import Account
from eventer_bridge.core.rights import Rights
from eventer_bridge.core.session import Repeated, Session
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
from eventer_bridge.excerpts import cut
from eventer_bridge.model import RegisterEvent, Source
from eventer_bridge.net.pause import Pause
from eventer_bridge.net.stream import Stream
from eventer_bridge.net.throttle import EVENTS

RequestT = TypeVar("RequestT")


class ClientRegistrations(Generic[RequestT]):
    """See the module.

    What was accepted is answered, and counted, after the client has gone as well.

    Args:
        service: of the server.
        stream: the client's connection.
        wire: what is sent there.
        source: of its events.

    Attributes:
        n_gathered: events of this turn that the core does not know of yet; at least 1 a request.
        unanswered: requests that are not answered, each with what became of it.
    """

    __slots__ = (
        "_account",
        "_answering",
        "_awaited_commit",
        "_encoding",
        "_gathered",
        "_has_keys",
        "_rights",
        "_service",
        "_source",
        "_wire",
        "n_gathered",
        "stream",
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
        self._source = source
        self._rights: Rights  # from when it is accepted
        self._account: Account
        # registrations that the core does not know of yet
        self._gathered: list[Gathered] = []
        self._has_keys = False  # one of them
        self.n_gathered = 0
        self.unanswered: deque[tuple[RequestT, Session | Repeated | EventerBridgeError]] = deque()
        self._awaited_commit: asyncio.Future[None] | None = None
        self._answering: asyncio.Task[None] | None = None
        self._encoding: list[Session | Repeated] = []  # large ones, for their answers

    @property
    def is_answering(self) -> bool:
        """Whether the client waits for an answer."""
        return bool(self.unanswered or self._gathered)

    @property
    def source(self) -> Source:
        """Of the client's events."""
        return self._source

    @property
    def type_quota(self) -> TypeQuota:
        """Of the client, for new event types."""
        return self._rights.type_quota

    def use(self, rights: Rights, account: Account) -> None:
        """What the client may do from now on, and where it is counted."""
        self._rights, self._account = rights, account

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
        rights, core = self._rights, self._service.core
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
        self.n_gathered += len(events) or 1
        if self.n_gathered >= self._account.max_gathered:
            self.hand_over_gathered()
        elif len(gathered) == 1:
            if core.is_full or core.registers_one_by_one:
                self.hand_over_gathered()
            else:
                self._service.gathering.add(self)

    def hand_over_gathered(self) -> None:
        """Have the core register what came so far; never raises."""
        if not self._gathered:
            return
        gathered, self._gathered, self.n_gathered = self._gathered, [], 0
        try:
            for outcome in self._hand_over(gathered):
                self.answer_large(outcome)
        except Exception as e:
            self.stream.on_failed(e)

    def take_gathered(self) -> Sequence[Gathered]:
        """See ``GatheringClient``."""
        if self._has_keys:  # of which the core knows by client
            self.hand_over_gathered()
        gathered, self._gathered, self.n_gathered = self._gathered, [], 0
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
        named = None
        if key is not None:
            digested = await slices.run(digest_in_steps(events))
            named = RequestKey(self.stream.client or "", key, digested, after)
            self._has_keys = True
        gathered: list[Gathered] = [(request, events, named)]
        del events  # which take long to be freed
        for outcome in self._hand_over(gathered):
            gathered.clear()
            await self._answer_large(outcome)

    def refuse(self, request: RequestT, reason: str) -> None:
        """Refuse an invalid registration, after those that came before it were answered."""
        self._refuse(request, InvalidMessageError(cut(reason)))

    def _refuse(self, request: RequestT, error: EventerBridgeError) -> None:
        self.hand_over_gathered()
        self._count_rejected(error)
        self.unanswered.append((request, error))
        self._account.spend(self.stream, EVENTS, 1)
        self.answer()
        if len(self.unanswered) >= limits.MAX_REGISTRATIONS_IN_FLIGHT:
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
        self.hand_over_gathered()
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

    def _hand_over(self, gathered: Sequence[Gathered]) -> "list[Session | Repeated]":
        """Hand requests to the core, in their order.

        Returns:
            Those with a large session, which are answered when they are encoded.
        """
        core, quota = self._service.core, self._rights.type_quota
        _, asked, keys = zip(*gathered, strict=True)
        outcomes: Sequence[Session | Repeated | EventerBridgeError]
        if self._has_keys:
            self._has_keys = False
            outcomes = core.register_keyed(self._source, asked, quota, keys)
        else:
            outcomes = core.register_all([self._source] * len(asked), asked, [quota] * len(asked))
        return self.take_outcomes(gathered, outcomes)

    def take_outcomes(
        self,
        gathered: Sequence[Gathered],
        outcomes: "Sequence[Session | Repeated | EventerBridgeError]",
    ) -> "list[Session | Repeated]":
        """See ``GatheringClient``."""
        core, unanswered, gathering = self._service.core, self.unanswered, self._service.gathering
        large: list[Session | Repeated] = []
        is_any_ended = False
        for (request, _, _), outcome in zip(gathered, outcomes, strict=True):
            unanswered.append((request, outcome))
            if isinstance(outcome, EventerBridgeError):
                self._count_rejected(outcome)
                is_any_ended = True
            elif outcome.is_large:
                large.append(outcome)
                self._encoding.append(outcome)
            elif outcome.committed is not self._awaited_commit:
                # sessions that are committed together are answered together
                self._awaited_commit = outcome.committed
                gathering.await_commit(outcome.committed, self)
        stream = self.stream
        if self._account.throttle is not None:
            n_events = sum(len(events) or 1 for _, events, _ in gathered)
            self._account.spend(self.stream, EVENTS, n_events)
        if is_any_ended:
            self.answer()
        if len(unanswered) >= limits.MAX_REGISTRATIONS_IN_FLIGHT:
            stream.pause_reading(Pause.REGISTRATIONS_FULL)
        if core.is_full:
            stream.pause_reading(Pause.CORE_FULL)
            core.when_drained(lambda: stream.resume_reading(Pause.CORE_FULL))
        return large

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
        unanswered, stream = self.unanswered, self.stream
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
        for request, outcome in self.unanswered:
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
            self.unanswered.popleft()
        return stored

    def _answer_first(self) -> bool:
        """Answer the first request, unless it has not ended."""
        request, outcome = self.unanswered[0]
        if isinstance(outcome, EventerBridgeError):
            self._wire.send_refused(request, cut(str(outcome)), outcome_of(outcome))
        elif isinstance(outcome, Repeated):
            return self._answer_repeated(request, outcome)
        elif not outcome.committed.done():
            return False
        elif error := outcome.committed.exception():
            self._answer_failed(request, error)
        elif not self._is_answerable(outcome, outcome):
            return False
        else:
            self._service.stats.events_registered += outcome.requested
            self._account.n_registered += outcome.requested
            self._wire.send_registered([(request, outcome)])
        self.unanswered.popleft()
        return True

    def _answer_repeated(self, request: RequestT, outcome: Repeated) -> bool:
        session = outcome.session
        if not session.committed.done():
            return False
        if error := session.committed.exception():
            self._answer_failed(request, error)
        elif not session.events or not self._is_answerable(session, outcome):
            return False
        else:
            self._wire.send_repeated(request, session)
        self.unanswered.popleft()
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
            _, head = self.unanswered[0]
            if isinstance(head, Repeated):
                head = head.session
            if not isinstance(head, Session) or head.committed.done():
                await asyncio.sleep(0)
            else:
                await asyncio.wait([head.committed])

    def last_commit(self) -> asyncio.Future[None] | None:
        """That of what was registered last, if it is not answered; None: everything is."""
        for _, outcome in reversed(self.unanswered):
            if isinstance(outcome, Repeated):
                return outcome.session.committed
            if isinstance(outcome, Session):
                return outcome.committed
        return None
