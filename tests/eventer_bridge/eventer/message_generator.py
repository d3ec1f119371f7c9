"""Random Eventer messages, right and wrong ones, made fast: about 30 µs each.

A message is built from the schema of 001 as a value for hat-sbs, with values that no event
should have among them, encoded by hat-sbs, then sometimes a few of its bytes are changed.
Everything comes from one seed.
"""

import random
from collections.abc import Callable
from typing import Any, Final

from hat.event.common import sbs_repo

Value = Any

NAMES: Final = tuple(
    f"HatEventer.Msg{i}"
    for i in (
        "InitReq",
        "InitRes",
        "StatusNotify",
        "EventsNotify",
        "EventsAck",
        "RegisterReq",
        "RegisterRes",
        "QueryReq",
        "QueryRes",
    )
)

_TEXTS: Final = ("", "a", "ab", "?", "*", "žižula", "\U0001f600", "\x00", "a" * 70)
_INTEGERS: Final = (0, 1, 2, -1, 63, 64, -64, -65, 8_191, 8_192, (1 << 63) - 1, -(1 << 63))
_SECONDS: Final = (*_INTEGERS, 1_700_000_000, 1_700_000_001, -1_700_000_000, 1 << 34)
_MICROSECONDS: Final = (0, 1, 63, 64, 8_191, 8_192, 20_000, 999_999) * 6 + (1_000_000, -1, 1 << 40)
_JSON: Final = (
    "null", "1.5", "[]", '{"a": [1, true]}', '"ž"', '"\\ud83d\\ude00"', '"' + "x" * 80 + '"',
    '{"value": 21.5, "unit": "C"}', "1e400", "-0", " \r\n1\t", "[" * 128 + "]" * 128, "1" * 1_000,
) * 3 + (
    "", "{", "NaN", "-Infinity", "1 2", "01", '"\\ud800"', '"\\udc00\\ud800"', '{"a":1,}', "\x00",
    '"\n"', "tru", "[" * 129 + "]" * 129, "[" * 2_000, "1" * 1_001, "'a'", "\ufeff1",
)  # fmt: skip
_JUNK: Final = (
    b"", b"\x80", b"\x81", b"\x82", b"\xff", b"\x00", b"\x00\x80", b"\x00\x81", b"\x00\xff",
    b"\x7f\xff", b"\x01\x80", b"\x01" + b"\x00" * 8 + b"\x80", b"\x7f" + b"\x00" * 8 + b"\x80",
    b"\x00" * 9 + b"\x81", b"\x00" * 11 + b"\x81", b"\xc3", b"\xc5\xbe", b" ", b"[", b'"', b"0",
    b"\x0f" + b"\x7f" * 7 + b"\xff",
)  # fmt: skip


