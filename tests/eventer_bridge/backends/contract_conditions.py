"""What ``backends/base.py`` promises of 000's conditions; a part of ``contract_keeping``."""

from collections.abc import Iterable
from typing import Any

import msgspec
import pytest

from eventer_bridge import limits
from eventer_bridge.backends.base import Backend
from eventer_bridge.model import (
    BinaryPayload,
    Event,
    EventId,
    JsonPayload,
    Order,
    OrderBy,
    Payload,
    QueryTimeseriesParams,
    Timestamp,
)
from eventer_bridge.subscription import Subscription
from tests.eventer_bridge.backends.oracle import Writer, answer, draft, numbered, seen

ASCENDING, DESCENDING = Order.ASCENDING, Order.DESCENDING
BY_SOURCE = OrderBy.SOURCE_TIMESTAMP

each_order = pytest.mark.parametrize("order", list(Order))
each_order_by = pytest.mark.parametrize("order_by", list(OrderBy))


def places(events: Iterable[Event]) -> list[tuple[int, int]]:
    """Session and instance of events."""
    return [(i.id.session, i.id.instance) for i in events]


def json_of(text: str) -> JsonPayload:
    return JsonPayload(msgspec.Raw(text.encode()))


class ConditionsContract:
    """Subclasses give the fixtures ``backend`` and ``writer``."""

    # ids

    @each_order
    @each_order_by
    async def test_ids(
        self, backend: Backend, writer: Writer, order: Order, order_by: OrderBy
    ) -> None:
        for n in range(4):
            await writer.session(draft("a", -n), draft("b"), draft("c", 1), server=n % 2)
        events = writer.events

        async def found(*event_ids: EventId, **query: Any) -> list[Event]:
            params = QueryTimeseriesParams(order=order, order_by=order_by, ids=event_ids, **query)
            result = await backend.query(params)
            assert not result.more_follows
            assert result.events == answer(events, params)
            return list(result.events)

        all_ids = [i.id for i in events]
        none = [EventId(0, 1, 9), EventId(0, 9, 1), EventId(9, 1, 1), EventId(0, 1, 0)]
        assert len(await found(*all_ids)) == 12
        assert await found(all_ids[5]) == [events[5]]
        assert len(await found(*all_ids[::2], *none, *all_ids[:3])) == 7
        assert await found() == []
        assert await found(*none) == []
        # all conditions together
        assert {i.type for i in await found(*all_ids, event_types=[("a",), ("b",)])} == {
            ("a",),
            ("b",),
        }
        assert len(await found(*all_ids, t_from=Timestamp(2, 0))) == 6
        assert len(await found(*all_ids, source_t_to=Timestamp(0, 0))) == 4
        assert await found(all_ids[0], source_t_from=Timestamp(1, 0)) == []
        assert len(await found(*all_ids, unique_type=True)) == 3

    async def test_ids_have_pages(self, backend: Backend, writer: Writer) -> None:
        await writer.session(*numbered(*"abcde"))
        params = QueryTimeseriesParams(
            order=ASCENDING, max_results=2, ids=[i.id for i in writer.events[1:]]
        )
        first = await backend.query(params)
        assert places(first.events) == [(1, 2), (1, 3)]
        assert first.more_follows
        after = msgspec.structs.replace(params, last_event_id=first.events[-1].id)
        rest = await backend.query(after)
        assert places(rest.events) == [(1, 4), (1, 5)]
        assert not rest.more_follows
        # the query does not contain the last event: it is none of those asked for
        wrong = msgspec.structs.replace(params, last_event_id=writer.events[0].id)
        assert (await backend.query(wrong)).events == []

    async def test_as_many_ids_as_are_allowed(self, backend: Backend, writer: Writer) -> None:
        for _ in range(3):
            await writer.session(*numbered(*["a"] * 2_000))
        ids = [i.id for i in writer.events]
        params = QueryTimeseriesParams(order=ASCENDING, ids=ids[: limits.MAX_QUERY_IDS])
        assert (await backend.query(params)).events == writer.events[: limits.MAX_QUERY_IDS]

    # payload

    @each_order_by
    async def test_payload(self, backend: Backend, writer: Writer, order_by: OrderBy) -> None:
        payloads: list[Payload | None] = [
            json_of('{"a": 1, "b": [true]}'),
            json_of('{"b":[true],"a":1.0}'),
            json_of('{"a":1,"b":[1]}'),
            json_of("null"),
            None,
            BinaryPayload("t", b"null"),
            BinaryPayload("t", b"x"),
            BinaryPayload("u", b"x"),
            json_of("[" * 5_000 + "]" * 5_000),
        ]
        await writer.session(*(draft("a", payload=i) for i in payloads))
        await writer.session(*(draft("b", 1, payload=i) for i in payloads))

        async def found(payload: Payload, **query: Any) -> list[tuple[int, int]]:
            params = QueryTimeseriesParams(
                order=ASCENDING, order_by=order_by, payload=payload, **query
            )
            result = await backend.query(params)
            assert not result.more_follows
            return sorted(places(result.events))

        assert await found(json_of('{"a":1,"b":[true]}')) == [(1, 1), (1, 2), (2, 1), (2, 2)]
        assert await found(json_of("null")) == [(1, 4), (2, 4)]
        assert await found(BinaryPayload("t", b"x")) == [(1, 7), (2, 7)]
        assert await found(BinaryPayload("", b"")) == []
        assert await found(json_of("[" * 5_000 + "]" * 5_000)) == [(1, 9), (2, 9)]
        assert await found(json_of("[" * 5_000 + "1" + "]" * 5_000)) == []
        # all conditions together
        assert await found(json_of("null"), event_types=[("b",)]) == [(2, 4)]
        assert await found(json_of("null"), t_to=Timestamp(1, 0)) == [(1, 4)]
        assert await found(json_of("null"), source_t_to=Timestamp(1, 0)) == [(2, 4)]
        assert await found(json_of("null"), source_t_to=Timestamp(0, 0)) == []
        assert await found(json_of("null"), ids=[i.id for i in writer.events[2:6]]) == [(1, 4)]

    async def test_payload_has_pages(self, backend: Backend, writer: Writer) -> None:
        for i in range(12):
            await writer.session(draft("a", payload=json_of(str(i % 2))))
        params = QueryTimeseriesParams(payload=json_of("1.0"), max_results=4)
        first = await backend.query(params)
        assert [i.id.session for i in first.events] == [12, 10, 8, 6]
        assert first.more_follows
        after = msgspec.structs.replace(params, last_event_id=first.events[-1].id)
        rest = await backend.query(after)
        assert [i.id.session for i in rest.events] == [4, 2]
        assert not rest.more_follows
        wrong = msgspec.structs.replace(params, last_event_id=EventId(1, 11, 1))
        assert (await backend.query(wrong)).events == []

    # unique type

    async def test_unique_type(self, backend: Backend, writer: Writer) -> None:
        await writer.session(draft("a", 5), draft("b"), draft("b", 4), draft("a", 5))
        await writer.session(draft("a"), draft("b", 5), draft("a", -1), draft("c"), draft("c"))

        async def found(order: Order, order_by: OrderBy, **query: Any) -> list[tuple[int, int]]:
            params = QueryTimeseriesParams(
                order=order, order_by=order_by, unique_type=True, **query
            )
            return places((await backend.query(params)).events)

        # ties, as those of one session, by natural order (reversed)
        assert await found(DESCENDING, OrderBy.TIMESTAMP) == [(2, 5), (2, 3), (2, 2)]
        assert await found(ASCENDING, OrderBy.TIMESTAMP) == [(1, 1), (1, 2), (2, 4)]
        # without source timestamp last in both, and only where the type has no other
        assert await found(DESCENDING, BY_SOURCE) == [(2, 2), (1, 4), (2, 5)]
        assert await found(ASCENDING, BY_SOURCE) == [(2, 3), (1, 3), (2, 4)]
        # applied after all other conditions
        one = Timestamp(1, 0)
        assert await found(DESCENDING, BY_SOURCE, t_to=one) == [(1, 4), (1, 3)]
        assert await found(DESCENDING, OrderBy.TIMESTAMP, t_to=one) == [(1, 4), (1, 3)]
        four = Timestamp(4, 0)
        assert await found(DESCENDING, BY_SOURCE, source_t_to=four) == [(1, 3), (2, 3)]
        assert await found(ASCENDING, OrderBy.TIMESTAMP, source_t_to=four) == [(1, 3), (2, 3)]
        assert await found(ASCENDING, OrderBy.TIMESTAMP, event_types=[("b",)]) == [(1, 2)]
        some = [writer.events[i].id for i in (2, 3, 4)]
        assert await found(ASCENDING, OrderBy.TIMESTAMP, ids=some) == [(1, 3), (1, 4)]
        assert await found(DESCENDING, BY_SOURCE, ids=some) == [(1, 4), (1, 3)]

    @each_order
    @each_order_by
    async def test_unique_types_have_pages(
        self, backend: Backend, writer: Writer, order: Order, order_by: OrderBy
    ) -> None:
        for n in range(8):
            payload = json_of(str(n % 3))
            types = [f"t{(n * 7 + i * 3) % 25}" for i in range(6)]
            sources = [None if (n + i) % 3 == 0 else (n * i) % 4 for i in range(6)]
            drafts = [draft(t, s, payload) for t, s in zip(types, sources, strict=True)]
            await writer.session(*drafts, time=n // 2)
        for wanted in None, json_of("1"):
            whole = QueryTimeseriesParams(
                order=order, order_by=order_by, payload=wanted, unique_type=True
            )
            expected = answer(writer.events, whole)
            assert len(expected) == len({i.type for i in expected}) > 10
            for size in 1, 4, 100:
                pages: list[Event] = []
                params = msgspec.structs.replace(whole, max_results=size)
                more_follows = True
                while more_follows:
                    result = await backend.query(params)
                    pages += result.events
                    more_follows = result.more_follows
                    params = msgspec.structs.replace(params, last_event_id=pages[-1].id)
                assert pages == expected
            # a last event that is not the one of its type: the query does not contain it
            others = [i for i in writer.events if i not in expected]
            for event in others[::5]:
                params = msgspec.structs.replace(whole, last_event_id=event.id)
                assert (await backend.query(params)).events == []

    # rights

    @each_order_by
    async def test_rights_bound_every_condition(
        self, backend: Backend, writer: Writer, order_by: OrderBy
    ) -> None:
        same = json_of("1")
        await writer.session(draft("a", payload=same), draft("secret", payload=same))
        rights = Subscription([("a",)])
        for conditions in (
            {"ids": [i.id for i in writer.events]},
            {"payload": same},
            {"unique_type": True},
        ):
            params = QueryTimeseriesParams(order_by=order_by, **conditions)
            assert (await backend.answer(seen(params, rights))).events == writer.events[:1]
            assert len((await backend.query(params)).events) == 2
        secret = QueryTimeseriesParams(order_by=order_by, ids=[writer.events[1].id])
        assert (await backend.answer(seen(secret, rights))).events == []
        assert (await backend.answer(seen(secret, Subscription([])))).events == []
