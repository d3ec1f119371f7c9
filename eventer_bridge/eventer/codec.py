"""Eventer messages as bytes, and back (001, "Chatter messages").

A message is the data of a chatter message, which carries its type, as
``HatEventer.MsgRegisterReq``. The schema is ``schemas/HatEventer.sbs``.

hat-sbs is not used: for events, most of the traffic, our own functions are three times as fast
(``tests/perf/test_eventer_codec.py``); received messages may be hostile (see ``sbs``); and
importing hat-sbs took a third of the gateway's start. Tests compare both.

Errors are of two kinds:

- **malformed** (``InvalidMessageError``: the connection is to be closed): an unknown type of
  message, data that ends too early or too late, a length or count beyond the end, an unknown
  choice, text that is not UTF-8, an integer of more than 64 bits; and any other error in a
  server's message;
- **inadmissible** (``RefusedReq``: can be answered): a well-formed request with a timestamp out
  of range, a payload that is not JSON or exceeds ``payloads.exceeded``, too many events, query
  types or segments (``limits``), a negative ``max_results``. The rest of such a request is not
  read. Inadmissible events in a server's message are skipped and listed beside it
  (``RefusedEvent``): otherwise, one stored event would end every connection.

Wildcards in registered types, and ``*`` in the middle of query types, are left to the engine.

Sans I/O; any thread.
"""

import contextlib
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain, islice
from typing import Any, Final, TypeVar

from eventer_bridge import limits
from eventer_bridge.chatter import sbs
from eventer_bridge.errors import InvalidEventError, InvalidMessageError
from eventer_bridge.eventer.events import (
    encode_events,
    encode_register_events,
    encode_type,
    read_batch,
    read_events,
    read_register_events,
    read_timestamp,
    read_type,
    read_unknown_type,
)
from eventer_bridge.eventer.messages import (
    Message,
    MsgEventsAck,
    MsgEventsNotify,
    MsgInitReq,
    MsgInitRes,
    MsgQueryReq,
    MsgQueryRes,
    MsgRegisterReq,
    MsgRegisterRes,
    MsgStatusNotify,
    RefusedEvent,
    RefusedReq,
)
from eventer_bridge.model import (
    Event,
    EventId,
    EventType,
    Order,
    OrderBy,
    QueryLatestParams,
    QueryParams,
    QueryResult,
    QueryServerParams,
    QueryTimeseriesParams,
    Status,
    Timestamp,
)
from eventer_bridge.packed import IS_COMPILED, Batch, TypeTable, batch_of, read_sbs
from eventer_bridge.slices import Steps, at_once, cut_in_steps
from eventer_bridge.subscription import check_query_types, too_many_segments

T = TypeVar("T")

_ORDERS: Final = (Order.DESCENDING, Order.ASCENDING)
_ORDERS_BY: Final = (OrderBy.TIMESTAMP, OrderBy.SOURCE_TIMESTAMP)
_LATEST, _TIMESERIES, _SERVER = range(3)  # the Choice QueryParams

_MIN_TYPE_BYTES: Final = 1


# --- queries: reading ---------------------------------------------------------------------


def read_query_params(data: bytes, pos: int) -> tuple[QueryParams, int]:
    """QueryParams, up to the end of the data."""
    kind, pos = sbs.read_choice(data, pos, len(_QUERY_READERS))
    return _QUERY_READERS[kind](data, pos)


def read_query_types(data: bytes, pos: int) -> tuple[tuple[EventType, ...], int]:
    """An Array of EventType, of a query or a subscription."""
    count, pos = sbs.read_count(data, pos, _MIN_TYPE_BYTES)
    if count > limits.MAX_SUBSCRIPTION_TYPES:
        raise InvalidEventError(
            f"{count} query types, at most {limits.MAX_SUBSCRIPTION_TYPES} are allowed"
        )
    query_types = []
    n_segments = 0
    for _ in range(count):
        query_type, pos = read_type(data, pos)
        query_types.append(query_type)
        n_segments += len(query_type)
        if n_segments > limits.MAX_QUERY_SEGMENTS:
            raise too_many_segments(n_segments)
    check_query_types(query_types)
    return tuple(query_types), pos


