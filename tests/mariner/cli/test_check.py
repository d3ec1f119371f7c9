"""``mariner check``: it makes what ``serve`` makes, and leaves nothing behind."""

import asyncio
import copy
import errno
import json
import logging
import os
from pathlib import Path
from typing import Any, Final

import pytest
from click.testing import CliRunner, Result

from eventer_bridge.backends import rocksdb
from mariner.cli import main

THRESHOLD: Final = {"subscriptions": [["a"]], "path": [], "limit": 1, "alarm_prefix": ["alarm"]}
THRESHOLDS: Final = "eventer_bridge.modules.threshold"
MODULE: Final = "json_schema = {}\nasync def create(conf, engine):\n    "


def conf(folder: Path, **keys: Any) -> dict[str, Any]:
    backend = {"type": "rocksdb", "path": str(folder / "events")}
    core = {"server_id": 1, "backend": backend, **keys.pop("core", {})}
    client = {"name": "app", "token": "0", "subscriptions": [], "register_events": []}
    mariner = {"host": "127.0.0.1", "port": 0}
    return {"name": "g", "mariner": mariner, "event_core": core, "clients": [client], **keys}


def check(folder: Path, data: dict[str, Any]) -> Result:
    path = folder / "gateway.json"
    path.write_text(json.dumps(data))
    path.chmod(0o600)
    return CliRunner().invoke(main, ["check", "--conf", str(path)])


def handler(**keys: Any) -> dict[str, Any]:
    return {
        "version": 1,
        "handlers": {"h": {"class": "logging.FileHandler", **keys}},
        "root": {"handlers": ["h"], "level": "DEBUG"},
    }


def test_nothing_is_left_behind(tmp_path: Path) -> None:
    (tmp_path / "kept.log").write_text("a line\n")
    handlers, level = [*logging.root.handlers], logging.root.level
    for name in ("new.log", "kept.log"):
        data = conf(
            tmp_path,
            log=handler(filename=str(tmp_path / name)),
            audit={"file": str(tmp_path / "audit.log")},
            control=str(tmp_path / "control.sock"),
            core={"modules": [{"module": THRESHOLDS, "thresholds": [THRESHOLD]}]},
        )
        before = copy.deepcopy(data)
        result = check(tmp_path, data)
        assert (result.exit_code, result.stdout) == (0, f"{tmp_path}/gateway.json: ok\n"), result
        assert data == before
    assert sorted(i.name for i in tmp_path.iterdir()) == ["gateway.json", "kept.log"]
    assert (tmp_path / "kept.log").read_text() == "a line\n"
    assert (logging.root.handlers, logging.root.level) == (handlers, level)


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        (
            {"log": handler(filename="{0}/none/a.log")},
            "log: Unable to configure handler 'h': {0}/none/a.log: No such file or directory",
        ),
        ({"log": {"version": 2}}, "log: Unsupported version: 2"),
        (
            {"control": "{0}/none/control.sock"},
            "control: {0}/none/control.sock: expected a socket in an existing directory",
        ),
        (
            {"core": {"backend": {"type": "rocksdb", "path": "{0}/gateway.json"}}},
            "event_core.backend.path: {0}/gateway.json: expected a directory: {0}/gateway.json is",
        ),
        (
            {"core": {"backend": {"type": "rocksdb", "path": "{0}"}}},
            "event_core.backend.path: {0}: damaged, or not an event store: no file CURRENT, but ",
        ),
        (
            {"core": {"modules": [{"module": THRESHOLDS, "thresholds": [THRESHOLD, THRESHOLD]}]}},
            "module eventer_bridge.modules.threshold failed: ModuleError: thresholds[0] and thr",
        ),
        (
            {"core": {"modules": [{"module": "raises_at_creation"}]}},
            "module raises_at_creation failed: OSError: no such machine",
        ),
    ],
)
def test_what_serve_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keys: dict[str, Any], problem: str
) -> None:
    monkeypatch.syspath_prepend(tmp_path / "modules")
    (tmp_path / "modules").mkdir()
    module = tmp_path / "modules" / "raises_at_creation.py"
    module.write_text(f"{MODULE}raise OSError('no such machine')\n")
    text = json.dumps(conf(tmp_path, **keys)).replace("{0}", str(tmp_path))
    result = check(tmp_path, json.loads(text))
    assert (result.exit_code, result.stdout) == (2, "")
    assert problem.replace("{0}", str(tmp_path)) in result.stderr
    assert result.stderr.count("mariner: error: ") == 1


def test_a_store_whose_directory_is_read_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_file = os.open

    def open_read_only(path: Any, flags: int, *args: Any, **keys: Any) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
        return open_file(path, flags, *args, **keys)

    monkeypatch.setattr(os, "open", open_read_only)
    result = check(tmp_path, conf(tmp_path))
    problem = f"event_core.backend.path: {tmp_path}/events: {tmp_path}: Read-only file system\n"
    assert (result.exit_code, result.stderr) == (2, f"mariner: error: {problem}")


async def test_a_store_with_files_of_another_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one that root started once, for example; root may write everything, so it is imitated."""
    store = tmp_path / "events"
    async with await rocksdb.create(store):
        pass
    is_accessible = os.access
    theirs = {str(store / "LOCK"), str(store / "gone")}

    def access(path: Any, mode: int) -> bool:
        if str(path) in theirs:
            (store / "gone").unlink(missing_ok=True)
        return str(path) not in theirs and is_accessible(path, mode)

    monkeypatch.setattr(os, "access", access)
    (store / "gone").touch()
    result = await asyncio.to_thread(check, tmp_path, conf(tmp_path))
    problem = f"event_core.backend.path: {store}: {store}/LOCK: Permission denied\n"
    assert (result.exit_code, result.stderr) == (2, f"mariner: error: {problem}")
    theirs.remove(str(store / "LOCK"))
    (store / "gone").touch()
    assert (await asyncio.to_thread(check, tmp_path, conf(tmp_path))).exit_code == 0
