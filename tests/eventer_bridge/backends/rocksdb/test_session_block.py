"""A block of sessions, as bytes: compared with what a list of its events would say."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from eventer_bridge.backends.rocksdb import keys
from eventer_bridge.backends.rocksdb.keys import ENTRY_BYTES, SessionBlock
from eventer_bridge.model import INT64_MAX, INT64_MIN, EventId, Timestamp

MOMENT = Timestamp(4, 5)
SERVER = 7

ids = st.integers(INT64_MIN, INT64_MAX) | st.integers(-3, 3)
contents = st.dictionaries(st.tuples(ids, ids), st.integers(0, 2**32 - 1), min_size=1, max_size=20)


def local_id(session: int, instance: int) -> bytes:
    return keys.encode_int(session) + keys.encode_int(instance)


def make(types: dict[tuple[int, int], int]) -> SessionBlock:
    key = keys.session_key(MOMENT, SERVER, min(types)[0])
    entries = (local_id(*i) + keys.encode_type_id(types[i]) for i in sorted(types))
    return SessionBlock(key, b"".join(entries))


def position(session: int, instance: int) -> bytes:
    return keys.encode_timestamp(MOMENT) + keys.encode_id(EventId(SERVER, session, instance))


@given(contents, ids, ids)
def test_events_and_sessions_are_found(
    types: dict[tuple[int, int], int], session: int, instance: int
) -> None:
    block = make(types)
    assert block.n_events == len(types)
    for event, number in types.items():
        assert block.find(local_id(*event)) == keys.encode_type_id(number)
        assert block.has_session(keys.encode_int(event[0]))
        assert block.spans(keys.session_key(MOMENT, SERVER, event[0]))
    sessions = {i for i, _ in types}
    assert block.has_session(keys.encode_int(session)) is (session in sessions)
    if (session, instance) not in types:
        assert block.find(local_id(session, instance)) is None
    spanned = block.spans(keys.session_key(MOMENT, SERVER, session))
    assert spanned is (min(sessions) <= session <= max(sessions))
    assert not block.spans(keys.session_key(MOMENT, SERVER + 1, session))
    assert not block.spans(keys.session_key(Timestamp(4, 4), SERVER, session))
    assert keys.decode_int(block.first_session) == min(sessions)
    assert keys.decode_int(block.last_session) == max(sessions)
    assert keys.decode_int(block.last_instance) == max(types)[1]
    assert [*block.event_keys()] == [
        keys.encode_type_id(types[i]) + position(*i) for i in sorted(types)
    ]


@given(contents, st.tuples(ids, ids), st.tuples(ids, ids), st.booleans())
def test_entries_between(
    types: dict[tuple[int, int], int],
    first: tuple[int, int],
    last: tuple[int, int],
    is_after: bool,
) -> None:
    block = make(types)
    start, stop = position(*first) + b"\0" * is_after, position(*last)
    found = [*block.between(start, stop)]
    expected = [i for i in sorted(types) if start <= position(*i) < stop]
    assert [block.entries[i : i + 16] for i in found] == [local_id(*i) for i in expected]
    every = range(0, ENTRY_BYTES * len(types), ENTRY_BYTES)
    assert block.between(b"", keys.KEY_MAX) == every
    assert block.between(block.key, keys.KEY_MAX) == every
    assert not block.between(keys.encode_timestamp(Timestamp(4, 6)), keys.KEY_MAX)
    assert not block.between(b"", keys.encode_timestamp(MOMENT))


@given(contents, st.data())
def test_without_events(types: dict[tuple[int, int], int], data: st.DataObject) -> None:
    gone: Sequence[tuple[int, int]] = data.draw(st.lists(st.sampled_from(sorted(types))))
    left = make(types).without({local_id(*i) for i in gone})
    rest = {i: number for i, number in types.items() if i not in gone}
    assert left.key == make(types).key
    assert left.entries == (make(rest).entries if rest else b"")


def test_a_row_that_is_missing_is_a_block_of_its_first_session() -> None:
    block = SessionBlock(keys.session_key(MOMENT, SERVER, 3), b"")
    assert block.first_session == block.last_session == keys.encode_int(3)
    assert block.spans(block.key)
    assert not block.spans(keys.session_key(MOMENT, SERVER, 4))
    assert not block.has_session(keys.encode_int(3))
    assert not SessionBlock(b"", b"").spans(block.key)


def test_the_layout_stays_as_it_is() -> None:
    block = make({(1, 2): 3, (4, 5): 6})
    assert block.entries.hex(" ", 4) == (
        "80000000 00000001 80000000 00000002 00000003 80000000 00000004 80000000 00000005 00000006"
    )
    assert block.server_key.hex(" ", 4) == "80000000 00000007 80000000 00000001"
