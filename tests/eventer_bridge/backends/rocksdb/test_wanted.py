"""Which types a query wants: sought on a reader thread, and only where reading needs it."""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from eventer_bridge import limits
from eventer_bridge.backends import limits as store_limits
from eventer_bridge.backends import rocksdb
from eventer_bridge.backends.rocksdb import types as types_module
from eventer_bridge.backends.rocksdb.keys import TypeId
from eventer_bridge.backends.rocksdb.types import TypeRegistry, VisibleTypes
from eventer_bridge.errors import InvalidSubscriptionError
from eventer_bridge.model import (
    Order,
    OrderBy,
    QueryLatestParams,
    QueryServerParams,
    QueryTimeseriesParams,
)
from eventer_bridge.subscription import Subscription
from tests.eventer_bridge.backends.oracle import Writer, answer, numbered, seen

RIGHTS = Subscription([("a", "*")])


def count_catching_up(monkeypatch: pytest.MonkeyPatch) -> list[VisibleTypes]:
    calls: list[VisibleTypes] = []
    catch_up = VisibleTypes.catch_up

    def counting(visible: VisibleTypes) -> Iterator[None]:
        calls.append(visible)
        return catch_up(visible)

    monkeypatch.setattr(VisibleTypes, "catch_up", counting)
    return calls


async def test_nobody_waits_for_the_search_of_types(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = threading.Event()
    find = TypeRegistry.find

    def find_slowly(types: TypeRegistry, subscription: Subscription) -> Iterator[list[TypeId]]:
        while not release.is_set():
            yield []
        yield from find(types, subscription)

    monkeypatch.setattr(TypeRegistry, "find", find_slowly)
    monkeypatch.setattr(types_module, "FEW_STEPS", 1 << 60)
    async with await rocksdb.create(tmp_path) as backend:
        writer = Writer(backend)
        await writer.session(*numbered("a/1", "a/2", "b"))
        slow = [
            asyncio.ensure_future(backend.answer(seen(params, RIGHTS)))
            for params in (
                QueryLatestParams([("a", "?")]),
                QueryTimeseriesParams([("?", "*")]),
                QueryServerParams(1),
            )
        ]
        while backend.query_load.running < len(slow):
            await asyncio.sleep(0.001)
        await writer.session(*numbered("b"))
        result = await backend.query(QueryTimeseriesParams())
        assert len(result.events) == 4
        assert not any(i.done() for i in slow)
        release.set()
        for each in slow:
            assert {i.type for i in (await each).events} == {("a", "1"), ("a", "2")}


@pytest.mark.parametrize("order", list(Order))
@pytest.mark.parametrize("order_by", list(OrderBy))
@pytest.mark.parametrize("free_passes", [0, 3, 10_000])
async def test_answers_are_right_whenever_types_are_sought(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    order: Order,
    order_by: OrderBy,
    free_passes: int,
) -> None:
    monkeypatch.setattr(types_module, "FEW_STEPS", 0)
    monkeypatch.setattr(types_module, "FREE_PASSES", free_passes)
    async with await rocksdb.create(tmp_path) as backend:
        writer = Writer(backend)
        for n in range(10):
            await writer.session(*numbered(*(f"{i}/{n * k}" for k in range(5) for i in "abc")))
        for is_unique in False, True:
            params = QueryTimeseriesParams(
                [("a", "?"), ("?", "0")], order=order, order_by=order_by, unique_type=is_unique
            )
            for rights, allowed in (None, [("*",)]), (RIGHTS, [("a", "*")]):
                expected = answer(writer.events, params, allowed)
                assert (await backend.answer(seen(params, rights))).events == expected
                rest = msgspec.structs.replace(params, last_event_id=expected[2].id)
                assert (await backend.answer(seen(rest, rights))).events == expected[3:]


async def test_types_are_not_sought_for_what_is_found_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(types_module, "FEW_STEPS", 0)
    calls = count_catching_up(monkeypatch)
    async with await rocksdb.create(tmp_path) as backend:
        writer = Writer(backend)
        await writer.session(*numbered(*(f"a/{n}" for n in range(500)), "b"))
        params = QueryTimeseriesParams([("a", "*")], max_results=1)
        for rights in None, RIGHTS:
            assert (await backend.answer(seen(params, rights))).events == [writer.events[-2]]
        assert calls == []


async def test_few_types_without_wildcards_are_not_sought(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sought: list[Subscription] = []
    find = TypeRegistry.find

    def finding(types: TypeRegistry, subscription: Subscription) -> Iterator[list[TypeId]]:
        sought.append(subscription)
        return find(types, subscription)

    monkeypatch.setattr(TypeRegistry, "find", finding)
    many = [("b", str(i)) for i in range(store_limits.FEW_TYPES)]
    async with await rocksdb.create(tmp_path) as backend:
        writer = Writer(backend)
        for n in range(3):
            await writer.session(*numbered("a/1", "a/1/2", "b", "a", f"a/{n}"))
        for asked, is_sought in (
            ([("a", "1")], False),
            ([("b",), ("a", "1"), ("b",)], False),
            ([("a", "1"), ("a", "9")], True),  # of which one is not known
            ([("c",)], False),
            ([], False),
            ([("a", "?")], True),
            ([("b",), ("a", "*")], True),
            ([("b",), *many], True),
        ):
            for rights, allowed in (None, [("*",)]), (RIGHTS, [("a", "*")]):
                sought.clear()
                params = QueryTimeseriesParams(asked)
                expected = answer(writer.events, params, allowed)
                assert (await backend.answer(seen(params, rights))).events == expected
                assert bool(sought) == is_sought, asked


async def test_what_no_subscription_may_have_is_refused(tmp_path: Path) -> None:
    async with await rocksdb.create(tmp_path) as backend:
        await Writer(backend).session(*numbered("a"))
        for wrong in ("*", "a"), ("b",) * (limits.MAX_TYPE_SEGMENTS + 2):
            with pytest.raises(InvalidSubscriptionError):
                await backend.query(QueryTimeseriesParams([("a",), wrong]))


async def test_rights_are_looked_at_once_and_then_what_is_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = count_catching_up(monkeypatch)
    async with await rocksdb.create(tmp_path) as backend:
        writer = Writer(backend)
        await writer.session(*numbered("a/1", "b"))
        for n in range(1, 4):
            for _ in range(3):
                result = await backend.answer(seen(QueryTimeseriesParams(), RIGHTS))
                assert [i.type for i in result.events].count(("b",)) == 0
                assert len(result.events) == n
            assert len(calls) == n
            await writer.session(*numbered(f"a/new{n}"))
