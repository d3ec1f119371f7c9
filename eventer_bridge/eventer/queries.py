"""Queries of Eventer messages as SBS, and back (001, "Event querying").

Read functions are like those of ``sbs``. They also raise ``InvalidEventError`` for well-formed
but inadmissible data.

Sans I/O; any thread.
"""

from collections.abc import Sequence
from functools import partial
from typing import Final

from eventer_bridge import limits
from eventer_bridge.chatter import sbs
from eventer_bridge.errors import InvalidEventError
from eventer_bridge.eventer.events import read_timestamp, read_type
from eventer_bridge.model import (
    EventId,
    EventType,
    Order,
    OrderBy,
    QueryLatestParams,
    QueryParams,
    QueryServerParams,
    QueryTimeseriesParams,
    Timestamp,
)
from eventer_bridge.subscription import check_query_types, too_many_segments

_ORDERS: Final = (Order.DESCENDING, Order.ASCENDING)
_ORDERS_BY: Final = (OrderBy.TIMESTAMP, OrderBy.SOURCE_TIMESTAMP)
_LATEST, _TIMESERIES, _SERVER = range(3)  # the Choice QueryParams

_MIN_TYPE_BYTES: Final = 1


# --- reading ------------------------------------------------------------------------------


def read_query_params(data: bytes, pos: int) -> tuple[QueryParams, int]:
    """QueryParams, up to the end of the data."""
    kind, pos = sbs.read_choice(data, pos, len(_READERS))
    return _READERS[kind](data, pos)


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


_READERS: Final[tuple[sbs.Reader[QueryParams], ...]] = (
    _read_latest_params,
    _read_timeseries_params,
    _read_server_params,
)


# --- writing ------------------------------------------------------------------------------


def encode_query_params(params: QueryParams) -> bytes:
    """QueryParams.

    Raises:
        InvalidEventError: a condition of 000 cannot be expressed in 001.
        OverflowError: an integer has more than 64 bits.
        UnicodeEncodeError: a text has no UTF-8 form.
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
