"""Eventer client: one connection to an Event Server (001).

Any number of requests may be under way; each is a chatter conversation, whose answer
resolves a future. It does not reconnect: see ``feed`` for what does.

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
from hat import aio

from eventer_bridge import chatter, limits, payloads, slices
from eventer_bridge.errors import (
    ClosedError,
    ConnectError,
    InitError,
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
from eventer_bridge.eventer.sifting import sift
from eventer_bridge.excerpts import cut
from eventer_bridge.model import (
    INT64_MAX,
    Event,
    EventId,
    EventType,
    QueryLatestParams,
    QueryParams,
    QueryResult,
    QueryServerParams,
    QueryTimeseriesParams,
    RegisterEvent,
    Status,
)
from eventer_bridge.net.stream import Pause

mlog = logging.getLogger(__name__)

EventsCb: TypeAlias = Callable[[Sequence[Event]], "asyncio.Future[None] | None"]
"""Called with the events of each notification. Where the server asks for an
acknowledgement, it is sent when the returned future is done; at once for None."""

StatusCb: TypeAlias = Callable[[Status], None]
"""Called when the server's status changed."""


class ConnectCb(Protocol):
    """Connects to a certain server: :func:`connect` with some arguments given."""

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
    connect_timeout_s: float = limits.CONNECT_TIMEOUT_S,
    response_timeout_s: float = limits.RESPONSE_TIMEOUT_S,
) -> "EventerClient":
    """Connect to an Event Server.

    Args:
        address: where it listens.
        client_name: by convention ``<type>/<name>``.
        client_token: token, where the server wants one.
        subscriptions: query types of the events to be notified of; none: no notifications.
        server_id: be notified only of events of this server; None: of all.
        persisted: be notified of events that are durable; else as soon as they are registered.
        keeps_bounds: leave out events with payloads that may not be registered here: for who
            stores them, or tells others of them (``sifting``).
        on_events: see :data:`EventsCb`; must not block or raise.
        on_status: see :data:`StatusCb`; must not block or raise.
        tls: TLS context for an address that is ``ssl+sbs``; None: one that verifies the
            server by the CAs that this system trusts.
        dialect: of chatter.
        connect_timeout_s: bound of everything until the server answered.
        response_timeout_s: a request without answer for so long ends the connection.

    Raises:
        ConnectError: no connection, or no answer in time.
        InitError: the server declined; the text is its reason.
        ProtocolError: it does not speak Eventer.
        ClosedError: it closed the connection.
    """
    request = MsgInitReq(
        client_name, client_token, tuple(map(tuple, subscriptions)), server_id, persisted
    )
    timeout = asyncio.timeout(connect_timeout_s)
    connection = None
    try:
        async with timeout:
            connection, handler = await chatter.connect(
                address,
                functools.partial(_Handler, on_events, on_status, keeps_bounds),
                tls=tls,
                dialect=dialect,
                connect_timeout_s=connect_timeout_s,
                conversation_timeout_s=response_timeout_s,
            )
            response = await handler.request(request)
        assert isinstance(response, MsgInitRes)
        if response.status is None:
            raise InitError(f"{address}: {cut(response.error)}")
        return EventerClient(connection, handler, persisted)
    except BaseException as e:
        if connection is not None:
            await aio.uncancellable(connection.async_close())
        if isinstance(e, TimeoutError) and timeout.expired():
            what = "no connection" if connection is None else "no answer to MsgInitReq"
            raise ConnectError(f"{address}: {what} within {connect_timeout_s:g} s") from None
        raise


