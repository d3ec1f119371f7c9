"""What ``backends/base.py`` promises of timeseries queries; a part of ``contract_keeping``."""

from collections.abc import Callable, Iterable
from typing import Any

import msgspec
import pytest

from eventer_bridge import limits
from eventer_bridge.backends.base import Backend
from eventer_bridge.model import (
    INT64_MAX,
    INT64_MIN,
    BinaryPayload,
    Event,
    EventId,
    JsonPayload,
    Order,
    OrderBy,
    QueryParams,
    QueryServerParams,
    QueryTimeseriesParams,
    Timestamp,
)
from eventer_bridge.subscription import Subscription
from tests.eventer_bridge.backends.oracle import Writer, answer, draft, numbered, seen

ASCENDING, DESCENDING = Order.ASCENDING, Order.DESCENDING
BY_SOURCE = OrderBy.SOURCE_TIMESTAMP
FIRST, LAST = Timestamp(INT64_MIN, 0), Timestamp(INT64_MAX, 999_999)


def ids(events: Iterable[Event]) -> list[tuple[int, int]]:
    """Session and instance of events."""
    return [(i.id.session, i.id.instance) for i in events]


class TimeseriesContract:
    """Subclasses give the fixtures ``backend`` and ``writer``."""

    async def test_timeseries_by_timestamp(self, backend: Backend, writer: Writer) -> None:
        await writer.session(draft("a"), draft("b"), time=1)
        await writer.session(draft("a"), server=0, time=1)
        await writer.session(draft("b"), time=1)
        await writer.session(draft("a"), server=2, time=0)
        expected = sorted(writer.events, key=lambda i: (i.timestamp, i.id))
        up = await backend.query(QueryTimeseriesParams(order=ASCENDING))
        down = await backend.query(QueryTimeseriesParams())
        assert up.events == expected
        assert down.events == expected[::-1]
        assert not up.more_follows
        one_type = await backend.query(QueryTimeseriesParams([("a",)], order=ASCENDING))
        assert one_type.events == [i for i in expected if i.type == ("a",)]

    async def test_timeseries_by_source_timestamp(self, backend: Backend, writer: Writer) -> None:
        await writer.session(draft("a", 5), draft("b"), draft("b", 4), draft("a", 5))
        await writer.session(draft("a"), draft("b", 5), draft("a", -1))
        up = await backend.query(QueryTimeseriesParams(order=ASCENDING, order_by=BY_SOURCE))
        down = await backend.query(QueryTimeseriesParams(order=DESCENDING, order_by=BY_SOURCE))
        # equals in natural order (reversed), those without source timestamp last in both
        assert ids(up.events) == [(2, 3), (1, 3), (1, 1), (1, 4), (2, 2), (1, 2), (2, 1)]
        assert ids(down.events) == [(2, 2), (1, 4), (1, 1), (1, 3), (2, 3), (2, 1), (1, 2)]

    @pytest.mark.parametrize("order_by", list(OrderBy))
    async def test_bounds_are_inclusive(
        self, backend: Backend, writer: Writer, order_by: OrderBy
    ) -> None:
        for i in range(6):
            await writer.session(draft("a", 100 - i), draft("b"), time=i)

        async def found(**bounds: Any) -> list[tuple[int, int]]:
            params = QueryTimeseriesParams(order=ASCENDING, order_by=order_by, **bounds)
            return sorted(ids((await backend.query(params)).events))

        a = [(i, 1) for i in range(1, 7)]
        assert await found(t_from=Timestamp(4, 0)) == [(5, 1), (5, 2), (6, 1), (6, 2)]
        assert await found(t_from=Timestamp(5, 1)) == []
        assert await found(t_to=Timestamp(1, 0)) == [(1, 1), (1, 2), (2, 1), (2, 2)]
        assert await found(t_from=Timestamp(2, 0), t_to=Timestamp(2, 0)) == [(3, 1), (3, 2)]
        assert await found(t_from=Timestamp(3, 0), t_to=Timestamp(2, 0)) == []
        # events without source timestamp never match a bound of it
        assert await found(source_t_from=FIRST) == a
        assert await found(source_t_to=LAST) == a
        assert await found(source_t_from=Timestamp(98, 0), source_t_to=Timestamp(99, 0)) == a[1:3]
        assert await found(source_t_to=Timestamp(98, 0), t_to=Timestamp(3, 0)) == a[2:4]

    async def test_types_of_a_timeseries(self, backend: Backend, writer: Writer) -> None:
        await writer.session(*numbered("a", "a/b", "a/b/c", "b", "a/c"))

        async def found(*query_types: str) -> list[int]:
            types = [tuple(i.split("/")) for i in query_types]
            result = await backend.query(QueryTimeseriesParams(types, order=ASCENDING))
            return [i.id.instance for i in result.events]

        assert await found("*") == [1, 2, 3, 4, 5]
        assert await found("a/*") == [1, 2, 3, 5]
        assert await found("a/?") == [2, 5]
        assert await found("?", "a/b/*") == [1, 2, 3, 4]
        assert await found("?/?/?/?") == []
        assert await found() == []

    @pytest.mark.parametrize("order_by", list(OrderBy))
    @pytest.mark.parametrize("order", list(Order))
    async def test_max_results_and_more_follows(
        self, backend: Backend, writer: Writer, order: Order, order_by: OrderBy
    ) -> None:
        await writer.session(draft("a", 1), draft("a", 2))
        await writer.session(draft("b"), draft("a"))
        whole = QueryTimeseriesParams(order=order, order_by=order_by)
        events = (await backend.query(whole)).events
        assert len(events) == 4
        for n in range(6):
            result = await backend.query(msgspec.structs.replace(whole, max_results=n))
            assert result.events == events[:n]
            assert result.more_follows == (n < 4)
        nothing = QueryTimeseriesParams([("none",)], max_results=0)
        assert not (await backend.query(nothing)).more_follows

    async def test_an_answer_is_cut_at_the_limit_of_events(
        self, backend: Backend, writer: Writer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(limits, "MAX_RESULTS", 3)
        await writer.session(*numbered("a", "b", "a", "b"))
        for n in None, 4, 1000:
            series = await backend.query(QueryTimeseriesParams(order=ASCENDING, max_results=n))
            server = await backend.query(QueryServerParams(1, max_results=n))
            assert series.events == server.events == writer.events[:3]
            assert series.more_follows
            assert server.more_follows

    async def test_an_answer_is_cut_at_the_limit_of_bytes(
        self, backend: Backend, writer: Writer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(limits, "MAX_RESULT_BYTES", 100)
        sizes = 40, 60, 1, 500, 0, 100
        await writer.session(*(draft("a", payload=BinaryPayload("t", b"x" * i)) for i in sizes))
        queries: list[Callable[[EventId | None], QueryParams]] = [
            lambda last: QueryTimeseriesParams(order=ASCENDING, last_event_id=last),
            lambda last: QueryServerParams(1, last_event_id=last),
        ]
        for query in queries:
            pages = []
            last = None
            while True:
                result = await backend.query(query(last))
                pages.append([len(i.payload.data) for i in result.events if i.payload])
                if not result.more_follows:
                    break
                last = result.events[-1].id
            assert pages == [[40, 60], [1], [500], [0, 100]]

    @pytest.mark.parametrize("order_by", list(OrderBy))
    @pytest.mark.parametrize("order", list(Order))
    async def test_a_timeseries_goes_on_after_the_last_event(
        self, backend: Backend, writer: Writer, order: Order, order_by: OrderBy
    ) -> None:
        await writer.session(draft("a", 1), draft("b", 1), draft("a"))
        await writer.session(draft("a"), draft("a", 0), time=1)
        await writer.session(draft("b", 7), draft("a", 1), server=2, time=1)
        whole = QueryTimeseriesParams(order=order, order_by=order_by)
        events = (await backend.query(whole)).events
        assert len(events) == 7
        for n, event in enumerate(events, 1):
            rest = msgspec.structs.replace(whole, last_event_id=event.id)
            result = await backend.query(rest)
            assert result.events == events[n:]
            assert not result.more_follows

    @pytest.mark.parametrize("order_by", list(OrderBy))
    @pytest.mark.parametrize("order", list(Order))
    async def test_pages_of_one_type(
        self, backend: Backend, writer: Writer, order: Order, order_by: OrderBy
    ) -> None:
        one, two = JsonPayload.of(1), JsonPayload.of(2)
        for n in range(50):
            source = None if n % 10 == 7 else n % 13
            await writer.session(
                draft("a", source, one), draft("b"), draft("a", 20, two), server=n % 2
            )
        kinds: list[dict[str, Any]] = [
            {},
            {"t_from": Timestamp(5, 0), "t_to": Timestamp(20, 0)},
            {"source_t_from": Timestamp(3, 0), "source_t_to": Timestamp(20, 0)},
            {"payload": one},
            {"payload": two, "t_from": Timestamp(20, 0)},
            {"payload": one, "source_t_from": Timestamp(11, 0)},
            {"payload": JsonPayload.of(3)},
            {"payload": one, "unique_type": True},
        ]
        for kind in kinds:
            whole = QueryTimeseriesParams([("a",)], order=order, order_by=order_by, **kind)
            expected = answer(writer.events, whole)
            for size in 1, 7, 40:
                params = msgspec.structs.replace(whole, max_results=size)
                for begin in range(0, len(expected) + 1, size):
                    result = await backend.query(params)
                    assert result.events == expected[begin : begin + size], params
                    assert result.more_follows == (begin + size < len(expected)), params
                    if not result.more_follows:
                        break
                    last = result.events[-1].id
                    params = msgspec.structs.replace(params, last_event_id=last)

    async def test_a_last_event_that_the_query_does_not_contain(
        self, backend: Backend, writer: Writer
    ) -> None:
        await writer.session(draft("a", 1), draft("b", 2), draft("a"))
        await writer.session(draft("a", 3), draft("b", 4))

        async def found(last: EventId, **query: Any) -> list[tuple[int, int]]:
            params = QueryTimeseriesParams(last_event_id=last, order=ASCENDING, **query)
            result = await backend.answer(seen(params, rights))
            assert not result.more_follows
            return ids(result.events)

        rights: Subscription | None = None
        last = EventId(1, 1, 2)
        one, two, three = Timestamp(1, 0), Timestamp(2, 0), Timestamp(3, 0)
        for order_by in OrderBy:
            assert await found(EventId(1, 1, 1), order_by=order_by)
            assert await found(EventId(1, 1, 4), order_by=order_by) == []
            assert await found(EventId(1, 9, 1), order_by=order_by) == []
            assert await found(EventId(9, 1, 1), order_by=order_by) == []
            assert await found(last, event_types=[("a",)], order_by=order_by) == []
            assert await found(last, t_from=two, order_by=order_by) == []
            assert await found(last, source_t_from=three, order_by=order_by) == []
            assert await found(last, source_t_to=one, order_by=order_by) == []
            assert await found(EventId(1, 1, 3), source_t_from=one, order_by=order_by) == []
            assert await found(last, source_t_from=two, order_by=order_by) == [(2, 1), (2, 2)]
        rights = Subscription([("a",)])
        assert await found(last) == []
        assert await found(EventId(1, 1, 1)) == [(1, 3), (2, 1)]
