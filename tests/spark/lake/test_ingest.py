"""From gateways into a lake: by the function, and by ``mariner lake``."""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from eventer_bridge.model import Event
from mariner_spark import limits, times
from mariner_spark.errors import LakeError, OptionError
from mariner_spark.lake.ingest import ingest
from mariner_spark.lake.maintenance import count, info
from tests.spark.lake.support import draw_events, named, opened, stored, wait_until
from tests.spark.source.test_network import served
from tests.spark.support import rows_of
from tests.support.gateway import gateway
from tests.support.peer import RawPeer, event, register_req
from tests.support.restoring import back_up, restore

SERVERS = {"servers": ",".join(str(i) for i in (2, 3, -5, (1 << 63) - 1))}


@contextmanager
def serving(directory: Path, in_store: list[Event]) -> Iterator[dict[str, str]]:
    """Options of a stream of what a gateway has."""
    running = served(directory, in_store)
    with asyncio.Runner() as runner:
        options = runner.run(running.__aenter__())
        yield {**options, **SERVERS}
        runner.run(running.__aexit__(None, None, None))


def test_every_event_of_gateways_that_share_a_server(tmp_path: Path) -> None:
    """One has what the other has, and more; and every run goes on where the lake is."""
    in_store, root = draw_events(), tmp_path / "lake"
    in_store.sort(key=lambda i: i.id.session)
    half = len(in_store) // 2
    with serving(tmp_path / "one", in_store[:half]) as source:
        ingest(str(root), source)
        assert count(str(root))[0] == half
    with serving(tmp_path / "two", in_store) as source:
        with ThreadPoolExecutor(1) as other_thread:
            rest = other_thread.submit(ingest, str(root), source)
            rest.result()
        assert count(str(root))[0] == len(in_store)
        with pytest.raises(OptionError) as caught:
            ingest(str(tmp_path / "other"), {**source, "token": "wrong"})
        assert count(str(tmp_path / "other"))[0] == 0
        none, value_path = {**source, "servers": "77"}, "$.other"
        ingest(str(tmp_path / "none"), none, value_path=value_path)
        found = info(str(tmp_path / "none"))
        assert (found.tables["events"].rows, found.value_path) == (0, value_path)
    assert stored(root) == rows_of(in_store)
    address = f"{source['host']}:{source['port']}"
    expected = f"client_name, token: {address} declined: invalid client name or token"
    assert str(caught.value) == expected


def values(root: Path | str) -> set[Any]:
    """Payloads of the events of type ``a``."""
    rows = stored(root) if count(str(root))[0] else []
    found = [i["payload_json"] for i in rows if i["type"] == ["a"]]
    assert len(set(found)) == len(found)
    return set(found)


@contextmanager
def registering(
    directory: Path, server_id: int = 1
) -> Iterator[tuple[dict[str, str], Callable[[int], None]]]:
    """Options of a stream of a new gateway, and what registers an event with a value there."""
    directory.mkdir(exist_ok=True)
    running = gateway(directory, core={"server_id": server_id})
    with asyncio.Runner() as runner:

        async def register(value: int) -> None:
            async with await RawPeer.init(found.port) as peer:
                await peer.request(register_req(1, event("a", value=value)))

        found = runner.run(running.__aenter__())
        options = {
            "host": found.host,
            "port": str(found.port),
            "client_name": "app",
            "token": "secret",
        }
        yield options, lambda value: runner.run(register(value))
        runner.run(running.__aexit__(None, None, None))


def test_gateways_of_different_servers(tmp_path: Path) -> None:
    """What the lake has of other servers is no concern of a gateway."""
    root = tmp_path / "lake"
    with (
        registering(tmp_path / "one", 5) as (one, register_at_one),
        registering(tmp_path / "two", 6) as (two, register_at_two),
    ):
        register_at_one(1)
        ingest(str(root), one)
        register_at_two(2)
        ingest(str(root), two)
        assert values(root) == {"1", "2"}
        register_at_one(3)
        ingest(str(root), one)
    assert values(root) == {"1", "2", "3"}
    assert info(str(root)).positions.keys() == {5, 6}