class EventerClient(aio.Resource):
    """See the module. Made by :func:`connect`.

    Attributes:
        persisted: as given to :func:`connect`.
    """

    def __init__(
        self, connection: chatter.Connection, handler: "_Handler", persisted: bool
    ) -> None:
        self._connection = connection
        self._handler = handler
        self.persisted = persisted

    @property
    def async_group(self) -> aio.Group:
        """Group of the connection."""
        return self._connection.async_group

    @property
    def status(self) -> Status:
        """The server's status, as it told last."""
        return self._handler.status

    @property
    def refused_events(self) -> int:
        """Times that the server told of an event that cannot be one here."""
        return self._handler.refused_events

    def last_refused(self, server_id: int) -> EventId | None:
        """The last event of a server that was left out of notifications and server queries."""
        return self._handler.last_refused.get(server_id)

    @property
    def peer(self) -> str:
        """Address of the server, as logs name it."""
        return self._connection.peer

    @property
    def close_reason(self) -> str | None:
        """Why the connection is closed; None while it is open."""
        return self._connection.close_text

    def register(self, events: Sequence[RegisterEvent]) -> asyncio.Future[Sequence[Event]]:
        """Register events as one session.

        Returns:
            The created events, in the order given. Fails with
            ``RegisterError`` where the server refuses, and with
            ``OutcomeUnknownError`` where the connection is lost before it answered.

        Raises:
            ClosedError: the connection is closed; nothing was sent.
            LimitError: too many requests are under way.
            InvalidEventError: an event cannot be encoded.
        """
        return self._handler.register(events)

    def register_only(self, events: Sequence[RegisterEvent]) -> None:
        """Register events without asking for an answer; raises as :meth:`register`."""
        self._connection.send(*codec.encode(MsgRegisterReq(events)))

    async def query(self, params: QueryParams) -> QueryResult:
        """Query events.

        Events that cannot be ones here are left out of the answer, and counted. An answer
        that would consist of nothing else is skipped: who pages by the last event could not
        ask for the next one.

        Raises:
            ClosedError: the connection is closed, or was lost meanwhile.
            InvalidEventError: the query has a condition that Eventer cannot express.
            LimitError: too many requests are under way.
            RemoteProtocolError: the server answers without end, and with no event.
        """
        for _ in range(limits.MAX_REFUSED_PAGES):
            try:
                response = await self._handler.request(MsgQueryReq(params))
            except ClosedError as e:
                # it may be the reason: hat-event closes at a query that fails
                raise ClosedError(f"{e}, at a {_QUERY_NAMES[type(params)]} query") from e
            assert isinstance(response, MsgQueryRes)
            result, refused = response.result, response.refused
            if isinstance(params, QueryServerParams):
                self._handler.pass_over(refused)
            if not refused or result.events or not result.more_follows:
                return result
            params = msgspec.structs.replace(params, last_event_id=refused[-1].id)
        raise RemoteProtocolError("answers that lead nowhere")

    async def first_event(self, server_id: int, session_id: int) -> Event | None:
        """The first event of a server in or after a session, also one that is not durable.

        Raises:
            EventerBridgeError: as :meth:`query`.
        """
        before = EventId(server_id, session_id - 1, INT64_MAX)
        params = QueryServerParams(server_id, max_results=1, last_event_id=before)
        for event in (await self.query(params)).events:
            if event.id.server != server_id or event.id <= before:
                raise RemoteProtocolError(f"answer with event {event.id} after {before}")
            return event
        return None

    async def ping(self) -> float:
        """Ping the server (chatter's ping).

        Returns:
            Round-trip time in seconds.

        Raises:
            ClosedError: the connection is closed, or was lost meanwhile.
        """
        return await self._connection.ping()

    async def drain(self) -> None:
        """Wait until the server has read enough of what was sent.

        Raises:
            ClosedError: the connection is closed.
        """
        await self._connection.drain()

    def set_reading(self, is_reading: bool) -> None:
        """Read on, or hold the server back."""
        if is_reading:
            self._connection.resume_reading(Pause.USER)
        else:
            self._connection.pause_reading(Pause.USER)


