"""The measuring client, a process of its own: ``python -m tests.perf.client``.

Reads one :class:`Job` (JSON) from standard input, does it, checks every answer, and
writes an :class:`Outcome` (JSON) to standard output.

While the clock runs it does little: bytes made beforehand are sent, and answers only counted. They
are checked in full after it. How much of the time it computed is a part of the outcome, because a
client that does nothing else measures itself.
"""

import ctypes
import gc
import itertools
import select
import socket
import ssl
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import msgspec
import psutil

from mariner.client.reconnecting import KeyMaker
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
        connections: that share them, each with one in flight at least.
        events_per_request: for ``register``.
        has_keys: for ``register``: with request keys.
        is_backwards: for ``register``: each request has earlier events than the one before it.
        first: for ``register``: index of the first event; the connections send events in turn.
        stored: for queries: events that the server has.
        types: how many types the events have, see ``workload``.
        wire: what to speak.
        ca: certificate that a server's is to be issued by; None: no TLS.
        pids: processes of the server, whose CPU time (``idle``: memory) is looked at.
    """

    host: str
    port: int
    kind: Kind
    requests: int
    warm_up: int = 0
    in_flight: int = 1
    connections: int = 1
    events_per_request: int = 1
    has_keys: bool = False
    is_backwards: bool = False
    first: int = 0
    stored: int = 0
    types: int = workload.EVENT_TYPES
    wire: WireName = "mariner"
    ca: str | None = None
    pids: list[int] = []

    @property
    def n_events(self) -> int:
        """Events that are registered."""
        if self.kind != "register":
            return 0
        share = self.warm_up // self.connections + self.requests // self.connections
        return share * self.connections * self.events_per_request


class Outcome(msgspec.Struct):
    """What was measured.

    Attributes:
        seconds: from the first request to the last answer.
        median_s: median of the times from a request to its answer.
        p99_s: their 99th percentile.
        server_cpu_s: CPU time that the server's processes took meanwhile, in all threads.
        client_cpu_s: that the client took.
        bytes_per_connection: for ``idle``: growth of the server's resident memory.
        begun_at: when the first request was sent, in seconds of the clock that the processes
            of this machine have in common.
    """

    seconds: float = 0.0
    median_s: float = 0.0
    p99_s: float = 0.0
    server_cpu_s: float = 0.0
    client_cpu_s: float = 0.0
    bytes_per_connection: float = 0.0
    begun_at: float = 0.0


class Connection:
    """An initialised connection to a server."""

    def __init__(
        self,
        host: str,
        port: int,
        subscriptions: Sequence[Sequence[str]] = (),
        wire: WireName = "mariner",
        ca: str | None = None,
    ) -> None:
        self.wire = wire_of(wire)
        self.socket = socket.create_connection((host, port), timeout=TIMEOUT_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if ca is not None:
            context = ssl.create_default_context(cafile=ca)
            self.socket = context.wrap_socket(self.socket, server_hostname=host)
        answer, *_ = self.ask([workload.init_request(subscriptions)])  # perhaps events follow
        if answer.get("status") != "OPERATIONAL":
            self.close()
            raise workload.WrongAnswerError(f"not initialised: {answer}")

    def close(self) -> None:
        """Close the socket."""
        self.socket.close()

    def ask(self, requests: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
        """Send requests one after the other, and get the answers."""
        exchange = Exchange(self, [self.wire.encode(i) for i in requests], 1)
        run_exchanges([exchange])
        return [self.wire.decode(i) for i in exchange.answers()]


class Progress(NamedTuple):
    """How far an exchange was at some time, in seconds."""

    at: float
    n_sent: int
    n_answered: int


class Exchange:
    """Requests over one connection, and their answers.

    Args:
        connection: to the server.
        requests: as bytes.
        in_flight: how many of them are unanswered at a time.
        answers_per_request: how many answers there are to each.
    """

    def __init__(
        self,
        connection: Connection,
        requests: Sequence[bytes],
        in_flight: int,
        answers_per_request: int = 1,
    ) -> None:
        self.connection = connection
        self._requests = memoryview(b"".join(requests))
        self._ends = [0, *itertools.accumulate(map(len, requests))]
        self._in_flight = in_flight
        self._answers_per_request = answers_per_request
        self._n_sent = 0
        self._n_answers = 0
        self._received: list[bytes] = []
        self._tail = b""  # of an answer that is not there in full
        self._progress: list[Progress] = []

    @property
    def is_over(self) -> bool:
        """Whether every request is answered."""
        return self._n_answers >= (len(self._ends) - 1) * self._answers_per_request

    def begin(self) -> None:
        """Send the first requests."""
        self._send(time.perf_counter())

    def receive(self) -> None:
        """Take what has come, and send as many requests as are answered by it.

        Raises:
            ConnectionError: the server has closed the connection.
        """
        data = self.connection.socket.recv(RECEIVE_BYTES)
        now = time.perf_counter()
        if not data:
            raise ConnectionError("closed by the server")
        self._received.append(data)
        data = self._tail + data
        bounds = self.connection.wire.cut(data)
        self._n_answers += len(bounds)
        self._tail = data[bounds[-1][1] :] if bounds else data
        self._send(now)

    def _send(self, now: float) -> None:
        n_answered = self._n_answers // self._answers_per_request
        stop = min(n_answered + self._in_flight, len(self._ends) - 1)
        if stop > self._n_sent:
            begin, end = self._ends[self._n_sent], self._ends[stop]
            self.connection.socket.sendall(self._requests[begin:end])
            self._n_sent = stop
        self._progress.append(Progress(now, stop, n_answered))

    def answers(self) -> list[bytes]:
        """The answers in the order they came."""
        data = b"".join(self._received)
        return [data[begin:end] for begin, end in self.connection.wire.cut(data)]

    def times_s(self) -> Iterator[float]:
        """From each request to its answer."""
        sent = iter(self._progress)
        then = next(sent)
        request = 0
        for now in self._progress:
            while request < now.n_answered:
                while then.n_sent <= request:
                    then = next(sent)
                yield now.at - then.at
                request += 1


def run_exchanges(exchanges: Sequence[Exchange]) -> None:
    """Send and receive until all of them are over.

    Raises:
        TimeoutError: nothing came for too long.
        OSError: a connection was closed.
    """
    poll = select.epoll()
    of_socket = {i.connection.socket.fileno(): i for i in exchanges if not i.is_over}
    for fileno, exchange in of_socket.items():
        poll.register(fileno, select.EPOLLIN)
        exchange.begin()
    waiting = len(of_socket)
    while waiting:
        ready = poll.poll(TIMEOUT_S)
        if not ready:
            raise TimeoutError(f"{waiting} connections wait for answers")
        for fileno, _ in ready:
            exchange = of_socket[fileno]
            exchange.receive()
            if exchange.is_over:
                poll.unregister(fileno)
                waiting -= 1
    poll.close()


def cpu_s(pids: Iterable[int]) -> float:
    """CPU time of processes until now, in all their threads, to the nanosecond.

    ``/proc`` and psutil have it in steps of 10 ms.

    Raises:
        ProcessLookupError: there is no such process.
    """
    total = 0.0
    for pid in pids:
        clock = ctypes.c_int()
        if ctypes.CDLL(None).clock_getcpuclockid(pid, ctypes.byref(clock)) != 0:
            raise ProcessLookupError(f"no process {pid}")
        total += time.clock_gettime(clock.value)
    return total


def run(job: Job) -> Outcome:
    """Do a job.

    Raises:
        WrongAnswerError: an answer is not right.
        OSError: no connection, or it was closed.
    """
    if job.kind == "idle":
        return _run_idle(job)
    shares = [_Share(job, number) for number in range(job.connections)]
    run_exchanges([i.warm_up for i in shares])
    client_cpu_s, server_cpu_s = time.thread_time(), cpu_s(job.pids)
    begun_at = time.perf_counter()
    run_exchanges([i.timed for i in shares])
    seconds = time.perf_counter() - begun_at
    client_cpu_s, server_cpu_s = time.thread_time() - client_cpu_s, cpu_s(job.pids) - server_cpu_s
    for share in shares:
        share.check_and_close()
    times_s = sorted(time_s for share in shares for time_s in share.timed.times_s())
    return Outcome(
        seconds=seconds,
        median_s=times_s[len(times_s) // 2],
        p99_s=times_s[len(times_s) * 99 // 100],
        server_cpu_s=server_cpu_s,
        client_cpu_s=client_cpu_s,
        begun_at=begun_at,
    )


class _Share:
    """What one connection has of a job's requests."""

    def __init__(self, job: Job, number: int) -> None:
        warm_up = job.warm_up // job.connections
        count = warm_up + job.requests // job.connections
        self._job = job
        self._first = job.first + number * job.events_per_request
        self._step = job.connections * job.events_per_request
        if job.is_backwards:
            self._first += (count - 1) * self._step
            self._step = -self._step
        self._connection = Connection(job.host, job.port, wire=job.wire, ca=job.ca)
        requests = [self._connection.wire.encode(i) for i in self._messages(count)]
        in_flight = max(1, job.in_flight // job.connections)
        n_answers = job.events_per_request if job.wire == "redis" else 1
        self.warm_up = Exchange(self._connection, requests[:warm_up], in_flight, n_answers)
        self.timed = Exchange(self._connection, requests[warm_up:], in_flight, n_answers)

    def _messages(self, count: int) -> Iterator[dict[str, Any]]:
        job = self._job
        if job.kind == "register":
            make_key = KeyMaker() if job.has_keys else None
            n_events = job.events_per_request
            return workload.register_requests(
                self._first, count, n_events, job.types, make_key=make_key, step=self._step
            )
        if job.kind == "ping":
            return workload.ping_requests(count)
        return workload.query_requests(job.kind, count, job.stored, job.types)

    def check_and_close(self) -> None:
        """Every answer, in full.

        Raises:
            WrongAnswerError: one is not right.
        """
        job = self._job
        self._connection.close()
        decode = self._connection.wire.decode
        answers = map(decode, self.warm_up.answers() + self.timed.answers())
        if job.wire == "redis":
            workload.check_added(answers)
        elif job.kind == "register":
            n_events = job.events_per_request
            workload.check_registered(answers, self._first, n_events, job.types, step=self._step)
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
