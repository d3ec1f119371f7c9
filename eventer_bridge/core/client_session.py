"""A client of a core, whichever wire it speaks: what each wire does for its clients, once.

A wire decodes requests and hands them to its connection's :class:`ClientSession`; what is to be
answered comes back to it as calls of :class:`ClientWire`, which encode and send::

    init ─────▶ ClientLogin ─▶ ClientSession ─▶ slot ─▶ send_accepted | send_declined
    register ─▶ ClientRegistrations ─▶ rights, core ──▶ send_registered | send_refused, in order
    query ────▶ ClientQueries ─▶ core, one by one ────▶ send_result
    session of the core ─▶ ClientService ─▶ Fanout ──▶ send_notification
    its status ──────────▶               ────────────▶ send_status

Nothing of a client grows without bound: registrations and queries stop reading from it, and the
connection is closed if it does not read.

Runs on the event loop's thread.
"""

import asyncio
import contextlib
import functools
import logging
from collections.abc import Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from eventer_bridge import limits
from eventer_bridge.core.authentication import Admitted, DeclinedError
from eventer_bridge.core.client_login import ClientLogin
from eventer_bridge.core.client_queries import ClientQueries
from eventer_bridge.core.client_registrations import ClientRegistrations
from eventer_bridge.core.client_service import ClientService, ClientWire
from eventer_bridge.core.fanout import Filter
from eventer_bridge.core.held import subscription_bytes
from eventer_bridge.core.quotas import Account
from eventer_bridge.core.replay import GAP_TEXT, Replay, Start
from eventer_bridge.core.rights import Rights
from eventer_bridge.core.session import Session
from eventer_bridge.core.tokens import TokenHash
from eventer_bridge.errors import EventerBridgeError, InvalidEventError, RemoteProtocolError
from eventer_bridge.model import EventId, EventType, SourceType, Status
from eventer_bridge.net.sockets import TcpState
from eventer_bridge.net.stats import CloseReason
from eventer_bridge.net.stream import Pause, Stream
from eventer_bridge.subscription import Subscription

mlog = logging.getLogger(__name__)
audit = logging.getLogger("audit")

RequestT = TypeVar("RequestT")


