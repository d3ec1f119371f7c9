"""Accepting connections, for all wires.

The loop's own ``create_server`` is not used: a connection is counted, and perhaps refused, before
it costs anything. A listener out of descriptors pauses briefly and continues.

Runs on the event loop's thread.
"""

import asyncio
import contextlib
import errno
import functools
import logging
import socket
import ssl
import time
from collections.abc import Callable
from typing import Any, Final, Generic, TypeAlias, TypeVar

from typing_extensions import override

from eventer_bridge import limits as core_limits
from eventer_bridge.net import limits
from eventer_bridge.net.admission import Admission, RefusedError, Slot
from eventer_bridge.net.sockets import has_sent, watch_peer
from eventer_bridge.net.stats import CloseReason, ServerStats
from eventer_bridge.net.stream import Stream
from eventer_bridge.resources import Resource, call_on_cancel, closed_on_error, uncancellable

mlog = logging.getLogger(__name__)
audit = logging.getLogger("audit")

StreamT = TypeVar("StreamT", bound=Stream[Any])

FactoryCb: TypeAlias = Callable[[Slot], asyncio.BaseProtocol]
"""Creates the protocol of a connection that was established: over TLS, after the handshake. It
must release the slot when the connection is lost and, from ``connection_made`` on, close when its
slot is taken (``Slot.when_taken``)."""

# `reason` of an SSLError in a handshake
_HANDSHAKE_PROBLEMS: Final = {
    "HTTP_REQUEST": "the peer speaks HTTP, not TLS",
    "WRONG_VERSION_NUMBER": "the peer does not speak TLS",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "the peer has no certificate",
    "NO_SHARED_CIPHER": "the peer shares no cipher",
    "UNSUPPORTED_PROTOCOL": "the peer speaks another version of TLS",
    "TLSV1_ALERT_UNKNOWN_CA": "the peer does not trust the server's certificate",
    "SSLV3_ALERT_BAD_CERTIFICATE": "the peer does not accept the server's certificate",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "the server's certificate has expired for the peer",
}


async def listen(
    host: str,
    port: int,
    make_protocol: FactoryCb,
    *,
    admission: Admission | None = None,
    stats: ServerStats | None = None,
    tls: ssl.SSLContext | None = None,
    handshake_timeout_s: float = limits.FIRST_MESSAGE_TIMEOUT_S,
) -> "Acceptor":
    """Listen for TCP connections; ``OSError``: that failed.

    ``host`` may be empty: all addresses; port 0 takes a free one (:attr:`Acceptor.port`).
    ``admission``: the process' slots; None: its own. ``tls``: for all connections, with a limit for
    its handshake; None for plain TCP.
    """
    admission, stats = admission or Admission(), stats or ServerStats()
    acceptor = Acceptor(make_protocol, admission, stats, tls, handshake_timeout_s)
    async with closed_on_error(acceptor):
        await acceptor._listen(host, port)
    return acceptor


