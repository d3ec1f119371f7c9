"""The measuring RSB participant, a process of its own: ``python -m tests.perf.rsb_client``.

Reads a :class:`RsbJob` (JSON) from standard input, does it, checks everything, and writes an
``Outcome`` (JSON) to standard output. Blocking sockets and frames made beforehand, as
``client``.
"""

import gc
import selectors
import socket
import sys
import time
import urllib.request
from typing import Final, Literal
from uuid import UUID

import msgspec

from eventer_bridge.rsb import codec
from eventer_bridge.rsb.event import MetaData, RsbEvent, RsbEventId, now_us, parse_scope
from tests.perf import workload
from tests.perf.client import RECEIVE_BYTES, TIMEOUT_S, Connection, Outcome, cpu_s
from tests.perf.wires import wire_of

SENDER: Final = UUID("00000000-0000-4000-8000-000000000001")
SCOPE: Final = parse_scope("/perf/in/")
SCOPE_OUT: Final = parse_scope("/perf/out/")
PAGE: Final = 4_000
_REGISTERED: Final = 'mariner_events_registered_total{wire="rsb"} '


class RsbJob(msgspec.Struct):
    """What to do.

    Attributes:
        host: address of the gateway.
        port: its RSB port.
        mariner_port: its Mariner port.
        http_port: where its metrics are.
        kind: ``store``: send as fast as it takes them, until all are durable; ``relay``: the
            time from one participant to another; ``out``: from a Mariner client's
            registration to a participant.
        events: how many are timed.
        warm_up: events before that, not timed.
        period_s: from one event to the next (``relay``, ``out``).
        pids: processes of the gateway, whose CPU time is looked at (``store``).
    """

    host: str
    port: int
    mariner_port: int
    http_port: int
    kind: Literal["store", "relay", "out"]
    events: int
    warm_up: int = 0
    period_s: float = 0.001
    pids: list[int] = []


def run(job: RsbJob) -> Outcome:
    """Do a job.

    Raises:
        WrongAnswerError: what came back is not right.
        OSError: no connection, or it was closed.
    """
    return _run_store(job) if job.kind == "store" else _run_latency(job)


def _text(index: int) -> str:
    return f"{index:0100}"


def _frame(index: int) -> bytes:
    event_id = RsbEventId(SENDER, index)
    meta = MetaData(create_time=now_us(), send_time=now_us())
    event = RsbEvent(event_id, SCOPE, "utf-8-string", _text(index).encode(), meta=meta)
    return codec.encode_frame(codec.encode(event))


