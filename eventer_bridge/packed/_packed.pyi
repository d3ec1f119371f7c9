from asyncio import Future
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from typing import Any, final

from rocksdict import ColumnFamily, RdictIter

from eventer_bridge.backends.request_keys import RequestKey
from eventer_bridge.backends.type_budget import TypeQuota
from eventer_bridge.model import Event, EventId, EventType, Payload, RegisterEvent, Source

FindCb = Callable[[bytes | EventType], tuple[EventType, bytes] | None]
"""Finds a type, by its text as it came, or by itself: the type, and its JSON; None: it is no
type."""

Staged = tuple[
    bytes,
    list[bytes],
    list[bytes],
    int,
    list[tuple[bytes, int, int]],
    list[tuple[bytes, bytes]],
]
"""What is to be stored beside rows in ``event``: the entries of their block, the keys of the
sessions, keys in ``source``, the size of all values; if they are counted, of each type its id,
number of events and size of their values; and where the order of types ended (``source_order``)."""

@final
class TypeTable:
    """Types by what they came as, so that they are not decoded again.

    Args:
        find: called with what is not known yet.
        max_bytes: memory that it may use; when that is exceeded it begins anew.
        ids: of the types that are stored.
        checked: types that may be registered without being checked again.

    Attributes:
        epoch: changes when ids do not hold any more.
    """

    def __init__(
        self,
        find: FindCb,
        max_bytes: int,
        ids: Mapping[EventType, bytes],
        checked: Container[EventType],
    ) -> None: ...
    def __len__(self) -> int: ...
    def use(self, ids: Mapping[EventType, bytes]) -> None:
        """Look all ids up again, in what replaces those before."""

    @property
    def epoch(self) -> int: ...

@final
class Batch(Sequence[RegisterEvent]):
    """A registration, which becomes a session; as a sequence, the events that are registered.

    Made by :func:`read_json`, :func:`read_sbs` or ``batch_of``. Only the first have a
    ``register_id`` and keys of their own. Events of a large one are made anew whenever they are
    looked at, unless they were objects at first.

    Attributes:
        register_id: of the request.
        request_key: what the client calls it; None: nothing.
        after_key: that of the request that must be stored first; None: there is none.
        requested: number of requested events, the first ones; others were added (``extend``).
        payload_bytes: size of its payloads.
        types: of its events.
        event_types: the type of each event.
        instances: of its events, ascending; from 1 on, unless some are missing.
        last_instance: of its last event.
        is_sbs: whether it came from Eventer, and is answered by :func:`encode_sbs_answers`.
        is_encodable: whether the functions here can write its events.
        object_bytes: memory besides the bytes that it came as, estimated.

        source: who registers it.
        quota: of the client, for event types that it brings; None: it has none.
        key: what the client calls it, with its digest; None: nothing.
        request: what the wire answers it by, besides ``register_id``.
        is_large: whether it is processed in slices; added events count.
        is_stepwise: whether storing and notifying happen in slices.
        first: the batch with the same key that was registered before; None: there is none.
        committed: done when the events are durable; fails with a branch of ``EventerBridgeError``
            if they are not, or may not be. Batches of one commit may share it, so never cancel it:
            use ``asyncio.wait`` if that could happen.
        has_failed: whether it failed.

        server: of the session that it became, by :func:`assign`.
        session: id of that; 0: it has none yet.
        s: seconds of its timestamp.
        us: the microseconds.
        events: the events of the session, made when they are first asked for; none before it has
            an id.
        has_events: whether they were made.
        last_id: of the last one.
        encodings: encoded events by wire, filled in by the wires, so that an event is encoded once
            per wire and not once per receiver.
    """

    register_id: int
    request_key: str | None
    after_key: str | None
    requested: int
    source: Source
    quota: TypeQuota | None
    key: RequestKey | None
    request: Any
    is_large: bool
    is_stepwise: bool
    first: Batch | None
    committed: Future[None]

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[RegisterEvent]: ...
    def __getitem__(self, index): ...  # type: ignore[no-untyped-def]
    @property
    def payload_bytes(self) -> int: ...
    @property
    def event_types(self) -> list[EventType]: ...
    @property
    def types(self) -> set[EventType]: ...
    @property
    def instances(self) -> Sequence[int]: ...
    @property
    def last_instance(self) -> int: ...
    @property
    def is_sbs(self) -> bool: ...
    @property
    def is_encodable(self) -> bool: ...
    @property
    def object_bytes(self) -> int: ...
    @property
    def has_failed(self) -> bool: ...
    @property
    def server(self) -> int: ...
    @property
    def session(self) -> int: ...
    @property
    def s(self) -> int: ...
    @property
    def us(self) -> int: ...
    @property
    def events(self) -> Sequence[Event]: ...
    @property
    def has_events(self) -> bool: ...
    @property
    def last_id(self) -> EventId: ...
    @property
    def encodings(self) -> dict[str, Any]: ...
    def parts(self, max_events: int, max_bytes: int) -> list[slice]:
        """Cut it into parts of so many events, or so many bytes of payload."""

    def keep_events(self, events: Sequence[Event]) -> None:
        """Keep its events, which were made in steps."""

    def answer_with(self, events: Sequence[Event]) -> None:
        """Take the events that another server made of it."""

