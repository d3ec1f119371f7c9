"""The workload as commands of Redis Streams (RESP 2), without a client library.

An event is an entry of one stream, with its type, source timestamp and payload as fields; so a
request is as many XADDs, and as many answers, as it has events.

redis-py (8.1, pipelines of 64 and of 100) was measured, and is the bottleneck: it takes 9 µs of CPU
for each XADD, the server 3.
"""

from typing import Any, Final

import msgspec

from tests.perf.wires import Bounds

STREAM: Final = b"events"


def command(*arguments: bytes) -> bytes:
    """A command as Redis reads it."""
    parts = [b"*%d\r\n" % len(arguments)]
    parts += [b"$%d\r\n%b\r\n" % (len(i), i) for i in arguments]
    return b"".join(parts)


def encode(message: dict[str, Any]) -> bytes:
    """Commands of a request of 002, as ``Wire.encode``: to initialise is only to be there."""
    match message["msg_type"]:
        case "init_req" | "ping_req":
            return command(b"PING")
        case "register_req":
            return b"".join(_add(event) for event in message["register_events"])
        case other:
            raise AssertionError(f"not measured: {other}")


def _add(event: dict[str, Any]) -> bytes:
    fields = {
        "type": "/".join(event["type"]).encode(),
        "source_timestamp": msgspec.json.encode(event["source_timestamp"]),
        "payload": msgspec.json.encode(event["payload"]),
    }
    pairs = [part for name, value in fields.items() for part in (name.encode(), value)]
    return command(b"XADD", STREAM, b"*", *pairs)


def cut(data: bytes) -> Bounds:
    """Bounds of the whole answers, as ``Wire.cut``: one line, or a string after its size."""
    bounds = []
    end = 0
    while (line_end := data.find(b"\r\n", end)) >= 0:
        begin, end = end, line_end + 2
        if data[begin] == ord("$"):
            end += int(data[begin + 1 : line_end]) + 2
            if end > len(data):
                break
        bounds.append((begin, end))
    return bounds


def decode(answer: bytes) -> dict[str, Any]:
    """What an answer says: the entry's id, or text."""
    kind, text = chr(answer[0]), answer[1:-2].decode()
    if kind == "$":
        milliseconds, number = text.partition("\r\n")[2].split("-")
        return {"msg_type": "added", "id": (int(milliseconds), int(number))}
    if answer == b"+PONG\r\n":
        return {"msg_type": "init_res", "status": "OPERATIONAL"}
    return {"msg_type": "text", "text": kind + text}
