"""A client that replays all events of a gateway: ``python -m tests.perf.replay_client``.

Reads one :class:`ReplayJob` (JSON) from standard input, takes the events with ``mariner.client``,
and writes an :class:`Outcome` (JSON). Values are compared when the clock is stopped.
"""

import gc
import sys
import time
from collections.abc import Sequence

import msgspec
import uvloop

from eventer_bridge.model import Event, EventId, JsonPayload
from mariner import client
from tests.perf.client import Outcome, cpu_s
from tests.perf.workload import WrongAnswerError, register_event


class ReplayJob(msgspec.Struct):
    """What to do.

    Attributes:
        host: address of the gateway.
        port: its port.
        events: those of the workload, from 0 on, that are stored.
        pids: processes of the gateway, whose CPU time is looked at.
    """

    host: str
    port: int
    events: int
    pids: list[int]


async def run(job: ReplayJob) -> Outcome:
    """Do a job.

    Raises:
        WrongAnswerError: it did not get every event, once and in order.
        ConnectionLostError: the connection was lost.
    """
    connection = await client.connect(
        job.host,
        job.port,
        client_name="app",
        client_token="secret",
        subscriptions=[("perf", "*")],
        start="earliest",
    )
    last: Event | None = None
    n_events = 0
    server_cpu_s, client_cpu_s, begun_at = cpu_s(job.pids), time.process_time(), time.perf_counter()
    async with connection:
        async for batch in connection.replay(until_up_to_date=True):
            _check(batch.events, last, n_events)
            n_events += len(batch.events)
            last = batch.events[-1]
        seconds = time.perf_counter() - begun_at
        server_cpu_s = cpu_s(job.pids) - server_cpu_s
        client_cpu_s = time.process_time() - client_cpu_s
    if n_events != job.events:
        raise WrongAnswerError(f"{n_events} events, not {job.events}")
    return Outcome(seconds, server_cpu_s=server_cpu_s, client_cpu_s=client_cpu_s, begun_at=begun_at)


def _check(events: Sequence[Event], last: Event | None, n_before: int) -> None:
    """Ids rise, and the last event is the one of the workload that it must be."""
    before: EventId | None = None if last is None else last.id
    for event in (events[0], events[-1]):
        if before is not None and event.id < before:
            raise WrongAnswerError(f"{event.id} after {before}")
        before = event.id
    payload = events[-1].payload
    assert isinstance(payload, JsonPayload)
    found = msgspec.json.decode(payload.data)
    expected = register_event(n_before + len(events) - 1)["payload"]["data"]
    if found != expected:
        raise WrongAnswerError(f"got {found}\nexpected {expected}")


if __name__ == "__main__":
    gc.disable()
    _job = msgspec.json.decode(sys.stdin.buffer.read(), type=ReplayJob)
    sys.stdout.buffer.write(msgspec.json.encode(uvloop.run(run(_job))))