def _read_latest_params(data: bytes, pos: int) -> tuple[QueryLatestParams, int]:
    event_types, pos = sbs.read_optional(read_query_types, data, pos)
    if pos == len(data):
        return QueryLatestParams(event_types), pos
    last_event_id, pos = read_event_id(data, pos)  # ours, see ``schemas/HatEventer.sbs``
    return QueryLatestParams(event_types, last_event_id), pos


def _read_timeseries_params(data: bytes, pos: int) -> tuple[QueryTimeseriesParams, int]:
    event_types, pos = sbs.read_optional(read_query_types, data, pos)
    t_from, pos = sbs.read_optional(read_timestamp, data, pos)
    t_to, pos = sbs.read_optional(read_timestamp, data, pos)
    source_t_from, pos = sbs.read_optional(read_timestamp, data, pos)
    source_t_to, pos = sbs.read_optional(read_timestamp, data, pos)
    order, pos = sbs.read_one_of(_ORDERS, data, pos)
    order_by, pos = sbs.read_one_of(_ORDERS_BY, data, pos)
    max_results, pos = sbs.read_optional(_read_max_results, data, pos)
    last_event_id, pos = sbs.read_optional(read_event_id, data, pos)
    params = QueryTimeseriesParams(
        event_types,
        t_from,
        t_to,
        source_t_from,
        source_t_to,
        order,
        order_by,
        max_results,
        last_event_id,
    )
    return params, pos


def _read_server_params(data: bytes, pos: int) -> tuple[QueryServerParams, int]:
    server_id, pos = sbs.read_integer(data, pos)
    persisted, pos = sbs.read_boolean(data, pos)
    max_results, pos = sbs.read_optional(_read_max_results, data, pos)
    last_event_id, pos = sbs.read_optional(read_event_id, data, pos)
    return QueryServerParams(server_id, persisted, max_results, last_event_id), pos


def _read_max_results(data: bytes, pos: int) -> tuple[int, int]:
    max_results, pos = sbs.read_integer(data, pos)
    if max_results < 0:
        raise InvalidEventError(f"max_results is {max_results}, expected at least 0")
    return max_results, pos


def read_event_id(data: bytes, pos: int) -> tuple[EventId, int]:
    """An EventId."""
    server, pos = sbs.read_integer(data, pos)
    session, pos = sbs.read_integer(data, pos)
    instance, pos = sbs.read_integer(data, pos)
    return EventId(server, session, instance), pos


_QUERY_READERS: Final[tuple[sbs.Reader[QueryParams], ...]] = (
    _read_latest_params,
    _read_timeseries_params,
    _read_server_params,
)


# --- queries: writing ---------------------------------------------------------------------


def encode_query_params(params: QueryParams) -> bytes:
    """QueryParams; ``InvalidEventError``: a condition of 000 cannot be expressed in 001.

    Raises ``OverflowError`` for more than 64 bits, ``UnicodeEncodeError`` for lone surrogates.
    """
    match params:
        case QueryLatestParams():
            last_id = params.last_event_id
            behind = b"" if last_id is None else encode_event_id(last_id)
            return sbs.encode_integer(_LATEST) + _encode_types(params.event_types) + behind
        case QueryTimeseriesParams():
            if params.ids is not None or params.payload is not None or params.unique_type:
                raise InvalidEventError(
                    "an Event Server cannot be queried by ids, payload or unique_type"
                )
            conditions = (
                _encode_types(params.event_types),
                sbs.encode_optional(_encode_timestamp, params.t_from),
                sbs.encode_optional(_encode_timestamp, params.t_to),
                sbs.encode_optional(_encode_timestamp, params.source_t_from),
                sbs.encode_optional(_encode_timestamp, params.source_t_to),
                sbs.encode_one_of(_ORDERS, params.order),
                sbs.encode_one_of(_ORDERS_BY, params.order_by),
                sbs.encode_optional(sbs.encode_int64, params.max_results),
                sbs.encode_optional(encode_event_id, params.last_event_id),
            )
            return sbs.encode_integer(_TIMESERIES) + b"".join(conditions)
        case QueryServerParams():
            fields = (
                sbs.encode_int64(params.server_id),
                sbs.encode_boolean(params.persisted),
                sbs.encode_optional(sbs.encode_int64, params.max_results),
                sbs.encode_optional(encode_event_id, params.last_event_id),
            )
            return sbs.encode_integer(_SERVER) + b"".join(fields)