def _connect(job: RsbJob) -> socket.socket:
    connection = socket.create_connection((job.host, job.port), timeout=TIMEOUT_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if connection.recv(4, socket.MSG_WAITALL) != codec.HANDSHAKE:
        raise workload.WrongAnswerError("no handshake")
    return connection


def _run_store(job: RsbJob) -> Outcome:
    frames = [_frame(i) for i in range(job.warm_up + job.events)]
    connection = _connect(job)
    _send_until_durable(job, connection, frames[: job.warm_up], job.warm_up)
    start, server_cpu_s = time.perf_counter(), cpu_s(job.pids)
    _send_until_durable(job, connection, frames[job.warm_up :], len(frames))
    seconds, server_cpu_s = time.perf_counter() - start, cpu_s(job.pids) - server_cpu_s
    connection.close()
    _check_stored(job, len(frames))
    return Outcome(seconds=seconds, server_cpu_s=server_cpu_s)


def _send_until_durable(
    job: RsbJob, connection: socket.socket, frames: list[bytes], total: int
) -> None:
    connection.sendall(b"".join(frames))
    url = f"http://{job.host}:{job.http_port}/metrics"
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        with urllib.request.urlopen(url, timeout=TIMEOUT_S) as response:  # ours
            lines = response.read().decode().splitlines()
        [count] = [i.removeprefix(_REGISTERED) for i in lines if i.startswith(_REGISTERED)]
        if int(float(count)) == total:
            return
        if time.monotonic() > deadline:
            raise workload.WrongAnswerError(f"{count} of {total} events are registered")
        time.sleep(0.01)


def _check_stored(job: RsbJob, total: int) -> None:
    """Every event is there, in order, with its number and its text."""
    connection = Connection(job.host, job.mariner_port)
    query = {
        "msg_type": "query_req",
        "query_id": 0,
        "query_type": "timeseries",
        "event_types": [["rsb", *SCOPE.segments]],
        "order": "ASCENDING",
        "order_by": "TIMESTAMP",
        "max_results": PAGE,
    }
    found = 0
    while True:
        [page] = connection.ask([query])
        for event in page["events"]:
            data = event["payload"]["data"]
            if (data["rsb"]["sequence"], data["value"]) != (found, _text(found)):
                raise workload.WrongAnswerError(f"event {found}: {event}")
            found += 1
        if not page["more_follows"]:
            break
        query["last_event_id"] = page["events"][-1]["id"]
    connection.close()
    if found != total:
        raise workload.WrongAnswerError(f"{found} of {total} events are stored")


def _run_latency(job: RsbJob) -> Outcome:
    """Send at a steady rate; a participant on another connection takes the times."""
    listener = _connect(job)
    total = job.warm_up + job.events
    if job.kind == "relay":
        sender, frames = _connect(job), [_frame(i) for i in range(total)]
    else:
        mariner = Connection(job.host, job.mariner_port)
        sender, frames = mariner.socket, [_register_out(i) for i in range(total)]
    decoder = codec.NotificationDecoder()
    sent_s: list[float] = []
    taken_s: list[float] = []
    with selectors.DefaultSelector() as selector:
        selector.register(listener, selectors.EVENT_READ)
        selector.register(sender, selectors.EVENT_READ)
        next_at = started = time.perf_counter()
        while len(taken_s) < total:
            now = time.perf_counter()
            if now > started + TIMEOUT_S:
                raise workload.WrongAnswerError(f"{len(taken_s)} of {total} events came")
            if len(sent_s) < total and now >= next_at:
                next_at += job.period_s
                sent_s.append(time.perf_counter())
                sender.sendall(frames[len(sent_s) - 1])
            ready = selector.select(max(0.0, next_at - time.perf_counter()))
            for key, _ in ready:
                data = key.fileobj.recv(RECEIVE_BYTES)  # type: ignore[union-attr]
                if key.fileobj is not listener:
                    continue  # answers of Mariner
                decoder.feed(data)
                came_s = time.perf_counter()
                while (notification := decoder.next_frame()) is not None:
                    index = len(taken_s)
                    _check_came(job, notification, index)
                    taken_s.append(came_s - sent_s[index])
    listener.close()
    sender.close()
    times = sorted(taken_s[job.warm_up :])
    return Outcome(
        seconds=time.perf_counter() - started,
        median_s=times[len(times) // 2],
        p99_s=times[len(times) * 99 // 100],
    )


def _register_out(index: int) -> bytes:
    event = {
        "type": ["rsb", *SCOPE_OUT.segments],
        "source_timestamp": None,
        "payload": {"payload_type": "json", "data": _text(index)},
    }
    request = {"msg_type": "register_req", "register_id": index, "register_events": [event]}
    return wire_of("mariner").encode(request)


def _check_came(job: RsbJob, notification: bytes, index: int) -> None:
    event = codec.decode(notification)
    scope = SCOPE if job.kind == "relay" else SCOPE_OUT
    if (event.scope, event.data.decode()) != (scope, _text(index)):
        raise workload.WrongAnswerError(f"event {index}: {event}")


if __name__ == "__main__":
    gc.disable()
    _job = msgspec.json.decode(sys.stdin.buffer.read(), type=RsbJob)
    sys.stdout.buffer.write(msgspec.json.encode(run(_job)))
