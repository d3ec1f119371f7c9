"""Random Mariner messages, right and wrong ones, made fast: about 20 µs each.

A message is built from the grammar of 002 as a plain JSON value, then some of its parts are
changed, then it becomes text, of which sometimes a few bytes are changed. Everything comes
from one seed.
"""

import base64
import copy
import json
import random
import re
from collections.abc import Callable
from typing import Any, Final, TypeAlias

Json: TypeAlias = Any

_TEXTS: Final = ("", "a", "?", "*", "žižula", "\U0001f600", "a\nb", '"\\', "\x7f", "\u2028")
_INTEGERS: Final = (0, 1, -1, 999_999, 1_000_000, 1 << 31, (1 << 63) - 1, -(1 << 63))
_JUNK: Final[tuple[Json, ...]] = (
    None, True, False, 0, 1, -1, 0.0, -0.0, 1.0, 2.5, 1e3, 1e-3, 999999.0, 1e18, 1e19, -1e300,
    1 << 63, (1 << 63) - 1, -(1 << 63), -(1 << 63) - 1, 10**30, -(10**100), -(2.0**63), 2.0**63,
    "", "x", "1", "true", "null", "STANDBY", "OPERATIONAL", "STARTING", "standby", "ASCENDING",
    "DESCENDING", "TIMESTAMP", "SOURCE_TIMESTAMP", "json", "binary", "latest", "timeseries",
    "server", "AA==", "AB==", "AAA=", "AAAA", "AAAA\n", " AAAA", "AA AA=", "A", "AA", "AAA",
    "AA=", "====", "=AAA", "AA==AAAA", "AAA-", "AA_=", "ÁÁÁÁ", "A\u0000AA", [], [[]], [["a"]],
    [["a", "*"], []], [1], [None], ["a", 1], {}, {"s": 0, "us": 0}, {"s": 0, "us": 1_000_000},
    {"s": 0}, {"s": 1.0, "us": 5e2}, {"s": True, "us": 0}, {"payload_type": "json", "data": None},
    {"payload_type": "json"}, {"payload_type": "binary", "data_type": "", "data": ""},
    {"payload_type": "binary", "data_type": "", "data": "%%%%"},
    {"server": 1, "session": 2, "instance": 3}, {"server": 1, "session": 2}, {"a": [{"b": [1.5]}]},
)  # fmt: skip
_NAMES: Final = (
    "msg_type", "client_name", "client_token", "subscriptions", "server_id", "persisted",
    "success", "status", "error", "events", "register_id", "register_events", "query_id",
    "query_type", "event_types", "t_from", "t_to", "source_t_from", "source_t_to", "order",
    "order_by", "max_results", "last_event_id", "ids", "unique_type", "more_follows", "ping_id",
    "s", "us", "id", "type", "timestamp", "source_timestamp", "payload", "payload_type",
    "data_type", "data", "server", "session", "instance", "schema", "x",
)  # fmt: skip
_KEY: Final = re.compile(r'"(\w+)": ')
_INTEGER: Final = re.compile(r"(?<=: )(-?)([0-9]{1,30})(?=[,}])")
MESSAGE_TYPES: Final = (
    "init_req",
    "init_res",
    "status",
    "events",
    "register_req",
    "register_res",
    "query_req",
    "query_res",
    "ping_req",
    "ping_res",
    "events_ack",
    "up_to_date",
    "gap",
    "cursor_lost",
)