def encode_query_types(query_types: Sequence[EventType]) -> bytes:
    """An Array of EventType, of a query or a subscription."""
    return sbs.encode_array(partial(sbs.encode_array, sbs.encode_string), query_types)


def _encode_types(query_types: Sequence[EventType] | None) -> bytes:
    return sbs.encode_optional(encode_query_types, query_types)


def _encode_timestamp(timestamp: Timestamp) -> bytes:
    return sbs.encode_int64(timestamp.s) + sbs.encode_int64(timestamp.us)


def encode_event_id(event_id: EventId) -> bytes:
    """An EventId."""
    return b"".join(map(sbs.encode_int64, (event_id.server, event_id.session, event_id.instance)))


_STATUSES: Final = (Status.STANDBY, Status.STARTING, Status.OPERATIONAL, Status.STOPPING)


def type_name(message_type: type[Message]) -> str:
    """Name of a type of message in chatter: ``HatEventer.Msg…``."""
    return f"HatEventer.{message_type.__name__}"


# --- messages: decoding -------------------------------------------------------------------


def decode(name: str, data: bytes) -> Message | RefusedReq:
    """Decode a message of a type, as ``HatEventer.MsgRegisterReq``; without chatter.

    Raises ``InvalidMessageError`` if it is malformed; see the module.
    """
    message_type = _TYPES.get(name)
    if message_type is None:
        raise InvalidMessageError(f"{name[:100]!r}: not a message of the Eventer protocol")
    try:
        message, end = _READERS[message_type](data, 0)
    except (InvalidEventError, InvalidMessageError, IndexError) as e:
        return _refused(message_type, len(data), e)
    _check_end(message_type, end, len(data))
    return message


def decode_in_steps(name: str, data: bytes) -> Steps[Message | RefusedReq]:
    """As :func:`decode`, of a large message of :data:`WITH_EVENTS`."""
    message_type = _TYPES[name]
    return _decode_whole(message_type, len(data), _STEP_READERS[message_type](data))


def decode_register_req(data: bytes, types: TypeTable) -> Steps[Batch | RefusedReq]:
    """Make a batch of a large ``MsgRegisterReq`` in steps; raises as :func:`decode`."""
    return _decode_whole(MsgRegisterReq, len(data), read_batch(data, types))


def _decode_whole(
    message_type: type[Message], size: int, reading: Steps[tuple[T, int]]
) -> Steps[T | RefusedReq]:
    try:
        found, end = yield from reading
    except (InvalidEventError, InvalidMessageError, IndexError) as e:
        return _refused(message_type, size, e)
    _check_end(message_type, end, size)
    return found


def read_register_req(
    data: bytes, types: TypeTable, max_new: int = limits.MAX_SESSION_EVENTS
) -> Batch | None:
    """A batch from a ``MsgRegisterReq``; None: it is unusual, and to be decoded.

    So is one that brings more types than ``max_new`` that are not in the table.
    """
    return read_sbs(data, types, max_new) if IS_COMPILED else None


def read_whole_type(text: bytes) -> EventType | None:
    """An event type that is a whole text; None: it is none, or longer than it need be."""
    try:
        event_type, _ = read_unknown_type(text, 0)
    except (InvalidEventError, InvalidMessageError, IndexError):
        return None
    n_bytes = 1 + len(event_type) + len("".join(event_type).encode())  # with lengths of one byte
    return event_type if n_bytes == len(text) or encode_type(event_type) == text else None


def read_register_reqs(messages: Sequence[bytes], room: int, types: TypeTable) -> list[Batch]:
    """A batch from each ``MsgRegisterReq``, up to the first that :func:`decode` refuses.

    The request that reaches ``room`` events is the last, too.
    """
    batches: list[Batch] = []
    with contextlib.suppress(InvalidEventError, InvalidMessageError, IndexError):
        for data in messages:
            batch = read_register_req(data, types)
            if batch is None:
                register_events, end = read_register_events(data, 0)
                if end != len(data):
                    break
                batch = batch_of(register_events, types)
            batches.append(batch)
            room -= len(batch) or 1
            if room <= 0:
                break
    return batches


