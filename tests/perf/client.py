"""The measuring client, a process of its own: ``python -m tests.perf.client``.

Reads one :class:`Job` (JSON) from standard input, does it, checks every answer, and
writes an :class:`Outcome` (JSON) to standard output.

It is a plain blocking socket, because that costs least: while the clock runs, frames made
beforehand are sent and the answers are only cut apart. They are checked in full after it.
"""

import gc
import socket
import sys
import time
from collections.abc import Sequence
from typing import Final, Literal, NamedTuple, TypeAlias

import msgspec
import psutil

from tests.perf import workload

TIMEOUT_S: Final = 60.0
"""Silence of a server after which a measurement has failed."""

RECEIVE_BYTES: Final = 1 << 20


Kind: TypeAlias = Literal["register", "newest", "spread", "absent", "latest", "ping", "idle"]
"""What a client measures; ``idle`` opens connections and leaves them idle."""


class Job(msgspec.Struct):
    """What to do.

    Attributes:
        host: address of the server.
        port: its Mariner port.
        kind: what to measure.
        requests: how many requests are timed (``idle``: connections opened).
        warm_up: requests of the same kind before that, not timed.
        in_flight: requests that are unanswered at a time.
        events_per_request: for ``register``.
        first: for ``register``: index of the first event.
        stored: for queries: events that the server has.
        types: how many types the events have, see ``workload``.
        pids: for ``idle``: processes of the server, whose memory is looked at.
    """

    host: str
    port: int
    kind: Kind
    requests: int
    warm_up: int = 0
    in_flight: int = 1
    events_per_request: int = 1
    first: int = 0
    stored: int = 0
    types: int = workload.EVENT_TYPES
    pids: list[int] = []


class Outcome(msgspec.Struct):
    """What was measured.

    Attributes:
        seconds: from the first request to the last answer.
        median_s: median of the round-trip times; only with one in flight, else 0.
        p99_s: their 99th percentile, likewise.
        bytes_per_connection: for ``idle``: growth of the server's resident memory.
    """

    seconds: float = 0.0
    median_s: float = 0.0
    p99_s: float = 0.0
    bytes_per_connection: float = 0.0


class Exchange(NamedTuple):
    """Answers in the order they came, and the times taken."""

    answers: list[bytes]
    seconds: float
    round_trips_s: list[float]


class Connection:
    """An initialised connection to a server."""

    def __init__(self, host: str, port: int, subscriptions: Sequence[Sequence[str]] = ()) -> None:
        self._buffer = bytearray()
        self.socket = socket.create_connection((host, port), timeout=TIMEOUT_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.sendall(workload.init_request(subscriptions))
        answer = msgspec.json.decode(self._receive()[0])
        if answer.get("status") != "OPERATIONAL":
            raise workload.WrongAnswerError(f"not initialised: {answer}")

    def close(self) -> None:
        """Close the socket."""
        self.socket.close()

    def exchange(self, requests: list[bytes], in_flight: int) -> Exchange:
        """Send all requests, never more than ``in_flight`` unanswered, and get the answers."""
        answers: list[bytes] = []
        round_trips_s: list[float] = []
        sent = min(in_flight, len(requests))
        start = last = time.perf_counter()
        self.socket.sendall(b"".join(requests[:sent]))
        while len(answers) < len(requests):
            received = self._receive()
            answers += received
            now = time.perf_counter()
            round_trips_s.append(now - last)
            last = now
            following = requests[sent : sent + len(received)]
            if following:
                self.socket.sendall(b"".join(following))
                sent += len(following)
        return Exchange(answers, last - start, round_trips_s)

    def _receive(self) -> list[bytes]:
        """Wait for at least one whole frame; the messages of all that are there."""
        while not (messages := self._cut()):
            data = self.socket.recv(RECEIVE_BYTES)
            if not data:
                raise ConnectionError("closed by the server")
            self._buffer += data
        return messages

    def _cut(self) -> list[bytes]:
        buffer = self._buffer
        messages = []
        position = 0
        while position < len(buffer):
            begin = position + 1 + buffer[position]
            end = begin + int.from_bytes(buffer[position + 1 : begin], "big")
            if begin > len(buffer) or end > len(buffer):
                break
            messages.append(bytes(buffer[begin:end]))
            position = end
        del buffer[:position]
        return messages


def run(job: Job) -> Outcome:
    """Do a job.

    Raises:
        WrongAnswerError: an answer is not right.
        OSError: no connection, or it was closed.
    """
    if job.kind == "idle":
        return _run_idle(job)
    count = job.warm_up + job.requests
    if job.kind == "register":
        requests = workload.register_requests(job.first, count, job.events_per_request, job.types)
    elif job.kind == "ping":
        requests = workload.ping_requests(count)
    else:
        requests = workload.query_requests(job.kind, count, job.stored, job.types)

    connection = Connection(job.host, job.port)
    warm_up = Exchange([], 0.0, [])
    if job.warm_up:
        warm_up = connection.exchange(requests[: job.warm_up], job.in_flight)
    timed = connection.exchange(requests[job.warm_up :], job.in_flight)
    connection.close()

    _check(job, warm_up.answers + timed.answers)
    round_trips_s = sorted(timed.round_trips_s)
    if job.in_flight > 1:
        return Outcome(seconds=timed.seconds)
    count = len(round_trips_s)
    return Outcome(
        seconds=timed.seconds,
        median_s=round_trips_s[count // 2],
        p99_s=round_trips_s[count * 99 // 100],
    )


def _check(job: Job, answers: list[bytes]) -> None:
    if job.kind == "register":
        workload.check_registered(answers, job.first, job.events_per_request, job.types)
    elif job.kind == "ping":
        workload.check_pinged(answers)
    else:
        workload.check_queried(answers, job.kind, job.stored, job.types)


def _run_idle(job: Job) -> Outcome:
    """Memory of connections that are initialised, have pinged once and wait."""
    connections = [_pinged(job) for _ in range(job.warm_up)]
    before_bytes = _resident_bytes(job.pids)
    connections += [_pinged(job) for _ in range(job.requests)]
    grown_bytes = _resident_bytes(job.pids) - before_bytes
    for connection in connections:
        connection.close()
    return Outcome(bytes_per_connection=grown_bytes / job.requests)


def _pinged(job: Job) -> Connection:
    connection = Connection(job.host, job.port)
    workload.check_pinged(connection.exchange(workload.ping_requests(1), 1).answers)
    return connection


def _resident_bytes(pids: list[int]) -> int:
    return sum(psutil.Process(pid).memory_info().rss for pid in pids)


if __name__ == "__main__":
    gc.disable()
    _job = msgspec.json.decode(sys.stdin.buffer.read(), type=Job)
    sys.stdout.buffer.write(msgspec.json.encode(run(_job)))