class MessageGenerator:
    """Random messages.

    Args:
        seed: the same seed gives the same messages.
    """

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._chance = self._random.random
        self._choose = self._random.choice

    def message(self) -> bytes:
        """Text of the next message, which may be anything."""
        value = self.valid()
        for payload in [i for i in _objects(value) if i.get("payload_type") == "json"]:
            if self._chance() < 0.3:
                payload["data"] = self._extreme()
        while self._chance() < 0.6:
            value = self._changed(value)
        text = json.dumps(value, ensure_ascii=self._chance() < 0.5)
        if self._chance() < 0.1:
            text = _INTEGER.sub(self._written_otherwise, text)
        if self._chance() < 0.1:
            text = self._with_key_twice(text)
        # an unpaired surrogate must arrive as an escape, everything else may as it is
        data = text.encode("utf-8", "surrogatepass")
        while self._chance() < 0.05:
            data = self._with_other_bytes(data)
        return data

    def valid(self) -> dict[str, Json]:
        """Value of a message that the contract accepts."""
        msg_type = self._choose(MESSAGE_TYPES)
        message = {"msg_type": msg_type, **getattr(self, f"_{msg_type}")()}
        if self._chance() < 0.2:
            items = list(message.items())
            self._random.shuffle(items)
            message = dict(items)
        return message

    # --- grammar --------------------------------------------------------------------------

    def _init_req(self) -> Json:
        return {
            "client_name": self._text(),
            "client_token": self._optional(self._text),
            "subscriptions": self._list(self._type),
            "server_id": self._optional(self._integer),
            "persisted": self._boolean(),
            **self._some(
                {
                    "start": lambda: self._choose((None, "earliest", self._list(self._event_id))),
                    "cursor": lambda: self._optional(lambda: self._text() or "cursor"),
                    "decline_gap": self._boolean,
                    "histories": lambda: self._optional(self._histories),
                    "attempt": lambda: self._optional(self._attempt),
                }
            ),
        }

    def _init_res(self) -> Json:
        if self._boolean():
            message = {"success": True, **self._status()}
            more = {
                "extensions": lambda: self._list(self._text),
                "histories": self._histories,
                "cursor_resets": self._integer,
            }
            return message | self._some(more)
        return {"success": False, "error": self._text()}

    def _histories(self) -> Json:
        return self._list(lambda: {"server_id": self._integer(), "id": self._text()})

    def _attempt(self) -> Json:
        return {"reader": self._text() or "reader", "number": self._integer()}

    def _status(self) -> Json:
        return {"status": self._choose(("STANDBY", "OPERATIONAL", "STARTING", "STOPPING"))}

    def _events(self) -> Json:
        return self._event_list() | self._some({"redelivered": self._boolean})

    def _event_list(self) -> dict[str, Json]:
        return {"events": self._list(self._event)}

    def _events_ack(self) -> Json:
        ids = lambda: self._list(self._event_id)  # noqa: E731
        return self._some({"ids": ids, "parked": lambda: self._list(self._parked), "done": ids})

    def _parked(self) -> Json:
        return {"id": self._event_id(), "reason": self._text()}

    def _up_to_date(self) -> Json:
        return {}

    def _gap(self) -> Json:
        other = lambda: {"last": self._integer(), "reason": self._text()}  # noqa: E731
        return {
            "server_id": self._integer(),
            "oldest": self._optional(self._event_id),
            **self._some({"other_history": lambda: self._optional(other)}),
        }

    def _cursor_lost(self) -> Json:
        return {"reason": self._text()}

    def _register_req(self) -> Json:
        return {
            "register_id": self._integer(),
            "register_events": self._list(self._register_event),
            **self._keys(),
        }

    def _keys(self) -> dict[str, Json]:
        keys = self._some({"request_key": self._key, "after_key": self._key})
        if keys.get("request_key") is None and "after_key" in keys:
            keys["after_key"] = None  # only with the other one
        return keys

    def _key(self) -> Any:
        return self._optional(lambda: self._text() or "key")

    def _register_res(self) -> Json:
        message = {"register_id": self._integer(), "success": self._boolean()}
        if message["success"]:
            return message | self._event_list() | self._some({"repeated": self._boolean})
        said = {i: self._text() for i in ("error", "outcome") if self._boolean()}
        return message | said

    def _query_req(self) -> Json:
        kind = self._choose(("latest", "timeseries", "server"))
        message: dict[str, Json] = {"query_id": self._integer(), "query_type": kind}
        makers: dict[str, Callable[[], Json]] = {}
        if kind != "server":
            makers["event_types"] = lambda: self._list(self._type)
        if kind == "timeseries":
            message["order"] = self._choose(("DESCENDING", "ASCENDING"))
            message["order_by"] = self._choose(("TIMESTAMP", "SOURCE_TIMESTAMP"))
            for name in ("t_from", "t_to", "source_t_from", "source_t_to"):
                makers[name] = self._timestamp
            makers["ids"] = lambda: self._list(self._event_id)
            makers["payload"] = self._payload
            makers["unique_type"] = self._boolean
        if kind == "server":
            message |= {"server_id": self._integer(), "persisted": self._boolean()}
        if kind != "latest":
            makers["max_results"] = lambda: abs(self._integer() >> 1)
        makers["last_event_id"] = self._event_id
        return message | self._some(makers)

    def _query_res(self) -> Json:
        return {"query_id": self._integer(), **self._event_list(), "more_follows": self._boolean()}

    def _ping_req(self) -> Json:
        return {"ping_id": self._integer()}

    _ping_res = _ping_req

    def _register_event(self) -> Json:
        return {
            "type": self._type(),
            "source_timestamp": self._optional(self._timestamp),
            "payload": self._optional(self._payload),
        }

    def _event(self) -> Json:
        event = {"id": self._event_id(), "timestamp": self._timestamp()}
        return event | self._register_event()

    def _payload(self) -> Json:
        if self._boolean():
            return {"payload_type": "json", "data": self._value(2)}
        data = base64.b64encode(self._random.randbytes(self._random.randrange(6))).decode()
        return {"payload_type": "binary", "data_type": self._text(), "data": data}

    def _value(self, depth: int) -> Json:
        if depth and self._chance() < 0.3:
            return [self._value(depth - 1) for _ in range(self._random.randrange(3))]
        if depth and self._chance() < 0.3:
            return {self._choose(_NAMES): self._value(depth - 1) for _ in range(2)}
        return self._junk()

    def _extreme(self) -> Json:
        """Values about the bounds of a registered payload."""
        value: Json = self._choose((0, "[" * 300, "1" * 2000, 10**998, 10**999, 10**1000))
        for _ in range(self._choose((0, 100, 126, 127, 128, 129, 200))):
            value = {"k": value} if self._boolean() else [value]
        return value

    def _timestamp(self) -> Json:
        return {"s": self._integer(), "us": self._choose((0, 1, 500_000, 999_999))}

    def _event_id(self) -> Json:
        return {key: self._integer() for key in ("server", "session", "instance")}

    def _type(self) -> Json:
        return self._list(self._text)

    def _text(self) -> str:
        return self._choose(_TEXTS)

    def _integer(self) -> int:
        return self._choose(_INTEGERS)

    def _boolean(self) -> bool:
        return self._chance() < 0.5

    def _optional(self, make: Callable[[], Json]) -> Json:
        return make() if self._boolean() else None

    def _some(self, makers: dict[str, Callable[[], Json]]) -> dict[str, Json]:
        return {key: make() for key, make in makers.items() if self._boolean()}

    def _list(self, make: Callable[[], Json]) -> list[Json]:
        return [make() for _ in range(self._choose((0, 1, 1, 2)))]

    def _junk(self) -> Json:
        junk = self._choose(_JUNK)
        return copy.deepcopy(junk) if isinstance(junk, dict | list) else junk

    # --- changes --------------------------------------------------------------------------

    def _changed(self, message: Json) -> Json:
        """The message with one of its parts changed (in place, where it is a container)."""
        places: list[tuple[Json, Json]] = []
        _find_places(message, places)
        if not places or self._chance() < 0.01:
            return self._choose((message, self._junk(), [message]))
        container, key = self._choose(places)
        value = container[key]
        if type(value) is int and abs(value) < 10**100 and self._boolean():
            container[key] = self._choose(
                (float(value), value + 0.5, bool(value), str(value), value * 10**20, -1 - value)
            )
            return message
        kind = self._random.randrange(8)
        if kind == 0:
            del container[key]
        elif kind == 1:
            other, other_key = self._choose(places)
            container[key], other[other_key] = json.loads(json.dumps([other[other_key], value]))
        elif kind == 2 and isinstance(container, dict):
            container[self._choose(_NAMES)] = container.pop(key)
        elif kind == 3 and isinstance(container, dict):
            container[self._choose(_NAMES)] = self._junk()
        elif kind == 4:
            container[key] = self._choose(([value], {"": value}, None))
        elif kind == 5:
            makers = (self._event, self._register_event, self._payload, self._timestamp)
            container[key] = self._choose((*makers, self._event_id, self._type))()
        elif kind == 6 and key in {"msg_type", "query_type"}:
            container[key] = self._choose((*MESSAGE_TYPES, "latest", "timeseries", "server"))
        else:
            container[key] = self._junk()
        return message

    def _written_otherwise(self, integer: re.Match[str]) -> str:
        """An integer with a point or an exponent, or a number very near to it."""
        sign, digits = integer.groups()
        n = len(digits)
        nines = self._choose((5, 18, 4_000, 10**9, 10**18, 10**30))
        return self._choose(
            (
                f"{sign}{digits}.0",
                f"{sign}{digits}E+00",
                f"{sign}{digits}00e-2",
                f"{sign}0.000{digits}e{n + 3}",
                f"{sign}{digits[0]}.{digits[1:]}0e{n - 1}",
                f"{sign}{digits}.{'0' * self._random.randrange(30)}1",
                f"{sign}{digits}5e-1",
                f"{sign}{digits}e{self._choose('+-')}{nines}",
            )
        )

    def _with_key_twice(self, text: str) -> str:
        """The text with one more key, or the same, at the begin or end of one of its objects."""
        begins = [i for i, character in enumerate(text) if character in "{}"]
        if not begins:
            return text
        at = self._choose(begins)
        names = (*_NAMES, *_KEY.findall(text, at)[:4] * 10)
        item = f'"{self._choose(names)}":{json.dumps(self._junk())}'
        if text[at] == "{":
            return f"{text[: at + 1]}{item},{text[at + 1 :]}"
        return f"{text[:at]},{item}{text[at:]}"

    def _with_other_bytes(self, data: bytes) -> bytes:
        at = self._random.randrange(len(data) + 1)
        insert = self._choose(
            (b"", b"0", b"-", b".0", b"e3", b"NaN", b"Infinity", b"\\ud800", b"\\udc00", b"\\u0041",
             b"\xff", b"\xc3", b"\xed\xa0\x80", b"\x00", b"\n", b" ", b'"', b"}", b"]", b",")
        )  # fmt: skip
        return data[:at] + insert + data[at + self._random.randrange(3) :]


def _objects(value: Json) -> list[dict[str, Json]]:
    """All objects of a value."""
    places: list[tuple[Json, Json]] = [([value], 0)]
    _find_places(value, places)
    return [i[key] for i, key in places if isinstance(i[key], dict)]


def _find_places(value: Json, places: list[tuple[Json, Json]]) -> None:
    """All (container, key or index) of a value."""
    if isinstance(value, dict):
        for key, each in value.items():
            places.append((value, key))
            _find_places(each, places)
    elif isinstance(value, list):
        for i, each in enumerate(value):
            places.append((value, i))
            _find_places(each, places)
