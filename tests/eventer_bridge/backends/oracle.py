"""What the backends' tests share: making events, and answering queries the naive way."""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from eventer_bridge import limits
from eventer_bridge.backends.base import Backend
from eventer_bridge.backends.request_keys import RequestKey, digests
from eventer_bridge.backends.visible_query import VisibleQuery
from eventer_bridge.model import (
    BinaryPayload,
    Event,
    EventId,
    EventType,
    JsonPayload,
    Order,
    OrderBy,
    Payload,
    QueryLatestParams,
    QueryParams,
    QueryResult,
    QueryServerParams,
    QueryTimeseriesParams,
    RegisterEvent,
    Timestamp,
    natural_key,
)
from eventer_bridge.packed import batch_of
from eventer_bridge.subscription import EVERYTHING, Subscription
from tests.eventer_bridge.backends.putting import TYPES, put


def draft(
    event_type: str = "a", source: int | Timestamp | None = None, payload: Payload | None = None
) -> RegisterEvent:
    """An event to register; its type is given as ``a/b``, its source timestamp in seconds."""
    if isinstance(source, int):
        source = Timestamp(source, 0)
    return RegisterEvent(tuple(event_type.split("/")), source, payload)


def seen(params: QueryParams, rights: Subscription | None) -> VisibleQuery:
    """A query of who has these rights; None: all."""
    return VisibleQuery(params, EVERYTHING if rights is None else rights)


def numbered(*event_types: str) -> list[RegisterEvent]:
    """Events of these types, with their index as payload."""
    return [draft(i, payload=JsonPayload.of(n)) for n, i in enumerate(event_types)]


def request_key(
    key: str, *events: RegisterEvent, owner: str = "app", after: str | None = None
) -> RequestKey:
    """What a client calls the registration of these events."""
    [digest] = digests([batch_of(events, TYPES)])
    return RequestKey(owner, key, digest, after)


class Writer:
    """Gives ids and timestamps as an engine does, registers, and remembers.

    Attributes:
        events: everything that was registered.
    """

    def __init__(self, backend: Backend) -> None:
        self.events: list[Event] = []
        self._backend = backend

    async def session(
        self, *drafts: RegisterEvent, server: int = 1, time: int | Timestamp | None = None
    ) -> list[Event]:
        """Register a session and wait until it is durable.

        Args:
            drafts: its events.
            server: server id.
            time: timestamp, or its seconds; None: as many as the session's id.
        """
        events = self.make(*drafts, server=server, time=time)
        await put(self._backend, events)
        return events

    def make(
        self, *drafts: RegisterEvent, server: int = 1, time: int | Timestamp | None = None
    ) -> list[Event]:
        """Like :meth:`session`, but do not register."""
        session = 1 + max((i.id.session for i in self.events if i.id.server == server), default=0)
        if time is None:
            time = session
        if isinstance(time, int):
            time = Timestamp(time, 0)
        events = [
            Event(EventId(server, session, instance), i.type, time, i.source_timestamp, i.payload)
            for instance, i in enumerate(drafts, 1)
        ]
        self.events += events
        return events


def answer(
    events: Iterable[Event], params: QueryParams, rights: Sequence[EventType] = (("*",),)
) -> list[Event]:
    """The whole answer to a query: no limit but ``max_results`` is applied."""
    events = list(events)
    seen = sorted((i for i in events if matches(rights, i.type)), key=natural_key)
    if isinstance(params, QueryLatestParams):
        return _latest(seen, params, list(dict.fromkeys(i.type for i in events)))
    if isinstance(params, QueryServerParams):
        last = params.last_event_id
        found = [i for i in seen if i.id.server == params.server_id and (not last or i.id > last)]
    else:
        found = _timeseries(seen, params)
    return found[: params.max_results]


def is_right(
    result: QueryResult, events: Iterable[Event], params: QueryParams, rights: Sequence[EventType]
) -> bool:
    """Whether this is the answer to a query, cut where ``limits`` say."""
    found = list(result.events)
    events = list(events)
    if isinstance(params, QueryLatestParams):  # in any order
        if not _can_go_on(events, params, rights):
            return not found and result.more_follows
        whole = answer(events, params, rights)
        expected = [i for i in whole if i in found]
        found.sort(key=natural_key)
        is_long_enough = payload_bytes(whole) > limits.MAX_RESULT_BYTES or found == whole
    else:
        whole = answer(events, msgspec.structs.replace(params, max_results=None), rights)
        expected = whole if params.max_results is None else whole[: params.max_results]
        expected = expected[: limits.MAX_RESULTS]
        while len(expected) > 1 and payload_bytes(expected) > limits.MAX_RESULT_BYTES:
            expected.pop()
        is_long_enough = True
    has_more = len(found) < len(whole)
    return found == expected and is_long_enough and result.more_follows == has_more