def test_a_continuous_run_keeps_the_lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It updates the derived tables, and compacts, now and then."""
    monkeypatch.setattr(limits, "UPDATE_S", 0)
    monkeypatch.setattr(limits, "MAINTENANCE_S", 0)
    root = tmp_path / "lake"

    class EnoughError(Exception):
        pass

    def check() -> None:
        if values(root) == {"1"}:
            register(2)
        elif values(root) == {"1", "2"} and len(named(root)) == 1:
            found = opened(root, "rollups").to_pyarrow_table()
            if {1, 2} <= {*found.column("min").to_pylist(), *found.column("max").to_pylist()}:
                raise EnoughError

    with registering(tmp_path) as (source, register):
        register(1)
        with pytest.raises(EnoughError):
            ingest(str(root), source, interval_s=0.1, on_progress=check)


def is_group(group: int) -> bool:
    """Whether a group has a process."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_follows_until_it_is_interrupted(tmp_path: Path, number: signal.Signals) -> None:
    """By Ctrl-C, too, which all its processes get; it leaves none of them, nor any file."""
    root, temporary = tmp_path / "lake", tmp_path / "temporary"
    temporary.mkdir()
    with registering(tmp_path) as (source, register):
        register(1)
        process = subprocess.Popen(
            [*(sys.executable, "-m", "mariner", "lake", "ingest", str(root), "--follow"),
             *("--interval", "0.1", "--port", source["port"], "--name", "app")],
            env={**os.environ, "MARINER_TOKEN": "secret", "TMPDIR": str(temporary)},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        try:
            wait_until(lambda: values(root) == {"1"})
            register(2)
            wait_until(lambda: values(root) == {"1", "2"})
            os.killpg(process.pid, number)
            stdout, stderr = process.communicate()
        finally:
            process.kill()
            process.communicate()
    assert (stdout, stderr, process.returncode) == ("", "", 128 + signal.SIGINT)
    wait_until(lambda: not is_group(process.pid))
    assert list(temporary.iterdir()) == []


def test_a_store_that_was_restored_is_told(tmp_path: Path) -> None:
    """Where the lake has more than was restored; a lake that has not goes on."""
    root, shorter, backup = (str(tmp_path / i) for i in ("lake", "shorter", "backup"))
    with registering(tmp_path) as (source, register):
        register(1)
        ingest(shorter, source)
        asyncio.run(back_up(tmp_path / "events", Path(backup)))
        register(2)
        ingest(root, source)
    first = info(root).positions[1].history
    assert first == info(shorter).positions[1].history is not None
    restore(Path(backup), tmp_path / "events")
    before = stored(Path(root))
    with registering(tmp_path) as (source, register):
        register(3)
        with pytest.raises(LakeError, match=rf"continues {first} from session.*a new lake"):
            ingest(root, source)
        ingest(shorter, source)
        assert values(Path(shorter)) == {"1", "3"}
    assert stored(Path(root)) == before
    assert info(shorter).positions[1].history not in {None, first}


def test_a_store_that_was_made_anew_is_told(tmp_path: Path) -> None:
    """Also when it has come past the last event that the lake has."""
    root = tmp_path / "lake"
    with registering(tmp_path) as (source, register):
        register(1)
        ingest(str(root), source)
        position = info(str(root)).positions[1]
    before = stored(root)
    assert position.timestamp == max(times.from_datetime(i["timestamp"]) for i in before)
    shutil.rmtree(tmp_path / "events")
    message = rf"server 1: its history is .*, but {position.history} was followed"
    with registering(tmp_path) as (source, register):
        for value in range(10):
            register(value)
        for more in ({}, {"failOnDataLoss": "false"}, {"servers": "1"}):
            with pytest.raises(LakeError, match=message):
                ingest(str(root), {**source, **more})
    assert stored(root) == before
