"""What tests of batches share: types, messages, and what plain Python makes of these."""

import copy
import json
from collections.abc import Sequence
from typing import Any, Final

import pytest

from eventer_bridge import packed
from eventer_bridge.backends.base import ReadTypeCb
from eventer_bridge.backends.rocksdb import keys
from eventer_bridge.backends.rocksdb.rows import PlainRows
from eventer_bridge.core.session import payload_bytes
from eventer_bridge.model import Event, EventType, ProcessEvent, RegisterEvent, Timestamp
from eventer_bridge.packed import Batch, BatchRows, Staged, TypeTable, plain
from mariner.wire import codec
from mariner.wire.messages import RegisterReq

compiled: Final = pytest.mark.skipif(
    not packed.IS_COMPILED, reason="eventer_bridge.packed is not compiled (no compiler)"
)

native: Final[Any] = packed
"""For functions that it does not export, and calls that are wrong."""

MAX_BYTES: Final = 1 << 20

FLOOR: Final = keys.session_key(Timestamp(0, 0), 1, 1)


class Types:
    """Types as a store knows them, which gets to know all that it is asked for.

    Attributes:
        ids: of the types.
        unknown: types that it does not want to know.
        unready: types that are to be checked.
        asked: what it was asked for.
        looked_up: types whose ids it was asked for.
        table: for ``read_json``.
    """

    def __init__(self, max_bytes: int = MAX_BYTES, read: ReadTypeCb = codec.read_type) -> None:
        self._read = read
        self.ids: dict[EventType, bytes] = {}
        self.unknown: set[EventType] = set()
        self.unready: set[EventType] = set()
        self.asked: list[bytes | EventType] = []
        self.looked_up: list[EventType] = []
        self.table = self.make_table(self.find, max_bytes)

    def make_table(self, find: Any, max_bytes: int = MAX_BYTES) -> TypeTable:
        known: Any = self
        return TypeTable(find, max_bytes, known, known)

    def find(self, key: bytes | EventType) -> tuple[EventType, bytes] | None:
        self.asked.append(key)
        event_type = self._read(key) if isinstance(key, bytes) else key
        if event_type is None or event_type in self.unknown:
            return None
        return event_type, packed.encode_type(event_type)

    def get(self, event_type: EventType) -> bytes:
        self.looked_up.append(event_type)
        return self.id_of(event_type)

    def __contains__(self, event_type: EventType) -> bool:
        return event_type not in self.unready

    def forget_ids(self) -> None:
        known: Any = self
        self.table.use(known)

    def id_of(self, event_type: EventType) -> bytes:
        return self.ids.setdefault(event_type, keys.encode_type_id(len(self.ids)))

    def read(self, message: bytes) -> Batch | None:
        return packed.read_json(message, self.table)

    def batch(self, message: bytes) -> Batch:
        """Read what has to be read."""
        found = self.read(message)
        assert found is not None, message
        return found


def decode_events(message: bytes) -> Sequence[RegisterEvent]:
    return decoded(message).register_events


def decoded(message: bytes) -> RegisterReq:
    """What the path through Python makes of a message."""
    found = codec.decode(message)
    assert type(found) is RegisterReq, message
    return found


def plain_batch(
    events: Sequence[RegisterEvent | ProcessEvent | Event],
    session: tuple[int, int, Timestamp] | None = None,
    instances: Sequence[int] | None = None,
) -> Any:
    """A batch of the implementation in Python; with its server, session and timestamp."""
    table = plain.TypeTable(None, 0, {}, {})
    batch = plain.make_batch(events, table, None, 0, None, None, instances)
    if session is not None:
        server, number, time = session
        plain.assign([batch], server, number, time.s, time.us)
    return batch


def make_events(
    server: int, session: int, events: Sequence[RegisterEvent], time: Timestamp
) -> Sequence[Event]:
    """What registered events become."""
    return packed.session_events(plain_batch(events, (server, session, time)))


class Staging:
    """Rows of both implementations, which have to be the same.

    Args:
        types: ids of types.
        last: see ``BatchRows.stage``.
        ends: see there, too.
        floor: see there, too.
        bounds: see ``BatchRows``.
    """

    def __init__(
        self,
        types: Types,
        last: dict[bytes, Any],
        ends: dict[bytes, bytes],
        *,
        floor: bytes = FLOOR,
        bounds: tuple[int, int] = (16, 4_096),
    ) -> None:
        self._types, self._floor = types, floor
        self.last, self.ends = last, ends
        self._plain_last, self._plain_ends = copy.copy(last), copy.copy(ends)
        self.rows, self._plain_rows = BatchRows(*bounds), PlainRows(*bounds)

    def stage(
        self, batches: Sequence[Batch], expected: Sequence[Any], begin: int = 0, end: int = -1
    ) -> Staged:
        """Stage batches, which in Python are others; what both return is equal."""
        ids, floor = self._types.ids, self._floor
        n_events = sum(len(range(len(i))[begin : None if end < 0 else end]) for i in batches)
        n_before = len(self.rows)
        staged = self.rows.stage([*batches], ids, self.last, self.ends, floor, True, begin, end)
        assert len(self.rows) == n_before + n_events
        in_python = self._plain_rows.stage(
            [*expected], ids, self._plain_last, self._plain_ends, floor, True, begin, end
        )
        assert staged == in_python
        assert (self.last, self.ends) == (self._plain_last, self._plain_ends)
        return staged

    def put(self) -> list[tuple[bytes, bytes]]:
        """Put all rows, which are equal, too."""
        found: list[tuple[bytes, bytes]] = []
        expected: list[tuple[bytes, bytes]] = []
        family: Any = object()
        latest = self.rows.put(lambda key, value, of: found.append((key, value)), family)
        in_python = self._plain_rows.put(
            lambda key, value, of: expected.append((key, value)), family
        )
        assert found == expected
        assert latest == in_python
        assert len(self.rows) == 0
        return found


def check_json(found: Batch, message: bytes, types: Types) -> None:
    """Hold what was read to what Python makes of the same message."""
    expected = decoded(message)
    assert found.register_id == expected.register_id, message
    assert found.request_key == expected.request_key, message
    assert found.after_key == expected.after_key, message
    check_events(found, expected.register_events, types)
    made = make_events(1, 2, expected.register_events, Timestamp(3, 4))
    assert packed.encode_events(found) == codec.encode_events(made), message


def check_events(found: Batch, expected: Sequence[RegisterEvent], types: Types) -> None:
    """Hold what was read, on any wire, to the events that Python makes of it.

    Afterwards it is session 2 of server 1, at 3.000004 s.
    """
    message = expected
    in_python = plain_batch(expected, (1, 2, Timestamp(3, 4)))
    assert len(found) == found.requested == len(expected), message
    assert [*found] == [*expected], message
    assert found.payload_bytes == payload_bytes(expected), message
    assert found.event_types == [i.type for i in expected], message
    assert found.types == {i.type for i in expected}, message
    assert found.instances == [*in_python.instances], message
    if found.is_encodable:
        assert packed.content(found) == codec._encode([*expected]), message
    packed.assign([found], 1, 2, 3, 4)
    staging = Staging(types, {}, dict.fromkeys(types.ids.values(), b""))
    staging.stage([found], [in_python])
    assert len(staging.put()) == len(expected)


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
