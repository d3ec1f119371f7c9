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
from typing import Any

import msgspec
from typing_extensions import override

from eventer_bridge import limits, slices
from eventer_bridge.backends.request_keys import RequestKey, digest_in_steps, digests
from eventer_bridge.backends.type_budget import TypeQuota
from eventer_bridge.core.client_service import ClientService, ClientWire, GatheringClient
from eventer_bridge.core.quotas import Account
from eventer_bridge.core.rights import Rights
from eventer_bridge.core.session import resolve
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
from eventer_bridge.model import Source, cut
from eventer_bridge.net.stream import Pause, Stream
from eventer_bridge.net.throttle import EVENTS
from eventer_bridge.packed import Batch, are_alike, are_keyed, assign, claim, totals


class _Unanswered(msgspec.Struct, gc=False):
    """Batches that follow each other and have one outcome: they are answered together.

    Attributes:
        committed: of the batches.
        batches: of one kind: new ones; or one that is large, or was registered before.
        n_events: number of requested events.
        n_bytes: size of their payloads.
        held_bytes: memory that is counted for them until they are answered (``Stream.hold``).
    """

    committed: asyncio.Future[None]
    batches: list[Batch]
    n_events: int
    n_bytes: int
    held_bytes: int = 0


class ClientRegistrations(GatheringClient):
    """The registrations of a client.

    Accepted ones are answered, and counted, even after the client disconnected.

    Attributes:
        type_quota: of the client, for new event types; from when it is accepted.
        n_gathered: events of this turn that the core does not know of yet; each request counts as
            one at least.
        gathered_bytes: memory that is counted for them.
        unanswered: registrations that are not answered.
    """

    __slots__ = (
        "_account",
        "_answering",
        "_awaited_commit",
        "_encoding",
        "_gathered",
        "_large_bytes",
        "_n_unanswered",
        "_owner",
        "_rights",
        "_service",
        "_source",
        "_taking_in",
        "_waits_as",
        "_wire",
        "gathered_bytes",
        "n_gathered",
        "stream",
        "type_quota",
        "unanswered",
    )

    stream: Stream[Any]

    def __init__(
        self, service: ClientService, stream: Stream[Any], wire: ClientWire[Any], source: Source
    ) -> None:
        self._service = service
        self.stream = stream
        self._wire = wire
        self._source = source
        self._rights: Rights  # from when it is accepted
        self._account: Account
        self.type_quota: TypeQuota
        self._owner: str  # of its request keys
        self._gathered: list[Batch] = []
        self.n_gathered = self.gathered_bytes = 0
        self.unanswered: deque[_Unanswered] = deque()
        self._n_unanswered = 0
        self._waits_as: str | None = None  # for the core to have room; None: it does not
        self._taking_in: asyncio.Task[None] | None = None  # waits for the lane
        self._large_bytes = 0  # of the large message that is dealt with
        self._awaited_commit: asyncio.Future[None] | None = None
        self._answering: asyncio.Task[None] | None = None
        self._encoding: list[Batch] = []  # large ones, for their answers

    @property
    def is_answering(self) -> bool:
        """Whether the client waits for an answer."""
        return bool(self.unanswered or self._gathered) or self._taking_in is not None

    def use(self, rights: Rights, account: Account) -> None:
        """Change the rights of the client, and the account that counts its use."""
        self._rights, self._account, self.type_quota = rights, account, rights.type_quota
        self._owner = self.stream.client or ""
        claim(self._gathered, self._source, self.type_quota)

    def register(self, batch: Batch) -> None:
        """Register a batch with what else comes in this iteration of the loop.

        Rights are checked at once: schemas take time, which the turn is to notice. Where nothing
        is gained, or the core is full, nothing is gathered.
        """
        rights = self._rights
        if not rights.may_register_everything and (refusal := rights.refusal(batch)):
            self._refuse(batch, RightsError(refusal))
        else:
            self.gather([batch])

    @property
    def room(self) -> int:
        """Events that may come by :meth:`gather`; 0: each batch by :meth:`register`."""
        core = self._service.core
        if self._gathered:
            return self._account.max_gathered - self.n_gathered
        return 0 if core.is_full or core.registers_one_by_one else self._account.max_gathered

    def n_allowed(self, batches: Sequence[Batch]) -> int:
        """How many of these, from the first on, may come by :meth:`gather`."""
        return self._rights.n_allowed(batches)

    def gather(self, batches: list[Batch]) -> None:
        """As :meth:`register` of each, but faster.

        Args:
            batches: those that come while there is :attr:`room`, and that may be registered
                (:meth:`n_allowed`).
        """
        core, stream = self._service.core, self.stream
        n_bytes = stream.take_bytes()
        if not stream.hold(n_bytes):
            return
        is_first = not self._gathered
        self._gathered += batches
        self.n_gathered += claim(batches, self._source, self.type_quota)
        self.gathered_bytes += n_bytes
        if core.is_full:
            self.wait_for_room()
        elif self.n_gathered >= self._account.max_gathered or core.registers_one_by_one:
            self.hand_over_gathered()
        elif is_first:
            self._service.gathering.add(self)

    @override
    def wait_for_room(self) -> None:
        """The client is not read meanwhile."""
        if self._waits_as is not None or not self._gathered:
            return
        self._waits_as = self.stream.owner
        self._service.core.wait_for_room(self._waits_as, self._go_on)
        self.stream.pause_reading(Pause.CORE_FULL)
        n_bytes = sum([batch.object_bytes for batch in self._gathered])
        self.gathered_bytes += n_bytes
        self.stream.hold(n_bytes)

    def _go_on(self) -> None:
        self._waits_as = None
        self.hand_over_gathered()
        # what follows is taken in its turn: many may go on at once
        resume = functools.partial(self.stream.resume_reading, Pause.CORE_FULL)
        self.stream.slot.turns.wait(resume, self.stream.owner)

    def leave(self) -> None:
        """The client disconnected. Registrations that wait for room are dropped."""
        if self._taking_in is not None:
            self._taking_in.cancel()
        if self._waits_as is not None:
            self._service.core.wait_no_longer(self._waits_as, self._go_on)
            self._waits_as = None
            self._gathered = []
            self.n_gathered = self.gathered_bytes = 0

    def hand_over_gathered(self) -> None:
        """Register the gathered batches; never raises."""
        if not self._gathered:
            return
        batches, self._gathered, self.n_gathered = self._gathered, [], 0
        try:
            if are_keyed(batches):
                self._set_keys(batches)
            self._service.core.submit(batches)
            self.await_outcomes(batches)
        except Exception as e:
            self.stream.on_failed(e)

    @override
    def take_gathered(self) -> list[Batch]:
        if self._waits_as is not None:
            return []
        # keys are known to the core by client
        if are_keyed(self._gathered):
            self.hand_over_gathered()
        batches, self._gathered, self.n_gathered = self._gathered, [], 0
        return batches

    def _set_keys(self, batches: Sequence[Batch]) -> None:
        keyed = [batch for batch in batches if batch.request_key is not None]
        for batch, digest in zip(keyed, digests(keyed), strict=True):
            self._set_key(batch, digest)

    def _set_key(self, batch: Batch, digest: bytes) -> None:
        if batch.request_key is not None:
            batch.key = RequestKey(self._owner, batch.request_key, digest, batch.after_key)

    async def register_large(self, batch: Batch) -> None:
        """As :meth:`register`, within what :meth:`take_in` does."""
        rights = None
        while rights is not self._rights:  # they may change meanwhile
            rights = self._rights
            refusal = await rights.refusal_of_large(batch)
        if self.stream.close_reason is not None:
            return
        if refusal is not None:
            self._refuse(batch, RightsError(refusal))
            return
        batch.source, batch.quota = self._source, self.type_quota
        if batch.request_key is not None:
            self._set_key(batch, await slices.run(digest_in_steps(batch)))
        core = self._service.core
        if core.is_full and not await self._until_room():
            return
        self.gathered_bytes += self._large_bytes  # may be answered after its turn
        self.stream.hold(self._large_bytes)
        core.submit([batch])
        self.await_outcomes([batch])
        if batch in self._encoding and self._answering is not None:
            await asyncio.wait([self._answering])

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

    def refuse(self, batch: Batch, reason: str) -> None:
        """Refuse an invalid registration, after those that came before it were answered.

        Args:
            batch: without events: only to be answered.
            reason: for the client.
        """
        self._refuse(batch, InvalidMessageError(cut(reason)))

    def _refuse(self, batch: Batch, error: EventerBridgeError) -> None:
        self.hand_over_gathered()
        batch.committed = asyncio.get_running_loop().create_future()
        resolve(batch.committed, error)
        self.unanswered.append(_Unanswered(batch.committed, [batch], 0, 0))
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
        """Process a large message, in its turn among those of all clients.

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

    @override
    def await_outcomes(self, batches: list[Batch]) -> None:
        held_bytes, self.gathered_bytes = self.gathered_bytes, 0
        self._n_unanswered += len(batches)
        _, n_events, n_bytes = totals(batches)
        if len(batches) == 1 or (_is_one_answer(n_events, n_bytes) and are_alike(batches)):
            parts = [_Unanswered(batches[0].committed, batches, n_events, n_bytes)]
        else:
            parts = [_Unanswered(i.committed, [i], i.requested, i.payload_bytes) for i in batches]
        self.unanswered += parts
        for some in parts:
            first = some.batches[0]
            if first.is_large and not first.has_failed:
                self._answer_large(first)
            elif some.committed is not self._awaited_commit or some.committed.done():
                # one that is done already may have been answered: a repeated request can be of it
                self._awaited_commit = some.committed
                self._service.gathering.await_commit(some.committed, self)
        # all of it is counted until the last one is answered
        self.unanswered[-1].held_bytes += held_bytes
        if self._account.throttle is not None:
            self._account.spend(self.stream, EVENTS, sum([len(i) or 1 for i in batches]))
        if any(i.batches[0].has_failed for i in parts):  # what is durable is notified before
            self.answer()
        if self._n_unanswered >= limits.MAX_REGISTRATIONS_IN_FLIGHT:
            self.stream.pause_reading(Pause.REGISTRATIONS_FULL)

    def _answer_large(self, batch: Batch) -> None:
        """Answer a large batch, when it is encoded."""
        self._encoding.append(batch)
        self._answering = self._service.spawn(self._encode_large(batch))

    async def _encode_large(self, batch: Batch) -> None:
        await asyncio.wait([batch.committed])
        try:
            if not batch.has_failed:
                _follow_first(batch)
                await slices.run(self._service.encoding.prepare(batch))
        except Exception as e:
            self.stream.on_failed(e)
            return
        finally:
            self._encoding.remove(batch)
        self.answer()
        await asyncio.sleep(0)  # before the session is freed

    @override
    def answer(self) -> None:
        """Answer what has ended, in the order of the requests; never raises.

        The client may be gone: it is counted all the same.
        """
        stream = self.stream
        try:
            while self.unanswered and self.unanswered[0].committed.done():
                if not self._answer_first():
                    break
            if stream.pauses and self._n_unanswered <= limits.MAX_REGISTRATIONS_IN_FLIGHT // 2:
                stream.resume_reading(Pause.REGISTRATIONS_FULL)
            if stream.has_ended:
                stream.close_if_answered()
        except Exception as e:
            stream.on_failed(e)

    def _answer_first(self) -> bool:
        """Answer the first registrations, which have ended, and similar ones after them."""
        unanswered = self.unanswered
        first = unanswered[0]
        batch = first.batches[0]
        if error := first.committed.exception():
            self._release(unanswered.popleft())
            for batch in first.batches:
                self._answer_failed(batch, error)
            return True
        if batch.is_large and not self._service.encoding.is_answerable(batch):
            if batch not in self._encoding:
                self._answer_large(batch)
            return False
        unanswered.popleft()
        if batch.first is not None:
            self._release(first)
            _follow_first(batch)
            self._wire.send_repeated(batch)
            batch.first = None  # which may be itself
            return True
        batches, held_bytes = [*first.batches], first.held_bytes
        n_events, n_bytes = first.n_events, first.n_bytes
        while unanswered and _is_one_answer(n_events, n_bytes) and not batch.is_large:
            more = unanswered[0]
            batch = more.batches[0]
            if batch.is_large or batch.first is not None or not more.committed.done():
                break
            if more.committed.exception():
                break
            unanswered.popleft()
            batches += more.batches
            held_bytes += more.held_bytes
            n_events += more.n_events
            n_bytes += more.n_bytes
        self._n_unanswered -= len(batches)
        self.stream.hold(-held_bytes)
        self._service.stats.events_registered += n_events
        self._account.n_registered += n_events
        self._wire.send_registered(batches)
        return True

    def _release(self, answered: _Unanswered) -> None:
        self._n_unanswered -= len(answered.batches)
        self.stream.hold(-answered.held_bytes)

    def _answer_failed(self, batch: Batch, error: BaseException) -> None:
        reason = cut(str(error)) if isinstance(error, EventerBridgeError) else "internal error"
        outcome = outcome_of(error)
        if outcome is Outcome.UNKNOWN:
            self._service.stats.outcome_unknown += 1
        else:
            self._count_rejected(error)
        self._wire.send_refused(batch, reason, outcome)

    async def drain(self) -> None:
        """Answer those that are under way."""
        self.hand_over_gathered()
        if self._answering is not None:
            await asyncio.wait([self._answering])
        while self.unanswered and self.stream.close_reason is None:
            committed = self.unanswered[0].committed
            if committed.done():
                await asyncio.sleep(0)
            else:
                await asyncio.wait([committed])

    def last_commit(self) -> asyncio.Future[None] | None:
        """The last registration under way; None: there is none."""
        commits = (i.committed for i in reversed(self.unanswered))
        return next((i for i in commits if not i.done()), None)


def _follow_first(batch: Batch) -> None:
    """Give a repeated batch the events of the first one."""
    first = batch.first
    if first is not None and first is not batch:
        assign([batch], first.server, first.session, first.s, first.us)


def _is_one_answer(n_events: int, n_bytes: int) -> bool:
    """Whether so many events and bytes of their payloads can be answered at one go."""
    return n_events <= limits.ANSWERED_EVENTS and n_bytes <= limits.ANSWERED_BYTES
