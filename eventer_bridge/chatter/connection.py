"""Chatter connections (003): the protocol state on a stream; :func:`connect` and :func:`listen`.

Messages go to a :class:`Handler`, synchronously and in order; its answers leave together. Besides
the bounds of every stream, a connection is not read from while too many conversations of the peer
await our reply, and a peer that pings without reading is closed.

Runs on the event loop's thread.
"""

import abc
import asyncio
import functools
import logging
import math
import re
import ssl
import time
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, TypeVar, cast

from typing_extensions import override

from eventer_bridge.chatter.codec import Dialect
from eventer_bridge.chatter.protocol import ChatterProtocol, Conversation, Handled, Message
from eventer_bridge.errors import ConfigurationError, ConnectError, RemoteProtocolError
from eventer_bridge.net import accepting
from eventer_bridge.net import limits as net_limits
from eventer_bridge.net.accepting import Acceptor, StreamListener
from eventer_bridge.net.admission import Admission, Slot
from eventer_bridge.net.connecting import connecting, open_connection
from eventer_bridge.net.liveness import Liveness
from eventer_bridge.net.stats import CloseReason, ServerStats
from eventer_bridge.net.stream import OwnedStream, Pause
from eventer_bridge.resources import closed_on_error

_FORM: Final = re.compile(
    r"(?P<scheme>tcp|ssl)\+sbs://(\[(?P<v6>[0-9A-Fa-f:.]+)\]|(?P<host>[^\s/?#@:\[\]]+))"
    r":(?P<port>[0-9]{1,5})"
)


class Address(NamedTuple):
    """Address of an end-point: ``<scheme>://<host>:<port>``; a listener's port may be 0."""

    host: str
    port: int
    is_tls: bool = False

    @override
    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'ssl' if self.is_tls else 'tcp'}+sbs://{host}:{self.port}"


def parse_address(text: str) -> Address:
    """Parse an address, or raise ``ConfigurationError``."""
    match = _FORM.fullmatch(text)
    if match is None or int(match["port"]) > 65_535:
        raise ConfigurationError(
            f"address {text!r}: expected tcp+sbs://<host>:<port> or ssl+sbs://<host>:<port>,"
            " with a port up to 65535 and an IPv6 address in brackets"
        )
    return Address(match["v6"] or match["host"], int(match["port"]), match["scheme"] == "ssl")


class Handler(abc.ABC):
    """Handles the messages of a connection: the layer above chatter.

    All methods are called on the event loop's thread and must not block. A ``RemoteProtocolError``
    closes the connection with that reason; any other error closes it too, and is logged as ours.
    """

    @abc.abstractmethod
    def on_message(self, message: Message) -> None:
        """A message arrived; pings are handled by the protocol."""

    def on_several(self) -> bool:
        """Several came together; some may be taken, by ``Connection.take_requests``: then true."""
        return False

    def on_timeout(self, conversation: Conversation) -> None:
        """The peer did not continue a conversation in time: its later messages are dropped."""
        raise RemoteProtocolError(f"{conversation!r} timed out")

    def on_closing(self) -> None:  # noqa: B027  # not everybody wants to know
        """The connection is closed, here or by the peer: no more sending."""

    def on_closed(self, reason: CloseReason) -> None:  # noqa: B027  # not everybody wants to know
        """The connection is gone; the last call, made once."""


HandlerT = TypeVar("HandlerT", bound=Handler)


