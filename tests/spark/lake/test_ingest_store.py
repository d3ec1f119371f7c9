"""From a store, or a backup, into a lake."""

import asyncio
import multiprocessing
from pathlib import Path

import pytest
from msgspec.structs import replace

from eventer_bridge.model import Timestamp
from mariner_spark import limits
from mariner_spark.errors import LakeError, OptionError, ProcessKilledError
from mariner_spark.lake.ingest import ingest_store
from mariner_spark.lake.maintenance import info
from tests.spark.lake.oracle import check_rollups
from tests.spark.lake.support import draw_events, named, stored
from tests.spark.lake.test_ingest import registering
from tests.spark.support import fill, plain_events, rows_of
from tests.support.restoring import back_up, restore


def test_every_event_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = draw_events()
    drawn.sort(key=lambda i: i.id.session)
    half = len(drawn) // 2
    monkeypatch.setattr(limits, "FILE_ROWS", 10)
    for part in (drawn[:half], drawn[half:], []):
        fill(tmp_path / "store", part)
        ingest_store(str(tmp_path / "lake"), tmp_path / "store")
    assert stored(tmp_path / "lake") == rows_of(drawn)


def test_by_several_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "PART_ROWS", 200)
    fill(tmp_path / "store", plain_events(300))
    steps = []
    ingest_store(str(tmp_path / "lake"), tmp_path / "store", on_progress=lambda *i: steps.append(i))
    assert steps == [(1, 2), (2, 2)]
    assert stored(tmp_path / "lake") == rows_of(plain_events(300))
    check_rollups(tmp_path / "lake")
    # only what is new is read
    fill(tmp_path / "store", plain_events(310)[300:])
    ingest_store(str(tmp_path / "lake"), tmp_path / "store")
    assert stored(tmp_path / "lake") == rows_of(plain_events(310))
    assert len(named(tmp_path / "lake")) == 3


def test_a_process_that_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "PART_ROWS", 200)
    fill(tmp_path / "store", plain_events(300))

    def kill(done: int, _total: int) -> None:
        # this process has done the last part, while the others still start
        for process in multiprocessing.active_children() if done == 1 else ():
            process.kill()

    root = str(tmp_path / "lake")
    with pytest.raises(ProcessKilledError, match="of the processes was killed, perhaps for lack"):
        ingest_store(root, tmp_path / "store", on_progress=kill)
    assert stored(root) == []
    ingest_store(root, tmp_path / "store")
    assert stored(root) == rows_of(plain_events(300))


def test_a_store_and_its_gateway_are_the_same(tmp_path: Path) -> None:
    """Also a backup, which has less; but not a store that was restored from it."""
    lake, backup = str(tmp_path / "lake"), tmp_path / "backup"
    with registering(tmp_path) as (_, register):
        register(1)
        asyncio.run(back_up(tmp_path / "events", backup))
        register(2)
        ingest_store(lake, tmp_path / "events")
    before = stored(lake)
    assert sum(i["type"] == ["a"] for i in before) == 2
    assert info(lake).positions[1].history is not None
    ingest_store(lake, backup)
    assert stored(lake) == before
    restore(backup, tmp_path / "events")
    with registering(tmp_path) as (_, register):
        register(3)
        with pytest.raises(LakeError, match=r"server 1: it was restored: .* a new lake"):
            ingest_store(lake, tmp_path / "events")
    assert stored(lake) == before


def test_another_store_is_told(tmp_path: Path) -> None:
    fill(tmp_path / "one", plain_events(20))
    later = [replace(i, timestamp=Timestamp(2 * 10**9, 0)) for i in plain_events(30)[10:]]
    fill(tmp_path / "two", later)
    ingest_store(str(tmp_path / "lake"), tmp_path / "one")
    message = r"two has other events of server 7 than the lake: its session 2 is of 2033-.*new lake"
    with pytest.raises(LakeError, match=message):
        ingest_store(str(tmp_path / "lake"), tmp_path / "two")
    with pytest.raises(OptionError, match="path: "):
        ingest_store(str(tmp_path / "lake"), tmp_path / "nothing")
    assert stored(tmp_path / "lake") == rows_of(plain_events(20))
