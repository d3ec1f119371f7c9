"""Eventer server: serves Hat's components from an event core (001).

It is an observer of the core: sessions go to the fan-out, the status to every client.
What flows through a client's connection::

    chatter ─▶ codec ─▶ MsgInitReq: rights, fan-out
                        MsgRegisterReq: rights ─▶ core ─▶ MsgRegisterRes, if asked for, in order;
                                        closed where the outcome is unknown
                        MsgQueryReq: one after the other, beside everything else;
                                     ended when the client goes

A connection is not read from while the core is full, or while too many of its registrations
or queries are under way; what chatter bounds comes on top of it.

Runs on the event loop's thread.
"""

import asyncio
import contextlib
import functools
import hmac
import logging
import ssl
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from hat import aio

from eventer_bridge import chatter, limits, slices
from eventer_bridge.backends.type_budget import TypeQuota
from eventer_bridge.core.base import EventCore
from eventer_bridge.core.fanout import Fanout, Filter
from eventer_bridge.core.rights import DeclinedError, Rights, everything
from eventer_bridge.core.session import Session
from eventer_bridge.errors import (
    ClosedError,
    EventerBridgeError,
    InvalidEventError,
    OutcomeUnknownError,
    RemoteProtocolError,
)
from eventer_bridge.eventer import codec
from eventer_bridge.eventer.encoding import (
    encoded_requested,
    is_answerable,
    notification,
    prepare,
)
from eventer_bridge.eventer.messages import (
    MsgEventsAck,
    MsgInitReq,
    MsgInitRes,
    MsgQueryReq,
    MsgRegisterReq,
    MsgStatusNotify,
    RefusedReq,
)
from eventer_bridge.excerpts import cut
from eventer_bridge.model import QueryParams, SourceType, Status
from eventer_bridge.net import Admission
from eventer_bridge.net.stats import ServerStats
from eventer_bridge.slices import Steps
from eventer_bridge.subscription import Subscription
from eventer_bridge.tls import peer_common_name

mlog = logging.getLogger(__name__)

_NOTIFY: Final = "HatEventer.MsgEventsNotify"
_REGISTER_REQ: Final = "HatEventer.MsgRegisterReq"
_QUERY_RES: Final = "HatEventer.MsgQueryRes"
_REGISTER_RES: Final = "HatEventer.MsgRegisterRes"

# why a connection is not read from
_CORE_FULL: Final = "core full"
_REGISTRATIONS_FULL: Final = "registrations full"
_QUERIES_FULL: Final = "queries full"
_DECLINED: Final = "declined"
_LARGE: Final = "a large message is dealt with"

_Registration: TypeAlias = tuple[Session | None, chatter.Conversation | None]
"""A session, or None for what is refused, and where it is to be answered."""

AuthenticateCb = Callable[[str, str | None, str | None], Rights]
"""Rights of a client by its name, token and certificate; raises ``DeclinedError``."""


def by_token(
    token: str | None, max_event_types: int = limits.MAX_CLIENT_EVENT_TYPES
) -> AuthenticateCb:
    """Everybody who gives this token may do everything; None: everybody who gives none.

    They make up their names, so that they are one client, whose rights and quota they share.

    A wrong token and a missing one are declined alike. 001 recommends to accept who gives
    none in any case; a token would protect nothing then.
    """
    rights = everything(TypeQuota("Eventer clients", max_event_types))

    def authenticate(name: str, given: str | None, certificate: str | None) -> Rights:
        expected = b"" if token is None else token.encode()
        same = hmac.compare_digest(b"" if given is None else given.encode(), expected)
        if not same or (given is None) is not (token is None):
            raise DeclinedError("invalid client token")
        if len(name) > limits.MAX_NAME_CHARACTERS:
            raise DeclinedError(
                f"client name has {len(name)} characters, at most {limits.MAX_NAME_CHARACTERS}"
                " are allowed"
            )
        return rights

    return authenticate


async def listen(
    core: EventCore,
    address: chatter.Address,
    authenticate: AuthenticateCb,
    *,
    tls: ssl.SSLContext | None = None,
    admission: Admission | None = None,
    observe_query: Callable[[QueryParams, float], None] = lambda params, seconds: None,
) -> "EventerServer":
    """Listen for Eventer clients.

    Args:
        core: answers registrations and queries; stays the caller's to close, after the
            server.
        address: where; port 0 takes a free one (see :attr:`EventerServer.address`).
        authenticate: :func:`by_token`, or ``Authenticator.authenticate``.
        tls: TLS context for all connections; None for plain TCP.
        admission: of the process; None: one of its own.
        observe_query: called after each query with its parameters and the seconds it took.

    Raises:
        OSError: the address cannot be listened on.
    """
    server = EventerServer(core, authenticate, observe_query)
    try:
        await server._listen(address, tls, admission)
    except BaseException:
        await aio.uncancellable(server.async_close())
        raise
    return server