class Connection(OwnedStream[Message | Handled]):
    """One connection; see the module. It closes with its group, and its group with it.

    ``handler`` is None if creating it failed or the connection is gone.
    """

    mlog = logging.getLogger(__name__)

    def __init__(
        self,
        make_handler: "Callable[[Connection], Handler]",
        stats: ServerStats | None = None,
        connections: "set[Connection] | None" = None,
        slot: Slot | None = None,
        *,
        dialect: Dialect | None = None,
        conversation_timeout_s: float = net_limits.CONVERSATION_TIMEOUT_S,
    ) -> None:
        answers = net_limits.MAX_ANSWER_FRAME_BYTES
        self._protocol = ChatterProtocol(
            dialect,
            max_frame_bytes=answers if slot is None else net_limits.MAX_FRAME_BYTES,
            conversation_timeout_s=conversation_timeout_s,
        )
        liveness = Liveness(net_limits.PING_DELAY_S, net_limits.PING_TIMEOUT_S)
        super().__init__(self._protocol, stats or ServerStats(), liveness, slot, connections)
        self._make_handler = make_handler
        self.handler: Handler | None = None
        self._pong: asyncio.Future[None] | None = None
        self._n_frames = 0  # taken from the protocol
        self._n_pongs_read = 0  # upper bound: pongs sent before writing was paused

    # --- called by users ----------------------------------------------------------------

    @property
    def dialect(self) -> Dialect | None:
        """The dialect; None until the peer's first message shows it."""
        return self._protocol.dialect

    def send(
        self,
        msg_type: str,
        data: bytes | Sequence[bytes],
        *,
        conversation: Conversation | None = None,
        last: bool = True,
        token: bool = True,
        timeout_s: float | None = None,
    ) -> Conversation:
        """Send a message that begins, continues or ends a conversation, which is returned.

        It leaves when the handler returns, together with other messages. A peer that reads so
        slowly that too much waits is closed.

        Args:
            msg_type: full name of the data's type, as "HatEventer.MsgQueryReq".
            data: SBS of that type, in parts if large.
            conversation: to continue; None begins a new one.
            last: whether it ends the conversation: no answer is expected.
            token: whether it passes the turn to the peer.
            timeout_s: time limit for the peer's next message, before ``Handler.on_timeout``; None:
                the connection's default; ``math.inf``: none.

        ``ClosedError``: the connection is closed. ``LocalProtocolError``: the message may not be
        sent now. ``LimitError``: too many conversations of ours are open.
        """
        if self.close_reason is not None:
            self.check_open()
        conversation = self._protocol.send(
            msg_type, data, conversation=conversation, last=last, token=token, timeout_s=timeout_s
        )
        self._write_pending()
        if self.pauses or self.has_ended:
            self._has_sent()
        return conversation

    def answer(
        self, conversations: Sequence[Conversation], msg_type: str, data: Sequence[bytes]
    ) -> None:
        """As :meth:`send` of the last messages of some of the peer's conversations, but faster."""
        if self.close_reason is not None:
            self.check_open()
        self._protocol.answer(conversations, msg_type, data)
        self._write_pending()
        if self.pauses or self.has_ended:
            self._has_sent()

    def send_alone(self, msg_type: str, data: bytes) -> None:
        """As :meth:`send` of a message that begins and ends its conversation, but faster."""
        if self.close_reason is not None:
            self.check_open()
        self._protocol.send_alone(msg_type, data)
        self._write_pending()

    def peek_requests(self, msg_type: str, most: int) -> tuple[list[int], list[bytes]]:
        """As ``ChatterProtocol.peek_requests``; for ``Handler.on_several``."""
        return self._protocol.peek_requests(msg_type, most)

    def take_requests(self, ids: Sequence[int]) -> list[Conversation]:
        """As ``ChatterProtocol.take_requests``; they count as handled."""
        self.n_messages += len(ids)
        conversations = self._protocol.take_requests(ids)
        if self._protocol.is_full:
            self.pause_reading(Pause.CONVERSATIONS_FULL)
        return conversations

    def end(self, conversation: Conversation) -> None:
        """End an answered conversation of ours: a peer that sends more of it is closed."""
        self._protocol.end(conversation)

    async def ping(self) -> float:
        """Ping the peer; returns the round-trip time in seconds. Raises as :meth:`send`."""
        # one ping at a time: a pong answers the last one only
        while self._protocol.is_pinging:
            await self._wait_pong()
        self.check_open()
        started = time.perf_counter()
        self._protocol.ping()
        self._write_pending()
        self.flush()
        await self._wait_pong()
        return time.perf_counter() - started

    # --- Stream -------------------------------------------------------------------------

    @override
    def on_open(self) -> None:
        super().on_open()
        self.handler = self._make_handler(self)

    @override
    def take_turn(self) -> None:
        try:
            super().take_turn()
        finally:
            self._write_pongs()
        self._check_pongs()
        if not self._protocol.is_pinging:
            self._wake_pong()

    @override
    def take_some(self) -> bool:
        if self._protocol.has_several:
            assert self.handler is not None
            if self.handler.on_several():
                return True
        return super().take_some()

    @override
    def on_message(self, message: Message | Handled) -> None:
        if isinstance(message, Handled):
            return
        assert self.handler is not None
        if self.first_deadline_s != math.inf:
            self.clear_first_deadline()
        self.handler.on_message(message)
        if self._protocol.is_full:
            self.pause_reading(Pause.CONVERSATIONS_FULL)

    @override
    def on_closing(self) -> None:
        self._wake_pong()
        super().on_closing()
        if self.handler is not None:
            self.guard(self.handler.on_closing)

    @override
    def on_closed(self, reason: CloseReason) -> None:
        # else the handler and the connection would hold each other until garbage collection
        handler, self.handler = self.handler, None
        if handler is not None:
            handler.on_closed(reason)

    @override
    def on_sweep(self) -> None:
        for conversation in self._protocol.expire():
            if self.handler is not None and self.close_reason is None:
                self.guard(self.handler.on_timeout, conversation)

    @override
    def flush(self) -> None:
        self._write_pongs()  # they precede it
        super().flush()

    @override
    def pause_writing(self) -> None:
        self._n_pongs_read = self._protocol.n_pongs
        super().pause_writing()

    @override
    def probe(self) -> None:
        if self._protocol.dialect is not None:  # else nothing can be sent yet
            self._protocol.ping()
            self._write_pending()
            self.flush()

    @property
    @override
    def is_answering(self) -> bool:
        return bool(self._protocol.awaiting_reply)

    # --- internals ----------------------------------------------------------------------

    def _has_sent(self) -> None:
        """Fewer conversations may wait for us."""
        if Pause.CONVERSATIONS_FULL in self.pauses and not self._protocol.is_full:
            self._loop.call_soon(self.resume_reading, Pause.CONVERSATIONS_FULL)
        self.close_if_answered()

    def _write_pending(self) -> None:
        """Write the protocol's messages, which may wait there until the next flush."""
        is_soon = self._is_leaving and not self.is_write_blocked
        if not is_soon or self._protocol.unsent_bytes >= net_limits.SEND_HIGH_WATER_BYTES:
            self.write_parts(self._protocol.parts_to_send(), self._new_frames())

    def _write_pongs(self) -> None:
        if self._protocol.unsent_bytes:
            # bounded by _check_pongs
            self.write_unbounded(self._protocol.parts_to_send(), self._new_frames())

    def _new_frames(self) -> int:
        n_frames, self._n_frames = self._protocol.n_sent - self._n_frames, self._protocol.n_sent
        return n_frames

    def _check_pongs(self) -> None:
        """Close a peer that pings without reading; nothing else bounds the pongs."""
        n_unread = self._protocol.n_pongs - self._n_pongs_read
        if self.is_write_blocked and n_unread > net_limits.MAX_UNREAD_PONGS:
            self.abort(CloseReason.SLOW_CONSUMER, detail=f"{n_unread} pongs are not read")

    async def _wait_pong(self) -> None:
        self.check_open()
        if self._pong is None:
            self._pong = self._loop.create_future()
        await asyncio.shield(self._pong)
        self.check_open()

    def _wake_pong(self) -> None:
        if self._pong is not None:
            self._pong.set_result(None)
            self._pong = None


