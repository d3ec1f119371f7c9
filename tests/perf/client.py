"""The measuring client, a process of its own: ``python -m tests.perf.client``.

Reads one :class:`Job` (JSON) from standard input, does it, checks every answer, and
writes an :class:`Outcome` (JSON) to standard output.

It is a plain blocking socket, because that costs least: while the clock runs, frames made
beforehand are sent and the answers are only cut apart. They are checked in full after it.
The same for every wire: they have their framing in common.
"""

import gc
import socket
import sys
import time
from collections.abc import Iterable, Sequence
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import msgspec
import psutil

from tests.perf import workload
from tests.perf.wires import WireName, wire_of

TIMEOUT_S: Final = 60.0
"""Silence of a server after which a measurement has failed."""

RECEIVE_BYTES: Final = 1 << 20


Kind: TypeAlias = Literal["register", "newest", "spread", "absent", "latest", "ping", "idle"]
"""What a client measures; ``idle`` opens connections and leaves them idle."""


class Job(msgspec.Struct):
    """What to do.

    Attributes:
        host: address of the server.
        port: its port for the wire.
        kind: what to measure.
        requests: how many requests are timed (``idle``: connections opened).
        warm_up: requests of the same kind before that, not timed.
        in_flight: requests that are unanswered at a time.
        events_per_request: for ``register``.
        first: for ``register``: index of the first event.
        stored: for queries: events that the server has.
        types: how many types the events have, see ``workload``.
        wire: what to speak.
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
    wire: WireName = "mariner"
    pids: list[int] = []


class Outcome(msgspec.Struct):
    """What was measured.

    Attributes:
        seconds: from the first request to the last answer.
        median_s: median of the round-trip times; only with one in flight, else 0.
        p99_s: their 99th percentile, likewise.
        bytes_per_connection: for ``idle``: growth of the server's resident memory.
        begun_at: when the first request was sent, in seconds of the clock that the processes
            of this machine have in common.
    """

    seconds: float = 0.0
    median_s: float = 0.0
    p99_s: float = 0.0
    bytes_per_connection: float = 0.0
    begun_at: float = 0.0


class Exchange(NamedTuple):
    """Answers in the order they came, and the times taken."""

    answers: list[bytes]
    begun_at: float
    seconds: float
    round_trips_s: list[float]


class Connection:
    """An initialised connection to a server."""

    def __init__(
        self,
        host: str,
        port: int,
        subscriptions: Sequence[Sequence[str]] = (),
        wire: WireName = "mariner",
    ) -> None:
        self._buffer = bytearray()
        self.wire = wire_of(wire)
        self.socket = socket.create_connection((host, port), timeout=TIMEOUT_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.sendall(self.wire.encode(workload.init_request(subscriptions)))
        answer = self.wire.decode(self._receive()[0])
        if answer.get("status") != "OPERATIONAL":
            self.close()
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
        return Exchange(answers, start, last - start, round_trips_s)

    def ask(self, requests: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
        """Send requests one after the other, and get the answers."""
        frames = [self.wire.encode(i) for i in requests]
        return [self.wire.decode(i) for i in self.exchange(frames, 1).answers]

    def _receive(self) -> list[bytes]:
        """Wait for at least one whole frame; the messages of all that are there."""
        while not (messages := self._cut()):
            data = self.socket.recv(RECEIVE_BYTES)
            if not data:
                raise ConnectionError("closed by the server")
            self._buffer += data
        return messages

    def _cut(self) -> list[bytes]:
        messages, position = cut(self._buffer)
        del self._buffer[:position]
        return messages


def cut(buffer: bytearray) -> tuple[list[bytes], int]:
    """Messages of the whole frames that a buffer begins with, and their size."""
    messages = []
    position = 0
    while position < len(buffer):
        begin = position + 1 + buffer[position]
        end = begin + int.from_bytes(buffer[position + 1 : begin], "big")
        if begin > len(buffer) or end > len(buffer):
            break
        messages.append(bytes(buffer[begin:end]))
        position = end
    return messages, position


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
        messages = workload.register_requests(job.first, count, job.events_per_request, job.types)
    elif job.kind == "ping":
        messages = workload.ping_requests(count)
    else:
        messages = workload.query_requests(job.kind, count, job.stored, job.types)

    connection = Connection(job.host, job.port, wire=job.wire)
    requests = [connection.wire.encode(i) for i in messages]
    warm_up = Exchange([], 0.0, 0.0, [])
    if job.warm_up:
        warm_up = connection.exchange(requests[: job.warm_up], job.in_flight)
    timed = connection.exchange(requests[job.warm_up :], job.in_flight)
    connection.close()

    _check(job, warm_up.answers + timed.answers)
    round_trips_s = sorted(timed.round_trips_s)
    if job.in_flight > 1:
        return Outcome(seconds=timed.seconds, begun_at=timed.begun_at)
    count = len(round_trips_s)
    return Outcome(
        seconds=timed.seconds,
        median_s=round_trips_s[count // 2],
        p99_s=round_trips_s[count * 99 // 100],
        begun_at=timed.begun_at,
    )


def _check(job: Job, frames: list[bytes]) -> None:
    answers = map(wire_of(job.wire).decode, frames)
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
    connection = Connection(job.host, job.port, wire=job.wire)
    workload.check_pinged(connection.ask(workload.ping_requests(1)))
    return connection


def _resident_bytes(pids: list[int]) -> int:
    return sum(psutil.Process(pid).memory_info().rss for pid in pids)


if __name__ == "__main__":
    gc.disable()
    _job = msgspec.json.decode(sys.stdin.buffer.read(), type=Job)
    sys.stdout.buffer.write(msgspec.json.encode(run(_job)))
