"""What anybody can do on the RSB bus (004), which asks for no name and no token.

Notifications are made by hand: fields of Protocol Buffers, each with its number, wire type 2
and length (or wire type 0 and a number), after four bytes of the frame's length.
"""

import os
import socket
import threading
import time
from typing import Final

from tests.torture.attacks import wire
from tests.torture.attacks.attack import Attack, Facts, Limits, Target
from tests.torture.attacks.logs import flood
from tests.torture.attacks.wire import tried, until

_HANDSHAKE_BYTES: Final = 4

_SENDER: Final = os.urandom(16)


def _varint(value: int) -> bytes:
    groups = []
    while value >= 0x80:
        groups.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*groups, value])


def _field(number: int, value: bytes | int) -> bytes:
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value)
    return _varint(number << 3 | 2) + _varint(len(value)) + value


def frame(body: bytes) -> bytes:
    """A notification with its header."""
    return len(body).to_bytes(4, "little") + body


def notification(number: int, scope: str, payload: bytes = b"", method: bytes = b"") -> bytes:
    """A framed notification of a text."""
    event_id = _field(1, _SENDER) + _field(2, number)
    body = _field(108, event_id) + _field(6, scope.encode()) + _field(7, b"utf-8-string")
    body += _field(9, payload) + (_field(14, method) if method else b"")
    return frame(body + _field(15, _field(2, 1) + _field(3, 1)))


def connect(target: Target) -> socket.socket:
    """A participant of the bus."""
    connection = wire.connect(target.rsb)
    connection.recv(_HANDSHAKE_BYTES)
    return connection


def wrong_notifications(target: Target) -> Facts:
    """As many wrong notifications as possible, each on a connection of its own."""
    return flood(target, target.rsb, lambda number: frame(b"\xff%d" % number))


def wrong_scopes(target: Target) -> Facts:
    """Scopes of 60 kB that are none, as many as one connection can carry."""
    n_sent = 0
    with tried(), connect(target) as connection:
        data = notification(1, "\x7f" * target.count(60_000))
        for _ in until(target.duration(5)):
            connection.sendall(data)
            n_sent += 1
    return {"sent": n_sent}


def million_scopes(target: Target) -> Facts:
    """A million scopes, each a type of its own."""
    n = target.count(1_000_000)
    end = time.monotonic() + 60
    n_sent = 0
    with tried(), connect(target) as connection:
        threading.Thread(target=_read_all, args=[connection], daemon=True).start()
        for begin in range(0, n, 1_000):
            if time.monotonic() > end:
                break
            scopes = range(begin, min(n, begin + 1_000))
            connection.sendall(b"".join(notification(i, f"/app/{i}/") for i in scopes))
            n_sent += len(scopes)
    return {"scopes": n_sent}


def notification_flood(target: Target) -> Facts:
    """Notifications from four connections, as many as the gateway takes."""
    n_sent = [0] * 4
    data = b"".join(notification(i, "/app/flood/", b"x" * 100) for i in range(1_000))

    def send(number: int) -> None:
        with tried(), connect(target) as connection:
            threading.Thread(target=_read_all, args=[connection], daemon=True).start()
            for _ in until(target.duration(8)):
                connection.sendall(data)
                n_sent[number] += 1_000

    threads = [threading.Thread(target=send, args=[i]) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {"notifications/s": sum(n_sent) / target.duration(8)}


def surveys(target: Target) -> Facts:
    """Questions who is there, each of which is answered and relayed to 100 connections."""
    n_sent = 0
    listeners = []
    for _ in range(target.count(100)):
        with tried():
            listeners.append(connect(target))
    for listener in listeners:
        threading.Thread(target=_read_all, args=[listener], daemon=True).start()
    scope = "/__rsb/introspection/participants/"
    data = b"".join(notification(i, scope, method=b"SURVEY") for i in range(100))
    with tried(), connect(target) as connection:
        threading.Thread(target=_read_all, args=[connection], daemon=True).start()
        for _ in until(target.duration(5)):
            connection.sendall(data)
            n_sent += 100
    return {"surveys": n_sent}


def half_notifications(target: Target) -> Facts:
    """100 connections with all of a full notification but its last bytes."""
    half = frame(b" " * target.count(15 << 20))[:-1]
    connections = []
    for _ in range(target.count(100)):
        with tried():
            connection = connect(target)
            connection.settimeout(1)
            connections.append(connection)
            connection.sendall(half)
    time.sleep(target.duration(10))
    for connection in connections:
        connection.close()
    return {"connections": len(connections)}


def deaf_participants(target: Target) -> Facts:
    """200 participants that do not read, and 100 MB on the bus."""
    connections = []
    for _ in range(target.count(200)):
        with tried():
            connections.append(connect(target))
    n_sent = 0
    with tried(), connect(target) as sender:
        threading.Thread(target=_read_all, args=[sender], daemon=True).start()
        for number in range(target.count(1_000)):
            sender.sendall(notification(number, "/app/large/", b"x" * 100_000))
            n_sent += 1
        time.sleep(target.duration(5))
    for connection in connections:
        connection.close()
    return {"participants": len(connections), "sent": n_sent}


def _read_all(connection: socket.socket) -> None:
    with tried():
        while connection.recv(1 << 20):
            pass


ATTACKS: Final = {
    "rsb-wrong-notifications": Attack(wrong_notifications),
    "rsb-wrong-scopes": Attack(wrong_scopes),
    "rsb-million-scopes": Attack(million_scopes),
    "rsb-flood": Attack(notification_flood),
    "rsb-surveys": Attack(surveys),
    "rsb-half-notifications": Attack(half_notifications),
    "rsb-deaf-participants": Attack(deaf_participants, limits=Limits(query_p99_s=1.0)),
}
