"""Random texts of registrations: nearly all that JSON allows, and much that it does not.

``tests.mariner.wire.message_generator`` changes values, which ``json`` writes; here it is about how
they are written. Everything comes from one seed, at about 30 µs a message.
"""

import random
from collections.abc import Callable
from typing import Final

SPACES: Final = (b" ", b"\n", b"\t", b"\r", b"  ", b"\r\n\t ")
WRONG_SPACES: Final = (b"\x0b", b"\x0c", b"\x00", b"\xc2\xa0", b"/**/")

TEXTS: Final = (
    b"", b"a", b"b", b"a/b", b"type", b"}", b"],", b"\xc4\x8d", "\U0001f600".encode(), b"\x7f",
    b"\\n", b'\\"', b"\\\\", b"\\/", b"\\b\\f\\r\\t", b"\\u0041", b"\\u00e9", b"\\uD7FF",
    b"\\u0000", b"\\uffff", b"\\uE000", b"\xe2\x80\xa8",
)  # fmt: skip
PAIRS: Final = b"\\ud83d\\ude00", b"\\uD83D\\uDE00"
WRONG_TEXTS: Final = (
    b"\x00", b"\n", b"\x1f", b"\\", b"\\x", b"\\u", b"\\u12", b"\\u12g4", b"\\uDC00", b"\\ud800",
    b"\\ud800\\u0041", b"\\ud83d\\ud83d", b"\xff", b"\xc0\x80", b"\xed\xa0\x80",
    b"\xf4\x90\x80\x80", b"\xc3", b"\x80", b"\xe2\x82", b'"', b"\\'", b"\\U0041",
)  # fmt: skip

INTEGERS: Final = (
    b"0", b"1", b"-1", b"17", b"999999", b"123456789012345678", b"-999999999999999999",
)  # fmt: skip
LONG_INTEGERS: Final = (
    *(b"1000000000000000000", b"9223372036854775807", b"-9223372036854775808"),
    *(b"1.0", b"0.000", b"-17.00", b"9223372036854775807.0"),
)
RARE_INTEGERS: Final = b"1e0", b"-0", b"10e-1", b"12.50e1"
WRONG_INTEGERS: Final = (
    b"01", b"00", b"-01", b"1E2", b"1.5", b"1.01", b"1.0e", b"1..0", b"-", b"+1", b"1.", b".5",
    b"0x1", b"9223372036854775808", b"9223372036854775808.0", b"-9223372036854775809",
    b"12345678901234567890", b"", b"NaN", b"true", b'"1"', b"null", b"[]", b"1 2", b"1\x00",
)  # fmt: skip
NUMBERS: Final = (
    b"0.5", b"-0", b"-0.0", b"1e5", b"1E+05", b"1e-5", b"1e99", b"1e00", b"1.5e-99", b"0e0",
    b"1e308", b"12345678901234567890", b"1" * 64, b"0." + b"1" * 62, b"1e-400", b"-0e-0",
)  # fmt: skip
WRONG_NUMBERS: Final = (
    b"1.", b".5", b"01", b"-", b"-a", b"1e", b"1e+", b"1.e5", b"0x1", b"+1", b"1e999", b"1e309",
    b"-1e400", b"Infinity", b"-Infinity", b"NaN", b"1_0", b"--1", b"1e5.0", b"1" * 65, b"1" * 1001,
    b"1e1000", b"00", b"-00.1",
)  # fmt: skip
WORDS: Final = (b"true", b"false", b"null")
WRONG_WORDS: Final = (b"tru", b"True", b"nul", b"nulll", b"truefalse", b"none", b"undefined", b"")
RARELY: Final = 0.01
"""How often there is what is right, but not packed."""

EXTRA_KEYS: Final = (
    b"extra", b"", b"typ", b"types", b"data_type", "\u010d".encode(), b"a b", b"S", b"register_ids",
)  # fmt: skip
DEPTHS: Final = (1, 2, 3, 5, 30, 31, 32, 33, 127, 128, 129, 513)