def _refused(message_type: type[Message], size: int, error: Exception) -> RefusedReq:
    if message_type in {MsgInitReq, MsgRegisterReq, MsgQueryReq} and isinstance(
        error, InvalidEventError
    ):
        return RefusedReq(message_type, str(error))
    text = f"ends too early, at byte {size}" if isinstance(error, IndexError) else error
    raise InvalidMessageError(f"{type_name(message_type)}: {text}") from None


def _check_end(message_type: type[Message], end: int, size: int) -> None:
    if end != size:
        name = type_name(message_type)
        raise InvalidMessageError(f"{name}: ends at byte {end}, but {size - end} bytes follow")


def _read_init_req(data: bytes, pos: int) -> tuple[MsgInitReq, int]:
    client_name, pos = sbs.read_string(data, pos)
    client_token, pos = sbs.read_optional(sbs.read_string, data, pos)
    subscriptions, pos = read_query_types(data, pos)
    server_id, pos = sbs.read_optional(sbs.read_integer, data, pos)
    persisted, pos = sbs.read_boolean(data, pos)
    return MsgInitReq(client_name, client_token, subscriptions, server_id, persisted), pos


def _read_init_res(data: bytes, pos: int) -> tuple[MsgInitRes, int]:
    is_error, pos = sbs.read_choice(data, pos, 2)
    if is_error:
        error, pos = sbs.read_string(data, pos)
        return MsgInitRes(None, error), pos
    status, pos = sbs.read_one_of(_STATUSES, data, pos)
    return MsgInitRes(status), pos


def _read_status_notify(data: bytes, pos: int) -> tuple[MsgStatusNotify, int]:
    status, pos = sbs.read_one_of(_STATUSES, data, pos)
    return MsgStatusNotify(status), pos


def _read_register_req(data: bytes, pos: int) -> tuple[MsgRegisterReq, int]:
    register_events, pos = read_register_events(data, pos)
    return MsgRegisterReq(register_events), pos


def _read_query_req(data: bytes, pos: int) -> tuple[MsgQueryReq, int]:
    params, pos = read_query_params(data, pos)
    return MsgQueryReq(params), pos


def _read_query_res(data: bytes) -> Steps[tuple[Message, int]]:
    refused: list[RefusedEvent] = []
    events, pos = yield from read_events(data, 0, refused)
    more_follows, pos = sbs.read_boolean(data, pos)
    deleted, n_deletions = None, 0
    if pos < len(data):  # ours, see ``schemas/HatEventer.sbs``
        deleted, pos = read_event_id(data, pos)
        n_deletions, pos = sbs.read_integer(data, pos)
    result = QueryResult(events, more_follows, deleted, n_deletions)
    return MsgQueryRes(result, tuple(refused)), pos


def _read_events_notify(data: bytes) -> Steps[tuple[Message, int]]:
    refused: list[RefusedEvent] = []
    events, pos = yield from read_events(data, 0, refused)
    return MsgEventsNotify(events, tuple(refused)), pos


def _read_register_res(data: bytes) -> Steps[tuple[Message, int]]:
    is_failure, pos = sbs.read_choice(data, 0, 2)
    if is_failure:
        return MsgRegisterRes(None), pos
    events, pos = yield from read_events(data, pos)
    return MsgRegisterRes(events), pos


def _at_once(data: bytes, pos: int, message_type: type[Message]) -> tuple[Message, int]:
    return at_once(_STEP_READERS[message_type](data))


_STEP_READERS: Final[dict[type[Message], Callable[[bytes], Steps[tuple[Message, int]]]]] = {
    MsgEventsNotify: _read_events_notify,
    MsgRegisterRes: _read_register_res,
    MsgQueryRes: _read_query_res,
}
WITH_EVENTS: Final = frozenset(map(type_name, _STEP_READERS))
"""Messages of a server that may have many events."""

_READERS: Final[dict[type[Message], sbs.Reader[Message]]] = {
    MsgInitReq: _read_init_req,
    MsgInitRes: _read_init_res,
    MsgStatusNotify: _read_status_notify,
    MsgEventsNotify: partial(_at_once, message_type=MsgEventsNotify),
    MsgEventsAck: lambda _, pos: (MsgEventsAck(), pos),
    MsgRegisterReq: _read_register_req,
    MsgRegisterRes: partial(_at_once, message_type=MsgRegisterRes),
    MsgQueryReq: _read_query_req,
    MsgQueryRes: partial(_at_once, message_type=MsgQueryRes),
}
_TYPES: Final = {type_name(i): i for i in _READERS}


