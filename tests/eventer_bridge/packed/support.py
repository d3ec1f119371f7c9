"""What tests of packed requests share: types, messages, and what Python makes of these."""

import json
from collections.abc import Sequence
from typing import Any, Final

import pytest

from eventer_bridge import packed
from eventer_bridge.backends.base import ReadTypeCb
from eventer_bridge.backends.rocksdb import keys
from eventer_bridge.core.session import make_events, payload_bytes
from eventer_bridge.model import EventType, RegisterEvent, Timestamp
from eventer_bridge.packed import KnownTypes, Packed
from mariner.wire import codec
from mariner.wire.messages import RegisterReq

compiled: Final = pytest.mark.skipif(
    not packed.IS_COMPILED, reason="eventer_bridge.packed is not compiled (no compiler)"
)

MAX_BYTES: Final = 1 << 20


class Types:
    """Types as a store knows them, which gets to know all that it is asked for.

    Attributes:
        ids: of the types.
        unknown: types that it does not want to know.
        asked: texts that it was asked for.
        table: for ``pack``.
    """

    def __init__(self, max_bytes: int = MAX_BYTES, read: ReadTypeCb = codec.read_type) -> None:
        self._read = read
        self.ids: dict[EventType, bytes] = {}
        self.unknown: set[EventType] = set()
        self.asked: list[bytes] = []
        self.table = KnownTypes(self.find, max_bytes)

    def find(self, text: bytes) -> tuple[EventType, bytes, bytes] | None:
        self.asked.append(text)
        event_type = self._read(text)
        if event_type is None or event_type in self.unknown:
            return None
        return event_type, self.id_of(event_type), keys.encode_type(event_type)

    def id_of(self, event_type: EventType) -> bytes:
        return self.ids.setdefault(event_type, keys.encode_type_id(len(self.ids)))

    def pack(self, message: bytes) -> Packed | None:
        return packed.pack(message, self.table, decode_events)

    def packed(self, message: bytes) -> Packed:
        """Pack what has to be packed."""
        found = self.pack(message)
        assert found is not None, message
        return found


def decode_events(message: bytes) -> Sequence[RegisterEvent]:
    return decoded(message).register_events


def decoded(message: bytes) -> RegisterReq:
    """What the path through Python makes of a message."""
    found = codec.decode(message)
    assert type(found) is RegisterReq, message
    return found


def check_json(found: Packed, message: bytes, types: Types) -> None:
    """Hold what was packed to what Python makes of the same message."""
    expected = decoded(message)
    assert found.register_id == expected.register_id, message
    assert found.request_key == expected.request_key, message
    assert found.after_key == expected.after_key, message
    check_events(found, expected.register_events, types)
    made = make_events(1, 2, expected.register_events, Timestamp(3, 4))
    assert packed.encode_events(found) == codec.encode_events(made), message


def check_events(found: Packed, expected: Sequence[RegisterEvent], types: Types) -> None:
    """Hold what was packed, on any wire, to the events that Python makes of it.

    Afterwards it is session 2 of server 1, at 3.000004 s.
    """
    message = expected
    assert len(found) == len(expected), message
    assert [*found] == [*expected], message
    assert found.payload_bytes == payload_bytes(expected), message
    assert found.event_types == [i.type for i in expected], message
    assert found.types == {i.type for i in expected}, message
    assert packed.content(found) == codec._encode([*expected]), message
    rows = packed.PackedRows(16, 4_096)
    ends = dict.fromkeys(types.ids.values(), b"")
    assert rows.stage([found], 1, 2, 3, 4, {}, ends, True) is not None
    made = make_events(1, 2, expected, Timestamp(3, 4))
    put: dict[bytes, bytes] = {}
    rows.put(lambda key, value, _: put.__setitem__(key, value), None)  # type: ignore[arg-type]
    sources = keys.encode_sources(made)
    values = [
        keys.indexed(value) if source else value
        for value, source in zip(keys.encode_values(made, sources), sources, strict=True)
    ]
    origin = keys.encode_timestamp(Timestamp(3, 4))
    event_keys = [types.ids[i.type] + origin + keys.encode_id(i.id) for i in made]
    assert put == dict(zip(event_keys, values, strict=True)), message


def event_text(
    event_type: str | bytes, source: int | tuple[int, int] | None = None, payload: Any = ...
) -> bytes:
    """An event of a registration, as compact JSON.

    Args:
        event_type: its only segment; or as JSON.
        source: source timestamp; or its seconds.
        payload: value of the payload, or its JSON; ``...``: there is none.
    """
    text = event_type if isinstance(event_type, bytes) else json.dumps([event_type]).encode()
    moment = b"null"
    if source is not None:
        moment = b'{"s":%d,"us":%d}' % (source if isinstance(source, tuple) else (source, 0))
    data = b"null"
    if payload is not ...:
        value = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
        data = b'{"payload_type":"json","data":%b}' % value
    return b'{"type":%b,"source_timestamp":%b,"payload":%b}' % (text, moment, data)


def request(*events: bytes, register_id: int = 1, more: bytes = b"") -> bytes:
    """A registration of events by :func:`event_text`, as compact JSON."""
    return b'{"msg_type":"register_req","register_id":%d,"register_events":[%b]%b}' % (
        register_id,
        b",".join(events),
        more,
    )