class _Handler(chatter.Handler):
    """What comes over the connection."""

    def __init__(
        self,
        on_events: EventsCb,
        on_status: StatusCb,
        keeps_bounds: bool,
        connection: chatter.Connection,
    ) -> None:
        self._on_events = on_events
        self._on_status = on_status
        self._keeps_bounds = keeps_bounds
        self._connection = connection
        self._loop = asyncio.get_running_loop()
        self._requests: dict[asyncio.Future[Any], type[Message]] = {}  # with their answers
        # a large message that is dealt with, and what came behind it; None: there is none
        self._behind: deque[chatter.Message] | None = None
        self.status = _NOT_INITIALISED
        self.refused_events = 0
        self.last_refused: dict[int, EventId] = {}

    async def request(self, message: MsgInitReq | MsgQueryReq) -> Message:
        """Send a request and wait for its answer."""
        conversation = self._connection.send(*codec.encode(message), last=False)
        response: Message = await self._expect(conversation, _ANSWERS[type(message)])
        return response

    def register(self, events: Sequence[RegisterEvent]) -> asyncio.Future[Sequence[Event]]:
        """See :meth:`EventerClient.register`."""
        conversation = self._connection.send(*codec.encode(MsgRegisterReq(events)), last=False)
        return self._expect(conversation, MsgRegisterRes, [event.type for event in events])

    def on_message(self, message: chatter.Message) -> None:
        """A message came."""
        if self._behind is not None:
            self._behind.append(message)
        elif _is_large(message):
            self._behind = deque((message,))
            self._connection.pause_reading(Pause.LARGE_MESSAGE)
            self._connection.async_group.spawn(self._take_in)
        else:
            self._handle(message, self._decode(message))

    async def _take_in(self) -> None:
        """Deal with a large message in slices, and with what came behind it."""
        waiting = self._behind
        assert waiting is not None
        try:
            while waiting and self._connection.close_reason is None:
                message = waiting.popleft()
                if not _is_large(message):
                    self._handle(message, self._decode(message))
                    continue
                decoded = await slices.run(self._decode_in_steps(message))
                if self._connection.close_reason is None:
                    self._handle(message, decoded)
        except RemoteProtocolError as e:
            self._connection.close("protocol error", detail=str(e), level=logging.WARNING)
        except Exception as e:
            mlog.exception("large message failed", extra={"peer": self._connection.peer})
            self._connection.close("internal error", detail=str(e), level=logging.ERROR)
        self._behind = None
        self._connection.resume_reading(Pause.LARGE_MESSAGE)

    def _decode(self, message: chatter.Message) -> object:
        decoded = codec.decode(message.type, message.data)
        if self._keeps_bounds and len(message.data) > payloads.HARMLESS_BYTES:
            return slices.at_once(sift(decoded))
        return decoded

    def _decode_in_steps(self, message: chatter.Message) -> slices.Steps[object]:
        decoded = yield from codec.decode_with_events(message.type, message.data)
        return (yield from sift(decoded)) if self._keeps_bounds else decoded

    def _handle(self, message: chatter.Message, decoded: object) -> None:
        tag = message.conversation.tag
        if tag is not None:
            self._on_answer(message, decoded)
        elif isinstance(decoded, MsgEventsNotify):
            self._note_refused(decoded.refused)
            done = self._on_events(decoded.events) if decoded.events else None
            self.pass_over(decoded.refused)
            if not message.is_last:
                self._acknowledge(message.conversation, done)
        elif isinstance(decoded, MsgStatusNotify):
            self.status = decoded.status
            self._on_status(decoded.status)
        else:
            raise RemoteProtocolError(f"{message.type} is not expected now")

    def pass_over(self, refused: Sequence[RefusedEvent]) -> None:
        """Note what was left out of the events of a server, as far as they are known."""
        for event_id in {i.id.server: i.id for i in refused}.values():
            known = self.last_refused.get(event_id.server)
            if known is None and len(self.last_refused) >= limits.MAX_REMOTE_SERVERS:
                continue
            self.last_refused[event_id.server] = max(known or event_id, event_id)

    def on_closed(self, reason: str) -> None:
        """The connection is gone."""
        requests, self._requests = self._requests, {}
        text = f"{self._connection.peer}: {self._connection.close_text}"
        for future, answer in requests.items():
            if not future.done():
                is_unknown = answer is MsgRegisterRes
                future.set_exception(
                    OutcomeUnknownError(f"outcome unknown: {text}")
                    if is_unknown
                    else ClosedError(text)
                )
                future.exception()  # counts as looked at: nobody has to await it

    def _expect(
        self,
        conversation: chatter.Conversation,
        answer: type[Message],
        types: Sequence[EventType] = (),
    ) -> asyncio.Future[Any]:
        """The answer to a request that was sent; ``types`` are those of its events."""
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
        mlog.error("events of a remote server are left out: they cannot be ones here", extra=extra)

    def _on_answer(self, message: chatter.Message, decoded: object) -> None:
        expected, types, future = message.conversation.tag
        if not isinstance(decoded, expected) or not message.is_last:
            raise RemoteProtocolError(f"{message.type} is no answer to what was asked")
        if isinstance(decoded, MsgRegisterRes) and decoded.events is not None:
            # 001: each event is the one of the same place in the request
            if [event.type for event in decoded.events] != types:
                raise RemoteProtocolError(f"{message.type} with other events than were asked for")
        elif isinstance(decoded, MsgQueryRes):
            self._note_refused(decoded.refused)
        self._requests.pop(future, None)
        if isinstance(decoded, MsgInitRes) and decoded.status is not None:
            self.status = decoded.status
        if future.done():  # who asked does not wait any more
            return
        if not isinstance(decoded, MsgRegisterRes):
            future.set_result(decoded)
        elif decoded.events is not None:
            future.set_result(decoded.events)
        else:
            future.set_exception(RegisterError("the event server refused the registration"))
            future.exception()  # counts as looked at: nobody has to await it

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
