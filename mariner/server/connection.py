"""One client's connection: the Mariner protocol state (002) on a stream.

The path of a message::

    bytes ─▶ MarinerProtocol ─▶ message ─▶ init, register, query: ClientSession
                                    ping: at once

A large message is decoded in slices, in its turn among those of all clients. Responses to
registrations come in the order of the requests.

Runs on the event loop's thread.
"""

import functools
import logging
import ssl
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from typing_extensions import override

from eventer_bridge import limits as core_limits
from eventer_bridge import slices
from eventer_bridge.backends.history import Departure, History
from eventer_bridge.core.authentication import Authenticator
from eventer_bridge.core.base import EventCore
from eventer_bridge.core.client_service import (
    ClientServer,
    ClientService,
    ClientWire,
    ObserveQueryCb,
)
from eventer_bridge.core.client_session import ClientSession
from eventer_bridge.core.cursors import Attempt
from eventer_bridge.core.replay import ReplayWire, Start
from eventer_bridge.core.rights import Rights
from eventer_bridge.errors import Outcome, RemoteProtocolError
from eventer_bridge.model import Event, EventId, QueryResult, Status, cut
from eventer_bridge.net import framing
from eventer_bridge.net import limits as net_limits
from eventer_bridge.net.accepting import StreamListener, listen_for_streams
from eventer_bridge.net.admission import Admission, Slot
from eventer_bridge.net.liveness import Liveness
from eventer_bridge.net.stats import CloseReason
from eventer_bridge.net.stream import Stream
from eventer_bridge.packed import Batch, batch_of
from eventer_bridge.slices import Steps
from mariner import limits
from mariner.errors import ContractError
from mariner.server import encoding
from mariner.server.encoding import encoded_requested, register_successes
from mariner.wire import codec
from mariner.wire.messages import (
    CursorLost,
    EventsAck,
    EventsMsg,
    Gap,
    InitReq,
    InitRes,
    KnownHistory,
    Message,
    OtherHistory,
    PingReq,
    PingRes,
    QueryReq,
    QueryRes,
    RegisterRes,
    StatusMsg,
    UpToDate,
)
from mariner.wire.protocol import LargeMessage, MarinerProtocol, Received, RefusedRegister, Role


