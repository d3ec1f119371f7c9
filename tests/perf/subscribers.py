"""Subscribers, many in a process of their own: ``python -m tests.perf.subscribers``.

Reads one :class:`Job` (JSON) from standard input, subscribes, says so with a line, takes
what comes until everybody has the last event, checks it in full, and writes an
:class:`Outcome` (JSON).
"""

import gc
import selectors
import sys
import time
from collections.abc import Callable
from typing import Final

import msgspec

from tests.perf import workload
from tests.perf.client import RECEIVE_BYTES, TIMEOUT_S, Connection
from tests.perf.wires import WireName

_TAIL_BYTES: Final = 200
"""More than the last event's payload, with which the last message ends."""


class Job(msgspec.Struct):
    """What to do.

    Attributes:
        host: address of the server.
        port: its port for this wire.
        wire: what to speak.
        subscribers: how many connections.
        events: those of the workload, from 0 on, that will be registered.
    """

    host: str
    port: int
    wire: WireName
    subscribers: int
    events: int


class Outcome(msgspec.Struct):
    """What was measured.

    Attributes:
        ended_at: when the last of the subscribers had the last event, on the clock of
            ``client.Outcome.begun_at``.
    """

    ended_at: float


def run(job: Job, on_ready: Callable[[], object]) -> Outcome:
    """Do a job.

    Args:
        job: what to do.
        on_ready: called when all of them are subscribed.

    Raises:
        WrongAnswerError: a subscriber did not hear of every event, once and in order.
        OSError: no connection, it was closed, or nothing came for too long.
    """
    connections = [
        Connection(job.host, job.port, [["perf", "*"]], job.wire) for _ in range(job.subscribers)
    ]
    on_ready()
    received = _receive(connections, workload.last_event_mark(job.events))
    ended_at = time.perf_counter()
    for connection in connections:
        connection.close()

    # they are alike, unless a server has sent some of them something else besides
    wire = connections[0].wire
    for data in set(map(bytes, received)):
        messages = (wire.decode(data[begin:end]) for begin, end in wire.cut(data))
        workload.check_notified(messages, job.events)
    return Outcome(ended_at)


def _receive(connections: list[Connection], mark: bytes) -> list[bytearray]:
    """What every connection gets, until each has a message with ``mark``."""
    buffers = [bytearray() for _ in connections]
    selector = selectors.DefaultSelector()
    for connection, buffer in zip(connections, buffers, strict=True):
        selector.register(connection.socket, selectors.EVENT_READ, buffer)
    waiting = len(connections)
    while waiting:
        ready = selector.select(TIMEOUT_S)
        if not ready:
            raise TimeoutError(f"{waiting} subscribers wait for an event that does not come")
        for key, _ in ready:
            data = key.fileobj.recv(RECEIVE_BYTES)  # type: ignore[union-attr]  # they are sockets
            if not data:
                raise ConnectionError("closed by the server")
            key.data.extend(data)
            tail = key.data[-len(data) - _TAIL_BYTES :]
            if mark in tail and tail.endswith(b"}"):
                selector.unregister(key.fileobj)
                waiting -= 1
    return buffers


if __name__ == "__main__":
    gc.disable()
    _job = msgspec.json.decode(sys.stdin.buffer.readline(), type=Job)
    _outcome = run(_job, lambda: print("ready", flush=True))
    sys.stdout.buffer.write(msgspec.json.encode(_outcome))
