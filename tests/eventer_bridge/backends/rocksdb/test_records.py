"""Records, which the members of a group write to their stores."""

from pathlib import Path

import pytest

from eventer_bridge.backends.rocksdb.log_tail import Mark, read
from eventer_bridge.backends.rocksdb.records import (
    DELETE_RANGE,
    PUT_IN,
    Operation,
    PartPlace,
    RowBatch,
    decode_part,
    digest_of,
    encode_part,
    plain_bytes,
    write_batch,
)
from eventer_bridge.backends.rocksdb.store import Store

PLACE = PartPlace(7, 2, 1, 0, 1)

OPERATIONS: list[Operation] = [
    (PUT_IN["event"], b"key", b"value" * 100),
    (PUT_IN["default"], b"a", b""),
]


def test_a_part_is_what_it_was() -> None:
    part = encode_part(OPERATIONS, PLACE)
    assert decode_part(part, PLACE) == OPERATIONS
    assert plain_bytes(part) > 500 > len(part)


@pytest.mark.parametrize("field", PartPlace._fields)
def test_a_part_in_another_place_is_noticed(field: str) -> None:
    part = encode_part(OPERATIONS, PLACE)
    elsewhere = PLACE._replace(**{field: getattr(PLACE, field) + 1})
    with pytest.raises(ValueError, match="its checksum is another one, or that of the record befo"):
        decode_part(part, elsewhere)


@pytest.mark.parametrize("place", range(30))
def test_a_changed_part_is_noticed(place: int) -> None:
    part = bytearray(encode_part(OPERATIONS, PLACE))
    part[place] ^= 1
    with pytest.raises(ValueError, match=r"format|checksum|Error|invalid|truncated"):
        decode_part(bytes(part), PLACE)


def test_a_digest_is_of_what_came_before_too() -> None:
    one, other = (encode_part(OPERATIONS, PLACE._replace(before=i)) for i in (1, 2))
    assert digest_of([one]) != digest_of([other])
    assert digest_of([one, other]) != digest_of([other, one])


def test_rows_are_written_as_they_were_put(tmp_path: Path) -> None:
    store = Store(tmp_path / "store", is_recorded=True)
    try:
        batch = RowBatch(store.all_handles)
        for i in range(5):
            batch.put(b"k%d" % i, b"v", store.handle("reader"))
        batch.put(b"k0", b"default")
        batch.delete(b"k0", store.handle("reader"))
        batch.delete_range(b"k2", b"k4", store.handle("reader"))
        assert batch.operations[-1] == (PUT_IN["reader"] + DELETE_RANGE, b"k2", b"k4")
        assert batch.len() == 8
        commit = store.new_commit()
        commit.batch = write_batch(batch.operations, store.all_handles)
        store.write(commit)
        assert [*store.reader_rows(b"k")] == [b"k1", b"k4"]
    finally:
        store.ext_close()


def test_a_mark_of_a_log_that_is_written_meanwhile_is_behind_and_adds_nothing(
    tmp_path: Path,
) -> None:
    path = tmp_path / "store"
    store = Store(path, is_recorded=True)

    def write() -> None:
        commit = store.new_commit()
        commit.batch = write_batch([(PUT_IN["reader"], b"k", b"v" * 100)], store.all_handles)
        store.write(commit)

    try:
        assert isinstance(store._mark, Mark)
        for _ in range(3):
            write()
            store._mark.ext_look()
            [*_, log] = sorted(path.glob("*.log"))
            synced = log.stat().st_size
            write()  # while it is synced
            store._mark.ext_advance()
            assert read(path)[-1].n_bytes == synced
            assert log.stat().st_size > synced  # and no zeros are behind it
            assert log.read_bytes()[-1] != 0
    finally:
        store.ext_close()
