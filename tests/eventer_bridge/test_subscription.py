"""Subscriptions and the trie of types, against a naive matcher."""

import functools
import itertools
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eventer_bridge import limits
from eventer_bridge.backends.rocksdb.types import TypeTrie
from eventer_bridge.errors import InvalidSubscriptionError
from eventer_bridge.model import EventType
from eventer_bridge.subscription import EVERYTHING, NOTHING, Subscription

ALPHABET = ("a", "b", "", "?", "*")


def naive_matches(query_type: EventType, event_type: EventType) -> bool:
    if query_type and query_type[-1] == "*":
        head = query_type[:-1]
        if len(event_type) < len(head):
            return False
        event_type = event_type[: len(head)]
    else:
        head = query_type
    same_size = len(head) == len(event_type)
    return same_size and all(q in {"?", e} for q, e in zip(head, event_type, strict=True))


@st.composite
def query_type(draw: st.DrawFn) -> EventType:
    head = draw(st.lists(st.sampled_from(("a", "b", "", "?")), max_size=4))
    return (*head, "*") if draw(st.booleans()) else tuple(head)


query_types = st.lists(query_type(), max_size=5)
# "?" and "*" cannot be registered, but a store of another make might have them
event_type = st.lists(st.sampled_from(ALPHABET), max_size=5).map(tuple)
# "x" is what only wildcards match; query types differ in no more than their first five segments
ALL_TYPES = [i for size in range(6) for i in itertools.product(("a", "b", "", "x"), repeat=size)]


def naive_any(queries: list[EventType], candidate: EventType) -> bool:
    return any(naive_matches(i, candidate) for i in queries)


@functools.cache
def matched_by(query: EventType) -> frozenset[EventType]:
    return frozenset(i for i in ALL_TYPES if naive_matches(query, i))


def matched(queries: Iterable[EventType]) -> set[EventType]:
    """Those of ``ALL_TYPES`` that any of the query types matches."""
    return {i for query in queries for i in matched_by(query)}


def found(subscription: Subscription) -> set[EventType]:
    return {i for i in ALL_TYPES if subscription.matches(i)}


@given(query_types, event_type)
def test_matches(queries: list[EventType], candidate: EventType) -> None:
    assert Subscription(queries).matches(candidate) is naive_any(queries, candidate)


@given(query_types, query_types, event_type)
def test_union_and_intersection(
    first: list[EventType], second: list[EventType], candidate: EventType
) -> None:
    in_first, in_second = naive_any(first, candidate), naive_any(second, candidate)
    one, other = Subscription(first), Subscription(second)
    assert one.union(other).matches(candidate) is (in_first or in_second)
    if not {"?", "*"} & set(candidate):  # literals that only wildcards match
        assert one.intersection(other).matches(candidate) is (in_first and in_second)


@given(query_types, query_types, query_types)
def test_intersection(
    first: list[EventType], second: list[EventType], third: list[EventType]
) -> None:
    one, other = Subscription(first), Subscription(second)
    both = one.intersection(other)
    expected = matched(first) & matched(second)
    assert found(both) == expected
    assert matched(both.query_types) == expected
    assert both.is_empty is one.isdisjoint(other) is other.isdisjoint(one) is (not expected)
    assert both == other.intersection(one)
    assert hash(both) == hash(other.intersection(one))
    all_three = both.intersection(Subscription(third))
    expected &= matched(third)
    assert found(all_three) == expected
    assert all_three.is_empty is (not expected)
    assert found_in(trie_of_all(), all_three) == sorted(expected)


@pytest.mark.parametrize(
    ("first", "second", "common"),
    [
        ("a/b", "a/b", "a/b"),
        ("a/b", "a/c", ""),
        ("a/b", "a", ""),
        ("a/*", "a", "a"),
        ("a/*", "a/b/c", "a/b/c"),
        ("a/*", "?/b/*", "a/b/*"),
        ("?/b", "a/?", "a/b"),
        ("?/?/*", "a/b/c a", "a/b/c"),
        # what matches goes on to be found while others are looked at
        ("a/b/c", "a/* a/b/x", "a/b/c"),
        ("a/b", "a/* a/b/x", "a/b"),
        # and what does not match at one place is not looked at again
        ("x/?/c", "a/b/c x/y/d", ""),
        ("a/?/*", "a x/y/z", ""),
    ],
)
def test_what_two_have_in_common(first: str, second: str, common: str) -> None:
    one, other, expected = (
        Subscription([tuple(i.split("/")) for i in names.split()])
        for names in (first, second, common)
    )
    for both in one.intersection(other), other.intersection(one):
        assert both.query_types == expected.query_types
        assert both.is_empty is (not common)


