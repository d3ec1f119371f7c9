"""Stores of members of a group: ``store verify --against``, ``restore --member``."""

import asyncio
import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from eventer_bridge.backends.rocksdb import control
from eventer_bridge.backends.rocksdb.member import create_member
from eventer_bridge.core.engine import Engine
from eventer_bridge.model import JsonPayload, RegisterEvent, SourceType
from mariner.cli import main

GROUP = "0" * 32


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(i) for i in arguments])


async def make(path: Path) -> None:
    """Two members with equal stores, ``a`` and ``b``, and one that is a record behind, ``c``."""
    log: list[Sequence[bytes]] = []

    async def append(position: int, parts: Sequence[bytes]) -> None:
        assert position == len(log) + 1
        log.append(parts)

    async with await create_member(path / "a") as backend, Engine(backend, 1) as engine:
        await backend.lead(GROUP, 1, append)
        engine.take_over()
        await engine.start()
        source = engine.create_source(SourceType.CONNECTION)
        batch = engine.register(
            source, [RegisterEvent(("t",), None, JsonPayload.of(i)) for i in range(3)]
        )
        await asyncio.wait([batch.committed])
    for name, n_records in ("b", len(log)), ("c", len(log) - 1):
        async with await create_member(path / name) as backend:
            for position, parts in enumerate(log[:n_records], 1):
                await backend.apply(GROUP, position, 1, parts)


@pytest.fixture
async def stores(tmp_path: Path) -> Path:
    await make(tmp_path)
    return tmp_path


def test_stores_of_members_are_compared(stores: Path) -> None:
    a, b, c = stores / "a", stores / "b", stores / "c"
    equal = run("store", "verify", a, "--against", b)
    assert equal.exit_code == 0
    assert re.fullmatch(rf"{a}, {b}: \d+ rows: equal\n", equal.stdout)
    behind = run("store", "verify", a, "--against", c)
    assert behind.exit_code == 1
    assert re.search(r"default: key [0-9a-f]+: has another value\n", behind.stdout)
    assert re.search(rf"{a}, {c}: \d+ rows: \d+ differences?\n", behind.stdout)


def test_a_member_is_restored_and_stays_one(stores: Path) -> None:
    control.checkpoint(stores / "a", stores / "backup")
    restored = run("restore", "--member", stores / "backup", stores / "d")
    assert restored.exit_code == 0, restored.stderr
    found = re.search(r"it goes on behind position (\d+) of the log of its group$", restored.stdout)
    assert found is not None
    assert re.search(rf"position +{found[1]}\n", run("store", "info", stores / "d").stdout)
    assert run("store", "verify", stores / "d", "--against", stores / "b").exit_code == 0


def test_a_store_leaves_its_group(stores: Path) -> None:
    control.checkpoint(stores / "a", stores / "backup")
    restored = run("restore", stores / "backup", stores / "d")
    assert restored.exit_code == 0, restored.stderr
    assert "history " in restored.stdout
    again = run("restore", "--member", stores / "d", stores / "e")
    assert again.exit_code == 1
    assert "it is not the store of a member of a group" in again.stderr
    assert not (stores / "e").exists()
    wrong = run("restore", "--member", "--until", "2026-01-01", stores / "backup", stores / "e")
    assert wrong.exit_code == 2
    assert "--member and --until exclude each other." in wrong.stderr
