"""One chatter connection: the protocol state (003) on a :class:`~eventer_bridge.net.stream.Stream`.

Messages go to a :class:`Handler`, synchronously and in order; its answers leave together.
Besides the bounds of every stream, a connection is not read from while too many conversations
of the peer await our reply, and a peer that pings without reading is closed.

Runs on the event loop's thread.
"""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Sequence

from hat import aio

from eventer_bridge.chatter.codec import Dialect
from eventer_bridge.chatter.conversation import Conversation
from eventer_bridge.chatter.handler import ConnectionSettings, Handler
from eventer_bridge.chatter.protocol import ChatterProtocol, Handled, Message
from eventer_bridge.net import limits as net_limits
from eventer_bridge.net.admission import Slot
from eventer_bridge.net.liveness import Liveness
from eventer_bridge.net.pause import Pause
from eventer_bridge.net.stats import CloseReason, ServerStats
from eventer_bridge.net.stream import Stream


class Connection(Stream[Message | Handled], aio.Resource):
    """See the module. Created by ``connect`` and ``listen``."""

    mlog = logging.getLogger(__name__)

    def __init__(
        self,
        make_handler: "Callable[[Connection], Handler]",
        settings: ConnectionSettings,
        stats: ServerStats | None = None,
        connections: "set[Connection] | None" = None,
        slot: Slot | None = None,
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
            slot,
            connections,
        )
        self._settings = settings
        self._make_handler = make_handler
        self._handler: Handler | None = None
        self._pong: asyncio.Future[None] | None = None
        self._n_frames = 0  # taken from the protocol
        self._n_pongs_read = 0  # upper bound: pongs sent before writing was paused
        self._async_group = aio.Group()

    # --- called by users ----------------------------------------------------------------

    @property
    def async_group(self) -> aio.Group:
        """Group of the connection; it closes when the connection does."""
        return self._async_group

    @property
    def handler(self) -> Handler | None:
        """Handler of messages; None if creating it failed or the connection is gone."""
        return self._handler

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
        """Send a message that begins, continues or ends a conversation.

        It leaves when the handler returns, together with other messages. A peer that reads so
        slowly that too much waits is closed.

        Args:
            msg_type: full name of the data's type, as "HatEventer.MsgQueryReq".
            data: SBS of that type, in parts if large.
            conversation: to continue; None begins a new one.
            last: whether it ends the conversation: no answer is expected.
            token: whether it passes the turn to the peer.
            timeout_s: time limit for the peer's next message, before ``Handler.on_timeout``;
                None: the connection's default; ``math.inf``: none.

        Returns:
            The conversation.

        Raises:
            ClosedError: the connection is closed.
            LocalProtocolError: the message may not be sent now.
            LimitError: too many conversations of ours are open.
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
        """As :meth:`send` of the last messages of some of the peer's conversations, but faster.

        Args:
            conversations: to end.
            msg_type: full name of the data's type.
            data: SBS of that type, for each.

        Raises:
            ClosedError: the connection is closed.
            LocalProtocolError: one of them may not be sent now; nothing is sent.
        """
        if self.close_reason is not None:
            self.check_open()
        self._protocol.answer(conversations, msg_type, data)
        self._write_pending()
        if self.pauses or self.has_ended:
            self._has_sent()

    def send_alone(self, msg_type: str, data: bytes) -> None:
        """As :meth:`send` of a message that begins and ends its conversation, but faster.

        Raises:
            ClosedError: the connection is closed.
            LocalProtocolError: it has no form in the dialect, or the dialect is not known yet.
        """
        if self.close_reason is not None:
            self.check_open()
        self._protocol.send_alone(msg_type, data)
        self._write_pending()

    def peek_requests(self, msg_type: str, most: int) -> tuple[list[int], list[bytes]]:
        """See ``ChatterProtocol.peek_requests``; for ``Handler.on_several``."""
        return self._protocol.peek_requests(msg_type, most)

    def take_requests(self, ids: Sequence[int]) -> list[Conversation]:
        """See ``ChatterProtocol.take_requests``; they count as handled."""
        self.n_messages += len(ids)
        conversations = self._protocol.take_requests(ids)
        if self._protocol.is_full:
            self.pause_reading(Pause.CONVERSATIONS_FULL)
        return conversations

    def end(self, conversation: Conversation) -> None:
        """End an answered conversation of ours, whatever its flags.

        A peer that sends another message of it is closed.
        """
        self._protocol.end(conversation)

    async def ping(self) -> float:
        """Ping the peer.

        Returns:
            Round-trip time in seconds.

        Raises:
            ClosedError: the connection is closed, or was closed meanwhile.
            LocalProtocolError: the dialect is not known yet.
        """
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

    def on_open(self) -> None:
        """See :class:`Stream`."""
        self._async_group.spawn(aio.call_on_cancel, self._stop)
        if self._slot is None:
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

    def take_some(self) -> bool:
        """See :class:`Stream`; the handler may take requests that came together."""
        if self._protocol.has_several:
            assert self._handler is not None
            if self._handler.on_several():
                return True
        return super().take_some()

    def on_message(self, message: Message | Handled) -> None:
        """See :class:`Stream`."""
        if isinstance(message, Handled):
            return
        assert self._handler is not None
        if self.deadlines.first_message_s != math.inf:
            self.clear_first_deadline()
        self._handler.on_message(message)
        if self._protocol.is_full:
            self.pause_reading(Pause.CONVERSATIONS_FULL)

    def on_closing(self) -> None:
        """See :class:`Stream`."""
        self._wake_pong()
        self._async_group.close()
        if self._handler is not None:
            self.guard(self._handler.on_closing)

    def on_closed(self, reason: CloseReason) -> None:
        """See :class:`Stream`."""
        # else the handler and the connection would hold each other until garbage collection
        handler, self._handler = self._handler, None
        if handler is not None:
            handler.on_closed(reason)

    def on_sweep(self) -> None:
        """See :class:`Stream`."""
        for conversation in self._protocol.expire():
            if self._handler is not None and self.close_reason is None:
                self.guard(self._handler.on_timeout, conversation)

    def flush(self) -> None:
        """Write pending bytes now."""
        self._write_pongs()  # they precede it
        super().flush()

    def pause_writing(self) -> None:
        """The peer reads too slowly."""
        self._n_pongs_read = self._protocol.n_pongs
        super().pause_writing()

    def probe(self) -> None:
        """See :class:`Stream`."""
        if self._protocol.dialect is not None:  # else nothing can be sent yet
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

    async def _stop(self) -> None:
        self.close()  # if the user closed the group
        await self.wait_lost()