def test_those_of_other_types_are_not_equal() -> None:
    one, other = Subscription([("a",)]), Subscription([("b",)])
    assert one != other
    assert one != (("a",),)
    assert hash(one) != hash(other)
    assert one.intersection(other) != one
    assert len({one, other, Subscription([("a",)])}) == 2


@given(query_types)
def test_query_types_are_minimal(queries: list[EventType]) -> None:
    minimal = Subscription(queries).query_types
    for one, other in itertools.permutations(minimal, 2):
        assert not matched_by(one) <= matched_by(other)
    assert matched(minimal) == matched(queries)
    assert minimal == tuple(sorted(minimal))


def test_query_types_in_common_are_bounded() -> None:
    n = limits.MAX_SUBSCRIPTION_TYPES
    asked = Subscription([("?", "x", str(i)) for i in range(n)])
    rights = Subscription([(str(i), "?", "*") for i in range(n)])
    both = asked.intersection(rights)
    assert both.matches(("1", "x", "2"))
    assert not both.matches(("1", "x", "x"))
    assert not both.is_empty
    with pytest.raises(InvalidSubscriptionError, match="more than 10000 query types in common"):
        _ = both.query_types


def test_how_many_query_types_may_be_in_common(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_COMMON_TYPES", 4)
    asked = Subscription([("?", "x"), ("?", "y")])
    rights = [("a", "?"), ("b", "?"), ("c", "?")]
    assert len(asked.intersection(Subscription(rights[:2])).query_types) == 4
    with pytest.raises(InvalidSubscriptionError, match="more than 4 query types in common"):
        _ = asked.intersection(Subscription(rights)).query_types


def trie_of(known: Iterable[EventType]) -> TypeTrie:
    trie = TypeTrie()
    for i in known:
        trie.add(i)
        trie.add((*i,))  # an equal one
    return trie


@functools.cache
def trie_of_all() -> TypeTrie:
    return trie_of(ALL_TYPES)


def found_in(trie: TypeTrie, subscription: Subscription) -> list[EventType]:
    return sorted(i for some in trie.find(subscription) for i in some)


@given(query_types, st.lists(event_type, max_size=30, unique=True))
def test_find(queries: list[EventType], known: list[EventType]) -> None:
    trie = trie_of(known)
    subscription = Subscription(queries)
    expected = sorted(i for i in known if naive_any(queries, i))
    assert found_in(trie, subscription) == expected


@given(query_types)
def test_equality_is_that_of_the_sanitized_query_types(queries: list[EventType]) -> None:
    one = Subscription(queries)
    other = Subscription([*reversed(queries), *queries])
    assert one == other
    assert hash(one) == hash(other)
    assert Subscription(one.query_types) == one


def test_what_another_includes_is_left_out() -> None:
    subscription = Subscription([("a", "b"), ("a", "*"), ("a",), ("a", "b", "*"), ("b", "?")])
    assert subscription.query_types == (("a", "*"), ("b", "?"))
    assert Subscription([("a", "b"), ("a", "?"), ("?", "c")]).query_types == (
        ("?", "c"),
        ("a", "?"),
    )
    assert Subscription([("a",), ("*",)]) == EVERYTHING
    assert EVERYTHING.is_everything
    assert not EVERYTHING.is_empty
    assert NOTHING.is_empty
    assert not NOTHING.is_everything
    assert repr(subscription) == "Subscription([['a', '*'], ['b', '?']])"
    both = Subscription([("a", "?")]).intersection(Subscription([("?", "b")]))
    assert repr(both) == "Subscription([['a', '?']]) & Subscription([['?', 'b']])"


def test_errors_name_the_query_type() -> None:
    with pytest.raises(InvalidSubscriptionError, match=r"'a/\*/b': '\*' is allowed only as the l"):
        Subscription([("a", "*", "b")])
    with pytest.raises(InvalidSubscriptionError, match="66 segments, at most 65 are allowed"):
        Subscription([("a",) * 66])
    with pytest.raises(InvalidSubscriptionError, match="more than 1000 query types"):
        Subscription([(str(i),) for i in range(limits.MAX_SUBSCRIPTION_TYPES + 1)])


def test_overlapping_wildcards_do_not_explode() -> None:
    depth = 20
    hostile = [
        tuple("?" if (i >> bit) & 1 else "a" for bit in range(depth))
        for i in range(limits.MAX_SUBSCRIPTION_TYPES)
    ]
    subscription = Subscription(hostile)
    assert subscription.matches(("a",) * depth)
    assert not subscription.matches(("b",) * depth)
    rights = Subscription([("a", "*"), ("?", "b", "*"), (*("?",) * (depth - 1), "a")])
    assert subscription.intersection(rights).matches(("a",) * depth)
    assert not subscription.isdisjoint(rights)
    types = [tuple("b" if (n >> bit) & 1 else "a" for bit in range(depth)) for n in range(2_000)]
    assert types[0] in found_in(trie_of(types), subscription)
