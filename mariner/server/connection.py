"""One client's connection: the asyncio shell around the Mariner protocol state (002).

What flows through it::

    bytes ─▶ Protocol ─▶ message ─▶ init: Authenticator, Fanout
                                    register: rights ─▶ core ─▶ response, in order
                                    query: one after the other, beside everything else;
                                           ended when the peer goes
                                    ping: at once

Nothing here grows without bound. A connection is not read from while

* the core is full, or a large message of it is dealt with (in slices, others in between),
* it sent so many messages at once that others are to have their turn first,
* too many of its registrations are under way or too many of its queries wait,
* what it was sent has not left (it does not read).

Responses thus stop by themselves when their receiver does not read; notifications, which
nobody can hold back, are bounded in bytes, and then the connection is closed. Everything
that depends on time (init deadline, ping, stalled writes, lingering close) is looked at by
:meth:`ClientConnection.sweep`, which the server calls once a second.

Runs on the event loop's thread.
"""

import asyncio
import functools
import logging
import time
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from typing import Any, Final, cast

from hat import aio

from eventer_bridge import limits as core_limits
from eventer_bridge import slices, tls
from eventer_bridge.core.base import EventCore
from eventer_bridge.core.fanout import Fanout, Filter
from eventer_bridge.core.rights import Authenticator, DeclinedError, Rights
from eventer_bridge.core.session import Session
from eventer_bridge.errors import EventerBridgeError, InvalidEventError, OutcomeUnknownError
from eventer_bridge.excerpts import cut
from eventer_bridge.model import QueryParams, Source, Status
from eventer_bridge.net import framing
from eventer_bridge.net.admission import FOR_ANOTHER, TOO_MUCH_BUFFERED, Place
from eventer_bridge.net.sockets import write_parts
from eventer_bridge.net.stats import ServerStats
from eventer_bridge.net.tcp_state import TcpState, tcp_state
from eventer_bridge.subscription import Subscription
from mariner import limits
from mariner.errors import ContractError, RemoteProtocolError
from mariner.server.encoding import encoded_requested, is_answerable, notification, prepare
from mariner.wire import codec
from mariner.wire.messages import (
    UNKNOWN,
    InitReq,
    InitRes,
    Message,
    PingReq,
    PingRes,
    QueryReq,
    QueryRes,
    RegisterReq,
    RegisterRes,
    StatusMsg,
)
from mariner.wire.protocol import LargeMessage, Protocol, RefusedRegister, Role, State

mlog = logging.getLogger(__name__)

# why a connection is not read from
_CORE_FULL: Final = 1
_REGISTRATIONS_FULL: Final = 2
_QUERIES_FULL: Final = 4
_WRITE_BLOCKED: Final = 8
_CLOSING: Final = 16
_DECLINED: Final = 32
_LARGE: Final = 64
_TURN_OVER: Final = 128


class Context:
    """What all connections of a server share."""

    def __init__(
        self,
        core: EventCore,
        authenticator: Authenticator,
        group: aio.Group,
        observe_query: Callable[[QueryParams, float], None],
    ) -> None:
        self.core = core
        self.authenticator = authenticator
        self.group = group
        self.fanout = Fanout(notification, prepare)
        self.stats = ServerStats()
        self.connections: set[ClientConnection] = set()
        self.large: set[asyncio.Task[None]] = set()
        self.observe_query = observe_query


