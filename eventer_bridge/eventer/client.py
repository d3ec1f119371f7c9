"""Eventer client: one connection to an Event Server (001).

Any number of requests may be in progress; each is a chatter conversation, whose answer
resolves a future. It does not reconnect; ``feed`` does.

Everything runs on the event loop's thread.
"""

import asyncio
import functools
import logging
import ssl
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Protocol, TypeAlias

import msgspec
from typing_extensions import override

from eventer_bridge import chatter, limits, payloads, slices
from eventer_bridge.core.validation import check_payload_in_steps
from eventer_bridge.errors import (
    ClosedError,
    ConnectError,
    InitError,
    InvalidEventError,
    OutcomeUnknownError,
    RegisterError,
    RemoteProtocolError,
)
from eventer_bridge.eventer import codec
from eventer_bridge.eventer.messages import (
    Message,
    MsgEventsAck,
    MsgEventsNotify,
    MsgInitReq,
    MsgInitRes,
    MsgQueryReq,
    MsgQueryRes,
    MsgRegisterReq,
    MsgRegisterRes,
    MsgStatusNotify,
    RefusedEvent,
)
from eventer_bridge.model import (
    INT64_MAX,
    Event,
    EventId,
    EventType,
    JsonPayload,
    QueryLatestParams,
    QueryParams,
    QueryResult,
    QueryServerParams,
    QueryTimeseriesParams,
    RegisterEvent,
    Status,
    cut,
)
from eventer_bridge.net import limits as net_limits
from eventer_bridge.net.stats import CloseReason
from eventer_bridge.net.stream import Pause
from eventer_bridge.resources import Resource, uncancellable
from eventer_bridge.slices import Steps, parts

mlog = logging.getLogger(__name__)

EventsCb: TypeAlias = Callable[[Sequence[Event]], "asyncio.Future[None] | None"]
"""Called with the events of each notification. If the server requests an acknowledgement, it is
sent when the returned future is done; at once for None."""

StatusCb: TypeAlias = Callable[[Status], None]
"""Called when the server's status changes."""


class ConnectCb(Protocol):
    """Connects to a certain server: :func:`connect` with some arguments bound."""

    def __call__(
        self,
        *,
        subscriptions: Iterable[EventType] = (),
        server_id: int | None = None,
        persisted: bool = False,
        on_events: EventsCb = ...,
        on_status: StatusCb = ...,
        response_timeout_s: float = limits.RESPONSE_TIMEOUT_S,
    ) -> "Awaitable[EventerClient]":
        """See :func:`connect`."""


async def connect(
    address: chatter.Address,
    client_name: str,
    *,
    client_token: str | None = None,
    subscriptions: Iterable[EventType] = (),
    server_id: int | None = None,
    persisted: bool = False,
    keeps_bounds: bool = False,
    on_events: EventsCb = lambda events: None,
    on_status: StatusCb = lambda status: None,
    tls: ssl.SSLContext | None = None,
    dialect: chatter.Dialect = chatter.Dialect.CURRENT,
    connect_timeout_s: float = net_limits.CONNECT_TIMEOUT_S,
    response_timeout_s: float = limits.RESPONSE_TIMEOUT_S,
) -> "EventerClient":
    """Connect to an Event Server.

    Args:
        client_name: by convention ``<type>/<name>``.
        subscriptions, server_id: which events to be notified of; None: those of all servers.
        persisted: be notified of events that are durable; else as soon as they are registered.
        keeps_bounds: for callers that store or forward events: skip those that may not be
            registered here (:func:`sift`), and hold no more memory than the account has.
        on_events, on_status: see their types; must not block or raise.
        tls, dialect: see ``chatter.connect``.
        connect_timeout_s: time limit for everything up to the server's first answer.
        response_timeout_s: time limit for each answer; exceeding it ends the connection.

    Raises:
        ConnectError: no connection, or no answer in time.
        InitError: the server declined; the text is its reason.
        ProtocolError: the server does not speak Eventer.
        ClosedError: the server closed the connection.
    """
    request = MsgInitReq(
        client_name, client_token, tuple(map(tuple, subscriptions)), server_id, persisted
    )
    timeout = asyncio.timeout(connect_timeout_s)
    connection = None
    try:
        async with timeout:
            connection, client = await chatter.connect(
                address,
                functools.partial(EventerClient, on_events, on_status, keeps_bounds, persisted),
                tls=tls,
                dialect=dialect,
                connect_timeout_s=connect_timeout_s,
                conversation_timeout_s=response_timeout_s,
            )
            if keeps_bounds:
                connection.belong_to(f"server {address}")
            response = await client.request(request)
        assert isinstance(response, MsgInitRes)
        if response.status is None:
            raise InitError(f"{address}: {cut(response.error)}")
        return client
    except BaseException as e:
        if connection is not None:
            await uncancellable(connection.async_close())
        if isinstance(e, TimeoutError) and timeout.expired():
            what = "no connection" if connection is None else "no answer to MsgInitReq"
            raise ConnectError(f"{address}: {what} within {connect_timeout_s:g} s") from None
        raise


