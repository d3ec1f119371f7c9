"""What anybody can do who reaches a port: connections that say nothing, or half of something."""

import select
import socket
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from tests.torture.attacks import wire
from tests.torture.attacks.attack import Attack, Facts, Limits, Target
from tests.torture.attacks.wire import tried, until

HOLD_S: Final = 13.0
"""How long silent connections stay: longer than the deadlines that are promised (10 s)."""


class Crowd:
    """Connections that are kept; those that the gateway closes are made again.

    Args:
        ports: where to, in turn.
        n: how many.
        greeting: what each sends, by port.
        sources: addresses that they come from, in turn.
    """

    def __init__(
        self,
        ports: Sequence[int],
        n: int,
        greeting: Callable[[int], bytes] = lambda port: b"",
        sources: Sequence[str] = (wire.STRANGER,),
    ) -> None:
        self._ports = ports
        self._n = min(n, wire.raise_descriptor_limit())
        self._greeting = greeting
        self._sources = sources
        self._sockets: dict[int, socket.socket] = {}
        self._poll = select.poll()
        self._n_made = 0
        self.n_refused = 0
        self.n_closed = 0
        self.n_most = 0

    def hold(self, duration_s: float, *, is_persistent: bool = True) -> Facts:
        """Make the connections and keep them for so long.

        Args:
            duration_s: from now on.
            is_persistent: whether what is closed is made again.
        """
        for number in until(duration_s, 0.05):
            if number == 0 or is_persistent:
                self._fill()
            self.n_most = max(self.n_most, len(self._sockets))
            self._drop_closed()
            if not self._sockets and not is_persistent:
                break
        n_left = len(self._sockets)
        for connection in self._sockets.values():
            connection.close()
        return {
            "connections": self._n_made,
            "refused": self.n_refused,
            "open at once": self.n_most,
            "closed by the gateway": self.n_closed,
            "still open": n_left,
        }

    def _fill(self) -> None:
        # bounded: a gateway that closes at once is not asked for ever
        for _ in range(min(self._n - len(self._sockets), 2_000 if self._n_made else self._n)):
            port = self._ports[self._n_made % len(self._ports)]
            source = self._sources[self._n_made % len(self._sources)]
            self._n_made += 1
            try:
                connection = wire.connect(port, source)
            except OSError:
                self.n_refused += 1
                continue
            with tried():
                connection.sendall(self._greeting(port))
            connection.setblocking(False)
            self._sockets[connection.fileno()] = connection
            self._poll.register(connection, select.POLLIN | select.POLLHUP)

    def _drop_closed(self) -> None:
        for number, _ in self._poll.poll(0):
            connection = self._sockets[number]
            try:
                is_closed = connection.recv(1 << 16) == b""
            except BlockingIOError:
                is_closed = False
            except OSError:
                is_closed = True
            if is_closed:
                self.n_closed += 1
                self._poll.unregister(number)
                connection.close()
                del self._sockets[number]


def _addresses(n: int) -> Sequence[str]:
    return [f"127.0.{1 + i // 250}.{1 + i % 250}" for i in range(n)]


def silent(target: Target) -> Facts:
    """As many connections as the gateway may have descriptors, which say nothing.

    An honest client registers so much meanwhile that the store needs new files.
    """
    n_refused = [0]
    is_over = threading.Event()
    text = "x" * target.count(5_000_000)

    def register() -> None:
        with wire.Peer(target.mariner, "witness", source=wire.HOST) as peer:
            while not is_over.wait(0.1):
                events = [wire.event(["silent"], text)]
                answer = peer.request(wire.register_req(1, events), "register_res")
                n_refused[0] += not answer["success"]

    registering = threading.Thread(target=register)
    registering.start()
    facts = Crowd([target.mariner], target.count(1_010)).hold(target.duration(HOLD_S))
    is_over.set()
    registering.join()
    return {**facts, "refused registrations": n_refused[0]}


def silent_everywhere(target: Target) -> Facts:
    """The same over all listeners, from many addresses."""
    ports = [target.mariner, target.eventer, target.rsb, target.http]
    crowd = Crowd(ports, target.count(1_010), sources=_addresses(20))
    return crowd.hold(target.duration(HOLD_S))