class EventerServer(aio.Resource):
    """See the module. Made by :func:`listen`.

    Attributes:
        stats: counts of what was done so far.
        fanout: who hears of which events.
    """

    def __init__(
        self,
        core: EventCore,
        authenticate: AuthenticateCb,
        observe_query: Callable[[QueryParams, float], None],
    ) -> None:
        self.core = core
        self.authenticate = authenticate
        self.observe_query = observe_query
        self.fanout = Fanout(notification, prepare)
        self.stats = ServerStats()
        self._clients: set[_Client] = set()
        self._listener: chatter.Listener | None = None
        self._async_group = aio.Group()
        core.add_observer(self)
        self._async_group.spawn(aio.call_on_cancel, self._stop)

    @property
    def async_group(self) -> aio.Group:
        """Group of the server's tasks."""
        return self._async_group

    @property
    def address(self) -> chatter.Address:
        """What is listened on, with the port that was taken."""
        assert self._listener is not None
        return self._listener.address

    def on_session(self, session: Session, persisted: bool) -> None:
        """Notify clients (``core.Observer``)."""
        self.fanout.notify(session, persisted)

    def on_large_session(self, session: Session, persisted: bool) -> Steps[None]:
        """Notify clients (``core.PatientObserver``)."""
        return self.fanout.notify_in_steps(session, persisted)

    def on_status(self, status: Status) -> None:
        """Tell clients (``core.Observer``)."""
        for client in tuple(self._clients):
            try:
                client.notify_status(status)
            except Exception as e:
                client.on_failed(e)

    def add(self, client: "_Client") -> None:
        """A client is initialised."""
        self._clients.add(client)
        self.stats.clients += 1

    def discard(self, client: "_Client") -> None:
        """A client is gone."""
        self._clients.discard(client)
        self.stats.clients -= 1

    async def _listen(
        self,
        address: chatter.Address,
        tls: ssl.SSLContext | None,
        admission: Admission | None,
    ) -> None:
        self._listener = await chatter.listen(
            address,
            functools.partial(_Client, self),
            tls=tls,
            admission=admission,
            stats=self.stats,
        )

    async def _stop(self) -> None:
        if self._listener is not None:
            self._listener.stop_accepting()
            await asyncio.gather(*(client.drain() for client in tuple(self._clients)))
            await self._listener.async_close()
        self.core.remove_observer(self)


