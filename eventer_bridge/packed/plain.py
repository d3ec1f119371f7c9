"""Batches in plain Python, where ``_packed`` is not compiled: objects from the beginning."""

from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Any

from eventer_bridge import limits
from eventer_bridge.model import EventId, EventType
from eventer_bridge.packed.views import session_events

_ENTRY_BYTES = 700  # of a known type, about


class TypeTable:
    """See the stub. Only ids are looked up in it."""

    def __init__(
        self,
        find: object,
        max_bytes: int,
        ids: Mapping[EventType, bytes],
        checked: Container[EventType],
    ) -> None:
        self._ids, self._checked = ids, checked
        self._max_entries = max_bytes // _ENTRY_BYTES
        self._ready: set[EventType] = set()
        self.epoch = 1

    def __len__(self) -> int:
        return len(self._ready)

    def use(self, ids: Mapping[EventType, bytes]) -> None:
        """See the stub."""
        self._ids = ids
        self.epoch += 1
        self._ready.clear()

    def is_ready(self, event_type: EventType) -> bool:
        """Whether a type may be stored, and its id is known."""
        if event_type in self._ready:
            return True
        if event_type not in self._ids or event_type not in self._checked:
            return False
        if len(self._ready) >= self._max_entries:
            self._ready.clear()
        self._ready.add(event_type)
        return True


class Batch(Sequence[Any]):
    """See the stub."""

    __slots__ = (
        "_encodings",
        "_events",
        "_objects",
        "_types",
        "after_key",
        "committed",
        "first",
        "instances",
        "is_large",
        "is_stepwise",
        "key",
        "payload_bytes",
        "quota",
        "register_id",
        "request",
        "request_key",
        "requested",
        "s",
        "server",
        "session",
        "source",
        "us",
    )

    is_sbs = is_encodable = False

    def __init__(self, types: TypeTable, events: Sequence[Any], instances: Sequence[int]) -> None:
        self._types = types
        self._objects = [*events]
        self.instances = instances
        self.requested = len(events)
        self.payload_bytes = _payload_bytes(events)
        self.register_id = self.server = self.session = self.s = self.us = 0
        self.request_key: str | None = None
        self.after_key: str | None = None
        self.source: Any = None
        self.quota: Any = None
        self.key: Any = None
        self.request: Any = None
        self.first: Batch | None = None
        self.committed: Any = None
        self.is_large = self.is_stepwise = False
        self._events: Sequence[Any] | None = None
        self._encodings: dict[str, Any] | None = None

    def __len__(self) -> int:
        return len(self._objects)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._objects)

    def __getitem__(self, index: Any) -> Any:
        return self._objects[index]

    def __eq__(self, other: object) -> bool:
        return self is other

    __hash__ = object.__hash__

    @property
    def events(self) -> Sequence[Any]:
        """See the stub."""
        if self._events is None:
            if not self.session:
                return ()
            self._events = session_events(self)
        return self._events

    @property
    def has_events(self) -> bool:
        """See the stub."""
        return self._events is not None

    @property
    def encodings(self) -> dict[str, Any]:
        """See the stub."""
        if self._encodings is None:
            self._encodings = {}
        return self._encodings

    @property
    def has_failed(self) -> bool:
        """See the stub."""
        return self.committed.done() and self.committed.exception() is not None

    @property
    def last_id(self) -> EventId:
        """See the stub."""
        return EventId(self.server, self.session, self.last_instance)

    def keep_events(self, events: Sequence[Any]) -> None:
        """See the stub."""
        self._events = events

    def answer_with(self, events: Sequence[Any]) -> None:
        """See the stub."""
        self._events = events

    @property
    def event_types(self) -> list[EventType]:
        """See the stub."""
        return [event.type for event in self._objects]

    @property
    def types(self) -> set[EventType]:
        """See the stub."""
        return {event.type for event in self._objects}

    def parts(self, max_events: int, max_bytes: int) -> list[slice]:
        """See the stub."""
        found: list[slice] = []
        begin = n_bytes = 0
        for end, event in enumerate(self._objects):
            if end - begin == max_events or n_bytes >= max_bytes:
                found.append(slice(begin, end))
                begin, n_bytes = end, 0
            n_bytes += 0 if event.payload is None else len(event.payload.data)
        if begin < len(self):
            found.append(slice(begin, len(self)))
        return found

    @property
    def last_instance(self) -> int:
        """See the stub."""
        return self.instances[-1] if self.instances else 0

    @property
    def object_bytes(self) -> int:
        """See the stub."""
        n_segments = sum(map(len, self.event_types))
        return len(self) * limits.EVENT_OBJECT_BYTES + n_segments * limits.SEGMENT_BYTES


def make_batch(  # noqa: PLR0917 (as the compiled one)
    events: Sequence[Any],
    types: TypeTable,
    get_payload: object,
    register_id: int = 0,
    request_key: str | None = None,
    after_key: str | None = None,
    instances: Sequence[int] | None = None,
) -> Batch:
    """See the stub."""
    batch = Batch(types, events, range(1, len(events) + 1) if instances is None else instances)
    batch.register_id, batch.request_key, batch.after_key = register_id, request_key, after_key
    return batch


def extend_batch(
    batch: Batch,
    events: Sequence[Any],
    get_payload: object,
    instances: Sequence[int] | None = None,
    is_request: bool = False,
) -> None:
    """See the stub."""
    batch._objects += events
    if instances is None:
        batch.instances = range(1, len(batch) + 1)
    else:
        batch.instances = [*batch.instances, *instances]
    batch.payload_bytes += _payload_bytes(events)


def _payload_bytes(events: Sequence[Any]) -> int:
    return sum([len(i.payload.data) for i in events if i.payload is not None])


def totals(batches: list[Batch]) -> tuple[int, int, int]:
    """See the stub."""
    n_requested = sum([batch.requested for batch in batches])
    return sum(map(len, batches)), n_requested, sum([batch.payload_bytes for batch in batches])


def claim(batches: list[Batch], source: Any, quota: Any) -> int:
    """See the stub."""
    for batch in batches:
        batch.source, batch.quota = source, quota
    return sum([len(batch) or 1 for batch in batches])


def are_keyed(batches: list[Batch]) -> bool:
    """See the stub."""
    return any(batch.key is not None or batch.request_key is not None for batch in batches)


def are_alike(batches: list[Batch]) -> bool:
    """See the stub."""
    committed = batches[0].committed if batches else None
    return all(batch.committed is committed and batch.first is None for batch in batches)


def assign(batches: list[Batch], server: int, session: int, s: int, us: int) -> None:
    """See the stub."""
    for number, batch in enumerate(batches, session):
        batch.server, batch.session, batch.s, batch.us = server, number, s, us


def unready(batches: list[Batch], begin: int = 0, end: int = -1) -> list[tuple[int, EventType]]:
    """See the stub."""
    found: dict[EventType, int] = {}
    for batch in batches:
        part = batch._objects[begin : None if end < 0 else end]
        for index, event in enumerate(part, begin):
            if event.type not in found and not batch._types.is_ready(event.type):
                found[event.type] = index
    return [(index, event_type) for event_type, index in found.items()]


class BatchRows:
    """There is none: see ``backends.rocksdb.rows``."""


class StoredEvents:
    """There is none."""


content = encode_answers = encode_events = encode_sbs_answers = None
encode_stored = read_json = read_rows = read_sbs = stored_events = None
