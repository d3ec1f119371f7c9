"""An example external application: registers measurements of the machine it runs on.

Usage of every processor, memory, disk and network counters, read by ``psutil`` once a
period and registered in one request: all of them are stored, or none. It speaks to the
gateway as any application does, by ``mariner``, and connects anew when the
connection is lost.

    MARINER_TOKEN=… python deploy/demo/machine.py --tls-ca var/certs/ca.pem --count 10
"""

import argparse
import asyncio
import os
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import psutil

import mariner

RECONNECT_DELAY_S = 1.0
LOST = (mariner.ConnectError, mariner.ConnectionLostError, mariner.OutcomeUnknownError)


def measurements() -> Iterator[mariner.RegisterEvent]:
    """What is measured now: one event a quantity, its type naming what and where."""
    now = datetime.now(UTC)

    def event(*segments: str, value: float, unit: str) -> mariner.RegisterEvent:
        payload = {"value": value, "unit": unit}
        return mariner.event(("machine", *segments), payload, source_timestamp=now)

    for index, percent in enumerate(psutil.cpu_percent(percpu=True)):
        yield event("cpu", str(index), value=percent, unit="%")
    memory = psutil.virtual_memory()
    yield event("memory", "used", value=memory.used, unit="B")
    yield event("memory", "available", value=memory.available, unit="B")
    yield event("disk", "used", value=psutil.disk_usage("/").used, unit="B")
    if disk := psutil.disk_io_counters():
        yield event("disk", "read", value=disk.read_bytes, unit="B")
        yield event("disk", "written", value=disk.write_bytes, unit="B")
    if network := psutil.net_io_counters():
        yield event("network", "sent", value=network.bytes_sent, unit="B")
        yield event("network", "received", value=network.bytes_recv, unit="B")


async def run(arguments: argparse.Namespace) -> int:
    """Register measurements until ``--count`` is reached; the number of registered events."""
    ca = arguments.tls_ca
    context = mariner.tls.client_context(ca=ca) if ca else None
    rounds = event_count = 0
    told = ""
    psutil.cpu_percent(percpu=True)  # the first reading has nothing to compare with
    while arguments.count is None or rounds < arguments.count:
        try:
            connection = await mariner.connect(
                arguments.host,
                arguments.port,
                client_name=arguments.name,
                client_token=os.environ.get("MARINER_TOKEN"),
                ssl=context,
            )
            told = ""
            async with connection:
                while arguments.count is None or rounds < arguments.count:
                    await asyncio.sleep(arguments.period)
                    events = await connection.register(list(measurements()))
                    rounds += 1
                    event_count += len(events)
        except LOST as e:
            if str(e) != told:
                told = str(e)
                print(f"machine: {told}; connecting again", file=sys.stderr)
            await asyncio.sleep(RECONNECT_DELAY_S)
    return event_count


def main() -> int:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description="register measurements of this machine")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=int(os.environ.get("MARINER_PORT", "23014")))
    parser.add_argument("--tls-ca", type=Path, default=os.environ.get("MARINER_TLS_CA"))
    parser.add_argument("--name", default="development")
    parser.add_argument("--period", type=float, default=1.0, help="seconds (default 1)")
    parser.add_argument("--count", type=int, help="rounds (default: for ever)")
    try:
        event_count = asyncio.run(run(parser.parse_args()))
    except mariner.MarinerError as e:
        print(f"machine: {e}", file=sys.stderr)
        return 1
    print(f"machine: registered {event_count} events")
    return 0


if __name__ == "__main__":
    sys.exit(main())
