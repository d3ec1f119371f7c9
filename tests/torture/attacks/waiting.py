"""What waits in the gateway: as much of it as many connections of one client can have wait."""

import contextlib
import select
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

from tests.torture.attacks import eventer, wire
from tests.torture.attacks.attack import HOST, Attack, Facts, Limits, Target
from tests.torture.attacks.queries import prepare_events
from tests.torture.attacks.wire import Peer, event, register_req, tried

_SENDING_S: Final = 30.0
"""How long somebody tries to send, where the gateway does not read."""

_HOLD_S: Final = 5.0
"""How long what was sent waits."""


def _send_all(sockets: Sequence[socket.socket], frames: Sequence[bytes]) -> int:
    """Send the same on many connections at once; bytes that the gateway took."""
    taken_bytes = 0
    left = {i.fileno(): (i, iter(frames), memoryview(b"")) for i in sockets}
    poll = select.poll()
    for connection in sockets:
        connection.setblocking(False)
        poll.register(connection, select.POLLOUT)
    end = time.monotonic() + _SENDING_S
    while left and time.monotonic() < end:
        for number, _ in poll.poll(100):
            connection, rest, view = left[number]
            view = view or memoryview(next(rest, b""))
            try:
                if not view:
                    raise ConnectionError("all is sent")
                n_bytes = connection.send(view)
            except BlockingIOError:
                continue
            except OSError:
                poll.unregister(number)
                del left[number]
                continue
            taken_bytes += n_bytes
            left[number] = connection, rest, view[n_bytes:]
    return taken_bytes


def _crowd(target: Target, n: int, make: Callable[[int], Any], frames: Iterable[bytes]) -> Facts:
    """Have so many clients send the same, without reading any answer."""
    with contextlib.ExitStack() as stack:
        peers = []
        for _ in range(min(n, wire.raise_descriptor_limit())):
            with tried():
                peers.append(stack.enter_context(make(target.mariner)))
        frames = [*frames]
        taken_bytes = _send_all([i.socket for i in peers], frames)
        time.sleep(target.duration(_HOLD_S))
    return {"clients": len(peers), "taken MB": taken_bytes / 1e6}


def _types(n: int, n_segments: int) -> list[list[str]]:
    return [["app", f"{i}", *["a"] * (n_segments - 2)] for i in range(n)]


def _slow_query() -> bytes:
    """One that looks at everything and finds nothing."""
    return wire.encode(wire.timeseries_req(1, [["app", "*"]], t_to={"s": 0, "us": 0}))


def waiting_queries(target: Target) -> Facts:
    """40 connections, with 63 queries for 1,000 types of 16 segments behind a slow one."""
    query = wire.encode(wire.latest_req(2, _types(1_000, 16)))
    frames = [_slow_query(), *[query] * target.count(63)]
    return _crowd(target, target.count(40), Peer, frames)


def waiting_long_queries(target: Target) -> Facts:
    """The same with types of 250,000 segments."""
    query = wire.encode(wire.latest_req(2, [["a"] * target.count(250_000, at_least=100)]))
    frames = [_slow_query(), *[query] * target.count(63)]
    return _crowd(target, target.count(40), Peer, frames)


def waiting_eventer_queries(target: Target) -> Facts:
    """240 queries of 15 MB on six connections of a component."""
    n_segments = target.count(7_000_000, at_least=100)
    query = eventer.timeseries_req(2, [["a"] * n_segments], newest=True)
    return _components(target, target.count(6), [query] * target.count(40))


def waiting_allowed_eventer_queries(target: Target) -> Facts:
    """Queries for 1,000 types of 16 segments on 40 connections, 200 on each."""
    query = eventer.timeseries_req(2, _types(1_000, 16), newest=True)
    return _components(target, target.count(40), [query] * target.count(200))


def _components(target: Target, n: int, frames: Iterable[bytes]) -> Facts:
    on_eventer = target._replace(mariner=target.eventer)
    return _crowd(on_eventer, n, eventer.Component, frames)


def _registration(n_bytes: int) -> bytes:
    return wire.encode(register_req(1, [event(["app", "a"], "x" * n_bytes)]))


def waiting_registrations(target: Target) -> Facts:
    """250 connections with a registration of 14 MB each."""
    with _honest(target) as honest:
        facts = _crowd(target, target.count(250), Peer, [_registration(target.count(14_000_000))])
    return {**facts, **honest}


def waiting_eventer_registrations(target: Target) -> Facts:
    """200 components with a registration of 13 MB each."""
    types = [["app", f"{i % 1000}"] for i in range(target.count(1_000_000))]
    with _honest(target) as honest:
        facts = _components(target, target.count(200), [eventer.register_req(2, types)])
    return {**facts, **honest}


def waiting_small_registrations(target: Target) -> Facts:
    """4,000 connections with one of 120 kB each."""
    return _crowd(target, target.count(4_000), Peer, [_registration(120_000)])


