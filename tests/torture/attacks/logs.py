"""What anybody can do to the log: lines that a peer provokes, and a log that nobody reads."""

import itertools
import json
import ssl
from collections.abc import Callable, Iterable
from typing import Final

from tests.torture.attacks import wire
from tests.torture.attacks.attack import Attack, Facts, Limits, Target
from tests.torture.attacks.wire import tried, until

_FLOOD_S: Final = 5.0

_LINES: Final = 10_000
"""Connections of a flood at the most: each may provoke a line."""

# what takes more room in a log than on the wire: escaped once by Python and once by JSON
_EXPENSIVE: Final = "\x7f"


def flood(target: Target, port: int, message: Callable[[int], bytes]) -> Facts:
    """Send one message on each of many connections, and wait until it is closed."""
    n_bytes = n_connections = 0
    for number in until(target.duration(_FLOOD_S)):
        if number >= target.count(_LINES):
            break
        data = message(number)
        with tried(), wire.connect(port) as connection:
            n_connections += 1
            n_bytes += len(data)
            connection.sendall(data)
            while connection.recv(1 << 16):
                pass
    return {"connections": n_connections, "sent bytes": n_bytes}


def long_names(target: Target) -> Facts:
    """Name oneself by what takes three times the room in a log, with a wrong token."""
    name = _EXPENSIVE * 60_000
    message = wire.encode(wire.init_req(name, "guess"))
    return flood(target, target.mariner, lambda _: message)


def long_msg_types(target: Target) -> Facts:
    """Messages of a kind whose name is long."""
    message = wire.encode({"msg_type": _EXPENSIVE * 60_000, "ping_id": 1})
    return flood(target, target.mariner, lambda _: message)


def short_lines(target: Target) -> Facts:
    """As many wrong messages as possible, each on a connection of its own."""
    return flood(target, target.mariner, lambda number: wire.frame(b"%d" % number))


def many_addresses(target: Target) -> Facts:
    """The same from 250 addresses: what is limited per address comes 250 times."""
    message = wire.frame(b"nothing")
    n_connections = 0
    sources = itertools.cycle([f"127.0.2.{i}" for i in range(1, 251)])
    for number in until(target.duration(_FLOOD_S)):
        if number >= target.count(_LINES):
            break
        with tried(), wire.connect(target.mariner, next(sources)) as connection:
            n_connections += 1
            connection.sendall(message)
            while connection.recv(1 << 16):
                pass
    return {"connections": n_connections}


def failed_handshakes(target: Target) -> Facts:
    """Something else than TLS where TLS is expected."""
    return flood(target, target.mariner, lambda _: b"GET / HTTP/1.1\r\n\r\n")


def full_handshakes(target: Target) -> Facts:
    """TLS handshakes without anything after them: each costs the gateway a signature."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    n_done = 0
    for number in until(target.duration(_FLOOD_S)):
        if number >= target.count(_LINES):
            break
        with tried(), wire.connect(target.mariner) as connection:
            context.wrap_socket(connection).close()
            n_done += 1
    return {"handshakes": n_done}


def bad_http(target: Target) -> Facts:
    """Requests that are none."""
    return flood(target, target.http, lambda _: b"\x7f" * 8_000 + b"\r\n\r\n")


def refused_registrations(target: Target) -> Facts:
    """Registrations of 14 MB that break the contract, in whose refusal is much of them."""
    return _refused(target, [{"type": [_EXPENSIVE * target.count(14 << 20)], "payload": None}], 15)


def refused_keys(target: Target) -> Facts:
    """Registrations in the place of whose mistake are keys of 1 MB, on and on."""
    event = wire.event(["app", "a"])
    event["payload"] = {"payload_type": _EXPENSIVE * target.count(1 << 20), "data": 1}
    return _refused(target, [event], 100)


def refused_quickly(target: Target) -> Facts:
    """As many registrations that break the contract as one connection can carry."""
    return _refused(target, [{"type": ["app", "a"], "payload": 1}], 20_000)


def _refused(target: Target, events: Iterable[object], n: int) -> Facts:
    n_answered = largest = 0
    with tried(), wire.Peer(target.mariner, "insider") as peer:
        message = wire.encode(wire.register_req(1, [*events]))
        for _ in until(target.duration(_FLOOD_S)):
            if n_answered >= target.count(n):
                break
            peer.socket.sendall(message)
            answer = peer.receive_raw()
            if json.loads(answer)["msg_type"] == "register_res":
                n_answered += 1
                largest = max(largest, len(answer))
    return {"refused": n_answered, "largest answer bytes": largest}


_SMALL_ANSWER: Final = {"largest answer bytes": 64 << 10}

ATTACKS: Final = {
    "long-names": Attack(long_names),
    "long-msg-types": Attack(long_msg_types),
    "short-lines": Attack(short_lines),
    "lines-of-many-addresses": Attack(many_addresses),
    "failed-handshakes": Attack(failed_handshakes, is_tls=True),
    "full-handshakes": Attack(full_handshakes, is_tls=True),
    "bad-http": Attack(bad_http),
    "refused-registrations": Attack(refused_registrations, limits=Limits(at_most=_SMALL_ANSWER)),
    "refused-keys": Attack(refused_keys, limits=Limits(at_most=_SMALL_ANSWER)),
    "refused-quickly": Attack(refused_quickly),
    "stuck-log": Attack(long_names, fault="stderr"),
    "stuck-log-of-short-lines": Attack(short_lines, fault="stderr"),
}