class ClientConnection(asyncio.Protocol):
    """See the module."""

    __slots__ = (
        "_awaited_commit",
        "_close_reason",
        "_context",
        "_corked",
        "_deadline",
        "_delayed",
        "_eof",
        "_filter",
        "_has_received",
        "_has_sent",
        "_heard",
        "_idle_since",
        "_is_querying",
        "_last_buffer_bytes",
        "_name",
        "_paused",
        "_peer",
        "_ping_id",
        "_ping_sent_at",
        "_place",
        "_protocol",
        "_queries",
        "_query_group",
        "_responses",
        "_rights",
        "_source",
        "_transport",
        "_unread_bytes",
        "closed",
    )

    def __init__(self, context: Context, source: Source, place: Place) -> None:
        self._context = context
        self._source = source
        self._place = place
        self._peer = place.peer
        self._protocol = Protocol(Role.SERVER)
        self._rights: Rights | None = None
        self._filter: Filter | None = None
        self._name: str | None = None
        self._paused = 0
        self._responses: deque[tuple[int, Session | str]] = deque()
        self._awaited_commit: asyncio.Future[None] | None = None
        self._corked: list[bytes] | None = None
        self._queries: list[QueryReq] = []  # an empty deque takes 0.7 kB
        self._query_group: aio.Group | None = None
        self._heard: list[asyncio.Future[None]] = []  # commits of large sessions
        self._is_querying = False
        self._eof = False
        self._close_reason: str | None = None
        self._has_received = False
        self._has_sent = False
        self._idle_since = 0.0
        self._deadline = 0.0
        self._delayed: asyncio.TimerHandle | None = None
        self._ping_id = 0
        self._ping_sent_at: float | None = None
        self._last_buffer_bytes = 0
        self._unread_bytes = 0  # of answers: notifications are shared by all who hear them
        loop = asyncio.get_running_loop()
        self.closed: asyncio.Future[None] = loop.create_future()

    # --- asyncio.Protocol -----------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A peer connected (over TLS: the handshake is done)."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by inheritance
        self._idle_since = time.monotonic()
        self._deadline = self._place.accepted_at + limits.INIT_TIMEOUT_S
        self._context.connections.add(self)
        self._transport.set_write_buffer_limits(high=limits.SEND_HIGH_WATER_BYTES)
        self._place.when_taken(lambda: self._abort(FOR_ANOTHER))
        self._place.buffer.when_too_large(lambda: self._abort(TOO_MUCH_BUFFERED))

    def data_received(self, data: bytes) -> None:
        """Bytes came in."""
        self._has_received = True
        self._context.stats.bytes_in += len(data)
        self._protocol.receive_data(data)
        if not self._paused:
            self._process()
        if len(data) >= core_limits.FULL_READ_BYTES:
            self._let_others()
        if self._protocol.buffered_bytes or self._place.buffer.n_bytes:
            self._count_buffered()

    def eof_received(self) -> bool:
        """The peer sends no more; what it asked for before is still answered."""
        try:
            self._protocol.receive_eof()
        except RemoteProtocolError as e:
            self._close("protocol error", detail=str(e), level=logging.WARNING)
            return False
        self._eof = True
        while self._paused == _TURN_OVER:  # over TLS, where the rest could not be answered later
            self._resume(_TURN_OVER)
        if self._queries:
            self._probe()
        is_answering = bool(self._responses or self._queries or self._paused)
        # over TLS it is closed whatever is returned, and asyncio would warn of it
        return is_answering and self._transport.get_extra_info("ssl_object") is None

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone."""
        context = self._context
        context.connections.discard(self)
        self._place.release()
        if self._delayed is not None:
            self._delayed.cancel()
        self._leave()
        if self._close_reason is None:
            self._close_reason = "connection lost" if exc else "peer closed"
        reason = self._close_reason
        context.stats.closed[reason] += 1
        mlog.debug(
            "connection closed",
            extra={"peer": self._peer, "client": self._name, "reason": reason},
        )
        self._paused |= _CLOSING
        self._stop_queries()
        self._responses.clear()
        if not self.closed.done():
            self.closed.set_result(None)

    def pause_writing(self) -> None:
        """The peer does not read as fast as it is sent to."""
        self._last_buffer_bytes = self._unread_bytes = self._transport.get_write_buffer_size()
        self._count_buffered()
        self._deadline = time.monotonic() + limits.WRITE_STALL_TIMEOUT_S
        self._pause(_WRITE_BLOCKED)

    def resume_writing(self) -> None:
        """What waited has left."""
        self._count_unread()
        self._resume(_WRITE_BLOCKED)
        self._start_queries()

    # --- what the server calls ---------------------------------------------------------

    def notify(self, frame: bytes, event_count: int) -> None:
        """Send a framed ``events`` message (see ``fanout.Receiver``)."""
        if self._close_reason is not None:
            return
        self._write(frame)
        self._context.stats.events_notified += event_count
        if self._paused & _WRITE_BLOCKED:
            size_bytes = self._transport.get_write_buffer_size()
            if size_bytes > limits.MAX_SEND_BUFFER_BYTES:
                self._abort(
                    "slow consumer", detail=f"{size_bytes} bytes of notifications are not read"
                )

    def heard_of(self, commit: asyncio.Future[None]) -> None:
        """See ``fanout.Receiver``."""
        self._heard = [i for i in self._heard if not i.done()] + [commit]

    def on_failed(self, error: Exception) -> None:
        """See ``fanout.Receiver``."""
        self._close("internal error", detail=str(error), level=logging.ERROR)

    def notify_status(self, status: Status) -> None:
        """Tell the client of the server's status."""
        if self._protocol.state is State.OPEN and self._close_reason is None:
            self._write(self._protocol.send(StatusMsg(status)))

    def end(self, reason: str) -> None:
        """Close the connection of a client that was accepted."""
        if self._protocol.state is State.OPEN:
            self._close(reason, level=logging.INFO)

    def sweep(self, now: float) -> None:
        """Look at everything that depends on time; ``now`` is ``time.monotonic()``."""
        if self._unread_bytes:
            self._count_unread()
        if self._close_reason is not None:
            if now > self._deadline:
                self._transport.abort()
        elif self._protocol.state is not State.OPEN:
            if now > self._deadline:
                self._close("init timeout", level=logging.WARNING)
        elif self._paused & _WRITE_BLOCKED:
            self._sweep_stalled(now)
        elif self._queries and (self._eof or self._paused):
            self._sweep_unheard()
        else:
            self._sweep_idle(now)

    async def shut_down(self) -> None:
        """Answer what is under way, then close; bounded in time."""
        self._pause(_CLOSING)
        deadline = time.monotonic() + limits.DRAIN_TIMEOUT_S
        while self._responses and self._close_reason is None and time.monotonic() < deadline:
            head = self._responses[0][1]
            if isinstance(head, str) or head.committed.done():
                await asyncio.sleep(0)
            else:
                await asyncio.wait([head.committed], timeout=deadline - time.monotonic())
        self._close("server closing")
        await asyncio.wait([self.closed], timeout=limits.CLOSE_TIMEOUT_S)
        if not self.closed.done():
            self._transport.abort()
            await asyncio.wait([self.closed], timeout=limits.CLOSE_TIMEOUT_S)

    # --- messages -----------------------------------------------------------------------

    def _process(self) -> None:
        protocol, handlers = self._protocol, self._handlers
        next_message, now_s = protocol.next_message, time.perf_counter
        self._corked = []
        n_messages = 0
        end_s = now_s() + limits.TURN_S
        try:
            while not self._paused and (message := next_message()) is not None:
                n_messages += 1
                handlers[type(message)](self, message)
                if n_messages == 1 and not protocol.buffered_bytes:
                    break  # most often there is one
                if n_messages == limits.TURN_MESSAGES or now_s() >= end_s:
                    if protocol.buffered_bytes:
                        self._let_others()
                    break
        except RemoteProtocolError as e:
            self._on_protocol_error(e)
        finally:
            self._context.stats.frames_in += n_messages
            self._uncork()
        if self._eof:
            self._close_if_answered()

    def _let_others(self) -> None:
        """Go on when others had their turn."""
        if not self._paused:
            self._pause(_TURN_OVER)
            self._place.turns.wait(lambda: self._resume(_TURN_OVER))

    def _on_init(self, message: InitReq) -> None:
        try:
            certificate = tls.peer_common_name(self._transport.get_extra_info("ssl_object"))
            rights = self._context.authenticator.authenticate(
                message.client_name, message.client_token, certificate
            )
            subscription = rights.subscription.intersection(Subscription(message.subscriptions))
        except DeclinedError as e:
            self._decline_later(self._place.login_failed(), str(e), message.client_name)
            return
        except InvalidEventError as e:
            self._decline(str(e), client=message.client_name)
            return
        if not self._place.establish():
            self._decline("too many connections", client=rights.name)
            return
        self._rights = rights
        self._protocol.large_bytes = min(limits.LARGE_FRAME_BYTES, rights.inline_bytes)
        self._name = rights.name
        self._filter = Filter(subscription, message.server_id, message.persisted)
        self._context.stats.clients += 1
        self._context.fanout.add(self, self._filter)
        self._write(self._protocol.send(InitRes(True, status=self._context.core.status)))
        mlog.debug("client connected", extra={"peer": self._peer, "client": self._name})
        self._context.core.announce(self._source, rights.name, is_connected=True)

    def _on_large(self, message: LargeMessage) -> None:
        self._pause(_LARGE)
        self._spawn(self._take_in(message))

    def _spawn(self, large: Coroutine[None, None, None]) -> None:
        # a task of its own: what was accepted is answered also when the server closes
        task = asyncio.get_running_loop().create_task(large)
        self._context.large.add(task)
        task.add_done_callback(self._context.large.discard)

    async def _take_in(self, large: LargeMessage) -> None:
        """Deal with a large message, in its turn among those of all clients."""
        try:
            async with self._context.core.lane:
                await slices.next_turn()  # it took long to come in
                if self._close_reason is None:
                    # nobody else keeps the message, which takes long to be freed
                    await self._handle_large(await slices.run(self._protocol.decode_large(large)))
        except RemoteProtocolError as e:
            self._on_protocol_error(e)
        except Exception:
            mlog.exception("large message failed", extra={"peer": self._peer})
            self._close("internal error", level=logging.ERROR)
        self._resume(_LARGE)

    async def _handle_large(self, message: Message | RefusedRegister) -> None:
        if not isinstance(message, RegisterReq):
            if self._close_reason is None:
                self._handlers[type(message)](self, message)
            return
        assert self._rights is not None
        refusal = await self._rights.refusal_of_large(message.register_events)
        if self._close_reason is not None:
            return
        session = self._register(message, refusal)
        del message
        if session is not None and session.is_large:
            await self._answer_large(session)

    async def _answer_large(self, session: Session) -> None:
        await asyncio.wait([session.committed])
        if session.committed.exception() is None:
            await slices.run(prepare(session))
        self._send_responses()
        await asyncio.sleep(0)  # before the session is freed

    def _on_register(self, message: RegisterReq) -> None:
        assert self._rights is not None
        session = self._register(message, self._rights.refusal(message.register_events))
        if session is not None and session.is_large:  # many, but short events
            self._spawn(self._answer_large(session))

    def _register(self, message: RegisterReq, refusal: str | None) -> Session | None:
        assert self._rights is not None
        if refusal is not None:
            self._context.stats.rejected["rights or schema"] += 1
            self._respond(message.register_id, refusal)
            return None
        core = self._context.core
        try:
            session = core.register(self._source, message.register_events, self._rights.type_quota)
        except EventerBridgeError as e:
            self._context.stats.rejected[type(e).__name__] += 1
            self._respond(message.register_id, str(e))
            return None
        self._responses.append((message.register_id, session))
        if session.is_large:
            pass  # answered when it is encoded
        elif session.committed is not self._awaited_commit:
            # sessions that are committed together are answered together
            self._awaited_commit = session.committed
            session.committed.add_done_callback(self._send_responses)
        if len(self._responses) >= limits.MAX_REGISTRATIONS_IN_FLIGHT:
            self._pause(_REGISTRATIONS_FULL)
        if core.is_full:
            self._pause(_CORE_FULL)
            core.when_drained(lambda: self._resume(_CORE_FULL))
        return session

    def _on_refused_register(self, message: RefusedRegister) -> None:
        mlog.warning(
            "invalid registration",
            extra={"peer": self._peer, "client": self._name, "reason": cut(message.error)},
        )
        self._context.stats.rejected["invalid message"] += 1
        self._respond(message.register_id, message.error)

    def _on_query(self, message: QueryReq) -> None:
        self._queries.append(message)
        self._start_queries()
        if len(self._queries) >= limits.MAX_QUERIES_WAITING:
            self._pause(_QUERIES_FULL)

    def _on_ping_req(self, message: PingReq) -> None:
        response = codec.encode_ping_response(message.ping_id)
        self._write(self._protocol.send_encoded(PingRes, response))

    def _on_ping_res(self, message: PingRes) -> None:
        pass  # that something came was noted already

    _handlers: Final[dict[type[Any], Callable[[Any, Any], None]]] = {
        InitReq: _on_init,
        RegisterReq: _on_register,
        RefusedRegister: _on_refused_register,
        QueryReq: _on_query,
        PingReq: _on_ping_req,
        PingRes: _on_ping_res,
        LargeMessage: _on_large,
    }

    def _on_protocol_error(self, error: RemoteProtocolError) -> None:
        is_init = self._rights is None and isinstance(error, ContractError)
        if is_init and error.msg_type == "init_req":  # type: ignore[attr-defined]
            self._decline(str(error), client=None)
        else:
            self._close("protocol error", detail=str(error), level=logging.WARNING)

    def _decline_later(self, delay_s: float, reason: str, client: str) -> None:
        """Decline after a while, in which the client is not heard."""
        if not delay_s:
            self._decline(reason, client)
            return
        self._pause(_DECLINED)
        loop = asyncio.get_running_loop()
        self._delayed = loop.call_later(delay_s, self._decline, reason, client)

    def _decline(self, reason: str, client: str | None) -> None:
        if self._close_reason is not None:
            return
        self._context.stats.declined += 1
        message = codec.encode(InitRes(False, error=cut(reason)))
        self._write(framing.encode_frame(message))
        self._close("declined", detail=reason, level=logging.WARNING, client=client)

    # --- answers ------------------------------------------------------------------------

    def _respond(self, register_id: int, error: str) -> None:
        """Refuse a registration, after those that came before it were answered."""
        self._responses.append((register_id, cut(error)))
        self._send_responses()

    def _send_responses(self, _: object = None) -> None:
        if self._close_reason is not None:
            return
        responses = self._responses
        frames: list[bytes] = []
        while responses:
            register_id, outcome = responses[0]
            if isinstance(outcome, str):
                frames.append(self._refusal(register_id, outcome))
            elif not outcome.committed.done():
                break
            elif not outcome.is_large:
                frames.append(self._register_response(register_id, outcome))
            elif is_answerable(outcome):
                self._write(b"".join(frames), len(frames))
                frames.clear()
                self._write_large(self._large_response(register_id, outcome))
            else:
                break
            responses.popleft()
        self._write(b"".join(frames), len(frames))
        if len(responses) <= limits.MAX_REGISTRATIONS_IN_FLIGHT // 2:
            self._resume(_REGISTRATIONS_FULL)
        if self._eof:
            self._close_if_answered()

    def _register_response(self, register_id: int, session: Session) -> bytes:
        error = session.committed.exception()
        if error is None:
            self._context.stats.events_registered += len(session.events)
            message = codec.encode_register_success(register_id, encoded_requested(session))
            return self._protocol.send_encoded(RegisterRes, message)
        text = cut(str(error)) if isinstance(error, EventerBridgeError) else "internal error"
        if isinstance(error, OutcomeUnknownError):
            self._context.stats.outcome_unknown += 1
            return self._refusal(register_id, text, UNKNOWN)
        self._context.stats.rejected[type(error).__name__] += 1
        return self._refusal(register_id, text)

    def _large_response(self, register_id: int, session: Session) -> list[bytes]:
        """The same of a large session, in parts: joining them takes longer than sending them."""
        if session.committed.exception() is not None:
            return [self._register_response(register_id, session)]
        self._context.stats.events_registered += len(session.events)
        parts = codec.register_success_parts(register_id, encoded_requested(session))
        return self._protocol.send_parts(RegisterRes, parts)

    def _refusal(self, register_id: int, error: str, outcome: str | None = None) -> bytes:
        message = codec.encode(RegisterRes(register_id, False, error=error, outcome=outcome))
        return self._protocol.send_encoded(RegisterRes, message)

    def _start_queries(self) -> None:
        if self._queries and not self._is_querying and not self._paused & _WRITE_BLOCKED:
            if self._query_group is None:
                self._query_group = self._context.group.create_subgroup()
            self._is_querying = True
            self._query_group.spawn(self._answer_queries)

    def _stop_queries(self) -> None:
        """Nobody waits for their answers any more."""
        self._queries.clear()
        if self._query_group is not None:
            self._query_group.close()

    async def _answer_queries(self) -> None:
        # one after the other, and the next only when the answer before it has left
        try:
            while self._queries and not self._paused & _WRITE_BLOCKED:
                request = self._queries[0]
                started = time.perf_counter()
                with ExitStack() as holding:
                    await self._answer(request, holding)
                if not self._queries:  # the connection was closed meanwhile
                    break
                del self._queries[0]
                self._context.observe_query(request.params, time.perf_counter() - started)
                self._resume(_QUERIES_FULL)
        except EventerBridgeError as e:
            self._close("query failed", detail=str(e), level=logging.WARNING)
        except Exception:
            mlog.exception("query failed", extra={"peer": self._peer, "client": self._name})
            self._close("internal error", level=logging.ERROR)
        finally:
            self._is_querying = False
        if self._eof:
            self._close_if_answered()

    async def _answer(self, request: QueryReq, holding: ExitStack) -> None:
        assert self._rights is not None
        subscription = self._rights.subscription
        result = await self._context.core.query(
            request.params,
            None if subscription.is_everything else subscription,
            self._rights.name,
            self._commits_to_find(),
            holding,
        )
        steps = codec.encode_query_result(request.query_id, result)
        del result  # it may be large
        self._write_large(self._protocol.send_parts(QueryRes, await slices.run(steps)))
        self._unread_bytes = self._transport.get_write_buffer_size()  # counted by the next sweep

    def _commits_to_find(self) -> list[asyncio.Future[None]]:
        """Of what it registered last, or heard of before it was committed."""
        for _, outcome in reversed(self._responses):
            if isinstance(outcome, Session):
                return [outcome.committed, *self._heard]
        return self._heard

    def _close_if_answered(self) -> None:
        # while it is paused, more of what it asked for may be waiting
        if not self._responses and not self._queries and not self._paused:
            self._close("peer closed")

    # --- reading, writing, closing --------------------------------------------------------

    def _write(self, frame: bytes, frame_count: int = 1) -> None:
        self._has_sent = True
        stats = self._context.stats
        stats.frames_out += frame_count
        stats.bytes_out += len(frame)
        if self._corked is None:
            self._transport.write(frame)
        else:
            self._corked.append(frame)

    def _write_large(self, parts: list[bytes]) -> None:
        """The same of a large frame in parts."""
        if self._corked is not None:
            self._write(b"".join(parts))
            return
        self._has_sent = True
        stats = self._context.stats
        stats.frames_out += 1
        stats.bytes_out += sum(map(len, parts))
        write_parts(self._transport, parts)

    def _uncork(self) -> None:
        """Send what was written since ``_corked`` was made a list, in one piece."""
        frames, self._corked = self._corked, None
        if frames:
            self._transport.write(b"".join(frames))

    def _count_buffered(self) -> None:
        self._place.buffer.set(self._protocol.buffered_bytes + self._unread_bytes)

    def _count_unread(self) -> None:
        self._unread_bytes = min(self._unread_bytes, self._transport.get_write_buffer_size())
        self._count_buffered()

    def _pause(self, reason: int) -> None:
        if not self._paused and not self._transport.is_closing():
            self._transport.pause_reading()
        self._paused |= reason

    def _resume(self, reason: int) -> None:
        if not self._paused & reason:
            return
        self._paused &= ~reason
        if not self._paused and not self._transport.is_closing():
            self._transport.resume_reading()
            self._process()
            self._count_buffered()

    def _close(
        self,
        reason: str,
        *,
        detail: str | None = None,
        level: int = logging.DEBUG,
        client: str | None = None,
    ) -> None:
        """Close after what was written has left, or was given time to."""
        if self._close_reason is not None:
            return
        self._close_reason = reason
        self._deadline = time.monotonic() + limits.CLOSE_TIMEOUT_S
        extra = {"peer": self._peer, "client": client or self._name, "reason": reason}
        if detail is not None:
            extra["detail"] = detail[: limits.MAX_LOG_CHARACTERS]
        mlog.log(level, "closing connection", extra=extra)
        self._leave()
        self._stop_queries()
        self._pause(_CLOSING)
        self._uncork()
        self._transport.close()

    def _abort(self, reason: str, *, detail: str | None = None) -> None:
        """Close at once; what was not sent yet is dropped."""
        self._close(reason, detail=detail, level=logging.WARNING)
        self._transport.abort()

    def _leave(self) -> None:
        if self._filter is not None:
            self._context.fanout.remove(self, self._filter)
            self._context.stats.clients -= 1
            self._filter = None
            assert self._name is not None
            core = self._context.core
            announce = functools.partial(core.announce, is_connected=False)
            # not within a notification, which this may be the end of
            asyncio.get_running_loop().call_soon(announce, self._source, self._name)

    # --- time -----------------------------------------------------------------------------

    def _sweep_stalled(self, now: float) -> None:
        size_bytes = self._transport.get_write_buffer_size()
        if size_bytes < self._last_buffer_bytes:
            self._deadline = now + limits.WRITE_STALL_TIMEOUT_S
        elif now > self._deadline:
            self._abort("write stalled", detail=f"{size_bytes} bytes are not read")
        self._last_buffer_bytes = size_bytes

    def _sweep_unheard(self) -> None:
        """A peer that is not read from while it waits for answers: is it still there?"""
        state = tcp_state(self._transport)
        if state is TcpState.RESET:
            self._close("connection lost")
            self._transport.abort()
        elif state is TcpState.ENDED:
            self._probe()

    def _probe(self) -> None:
        """Send something, so that the kernel of a peer that is gone resets the connection."""
        self._ping_id += 1
        self._write(self._protocol.send(PingReq(self._ping_id)))

    def _sweep_idle(self, now: float) -> None:
        if self._has_received:
            self._ping_sent_at = None
        if self._has_received or self._has_sent:
            self._has_received = self._has_sent = False
            self._idle_since = now
        if self._ping_sent_at is not None:
            if now - self._ping_sent_at > limits.PING_TIMEOUT_S:
                self._close("ping timeout", level=logging.WARNING)
        elif now - self._idle_since > limits.PING_DELAY_S and not self._paused:
            self._ping_id += 1
            self._ping_sent_at = now
            self._write(self._protocol.send(PingReq(self._ping_id)))
