"""``mariner backup|restore|store`` as processes, beside a running gateway where they can be."""

import asyncio
import contextlib
import json
import os
import pty
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
from click.testing import CliRunner
from hat.drivers import net
from hat.event import common as hat
from hat.event import eventer
from rocksdict import Options, Rdict

from eventer_bridge import limits
from eventer_bridge.backends import rocksdb
from eventer_bridge.backends.rocksdb import control, directories
from eventer_bridge.backends.rocksdb.contents import FAMILIES
from eventer_bridge.backends.rocksdb.markers import MARKER
from eventer_bridge.backends.rocksdb.store import Store
from mariner.cli import main
from tests.support import forked
from tests.support.gateway import gateway
from tests.support.hat_peers import hat_event_server
from tests.support.peer import RawPeer, event, register_req
from tests.support.shifted import ShiftedClock

IN_FLIGHT: Final = 16
EVENTS_PER_REQUEST: Final = 5


class Result(NamedTuple):
    code: int
    stdout: str
    stderr: str


async def run(*arguments: str | Path) -> Result:
    process = await forked.start("mariner", *map(str, arguments), environment=os.environ)
    stdout, stderr = await process.communicate()
    assert process.returncode is not None
    return Result(process.returncode, stdout.decode(), stderr.decode())


def fails(code: int, *arguments: str | Path) -> str:
    """Run a command that fails with one line; the line without its beginning."""
    result = CliRunner().invoke(main, [str(i) for i in arguments])
    assert (result.exit_code, result.stdout) == (code, ""), result
    [line] = result.stderr.splitlines()
    assert line.startswith("mariner: error: ")
    return line.removeprefix("mariner: error: ")


@contextlib.asynccontextmanager
async def registering(port: int, acknowledged: list[Any]) -> AsyncIterator[None]:
    """A client that registers as fast as it can, and notes what was acknowledged."""
    peer = await RawPeer.init(port)
    is_stopped = False

    async def register() -> None:
        n_sent = n_answered = 0
        while not is_stopped or n_answered < n_sent:
            while not is_stopped and n_sent < n_answered + IN_FLIGHT:
                values = [event("full", str(i), value=n_sent) for i in range(EVENTS_PER_REQUEST)]
                peer.send(register_req(n_sent, *values))
                n_sent += 1
            response = await peer.receive()
            assert response["success"], response
            n_answered += 1
            acknowledged.extend(response["events"])

    task = asyncio.create_task(register())
    try:
        while len(acknowledged) < 1_000:
            await asyncio.sleep(0.01)
            assert not task.done()
        yield
    finally:
        is_stopped = True
        await task
        peer.writer.close()


async def stored(port: int) -> list[Any]:
    """All registered events of the client above, by id."""
    request = {"msg_type": "query_req", "query_id": 1, "query_type": "server", "server_id": 1}
    found: list[Any] = []
    async with await RawPeer.init(port) as peer:
        last: dict[str, Any] = {}
        while True:
            response = await peer.request({**request, "persisted": True, **last})
            found.extend(response["events"])
            if not response["more_follows"]:
                return [i for i in found if i["type"][0] == "full"]
            last = {"last_event_id": found[-1]["id"]}


async def test_a_backup_of_a_gateway_under_load_is_verified_and_restored(tmp_path: Path) -> None:
    before: list[Any] = []
    backup, restored = tmp_path / "backup", tmp_path / "other" / "events"
    conf = tmp_path / "gateway.json"
    async with gateway(tmp_path) as running:
        acknowledged: list[Any] = []
        async with registering(running.port, acknowledged):
            before = list(acknowledged)
            made = await run("backup", "--conf", conf, backup)
            assert (made.code, made.stderr) == (0, "")
            checked = await run("store", "verify", tmp_path / "events")
            assert checked.stdout.endswith(" types: ok\n"), checked
            info = await run("store", "info", "--json", "--conf", conf)
            copied = await run("restore", tmp_path / "events", tmp_path / "copy")
            assert (copied.code, copied.stderr) == (0, "")
            checked = await run("store", "verify", tmp_path / "copy")
            assert checked.stdout.endswith(" types: ok\n"), checked
        text = (
            rf"backup of {tmp_path / 'events'}: {backup}: about \d+ events, \d+ bytes, \d+\.\d s\n"
        )
        assert re.fullmatch(text, made.stdout)
        assert json.loads(info.stdout)["servers"][0]["last_session"] >= len(before) // 5
        used = (
            f"{tmp_path / 'events'}: the event store is in use by process {running.process.pid} ("
        )
        assert fails(1, "restore", backup, tmp_path / "events").startswith(used)
        assert fails(1, "store", "compact", tmp_path / "events").startswith(used)
        assert fails(1, "backup", "--conf", conf, backup) == f"{backup}: exists already"
        within = tmp_path / "events" / "checkpoint-monday"
        refused = f"{within}: is in the event store {tmp_path / 'events'}: choose a path outside it"
        assert fails(1, "backup", "--conf", conf, within) == refused
        assert fails(1, "restore", backup, within) == refused
        assert not within.exists()

    checked = await run("store", "verify", backup)
    assert (checked.code, checked.stderr) == (0, "")
    assert re.fullmatch(
        rf"{backup}: \d+ events, \d+ sessions, 1 server, \d+ types: ok\n", checked.stdout
    )
    result = await run("restore", backup, restored)
    assert (result.code, result.stderr) == (0, "")
    assert re.match(rf"restored {backup}: {restored}: about \d+ events, ", result.stdout)
    info = json.loads((await run("store", "info", "--json", restored)).stdout)
    assert f"\nhistory {info['history']} begins: " in result.stdout
    assert (
        info["history"]
        != json.loads((await run("store", "info", "--json", backup)).stdout)["history"]
    )
    [server] = info["servers"]
    assert (
        f"server 1 has nothing behind session {server['last_session']}; new ids have sessions above"
        f" {server['mark']}\n" in result.stdout
    )
    assert server["mark"] > 10**15
    async with gateway(restored.parent) as running:
        found = await stored(running.port)
        assert len(before) >= 1_000
        assert found[: len(before)] == before
        assert found == acknowledged[: len(found)]
        async with await RawPeer.init(running.port) as peer:
            response = await peer.request(register_req(1, event("after")))
            assert response["events"][0]["id"]["session"] > found[-1]["id"]["session"]
    again = f"{restored}: exists already, and is not empty"
    assert fails(1, "restore", backup, restored) == again


