"""A client of a core, for any wire.

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
import functools
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from typing_extensions import override

from eventer_bridge import limits
from eventer_bridge.core.authentication import Admitted, DeclinedError, Login
from eventer_bridge.core.client_queries import ClientQueries
from eventer_bridge.core.client_registrations import ClientRegistrations
from eventer_bridge.core.client_service import ClientService, ClientWire, ServedClient
from eventer_bridge.core.fanout import Filter
from eventer_bridge.core.quotas import Account
from eventer_bridge.core.replay import GAP_TEXT, Replay, ReplayingClient, Start
from eventer_bridge.core.rights import Rights
from eventer_bridge.core.tokens import TokenHash
from eventer_bridge.errors import (
    EventerBridgeError,
    InvalidEventError,
    Outcome,
    RemoteProtocolError,
    outcome_of,
)
from eventer_bridge.memory import subscription_bytes
from eventer_bridge.model import EventId, EventType, SourceType, Status, cut
from eventer_bridge.net.sockets import TcpState
from eventer_bridge.net.stats import CloseReason
from eventer_bridge.net.stream import Pause, Stream
from eventer_bridge.packed import Batch
from eventer_bridge.resources import in_time
from eventer_bridge.subscription import Subscription

mlog = logging.getLogger(__name__)
audit = logging.getLogger("audit")


class ClientLogin:
    """Admits or declines a client, at once or after a while.

    A client whose name or token is wrong waits longer for each answer, and is not read meanwhile.
    """

    __slots__ = ("_checking", "_delayed", "_service", "_stream", "_wire")

    def __init__(self, service: ClientService, stream: Stream[Any], wire: ClientWire[Any]) -> None:
        self._service = service
        self._stream = stream
        self._wire = wire
        self._checking: asyncio.Task[None] | None = None
        self._delayed: asyncio.TimerHandle | None = None

    @property
    def is_checking(self) -> bool:
        """Whether its token is being checked."""
        return self._checking is not None

    def begin(self, name: str, token: str | None, accept: Callable[[Admitted], None]) -> None:
        """Authenticate a client by what it sent (no token: None); ``accept`` is called if it is."""
        stream = self._stream
        stream.client = cut(name)
        authenticator = self._service.authenticator
        try:
            names = authenticator.names_of(stream.ssl_object)
            login = Login(name, token, names, stream.slot.address)
            admitted = authenticator.authenticate(login)
        except DeclinedError as e:
            self.decline_later(e)
            return
        if isinstance(admitted, Admitted):
            accept(admitted)
        else:
            stream.pause_reading(Pause.LOGIN)
            self._checking = self._service.spawn(self._check(admitted, accept))

    async def _check(self, login: Awaitable[Admitted], accept: Callable[[Admitted], None]) -> None:
        """Accept or decline a client whose token needs a slow check; ends if it disconnects."""
        try:
            admitted = self.admitted_again(await login)
        except DeclinedError as e:
            self.decline_later(e)
        except Exception as e:
            self._stream.on_failed(e)
        else:
            accept(admitted)
        self._checking = None
        self._stream.resume_reading(Pause.LOGIN)

    def admitted_again(self, admitted: Admitted) -> Admitted:
        """Admit a client again, or raise ``DeclinedError``: the configuration may have changed."""
        rights = self._service.authenticator.readmit(
            admitted.name, admitted.proof, self._stream.ssl_object
        )
        return admitted._replace(rights=rights)

    def decline(self, reason: str, cause: str | None = None, *, may_pass: bool = False) -> None:
        """Close the connection of a client that cannot be accepted; ``cause`` is for the log.

        ``may_pass``: the reason may; whoever reconnects is told so.
        """
        if self._stream.close_reason is not None:
            return
        self._service.stats.declined += 1
        reason = cut(reason)
        self._wire.send_declined(reason, may_pass=may_pass)
        detail = reason if cause is None else f"{reason}: {cause}"
        audit.info("declined", extra={**self._stream.log_extra, "reason": detail})
        # the client gets time to read why, and to close first (001)
        self._stream.close(
            CloseReason.DECLINED,
            detail=detail,
            level=logging.WARNING,
            linger_s=limits.DECLINED_LINGER_S,
        )

    def decline_later(self, error: DeclinedError) -> None:
        """Decline at once or, if it guesses, after a delay during which it is not read."""
        delay_s = self._stream.slot.login_failed()
        if not delay_s:
            self.decline(str(error), error.cause, may_pass=error.may_pass)
            return
        self._stream.pause_reading(Pause.DECLINED)
        declining = functools.partial(self.decline, may_pass=error.may_pass)
        self._delayed = asyncio.get_running_loop().call_later(
            delay_s, declining, str(error), error.cause
        )

    def end(self) -> None:
        """The client is gone."""
        if self._delayed is not None:
            self._delayed.cancel()
        if self._checking is not None:
            self._checking.cancel()


RequestT = TypeVar("RequestT")


class _Request(NamedTuple):
    """The request of a client for notifications."""

    subscriptions: Sequence[EventType]
    server_id: int | None
    persisted: bool
    start: Start | None


class ClientSession(ServedClient, ReplayingClient, Generic[RequestT]):
    """One client, from its connection on.

    The wire lets go of it when the connection is gone (``Stream.on_closed``): they would hold each
    other until garbage is collected. ``rights`` are None until it is accepted. ``is_persisted``: it
    is notified of events when they are durable, not before. ``wanted`` is what it subscribed to,
    with ``n_subscriptions`` query types.
    """

    __slots__ = (
        "_filter",
        "_login",
        "_preparing",
        "_proof",
        "_replay",
        "_service",
        "_source",
        "_wire",
        "account",
        "is_persisted",
        "n_subscriptions",
        "queries",
        "registrations",
        "rights",
        "stream",
        "wanted",
    )

    stream: Stream[Any]

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
        self.account: Account  # from when it is admitted
        self._proof: TokenHash | None = None
        self._filter: Filter | None = None  # what it wanted, within its rights
        self.wanted: Subscription
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
        """Process its first message (001, ``MsgInitReq``; 002, ``init_req``).

        It is accepted or declined at once, or later if it guesses names or tokens, or requests
        missed events (``start``).
        """
        request = _Request(subscriptions, server_id, persisted, start)
        n_bytes = self.stream.take_bytes() + subscription_bytes(subscriptions)
        if start is not None:
            n_positions = len(start.seen) + len(start.histories or ())
            n_bytes += n_positions * limits.EVENT_OBJECT_BYTES
        if not self.stream.hold(n_bytes):  # as long as it is connected
            return
        self._login.begin(name, token, functools.partial(self._accept, request))

    def decline(self, reason: str, *, may_pass: bool = False) -> None:
        """Send a reason, and whether it may pass, and close the connection."""
        self._login.decline(reason, may_pass=may_pass)

    def _accept(self, request: _Request, admitted: Admitted) -> None:
        service, stream = self._service, self.stream
        try:
            wanted = Subscription(request.subscriptions)
            subscription = admitted.rights.subscription.intersection(wanted)
        except InvalidEventError as e:
            self.decline(str(e))
            return
        wanted_filter = Filter(subscription, request.server_id, request.persisted)
        self.stream.client = admitted.name
        self.account = account = service.accounts.of(admitted.rights)
        self._belong_to_client(admitted.rights)
        if request.start is not None and self._replay is None:
            self._replay = Replay(service, self, request.start, wanted_filter)
            self._prepare_replay(self._replay, request, admitted)
            return
        if refusal := account.refusal(len(request.subscriptions)):
            self.decline(refusal, may_pass=True)
            return
        if not stream.slot.establish():
            self.decline("too many connections", may_pass=True)
            return
        stream.clear_first_deadline()
        self._proof = admitted.proof
        self.wanted = subscription if subscription == wanted else wanted  # usually one object
        self.is_persisted = request.persisted
        self._filter = wanted_filter
        self.n_subscriptions = len(request.subscriptions)
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
        """Set the owner of its turns and memory."""
        stream = self.stream
        stream.belong_to(stream.slot.address if rights.is_shared else self.account.name)

    def _use(self, rights: Rights) -> None:
        """Set the rights of the client."""
        self.rights = rights
        self._belong_to_client(rights)
        self.registrations.use(rights, self.account)
        self.queries.use(rights, self.account)
        self._wire.use_rights(rights)

    def _prepare_replay(self, replay: Replay, request: _Request, admitted: Admitted) -> None:
        """Look for gaps in the events that a client missed, and accept it."""
        if not request.persisted:
            self.decline("start: expected with persisted events only")
        elif "replay" not in self._service.core.extensions:
            self.decline("start: this server does not keep events")
        else:
            self.stream.pause_reading(Pause.REPLAY)
            self._preparing = self._service.spawn(self._find_gaps(replay, request, admitted))

    async def _find_gaps(self, replay: Replay, request: _Request, admitted: Admitted) -> None:
        assert request.start is not None
        try:
            has_gaps = await replay.find_gaps()
            admitted = self._login.admitted_again(admitted)
        except DeclinedError as e:
            self._login.decline_later(e)
        except EventerBridgeError as e:
            text = self._service.core.text_for_client(e)
            self.decline(text, may_pass=outcome_of(e) is Outcome.UNAVAILABLE)
        except Exception as e:
            self.stream.on_failed(e)
        else:
            if request.start.cursor is not None and self.stream.tcp_state is not TcpState.OPEN:
                self.decline("cursor: the client is gone", may_pass=True)
            elif has_gaps and request.start.declines_gap:
                self.decline(f"start: {GAP_TEXT}")
            elif self.stream.close_reason is None:
                try:
                    self._accept(request, admitted)
                except Exception as e:
                    self.stream.on_failed(e)
        self._preparing = None
        self.stream.resume_reading(Pause.REPLAY)

    @override
    def readmit(self) -> None:
        """Apply the rights of a new configuration, or close if it does not admit the client.

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
            subscription = rights.subscription.intersection(self.wanted)
        except (DeclinedError, InvalidEventError) as e:
            detail = e.cause if isinstance(e, DeclinedError) else str(e)
            stream.close(CloseReason.REMOVED, detail=detail, level=logging.WARNING)
            audit.info("removed", extra={**stream.log_extra, "reason": detail})
            return
        account = service.accounts.of(rights)
        if account is not self.account:  # the server's clients have names now, or none any more
            self.account.leave(self)
            self.account = account
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
        """The connection closed."""
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
        self.account.leave(self)
        self._filter = None
        # not within a notification, which this may be the end of
        asyncio.get_running_loop().call_soon(self._announce_gone)

    def _announce_gone(self) -> None:
        self.registrations.hand_over_gathered()  # which came before
        assert self.stream.client is not None
        self._service.core.announce(self._source, self.stream.client, is_connected=False)

    @override
    async def drain(self) -> None:
        self.stream.pause_reading(Pause.CLOSING)
        await in_time(self.registrations.drain(), limits.DRAIN_TIMEOUT_S)

    # --- notifications (fanout.Receiver) ------------------------------------------------

    @override
    def notify(self, message: bytes, event_count: int, session: Batch) -> None:
        self._wire.send_notification(message)
        self._service.stats.events_notified += event_count
        self.account.n_notified += event_count

    @override
    def delay_queries(self, commit: asyncio.Future[None]) -> None:
        self.queries.find(commit)

    @override
    def on_failed(self, error: Exception) -> None:
        is_gap = isinstance(error, EventerBridgeError)  # else it is a bug of ours, or no memory
        reason = CloseReason.GAP if is_gap else CloseReason.INTERNAL_ERROR
        self.stream.close(reason, detail=str(error) or repr(error), level=logging.ERROR)

    def acknowledge(
        self, ids: Sequence[EventId], parked: Sequence[tuple[EventId, str]], done: Sequence[EventId]
    ) -> None:
        """See ``Replay.acknowledge``."""
        if self._replay is None:
            raise RemoteProtocolError("events_ack: this client has no cursor")
        self._replay.acknowledge(ids, parked, done)

    @override
    def follows(self, server_id: int) -> bool:
        return self._replay is not None and self._replay.is_wanted(server_id)

    @override
    def notify_status(self, status: Status) -> None:
        try:
            self._wire.send_status(status)
        except Exception as e:
            self.on_failed(e)