class ClientConnection(Stream[Received], ClientWire[int], ReplayWire):
    """See the module.

    Args:
        service: of the server.
        connections: the server's connections.
        slot: of the connection.
    """

    __slots__ = (
        "_is_operational",
        "_ping_id",
        "_protocol",
        "_session",
        "_types",
        "_wants_histories",
    )

    mlog = logging.getLogger(__name__)

    def __init__(
        self, service: ClientService, connections: "set[ClientConnection]", slot: Slot
    ) -> None:
        self._protocol = MarinerProtocol(Role.SERVER)
        liveness = Liveness(
            limits.SERVER_PING_DELAY_S, net_limits.PING_TIMEOUT_S, is_postponed_by_sending=True
        )
        super().__init__(self._protocol, service.stats, liveness, slot, connections)
        self._session: ClientSession[int] = ClientSession(service, self, self)
        self._types = service.types
        self._is_operational = False  # as last sent to the client
        self._ping_id = 0
        self._wants_histories = False

    # --- Stream -------------------------------------------------------------------------

    @override
    def take_some(self) -> bool:
        """Registrations that follow one another are gathered together."""
        messages = self._protocol.next_messages()
        if not messages:
            return False
        if len(messages) > 1 and (n_gathered := self._gather(messages)):
            self.n_messages += n_gathered
            return True
        self.n_messages += 1
        self.on_message(messages.pop(0))
        return True

    def _gather(self, messages: list[Received]) -> int:
        """Take registrations that come first, to be registered together; returns how many."""
        registrations = self._session.registrations
        room = registrations.room if isinstance(messages[0], Batch) else 0
        batches: list[Batch] = []
        for message in messages:
            if room <= 0 or not isinstance(message, Batch):
                break
            batches.append(message)
            room -= len(message) or 1
        n_allowed = registrations.n_allowed(batches)
        if n_allowed:
            del messages[:n_allowed]
            registrations.gather(batches[:n_allowed])
        return n_allowed

    @override
    def on_message(self, message: Received) -> None:
        if isinstance(message, Batch):  # most of them
            self._session.registrations.register(message)
        else:
            self._handlers[type(message)](self, message)

    @override
    def on_protocol_error(self, error: RemoteProtocolError) -> None:
        if self._session.rights is None and self.close_reason is None:  # there is room to say why
            if isinstance(error, ContractError) and error.msg_type == "init_req":
                self._session.decline(str(error))
                return
            self.send_declined(cut(str(error)), may_pass=False)
        super().on_protocol_error(error)

    @override
    def on_late(self) -> None:
        reason = f"no init_req within {net_limits.FIRST_MESSAGE_TIMEOUT_S:g} s"
        self.send_declined(reason, may_pass=True)
        super().on_late()

    @override
    def on_closing(self) -> None:
        self._session.leave()

    @override
    def on_closed(self, reason: CloseReason) -> None:
        del self._session  # else they would hold each other until garbage collection

    @override
    def probe(self) -> None:
        if self._session.rights is not None:
            self._ping_id += 1
            self.write(self._protocol.send(PingReq(self._ping_id)))
            self.flush()

    @property
    @override
    def is_answering(self) -> bool:
        return self._session.is_answering

    # --- messages -----------------------------------------------------------------------

    def _on_init(self, message: InitReq) -> None:
        self._wants_histories = message.histories is not None
        self._session.init(
            message.client_name,
            message.client_token,
            message.subscriptions,
            message.server_id,
            persisted=message.persisted,
            start=self._start(message),
        )

    def _start(self, message: InitReq) -> Start | None:
        if message.start is None and message.cursor is None:
            return None
        ids = () if message.start is None or message.start == "earliest" else message.start
        seen: dict[int, EventId] = {}
        for i in ids:
            seen[i.server] = max(i, seen.get(i.server, i))
        followed, attempt = message.histories, message.attempt
        return Start(
            self,
            seen,
            message.decline_gap,
            message.cursor,
            None if followed is None else {i.server_id: i.id for i in followed},
            None if attempt is None else Attempt(attempt.reader, attempt.number),
        )

    def _on_refused_register(self, message: RefusedRegister) -> None:
        extra = {**self.log_extra, "reason": cut(message.error)}
        self.mlog.warning("invalid registration", extra=extra)
        batch = batch_of((), self._types, message.register_id)
        self._session.registrations.refuse(batch, message.error)

    def _on_query(self, message: QueryReq) -> None:
        self._session.queries.add(message.query_id, message.params)

    def _on_events_ack(self, message: EventsAck) -> None:
        parked = [(i.id, i.reason) for i in message.parked]
        self._session.acknowledge(message.ids, parked, message.done)

    def _on_ping_req(self, message: PingReq) -> None:
        response = codec.encode_ping_response(message.ping_id)
        self.write(self._protocol.send_encoded(PingRes, response))

    def _on_ping_res(self, message: PingRes) -> None:
        pass  # the stream noted the sign of life

    def _on_large(self, message: LargeMessage) -> None:
        self._session.registrations.take_in(self._process_large(message))

    async def _process_large(self, large: LargeMessage) -> None:
        message = await slices.run(self._protocol.decode_large(large))
        del large  # nothing else holds it, and it may be long until it is answered
        await self._handle_large(message)

    async def _handle_large(self, message: Message | Batch | RefusedRegister) -> None:
        if self.close_reason is not None:
            return
        if isinstance(message, Batch):
            await self._session.registrations.register_large(message)
        else:
            self.on_message(message)

    _handlers: Final[dict[type[Any], Callable[[Any, Any], None]]] = {
        InitReq: _on_init,
        RefusedRegister: _on_refused_register,
        QueryReq: _on_query,
        EventsAck: _on_events_ack,
        PingReq: _on_ping_req,
        PingRes: _on_ping_res,
        LargeMessage: _on_large,
    }

    # --- ClientWire ---------------------------------------------------------------------

    @override
    def use_rights(self, rights: Rights) -> None:
        self._protocol.large_bytes = min(limits.LARGE_FRAME_BYTES, rights.inline_bytes)
        self._protocol.read_bytes = 0 if rights.has_schemas else limits.READ_FRAME_BYTES
        self._protocol.types = self._types

    @override
    def send_accepted(
        self,
        status: Status,
        extensions: Sequence[str],
        histories: Mapping[int, History],
        n_resets: int,
    ) -> None:
        self._is_operational = status is Status.OPERATIONAL
        known = sorted(histories.items())[: core_limits.MAX_REMOTE_SERVERS]
        response = InitRes(
            True,
            status=status,
            extensions=tuple(extensions),
            histories=tuple(KnownHistory(i, history.id) for i, history in known)
            if self._wants_histories
            else (),
            cursor_resets=n_resets,
        )
        self.write(self._protocol.send(response))

    @override
    def send_declined(self, reason: str, *, may_pass: bool) -> None:
        outcome = Outcome.UNAVAILABLE.value if may_pass else None
        response = InitRes(False, error=reason, outcome=outcome)
        self.write(framing.encode_frame(codec.encode(response)))

    @override
    def send_registered(self, batches: list[Batch]) -> None:
        if self.close_reason is not None:
            return
        if batches[0].is_large:
            self._send_parts(batches[0], is_repeated=False)
            return
        frames = register_successes(batches)
        self.write(self._protocol.send_frames(RegisterRes, frames), len(batches))

    @override
    def send_repeated(self, batch: Batch) -> None:
        if self.close_reason is None:
            self._send_parts(batch, is_repeated=True)

    def _send_parts(self, batch: Batch, *, is_repeated: bool) -> None:
        requested = encoded_requested(batch)
        parts = codec.register_success_parts(batch.register_id, requested, is_repeated=is_repeated)
        self.write_parts(self._protocol.send_parts(RegisterRes, parts))

    @override
    def send_refused(self, batch: Batch, reason: str, outcome: Outcome) -> None:
        if self.close_reason is not None:
            return
        reported = None if outcome is Outcome.REFUSED else outcome.value
        message = RegisterRes(batch.register_id, False, error=reason, outcome=reported)
        self.write(self._protocol.send_encoded(RegisterRes, codec.encode(message)))

    @override
    def encode_result(self, request: int, result: QueryResult) -> Steps[list[bytes]]:
        return codec.encode_query_result(request, result)

    @override
    def send_result(self, request: int, parts: list[bytes]) -> None:
        self.write_parts(self._protocol.send_parts(QueryRes, parts))

    @override
    def send_notification(self, message: bytes) -> None:
        """Send a framed ``events`` message."""
        self.write(message)

    # --- ReplayWire ---------------------------------------------------------------------

    @override
    def encode_replayed(
        self, events: Sequence[Event], *, is_redelivered: bool = False
    ) -> Steps[list[bytes]]:
        return codec.encode_events_in_steps(events, is_redelivered=is_redelivered)

    @override
    def send_replayed(self, parts: list[bytes]) -> None:
        self.write_parts(self._protocol.send_parts(EventsMsg, parts))

    @override
    def send_gap(self, server_id: int, oldest: EventId | None, departure: Departure | None) -> None:
        other = None if departure is None else OtherHistory(*departure)
        self.write(self._protocol.send(Gap(server_id, oldest, other)))

    @override
    def send_up_to_date(self) -> None:
        self.write(self._protocol.send(UpToDate()))

    @override
    def send_cursor_lost(self, reason: str) -> None:
        if self.close_reason is None:
            self.write(self._protocol.send(CursorLost(reason)))

    @override
    def send_status(self, status: Status) -> None:
        """Clients know two of the four states (002)."""
        is_operational = status is Status.OPERATIONAL
        if is_operational is not self._is_operational:
            self._is_operational = is_operational
            self.write(self._protocol.send(StatusMsg(status)))


