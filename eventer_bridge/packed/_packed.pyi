from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import final

from rocksdict import ColumnFamily, RdictIter

from eventer_bridge.model import Event, EventType, RegisterEvent

FindCb = Callable[[bytes], tuple[EventType, bytes, bytes] | None]
"""Finds a type that may be registered, by its text as it came: the type, its id in the store, and
its JSON; None: there is none."""

Staged = tuple[bytes, list[bytes], list[bytes], int, list[tuple[bytes, int, int]]]
"""What is to be stored beside rows in ``event``: the entries of their block, the keys of the
sessions, keys in ``source``, the size of all values, and, if they are counted, of each type its id,
number of events and size of their values."""

@final
class KnownTypes:
    """Types by the text that they came as, so that they are not decoded.

    Args:
        find: asked for what is not known yet.
        max_bytes: memory that it may use; when that is exceeded it begins anew.

    Attributes:
        epoch: changes when what was found before does not hold any more.
    """

    def __init__(self, find: FindCb, max_bytes: int) -> None: ...
    def __len__(self) -> int: ...
    def clear(self) -> None:
        """Forget all of them: their ids may have changed."""

    @property
    def epoch(self) -> int: ...

@final
class Packed(Sequence[RegisterEvent]):
    """The events of a request, as the message that it came as.

    Made by :func:`pack`, or by :func:`pack_sbs`: these have no ``register_id`` and no key.

    Attributes:
        register_id: of the request.
        request_key: what the client calls it; None: nothing.
        after_key: that of the request that must be stored first; None: there is none.
        payload_bytes: size of its payloads.
        is_valid: whether the ids of its types still hold.
        events: its events, decoded when they are first asked for.
        register_events: the same as itself: the name that other requests have for their events.
        types: of its events.
        event_types: the type of each event.
        server: of the session that it became, by ``PackedRows.stage``.
        session: id of that.
        s: seconds of its timestamp.
        us: the microseconds.
    """

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[RegisterEvent]: ...
    def __getitem__(self, index): ...  # type: ignore[no-untyped-def]
    @property
    def register_id(self) -> int: ...
    @property
    def request_key(self) -> str | None: ...
    @property
    def after_key(self) -> str | None: ...
    @property
    def payload_bytes(self) -> int: ...
    @property
    def server(self) -> int: ...
    @property
    def session(self) -> int: ...
    @property
    def s(self) -> int: ...
    @property
    def us(self) -> int: ...
    @property
    def is_valid(self) -> bool: ...
    @property
    def events(self) -> Sequence[RegisterEvent]: ...
    @property
    def register_events(self) -> Sequence[RegisterEvent]: ...
    @property
    def event_types(self) -> list[EventType]: ...
    @property
    def types(self) -> set[EventType]: ...

@final
class PackedRows:
    """Rows in ``event`` of packed requests, until they are written.

    Args:
        max_passed_events: ``source_order.MAX_PASSED_EVENTS``.
        max_value_bytes: the same, ``MAX_VALUE_BYTES``.
    """

    def __init__(self, max_passed_events: int, max_value_bytes: int) -> None: ...
    def __len__(self) -> int: ...
    def stage(
        self,
        requests: list[Packed],
        server: int,
        first_session: int,
        s: int,
        us: int,
        last: dict[bytes, tuple[bytes, bytes, int]],
        ends: Mapping[bytes, bytes],
        is_counted: bool,
    ) -> Staged | None:
        """Add the rows of requests, each of which becomes a session.

        Args:
            requests: which are valid.
            server: of the sessions.
            first_session: id of the first of them; the others follow.
            s: seconds of their timestamp.
            us: its microseconds.
            last: see ``source_order.SourceOrder``; brought up to date.
            ends: see there, too.
            is_counted: whether the events of each type are counted.

        Returns:
            None: nothing was changed, because the order of a type ends, or is not known.

        Raises:
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

def pack(
    message: bytes, types: KnownTypes, decode: Callable[[bytes], Sequence[RegisterEvent]]
) -> Packed | None:
    """Pack a ``register_req``.

    Args:
        message: without framing.
        types: those that are packed.
        decode: decodes the events of such a message.

    Returns:
        None: it is another message, or a wrong or unusual one.
    """

def pack_sbs(
    message: bytes, types: KnownTypes, decode: Callable[[bytes], Sequence[RegisterEvent]]
) -> Packed | None:
    """Pack a ``MsgRegisterReq``; as :func:`pack`, but the text of each type is as it is encoded."""

def content(packed: Packed) -> bytes:
    """The events of a request as they are digested (``backends.request_keys``): as JSON."""

def encode_events(packed: Packed, indices: list[int] | None = None) -> bytes:
    """Encode events that a request became, with commas between them (002, ``event``).

    Args:
        packed: the request.
        indices: which of them, ascending; None: all of them.

    Raises:
        IndexError: there is no such event, or they do not ascend.
    """

def encode_answers(requests: list[Packed], before: bytes, between: bytes, behind: bytes) -> bytes:
    """Encode the answers to requests, each with the events that it became, as frames.

    Args:
        requests: the requests, of which :meth:`PackedRows.stage` made rows.
        before: what comes before ``register_id``.
        between: what comes between that and the events.
        behind: what comes behind them.

    Returns:
        The frames (``net.framing``), joined.
    """

def encode_sbs_answers(requests: list[Packed]) -> list[bytes]:
    """Encode a ``MsgRegisterRes`` for each request, with the events that it became.

    Raises:
        ValueError: a request was not packed by :func:`pack_sbs`.
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
