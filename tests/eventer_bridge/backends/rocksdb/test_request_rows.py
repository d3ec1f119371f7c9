"""Request keys in the store: found whatever their order, and new ones without a look."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rocksdict import Rdict

from eventer_bridge import limits
from eventer_bridge.backends import rocksdb
from eventer_bridge.backends.request_keys import KeyRetention
from eventer_bridge.backends.rocksdb import keys, request_rows
from eventer_bridge.backends.rocksdb.request_rows import (
    FAMILY,
    KEY_PREFIX,
    OWNER_PREFIX,
    RUN_PREFIX,
)
from eventer_bridge.backends.rocksdb.restoring import ext_rewind
from eventer_bridge.backends.rocksdb.store import Store
from eventer_bridge.errors import StoreDamagedError
from eventer_bridge.model import Timestamp
from tests.eventer_bridge.backends.contract_retention import TestClock
from tests.eventer_bridge.backends.oracle import Writer, draft, request_key
from tests.eventer_bridge.backends.putting import put, put_all
from tests.eventer_bridge.backends.rocksdb.raw_rows import findings, raw_rows

FEW = KeyRetention(max_entries=20)
RUN = [f"{i:02}" for i in range(10)]
LATER_RUN = [str(i) for i in range(20, 40, 2)]


async def keep(writer: Writer, backend: Any, *names: str) -> None:
    for name in names:
        events = writer.make(draft(), time=Timestamp.now())
        await put(backend, events, None, 1, request_key(name))


async def test_keys_in_any_order_are_found(tmp_path: Path) -> None:
    names = [f"{i:03}" for i in range(60)] + ["ü", "\U0001f600", "~"]
    random.Random(1).shuffle(names)
    async with await rocksdb.create(tmp_path, key_retention=FEW) as backend:
        writer = Writer(backend)
    for i in range(0, len(names), 7):  # also by those who open it later
        async with await rocksdb.create(tmp_path, key_retention=FEW) as backend:
            writer._backend = backend
            some = names[i : i + 7]
            assert backend.find_requests("app", some) == [None] * len(some)
            await keep(writer, backend, *some)
            kept = names[max(0, i - 7) : i + 7]
            assert None not in backend.find_requests("app", kept)
            assert backend.find_requests("other", kept) == [None] * len(kept)


async def test_keys_that_sort_behind_are_not_looked_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with await rocksdb.create(tmp_path) as backend:
        await keep(Writer(backend), backend, "2")
    async with await rocksdb.create(tmp_path) as backend:
        assert backend.find_requests("app", ["2"]) != [None]
        looked_up: list[str] = []
        family = Store.family

        def note(store: Store, name: str) -> Rdict:
            looked_up.append(name)
            return family(store, name)

        monkeypatch.setattr(Store, "family", note)
        assert backend.find_requests("app", ["3", "4"]) == [None, None]
        assert looked_up == []
        assert backend.find_requests("app", ["3", "1"]) == [None, None]
        assert looked_up == [FAMILY]


async def test_a_client_that_was_forgotten_before_its_commit_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MAX_KEY_OWNERS", 1)
    async with await rocksdb.create(tmp_path) as backend:
        writer = Writer(backend)
        for name in "1", "2":
            events = writer.make(draft(), time=Timestamp.now())
            committed = put(backend, events, None, 1, request_key(name))
            for other in "x", "y":  # for whom "app" is forgotten
                backend.find_requests(other, [name])
            backend.find_requests("app", ["0"])  # which is read again now
            await committed
            assert backend.find_requests("app", [name]) != [None]


async def test_a_client_whose_generation_begins_is_not_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MAX_KEY_OWNERS", 1)
    monkeypatch.setattr(limits, "COUNTED_REQUEST_KEYS", 1)
    async with await rocksdb.create(tmp_path, key_retention=FEW) as backend:
        writer = Writer(backend)
        for i in range(3 * FEW.max_entries):
            events = writer.make(draft(), time=Timestamp.now())
            committed = put(backend, events, None, 1, request_key(f"{i:02}"))
            backend.find_requests("other", ["0"])
            assert backend.find_requests("app", ["x"]) == [None]
            await committed
            assert backend.find_requests("app", [f"{i:02}"]) != [None]


async def keep_together(
    writer: Writer, backend: Any, *names: str, time: int | None = None, without: str = ""
) -> None:
    """Keep requests that came at a time; ``without``: one whose session is not registered."""
    at = Timestamp.now() if time is None else Timestamp(time, 0)
    sessions = {i: writer.make(draft(), time=at) for i in names}
    sessions.pop(without, None)
    requests = [request_key(i, draft(i)) for i in sessions]
    await put_all(backend, [*sessions.values()], requests)[0]


def sessions_of(backend: Any, names: list[str]) -> list[int | None]:
    found = backend.find_requests("app", names)
    assert all(
        i is None or i.digest == request_key(j, draft(j)).digest
        for i, j in zip(found, names, strict=True)
    )
    return [i and i.session for i in found]


def prefixes(path: Path) -> list[bytes]:
    with raw_rows(path) as rows:
        return [key[:1] for key, _ in rows[FAMILY].items()]


async def test_keys_that_come_together_in_order_share_a_row(tmp_path: Path) -> None:
    between = ["0", "001", "1", "091", "21", "381", "4"]
    async with await rocksdb.create(tmp_path) as backend:
        writer = Writer(backend)
        await keep_together(writer, backend, *RUN)
        await keep_together(writer, backend, *LATER_RUN)
    assert prefixes(tmp_path) == [OWNER_PREFIX, RUN_PREFIX, RUN_PREFIX]
    for n_known in 0, 3:
        async with await rocksdb.create(tmp_path) as backend:
            assert sessions_of(backend, RUN + LATER_RUN) == [*range(1, 21)]
            known = [21 + i if i < n_known else None for i in range(len(between))]
            assert sessions_of(backend, between) == known
            assert backend.find_requests("other", RUN) == [None] * len(RUN)
            writer._backend = backend
            await keep_together(writer, backend, *between[n_known : n_known + 3])
    assert findings(tmp_path) == []


async def test_rows_that_cannot_have_a_key_are_not_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded: list[bytes] = []
    decode = request_rows.decode_requests

    def note(key: bytes, value: bytes) -> request_rows.RequestRow:
        decoded.append(key[-2:])
        return decode(key, value)

    monkeypatch.setattr(request_rows, "decode_requests", note)
    async with await rocksdb.create(tmp_path) as backend:
        await keep_together(Writer(backend), backend, *RUN)
        assert sessions_of(backend, ["0x", "05", "06x"]) == [None, 6, None]
    assert decoded == [b"09"]


@pytest.mark.parametrize(
    ("names", "without"),
    [
        (RUN[: limits.MIN_REQUEST_RUN - 1], ""),
        ([*RUN[1:], RUN[0]], ""),
        (RUN, RUN[4]),  # whose session is another client's
    ],
    ids=["too few", "not in order", "not one after the other"],
)
async def test_others_have_rows_of_their_own(
    tmp_path: Path, names: list[str], without: str
) -> None:
    async with await rocksdb.create(tmp_path) as backend:
        await keep_together(Writer(backend), backend, *names, without=without)
        expected = [None if i == without else n for n, i in enumerate(names, 1)]
        assert sessions_of(backend, names) == expected
    own = [KEY_PREFIX] * (len(names) - bool(without))
    assert prefixes(tmp_path) == [*own, OWNER_PREFIX]


async def test_a_row_is_forgotten_with_its_generation(tmp_path: Path) -> None:
    names = [f"{i:03}" for i in range(100)]
    async with await rocksdb.create(tmp_path, key_retention=FEW) as backend:
        writer = Writer(backend)
        for i in range(0, 100, 10):
            await keep_together(writer, backend, *names[i : i + 10])
        assert sessions_of(backend, names) == [None] * 60 + [*range(61, 101)]
    assert prefixes(tmp_path) == [OWNER_PREFIX, *[RUN_PREFIX] * 4]


async def test_keys_of_a_row_are_forgotten_after_their_time(tmp_path: Path) -> None:
    clock = TestClock(1_000)
    retention = KeyRetention(duration_s=100)
    async with await rocksdb.create(tmp_path, clock=clock, key_retention=retention) as backend:
        writer = Writer(backend)
        await keep_together(writer, backend, *RUN, time=1_000)
        clock.at = Timestamp(1_100, 0)
        assert sessions_of(backend, RUN) == [*range(1, 11)]
        clock.at = Timestamp(1_100, 1)
        assert sessions_of(backend, RUN) == [None] * 10
        await keep_together(writer, backend, RUN[-1], time=1_100)
        assert sessions_of(backend, RUN) == [None] * 9 + [11]


async def test_rows_of_a_later_time_are_forgotten(tmp_path: Path) -> None:
    async with await rocksdb.create(tmp_path) as backend:
        writer = Writer(backend)
        await keep_together(writer, backend, *RUN, time=1)
        await keep_together(writer, backend, *LATER_RUN, time=2)
    ext_rewind(tmp_path, Timestamp(1, 0))
    async with await rocksdb.create(tmp_path, clock=TestClock(10)) as backend:
        assert sessions_of(backend, RUN + LATER_RUN) == [*range(1, 11)] + [None] * 10
    assert findings(tmp_path) == []


async def test_any_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MIN_REQUEST_RUN", 2)
    draw = random.Random(7)
    names = [f"{i:03}" for i in range(200)]
    sessions: dict[str, int] = {}
    writer: Any = Writer(None)  # type: ignore[arg-type]
    for _ in range(20):
        async with await rocksdb.create(tmp_path) as backend:
            for _ in range(3):
                begin, size = draw.randrange(200), draw.randrange(1, 8)
                turn = [i for i in names[begin : begin + size] if i not in sessions]
                draw.choice((draw.shuffle, list[str].sort))(turn)
                if turn:
                    n_before = len(writer.events)
                    await keep_together(writer, backend, *turn)
                    sessions |= {i: n_before + n for n, i in enumerate(turn, 1)}
                assert sessions_of(backend, names) == [*map(sessions.get, names)]
    assert {*prefixes(tmp_path)} == {KEY_PREFIX, OWNER_PREFIX, RUN_PREFIX}


def cut_off(value: bytes) -> bytes:
    return value[:-1]


def of_nothing(value: bytes) -> bytes:
    return value[:20] + keys.encode_int(5) + value[28:]


def of_no_time(value: bytes) -> bytes:
    return value[:8] + b"\xff" * 4 + value[12:]


def of_no_session(value: bytes) -> bytes:
    return value[:20] + b"\xff" * 8 + value[28:]


def not_in_order(value: bytes) -> bytes:
    return value[:28] + msgspec.msgpack.encode((["x", *RUN[1:]], bytes(160)))


def of_another_end(value: bytes) -> bytes:
    return value[:28] + msgspec.msgpack.encode(([*RUN[:-1], "x"], bytes(160)))


def without_a_digest(value: bytes) -> bytes:
    return value[:28] + msgspec.msgpack.encode((RUN, bytes(159)))


@pytest.mark.parametrize(
    ("damage", "found"),
    {
        cut_off: ["Input data was truncated"],
        of_nothing: [f"session 1/{i} is not stored" for i in range(11, 15)],
        of_no_time: ["not a row of requests"],
        of_no_session: ["not a row of requests"],
        not_in_order: ["its keys do not sort behind those of the row before"],
        of_another_end: ["not a row of requests"],
        without_a_digest: ["not a row of requests"],
    }.items(),
    ids=lambda i: getattr(i, "__name__", ""),
)
async def test_damaged_rows(
    tmp_path: Path, damage: Callable[[bytes], bytes], found: list[str]
) -> None:
    async with await rocksdb.create(tmp_path) as backend:
        await keep_together(Writer(backend), backend, *RUN)

    with raw_rows(tmp_path) as rows:
        [key] = [key for key, _ in rows[FAMILY].items() if key.startswith(RUN_PREFIX)]
        rows[FAMILY][key] = damage(rows[FAMILY][key])
    assert findings(tmp_path) == [f"request: key {key.hex()}: {i}" for i in found]
    if damage not in {of_nothing, not_in_order}:
        async with await rocksdb.create(tmp_path) as backend:
            with pytest.raises(StoreDamagedError, match="is damaged: a request key"):
                backend.find_requests("app", RUN)


async def test_a_row_that_begins_before_the_end_of_another(tmp_path: Path) -> None:
    async with await rocksdb.create(tmp_path) as backend:
        writer = Writer(backend)
        await keep_together(writer, backend, *RUN)
        await keep_together(writer, backend, *LATER_RUN)
    with raw_rows(tmp_path) as rows:
        _, key = [key for key, _ in rows[FAMILY].items() if key.startswith(RUN_PREFIX)]
        run = msgspec.msgpack.encode((["05", *LATER_RUN[1:]], bytes(160)))
        rows[FAMILY][key] = rows[FAMILY][key][:28] + run
    text = "its keys do not sort behind those of the row before"
    assert findings(tmp_path) == [f"request: key {key.hex()}: {text}"]
