"""Eventer server: serves Hat's components from an event core (001).

What flows through a client's connection::

    chatter ─▶ codec ─▶ MsgInitReq, MsgRegisterReq, MsgQueryReq: ClientSession
                        MsgEventsAck: ends the conversation of a notification

A large registration is decoded in slices, in its turn among those of all clients. Registrations
are answered, if asked for, in the order of the requests; where the outcome of one is unknown, the
connection is closed.

Runs on the event loop's thread.
"""

import functools
import logging
import ssl
from collections.abc import Sequence
from typing import Final

from typing_extensions import override

from eventer_bridge import chatter, limits, slices
from eventer_bridge.core.authentication import Authenticator
from eventer_bridge.core.base import EventCore
from eventer_bridge.core.client_service import (
    ClientServer,
    ClientService,
    ClientWire,
    ObserveQueryCb,
)
from eventer_bridge.core.client_session import ClientSession
from eventer_bridge.core.rights import Rights
from eventer_bridge.errors import Outcome, RemoteProtocolError
from eventer_bridge.eventer import codec, encoding
from eventer_bridge.eventer.messages import (
    MsgEventsAck,
    MsgInitReq,
    MsgInitRes,
    MsgQueryReq,
    MsgRegisterReq,
    MsgStatusNotify,
    RefusedReq,
)
from eventer_bridge.model import QueryParams, QueryResult, Status
from eventer_bridge.net.admission import Admission
from eventer_bridge.net.stats import CloseReason
from eventer_bridge.packed import Batch, batch_of
from eventer_bridge.slices import Steps

mlog = logging.getLogger(__name__)

_NOTIFY: Final = "HatEventer.MsgEventsNotify"
_REGISTER_REQ: Final = "HatEventer.MsgRegisterReq"
_QUERY_RES: Final = "HatEventer.MsgQueryRes"
_REGISTER_RES: Final = "HatEventer.MsgRegisterRes"


async def listen(
    core: EventCore,
    address: chatter.Address,
    authenticator: Authenticator,
    *,
    tls: ssl.SSLContext | None = None,
    admission: Admission | None = None,
    observe_query: ObserveQueryCb = lambda params, seconds: None,
) -> "EventerServer":
    """Listen for Eventer clients; ``OSError``: the address cannot be listened on.

    ``core`` stays the caller's to close, after the server. Port 0 takes a free one
    (:attr:`EventerServer.address`). ``admission`` is of the process; None: one of its own.
    ``observe_query`` is called after each query with its parameters and the seconds it took.
    """
    server = EventerServer(core, authenticator, encoding, observe_query)
    server.service.types = core.type_table(codec.read_whole_type)
    return await server.begin(
        chatter.listen(
            address,
            functools.partial(_Client, server.service),
            tls=tls,
            admission=admission,
            stats=server.stats,
        )
    )


class EventerServer(ClientServer[chatter.Listener]):
    """See the module. Made by :func:`listen`."""

    @property
    def address(self) -> chatter.Address:
        """The address, with the port in use."""
        return self.listener.address

    @property
    def connections(self) -> frozenset[chatter.Connection]:
        """Connections that are not gone yet."""
        return self.listener.connections


