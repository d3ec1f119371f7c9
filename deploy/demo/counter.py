"""An example external application that counts what is stored when the plug is pulled.

It registers numbered events through a buffer on the local disk (``BufferedClient``), and reads
them behind a cursor (``ReconnectingClient``), until it has seen the last one. Kill the gateway
meanwhile, as often as you like, and start it again: each event is stored once, and seen once, in
order.

    MARINER_TOKEN=… python deploy/demo/counter.py --tls-ca var/certs/ca.pem
"""

import argparse
import asyncio
import functools
import itertools
import logging
import os
import secrets
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec

import mariner

TYPE = "counter"
CURSOR = "counter"


class Count(msgspec.Struct):
    """Payload of an event: which run registered it, and its number, from 0."""

    run: str
    number: int


class Told(logging.Handler):
    """Prints what the clients log, and why; what both of them tell, once."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._last = ""

    def emit(self, record: logging.LogRecord) -> None:
        """See ``logging.Handler``."""
        line = f"counter: {record.getMessage()}"
        told = line.partition(";")[0]  # the next try is at another time
        if told != self._last:
            self._last = told
            print(line, file=sys.stderr)


def number_of(event: mariner.Event, run: str) -> int | None:
    """Number of an event; None: another run registered it."""
    assert isinstance(event.payload, mariner.JsonPayload)
    found = msgspec.json.decode(event.payload.data, type=Count)
    return found.number if found.run == run else None


async def register(writer: mariner.BufferedClient, run: str, arguments: argparse.Namespace) -> None:
    """Register all events; each is on the local disk when it is acknowledged, and forwarded."""
    for number in range(arguments.count):
        await writer.register(TYPE, Count(run, number))
        await asyncio.sleep(arguments.period)
    await writer.drain()


async def read(reader: mariner.ReconnectingClient, run: str, count: int) -> list[int]:
    """What is seen, up to the last event. It is dealt with before it is acknowledged."""
    seen: list[int] = []
    told = count // 4
    async for batch in reader.replay():
        numbers = [number_of(event, run) for event in batch.events]
        seen += [number for number in numbers if number is not None]
        await batch.ack()
        while told and len(seen) >= told < count:
            print(f"counter: seen {told}", flush=True)
            told += count // 4
        if count - 1 in seen[-len(numbers) :]:
            break
    return seen


async def run(arguments: argparse.Namespace) -> int:
    """Register, read and count; the exit code."""
    connect = functools.partial(
        mariner.connect,
        arguments.host,
        arguments.port,
        client_name=arguments.name,
        client_token=os.environ.get("MARINER_TOKEN"),
        ssl=mariner.tls.client_context(ca=arguments.tls_ca) if arguments.tls_ca else None,
    )
    subscribed = functools.partial(connect, subscriptions=[TYPE])
    this, count = secrets.token_hex(4), arguments.count
    with tempfile.TemporaryDirectory(prefix="counter-") as buffer:
        async with (
            await mariner.BufferedClient.open(buffer, [connect]) as writer,
            mariner.ReconnectingClient([subscribed], cursor=CURSOR) as reader,
        ):
            text = f"counter: registers {count} events: kill the gateway, and start it again"
            print(text, flush=True)
            reading = read(reader, this, count)  # it raises why a gateway declines us
            seen, _ = await asyncio.gather(reading, register(writer, this, arguments))
            params = mariner.timeseries(TYPE, order=mariner.Order.ASCENDING)
            stored = [number_of(event, this) async for event in reader.query_all(params)]
    return report(count, [i for i in stored if i is not None], seen)


def report(count: int, stored: Sequence[int], seen: Sequence[int]) -> int:
    """Say what became of the events; 0 if each is stored once and was seen once, in order."""
    is_right = list(stored) == list(seen) == [*range(count)]
    twice = [sum(1 for i, j in itertools.pairwise(sorted(found)) if i == j)
             for found in (stored, seen)]  # fmt: skip
    print(
        f"counter: registered {count}, stored {len(stored)} ({twice[0]} twice),"
        f" seen {len(seen)} ({twice[1]} twice): {'ok' if is_right else 'WRONG'}"
    )
    return 0 if is_right else 1


def main() -> int:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description="count what is stored when the plug is pulled")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=int(os.environ.get("MARINER_PORT", "23014")))
    parser.add_argument("--tls-ca", type=Path, default=os.environ.get("MARINER_TLS_CA"))
    parser.add_argument("--name", default="development")
    parser.add_argument("--count", type=int, default=2_000, help="events (default 2000)")
    parser.add_argument("--period", type=float, default=0.005, help="seconds (default 0.005)")
    logging.getLogger("mariner.client").addHandler(Told())
    try:
        return asyncio.run(run(parser.parse_args()))
    except mariner.MarinerError as e:
        print(f"counter: {e}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
