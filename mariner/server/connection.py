"""One client's connection: the Mariner protocol state (002) on a stream.

The path of a message::

    bytes ─▶ MarinerProtocol ─▶ message ─▶ init, register, query: ClientSession
                                    ping: at once

A large message is decoded in slices, in its turn among those of all clients. Responses to
registrations come in the order of the requests.

Runs on the event loop's thread.
"""

import logging
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Any, Final

from eventer_bridge import limits as core_limits
from eventer_bridge import slices
from eventer_bridge.backends.history import Departure, History
from eventer_bridge.core.client_service import ClientService
from eventer_bridge.core.client_session import ClientSession
from eventer_bridge.core.cursors import Attempt
from eventer_bridge.core.gathering import Gathered
from eventer_bridge.core.replay import Start
from eventer_bridge.core.rights import Rights
from eventer_bridge.core.session import Session, packed_of
from eventer_bridge.errors import Outcome, RemoteProtocolError
from eventer_bridge.model import Event, EventId, QueryResult, Status, cut
from eventer_bridge.net import Slot, framing
from eventer_bridge.net import limits as net_limits
from eventer_bridge.net.liveness import Liveness
from eventer_bridge.net.stats import CloseReason
from eventer_bridge.net.stream import Stream
from eventer_bridge.packed import Packed
from eventer_bridge.slices import Steps
from mariner import limits
from mariner.errors import ContractError
from mariner.server.encoding import encoded_requested, keep_encoded, register_successes
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
    RegisterReq,
    RegisterRes,
    StatusMsg,
    UpToDate,
)
from mariner.wire.protocol import LargeMessage, MarinerProtocol, Received, RefusedRegister, Role

_REGISTRATIONS: Final = (Packed, RegisterReq)


