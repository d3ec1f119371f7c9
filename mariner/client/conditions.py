"""Query conditions that our server has in addition to 002 (000, "query events").

Other servers ignore unknown conditions, and return more events than requested. The client
checks every answer, so that no caller mistakes these for a valid one.

Sans I/O; any thread.
"""

from collections.abc import Iterable, Iterator, Sequence

from eventer_bridge import limits
from eventer_bridge.model import (
    Event,
    EventType,
    Payload,
    QueryParams,
    QueryServerParams,
    QueryTimeseriesParams,
)
from eventer_bridge.payloads import same_as
from mariner.errors import LocalProtocolError, RemoteProtocolError


def check_request(params: QueryParams) -> None:
    """Refuse a query for which our server would close the connection.

    Raises:
        LocalProtocolError: the query has too many ids, or a text as event type.
    """
    if not isinstance(params, QueryServerParams) and params.event_types is not None:
        checked_event_types("event_types", params.event_types)
    if isinstance(params, QueryTimeseriesParams) and params.ids is not None:
        n_ids = len(params.ids)
        if n_ids > limits.MAX_QUERY_IDS:
            raise LocalProtocolError(
                f"{n_ids} ids in one query, at most {limits.MAX_QUERY_IDS} are allowed"
            )


def checked_event_types(name: str, event_types: Iterable[Sequence[str]]) -> tuple[EventType, ...]:
    """Event types as tuples; a text is refused: a sequence of characters, but not of segments.

    Raises:
        LocalProtocolError: there is one; the text begins with ``name``.
    """
    checked: list[EventType] = []
    for index, event_type in enumerate(event_types):
        if isinstance(event_type, str):
            raise LocalProtocolError(
                f"{name}[{index}]: expected a tuple of segments, such as ('lamp', '*'), got"
                f" {event_type!r}"
            )
        checked.append(tuple(event_type))
    return tuple(checked)


def check_answer(params: QueryParams, events: Sequence[Event]) -> None:
    """Refuse an answer that violates the conditions.

    Raises:
        RemoteProtocolError: it has events that were not requested.
    """
    if not isinstance(params, QueryTimeseriesParams):
        return
    ignored = None
    if params.ids is not None and not {i.id for i in events}.issubset(params.ids):
        ignored = "ids"
    elif params.payload is not None and not all(map(same_as(params.payload), _payloads(events))):
        ignored = "payload"
    elif params.unique_type and len({i.type for i in events}) < len(events):
        ignored = "unique_type"
    if ignored is not None:
        raise RemoteProtocolError(
            f"query_res: events that were not requested: the server does not know {ignored!r}"
        )


def _payloads(events: Sequence[Event]) -> Iterator[Payload | None]:
    return (i.payload for i in events)