class EventerClient(chatter.Handler, Resource):
    """See the module. Created by :func:`connect`; the handler of its connection's messages.

    ``status`` is the server's last known one; ``refused_events`` counts received events that are
    not valid here.
    """

    def __init__(
        self,
        on_events: EventsCb,
        on_status: StatusCb,
        keeps_bounds: bool,
        persisted: bool,
        connection: chatter.Connection,
    ) -> None:
        self._on_events = on_events
        self._on_status = on_status
        self._keeps_bounds = keeps_bounds
        self.persisted = persisted
        self._connection = connection
        self.async_group = connection.async_group
        self._loop = asyncio.get_running_loop()
        self._requests: dict[asyncio.Future[Any], type[Message]] = {}  # with their answers
        # a large message in progress and the messages behind it; None: there is none
        self._queued: deque[chatter.Message] | None = None
        self.status = _NOT_INITIALISED
        self.refused_events = 0
        self._last_refused: dict[int, EventId] = {}

    def last_refused(self, server_id: int) -> EventId | None:
        """The last skipped event of each server, in notifications and server queries."""
        return self._last_refused.get(server_id)

    @property
    def peer(self) -> str:
        """Address of the server, as logs name it."""
        return self._connection.peer

    @property
    def close_reason(self) -> str | None:
        """Why the connection is closed; None while it is open."""
        return self._connection.close_text

    def register(self, events: Sequence[RegisterEvent]) -> asyncio.Future[Sequence[Event]]:
        """Register events as one session; returns the created events, in the order given.

        Fails with ``RegisterError`` if the server refuses, and with ``OutcomeUnknownError`` if the
        connection is lost before it answers. Raises ``ClosedError`` (closed; nothing was sent),
        ``LimitError`` (too many requests are in progress) or ``InvalidEventError`` (an event cannot
        be encoded).
        """
        conversation = self._connection.send(*codec.encode(MsgRegisterReq(events)), last=False)
        return self._expect(conversation, MsgRegisterRes, [event.type for event in events])

    def register_only(self, events: Sequence[RegisterEvent]) -> None:
        """Register events without asking for an answer; raises as :meth:`register`."""
        self._connection.send(*codec.encode(MsgRegisterReq(events)))

    async def query(self, params: QueryParams) -> QueryResult:
        """Query events.

        Events that are not valid here are skipped, and counted. If that leaves an answer empty,
        the next one is requested: a caller that pages by the last event could not. Raises as
        :meth:`register`; ``ClosedError``, if the connection was lost meanwhile, too, and
        ``RemoteProtocolError`` (the server answers without end, and with no event).
        """
        deleted: EventId | None = None
        for _ in range(limits.MAX_REFUSED_PAGES):
            try:
                response = await self.request(MsgQueryReq(params))
            except ClosedError as e:
                # the query may be the reason: hat-event closes at a query that fails
                raise ClosedError(f"{e}, at a {_QUERY_NAMES[type(params)]} query") from e
            assert isinstance(response, MsgQueryRes)
            result, refused = response.result, response.refused
            if isinstance(params, QueryServerParams):
                self._pass_over(refused)
            deleted = max((i for i in (deleted, result.deleted) if i is not None), default=None)
            if not refused or result.events or not result.more_follows:
                return msgspec.structs.replace(result, deleted=deleted)
            params = msgspec.structs.replace(params, last_event_id=refused[-1].id)
        raise RemoteProtocolError("answers without progress")

    async def first_event(self, server_id: int, session_id: int) -> Event | None:
        """The first event of a server in or after a session, durable or not; see :meth:`query`."""
        before = EventId(server_id, session_id - 1, INT64_MAX)
        params = QueryServerParams(server_id, max_results=1, last_event_id=before)
        for event in (await self.query(params)).events:
            if event.id.server != server_id or event.id <= before:
                raise RemoteProtocolError(f"answer with event {event.id} after {before}")
            return event
        return None

    async def ping(self) -> float:
        """Ping the server (chatter's ping): seconds of the round trip, or ``ClosedError``."""
        return await self._connection.ping()

    async def drain(self) -> None:
        """Wait until the server has read enough, or raise ``ClosedError``."""
        await self._connection.drain()

    def set_reading(self, is_reading: bool) -> None:
        """Resume reading, or hold the server back."""
        if is_reading:
            self._connection.resume_reading(Pause.USER)
        else:
            self._connection.pause_reading(Pause.USER)

    async def request(self, message: MsgInitReq | MsgQueryReq) -> Message:
        """Send a request and wait for its answer."""
        conversation = self._connection.send(*codec.encode(message), last=False)
        response: Message = await self._expect(conversation, _ANSWERS[type(message)])
        return response

    @override
    def on_message(self, message: chatter.Message) -> None:
        if self._queued is not None:
            self._queued.append(message)
        elif _is_large(message):
            self._queued = deque((message,))
            self._connection.pause_reading(Pause.LARGE_MESSAGE)
            self._connection.async_group.spawn(self._process_large)
        else:
            self._handle(message, self._decode(message))

    async def _process_large(self) -> None:
        """Handle a large message in slices, and then the messages after it."""
        waiting = self._queued
        assert waiting is not None
        try:
            while waiting and self._connection.close_reason is None:
                message = waiting.popleft()
                if not _is_large(message):
                    self._handle(message, self._decode(message))
                    continue
                n_bytes = len(message.data)
                if self._connection.hold(n_bytes):
                    decoded = await slices.run(self._decode_in_steps(message))
                self._connection.hold(-n_bytes)
                if self._connection.close_reason is None:
                    self._handle(message, decoded)
        except RemoteProtocolError as e:
            self._connection.close(CloseReason.PROTOCOL_ERROR, detail=str(e), level=logging.WARNING)
        except Exception as e:
            mlog.exception("large message failed", extra={"peer": self._connection.peer})
            self._connection.close(CloseReason.INTERNAL_ERROR, detail=str(e), level=logging.ERROR)
        self._queued = None
        self._connection.resume_reading(Pause.LARGE_MESSAGE)

    def _decode(self, message: chatter.Message) -> object:
        decoded = codec.decode(message.type, message.data)
        if self._keeps_bounds and len(message.data) > payloads.HARMLESS_BYTES:
            return slices.at_once(sift(decoded))
        return decoded

    def _decode_in_steps(self, message: chatter.Message) -> slices.Steps[object]:
        decoded = yield from codec.decode_in_steps(message.type, message.data)
        return (yield from sift(decoded)) if self._keeps_bounds else decoded

    def _handle(self, message: chatter.Message, decoded: object) -> None:
        tag = message.conversation.tag
        if tag is not None:
            self._on_answer(message, decoded)
        elif isinstance(decoded, MsgEventsNotify):
            self._note_refused(decoded.refused)
            self._pass_over(decoded.refused)
            done = self._on_events(decoded.events) if decoded.events else None
            if not message.is_last:
                self._acknowledge(message.conversation, done)
        elif isinstance(decoded, MsgStatusNotify):
            self.status = decoded.status
            self._on_status(decoded.status)
        else:
            raise RemoteProtocolError(f"{message.type} is not expected now")

    def _pass_over(self, refused: Sequence[RefusedEvent]) -> None:
        """Note the last skipped event of each server."""
        for event_id in {i.id.server: i.id for i in refused}.values():
            known = self._last_refused.get(event_id.server)
            if known is None and len(self._last_refused) >= limits.MAX_REMOTE_SERVERS:
                continue
            self._last_refused[event_id.server] = max(known or event_id, event_id)

    @override
    def on_closed(self, reason: CloseReason) -> None:
        requests, self._requests = self._requests, {}
        text = f"{self._connection.peer}: {self._connection.close_text}"
        for future, answer in requests.items():
            if not future.done():
                error: Exception = ClosedError(text)
                if answer is MsgRegisterRes:
                    error = OutcomeUnknownError(f"outcome unknown: {text}")
                future.set_exception(error)
                future.exception()  # marks it as retrieved: no caller has to await it

    def _expect(
        self,
        conversation: chatter.Conversation,
        answer: type[Message],
        types: Sequence[EventType] = (),
    ) -> asyncio.Future[Any]:
        """Future of the answer to a request; ``types`` are those of its events."""
        future: asyncio.Future[Any] = self._loop.create_future()
        self._requests[future] = answer
        conversation.tag = answer, types, future
        return future

    def _note_refused(self, refused: Sequence[RefusedEvent]) -> None:
        if not refused:
            return
        self.refused_events += len(refused)
        extra = {
            "peer": self._connection.peer,
            "events": len(refused),
            "id": msgspec.to_builtins(refused[0].id),
            "reason": refused[0].reason[: limits.MAX_LOG_CHARACTERS],
        }
        mlog.error("events of a remote server are left out: they are not valid here", extra=extra)

    def _on_answer(self, message: chatter.Message, decoded: object) -> None:
        expected, types, future = message.conversation.tag
        if not isinstance(decoded, expected) or not message.is_last:
            raise RemoteProtocolError(f"{message.type} does not answer the request")
        if isinstance(decoded, MsgRegisterRes) and decoded.events is not None:
            # 001: the events are in the order of the request
            if [event.type for event in decoded.events] != types:
                raise RemoteProtocolError(f"{message.type} with events other than those requested")
        elif isinstance(decoded, MsgQueryRes):
            self._note_refused(decoded.refused)
        self._requests.pop(future, None)
        if isinstance(decoded, MsgInitRes) and decoded.status is not None:
            self.status = decoded.status
        if future.done():  # the caller no longer waits
            return
        if not isinstance(decoded, MsgRegisterRes):
            future.set_result(decoded)
        elif decoded.events is not None:
            future.set_result(decoded.events)
        else:
            future.set_exception(RegisterError("the event server refused the registration"))
            future.exception()  # marks it as retrieved: no caller has to await it

    def _acknowledge(
        self, conversation: chatter.Conversation, done: "asyncio.Future[None] | None"
    ) -> None:
        def send(_: object = None) -> None:
            if self._connection.close_reason is None and conversation.may_send:
                self._connection.send(*codec.encode(MsgEventsAck()), conversation=conversation)

        if done is None or done.done():
            send()
        else:
            done.add_done_callback(send)


