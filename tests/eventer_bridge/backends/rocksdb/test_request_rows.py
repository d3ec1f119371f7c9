"""Request keys in the store: found whatever their order, and new ones without a look."""

import random
from pathlib import Path
from typing import Any

import pytest
from rocksdict import ColumnFamily, Rdict

from eventer_bridge import limits
from eventer_bridge.backends import rocksdb
from eventer_bridge.backends.request_keys import KeyRetention, RequestKey, digest
from eventer_bridge.backends.rocksdb.request_rows import FAMILY
from eventer_bridge.backends.rocksdb.store import Store
from eventer_bridge.model import Timestamp
from tests.eventer_bridge.backends.oracle import Writer, draft

FEW = KeyRetention(max_entries=20)


async def keep(writer: Writer, backend: Any, *names: str) -> None:
    for name in names:
        key = RequestKey("app", name, digest([]))
        await backend.register(writer.make(draft(), time=Timestamp.now()), None, 1, key)


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
        later = Store.later

        def note(store: Store, name: str) -> tuple[Rdict, ColumnFamily]:
            looked_up.append(name)
            return later(store, name)

        monkeypatch.setattr(Store, "later", note)
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
            key = RequestKey("app", name, digest([]))
            events = writer.make(draft(), time=Timestamp.now())
            committed = backend.register(events, None, 1, key)
            backend.find_requests("other", [name])  # for whom "app" is forgotten
            backend.find_requests("app", ["0"])  # which is read again now
            await committed
            assert backend.find_requests("app", [name]) != [None]