async def make_store(path: Path, n_events: int = 100) -> Path:
    """The store of a gateway that ran, at ``path/events``."""
    async with gateway(path) as running, await RawPeer.init(running.port) as peer:
        events = [
            {**event("a", str(i % 3)), "source_timestamp": {"s": -i, "us": 0}}
            for i in range(n_events)
        ]
        assert (await peer.request(register_req(1, *events)))["success"]
    return path / "events"


async def test_info_verify_and_compact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = await make_store(tmp_path)
    info = await run("store", "info", store)
    assert (info.code, info.stderr) == (0, "")
    lines = info.stdout.splitlines()
    assert lines[0].split() == ["store", str(store)]
    assert any(re.fullmatch(r"events +about \d+", line) for line in lines)
    assert any(re.fullmatch(r"event types +\d+", line) for line in lines)
    assert any(re.fullmatch(r"types of client app +\d+", line) for line in lines)
    assert any(re.fullmatch(r"time +\d{4}-.*Z to \d{4}-.*Z", line) for line in lines)
    server = r"server 1 +sessions 1 to \d+, ids given up to \d+"
    assert any(re.fullmatch(server, line) for line in lines)
    assert any(re.fullmatch(r"on disk +\d+ bytes", line) for line in lines)

    result = await run("store", "compact", store)
    assert (result.code, result.stderr) == (0, "")
    text = rf"{store}: \d+ bytes before, \d+ bytes after, \d+\.\d s\n"
    assert re.fullmatch(text, result.stdout)
    assert (await run("store", "verify", store)).code == 0

    families = {name: Options(raw_mode=True) for name in ("default", *FAMILIES)}
    (store / MARKER).unlink()
    db = Rdict(str(store), Options(raw_mode=True), families)
    sources = db.get_column_family("source")
    n_rows = 0
    for key in list(sources.keys()):
        del sources[key]
        n_rows += 1
    sources.close()
    db.close()
    result = await run("store", "verify", store)
    assert (result.code, result.stderr) == (1, "")
    *findings, summary = result.stdout.splitlines()
    assert len(findings) == n_rows
    assert all(re.fullmatch(r"source: 1/\d+/\d+: no row, but .* has one", i) for i in findings)
    assert summary.endswith(f": {n_rows} findings")
    monkeypatch.setattr(limits, "MAX_LISTED", 2)
    shown = CliRunner().invoke(main, ["store", "verify", str(store)]).stdout.splitlines()
    assert shown == [*findings[:2], f"… and {n_rows - 2} more", summary]


async def test_compaction_makes_it_smaller(tmp_path: Path) -> None:
    store = await make_store(tmp_path, 20_000)
    result = await run("store", "compact", store)
    numbers = re.search(r": (\d+) bytes before, (\d+) bytes after", result.stdout)
    assert numbers is not None
    before, after = map(int, numbers.groups())
    assert after < before


async def test_what_is_made_of_a_stopped_gateway_is_shown_by_its_next_start(tmp_path: Path) -> None:
    store, copy, conf = (tmp_path / i for i in ("events", "copy", "gateway.json"))
    async with await rocksdb.create(store):
        pass
    backend = {"type": "rocksdb", "path": str(store)}
    core = {"server_id": 1, "backend": backend}
    server = {"host": "127.0.0.1", "port": 0}
    conf.write_text(json.dumps({"name": "x", "mariner": server, "event_core": core, "clients": []}))
    for command, is_drill in (
        (("backup", store, copy), False),
        (("backup", store, "--to", tmp_path / "place"), False),
        (("store", "verify", copy, "--drill-of", conf), True),
    ):
        made = CliRunner().invoke(main, [str(i) for i in command])
        assert made.exit_code == 0, made
        async with await rocksdb.create(store) as opened:
            assert opened.control is not None
            moments_s = opened.control.backed_up_s, opened.control.drilled_s
        assert [i > 0 for i in moments_s] == [not is_drill, is_drill]
        for name in (directories.BACKED_UP, directories.DRILLED):
            assert not (copy / name).exists()
            (store / name).unlink(missing_ok=True)


