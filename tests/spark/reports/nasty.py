"""Stores as bad as a gateway may make them: what is in one is drawn from a number."""

import random
from collections.abc import Sequence
from typing import Final

import msgspec

from eventer_bridge import limits
from eventer_bridge.model import (
    BinaryPayload,
    Event,
    EventId,
    EventType,
    JsonPayload,
    Payload,
    Timestamp,
)

N_SESSIONS: Final = 120

_BEGINS_S: Final = (
    1_735_689_600,
    1_735_689_599,
    0,
    -5,
    -62_135_596_800,
    -(10**15),
    253_402_300_790,
)
_DELAYS_US: Final = (0, 1, 999, 1_000_000, 1_000_000, 1_000_000, 60_000_000, 7_200_000_000, 10**13)
_LATENCIES_US: Final = (0, 1, -1, 1_500, 60_000_000, 60_000_001, -5_000_000, 10**12)
_TYPES: Final[Sequence[EventType]] = (
    *(("site", f"{i % 3}", f"d{i}") for i in range(9)),
    *((f"many{i}", "x") for i in range(8)),
    ("site",),
    (),
    ("",),
    ("", ""),
    ("~", "a/b", "/"),
    ("=1+1", "\n"),
    ("é", "😀", "x" * 150),
    ("</script>", "<b>"),
    ("event",),
    ("event", "communication"),
    ("event", "communication", "connected\n"),
    ("event", "9", "engine"),
)
_NUMBERS: Final = (
    *("0", "-0.0", "1", "2.5e-3", "-17", "5e-324", "1e308", "1.7976931348623157e308", "-1e308"),
    *("1e999", "-1e999", "9" * limits.MAX_NUMBER_DIGITS, "0." + "3" * limits.MAX_NUMBER_DIGITS),
    "12345678901234567890123456789012345678901234567890",
    # as long as a number may be
    f"-{'7' * limits.MAX_NUMBER_DIGITS}.{'5' * limits.MAX_NUMBER_DIGITS}"
    f"e-{'900':0>{limits.MAX_NUMBER_DIGITS}}",
)
_LONG: Final = "y" * 300
_OTHERS: Final = ("null", "true", '"12"', '"x"', "[1]", "{}", '{"value": 7}', '{"a": 1, "a": 2}')
_TEXTS: Final = (
    *('{"value": 1, "value": "x"}', '{"value": "x", "value": 2}', '{"value": 3, "value": null}'),
    *('{"value": 12, "value": "12"}', '{"value": "12", "value": 12}', '{"value": 4, "value": {}}'),
    *('{"value": [], "value": 5}', '{"a": {"value": 1}}', ' \n{"VALUE": 1, "value" : 6 } '),
    *('{"value": 1, "value": {"a": 1, "a": 2}}', '{"value": {"a": 1, "a": 2}, "value": 8}'),
    *('{"a": 5, "a": {"b": 6}}', '{"a": {"b": 7}, "a": 5}', '{"a": {"b": 1, "b": "x"}}'),
    *('{"a": {"b": 8, "b": 9}}', '{"a": "{\\"b\\": 1}"}', '{"a": {"b": 1}, "a": {}}'),
    f'{{"other": {_NUMBERS[-1]}, "value": 9}}',
    "[" * (limits.MAX_JSON_DEPTH - 1) + "]" * (limits.MAX_JSON_DEPTH - 1),
)
JSON_TEXTS: Final = (
    *_NUMBERS,
    *_OTHERS,
    *_TEXTS,
    *(f'{{"value": {i}}}' for i in (*_NUMBERS, *_OTHERS)),
    *(f'{{"a": {{"b": {i}}}}}' for i in (*_NUMBERS, *_OTHERS)),
)
"""What a store takes of a payload."""


def nasty_store(seed: int) -> list[Event]:
    """Events of two servers and their clients, some of which end as nobody would want."""
    chance = random.Random(seed)
    servers = [_Server(number, chance) for number in (3, 7)]
    for _ in range(N_SESSIONS):
        chance.choice(servers).live()
    return [event for server in servers for event in server.events]


class _Server:
    """A server that lives by chance; its clock does not go backwards."""

    def __init__(self, number: int, chance: random.Random) -> None:
        self.events: list[Event] = []
        self._number = number
        self._chance = chance
        self._us = chance.choice(_BEGINS_S) * 1_000_000
        self._session = 0
        self._is_up = chance.random() < 0.5  # since before the first event
        self._types = chance.sample(_TYPES, 16)

    def live(self) -> None:
        """A session, or a death after which it starts anew."""
        self._us += self._chance.choice(_DELAYS_US)
        self._session += self._chance.choice((1, 1, 1, 50))
        if not self._is_up or self._chance.random() < 0.05:
            self._register([self._of_core("engine", "STARTED")])
            self._is_up = True
        elif self._chance.random() < 0.05:
            self._register([self._of_core("engine", "STOPPED")])
            self._is_up = False
        else:
            n_events = self._chance.choice((1, 1, 2, 5))
            self._register([self._any() for _ in range(n_events)])

    def _register(self, drafts: Sequence[tuple[EventType, Payload | None]]) -> None:
        timestamp = Timestamp(*divmod(self._us, 1_000_000))
        for instance, (event_type, payload) in enumerate(drafts, 1):
            source = None
            if self._chance.random() < 0.5:
                source_us = self._us - self._chance.choice(_LATENCIES_US)
                source = Timestamp(*divmod(source_us, 1_000_000))
            event_id = EventId(self._number, self._session, instance)
            self.events.append(Event(event_id, event_type, timestamp, source, payload))

    def _any(self) -> tuple[EventType, Payload | None]:
        if self._chance.random() < 0.15:
            kind = self._chance.choice(("eventer/a", "eventer/b", "mariner/a\n", "mariner/c/d"))
            return self._of_core(kind, self._chance.choice(("CONNECTED", "DISCONNECTED")))
        if self._chance.random() < 0.05:
            change = self._chance.choice(("connected", "disconnected"))
            return ("event", "communication", change), None
        if self._chance.random() < 0.03:
            return self._of_core("engine\n", "STOPPED")
        return self._chance.choice(self._types), self._payload()

    def _of_core(self, kind: str, state: str) -> tuple[EventType, Payload]:
        return ("event", str(self._number), *kind.split("/", 1)), _json(f'"{state}"')

    def _payload(self) -> Payload | None:
        kind = self._chance.randrange(10)
        if kind == 0:
            return None
        return BinaryPayload("bytes", b'{"value": 1}') if kind == 1 else _json(self._text(kind))

    def _text(self, kind: int) -> str:
        number = self._chance.choice(_NUMBERS)
        other = self._chance.choice(_OTHERS)
        texts = {
            2: number,
            3: self._chance.choice(_TEXTS),
            4: f'{{"value": {number}}}',
            5: f'{{"a": {{"b": {self._chance.choice((number, other))}, "unit": "é"}}}}',
            6: f'{{"value": {other}, "x": "{_LONG}"}}',
        }
        unit = "" if kind == 7 else ', "unit": "°C"'
        return texts.get(kind, f'{{"value": {self._chance.gauss(0, 100)!r}{unit}}}')


def _json(text: str) -> JsonPayload:
    return JsonPayload(msgspec.Raw(text.encode()))
