"""The types of a store: their ids, and which of them rights allow."""

import gc
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eventer_bridge import limits
from eventer_bridge.backends.rocksdb import keys
from eventer_bridge.backends.rocksdb.keys import TypeId
from eventer_bridge.backends.rocksdb.types import TypeRegistry, VisibleTypes
from eventer_bridge.model import EventType
from eventer_bridge.slices import at_once
from eventer_bridge.subscription import Subscription

segments = st.sampled_from(["a", "b", ""])
event_types = st.lists(segments, max_size=4).map(tuple)
query_types = st.builds(
    lambda head, tail: (*head, *tail),
    st.lists(segments | st.just("?"), max_size=3),
    st.sampled_from([(), ("*",)]),
)


def intern(types: TypeRegistry, *event_types: EventType) -> list[TypeId]:
    at_once(types.intern(enumerate(event_types), []))
    return [types.ids[i] for i in event_types]


def found(types: TypeRegistry, subscription: Subscription) -> list[TypeId]:
    return sorted(i for some in types.find(subscription) for i in some)


def caught_up(visible: VisibleTypes) -> VisibleTypes:
    for _ in visible.catch_up():
        pass
    assert visible.is_up_to_date
    return visible


@given(
    st.lists(st.lists(event_types, min_size=1, max_size=6), max_size=6),
    st.lists(query_types, max_size=3),
)
def test_what_rights_allow_is_kept_up_to_date(
    sessions: list[list[EventType]], queries: list[EventType]
) -> None:
    types, rights = TypeRegistry([]), Subscription(queries)
    for number, session in enumerate(sessions):
        intern(types, *session)
        expected = sorted(i for i, name in types.names.items() if rights.matches(name))
        assert found(types, rights) == expected
        if number % 2 == 0:
            visible = types.visible(Subscription(queries))
            assert list(caught_up(visible)) == expected
            assert len(visible) == len(expected)
            for type_id in types.names:
                assert (type_id in visible) is (type_id in expected)
            assert keys.encode_type_id(len(types)) not in visible


def test_equal_rights_share_what_is_known() -> None:
    types = TypeRegistry([])
    intern(types, *((str(i),) for i in range(1_000)))
    first = types.visible(Subscription([("1",)]))
    assert types.visible(Subscription([("1",)])) is first
    assert types.visible(Subscription([("2",)])) is not first
    assert list(caught_up(first)) == [keys.encode_type_id(1)]
    assert types.visible(Subscription([("1",)])).is_up_to_date


def test_sets_of_visible_types_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_VISIBLE_BYTES", 3_500)
    types = TypeRegistry([])
    intern(types, *((str(i),) for i in range(1_000)))
    rights = [Subscription([(str(i),)]) for i in range(4)]
    made = [types.visible(i) for i in rights]
    assert types.visible(rights[1]) is made[1]
    assert types.visible(rights[0]) is not made[0]  # the least recently used
    assert types.visible(rights[2]) is not made[2]
    assert types.visible(rights[1]) is made[1]


def test_types_are_looked_for_while_others_come() -> None:
    """A search on another thread, with nodes of the tree that are divided meanwhile."""
    types = TypeRegistry([])
    first = intern(types, *(("a", str(i), "x", "y", "z") for i in range(2_000)))
    wanted = Subscription([("?", "?", "x", "*")])
    failures: list[BaseException] = []
    rounds = 0
    is_done = threading.Event()

    def search() -> None:
        nonlocal rounds
        try:
            while not is_done.is_set() or not rounds:
                ids = found(types, wanted)
                assert len(ids) == len(set(ids))
                assert set(first) <= set(ids)
                visible = VisibleTypes(types, wanted)
                n_types = len(types)
                for _ in visible.catch_up():
                    pass
                assert len(visible) >= n_types
                rounds += 1
        except BaseException as e:
            failures.append(e)

    thread = threading.Thread(target=search)
    thread.start()
    try:
        for i in range(2_000):
            intern(types, ("a", str(i), "x", "y", "new"), ("a", f"new {i}", "x"))
    finally:
        is_done.set()
        thread.join()
    assert not failures
    assert len(found(types, wanted)) == 6_000


def test_the_collector_does_not_visit_all_types_when_one_is_added() -> None:
    types = TypeRegistry([])
    intern(types, *[("app", str(i)) for i in range(100)])
    gc.collect()
    gc.freeze()
    try:
        intern(types, ("app", "new"))
        sizes = [len(i) for i in gc.get_objects() if isinstance(i, dict)]
    finally:
        gc.unfreeze()
    assert max(sizes, default=0) < 100
