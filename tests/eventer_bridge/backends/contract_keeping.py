"""What ``backends/base.py`` promises of backends that keep events, besides ``contract``."""

import asyncio

import msgspec
import pytest

from eventer_bridge import limits
from eventer_bridge.backends.base import Backend, HighWaterMark
from eventer_bridge.backends.type_budget import TypeQuota
from eventer_bridge.errors import LimitError
from eventer_bridge.model import (
    INT64_MAX,
    INT64_MIN,
    BinaryPayload,
    EventId,
    EventType,
    JsonPayload,
    Payload,
    QueryLatestParams,
    QueryServerParams,
    QueryTimeseriesParams,
    Timestamp,
)
from eventer_bridge.subscription import Subscription
from tests.eventer_bridge.backends.contract import BackendContract
from tests.eventer_bridge.backends.contract_conditions import ConditionsContract
from tests.eventer_bridge.backends.contract_timeseries import (
    ASCENDING,
    BY_SOURCE,
    FIRST,
    LAST,
    TimeseriesContract,
    ids,
)
from tests.eventer_bridge.backends.oracle import Writer, draft, numbered, seen
from tests.eventer_bridge.backends.putting import put


class KeepingContract(BackendContract, ConditionsContract, TimeseriesContract):
    """Subclasses give the fixture ``backend``, which is empty."""

    # types

    async def test_types_above_the_limit_are_refused(
        self, backend: Backend, writer: Writer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(limits, "MAX_EVENT_TYPES", 3)
        await writer.session(draft("a"), draft("b"))
        backend.check_types([("a",), ("c",), ("c",)])
        with pytest.raises(LimitError, match="2 new event types, but 1 more"):
            backend.check_types([("c",), ("d",)])
        await writer.session(draft("c"))
        backend.check_types([("a",), ("b",), ("c",)])
        with pytest.raises(LimitError):
            backend.check_types([("d",)])

    async def test_new_types_count_for_the_client_that_asked_for_them(
        self, backend: Backend, writer: Writer
    ) -> None:
        await writer.session(*numbered("known"))
        quota, other = TypeQuota("client a", 3), TypeQuota("client b", 3)
        backend.check_types([("known",), ("a",), ("b",), ("c",)], quota)
        with pytest.raises(LimitError, match="4 new event types, but 3 more are"):
            backend.check_types([("a",), ("b",), ("c",), ("d",)], quota)
        # the first three were asked for, a module added the others
        asked = writer.make(*numbered("known", "a", "b", "from a module", "another"))
        await put(backend, asked, quota, 3)
        with pytest.raises(LimitError, match="3 new event types, but 1 more are"):
            backend.check_types([("c",), ("d",), ("e",)], quota)
        backend.check_types([("a",), ("from a module",), ("c",)], quota)
        backend.check_types([("c",), ("d",), ("e",)], other)
        await put(backend, writer.make(*numbered("c")), other, 1)
        backend.check_types([("c",), ("d",)], quota)  # c is known now, whoever brought it
        backend.check_types([(str(i),) for i in range(1_000)])

    async def test_a_long_type_counts_as_several(self, backend: Backend) -> None:
        long = tuple(f"{i:015}" for i in range(64))
        backend.check_types([long], TypeQuota("client a", 9))
        with pytest.raises(LimitError, match="a long one counts as several"):
            backend.check_types([long], TypeQuota("client a", 8))

    async def test_clients_leave_types_to_the_server(
        self, backend: Backend, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(limits, "MAX_EVENT_TYPES", 5)
        monkeypatch.setattr(limits, "RESERVED_EVENT_TYPES", 3)
        quota = TypeQuota("client a", 100)
        backend.check_types([("a",), ("b",)], quota)
        with pytest.raises(LimitError, match="3 new event types, but 2 more are"):
            backend.check_types([("a",), ("b",), ("c",)], quota)
        backend.check_types([("a",), ("b",), ("c",), ("d",), ("e",)])

    async def test_stats(self, backend: Backend, writer: Writer) -> None:
        await writer.session(*numbered("a", "b", "a"))
        stats = backend.stats()
        assert (stats.events, stats.event_types) == (3, 2)
        assert stats.size_bytes >= 0

    # registering

    async def test_what_was_handed_over_is_seen_without_waiting(
        self, backend: Backend, writer: Writer
    ) -> None:
        for query in (
            QueryTimeseriesParams(order=ASCENDING),
            QueryServerParams(1),
            QueryLatestParams(),
        ):
            put(backend, writer.make(draft("a"), draft("b")))
            result = await backend.query(query)
            expected = writer.events[-2:] if isinstance(query, QueryLatestParams) else writer.events
            assert sorted(result.events, key=lambda i: i.id) == expected

    async def test_a_persisted_query_sees_what_is_durable(
        self, backend: Backend, writer: Writer
    ) -> None:
        future = put(backend, writer.make(draft()))
        early = await backend.query(QueryServerParams(1, persisted=True))
        assert list(early.events) in ([], writer.events)
        await future
        late = await backend.query(QueryServerParams(1, persisted=True))
        assert late.events == writer.events

    async def test_a_session_with_a_new_type_is_seen_whole_or_not_at_all(
        self, backend: Backend, writer: Writer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(limits, "LATEST_CACHE_TYPES", 1)
        await writer.session(draft("a"), draft("b"))
        for n in range(100):
            asked = asyncio.ensure_future(backend.query(QueryLatestParams([("*",)])))
            await asyncio.sleep(0)  # it has begun
            session = writer.make(draft("a"), draft(f"new/{n}"))
            await put(backend, session)
            found = [i for i in (await asked).events if i in session]
            assert len(found) in {0, 2}

    async def test_a_session_of_many_events(self, backend: Backend, writer: Writer) -> None:
        n_events = limits.MAX_GROUP_EVENTS + 10
        await writer.session(*(draft(f"t{i % 3}") for i in range(n_events)))
        await writer.session(draft("t0"))
        first = await backend.query(QueryServerParams(1))
        assert first.more_follows
        assert ids(first.events) == [(1, i + 1) for i in range(limits.MAX_RESULTS)]
        rest = await backend.query(QueryServerParams(1, last_event_id=first.events[-1].id))
        assert not rest.more_follows
        assert [*first.events, *rest.events] == writer.events

    @pytest.mark.parametrize(
        "payload",
        [
            None,
            JsonPayload.of(None),
            JsonPayload.of({"a": [1, 2.5, "ž\0€😀"]}),
            JsonPayload(msgspec.Raw(b' {"kept":  "as it came", "n": 1.000} ')),
            JsonPayload.of("x" * 100_000),
            BinaryPayload("", b""),
            BinaryPayload("type ž😀", bytes(range(256))),
            BinaryPayload("big", b"\0" * 100_000),
        ],
        ids=lambda i: f"{type(i).__name__}-{len(i.data) if i else 0}",
    )
    async def test_a_payload_comes_back_as_it_was(
        self, backend: Backend, writer: Writer, payload: Payload | None
    ) -> None:
        await writer.session(draft("a", 5, payload), draft("b", None, payload))
        for query in QueryTimeseriesParams(order=ASCENDING), QueryServerParams(1):
            events = (await backend.query(query)).events
            assert events == writer.events
            if isinstance(payload, JsonPayload):
                assert [bytes(i.payload.data) for i in events if i.payload] == [
                    bytes(payload.data),
                    bytes(payload.data),
                ]
        assert (await backend.query(QueryLatestParams([("a",)]))).events == writer.events[:1]

    async def test_extreme_values(self, backend: Backend, writer: Writer) -> None:
        await writer.session(draft("a", LAST), server=INT64_MIN, time=FIRST)
        await writer.session(draft("a", FIRST), server=-1, time=Timestamp(-1, 999_999))
        await writer.session(draft("a", Timestamp(-1, 5)), server=0, time=Timestamp(0, 0))
        await writer.session(draft("a"), server=INT64_MAX, time=LAST)
        every = await backend.query(QueryTimeseriesParams(order=ASCENDING, t_from=FIRST, t_to=LAST))
        assert every.events == writer.events
        by_source = QueryTimeseriesParams(order=ASCENDING, order_by=BY_SOURCE)
        order = [i.id.server for i in (await backend.query(by_source)).events]
        assert order == [-1, 0, INT64_MIN, INT64_MAX]
        assert backend.high_water_mark(INT64_MIN) == HighWaterMark(1, FIRST)
        assert (await backend.query(QueryServerParams(INT64_MAX))).events == writer.events[-1:]
        assert not (await backend.query(QueryServerParams(1 << 80))).events

    async def test_types_of_any_text(self, backend: Backend, writer: Writer) -> None:
        types: list[EventType] = [(), ("",), ("", ""), ("ž", "😀"), ("a\0b",), ("a/b",), ("a", "b")]
        await writer.session(*(msgspec.structs.replace(draft(), type=i) for i in types))
        for event in writer.events:
            result = await backend.query(QueryTimeseriesParams([event.type]))
            assert result.events == [event]
        result = await backend.query(QueryLatestParams())
        assert {i.type for i in result.events} == set(types)

    # latest

    async def test_latest_of_each_type(self, backend: Backend, writer: Writer) -> None:
        await writer.session(draft("a/x"), draft("a/y"), draft("b"), draft("a/x"))
        await writer.session(draft("a/y"), draft("c"))
        result = await backend.query(QueryLatestParams([("a", "?"), ("b",), ("none",)]))
        assert not result.more_follows
        assert sorted(ids(result.events)) == [(1, 3), (1, 4), (2, 1)]
        assert len((await backend.query(QueryLatestParams())).events) == 4
        assert not (await backend.query(QueryLatestParams([]))).events
        assert not (await backend.query(QueryLatestParams([("none",)]))).events

    async def test_latest_is_by_time_between_servers(
        self, backend: Backend, writer: Writer
    ) -> None:
        await writer.session(draft("a"), server=2, time=10)
        await writer.session(draft("a"), draft("b"), server=1, time=9)
        await writer.session(draft("b"), server=3, time=9)
        result = await backend.query(QueryLatestParams())
        assert {(i.type, i.id.server) for i in result.events} == {(("a",), 2), (("b",), 3)}

    async def test_latest_is_cut_at_the_limit(
        self, backend: Backend, writer: Writer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await writer.session(*numbered("a", "b", "c", "d"))
        for n_most, n_events in (3, 3), (4, 4), (5, 4):
            monkeypatch.setattr(limits, "MAX_LATEST_RESULTS", n_most)
            result = await backend.query(QueryLatestParams())
            assert (len(result.events), result.more_follows) == (n_events, n_most < 4)

    async def test_latest_goes_on_behind_an_event(
        self, backend: Backend, writer: Writer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await writer.session(*numbered("b/1", "a/1", "c", "a/2", "b/2", "a/3", "a"))
        rights = Subscription([("a", "*"), ("c",)])
        for asked, may, types in (
            (None, None, ["b/1", "a/1", "c", "a/2", "b/2", "a/3", "a"]),
            (None, rights, ["a/1", "c", "a/2", "a/3", "a"]),
            ([("a", "?"), ("b", "?")], None, ["b/1", "a/1", "a/2", "b/2", "a/3"]),
            ([("?", "*")], rights, ["a/1", "c", "a/2", "a/3", "a"]),
        ):
            for n_most in 1, 2, 3:
                monkeypatch.setattr(limits, "MAX_LATEST_RESULTS", n_most)
                params, has_more = QueryLatestParams(asked), True
                found: list[str] = []
                while has_more:
                    result = await backend.answer(seen(params, may))
                    assert 0 < len(result.events) <= n_most
                    found += ["/".join(i.type) for i in result.events]
                    has_more = result.more_follows
                    last = result.events[-1]
                    params = QueryLatestParams(asked, last.id)
                    # newer events of a type do not change its place
                    await writer.session(draft("/".join(last.type)), draft("b/1"))
                assert found == types

    async def test_latest_cannot_go_on_behind_what_is_not_found(
        self, backend: Backend, writer: Writer
    ) -> None:
        [a, b] = await writer.session(*numbered("a", "b"))
        for types, may, last in (
            (None, None, EventId(1, 1, 3)),
            (None, None, EventId(2, 1, 1)),
            ([("a",)], None, b.id),
            (None, Subscription([("b",)]), a.id),
            ([("?",)], Subscription([("b",)]), a.id),
        ):
            result = await backend.answer(seen(QueryLatestParams(types, last), may))
            assert (list(result.events), result.more_follows) == ([], True)
        result = await backend.query(QueryLatestParams(None, b.id))
        assert (list(result.events), result.more_follows) == ([], False)

    # server

    async def test_events_of_a_server(self, backend: Backend, writer: Writer) -> None:
        mine = await writer.session(*numbered("a", "b"), time=1)
        await writer.session(*numbered("a"), server=2, time=1)
        mine += await writer.session(*numbered("c", "a", "b"), time=1)
        mine += await writer.session(*numbered("a"), time=2)
        for persisted in False, True:
            result = await backend.query(QueryServerParams(1, persisted))
            assert result.events == mine
            assert not result.more_follows
            for n in range(7):
                result = await backend.query(QueryServerParams(1, persisted, max_results=n))
                assert result.events == mine[:n]
                assert result.more_follows == (n < 6)
        assert not (await backend.query(QueryServerParams(3))).events

    async def test_a_server_answer_begins_with_greater_ids(
        self, backend: Backend, writer: Writer
    ) -> None:
        await writer.session(*numbered("a", "b", "c"))
        await writer.session(*numbered("a", "b"))
        for last, n_less in {
            EventId(1, 1, 0): 0,
            EventId(1, 1, 2): 2,
            EventId(1, 1, 3): 3,
            EventId(1, 1, 99): 3,
            EventId(1, 2, 1): 4,
            EventId(1, 2, 2): 5,
            EventId(1, 3, 1): 5,
            EventId(1, INT64_MAX, INT64_MAX): 5,
            EventId(0, 5, 5): 0,
            EventId(2, 0, 0): 5,
        }.items():
            for rights in None, Subscription([("a",), ("b",), ("c",)]):
                query = seen(QueryServerParams(1, last_event_id=last), rights)
                result = await backend.answer(query)
                assert result.events == writer.events[n_less:]

    async def test_events_of_a_server_are_counted(self, backend: Backend, writer: Writer) -> None:
        await writer.session(*numbered("a", "b", "a"), time=1)
        await writer.session(*numbered("a"), server=2, time=2)
        await writer.session(*numbered("b"), time=3)
        two = QueryServerParams(1, True, max_results=2)
        behind = QueryServerParams(1, True, 9, EventId(1, 1, 3))
        for params, rights, expected in (
            (two, None, (2, Timestamp(1, 0))),
            (behind, None, (1, Timestamp(3, 0))),
            (behind, Subscription([("a",)]), (0, None)),
            (QueryServerParams(1, True), Subscription([("a",)]), (2, Timestamp(1, 0))),
            (QueryServerParams(3, True), None, (0, None)),
        ):
            assert await backend.count_server(seen(params, rights), "app") == expected

    # rights

    async def test_only_what_the_rights_match_is_seen(
        self, backend: Backend, writer: Writer
    ) -> None:
        await writer.session(*numbered("a/x", "b/x", "a/y", "c"))
        await writer.session(*numbered("b/x", "a/x"))
        rights = Subscription([("a", "*"), ("c",)])
        visible = [i for i in writer.events if i.type[0] in "ac"]
        series = QueryTimeseriesParams(order=ASCENDING)
        assert (await backend.answer(seen(series, rights))).events == visible
        assert (await backend.answer(seen(QueryServerParams(1), rights))).events == visible
        two = await backend.answer(seen(QueryServerParams(1, max_results=2), rights))
        assert (two.events, two.more_follows) == (visible[:2], True)
        four = await backend.answer(seen(QueryServerParams(1, max_results=4), rights))
        assert (four.events, four.more_follows) == (visible, False)
        latest = await backend.answer(seen(QueryLatestParams([("?", "x")]), rights))
        assert ids(latest.events) == [(2, 2)]
        nothing = Subscription([])
        for query in series, QueryServerParams(1), QueryLatestParams():
            result = await backend.answer(seen(query, nothing))
            assert (list(result.events), result.more_follows) == ([], False)
