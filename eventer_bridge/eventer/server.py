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
from itertools import compress
from typing import Final, TypeGuard

from eventer_bridge import chatter, limits, slices
from eventer_bridge.core.authentication import Authenticator
from eventer_bridge.core.base import EventCore
from eventer_bridge.core.client_server import ClientServer
from eventer_bridge.core.client_service import ClientService, ObserveQueryCb
from eventer_bridge.core.client_session import ClientSession
from eventer_bridge.core.gathering import Gathered
from eventer_bridge.core.rights import Rights
from eventer_bridge.core.session import Session
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
from eventer_bridge.net import Admission
from eventer_bridge.net.stats import CloseReason
from eventer_bridge.packed import KnownTypes
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
    """Listen for Eventer clients.

    Args:
        core: answers registrations and queries; stays the caller's to close, after the
            server.
        address: where; port 0 takes a free one (see :attr:`EventerServer.address`).
        authenticator: lets clients in.
        tls: TLS context for all connections; None for plain TCP.
        admission: of the process; None: one of its own.
        observe_query: called after each query with its parameters and the seconds it took.

    Raises:
        OSError: the address cannot be listened on.
    """
    server = EventerServer(core, authenticator, encoding, observe_query)
    server.service.known_types = core.known_types(codec.read_known_type)
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
        """What is listened on, with the port that was taken."""
        return self.listener.address

    @property
    def connections(self) -> frozenset[chatter.Connection]:
        """Connections that are not gone yet."""
        return self.listener.connections


