"""Our codec of events is worth having beside hat-sbs if it is at least twice as fast.

Compared is what a server does for a registration of 100 events: decode the request, encode the
response; with our codec, with hat-sbs and the least that it takes to turn its values into our
records and back, and as hat-event does it.

    python -m tests.perf.test_eventer_codec
"""

import timeit
from collections.abc import Callable
from typing import Final

import msgspec
import pytest
from hat.event.common import (
    event_from_sbs,
    event_to_sbs,
    register_event_from_sbs,
    sbs_repo,
)
from msgspec.structs import asdict

from eventer_bridge.eventer import codec
from eventer_bridge.eventer.events import encode_events
from eventer_bridge.eventer.messages import MsgRegisterReq, MsgRegisterRes
from eventer_bridge.model import Event, EventId, JsonPayload, RegisterEvent, Timestamp
from tests.eventer_bridge.eventer.samples import json_payload

REQUEST: Final = "HatEventer.MsgRegisterReq"
RESPONSE: Final = "HatEventer.MsgRegisterRes"

WANTED: Final = [
    RegisterEvent(
        ("perf", str(i)),
        Timestamp(1_700_000_000, i * 1_000),
        json_payload({"value": i + 0.5, "unit": "C", "quality": "good"}),
    )
    for i in range(100)
]
NOW: Final = Timestamp(1_700_000_001, 123_456)
REGISTERED: Final = [
    Event(EventId(1, 1_000_000, i), event.type, NOW, event.source_timestamp, event.payload)
    for i, event in enumerate(WANTED, 1)
]
REQUEST_BYTES: Final = codec.encode(MsgRegisterReq(WANTED))[1]
RESPONSE_BYTES: Final = codec.encode(MsgRegisterRes(REGISTERED))[1]
HAT_EVENTS: Final = [event_from_sbs(i) for i in sbs_repo.decode(RESPONSE, RESPONSE_BYTES)[1]]

check_json: Final = msgspec.json.Decoder(msgspec.Raw).decode


def ours() -> bytes:
    codec.decode(REQUEST, REQUEST_BYTES)
    return codec.encode_register_success(encode_events(REGISTERED))


def with_hat_sbs() -> bytes:
    for i in sbs_repo.decode(REQUEST, REQUEST_BYTES):
        source_timestamp = i["sourceTimestamp"][1]
        text = i["payload"][1][1].encode()
        RegisterEvent(
            tuple(i["type"]),
            Timestamp(source_timestamp["s"], source_timestamp["us"]),
            JsonPayload(check_json(text)),
        )
    values = []
    for event in REGISTERED:
        assert event.source_timestamp is not None
        assert event.payload is not None
        values.append(
            {
                "id": asdict(event.id),
                "type": list(event.type),
                "timestamp": asdict(event.timestamp),
                "sourceTimestamp": ("value", asdict(event.source_timestamp)),
                "payload": ("value", ("json", bytes(event.payload.data).decode())),
            }
        )
    return bytes(sbs_repo.encode(RESPONSE, ("events", values)))


def hat_event() -> bytes:
    for i in sbs_repo.decode(REQUEST, REQUEST_BYTES):
        register_event_from_sbs(i)
    return bytes(sbs_repo.encode(RESPONSE, ("events", [event_to_sbs(i) for i in HAT_EVENTS])))


def measure() -> dict[Callable[[], bytes], float]:
    """Seconds that each takes for 100 events: the least of many, by turns."""
    best: dict[Callable[[], bytes], float] = {}
    for _ in range(40):
        for each in (ours, with_hat_sbs, hat_event):
            took_s = timeit.timeit(each, number=5) / 5
            best[each] = min(took_s, best.get(each, took_s))
    return best


@pytest.mark.perf
def test_all_three_do_the_same() -> None:
    assert ours() == with_hat_sbs() == hat_event() == RESPONSE_BYTES


if __name__ == "__main__":
    for name, took_s in measure().items():
        print(f"{name.__name__:12} {took_s * 1e4:6.2f} us an event")