class MessageGenerator:
    """Random messages.

    Args:
        seed: the same seed gives the same messages.
    """

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._chance = self._random.random
        self._choose = self._random.choice

    def message(self) -> tuple[str, bytes]:
        """Type and data of the next message, which may be anything."""
        name = self._choose(NAMES)
        value = getattr(self, f"_{name.removeprefix('HatEventer.')}")()
        data = bytes(sbs_repo.encode(name, value))
        if self._chance() < 0.5:
            return name, data
        while True:
            data = self._changed(data)
            if self._chance() < 0.6:
                break
        return (self._choose(NAMES) if self._chance() < 0.05 else name), data

    def _changed(self, data: bytes) -> bytes:
        at = self._random.randrange(len(data) + 1)
        kind = self._random.randrange(5)
        if kind == 0:
            return data[:at]
        if kind == 1:
            return data[:at] + self._choose(_JUNK) + data[at + self._random.randrange(3) :]
        if kind == 2 and at < len(data):
            bit = 1 << self._random.randrange(8)
            return data[:at] + bytes((data[at] ^ bit,)) + data[at + 1 :]
        if kind == 3 and at < len(data):  # an integer of one more byte
            sign = 0x7F if data[at] & 0x40 else 0
            return data[:at] + bytes((sign,)) + data[at:]
        end = at + self._random.randrange(20)
        return data[:end] + data[at:]

    # --- grammar --------------------------------------------------------------------------

    def _MsgInitReq(self) -> Value:  # noqa: N802 as in 001
        return {
            "clientName": self._text(),
            "clientToken": self._optional(self._text),
            "subscriptions": self._list(self._type),
            "serverId": self._optional(self._integer),
            "persisted": self._boolean(),
        }

    def _MsgInitRes(self) -> Value:  # noqa: N802
        if self._boolean():
            return "success", self._MsgStatusNotify()
        return "error", self._text()

    def _MsgStatusNotify(self) -> Value:  # noqa: N802
        return self._choose(("standby", "starting", "operational", "stopping")), None

    def _MsgEventsNotify(self) -> Value:  # noqa: N802
        return self._list(self._event)

    def _MsgEventsAck(self) -> Value:  # noqa: N802
        return None

    def _MsgRegisterReq(self) -> Value:  # noqa: N802
        return self._list(self._register_event)

    def _MsgRegisterRes(self) -> Value:  # noqa: N802
        return ("events", self._list(self._event)) if self._chance() < 0.9 else ("failure", None)

    def _MsgQueryReq(self) -> Value:  # noqa: N802
        types = self._optional(lambda: self._list(self._type))
        paging = {
            "maxResults": self._optional(self._max_results),
            "lastEventId": self._optional(self._event_id),
        }
        kind = self._random.randrange(3)
        if kind == 0:
            return "latest", {"eventTypes": types}
        if kind == 1:
            return "server", {
                "serverId": self._integer(),
                "persisted": self._boolean(),
                **paging,
            }
        return "timeseries", {
            "eventTypes": types,
            **{
                i: self._optional(self._timestamp)
                for i in ("tFrom", "tTo", "sourceTFrom", "sourceTTo")
            },
            "order": (self._choose(("descending", "ascending")), None),
            "orderBy": (self._choose(("timestamp", "sourceTimestamp")), None),
            **paging,
        }

    def _MsgQueryRes(self) -> Value:  # noqa: N802
        return {"events": self._list(self._event), "moreFollows": self._boolean()}

    def _event(self) -> Value:
        return {
            "id": self._event_id(),
            "timestamp": self._timestamp(),
            **self._register_event(),
        }

    def _register_event(self) -> Value:
        return {
            "type": self._type(),
            "sourceTimestamp": self._optional(self._timestamp),
            "payload": self._optional(self._payload),
        }

    def _payload(self) -> Value:
        if self._chance() < 0.7:
            return "json", self._choose(_JSON)
        size = self._choose((0, 1, 10, 63, 64, 100))
        return "binary", {"type": self._text(), "data": self._random.randbytes(size)}

    def _type(self) -> Value:
        if self._chance() < 0.005:
            return ["a"] * self._choose((64, 65, 66))
        return self._list(self._text)

    def _timestamp(self) -> Value:
        return {"s": self._choose(_SECONDS), "us": self._choose(_MICROSECONDS)}

    def _event_id(self) -> Value:
        return {
            "server": self._choose((1, 2, 70)),
            "session": self._choose((5, 5, 6, 1 << 20)),
            "instance": self._integer(),
        }

    def _max_results(self) -> int:
        return self._choose((0, 1, 100, 1 << 62, -1))

    def _integer(self) -> int:
        return self._choose(_INTEGERS)

    def _text(self) -> str:
        return self._choose(_TEXTS)

    def _boolean(self) -> bool:
        return self._chance() < 0.5

    def _optional(self, make: Callable[[], Value]) -> Value:
        return ("value", make()) if self._boolean() else ("none", None)

    def _list(self, make: Callable[[], Value]) -> list[Value]:
        return [make() for _ in range(self._choose((0, 1, 1, 2, 3)))]