def _is_large(message: chatter.Message) -> bool:
    return len(message.data) > limits.LARGE_MESSAGE_BYTES and message.type in codec.WITH_EVENTS


_QUERY_NAMES: dict[type[QueryParams], str] = {
    QueryLatestParams: "latest",
    QueryTimeseriesParams: "timeseries",
    QueryServerParams: "server",
}
_NOT_INITIALISED = Status.STANDBY
_ANSWERS: dict[type[Message], type[Message]] = {MsgInitReq: MsgInitRes, MsgQueryReq: MsgQueryRes}


# --- payloads that clients of this server may not register ---------------------------------


def sift(message: object) -> Steps[object]:
    """A message in which events whose payload exceeds a bound (``validation``) are ``refused``.

    For servers that store or forward them; a client accepts any event that a server has stored.
    """
    if isinstance(message, MsgEventsNotify):
        events, refused = yield from _sift(message.events, message.refused)
        return MsgEventsNotify(events, refused)
    if isinstance(message, MsgQueryRes):
        result = message.result
        events, refused = yield from _sift(result.events, message.refused)
        return MsgQueryRes(msgspec.structs.replace(result, events=events), refused)
    return message


def _sift(
    events: Sequence[Event], refused: Sequence[RefusedEvent]
) -> Steps[tuple[Sequence[Event], Sequence[RefusedEvent]]]:
    kept: list[Event] = []
    sifted: list[RefusedEvent] = []
    for part in parts(len(events)):
        for position, event in enumerate(events[part], part.start):
            payload = event.payload
            is_harmless = payload is None or (
                type(payload) is JsonPayload and len(payload.data) <= payloads.HARMLESS_BYTES
            )
            if not is_harmless:
                try:
                    yield from check_payload_in_steps(payload)
                except InvalidEventError as e:
                    sifted.append(RefusedEvent(event.id, str(e), position))
                    continue
            kept.append(event)
        yield
    if not sifted:
        return events, refused
    # in the order of the message: paging continues after the last of them
    return kept, sorted([*refused, *sifted], key=lambda i: i.events_before)