def silent_crowd(target: Target) -> Facts:
    """10,000 silent connections from 200 addresses, and a client that wants in."""
    crowd = Crowd([target.mariner], target.count(10_000), sources=_addresses(200))
    return crowd.hold(target.duration(HOLD_S))


def silent_botnet(target: Target) -> Facts:
    """Silent connections from 4,000 addresses, which come again when they are closed."""
    crowd = Crowd([target.mariner], target.count(8_000), sources=_addresses(4_000))
    return crowd.hold(target.duration(HOLD_S))


def silent_neighbours(target: Target) -> Facts:
    """1,000 silent connections from the address of the honest client."""
    crowd = Crowd([target.mariner], target.count(1_000), sources=[wire.HOST])
    return crowd.hold(target.duration(HOLD_S))


def silent_handshakes(target: Target) -> Facts:
    """12,600 TLS handshakes that do not begin."""
    crowd = Crowd([target.mariner], target.count(12_600))
    return crowd.hold(target.duration(HOLD_S))


def idle_requests(target: Target) -> Facts:
    """2,000 HTTP connections on which one request was answered, and nothing follows."""

    def greeting(port: int) -> bytes:
        return b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"

    crowd = Crowd([target.http], target.count(2_000), greeting)
    return crowd.hold(2 * HOLD_S, is_persistent=False)


def half_requests(target: Target) -> Facts:
    """2,000 HTTP requests whose header does not end; not made again when they are closed."""

    def greeting(port: int) -> bytes:
        return b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nX-Slow: "

    crowd = Crowd([target.http], target.count(2_000), greeting)
    return crowd.hold(2 * HOLD_S, is_persistent=False)


def metrics_flood(target: Target) -> Facts:
    """Requests for metrics for five seconds, each on a connection of its own."""
    request = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"
    n_bytes = n_requests = 0
    for _ in until(target.duration(5)):
        with tried(), wire.connect(target.http) as connection:
            connection.sendall(request)
            n_requests += 1
            while data := connection.recv(1 << 20):
                n_bytes += len(data)
                if data.endswith(b"\n"):
                    break
    return {"requests": n_requests, "answered bytes": n_bytes}


def guesses(port: int, messages: Iterable[bytes], duration_s: float) -> Facts:
    """Guess a token on one connection after the other, as fast as the gateway answers."""
    n_answered = n_lost = 0
    began = time.monotonic()
    for message in messages:
        if time.monotonic() - began > duration_s:
            break
        try:
            with wire.connect(port) as connection:
                connection.sendall(message)
                connection.settimeout(duration_s)
                answer = connection.recv(4096)
            n_answered += bool(answer)
            n_lost += not answer
        except OSError:
            n_lost += 1
    rate = n_answered / (time.monotonic() - began)
    return {"guesses/s": rate, "answered": n_answered, "not answered": n_lost}


def guess_tokens(target: Target) -> Facts:
    """Guess the token of the observer for five seconds."""
    messages = (wire.encode(wire.init_req("observer", f"guess {i}")) for i in range(100_000))
    return guesses(target.mariner, messages, target.duration(5))


def fail_disk(target: Target) -> Facts:
    """Nothing: the disk fails, without any attacker."""
    return {}


FEW_GUESSES: Final = Limits(at_most={"answered": 50})
"""Answered guesses of one address in five seconds: ten at once and a few a second let nobody
try the tokens of four digits."""

ATTACKS: Final = {
    "silent": Attack(silent, max_files=1_024, limits=Limits(at_most={"refused registrations": 0})),
    "silent-everywhere": Attack(silent_everywhere, max_files=1_024),
    "silent-crowd": Attack(silent_crowd),
    "silent-botnet": Attack(silent_botnet),
    "silent-neighbours": Attack(silent_neighbours),
    "silent-handshakes": Attack(silent_handshakes, is_tls=True),
    "half-requests": Attack(half_requests, limits=Limits(at_most={"still open": 0})),
    "idle-requests": Attack(idle_requests, limits=Limits(at_most={"still open": 0})),
    "metrics-flood": Attack(metrics_flood),
    "guesses": Attack(guess_tokens, limits=FEW_GUESSES),
    "failing-disk": Attack(
        fail_disk,
        fault="disk",
        # each system call of the gateway is looked at by strace meanwhile
        limits=Limits(ping_p99_s=0.25, query_p99_s=None, is_registering=False),
    ),
}