class Acceptor(Resource):
    """Accepts connections until it is closed. Created by :func:`listen`.

    Closing it ends handshakes in progress; established connections belong to their owner.
    """

    def __init__(
        self,
        make_protocol: FactoryCb,
        admission: Admission,
        stats: ServerStats,
        tls: ssl.SSLContext | None,
        handshake_timeout_s: float,
    ) -> None:
        self._make_protocol = make_protocol
        self._admission = admission
        self._stats = stats
        self._tls_arguments: dict[str, Any] = {}
        if tls is not None:
            self._tls_arguments = {
                "ssl": tls,
                "ssl_handshake_timeout": handshake_timeout_s,
                "ssl_shutdown_timeout": limits.CLOSE_TIMEOUT_S,
            }
        self._loop = asyncio.get_running_loop()
        self.port = 0
        self._listeners: list[socket.socket] = []
        self._failure_logged_at = -limits.ACCEPT_FAILURE_LOG_S

    def use_tls(self, tls: ssl.SSLContext) -> None:
        """Replace the TLS context, for handshakes that begin from now on."""
        assert self._tls_arguments
        self._tls_arguments = {**self._tls_arguments, "ssl": tls}

    def stop(self) -> None:
        """Stop accepting at once, and close."""
        for listener in self._listeners:
            self._loop.remove_reader(listener)
            listener.close()
        self._listeners.clear()
        self.close()

    async def _listen(self, host: str, port: int) -> None:
        infos = await self._loop.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        with contextlib.ExitStack() as opened:
            listeners = [
                opened.enter_context(_listening_socket(family, address))
                for family, _, _, _, address in dict.fromkeys(infos)
            ]
            opened.pop_all()
        self._listeners = listeners
        self.port = int(listeners[0].getsockname()[1])
        for listener in listeners:
            self.async_group.spawn(self._accept_loop, listener)

    async def _accept_loop(self, listener: socket.socket) -> None:
        with listener, self._admission.listening():
            while True:
                await self._wait_readable(listener)
                try:
                    await self._accept_batch(listener)
                except OSError as e:
                    if e.errno != errno.ECONNABORTED:  # only this peer gave up
                        self._log_failure(e)
                        await asyncio.sleep(limits.ACCEPT_PAUSE_S)

    async def _wait_readable(self, listener: socket.socket) -> None:
        readable: asyncio.Future[None] = self._loop.create_future()
        self._loop.add_reader(listener, self._set_readable, readable)
        try:
            await readable
        finally:
            if self._listeners:
                self._loop.remove_reader(listener)

    @staticmethod
    def _set_readable(readable: asyncio.Future[None]) -> None:
        if not readable.done():
            readable.set_result(None)

    async def _accept_batch(self, listener: socket.socket) -> None:
        """Accept pending connections, at most one turn's worth: others get theirs."""
        for _ in range(self._admission.accept_turn):
            try:
                tcp, address = listener.accept()
            except BlockingIOError:
                return
            tcp.setblocking(False)
            self._stats.accepted += 1
            try:
                await self._admit(tcp, address[0], f"{address[0]}:{address[1]}")
            except BaseException:
                tcp.close()
                raise

    async def _admit(self, tcp: socket.socket, host: str, peer: str) -> None:
        try:
            slot = await self._admission.enter(
                host, peer, self._stats, functools.partial(has_sent, tcp)
            )
        except RefusedError as e:
            tcp.close()
            self._stats.refused[e.reason] += 1
            extra = {"peer": peer, "reason": e.reason.value}
            mlog.warning("connection refused", extra=extra)
            audit.info("refused", extra=extra)
            return
        self.async_group.spawn(self._open, tcp, slot)

    async def _open(self, tcp: socket.socket, slot: Slot) -> None:
        """Connect an accepted socket to its protocol, after TLS."""
        task = asyncio.current_task()
        assert task is not None
        slot.when_taken(task.cancel)
        try:
            opening = self._loop.connect_accepted_socket(
                lambda: _Opening(self._make_protocol, slot), tcp, **self._tls_arguments
            )
            if self._tls_arguments:
                await opening
            else:
                # takes one iteration of the loop. If cancelled meanwhile, uvloop closes a
                # connection that the protocol knows, without calling connection_lost
                await uncancellable(opening, raises=False)
        except BaseException as e:
            tcp.close()
            slot.release()
            if slot.was_taken:
                self._log_failed(slot, CloseReason.SLOT_TAKEN.value)
            elif isinstance(e, OSError):
                self._log_failed(slot, self._handshake_problem(e))
            else:
                raise

    def _log_failed(self, slot: Slot, reason: str) -> None:
        self._stats.closed[CloseReason.NO_HANDSHAKE] += 1
        what = "TLS handshake failed" if self._tls_arguments else "connection failed"
        extra = {"peer": slot.peer, "reason": reason}
        mlog.warning(what, extra=extra)
        audit.info("handshake failed", extra=extra)

    def _handshake_problem(self, error: OSError) -> str:
        match error:
            case ConnectionAbortedError():
                return f"not within {self._tls_arguments['ssl_handshake_timeout']:g} s"
            case ConnectionResetError():
                return "the peer left"
            case ssl.SSLCertVerificationError():
                return f"the peer's certificate: {error.verify_message}"
            case ssl.SSLError():
                text = _HANDSHAKE_PROBLEMS.get(error.reason or "", str(error))
                return text[: core_limits.MAX_LOG_CHARACTERS]
        return str(error)

    def _log_failure(self, error: OSError) -> None:
        now = time.monotonic()
        if now - self._failure_logged_at > limits.ACCEPT_FAILURE_LOG_S:
            self._failure_logged_at = now
            extra = {"port": self.port, "reason": error.strerror}
            mlog.error("no connections can be accepted at the moment", extra=extra)