def make_batch(
    events: Sequence[Any],
    types: TypeTable,
    get_payload: Callable[[Payload | None], tuple[int, bytes, int]],
    register_id: int = 0,
    request_key: str | None = None,
    after_key: str | None = None,
    instances: list[int] | None = None,
) -> Batch:
    """See ``batch_of``.

    Args:
        events: the objects.
        types: theirs.
        get_payload: from a payload its kind, what it is in a row, and its size.
        register_id: see :class:`Batch`.
        request_key: see there.
        after_key: see there.
        instances: of the events; None: from 1 on.

    Raises:
        ValueError: a type cannot be stored, there are too many bytes, or not as many instances as
            events.
    """

def extend_batch(
    batch: Batch,
    events: Sequence[Any],
    get_payload: Callable[[Payload | None], tuple[int, bytes, int]],
    instances: list[int] | None = None,
    is_request: bool = False,
) -> None:
    """See ``extend`` and, ``is_request``, ``append``.

    ``instances``: of the events; None: they follow those that are there.
    """

def totals(batches: list[Batch]) -> tuple[int, int, int]:
    """Number of events of batches, of requested ones among these, and size of all payloads."""

def claim(batches: list[Batch], source: Source, quota: TypeQuota | None) -> int:
    """Set who registers batches; returns their number of events, where an empty one has one."""

def are_keyed(batches: list[Batch]) -> bool:
    """Whether a batch among these has a key, or is to get one."""

def are_alike(batches: list[Batch]) -> bool:
    """Whether batches have one outcome, and none of them was registered before."""

def assign(batches: list[Batch], server: int, session: int, s: int, us: int) -> None:
    """Give batches consecutive sessions, from this one on, and a timestamp."""

def unready(batches: list[Batch], begin: int = 0, end: int = -1) -> list[tuple[int, EventType]]:
    """Types that are to be checked, or are not stored.

    Args:
        batches: the batches.
        begin: index of the first event of each that is looked at.
        end: where these end; -1: all of them.

    Returns:
        Of each such type the index of its first event in its batch, and the type; one that came as
        several texts is there as often.
    """

@final
class BatchRows:
    """Rows in ``event`` of batches, until they are written.

    Args:
        max_passed_events: ``backends.limits.MAX_PASSED_EVENTS``.
        max_value_bytes: the same, ``MAX_ORDERED_BYTES``.
    """

    def __init__(self, max_passed_events: int, max_value_bytes: int) -> None: ...
    def __len__(self) -> int: ...
    def stage(
        self,
        batches: list[Batch],
        ids: dict[EventType, bytes],
        last: dict[bytes, tuple[bytes, bytes, int]],
        ends: dict[bytes, bytes],
        floor: bytes,
        is_counted: bool,
        begin: int = 0,
        end: int = -1,
    ) -> Staged:
        """Add the rows of batches, which have their sessions.

        Args:
            batches: the batches.
            ids: of all their types.
            last: see ``source_order.SourceOrder``; brought up to date.
            ends: see there, too; likewise.
            floor: see there.
            is_counted: whether the events of each type are counted.
            begin: index of the first event of each.
            end: where they end; -1: all of them.

        Raises:
            KeyError: a type has no id; nothing was changed.
            RuntimeError: what these rows call stages or puts them.
        """

    def put(
        self, put: Callable[[bytes, bytes, ColumnFamily], None], family: ColumnFamily
    ) -> list[tuple[bytes, tuple[bytes, bytes]]]:
        """Put the rows into a batch, in the order of their keys, and begin anew.

        Returns:
            Of each type its id and its last row.

        Raises:
            RuntimeError: ``put`` stages or puts these rows; they stay, as whenever it raises.
        """

