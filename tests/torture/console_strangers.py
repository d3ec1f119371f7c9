"""What strangers do to the console: ``python -m tests.torture.console_strangers``.

Its arguments: the name of an attack, the port of the console, for how many seconds, and how many
connections at a time. It is a process of its own, and knows nothing of the product.
"""

import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final
from urllib.parse import urlencode

from tests.torture.attacks import wire
from tests.torture.attacks.attacker import NICE
from tests.torture.attacks.strangers import Crowd
from tests.torture.attacks.wire import tried, until

NAME: Final = "chosen"
"""The user whose password is guessed."""

_N_GUESSERS: Final = 6
_N_GUESSES_AT_ONCE: Final = 5


def _sources(n: int) -> Sequence[str]:
    return [f"127.0.1.{1 + i}" for i in range(n)]


def _crowd(greeting: bytes, sources: Sequence[str], port: int, seconds: float, n: int) -> None:
    Crowd([port], n, lambda _: greeting, sources).hold(seconds)


def silent_connections(port: int, seconds: float, n: int) -> None:
    """Connections that say nothing, made again when they are closed."""
    _crowd(b"", [wire.STRANGER], port, seconds, n)


def silent_neighbours(port: int, seconds: float, n: int) -> None:
    """The same from the address of the honest user; not made again."""
    Crowd([port], n, sources=[wire.HOST]).hold(seconds, is_persistent=False)


def half_requests(port: int, seconds: float, n: int) -> None:
    """Requests whose headers do not end, from 20 addresses."""
    _crowd(b"GET /login HTTP/1.1\r\nHost: a\r\nX-Slow: ", _sources(20), port, seconds, n)


def half_forms(port: int, seconds: float, n: int) -> None:
    """Logins whose form does not end."""
    head = "POST /login HTTP/1.1\r\nHost: a\r\nOrigin: http://a\r\nContent-Length: 99\r\n\r\n"
    _crowd(head.encode() + b"name=", _sources(20), port, seconds, n)


def costly_cookies(port: int, seconds: float, n: int) -> None:
    """Cookies of backslashes, which take Python's parser seconds."""
    for number in until(seconds):
        value = b"\\" * (15_000, 60_000, 1_000_000)[number % 3]
        head = b"GET / HTTP/1.1\r\nHost: a\r\nCookie: a=" + b'"' + value + b'"\r\n\r\n'
        with tried(), wire.connect(port) as connection:
            connection.sendall(head)
            connection.recv(4096)


def endless_headers(port: int, seconds: float, n: int) -> None:
    """Headers without end."""
    lines = b"a: b\r\n" * 10_000
    ends_s = time.monotonic() + seconds
    for _ in until(seconds):
        with tried(), wire.connect(port) as connection:
            connection.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n")
            while time.monotonic() < ends_s:
                connection.sendall(lines)


def wrong_origins(port: int, seconds: float, n: int) -> None:
    """What is no URL where one is expected, and bytes after the end of the request."""
    head = b"POST /login HTTP/1.1\r\nHost: a\r\nOrigin: http://[\r\nContent-Length: 0\r\n\r\n"
    for _ in until(seconds, 0.01):
        with tried(), wire.connect(port) as connection:
            connection.sendall(head + b"\x00")
            connection.recv(4096)


def guesses(port: int, seconds: float, n: int) -> None:
    """Passwords from some addresses, on several connections each."""

    def guess(source: str) -> None:
        for number in until(seconds):
            body = urlencode({"name": NAME, "password": f"{source} {number}"})
            head = "POST /login HTTP/1.1\r\nHost: a\r\nOrigin: http://a\r\nContent-Length:"
            with tried(), wire.connect(port, source) as connection:
                connection.sendall(f"{head} {len(body)}\r\n\r\n{body}".encode())
                connection.recv(4096)

    threads = [
        threading.Thread(target=guess, args=(source,))
        for source in _sources(_N_GUESSERS)
        for _ in range(_N_GUESSES_AT_ONCE)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


ATTACKS: Final[dict[str, Callable[[int, float, int], None]]] = {
    "silent connections": silent_connections,
    "silent neighbours": silent_neighbours,
    "half requests": half_requests,
    "half forms": half_forms,
    "costly cookies": costly_cookies,
    "endless headers": endless_headers,
    "wrong origins": wrong_origins,
    "guesses": guesses,
}

if __name__ == "__main__":
    os.nice(NICE)
    name, port, seconds, n = sys.argv[1:]
    ATTACKS[name](int(port), float(seconds), int(n))