# --- messages: encoding -------------------------------------------------------------------


def encode(message: Message) -> tuple[str, bytes]:
    """Encode a message: its type, as ``HatEventer.MsgRegisterReq``, and its data.

    Raises ``InvalidEventError``: a text has no UTF-8 form (a lone surrogate), an integer more than
    64 bits, or a query a condition that only Mariner has.
    """
    message_type = type(message)
    name = type_name(message_type)
    try:
        return name, _ENCODERS[message_type](message)
    except (OverflowError, UnicodeEncodeError) as e:
        raise InvalidEventError(f"{name} cannot be encoded: {e}") from None


def encode_events_notify(events: Sequence[bytes]) -> bytes:
    """A ``MsgEventsNotify`` of encoded events."""
    return b"".join((sbs.encode_length(len(events)), *events))


_SUCCESS: Final = bytes((sbs.FIRST,))
_SUCCESS_OF_ONE: Final = _SUCCESS + sbs.encode_length(1)
_ERROR: Final = bytes((sbs.SECOND,))
REGISTER_FAILURE: Final = bytes((sbs.SECOND,))
"""A ``MsgRegisterRes`` that reports a failure."""


def encode_register_success(events: Sequence[bytes]) -> bytes:
    """A ``MsgRegisterRes`` of encoded events."""
    return b"".join((_SUCCESS, sbs.encode_length(len(events)), *events))


def encode_register_successes(sessions: Sequence[Sequence[Event]]) -> list[bytes]:
    """As :func:`encode_register_success`, of the events of several sessions."""
    encoded = encode_events([*chain.from_iterable(sessions)])
    if len(encoded) == len(sessions) and all(sessions):  # most have one event
        return [_SUCCESS_OF_ONE + i for i in encoded]
    waiting = iter(encoded)
    return [encode_register_success([*islice(waiting, len(i))]) for i in sessions]


def _encode_init_req(message: MsgInitReq) -> bytes:
    fields = (
        sbs.encode_string(message.client_name),
        sbs.encode_optional(sbs.encode_string, message.client_token),
        encode_query_types(message.subscriptions),
        sbs.encode_optional(sbs.encode_int64, message.server_id),
        sbs.encode_boolean(message.persisted),
    )
    return b"".join(fields)


def _encode_init_res(message: MsgInitRes) -> bytes:
    if message.status is None:
        return _ERROR + sbs.encode_string(message.error)
    return _SUCCESS + _encode_status(message.status)


def _encode_status(status: Status) -> bytes:
    return sbs.encode_one_of(_STATUSES, status)


def _encode_register_res(message: MsgRegisterRes) -> bytes:
    if message.events is None:
        return REGISTER_FAILURE
    return encode_register_success(encode_events(message.events))


def encode_query_result(result: QueryResult) -> Steps[list[bytes]]:
    """A ``MsgQueryRes`` in parts; its events are encoded in steps."""
    encoded = [sbs.encode_length(len(result.events))]
    end = sbs.TRUE if result.more_follows else sbs.FALSE
    if result.deleted is not None:
        end += encode_event_id(result.deleted) + sbs.encode_int64(result.n_deletions)
    waiting = yield from cut_in_steps(result.events)
    del result  # each event is freed once encoded, not all of them at once
    while waiting:
        encoded.append(b"".join(encode_events(waiting.popleft())))
        yield
    encoded.append(end)
    return encoded


_ENCODERS: Final[dict[type[Message], Callable[[Any], bytes]]] = {
    MsgInitReq: _encode_init_req,
    MsgInitRes: _encode_init_res,
    MsgStatusNotify: lambda i: _encode_status(i.status),
    MsgEventsNotify: lambda i: encode_events_notify(encode_events(i.events)),
    MsgEventsAck: lambda _: b"",
    MsgRegisterReq: lambda i: encode_register_events(i.register_events),
    MsgRegisterRes: _encode_register_res,
    MsgQueryReq: lambda i: encode_query_params(i.params),
    MsgQueryRes: lambda i: b"".join(at_once(encode_query_result(i.result))),
}
