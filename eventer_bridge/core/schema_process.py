"""The process of a ``schema_worker.SchemaWorker``: checks payloads from its standard input.

A message, in both directions, is a length (8 bytes, big endian) followed by its bytes. The first
one holds the schemas, in JSON, and is answered by an empty one. Each later one holds payloads with
the ids of their schemas, in MessagePack; the answer is the first refused one with its reason, or
nil.

It ends with its input. It also ends itself if a check takes too long and the parent, which may be
gone, does not end it.

Run as ``python -m eventer_bridge.core.schema_process``, with the time limit of a check in seconds.
"""

import json
import signal
import sys
from collections.abc import Mapping
from typing import Any, BinaryIO

import msgspec

from eventer_bridge.core import payload_schemas
from eventer_bridge.core.payload_schemas import PayloadSchema
from eventer_bridge.core.schema_worker import LENGTH_BYTES
from eventer_bridge.model import JsonPayload


def main() -> None:
    """Check payloads until the input ends."""
    # the parent may handle signals in a thread of its own, and block them in all others
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTERM, signal.SIGINT))
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    timeout_s = float(sys.argv[1])
    schemas = payload_schemas.create(json.loads(_read(source)))
    _write(sink, b"")
    while request := _read(source):
        signal.setitimer(signal.ITIMER_REAL, timeout_s)  # SIGALRM ends it, even within a check
        answer = msgspec.msgpack.encode(_first_refused(schemas, request))
        signal.setitimer(signal.ITIMER_REAL, 0)
        _write(sink, answer)


def _first_refused(schemas: Mapping[str, PayloadSchema], request: bytes) -> tuple[int, str] | None:
    checks = msgspec.msgpack.decode(request, type=list[tuple[list[str], bytes]])
    for index, (schema_ids, data) in enumerate(checks):
        payload = JsonPayload(msgspec.Raw(data))
        for schema_id in schema_ids:
            if reason := schemas[schema_id].refusal(payload):
                return index, reason
    return None


def _read(source: BinaryIO | Any) -> bytes:
    """The next message; empty at the end of the input, even within a message."""
    head = source.read(LENGTH_BYTES)
    if len(head) < LENGTH_BYTES:
        return b""
    n_bytes = int.from_bytes(head)
    data: bytes = source.read(n_bytes)
    return data if len(data) == n_bytes else b""


def _write(sink: BinaryIO | Any, message: bytes) -> None:
    sink.write(len(message).to_bytes(LENGTH_BYTES) + message)
    sink.flush()


if __name__ == "__main__":
    main()