async def connect(
    address: Address,
    make_handler: Callable[[Connection], HandlerT],
    *,
    tls: ssl.SSLContext | None = None,
    server_hostname: str | None = None,
    dialect: Dialect = Dialect.CURRENT,
    connect_timeout_s: float = net_limits.CONNECT_TIMEOUT_S,
    conversation_timeout_s: float = net_limits.CONVERSATION_TIMEOUT_S,
) -> tuple[Connection, HandlerT]:
    """Connect to a listener; returns the connection, which the caller closes, and its handler.

    Args:
        make_handler: called once, with the connection; returns the handler of its messages.
        tls: for an ``ssl+sbs`` address; None: one that verifies the listener's certificate with the
            CAs that this system trusts.
        server_hostname: name to check the listener's certificate for; None: its host.
        dialect: of our messages; a listener answers in it.
        connect_timeout_s: for TCP and TLS together.
        conversation_timeout_s: time limit for the peer to continue a conversation.

    ``ConnectError`` says why there is none; ``ConfigurationError``: a TLS context is given for a
    ``tcp+sbs`` address.
    """
    if tls is not None and not address.is_tls:
        raise ConfigurationError(f"{address}: TLS is given, expected an address of ssl+sbs")
    if tls is None and address.is_tls:
        tls = ssl.create_default_context()
    server_name = (server_hostname or address.host) if tls is not None else None
    connection = Connection(
        make_handler, dialect=dialect, conversation_timeout_s=conversation_timeout_s
    )
    async with closed_on_error(connection):
        async with connecting(address, server_name, connect_timeout_s):
            await open_connection(connection, address.host, address.port, tls, server_name)
        if connection.handler is None:
            raise ConnectError(f"{address}: {connection.close_text}")
    return connection, cast("HandlerT", connection.handler)


async def listen(
    address: Address,
    make_handler: Callable[[Connection], Handler],
    *,
    tls: ssl.SSLContext | None = None,
    admission: Admission | None = None,
    stats: ServerStats | None = None,
) -> "Listener":
    """Listen for peers of either dialect.

    Port 0 takes a free one (:attr:`Listener.address`). ``make_handler`` is called with each new
    connection; it returns the handler of its messages. ``admission``: the process' slots; None:
    its own. ``OSError``: listening failed. ``ConfigurationError``: TLS, a context with a
    certificate, and the address do not match.
    """
    if address.is_tls is (tls is None):
        expected = "ssl+sbs with TLS, or tcp+sbs without"
        raise ConfigurationError(f"{address}: expected an address of {expected}")
    stats = stats or ServerStats()
    connections: set[Connection] = set()
    acceptor = await accepting.listen(
        address.host,
        address.port,
        functools.partial(Connection, make_handler, stats, connections),
        admission=admission,
        stats=stats,
        tls=tls,
    )
    return Listener(acceptor, connections, address)


class Listener(StreamListener[Connection]):
    """Accepts connections. Created by :func:`listen`; its address has the actual port."""

    def __init__(self, acceptor: Acceptor, connections: set[Connection], address: Address) -> None:
        super().__init__(acceptor, connections)
        self.address = address._replace(port=self.port)

    @property
    def connections(self) -> frozenset[Connection]:
        """Connections that still exist."""
        return self.streams