class ClientConnection(Stream[Received]):
    """See the module.

    Args:
        service: of the server.
        connections: the server's connections.
        slot: of the connection.
    """

    __slots__ = (
        "_is_operational",
        "_known_types",
        "_ping_id",
        "_protocol",
        "_session",
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
        self._known_types = service.known_types
        self._is_operational = False  # as last sent to the client
        self._ping_id = 0
        self._wants_histories = False

    # --- Stream -------------------------------------------------------------------------

    def take_some(self) -> bool:
        """See ``Stream``; registrations that follow one another are gathered together."""
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
        room = registrations.room if isinstance(messages[0], _REGISTRATIONS) else 0
        some: list[Packed | RegisterReq] = []
        for message in messages:
            if len(some) >= room or not isinstance(message, _REGISTRATIONS):
                break
            some.append(message)
        asked = [i.register_events for i in some]
        sizes = [len(events) or 1 for events in asked]
        if sum(sizes) > room:  # they are taken up to the one that fills it
            del asked[bisect_left([*accumulate(sizes)], room) + 1 :]
        n_allowed = registrations.n_allowed(asked)
        if n_allowed:
            del some[n_allowed:], asked[n_allowed:], sizes[n_allowed:]
            gathered = Gathered([i.register_id for i in some], asked, sum(sizes))
            names = [i.request_key for i in some]
            if any(names):
                gathered.names, gathered.afters = names, [i.after_key for i in some]
            del messages[:n_allowed]
            registrations.gather(gathered)
        return n_allowed

    def on_message(self, message: Received) -> None:
        """See ``Stream``."""
        if isinstance(message, _REGISTRATIONS):  # most of them
            self._session.registrations.register(
                message.register_id,
                message.register_events,
                message.request_key,
                message.after_key,
            )
        else:
            self._handlers[type(message)](self, message)

    def on_protocol_error(self, error: RemoteProtocolError) -> None:
        """See ``Stream``."""
        is_init = self._session.rights is None and isinstance(error, ContractError)
        if is_init and error.msg_type == "init_req":  # type: ignore[attr-defined]
            self._session.decline(str(error))
        else:
            super().on_protocol_error(error)

    def on_closing(self) -> None:
        """See ``Stream``."""
        self._session.leave()

    def on_closed(self, reason: CloseReason) -> None:
        """See ``Stream``."""
        del self._session  # else they would hold each other until garbage collection

    def probe(self) -> None:
        """See ``Stream``."""
        if self._session.rights is not None:
            self._ping_id += 1
            self.write(self._protocol.send(PingReq(self._ping_id)))
            self.flush()

    @property
    def is_answering(self) -> bool:
        """See ``Stream``."""
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
        self._session.registrations.refuse(message.register_id, message.error)

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
        # nothing else holds the message, which takes long to free
        await self._handle_large(await slices.run(self._protocol.decode_large(large)))

    async def _handle_large(self, message: Message | RefusedRegister) -> None:
        if self.close_reason is not None:
            return
        if isinstance(message, RegisterReq):
            register_id, events = message.register_id, message.register_events
            key, after = message.request_key, message.after_key
            del message
            await self._session.registrations.register_large(register_id, events, key, after)
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

    def use_rights(self, rights: Rights) -> None:
        """See ``ClientWire``."""
        self._protocol.large_bytes = min(limits.LARGE_FRAME_BYTES, rights.inline_bytes)
        # the payloads of others are looked at in any case
        self._protocol.known_types = None if rights.has_schemas else self._known_types

    def send_accepted(
        self,
        status: Status,
        extensions: Sequence[str],
        histories: Mapping[int, History],
        n_resets: int,
    ) -> None:
        """See ``ClientWire``."""
        self._is_operational = status is Status.OPERATIONAL
        told = sorted(histories.items())[: core_limits.MAX_REMOTE_SERVERS]
        response = InitRes(
            True,
            status=status,
            extensions=tuple(extensions),
            histories=tuple(KnownHistory(i, history.id) for i, history in told)
            if self._wants_histories
            else (),
            cursor_resets=n_resets,
        )
        self.write(self._protocol.send(response))

    def send_declined(self, reason: str) -> None:
        """See ``ClientWire``."""
        self.write(framing.encode_frame(codec.encode(InitRes(False, error=reason))))

    def keep_encoded(self, requests: Sequence[int], sessions: Sequence[Session]) -> None:
        """See ``ClientWire``."""
        keep_encoded(sessions)

    def send_registered(self, requests: Sequence[int], sessions: Sequence[Session]) -> None:
        """See ``ClientWire``."""
        if self.close_reason is not None:
            return
        if packed := packed_of(sessions):  # which know what they answer
            frames = self._protocol.send_frames(RegisterRes, codec.encode_packed_successes(packed))
            self.write(frames, len(packed))
        elif sessions[0].is_large:
            parts = codec.register_success_parts(requests[0], encoded_requested(sessions[0]))
            self.write_parts(self._protocol.send_parts(RegisterRes, parts))
        else:
            answers = register_successes(requests, sessions)
            self.write(self._protocol.send_all(RegisterRes, answers), len(answers))

    def send_repeated(self, request: int, session: Session) -> None:
        """See ``ClientWire``."""
        if self.close_reason is None:
            requested = encoded_requested(session)
            parts = codec.register_success_parts(request, requested, is_repeated=True)
            self.write_parts(self._protocol.send_parts(RegisterRes, parts))

    def send_refused(self, request: int, reason: str, outcome: Outcome) -> None:
        """See ``ClientWire``."""
        if self.close_reason is not None:
            return
        told = None if outcome is Outcome.REFUSED else outcome.value
        message = codec.encode(RegisterRes(request, False, error=reason, outcome=told))
        self.write(self._protocol.send_encoded(RegisterRes, message))

    def encode_result(self, request: int, result: QueryResult) -> Steps[list[bytes]]:
        """See ``ClientWire``."""
        return codec.encode_query_result(request, result)

    def send_result(self, request: int, parts: list[bytes]) -> None:
        """See ``ClientWire``."""
        self.write_parts(self._protocol.send_parts(QueryRes, parts))

    def send_notification(self, message: bytes) -> None:
        """See ``ClientWire``; a framed ``events`` message."""
        self.write(message)

    # --- ReplayWire ---------------------------------------------------------------------

    def encode_replayed(
        self, events: Sequence[Event], *, is_redelivered: bool = False
    ) -> Steps[list[bytes]]:
        """See ``ReplayWire``."""
        return codec.encode_events_in_steps(events, is_redelivered=is_redelivered)

    def send_replayed(self, parts: list[bytes]) -> None:
        """See ``ReplayWire``."""
        self.write_parts(self._protocol.send_parts(EventsMsg, parts))

    def send_gap(self, server_id: int, oldest: EventId | None, departure: Departure | None) -> None:
        """See ``ReplayWire``."""
        other = None if departure is None else OtherHistory(*departure)
        self.write(self._protocol.send(Gap(server_id, oldest, other)))

    def send_up_to_date(self) -> None:
        """See ``ReplayWire``."""
        self.write(self._protocol.send(UpToDate()))

    def send_cursor_lost(self, reason: str) -> None:
        """See ``ReplayWire``."""
        if self.close_reason is None:
            self.write(self._protocol.send(CursorLost(reason)))

    def send_status(self, status: Status) -> None:
        """See ``ClientWire``; clients know two of the four states (002)."""
        is_operational = status is Status.OPERATIONAL
        if is_operational is not self._is_operational:
            self._is_operational = is_operational
            self.write(self._protocol.send(StatusMsg(status)))