PIECES: Final = (
    *(bytes((i,)) for i in b'{}[]:,"\\ 0e.-nt\x00\xff\x80'), b'"type"', b'"us"', b'"s"', b"null",
    b'"payload"', b'"data":', b'"request_key":"k"', b"\\u", b"}}", b"]}", b'{"a":', b'["a"]',
)  # fmt: skip


class Writer:
    """Random registrations.

    Args:
        seed: the same seed gives the same messages.
        types: texts of event types; None: any.
    """

    def __init__(self, seed: int, types: tuple[bytes, ...] | None = None) -> None:
        self._random = random.Random(seed)
        self._chance = self._random.random
        self._choose = self._random.choice
        self._types = types
        self._p_space = self._p_wrong = self._p_other = 0.0

    def message(self) -> bytes:
        """The next one, which may be anything."""
        self._p_space = self._choose((0.0, 0.0, 0.1, 0.5))
        self._p_other = self._choose((0.0, 0.0, 0.1, 0.5))
        self._p_wrong = self._choose((0.0, 0.0, 0.0, 0.002, 0.02))
        message = self._message()
        if self._chance() < 0.2:
            message = self._changed(message)
        return message

    def right(self) -> bytes:
        """A right one, of which all texts and numbers are of usual kinds."""
        self._p_space = self._choose((0.0, 0.0, 0.1, 0.5))
        self._p_other = self._choose((0.0, 0.0, 0.1, 0.5))
        self._p_wrong = 0.0
        return self._message()

    def _message(self) -> bytes:
        properties: list[tuple[bytes, Callable[[], bytes]]] = [
            (b"msg_type", lambda: b'"register_req"'),
            (b"register_id", self._integer),
            (b"register_events", lambda: self._array(self._event, 1, 1, 2, 3, 9)),
        ]
        if self._chance() < 0.2:
            key = self._key()
            properties.append((b"request_key", lambda: key))
            if self._chance() < 0.5 and (key != b"null" or self._is_wrong()):
                properties.append((b"after_key", self._key))
        message = self._object(properties)
        return self._space() + message + self._space()

    def _changed(self, message: bytes) -> bytes:
        """Some bytes of it are others."""
        at = self._random.randrange(len(message) + 1)
        kind = self._random.randrange(6)
        if kind == 0:
            return message[:at]
        if kind == 1:
            return message + self._choose(PIECES)
        end = at + self._random.randrange(4)
        if kind == 2:
            return message[:at] + message[end:]
        if kind == 3:
            other = bytes((self._random.randrange(256),))
            return message[:at] + other + message[at + 1 :]
        if kind == 4:
            end = self._random.randrange(at, len(message) + 1)
            return message[:end] + message[at:]
        return message[:at] + self._choose(PIECES) + message[end:]

    def _is_wrong(self) -> bool:
        return self._chance() < self._p_wrong

    def _space(self) -> bytes:
        if self._is_wrong():
            return self._choose(WRONG_SPACES)
        return self._choose(SPACES) if self._chance() < self._p_space else b""

    def _spaced(self, mark: bytes) -> bytes:
        return self._space() + mark + self._space()

    def _object(self, properties: list[tuple[bytes, Callable[[], bytes]]]) -> bytes:
        if self._chance() < self._p_other:
            properties.append((self._choose(EXTRA_KEYS), self._value))
        if self._chance() < self._p_other:
            self._random.shuffle(properties)
        if properties and self._is_wrong():
            properties.append(self._choose(properties))
        if properties and self._is_wrong():
            properties.pop(self._random.randrange(len(properties)))
        items = [b'"%b"%b%b' % (key, self._spaced(b":"), make()) for key, make in properties]
        return self._joined(b"{", items, b"}")

    def _array(self, make: Callable[[], bytes], *sizes: int) -> bytes:
        size = 0 if self._is_wrong() else self._choose(sizes)
        return self._joined(b"[", [make() for _ in range(size)], b"]")

    def _joined(self, begin: bytes, items: list[bytes], end: bytes) -> bytes:
        comma = self._choose((b"", b",,", b";", b", ,")) if self._is_wrong() else b","
        if self._is_wrong():
            end = self._choose((b"", b"]", b"}", b"," + end, end + end))
        body = b"".join(
            (self._spaced(comma) if number else b"") + item for number, item in enumerate(items)
        )
        return begin + self._space() + body + self._space() + end

    def _event(self) -> bytes:
        return self._object(
            [
                (b"type", self._type),
                (b"source_timestamp", self._source),
                (b"payload", self._payload),
            ]
        )

    def _type(self) -> bytes:
        if self._types is not None:
            return self._choose(self._types)
        return self._array(self._string, 0, 1, 1, 1, 2, 3)

    def _source(self) -> bytes:
        if self._chance() < 0.3:
            return self._choose(WRONG_WORDS) if self._is_wrong() else b"null"
        return self._object([(b"s", self._integer), (b"us", self._us)])

    def _us(self) -> bytes:
        if self._is_wrong():
            return self._choose((*WRONG_INTEGERS, b"1000000", b"-1", b"4294967296"))
        return self._choose((b"0", b"1", b"5", b"999999"))

    def _payload(self) -> bytes:
        if self._chance() < 0.2:
            return self._choose(WRONG_WORDS) if self._is_wrong() else b"null"
        if self._is_wrong():
            return self._choose(
                (
                    b'{"payload_type":"binary","data_type":"x","data":"AA=="}',
                    b'{"payload_type":"json","data":1,"data_type":"x"}',
                    b'{"payload_type":"json"}',
                    b'{"payload_type":"jsonx","data":1}',
                    b"{}",
                    b"1",
                )
            )
        return self._object([(b"payload_type", lambda: b'"json"'), (b"data", self._value)])

    def _value(self, depth: int = 3) -> bytes:
        if depth and self._chance() < 0.25:
            return self._container(depth - 1)
        makers = self._string, self._string, self._word, self._number, self._integer
        return self._choose(makers)()

    def _container(self, depth: int) -> bytes:
        if self._chance() < 0.1:
            return self._nested()
        if self._chance() < 0.5:
            return self._array(lambda: self._value(depth), 0, 1, 2)
        properties = [(self._string()[1:-1], lambda: self._value(depth))]
        return self._object(properties * self._choose((0, 1, 2)))

    def _nested(self) -> bytes:
        depth = self._choose(DEPTHS if self._is_wrong() else DEPTHS[:6])
        inner = self._choose((b"", b"1", b'"["'))
        if self._chance() < 0.5:
            return b"[" * depth + inner + b"]" * depth
        return b'{"a":' * depth + (inner or b"null") + b"}" * depth

    def _word(self) -> bytes:
        return self._choose(WRONG_WORDS if self._is_wrong() else WORDS)

    def _number(self) -> bytes:
        return self._choose(WRONG_NUMBERS if self._is_wrong() else NUMBERS)

    def _integer(self) -> bytes:
        if self._is_wrong():
            return self._choose(WRONG_INTEGERS)
        if self._chance() < RARELY:
            return self._choose(RARE_INTEGERS)
        return self._choose(LONG_INTEGERS if self._chance() < self._p_other else INTEGERS)

    def _string(self) -> bytes:
        texts = [self._text() for _ in range(self._choose((1, 1, 1, 2, 4)))]
        return b'"%b"' % b"".join(texts)

    def _text(self) -> bytes:
        if self._is_wrong():
            return self._choose(WRONG_TEXTS)
        return self._choose(PAIRS if self._chance() < RARELY else TEXTS)

    def _key(self) -> bytes:
        if self._is_wrong():
            return self._choose((b'""', b'"%b"' % (b"k" * 65), self._string(), b"1"))
        if self._chance() < RARELY:
            return self._choose(('"\u010d"'.encode(), b'"\\n"'))
        return self._choose((b"null", b'"k"', b'"some-key 1"', b'"%b"' % (b"k" * 64)))