def read_json(message: bytes, types: TypeTable, max_new: int = ...) -> Batch | None:
    """Read a ``register_req``.

    Args:
        message: without framing.
        types: of this wire.
        max_new: types that it may bring that are not in the table, each of which takes 10 us.

    Returns:
        None: it is another message, or a wrong or unusual one.
    """

def read_sbs(message: bytes, types: TypeTable, max_new: int = ...) -> Batch | None:
    """Read a ``MsgRegisterReq``; as :func:`read_json`, but the text of each type is as encoded."""

def content(batch: Batch) -> bytes:
    """The events of a request as they are digested (``backends.request_keys``): as JSON."""

def encode_events(
    batch: Batch, indices: list[int] | None = None, begin: int = 0, end: int = -1
) -> bytes:
    """Encode events that a request became, with commas between them (002, ``event``).

    Args:
        batch: the batch.
        indices: which of them, ascending; None: those of the next two.
        begin: index of the first.
        end: where they end; -1: all of them.

    Raises:
        IndexError: there is no such event, or they do not ascend.
    """

def encode_answers(requests: list[Batch], before: bytes, between: bytes, behind: bytes) -> bytes:
    """Encode the answers to requests, each with the events that it became, as frames.

    Args:
        requests: the requests, of which :meth:`BatchRows.stage` made rows.
        before: what comes before ``register_id``.
        between: what comes between that and the events.
        behind: what comes behind them.

    Returns:
        The frames (``net.framing``), joined.
    """

def encode_sbs_answers(requests: list[Batch]) -> list[bytes]:
    """Encode a ``MsgRegisterRes`` for each request, with the events that it became.

    Raises:
        ValueError: a request was not read by :func:`read_sbs`, or was extended.
    """

def read_rows(
    iterator: RdictIter,
    start: bytes,
    stop: bytes,
    *,
    descending: bool,
    max_rows: int,
    max_bytes: int,
    seconds: float,
) -> tuple[list[tuple[bytes, bytes]], int, bool]:
    """Read rows from where an iterator stands; it is left at the first one that was not read.

    Args:
        iterator: stands at the first row. The interpreter's lock is kept while it moves.
        start: least key of the span, or the beginning of it.
        stop: what is behind its greatest key.
        descending: in which direction it is read.
        max_rows: rows at most.
        max_bytes: bytes of values, after which no further row is read.
        seconds: time after which no further row is read; the first one always is.

    Returns:
        Keys and values; the bytes of the values; whether reading came to the end of the span.
        Where the iterator is no longer valid, its status says whether that is the end or a failure.

    Raises:
        TypeError: a key or value is not ``bytes``.
    """

@final
class StoredEvents(Sequence[Event]):
    """Events as rows of the store, made by :func:`stored_events`; equal to what these are.

    Attributes:
        events: the events, decoded when they are first asked for.
    """

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Event]: ...
    def __getitem__(self, index): ...  # type: ignore[no-untyped-def]
    @property
    def events(self) -> Sequence[Event]: ...

def stored_events(
    rows: list[tuple[bytes, bytes]],
    names: dict[bytes, EventType],
    encode_type: Callable[[EventType], bytes],
    decode: Callable[[list[tuple[bytes, bytes]], dict[bytes, EventType]], Sequence[Event]],
) -> StoredEvents | None:
    """Events from their rows in ``event``.

    Args:
        rows: keys and values.
        names: types by id.
        encode_type: encodes a type as JSON.
        decode: decodes rows, given the types.

    Returns:
        None: one of them is to be decoded: it has a binary payload, or is damaged.

    Raises:
        KeyError: there is no such type.
        TypeError: a row is not a tuple, or one of its two parts is not ``bytes``.
        ValueError: a row has not two parts.
    """

def encode_stored(events: StoredEvents, before: bytes, behind: bytes) -> bytes:
    """Encode events with commas between them (002, ``event``).

    Args:
        events: the events.
        before: what comes before them.
        behind: what comes behind them.
    """
