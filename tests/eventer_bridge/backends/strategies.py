"""Random sessions and queries: of few different values, so that they meet.

A new property of a query is added to its strategy here, and to ``oracle.answer``.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec
from hypothesis import strategies as st

from eventer_bridge.model import (
    INT64_MAX,
    INT64_MIN,
    BinaryPayload,
    Event,
    EventId,
    JsonPayload,
    Order,
    OrderBy,
    QueryLatestParams,
    QueryServerParams,
    QueryTimeseriesParams,
    RegisterEvent,
    Timestamp,
)

TIMES: Final = (
    Timestamp(INT64_MIN, 0),
    Timestamp(-2, 999_999),
    Timestamp(-1, 0),
    Timestamp(-1, 999_999),
    Timestamp(0, 0),
    Timestamp(0, 1),
    Timestamp(0, 2),
    *(Timestamp(s, 0) for s in range(1, 12)),
    Timestamp(INT64_MAX, 999_999),
)
"""Every timestamp there is, in order."""

SERVERS: Final = {1: 4, 2: 0, -1: 1}
"""Servers that register, and where in :data:`TIMES` their clocks begin: as those of other
servers, whose events arrive late."""

ASKED_SERVERS: Final = (*SERVERS, 3)
"""Servers that are asked for; the last has no events, but may reserve sessions."""


class Session(NamedTuple):
    """A session to be registered.

    Attributes:
        server: one of :data:`SERVERS`.
        n_skipped_ids: session ids that it leaves out.
        n_ticks: how far the clock of the server went on in :data:`TIMES`.
        drafts: its events, each with the number of instance ids that are left out before.
    """

    server: int
    n_skipped_ids: int
    n_ticks: int
    drafts: list[tuple[int, RegisterEvent]]


class EventMaker:
    """Gives ids and timestamps to the events of random sessions, as their servers do."""

    def __init__(self) -> None:
        self._clocks = dict(SERVERS)
        self._last_sessions = dict.fromkeys(SERVERS, 0)

    def make_all(self, together: Sequence[Session]) -> list[list[Event]]:
        """The events of sessions of one server and one moment: those of the first."""
        first, *others = together
        same = [i._replace(server=first.server, n_ticks=0) for i in others]
        return [self.make(session) for session in (first, *same)]

    def make(self, session: Session) -> list[Event]:
        """The events of a session."""
        server = session.server
        self._last_sessions[server] += 1 + session.n_skipped_ids
        clock = min(self._clocks[server] + session.n_ticks, len(TIMES) - 1)
        self._clocks[server] = clock
        events: list[Event] = []
        instance = 0
        for n_skipped, draft in session.drafts:
            instance += 1 + n_skipped
            event_id = EventId(server, self._last_sessions[server], instance)
            source = draft.source_timestamp
            events.append(Event(event_id, draft.type, TIMES[clock], source, draft.payload))
        return events


_JSON: Final = ("1", "1.0", "true", "null", '{"a":1,"b":[1]}', '{ "b": [1.0], "a": 1e0 }', '"1"')

_LARGE: Final = f'"{"x" * 5_000}"'
"""Larger than ``limits.LATEST_CACHE_ROW_BYTES``."""

_seldom = st.sampled_from((0, 0, 0, 0, 1, 3))
_times = st.none() | st.sampled_from(TIMES)
_types = st.lists(st.sampled_from("ab"), max_size=3).map(tuple)
_patterns = st.builds(
    lambda head, tail: (*head, *tail),
    st.lists(st.sampled_from("ab?"), max_size=3),
    st.sampled_from([(), ("*",)]),
)
_payloads = st.one_of(
    st.none(),
    st.sampled_from((*_JSON, _LARGE)).map(lambda i: JsonPayload(msgspec.Raw(i.encode()))),
    st.sampled_from((b"", b"1")).map(lambda i: BinaryPayload("t", i)),
)
_drafts = st.builds(RegisterEvent, _types, _times, _payloads)
_servers = st.sampled_from(tuple(SERVERS))

sessions = st.builds(
    Session,
    _servers,
    _seldom,
    st.sampled_from((0, 0, 0, 1, 1, 2)),
    st.lists(st.tuples(_seldom, _drafts), min_size=1, max_size=5),
)

query_types = st.none() | st.lists(_patterns, max_size=3)
"""Query types of a query, or rights; None is everything."""

blocks = st.lists(sessions, min_size=1, max_size=4)
"""Sessions to be registered together (:meth:`EventMaker.make_all`)."""

_event_ids = st.builds(EventId, _servers, st.integers(1, 20), st.integers(1, 6))
_max_results = st.none() | st.integers(0, 7)

latest_params = st.builds(QueryLatestParams, query_types, st.none() | _event_ids)

timeseries_params = st.builds(
    QueryTimeseriesParams,
    event_types=query_types,
    t_from=_times,
    t_to=_times,
    source_t_from=_times,
    source_t_to=_times,
    order=st.sampled_from(Order),
    order_by=st.sampled_from(OrderBy),
    max_results=_max_results,
    last_event_id=st.none() | _event_ids,
    ids=st.none() | st.lists(_event_ids, max_size=40),
    payload=st.none() | _payloads,
    unique_type=st.booleans(),
)

server_params = st.builds(
    QueryServerParams,
    server_id=st.sampled_from(ASKED_SERVERS),
    persisted=st.booleans(),
    max_results=_max_results,
    last_event_id=st.none() | _event_ids,
)

paged_params = timeseries_params | server_params
"""Queries whose answers may come in pages."""

params = latest_params | paged_params
"""Every query."""
