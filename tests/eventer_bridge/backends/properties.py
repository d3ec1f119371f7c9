"""Random events and queries, and the comparison with the naive answers."""

from typing import NamedTuple

import msgspec
from hypothesis import strategies as st

from eventer_bridge.backends.base import Backend
from eventer_bridge.model import (
    INT64_MAX,
    INT64_MIN,
    BinaryPayload,
    Event,
    EventId,
    EventType,
    JsonPayload,
    Order,
    OrderBy,
    QueryLatestParams,
    QueryParams,
    QueryServerParams,
    QueryTimeseriesParams,
    RegisterEvent,
    Timestamp,
    natural_key,
)
from eventer_bridge.subscription import Subscription
from tests.eventer_bridge.backends.oracle import Writer, answer


class SessionCase(NamedTuple):
    """A session of a server; its time is raised to that of the server's last one."""

    server: int
    time: Timestamp
    drafts: list[RegisterEvent]


class QueryCase(NamedTuple):
    """A query, and with which rights.

    ``last`` picks the last event among the registered, ``ids`` the ids of a timeseries.
    """

    params: QueryParams
    rights: list[EventType] | None
    last: int | None
    ids: list[int] | None


class Case(NamedTuple):
    """Sessions, then queries."""

    sessions: list[SessionCase]
    queries: list[QueryCase]


# few different values, so that they meet
_timestamps = st.builds(
    Timestamp,
    st.sampled_from([INT64_MIN, -1, 0, 1, 2, INT64_MAX]),
    st.sampled_from([0, 1, 999_999]),
)
_optional_timestamps = st.none() | _timestamps
_types = st.lists(st.sampled_from("ab"), max_size=3).map(tuple)
_patterns = st.builds(
    lambda head, tail: (*head, *tail),
    st.lists(st.sampled_from("ab?"), max_size=3),
    st.sampled_from([(), ("*",)]),
)
_query_types = st.none() | st.lists(_patterns, max_size=3)
_payloads = st.one_of(
    st.none(),
    st.sampled_from(
        ["1", "1.0", "true", "null", '{"a":1,"b":[1]}', '{ "b": [1.0], "a": 1e0 }', '"1"']
    ).map(lambda text: JsonPayload(msgspec.Raw(text.encode()))),
    st.sampled_from([b"", b"1"]).map(lambda data: BinaryPayload("t", data)),
)
_drafts = st.builds(RegisterEvent, _types, _optional_timestamps, _payloads)
sessions = st.builds(
    SessionCase, st.sampled_from([-1, 1, 2]), _timestamps, st.lists(_drafts, min_size=1, max_size=5)
)
"""Strategy of :class:`SessionCase`."""

_max_results = st.none() | st.integers(0, 7)
_params = st.one_of(
    st.builds(QueryLatestParams, _query_types),
    st.builds(
        QueryTimeseriesParams,
        _query_types,
        *[_optional_timestamps] * 4,
        st.sampled_from(Order),
        st.sampled_from(OrderBy),
        _max_results,
        payload=st.none() | _payloads,
        unique_type=st.booleans(),
    ),
    st.builds(QueryServerParams, st.sampled_from([-1, 1, 2, 3]), st.booleans(), _max_results),
)
_picks = st.integers(0, 60)
_queries = st.builds(
    QueryCase, _params, _query_types, st.none() | _picks, st.none() | st.lists(_picks, max_size=30)
)

cases = st.builds(
    Case,
    st.lists(sessions, max_size=12),
    st.lists(_queries, min_size=1, max_size=20),
)
"""Strategy of :class:`Case`."""


async def check(backend: Backend, case: Case) -> None:
    """Register, ask, and compare with the naive answers."""
    writer = Writer(backend)
    latest: dict[int, Timestamp] = {}
    for server, time, drafts in case.sessions:
        latest[server] = max(time, latest.get(server, time))
        backend.register(writer.make(*drafts, server=server, time=latest[server]))
    await backend.flush()
    for query in case.queries:
        await _check_query(backend, writer.events, query)


async def _check_query(backend: Backend, events: list[Event], query: QueryCase) -> None:
    params, rights, last, picks = query
    subscription = None if rights is None else Subscription(rights)
    visible: list[EventType] = [("*",)] if rights is None else rights
    if isinstance(params, QueryLatestParams):
        result = await backend.query(params, subscription)
        assert sorted(result.events, key=natural_key) == answer(events, params, visible)
        assert not result.more_follows
        return
    if last is not None:
        params = msgspec.structs.replace(params, last_event_id=_pick(events, last))
    if picks is not None and isinstance(params, QueryTimeseriesParams):
        params = msgspec.structs.replace(params, ids=[_pick(events, i) for i in picks])
    whole = answer(events, msgspec.structs.replace(params, max_results=None), visible)
    result = await backend.query(params, subscription)
    expected = whole[: params.max_results]
    assert list(result.events) == expected
    assert result.more_follows == (len(expected) < len(whole))
    # paging gives the same as asking at once
    pages = list(result.events)
    while result.more_follows and pages:
        params = msgspec.structs.replace(params, last_event_id=pages[-1].id)
        result = await backend.query(params, subscription)
        pages += result.events
    if expected:
        assert pages == whole


def _pick(events: list[Event], index: int) -> EventId:
    """Id of an event; behind the last one ids that no event has."""
    return events[index].id if index < len(events) else EventId(1, index, 1)