class _Client(chatter.Handler):
    """One client's connection."""

    def __init__(self, server: EventerServer, connection: chatter.Connection) -> None:
        self._server = server
        self._connection = connection
        self._source = server.core.create_source(SourceType.CONNECTION)
        self._rights: Rights | None = None
        self._large_bytes = limits.LARGE_MESSAGE_BYTES
        self._filter: Filter | None = None
        self._name: str | None = None
        self._unanswered: deque[_Registration] = deque()
        self._awaited_commit: asyncio.Future[None] | None = None
        self._answering: set[asyncio.Task[None]] = set()
        self._queries: deque[tuple[chatter.Conversation, QueryParams]] = deque()
        self._is_querying = False
        self._heard: list[asyncio.Future[None]] = []  # commits of large sessions
        # what came behind a large message that is dealt with; None: there is none
        self._behind: deque[chatter.Message] | None = None
        self._taking_in: asyncio.Task[None] | None = None
        self._ack: chatter.Conversation | None = None
        self._delayed: asyncio.TimerHandle | None = None

    # --- chatter.Handler ----------------------------------------------------------------

    def on_message(self, message: chatter.Message) -> None:
        """A message came."""
        self._server.stats.frames_in += 1
        if self._behind is not None:
            self._behind.append(message)
        elif (
            len(message.data) > self._large_bytes
            and message.type == _REGISTER_REQ
            and self._rights is not None
        ):
            self._behind = deque()
            self._connection.pause_reading(_LARGE)
            # a task of its own: what was accepted is answered also when the server closes
            self._taking_in = asyncio.get_running_loop().create_task(self._take_in(message))
        else:
            self._handle(message)

    def _handle(self, message: chatter.Message) -> None:
        decoded = codec.decode(message.type, message.data)
        if self._rights is None:
            self._on_first(message, decoded)
            return
        match decoded:
            case MsgRegisterReq():
                self._on_register(message, decoded)
            case MsgQueryReq():
                self._on_query(message, decoded.params)
            case MsgEventsAck():
                self._on_ack(message)
            case RefusedReq() if decoded.message_type is MsgRegisterReq:
                self._refuse(message, decoded.reason, "invalid message")
            case RefusedReq():
                raise RemoteProtocolError(decoded.reason)
            case _:
                raise RemoteProtocolError(f"{message.type} is not expected now")

    def on_closed(self, reason: str) -> None:
        """The connection is gone."""
        self._server.stats.closed[reason] += 1
        if self._delayed is not None:
            self._delayed.cancel()
        self._queries.clear()
        if self._filter is None:
            return
        self._server.fanout.remove(self, self._filter)
        self._server.discard(self)
        self._filter = None
        assert self._name is not None
        announce = functools.partial(self._server.core.announce, is_connected=False)
        # not within a notification, which this may be the end of
        asyncio.get_running_loop().call_soon(announce, self._source, self._name)

    # --- what the server calls ----------------------------------------------------------

    def notify(self, message: bytes, event_count: int) -> None:
        """Send a notification (``fanout.Receiver``).

        Who asked for persisted events keeps them: it is asked now and then to say that it
        has them, and closed if it does not.
        """
        assert self._filter is not None
        if not self._filter.persisted or self._ack is not None:
            self._tell(_NOTIFY, message)
        else:
            self._ack = self._send(_NOTIFY, message, last=False, timeout_s=limits.ACK_TIMEOUT_S)
        self._server.stats.events_notified += event_count

    def heard_of(self, commit: asyncio.Future[None]) -> None:
        """See ``fanout.Receiver``."""
        self._heard = [i for i in self._heard if not i.done()] + [commit]

    def on_failed(self, error: Exception) -> None:
        """See ``fanout.Receiver``."""
        self._connection.close("internal error", detail=str(error), level=logging.ERROR)

    def notify_status(self, status: Status) -> None:
        """Tell the client of the server's status."""
        self._tell(*codec.encode(MsgStatusNotify(status)))

    async def drain(self) -> None:
        """Wait until registrations under way are answered, with a bound."""
        self._connection.pause_reading("closing")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limits.DRAIN_TIMEOUT_S):
                if self._taking_in is not None:
                    await asyncio.wait([self._taking_in])
                while self._unanswered:
                    head, _ = self._unanswered[0]
                    if head is None or head.committed.done():
                        await asyncio.sleep(0)
                    else:
                        await asyncio.wait([head.committed])

    # --- messages -----------------------------------------------------------------------

    def _on_first(self, message: chatter.Message, decoded: object) -> None:
        if isinstance(decoded, RefusedReq) and decoded.message_type is MsgInitReq:
            self._decline(message, decoded.reason)
        elif isinstance(decoded, MsgInitReq):
            self._on_init(message, decoded)
        else:
            raise RemoteProtocolError(f"{message.type} came first, expected MsgInitReq")

    def _on_init(self, message: chatter.Message, request: MsgInitReq) -> None:
        if message.is_last:
            raise RemoteProtocolError("MsgInitReq ends its conversation, expected an open one")
        certificate = peer_common_name(self._connection.ssl_object)
        try:
            rights = self._server.authenticate(
                request.client_name, request.client_token, certificate
            )
            asked = Subscription(request.subscriptions)
        except DeclinedError as e:
            delay_s = self._connection.place.login_failed()
            self._decline_later(delay_s, message, str(e), request.client_name)
            return
        except InvalidEventError as e:
            self._decline(message, str(e), request.client_name)
            return
        if not self._connection.place.establish():
            self._decline(message, "too many connections", request.client_name)
            return
        self._rights = rights
        self._large_bytes = min(limits.LARGE_MESSAGE_BYTES, rights.inline_bytes)
        self._name = request.client_name
        subscription = asked.intersection(rights.subscription)
        self._filter = Filter(subscription, request.server_id, request.persisted)
        core = self._server.core
        self._server.add(self)
        self._server.fanout.add(self, self._filter)
        response = codec.encode(MsgInitRes(core.status))
        self._send(*response, conversation=message.conversation)
        extra = {"peer": self._connection.peer, "client": self._name}
        mlog.debug("client connected", extra=extra)
        core.announce(self._source, self._name, is_connected=True)

    def _decline_later(
        self, delay_s: float, message: chatter.Message, reason: str, name: str
    ) -> None:
        """Decline after a while, in which the client is not heard."""
        if not delay_s:
            self._decline(message, reason, name)
            return
        self._connection.pause_reading(_DECLINED)
        loop = asyncio.get_running_loop()
        self._delayed = loop.call_later(delay_s, self._decline, message, reason, name)

    def _decline(self, message: chatter.Message, reason: str, name: str | None = None) -> None:
        self._server.stats.declined += 1
        reason = cut(reason)
        if not message.is_last:
            response = codec.encode(MsgInitRes(None, reason))
            self._send(*response, conversation=message.conversation)
        # the client gets time to read why, and to close first (001)
        self._connection.close(
            "declined",
            detail=f"{cut(name)!r}: {reason}" if name is not None else reason,
            level=logging.WARNING,
            linger_s=limits.DECLINED_LINGER_S,
        )

    async def _take_in(self, message: chatter.Message) -> None:
        """Deal with a large registration, in its turn among those of all clients."""
        assert self._behind is not None
        try:
            async with self._server.core.lane:
                await slices.next_turn()  # it took long to come in
                if self._connection.close_reason is None:
                    await self._handle_large(message)
            while self._behind and self._connection.close_reason is None:
                self._handle(self._behind.popleft())
        except RemoteProtocolError as e:
            self._connection.close("protocol error", detail=str(e), level=logging.WARNING)
        except Exception as e:
            mlog.exception("large message failed", extra={"peer": self._connection.peer})
            self._connection.close("internal error", detail=str(e), level=logging.ERROR)
        self._behind = self._taking_in = None
        self._connection.resume_reading(_LARGE)

    async def _handle_large(self, message: chatter.Message) -> None:
        assert self._rights is not None
        request = await slices.run(codec.decode_register_req(message.data))
        if isinstance(request, RefusedReq):
            self._refuse(message, request.reason, "invalid message")
            return
        refusal = await self._rights.refusal_of_large(request.register_events)
        session = self._register(message, request, refusal)
        if session is not None and session.is_large:
            await self._answer_large(session)

    async def _answer_large(self, session: Session) -> None:
        await asyncio.wait([session.committed])
        if session.committed.exception() is None:
            await slices.run(prepare(session))
        self._answer_ended()

    def _on_register(self, message: chatter.Message, request: MsgRegisterReq) -> None:
        assert self._rights is not None
        refusal = self._rights.refusal(request.register_events)
        session = self._register(message, request, refusal)
        if session is not None and session.is_large:  # many, but short events
            # a task of its own: what was accepted is answered also when the server closes
            task = asyncio.get_running_loop().create_task(self._answer_large(session))
            self._answering.add(task)
            task.add_done_callback(self._answering.discard)

    def _register(
        self, message: chatter.Message, request: MsgRegisterReq, refusal: str | None
    ) -> Session | None:
        assert self._rights is not None
        if refusal is not None:
            self._refuse(message, refusal, "rights or schema")
            return None
        core = self._server.core
        try:
            session = core.register(self._source, request.register_events, self._rights.type_quota)
        except EventerBridgeError as e:
            self._refuse(message, str(e), type(e).__name__)
            return None
        self._unanswered.append((session, None if message.is_last else message.conversation))
        if session.is_large:
            pass  # answered when it is encoded
        elif session.committed is not self._awaited_commit:
            # sessions that are committed together are answered together
            self._awaited_commit = session.committed
            session.committed.add_done_callback(self._answer_ended)
        if len(self._unanswered) >= limits.MAX_REGISTRATIONS_IN_FLIGHT:
            self._connection.pause_reading(_REGISTRATIONS_FULL)
        if core.is_full:
            self._connection.pause_reading(_CORE_FULL)
            core.when_drained(lambda: self._connection.resume_reading(_CORE_FULL))
        return session

    def _refuse(self, message: chatter.Message, reason: str, kind: str) -> None:
        """Refuse a registration, after those that came before it were answered.

        The protocol does not say why, so the log does.
        """
        self._server.stats.rejected[kind] += 1
        extra = {"peer": self._connection.peer, "client": self._name, "reason": cut(reason)}
        mlog.info("registration refused", extra=extra)
        if not message.is_last:
            self._unanswered.append((None, message.conversation))
            self._answer_ended()

    def _answer_ended(self, _: object = None) -> None:
        unanswered = self._unanswered
        while unanswered:
            session, conversation = unanswered[0]
            if session is None:
                self._send(_REGISTER_RES, codec.REGISTER_FAILURE, conversation=conversation)
            elif not session.committed.done() or (session.is_large and not is_answerable(session)):
                break
            elif error := session.committed.exception():
                self._on_failed(error, conversation)
            else:
                self._on_registered(session, conversation)
            unanswered.popleft()
        if len(unanswered) <= limits.MAX_REGISTRATIONS_IN_FLIGHT // 2:
            self._connection.resume_reading(_REGISTRATIONS_FULL)

    def _on_registered(self, session: Session, conversation: chatter.Conversation | None) -> None:
        self._server.stats.events_registered += session.requested
        if conversation is not None:
            response = codec.encode_register_success(encoded_requested(session))
            self._send(_REGISTER_RES, response, conversation=conversation)

    def _on_failed(self, error: BaseException, conversation: chatter.Conversation | None) -> None:
        if isinstance(error, OutcomeUnknownError):
            self._server.stats.outcome_unknown += 1
            if conversation is not None:
                # an answer is either "registered" or "refused": no answer is what says it
                self._connection.close(
                    "outcome unknown", detail=cut(str(error)), level=logging.WARNING
                )
            return
        self._server.stats.rejected[type(error).__name__] += 1
        extra = {"peer": self._connection.peer, "client": self._name, "reason": cut(str(error))}
        mlog.info("registration failed", extra=extra)
        if conversation is not None:
            self._send(_REGISTER_RES, codec.REGISTER_FAILURE, conversation=conversation)

    def _on_ack(self, message: chatter.Message) -> None:
        if message.conversation is self._ack:
            self._ack = None
            self._connection.end(message.conversation)
        elif not message.is_last:
            raise RemoteProtocolError(f"{message.type} begins a conversation, and does not end it")

    def _on_query(self, message: chatter.Message, params: QueryParams) -> None:
        if message.is_last:
            raise RemoteProtocolError("MsgQueryReq ends its conversation, expected an open one")
        self._queries.append((message.conversation, params))
        if len(self._queries) >= limits.MAX_QUERIES_WAITING:
            self._connection.pause_reading(_QUERIES_FULL)
        if not self._is_querying:
            self._is_querying = True
            self._connection.async_group.spawn(self._answer_queries)

    async def _answer_queries(self) -> None:
        # one after the other, and the next only when the answer before it has left
        loop = asyncio.get_running_loop()
        try:
            while self._queries:
                await self._connection.drain()
                conversation, params = self._queries[0]
                started = loop.time()
                with contextlib.ExitStack() as holding:
                    await self._answer(conversation, params, holding)
                if not self._queries:  # the connection was closed meanwhile
                    break
                self._server.observe_query(params, loop.time() - started)
                self._queries.popleft()
                self._connection.resume_reading(_QUERIES_FULL)
        except ClosedError:
            self._connection.close("query failed", detail="closed")
        except EventerBridgeError as e:
            self._connection.close("query failed", detail=str(e), level=logging.WARNING)
        except Exception as e:
            mlog.exception("query failed", extra={"peer": self._connection.peer})
            self._connection.close("internal error", detail=str(e), level=logging.ERROR)
        finally:
            self._is_querying = False

    async def _answer(
        self, conversation: chatter.Conversation, params: QueryParams, holding: contextlib.ExitStack
    ) -> None:
        assert self._rights is not None
        assert self._name is not None
        subscription = self._rights.subscription
        result = await self._server.core.query(
            params,
            None if subscription.is_everything else subscription,
            self._name,
            self._commits_to_find(),
            holding,
        )
        steps = codec.encode_query_result(result)
        del result  # it may be large
        self._send(_QUERY_RES, await slices.run(steps), conversation=conversation)

    def _commits_to_find(self) -> list[asyncio.Future[None]]:
        """Of what it registered last, or heard of before it was committed."""
        for session, _ in reversed(self._unanswered):
            if session is not None:
                return [session.committed, *self._heard]
        return self._heard

    def _tell(self, msg_type: str, data: bytes) -> None:
        """Send what is not answered, if the client is still there."""
        if self._connection.close_reason is None:
            self._server.stats.frames_out += 1
            self._connection.tell(msg_type, data)

    def _send(
        self,
        msg_type: str,
        data: bytes | Sequence[bytes],
        *,
        conversation: chatter.Conversation | None = None,
        last: bool = True,
        timeout_s: float | None = None,
    ) -> chatter.Conversation | None:
        """Send, if the client is still there and waits for it."""
        if self._connection.close_reason is not None:
            return None
        if conversation is not None and not conversation.may_send:
            return None
        self._server.stats.frames_out += 1
        return self._connection.send(
            msg_type, data, conversation=conversation, last=last, timeout_s=timeout_s
        )
