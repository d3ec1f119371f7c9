"""One connection to a server: the asyncio shell around the Mariner protocol state (002).

It answers the server's pings, tells when the transport takes more, and keeps the reason
why it was lost. What the messages mean is the client's business.

Runs on the event loop's thread.
"""

import asyncio
import contextlib
from collections.abc import Callable
from typing import cast

from eventer_bridge.net import errors as connection_errors
from mariner.client import reasons
from mariner.errors import LocalProtocolError, RemoteProtocolError
from mariner.wire.messages import Message, PingReq, PingRes
from mariner.wire.protocol import LargeMessage, Protocol, RefusedRegister, Role


class Connection(asyncio.Protocol):
    """See the module.

    Args:
        on_message: called with each message but ``ping_req``.
        on_lost: called once, when the connection is gone; ``close_reason`` says why.
    """

    def __init__(
        self, on_message: Callable[[Message | RefusedRegister], None], on_lost: Callable[[], None]
    ) -> None:
        self._on_message = on_message
        self._on_lost = on_lost
        self._protocol = Protocol(Role.CLIENT)
        self._transport: asyncio.Transport | None = None
        self._can_write = asyncio.Event()
        self._can_write.set()
        self._is_reading_paused = False
        self._owed_pong: PingRes | None = None
        self._lost = asyncio.Event()
        self.has_received = False
        self.close_reason: str | None = None

    # --- asyncio.Protocol -----------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The server accepted (over TLS: the handshake is done)."""
        # uvloop's transports are no subclasses of asyncio.Transport
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Bytes came in."""
        self.has_received = True
        self._protocol.receive_data(data)
        self._process()

    def eof_received(self) -> bool:
        """The server sends no more: the transport closes itself."""
        try:
            self._protocol.receive_eof()
        except RemoteProtocolError as e:
            self.abort(reasons.broken_protocol(e))
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone."""
        self._lost.set()
        self._can_write.set()
        if self.close_reason is None:
            # what was read before, but held back, is still the user's
            self._is_reading_paused = False
            self._process()
        if self.close_reason is None:
            self.close_reason = connection_errors.lost(exc)
        self._on_lost()

    def pause_writing(self) -> None:
        """The server does not read as fast as it is sent to."""
        self._can_write.clear()

    def resume_writing(self) -> None:
        """What waited has left."""
        self._can_write.set()
        if self._owed_pong is not None:
            pong, self._owed_pong = self._owed_pong, None
            self.send(pong)

    # --- what the client calls ------------------------------------------------------

    @property
    def is_connected(self) -> bool:
        """Whether there ever was a connection (over TLS: a finished handshake)."""
        return self._transport is not None

    @property
    def is_reading_paused(self) -> bool:
        """Whether the socket is not read from, so that nothing can be heard."""
        return self._is_reading_paused

    def send(self, message: Message) -> bool:
        """Send a message; nothing happens without a connection, or while it is closing.

        Returns:
            Whether it was handed over to be sent.

        Raises:
            LocalProtocolError: it is not allowed now, or has no form on the wire.
        """
        if self._transport is None or self.close_reason is not None:
            return False
        try:
            data = self._protocol.send(message)
        except UnicodeEncodeError as e:
            raise LocalProtocolError(f"a text has no UTF-8 form: {e}") from e
        except OverflowError as e:
            raise LocalProtocolError(str(e)) from e
        if self._transport.is_closing():
            return False
        self._transport.write(data)
        return True

    async def wait_writable(self) -> None:
        """Wait until the transport takes more (or is lost: then nobody waits)."""
        while not self._can_write.is_set():
            await self._can_write.wait()

    def pause_reading(self) -> None:
        """Read no more from the socket; the server is held back by TCP."""
        if not self._is_reading_paused and self._transport is not None:
            self._is_reading_paused = True
            if not self._transport.is_closing():
                self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Read again; first of all what was read but held back."""
        if self._is_reading_paused and self._transport is not None:
            self._is_reading_paused = False
            if not self._transport.is_closing():
                self._transport.resume_reading()
            self._process()

    def close(self, reason: str) -> None:
        """Close when what was written has left."""
        self.close_reason = self.close_reason or reason
        if self._transport is not None:
            self._transport.close()

    def abort(self, reason: str) -> None:
        """Close at once."""
        self.close_reason = self.close_reason or reason
        if self._transport is not None and not self._lost.is_set():
            self._transport.abort()

    async def wait_lost(self, timeout_s: float) -> None:
        """After :meth:`close`: wait until it is gone; after the timeout, drop it."""
        if self._transport is None:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._lost.wait()
        if not self._lost.is_set():
            self._transport.abort()
            await self._lost.wait()

    def _process(self) -> None:
        next_message = self._protocol.next_message
        try:
            while not self._is_reading_paused:
                message = next_message()
                if message is None:
                    break
                if isinstance(message, PingReq):
                    self._answer(PingRes(message.ping_id))
                elif not isinstance(message, LargeMessage):  # which only servers get
                    self._on_message(message)
        except RemoteProtocolError as e:
            self.abort(reasons.broken_protocol(e))

    def _answer(self, pong: PingRes) -> None:
        # a server that pings without reading gets one answer, when it reads again
        if self._can_write.is_set():
            self.send(pong)
        else:
            self._owed_pong = pong