def waiting_unknown_types(target: Target) -> Facts:
    """100 connections with 100 of 120 kB each, in types of 60 segments that may be registered."""
    types = [["app", *["a"] * 59] for _ in range(400)]
    request = wire.encode(register_req(1, [event(i) for i in types]))
    return _crowd(target, target.count(100), Peer, [request] * target.count(100))


def blank_registrations(target: Target) -> Facts:
    """50 connections with 1,000 registrations each of one event and 120 kB of white space."""
    request = wire.encode(register_req(1, [event(["app", "a"], 1)]))
    body = request[1 + request[0] :]
    padded = wire.frame(body[:-1] + b" " * 120_000 + body[-1:])
    return _crowd(target, target.count(50), Peer, [padded] * target.count(1_000))


@contextlib.contextmanager
def _honest(target: Target) -> Iterator[Facts]:
    """Another client that registers 3,000 events in one message, again and again."""
    facts: Facts = {"another's large registrations": 0, "slowest of them s": 0.0}
    is_over = threading.Event()
    request = register_req(1, [event(["witness", f"{i % 10}"], i) for i in range(3_000)])

    def work() -> None:
        while not (is_over.is_set() and facts["another's large registrations"]):
            with tried(), Peer(target.mariner, "witness", source=HOST) as peer:
                is_last = False
                while not is_last:
                    is_last = is_over.wait(0.2)
                    began = time.monotonic()
                    if not peer.request(request, "register_res")["success"]:
                        raise RuntimeError("a registration of the witness was refused")
                    seconds = time.monotonic() - began
                    facts["another's large registrations"] += 1
                    facts["slowest of them s"] = max(facts["slowest of them s"], seconds)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield facts
    finally:
        is_over.set()
        thread.join()


def subscribed_patterns(target: Target) -> Facts:
    """3,000 connections that subscribe to 1,000 patterns each; then 100 new types."""
    patterns = [[["app", f"{i}.{j}", "?"] for j in range(1_000)] for i in range(10)]
    numbers = iter(range(1_000_000))

    def make(port: int) -> Peer:
        return Peer(port, subscriptions=patterns[next(numbers) % len(patterns)])

    with contextlib.ExitStack() as stack:
        n_subscribed = 0
        for _ in range(min(target.count(3_000), wire.raise_descriptor_limit())):
            with tried():
                stack.enter_context(make(target.mariner))
                n_subscribed += 1
        began = time.monotonic()
        events = [event(["app", f"new.{began}.{i}"]) for i in range(100)]
        with tried(), Peer(target.mariner) as peer:
            peer.request(register_req(1, events), "register_res")
        return {"subscribed": n_subscribed, "100 new types s": time.monotonic() - began}


def unread_metrics(target: Target) -> Facts:
    """600 requests for metrics that nobody reads."""
    request = b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n"
    with contextlib.ExitStack() as stack:
        n_asked = 0
        for _ in range(target.count(600)):
            with tried():
                connection = socket.socket()
                stack.enter_context(connection)
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
                connection.settimeout(wire.TIMEOUT_S)
                connection.bind((wire.STRANGER, 0))
                connection.connect((HOST, target.http))
                connection.sendall(request)
                n_asked += 1
        time.sleep(target.duration(_HOLD_S))
    return {"asked": n_asked}


def _fair(**bounds: float) -> Limits:
    return Limits(register_p99_s=1.0, at_most=bounds)


_BURST: Final = Limits(ping_p99_s=1.0, query_p99_s=2.0, register_p99_s=2.0)
"""0.5 GB that come at the same time have to be received, in one iteration of the loop."""

_BUSY: Final = Limits(ping_p99_s=0.150, query_p99_s=1.0)
"""Readers are busy with 40 connections that ask without a pause."""


_LARGE_IN_TIME: Final = Limits(
    at_most={"slowest of them s": 5.0}, at_least={"another's large registrations": 1}
)

ATTACKS: Final = {
    "waiting-queries": Attack(waiting_queries, prepare_events, limits=_BUSY),
    "waiting-long-queries": Attack(waiting_long_queries, prepare_events),
    "waiting-eventer-queries": Attack(waiting_eventer_queries, prepare_events),
    "waiting-allowed-eventer-queries": Attack(
        waiting_allowed_eventer_queries, prepare_events, limits=_BUSY
    ),
    "waiting-registrations": Attack(waiting_registrations, limits=_LARGE_IN_TIME),
    "waiting-eventer-registrations": Attack(waiting_eventer_registrations, limits=_LARGE_IN_TIME),
    "waiting-small-registrations": Attack(waiting_small_registrations, limits=_BURST),
    "waiting-unknown-types": Attack(waiting_unknown_types, limits=_fair()),
    "blank-registrations": Attack(blank_registrations, limits=_fair()),
    "subscribed-patterns": Attack(subscribed_patterns, limits=_fair(**{"100 new types s": 1.0})),
    "unread-metrics": Attack(unread_metrics),
}