def test_what_is_no_store(tmp_path: Path) -> None:
    none = tmp_path / "none"
    for command in (
        ("store", "info", none),
        ("store", "verify", none),
        ("store", "compact", none),
        ("backup", none, tmp_path / "x"),
        ("restore", none, tmp_path / "x"),
    ):
        assert fails(1, *command) == f"{none}: not an event store: no such directory"
    (tmp_path / "notes").touch()
    text = f"{tmp_path}: damaged, or not an event store: no file CURRENT"
    assert fails(1, "store", "verify", tmp_path) == text
    assert os.listdir(tmp_path) == ["notes"]  # noqa: PTH208


def test_wrong_usage(tmp_path: Path) -> None:
    conf = tmp_path / "memory.json"
    core = {"server_id": 1, "backend": {"type": "memory"}}
    server = {"host": "127.0.0.1", "port": 0}
    conf.write_text(json.dumps({"name": "x", "mariner": server, "event_core": core, "clients": []}))
    text = f"{conf}: event_core.backend: has no store on disk"
    assert fails(2, "store", "info", "--conf", conf) == text
    missing = tmp_path / "none.json"
    assert fails(2, "backup", "--conf", missing, "x") == f"{missing}: No such file or directory"
    for command, expected in (
        (("backup", "a"), "expected STORE TARGET, or --conf in place of STORE."),
        (("restore", "--conf", conf, "a", "b"), "expected BACKUP besides --conf."),
        (("store", "verify"), "expected STORE, or --conf in place of STORE."),
        (("store", "import-hat", "a"), "Missing argument 'STORE'."),
    ):
        result = CliRunner().invoke(main, [str(i) for i in command])
        assert result.exit_code == 2
        assert f"Error: {expected}" in result.stderr


async def test_a_store_that_something_else_has_open(tmp_path: Path) -> None:
    path = await make_store(tmp_path)
    store = Store(path)
    try:
        assert "the event store is in use by" in fails(1, "backup", path, tmp_path / "backup")
    finally:
        store.ext_close()
    assert not control.is_served(path)


async def test_import_of_a_hat_event_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with hat_event_server(tmp_path) as server:
        client = await eventer.connect(net.TcpAddress(server.host, server.port), "importer")
        await client.register(
            [hat.RegisterEvent(("a",), None, hat.EventPayloadJson(i)) for i in range(10)],
            with_response=True,
        )
        await client.async_close()
    store = tmp_path / "events"
    result = await run("store", "import-hat", tmp_path / "events.db", store)
    assert (result.code, result.stderr) == (0, "")
    text = rf"{store}: \d+ events, \d+ sessions, \d+ types imported, 0 events left out, \d+\.\d s\n"
    assert re.fullmatch(text, result.stdout)
    async with gateway(tmp_path) as running, await RawPeer.init(running.port) as peer:
        request = {"msg_type": "query_req", "query_id": 1, "query_type": "latest"}
        response = await peer.request({**request, "event_types": [["a"]]})
        assert response["events"][0]["payload"]["data"] == 9
        registered = await peer.request(register_req(1, event("new")))
        last = registered["events"][0]["id"]["session"]
        assert last > response["events"][0]["id"]["session"]
    again = f"{store}: exists already, and is not empty"
    assert fails(1, "store", "import-hat", tmp_path / "events.db", store) == again

    # as if the clock there had been ahead by an hour
    ShiftedClock(monkeypatch).seconds = -3_600
    for command in ("import-hat", tmp_path / "events.db", tmp_path / "again"), ("info", store):
        told = CliRunner().invoke(main, ["store", *map(str, command)], env={"COLUMNS": "200"})
        assert told.exit_code == 0, told
        ahead = r"server 1.* events up to [\d:.TZ-]+ are ahead of the clock by 3\d{3} s"
        assert any(re.match(ahead, line) for line in told.stdout.splitlines()), told.stdout


@pytest.mark.parametrize("command", ["verify", "compact"])
async def test_a_terminal_gets_a_progress_bar(tmp_path: Path, command: str) -> None:
    store = await make_store(tmp_path)
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "80"}
    process = await forked.start(
        *("mariner", "store", command, str(store)), environment=environment, stderr=theirs
    )
    os.close(theirs)
    shown = bytearray()
    with contextlib.suppress(OSError):  # EIO: nobody has the terminal open any more
        while data := await asyncio.to_thread(os.read, ours, 4096):
            shown += data
    os.close(ours)
    stdout, _ = await process.communicate()
    assert process.returncode == 0
    assert command.encode() in shown
    assert stdout.startswith(str(store).encode())