class _Client(chatter.Handler):
    """One client's connection. Its requests are told by their conversation; None: no answer."""

    def __init__(self, service: ClientService, connection: chatter.Connection) -> None:
        self._service = service
        self._connection = connection
        self._known_types: KnownTypes | None = None  # until it is accepted
        self._session: ClientSession[chatter.Conversation | None] = ClientSession(
            service, connection, self
        )
        self._init: chatter.Conversation | None = None  # where it waits for an answer
        self._large_bytes = limits.LARGE_MESSAGE_BYTES
        self._ack: chatter.Conversation | None = None

    # --- chatter.Handler ----------------------------------------------------------------

    def on_message(self, message: chatter.Message) -> None:
        """A message came."""
        is_large = len(message.data) > self._large_bytes and message.type == _REGISTER_REQ
        if is_large and self._session.rights is not None:
            self._session.registrations.take_in(self._take_in(message))
            return
        if message.type == _REGISTER_REQ and (
            packed := codec.pack_register_req(message.data, self._known_types)
        ):
            self._session.registrations.register(_request(message), packed)
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
                self._session.registrations.register(_request(message), decoded.register_events)
            case MsgQueryReq():
                self._on_query(message, decoded.params)
            case MsgEventsAck():
                self._on_ack(message)
            case RefusedReq() if decoded.message_type is MsgRegisterReq:
                self._session.registrations.refuse(_request(message), decoded.reason)
            case RefusedReq():
                raise RemoteProtocolError(decoded.reason)
            case _:
                raise RemoteProtocolError(f"{message.type} is not expected now")

    def on_several(self) -> bool:
        """See ``Handler``: takes registrations, none of which is large."""
        registrations = self._session.registrations
        if self._session.rights is None or (room := registrations.room) <= 0:
            return False
        ids, messages = self._connection.peek_requests(_REGISTER_REQ, room)
        asked = codec.decode_register_reqs(messages, room, self._known_types)
        n_allowed = registrations.n_allowed(asked)
        if not n_allowed:
            return False
        conversations = self._connection.take_requests(ids[:n_allowed])
        del asked[n_allowed:]
        n_events = sum([len(events) or 1 for events in asked])
        registrations.gather(Gathered([*conversations], asked, n_events))
        return True

    def on_closing(self) -> None:
        """The connection is closed."""
        self._session.leave()

    def on_closed(self, reason: CloseReason) -> None:
        """The connection is gone."""
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
        request = await slices.run(codec.decode_register_req(message.data))
        conversation = _request(message)
        del message  # it may be large
        if isinstance(request, RefusedReq):
            self._session.registrations.refuse(conversation, request.reason)
        else:
            await self._session.registrations.register_large(conversation, request.register_events)

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

    def use_rights(self, rights: Rights) -> None:
        """See ``ClientWire``."""
        self._large_bytes = min(limits.LARGE_MESSAGE_BYTES, rights.inline_bytes)
        # the payloads of others are looked at in any case
        self._known_types = None if rights.has_schemas else self._service.known_types

    def send_accepted(self, status: Status, *_: object) -> None:
        """See ``ClientWire``."""
        self._send(*codec.encode(MsgInitRes(status)), conversation=self._init)

    def send_declined(self, reason: str) -> None:
        """See ``ClientWire``."""
        if self._init is not None:
            self._send(*codec.encode(MsgInitRes(None, reason)), conversation=self._init)

    def keep_encoded(
        self, requests: Sequence[chatter.Conversation | None], sessions: Sequence[Session]
    ) -> None:
        """See ``ClientWire``. Not if one of them wants no answer."""
        if None not in requests:
            encoding.keep_encoded(sessions)

    def send_registered(
        self, requests: Sequence[chatter.Conversation | None], sessions: Sequence[Session]
    ) -> None:
        """See ``ClientWire``."""
        waiting = [i for i in requests if _is_waiting(i)]
        if not waiting or self._connection.close_reason is not None:
            return
        if len(waiting) < len(requests):
            sessions = [*compress(sessions, map(_is_waiting, requests))]
        answers = encoding.register_successes(sessions)
        self._connection.answer(waiting, _REGISTER_RES, answers)

    def send_repeated(self, request: chatter.Conversation | None, session: Session) -> None:
        """See ``ClientWire``; the protocol has no request keys."""
        self.send_registered([request], [session])

    def send_refused(
        self, request: chatter.Conversation | None, reason: str, outcome: Outcome
    ) -> None:
        """See ``ClientWire``. The protocol does not say why, so the log does."""
        if outcome is Outcome.UNKNOWN:
            if request is not None:
                # an answer is either "registered" or "refused": no answer is what says it
                self._connection.close(
                    CloseReason.OUTCOME_UNKNOWN, detail=reason, level=logging.WARNING
                )
            return
        extra = {**self._connection.log_extra, "reason": reason}
        mlog.info("registration refused", extra=extra)
        if request is not None:
            self._send(_REGISTER_RES, codec.REGISTER_FAILURE, conversation=request)

    def encode_result(
        self, request: chatter.Conversation | None, result: QueryResult
    ) -> Steps[list[bytes]]:
        """See ``ClientWire``."""
        return codec.encode_query_result(result)

    def send_result(self, request: chatter.Conversation | None, parts: list[bytes]) -> None:
        """See ``ClientWire``."""
        self._send(_QUERY_RES, parts, conversation=request)

    def send_notification(self, message: bytes) -> None:
        """See ``ClientWire``; a ``MsgEventsNotify``.

        Who asked for persisted events keeps them: it is asked now and then to say that it
        has them, and closed if it does not.
        """
        if not self._session.is_persisted or self._ack is not None:
            self._send_alone(_NOTIFY, message)
        elif self._connection.close_reason is None:
            self._ack = self._connection.send(
                _NOTIFY, message, last=False, timeout_s=limits.ACK_TIMEOUT_S
            )

    def send_status(self, status: Status) -> None:
        """See ``ClientWire``."""
        self._send_alone(*codec.encode(MsgStatusNotify(status)))

    def _send_alone(self, msg_type: str, data: bytes) -> None:
        """Send what is not answered, if the client is still there."""
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


def _is_waiting(request: chatter.Conversation | None) -> TypeGuard[chatter.Conversation]:
    """Whether somebody waits for an answer."""
    return request is not None and request.may_send