class _Client(chatter.Handler, ClientWire[chatter.Conversation | None]):
    """One client's connection. A conversation identifies a request; None: no answer."""

    def __init__(self, service: ClientService, connection: chatter.Connection) -> None:
        self._service = service
        self._connection = connection
        self._session: ClientSession[chatter.Conversation | None] = ClientSession(
            service, connection, self
        )
        self._init: chatter.Conversation | None = None  # where it waits for an answer
        self._large_bytes = limits.LARGE_MESSAGE_BYTES  # decoded in slices
        self._read_bytes = limits.LARGE_SESSION_BYTES  # but not up to here, if they are usual
        self._ack: chatter.Conversation | None = None

    # --- chatter.Handler ----------------------------------------------------------------

    @override
    def on_message(self, message: chatter.Message) -> None:
        is_registration = message.type == _REGISTER_REQ and self._session.rights is not None
        if is_registration and self._take_registration(message):
            return
        if len(message.data) > limits.MAX_OTHER_MESSAGE_BYTES and message.type != _REGISTER_REQ:
            raise RemoteProtocolError(
                f"{len(message.data)} bytes, at most {limits.MAX_OTHER_MESSAGE_BYTES} are allowed"
                f" for {message.type}"
            )
        decoded = codec.decode(message.type, message.data)
        if self._session.rights is None:
            self._on_first(message, decoded)
            return
        match decoded:
            case MsgRegisterReq():
                batch = batch_of(decoded.register_events, self._service.types)
                batch.request = _request(message)
                self._session.registrations.register(batch)
            case MsgQueryReq():
                self._on_query(message, decoded.params)
            case MsgEventsAck():
                self._on_ack(message)
            case RefusedReq() if decoded.message_type is MsgRegisterReq:
                self._refuse(message, decoded.reason)
            case RefusedReq():
                raise RemoteProtocolError(decoded.reason)
            case _:
                raise RemoteProtocolError(f"{message.type} is not expected now")

    @override
    def on_several(self) -> bool:
        """Take registrations, none of them large."""
        registrations = self._session.registrations
        if self._session.rights is None or (room := registrations.room) <= 0:
            return False
        ids, messages = self._connection.peek_requests(_REGISTER_REQ, room)
        batches = codec.read_register_reqs(messages, room, self._service.types)
        n_allowed = registrations.n_allowed(batches)
        if not n_allowed:
            return False
        del batches[n_allowed:]
        for batch, conversation in zip(
            batches, self._connection.take_requests(ids[:n_allowed]), strict=True
        ):
            batch.request = conversation
        registrations.gather(batches)
        return True

    def _take_registration(self, message: chatter.Message) -> bool:
        """Register a message, unless it is small, and unusual or wrong."""
        registrations, is_large = self._session.registrations, len(message.data) > self._large_bytes
        if not is_large or len(message.data) <= self._read_bytes:
            max_new = limits.MANY_NEW_TYPES if is_large else limits.MAX_SESSION_EVENTS
            batch = codec.read_register_req(message.data, self._service.types, max_new)
            if batch is not None and len(batch) <= limits.LARGE_SESSION_EVENTS:
                batch.request = _request(message)
                registrations.register(batch)
                return True
        if is_large:
            registrations.take_in(self._take_in(message))
        return is_large

    def _refuse(self, message: chatter.Message, reason: str) -> None:
        batch = batch_of((), self._service.types)
        batch.request = _request(message)
        self._session.registrations.refuse(batch, reason)

    @override
    def on_closing(self) -> None:
        self._session.leave()

    @override
    def on_closed(self, reason: CloseReason) -> None:
        del self._session  # or else they would hold each other until garbage is collected

    # --- messages -----------------------------------------------------------------------

    def _on_first(self, message: chatter.Message, decoded: object) -> None:
        if not message.is_last:
            self._init = message.conversation
        if isinstance(decoded, RefusedReq) and decoded.message_type is MsgInitReq:
            self._session.decline(decoded.reason)
        elif not isinstance(decoded, MsgInitReq):
            raise RemoteProtocolError(f"{message.type} came first, expected MsgInitReq")
        elif message.is_last:
            raise RemoteProtocolError("MsgInitReq ends its conversation, expected an open one")
        else:
            self._session.init(
                decoded.client_name,
                decoded.client_token,
                decoded.subscriptions,
                decoded.server_id,
                persisted=decoded.persisted,
            )

    async def _take_in(self, message: chatter.Message) -> None:
        batch = await slices.run(codec.decode_register_req(message.data, self._service.types))
        if isinstance(batch, RefusedReq):
            self._refuse(message, batch.reason)
            return
        batch.request = _request(message)
        del message  # it may be large
        await self._session.registrations.register_large(batch)

    def _on_ack(self, message: chatter.Message) -> None:
        if message.conversation is self._ack:
            self._ack = None
            self._connection.end(message.conversation)
        elif not message.is_last:
            raise RemoteProtocolError(f"{message.type} begins a conversation, and does not end it")

    def _on_query(self, message: chatter.Message, params: QueryParams) -> None:
        if message.is_last:
            raise RemoteProtocolError("MsgQueryReq ends its conversation, expected an open one")
        self._session.queries.add(message.conversation, params)

    # --- ClientWire ---------------------------------------------------------------------

    @override
    def use_rights(self, rights: Rights) -> None:
        self._large_bytes = min(limits.LARGE_MESSAGE_BYTES, rights.inline_bytes)
        self._read_bytes = 0 if rights.has_schemas else limits.LARGE_SESSION_BYTES

    @override
    def send_accepted(self, status: Status, *_: object) -> None:
        self._send(*codec.encode(MsgInitRes(status)), conversation=self._init)

    @override
    def send_declined(self, reason: str, *, may_pass: bool) -> None:
        if self._init is not None:
            self._send(*codec.encode(MsgInitRes(None, reason)), conversation=self._init)

    @override
    def send_registered(self, batches: list[Batch]) -> None:
        waiting = [i for i in batches if i.request is not None and i.request.may_send]
        if waiting and self._connection.close_reason is None:
            answers = encoding.register_successes(waiting)
            self._connection.answer([i.request for i in waiting], _REGISTER_RES, answers)

    @override
    def send_repeated(self, batch: Batch) -> None:
        """The protocol has no request keys."""
        self.send_registered([batch])

    @override
    def send_refused(self, batch: Batch, reason: str, outcome: Outcome) -> None:
        """The protocol does not say why, so the log does."""
        if outcome is Outcome.UNKNOWN:
            if batch.request is not None:
                # an answer is either "registered" or "refused": no answer is what says it
                self._connection.close(
                    CloseReason.OUTCOME_UNKNOWN, detail=reason, level=logging.WARNING
                )
            return
        extra = {**self._connection.log_extra, "reason": reason}
        mlog.info("registration refused", extra=extra)
        if batch.request is not None:
            self._send(_REGISTER_RES, codec.REGISTER_FAILURE, conversation=batch.request)

    @override
    def encode_result(
        self, request: chatter.Conversation | None, result: QueryResult
    ) -> Steps[list[bytes]]:
        return codec.encode_query_result(result)

    @override
    def send_result(self, request: chatter.Conversation | None, parts: list[bytes]) -> None:
        self._send(_QUERY_RES, parts, conversation=request)

    @override
    def send_notification(self, message: bytes) -> None:
        """Clients of persisted events are to confirm them now and then, or are closed."""
        if not self._session.is_persisted or self._ack is not None:
            self._send_alone(_NOTIFY, message)
        elif self._connection.close_reason is None:
            self._ack = self._connection.send(
                _NOTIFY, message, last=False, timeout_s=limits.ACK_TIMEOUT_S
            )

    @override
    def send_status(self, status: Status) -> None:
        self._send_alone(*codec.encode(MsgStatusNotify(status)))

    def _send_alone(self, msg_type: str, data: bytes) -> None:
        """Send a message without an answer, if the connection is open."""
        if self._connection.close_reason is None:
            self._connection.send_alone(msg_type, data)

    def _send(
        self,
        msg_type: str,
        data: bytes | Sequence[bytes],
        *,
        conversation: chatter.Conversation | None,
    ) -> None:
        """Answer, if the client is still there and waits for it."""
        if self._connection.close_reason is not None or conversation is None:
            return
        if conversation.may_send:
            self._connection.send(msg_type, data, conversation=conversation)


def _request(message: chatter.Message) -> chatter.Conversation | None:
    return None if message.is_last else message.conversation