def payload_bytes(events: Iterable[Event]) -> int:
    """Size of all payloads."""
    return sum(len(i.payload.data) for i in events if i.payload is not None)


def matches(query_types: Iterable[EventType] | None, event_type: EventType) -> bool:
    """Whether any of the query types matches; None matches everything."""
    return query_types is None or any(_matches(i, event_type) for i in query_types)


def _matches(query_type: EventType, event_type: EventType) -> bool:
    if query_type and query_type[0] == "*":
        return True
    if not query_type or not event_type:
        return not query_type and not event_type
    return query_type[0] in {"?", event_type[0]} and _matches(query_type[1:], event_type[1:])


def _can_go_on(
    events: Iterable[Event], params: QueryLatestParams, rights: Sequence[EventType]
) -> bool:
    """Whether the event is found behind which a query is to go on, if it is."""
    return params.last_event_id is None or any(
        i.id == params.last_event_id
        and matches(rights, i.type)
        and matches(params.event_types, i.type)
        for i in events
    )


def _latest(
    events: Sequence[Event], params: QueryLatestParams, types: Sequence[EventType]
) -> list[Event]:
    """Answer, where ``types`` are all of them in the order in which they came."""
    latest = {i.type: i for i in events if matches(params.event_types, i.type)}
    if params.last_event_id is not None:
        [last] = [i.type for i in events if i.id == params.last_event_id]
        behind = types[types.index(last) + 1 :]
        latest = {event_type: i for event_type, i in latest.items() if event_type in behind}
    return sorted(latest.values(), key=natural_key)


def _timeseries(events: Iterable[Event], params: QueryTimeseriesParams) -> list[Event]:
    found = [
        event
        for event in events
        if matches(params.event_types, event.type)
        and _is_within(event.timestamp, params.t_from, params.t_to)
        and _is_within(event.source_timestamp, params.source_t_from, params.source_t_to)
        and (params.ids is None or event.id in params.ids)
        and (params.payload is None or is_same_payload(params.payload, event.payload))
    ]
    if params.order is Order.DESCENDING:
        found.reverse()
    if params.order_by is OrderBy.SOURCE_TIMESTAMP:
        without = [i for i in found if i.source_timestamp is None]
        found = [i for i in found if i.source_timestamp is not None]
        found.sort(
            key=lambda event: event.source_timestamp or Timestamp(0, 0),
            reverse=params.order is Order.DESCENDING,
        )
        found += without
    if params.unique_type:
        types = [i.type for i in found]
        found = [i for n, i in enumerate(found) if i.type not in types[:n]]
    if params.last_event_id:
        ids = [i.id for i in found]
        if params.last_event_id not in ids:
            return []
        found = found[ids.index(params.last_event_id) + 1 :]
    return found


def is_same_payload(first: Payload | None, second: Payload | None) -> bool:
    """Whether payloads are the same, as 000 and JSON Schema have it."""
    if isinstance(first, JsonPayload) and isinstance(second, JsonPayload):
        return bool(_told_apart(first.value()) == _told_apart(second.value()))
    return first == second


def _told_apart(value: Any) -> Any:
    """The value with its booleans told apart from numbers, which Python takes for equal."""
    if isinstance(value, dict):
        return {key: _told_apart(i) for key, i in value.items()}
    if isinstance(value, list):
        return [_told_apart(i) for i in value]
    return str(value) + "!" if isinstance(value, bool) else value


def _is_within(value: Timestamp | None, first: Timestamp | None, last: Timestamp | None) -> bool:
    if first is None and last is None:
        return True
    return (
        value is not None and (first is None or first <= value) and (last is None or value <= last)
    )


def event_bytes(event: Event) -> int:
    """Size of an event for the limit ``size``: of its key and value in ``event``."""
    n_bytes = 40 + 1 + (0 if event.source_timestamp is None else 12)
    if isinstance(event.payload, BinaryPayload):
        n_bytes += 4 + len(event.payload.data_type.encode("utf-8", "surrogatepass"))
    return n_bytes + (0 if event.payload is None else len(event.payload.data))
