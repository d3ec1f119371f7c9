"""What one client, or one address, can do to the turns of others: joining, logging in."""

import json
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from tests.torture.attacks import wire
from tests.torture.attacks.attack import Attack, Facts, Limits, Target
from tests.torture.attacks.ground import CHOSEN
from tests.torture.attacks.queries import prepare_events
from tests.torture.attacks.wire import HOST, STRANGER, Peer, timeseries_req, tried

_DURATION_S: Final = 10.0
_LOGIN_S: Final = 10.0
"""Time limit of the gateway for a login."""

_POLL_S: Final = 0.5


def _start_req(name: str, types: Sequence[Sequence[str]], start: Any) -> bytes:
    return wire.encode({**wire.init_req(name, name, types), "persisted": True, "start": start})


def _receive(stop: threading.Event, connection: socket.socket, until: bytes) -> bool:
    """Read until something comes; whether it came."""
    connection.settimeout(_POLL_S)
    last = b""
    while not stop.is_set():
        try:
            data = connection.recv(1 << 16)
        except TimeoutError:
            continue
        if not data:
            return False
        if until in last + data:
            return True
        last = data[-len(until) :]
    return False


def _meanwhile(
    attack: Callable[[threading.Event, int], None], n: int, seen: Callable[[], None]
) -> None:
    """Let ``n`` threads attack again and again while something is seen."""
    stop = threading.Event()

    def again(number: int) -> None:
        while not stop.is_set():
            with tried():
                attack(stop, number)

    threads = [threading.Thread(target=again, args=[i]) for i in range(n)]
    for thread in threads:
        thread.start()
    try:
        seen()
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def _joins(target: Target, n: int, request: bytes) -> Facts:
    """Join again and again on ``n`` connections; how long it takes another client."""
    joins_s: list[float] = []

    def join(stop: threading.Event, number: int) -> None:
        with wire.connect(target.mariner) as connection:
            connection.sendall(request)
            _receive(stop, connection, b'"up_to_date"')

    def seen() -> None:
        end = time.monotonic() + target.duration(_DURATION_S)
        of_witness = _start_req("witness", [["app", "7"]], "earliest")
        while time.monotonic() < end or not joins_s:
            began = time.monotonic()
            with wire.connect(target.mariner, HOST) as connection:
                connection.sendall(of_witness)
                if not _receive(threading.Event(), connection, b'"up_to_date"'):
                    raise ConnectionError("closed")
            joins_s.append(time.monotonic() - began)

    _meanwhile(join, n, seen)
    return {"joins of another": len(joins_s), "slowest of them, s": max(joins_s)}


def joins(target: Target) -> Facts:
    """200 connections of one client that missed 10,000 events each, again and again."""
    with Peer(target.mariner, "witness", source=HOST) as peer:
        newest = peer.request(timeseries_req(1, [["app", "*"]], max_results=1))["events"][0]["id"]
    seen = {**newest, "session": max(1, newest["session"] - 2)}
    return _joins(target, target.count(200), _start_req("insider", [["app", "*"]], [seen]))


def made_up_servers(target: Target) -> Facts:
    """Eight connections that go on behind events of 1,024 servers that never were."""
    seen = [{"server": i, "session": 5, "instance": 1} for i in range(1_000, 2_024)]
    request = _start_req("insider", [["app", "none"]], seen)
    return _joins(target, target.count(8), request)


def _login(port: int, name: str, source: str) -> bool:
    """Whether somebody with the right token is let in in time."""
    with tried(), wire.connect(port, source) as connection:
        connection.settimeout(_LOGIN_S)
        connection.sendall(wire.encode(wire.init_req(name, CHOSEN)))
        answer = connection.recv(1 << 16)
        return bool(json.loads(answer[1 + answer[0] :])["success"]) if answer else False
    return False


def old_tokens(target: Target) -> Facts:
    """30 clients at one address with a token of before, and others there with the right one."""

    def come(stop: threading.Event, number: int) -> None:
        with wire.connect(target.mariner) as connection:
            connection.sendall(wire.encode(wire.init_req(f"old {number}", "of before")))
            _receive(stop, connection, b"}")

    return _log_in(target, come, target.count(30), range(6), lambda i: STRANGER)


def guessing_addresses(target: Target) -> Facts:
    """100 addresses that guess the token of a client, and six clients that log in meanwhile."""

    def guess(stop: threading.Event, number: int) -> None:
        guessed = f"guess {time.monotonic_ns()}"
        with wire.connect(target.mariner, f"127.0.1.{number + 1}") as connection:
            connection.sendall(wire.encode(wire.init_req("chosen 6", guessed)))
            _receive(stop, connection, b"}")

    n = target.count(100)
    return _log_in(target, guess, n, range(6, 12), lambda i: f"127.0.2.{i + 1}")


def _log_in(
    target: Target,
    attack: Callable[[threading.Event, int], None],
    n: int,
    clients: range,
    source: Callable[[int], str],
) -> Facts:
    n_clients = target.count(len(clients))
    n_tries = 1 if target.scale >= 1 else 5  # tests run beside others, which take the processor
    seconds: list[float] = []

    def seen() -> None:
        time.sleep(target.duration(2))
        for i in clients[:n_clients]:
            began = time.monotonic()
            if any(_login(target.mariner, f"chosen {i}", source(i)) for _ in range(n_tries)):
                seconds.append(time.monotonic() - began)

    _meanwhile(attack, n, seen)
    return {
        "share of right logins": len(seconds) / n_clients,
        "slowest of them, s": max(seconds, default=0.0),
    }


_SOON: Final = Limits(at_most={"slowest of them, s": 2.0})
"""As long as nobody else joins, it takes some 20 ms."""

_ALL: Final = Limits(at_least={"share of right logins": 1.0})

ATTACKS: Final = {
    "joins": Attack(joins, prepare_events, limits=_SOON),
    "made-up-servers": Attack(made_up_servers, prepare_events, limits=_SOON),
    "old-tokens": Attack(old_tokens, limits=_ALL),
    "guessing-addresses": Attack(guessing_addresses, limits=_ALL),
}