class _Asked(NamedTuple):
    """What a client wants to hear of."""

    subscriptions: Sequence[EventType]
    server_id: int | None
    persisted: bool
    start: Start | None


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
        registrations: what it registers.
        queries: what it asks for.
        rights: None until it is accepted.
        is_persisted: whether it hears of events when they are durable, not before.
        n_subscriptions: query types that it asked for.
    """

    __slots__ = (
        "_account",
        "_filter",
        "_login",
        "_preparing",
        "_proof",
        "_replay",
        "_service",
        "_source",
        "_wanted",
        "_wire",
        "is_persisted",
        "n_subscriptions",
        "queries",
        "registrations",
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
        self.registrations = ClientRegistrations(service, stream, wire, self._source)
        self.queries = ClientQueries(service, stream, wire, self.registrations)
        self.rights: Rights | None = None
        self.is_persisted = False
        self.n_subscriptions = 0
        self._login = ClientLogin(service, stream, wire)
        self._account: Account  # from when it is admitted
        self._proof: TokenHash | None = None
        self._filter: Filter | None = None  # what it wanted, within its rights
        self._wanted: Subscription
        self._replay: Replay | None = None
        self._preparing: asyncio.Task[None] | None = None  # before init: looks for gaps

    @property
    def is_answering(self) -> bool:
        """Whether it waits for an answer."""
        return (
            self.registrations.is_answering
            or self.queries.is_answering
            or self._login.is_checking
            or self._preparing is not None
        )

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
        asked = _Asked(subscriptions, server_id, persisted, start)
        n_bytes = self.stream.take_bytes() + subscription_bytes(subscriptions)
        if start is not None:
            n_positions = len(start.seen) + len(start.histories or ())
            n_bytes += n_positions * limits.EVENT_OBJECT_BYTES
        if not self.stream.hold(n_bytes):  # as long as it is connected
            return
        self._login.begin(name, token, functools.partial(self._accept, asked))

    def decline(self, reason: str) -> None:
        """Close the connection of a client that cannot be accepted; it is told the reason."""
        self._login.decline(reason)

    def _accept(self, asked: _Asked, admitted: Admitted) -> None:
        service, stream = self._service, self.stream
        try:
            wanted = Subscription(asked.subscriptions)
            subscription = admitted.rights.subscription.intersection(wanted)
        except InvalidEventError as e:
            self.decline(str(e))
            return
        wanted_filter = Filter(subscription, asked.server_id, asked.persisted)
        self.stream.client = admitted.name
        self._account = account = service.accounts.of(admitted.rights)
        self._belong_to_client(admitted.rights)
        if asked.start is not None and self._replay is None:
            self._replay = Replay(service, self, asked.start, wanted_filter)
            self._prepare_replay(self._replay, asked, admitted)
            return
        if refusal := account.refusal(len(asked.subscriptions)):
            self.decline(refusal)
            return
        if not stream.slot.establish():
            self.decline("too many connections")
            return
        stream.clear_first_deadline()
        self._proof = admitted.proof
        self._wanted = subscription if subscription == wanted else wanted  # usually one object
        self.is_persisted = asked.persisted
        self._filter = wanted_filter
        self.n_subscriptions = len(asked.subscriptions)
        service.clients.add(self)
        service.stats.clients += 1
        if self._replay is None:
            service.fanout.add(self, self._filter)
        else:
            self._replay.use(self._filter)
        account.join(self)
        self._use(admitted.rights)
        core = service.core
        n_resets = 0 if self._replay is None else self._replay.n_resets
        self._wire.send_accepted(core.status, core.extensions, core.histories, n_resets)
        if self._replay is not None:
            self._replay.begin()
        mlog.debug("client connected", extra=stream.log_extra)
        audit.info("connected", extra=stream.log_extra)
        service.core.announce(self._source, admitted.name, is_connected=True)

    def _belong_to_client(self, rights: Rights) -> None:
        """Whose turns and memory it takes from now on."""
        stream = self.stream
        stream.belong_to(stream.slot.address if rights.is_shared else self._account.name)

    def _use(self, rights: Rights) -> None:
        """What the client may do from now on."""
        self.rights = rights
        self._belong_to_client(rights)
        self.registrations.use(rights, self._account)
        self.queries.use(rights, self._account)
        self._wire.use_rights(rights)

    def _prepare_replay(self, replay: Replay, asked: _Asked, admitted: Admitted) -> None:
        """Find out whether a client can be told of what it missed, and then accept it."""
        if not asked.persisted:
            self.decline("start: expected with persisted events only")
        elif "replay" not in self._service.core.extensions:
            self.decline("start: this server does not keep events")
        else:
            self.stream.pause_reading(Pause.REPLAY)
            self._preparing = self._service.spawn(self._find_gaps(replay, asked, admitted))

    async def _find_gaps(self, replay: Replay, asked: _Asked, admitted: Admitted) -> None:
        assert asked.start is not None
        try:
            has_gaps = await replay.find_gaps()
            admitted = self._login.admitted_again(admitted)
        except DeclinedError as e:
            self._login.decline_later(e)
        except EventerBridgeError as e:
            self.decline(str(e))
        except Exception as e:
            self.stream.on_failed(e)
        else:
            if asked.start.cursor is not None and self.stream.tcp_state is not TcpState.OPEN:
                self.decline("cursor: the client is gone")
            elif has_gaps and asked.start.declines_gap:
                self.decline(f"start: {GAP_TEXT}")
            elif self.stream.close_reason is None:
                try:
                    self._accept(asked, admitted)
                except Exception as e:
                    self.stream.on_failed(e)
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
        account = service.accounts.of(rights)
        if account is not self._account:  # the server's clients have names now, or none any more
            self._account.leave(self)
            self._account = account
            account.join(self)
        self._use(rights)
        if subscription != self._filter.subscription:
            before, self._filter = self._filter, self._filter._replace(subscription=subscription)
            if self._replay is not None:
                self._replay.use(self._filter)
            else:
                service.fanout.remove(self, before)
                service.fanout.add(self, self._filter)

    def leave(self) -> None:
        """Its connection is closed."""
        self._login.end()
        self.queries.end()
        self.registrations.leave()
        if self._preparing is not None:
            self._preparing.cancel()
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
        # not within a notification, which this may be the end of
        asyncio.get_running_loop().call_soon(self._announce_gone)

    def _announce_gone(self) -> None:
        self.registrations.hand_over_gathered()  # which came before
        assert self.stream.client is not None
        self._service.core.announce(self._source, self.stream.client, is_connected=False)

    async def drain(self) -> None:
        """Answer the registrations that are under way, and take no more; bounded in time."""
        self.stream.pause_reading(Pause.CLOSING)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limits.DRAIN_TIMEOUT_S):
                await self.registrations.drain()

    # --- notifications (fanout.Receiver) ------------------------------------------------

    @property
    def account(self) -> Account:
        """What its client uses; from when it is admitted."""
        return self._account

    def notify(self, message: bytes, event_count: int, session: Session) -> None:
        """See ``fanout.Receiver``."""
        self._wire.send_notification(message)
        self._service.stats.events_notified += event_count
        self._account.n_notified += event_count

    def delay_queries(self, commit: asyncio.Future[None]) -> None:
        """See ``fanout.Receiver``."""
        self.queries.find(commit)

    def on_failed(self, error: Exception) -> None:
        """See ``fanout.Receiver``."""
        is_gap = isinstance(error, EventerBridgeError)  # else it is a bug of ours, or no memory
        reason = CloseReason.GAP if is_gap else CloseReason.INTERNAL_ERROR
        self.stream.close(reason, detail=str(error) or repr(error), level=logging.ERROR)

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

    def follows(self, server_id: int) -> bool:
        """See ``ServedClient``."""
        return self._replay is not None and self._replay.is_wanted(server_id)

    def notify_status(self, status: Status) -> None:
        """The status of the core is another one now."""
        try:
            self._wire.send_status(status)
        except Exception as e:
            self.on_failed(e)
