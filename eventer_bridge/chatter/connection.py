"""One chatter connection: the protocol state (003) on a :class:`~eventer_bridge.net.stream.Stream`.

Messages go to a :class:`Handler`, synchronously and in order; what it sends meanwhile leaves in
one piece. Besides what every stream does, a connection is not read from while too many
conversations of the peer wait for us, and a peer that pings and does not read is closed.

Runs on the event loop's thread.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence

from hat import aio

from eventer_bridge import limits
from eventer_bridge.chatter.codec import Dialect
from eventer_bridge.chatter.conversation import Conversation
from eventer_bridge.chatter.handler import ConnectionSettings, Handler
from eventer_bridge.chatter.protocol import ChatterProtocol, Handled, Message
from eventer_bridge.net.admission import Place
from eventer_bridge.net.liveness import Liveness
from eventer_bridge.net.stats import ServerStats
from eventer_bridge.net.stream import Pause, Stream


class Connection(Stream[Message | Handled], aio.Resource):
    """See the module. Made by ``connect`` and ``listen``."""

    mlog = logging.getLogger(__name__)

    def __init__(
        self,
        make_handler: "Callable[[Connection], Handler]",
        settings: ConnectionSettings,
        stats: ServerStats | None = None,
        connections: "set[Connection] | None" = None,
        place: Place | None = None,
    ) -> None:
        self._protocol = ChatterProtocol(
            settings.dialect,
            max_frame_bytes=settings.max_frame_bytes,
            conversation_timeout_s=settings.conversation_timeout_s,
        )
        super().__init__(
            self._protocol,
            ServerStats() if stats is None else stats,
            Liveness(settings.ping_delay_s, settings.ping_timeout_s),
            place,
            connections,
        )
        self._settings = settings
        self._make_handler = make_handler
        self._handler: Handler | None = None
        self._pong: asyncio.Future[None] | None = None
        self._n_pongs_read = 0  # at most: those that were sent before writing was paused
        self._async_group = aio.Group()

    # --- what the user calls ------------------------------------------------------------

    @property
    def async_group(self) -> aio.Group:
        """Group of the connection; it closes when the connection does."""
        return self._async_group

    @property
    def handler(self) -> Handler | None:
        """What gets its messages; None if it could not be made, and when the connection is gone."""
        return self._handler

    @property
    def dialect(self) -> Dialect | None:
        """What is spoken; None until the peer's first message tells."""
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
        """Send a message: to begin a conversation, to go on with it, or to end it.

        It leaves when the handler returns, or with what else is sent in this turn of the
        loop. A peer that reads so slowly that too much of it waits is closed.

        Args:
            msg_type: full name of the data's type, as "HatEventer.MsgQueryReq".
            data: SBS of that type, or the parts of it where it is large.
            conversation: what it belongs to; None begins a new one.
            last: whether the conversation ends with it: no answer is expected.
            token: whether it is the peer's turn then.
            timeout_s: how long the peer may take then, before ``Handler.on_timeout``;
                None: what the connection has for all; ``math.inf``: for ever.

        Returns:
            The conversation.

        Raises:
            ClosedError: the connection is closed.
            LocalProtocolError: it may not be sent now.
            LimitError: too many conversations of ours are open.
        """
        self.check_open()
        conversation = self._protocol.send(
            msg_type, data, conversation=conversation, last=last, token=token, timeout_s=timeout_s
        )
        self._write_pending()
        if Pause.CONVERSATIONS_FULL in self._pauses and not self._protocol.is_full:
            self._loop.call_soon(self.resume_reading, Pause.CONVERSATIONS_FULL)
        self.has_answered()
        return conversation

    def send_alone(self, msg_type: str, data: bytes) -> None:
        """As :meth:`send` of a message that begins and ends its conversation, but faster.

        Raises:
            ClosedError: the connection is closed.
            LocalProtocolError: it has no form in the dialect, or that is not known yet.
        """
        self.check_open()
        self._protocol.send_alone(msg_type, data)
        self._write_pending()

    def end(self, conversation: Conversation) -> None:
        """Have done with a conversation of ours that has its answer, whatever its flags are.

        A peer that sends more in it is closed.
        """
        self._protocol.end(conversation)

    async def ping(self) -> float:
        """Ping the peer.

        Returns:
            Round-trip time in seconds.

        Raises:
            ClosedError: the connection is closed, or was meanwhile.
            LocalProtocolError: the dialect is not known yet.
        """
        # one ping at a time: a pong does not tell more than that the last one was answered
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

    def on_open(self) -> None:
        """See :class:`Stream`."""
        self._async_group.spawn(aio.call_on_cancel, self._stop)
        if self._place is None:
            self._async_group.spawn(self.sweep_alone)
        self._handler = self._make_handler(self)

    def take_turn(self) -> None:
        """See :class:`Stream`."""
        try:
            super().take_turn()
        finally:
            self._write_pongs()
        self._check_pongs()
        if not self._protocol.is_pinging:
            self._wake_pong()

    def on_message(self, message: Message | Handled) -> None:
        """See :class:`Stream`."""
        if isinstance(message, Handled):
            return
        assert self._handler is not None
        self.has_begun()
        self._handler.on_message(message)
        if self._protocol.is_full:
            self.pause_reading(Pause.CONVERSATIONS_FULL)

    def on_closing(self) -> None:
        """See :class:`Stream`."""
        self._wake_pong()
        self._async_group.close()
        if self._handler is not None:
            self.guard(self._handler.on_closing)

    def on_closed(self, reason: str) -> None:
        """See :class:`Stream`."""
        # or else the handler and the connection would hold each other until garbage is collected
        handler, self._handler = self._handler, None
        if handler is not None:
            handler.on_closed(reason)

    def on_sweep(self) -> None:
        """See :class:`Stream`."""
        for conversation in self._protocol.expire():
            if self._handler is not None and self._close_reason is None:
                self.guard(self._handler.on_timeout, conversation)

    def flush(self) -> None:
        """Have what was sent leave now."""
        self._write_pongs()  # which came before it
        super().flush()

    def pause_writing(self) -> None:
        """The peer does not read as fast as it is sent to."""
        self._n_pongs_read = self._protocol.n_pongs
        super().pause_writing()

    def probe(self) -> None:
        """See :class:`Stream`."""
        if self._protocol.dialect is not None:  # or else nothing can be sent yet
            self._protocol.ping()
            self._write_pending()
            self.flush()

    @property
    def first_message_timeout_s(self) -> float:
        """See :class:`Stream`."""
        return self._settings.first_message_timeout_s

    @property
    def is_answering(self) -> bool:
        """See :class:`Stream`."""
        return bool(self._protocol.awaiting_reply)

    # --- within -------------------------------------------------------------------------

    def _write_pending(self) -> None:
        if self._protocol.unsent_bytes:
            self.write_parts(self._protocol.parts_to_send())

    def _write_pongs(self) -> None:
        if self._protocol.unsent_bytes:
            self.write_anyway(self._protocol.parts_to_send())  # bounded by _check_pongs

    def _check_pongs(self) -> None:
        """Close a peer that pings and does not read; nothing else bounds the pongs."""
        n_unread = self._protocol.n_pongs - self._n_pongs_read
        if self.is_write_blocked and n_unread > limits.MAX_UNREAD_PONGS:
            self.abort("slow consumer", detail=f"{n_unread} pongs are not read")

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

    async def _stop(self) -> None:
        self.close()  # where the group was closed by its user
        await self.wait_lost()