class _Opening(asyncio.Protocol):
    """A connection until it is established: silent handshakes are many, and must cost little."""

    __slots__ = ("_make_protocol", "_slot")

    def __init__(self, make_protocol: FactoryCb, slot: Slot) -> None:
        self._make_protocol = make_protocol
        self._slot = slot

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        try:
            protocol = self._make_protocol(self._slot)
        except BaseException:
            transport.close()
            self._slot.release()
            raise
        transport.set_protocol(protocol)
        protocol.connection_made(transport)


def _listening_socket(family: int, address: Any) -> socket.socket:
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setblocking(False)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        # inherited by accepted sockets
        watch_peer(listener)
        listener.bind(address)
        listener.listen(limits.LISTEN_BACKLOG)
    except OSError as e:
        listener.close()
        raise OSError(e.errno, f"{address[0]}:{address[1]}: {e.strerror}") from e
    return listener


async def listen_for_streams(
    host: str,
    port: int,
    make_stream: Callable[[set[StreamT], Slot], StreamT],
    *,
    admission: Admission | None = None,
    stats: ServerStats | None = None,
    tls: ssl.SSLContext | None = None,
    handshake_timeout_s: float = limits.FIRST_MESSAGE_TIMEOUT_S,
) -> "StreamListener[StreamT]":
    """As :func:`listen`, for connections of a wire.

    ``make_stream`` creates one, from the set of the listener's connections and a slot.
    """
    streams: set[StreamT] = set()
    make = functools.partial(make_stream, streams)
    acceptor = await listen(
        host,
        port,
        make,
        admission=admission,
        stats=stats,
        tls=tls,
        handshake_timeout_s=handshake_timeout_s,
    )
    return StreamListener(acceptor, streams)


class StreamListener(Resource, Generic[StreamT]):
    """Accepts connections. Created by :func:`listen_for_streams`.

    Closing it stops accepting and closes the connections, in bounded time.
    """

    def __init__(self, acceptor: Acceptor, streams: set[StreamT]) -> None:
        self.port = acceptor.port
        self._acceptor = acceptor
        self._streams = streams
        self.async_group.spawn(call_on_cancel, self._stop)
        self.async_group.spawn(self._sweep_loop)

    @property
    def streams(self) -> frozenset[StreamT]:
        """Connections that still exist."""
        return frozenset(self._streams)

    def use_tls(self, tls: ssl.SSLContext) -> None:
        """Replace the TLS context, for new connections."""
        self._acceptor.use_tls(tls)

    async def stop_accepting(self) -> None:
        """Accept no new connections; existing ones continue."""
        self._acceptor.stop()
        await self._acceptor.async_close()  # no more connections come from here on

    async def _sweep_loop(self) -> None:
        while True:
            await asyncio.sleep(core_limits.SWEEP_PERIOD_S)
            now = time.monotonic()
            for stream in tuple(self._streams):
                stream.guard(stream.sweep, now)

    async def _stop(self) -> None:
        await self.stop_accepting()
        streams = tuple(self._streams)
        for stream in streams:
            stream.guard(stream.close, CloseReason.SERVER_CLOSING)
        await asyncio.gather(*(stream.wait_lost() for stream in streams))