async def listen(
    core: EventCore,
    authenticator: Authenticator,
    host: str,
    port: int,
    *,
    tls_context: ssl.SSLContext | None = None,
    admission: Admission | None = None,
    observe_query: ObserveQueryCb = lambda params, seconds: None,
) -> "MarinerServer":
    """Listen for Mariner clients.

    Args:
        core: handles registrations and queries; the caller closes it, after the server.
        authenticator: lets clients in.
        host: address or name to listen on.
        port: TCP port; 0 takes a free one (see :attr:`MarinerServer.port`).
        tls_context: TLS for all connections; None for plain TCP.
        admission: the process' slots; None: its own.
        observe_query: called after each query with its parameters and its duration in seconds.

    Raises:
        OSError: listening on the address failed.
    """
    server = MarinerServer(core, authenticator, encoding, observe_query)
    server.service.types = core.type_table(codec.read_type)
    return await server.begin(
        listen_for_streams(
            host,
            port,
            functools.partial(ClientConnection, server.service),
            admission=admission,
            stats=server.stats,
            tls=tls_context,
            handshake_timeout_s=net_limits.FIRST_MESSAGE_TIMEOUT_S,
        )
    )


class MarinerServer(ClientServer[StreamListener[ClientConnection]]):
    """Serves Mariner clients. Created by :func:`listen`."""

    @property
    def port(self) -> int:
        """TCP port in use."""
        return self.listener.port

    @property
    def connections(self) -> frozenset[ClientConnection]:
        """Connections that still exist."""
        return self.listener.streams
