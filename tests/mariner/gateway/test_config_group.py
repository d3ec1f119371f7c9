"""The configuration of a group: what it may be, and that it never shows a password."""

import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from eventer_bridge.group.dsn import PostgresqlConfig
from mariner.gateway import config, config_file
from tests.mariner.gateway.test_config import GOOD, problems
from tests.mariner.gateway.test_config_audit import SECRET, check, findings

DSN = "postgresql://mariner@db1,db2:6432/events?sslmode=verify-full"
LOG = {"type": "postgresql", "dsn": DSN}
GROUP: dict[str, Any] = {"log": LOG, "name": "plant", "member": "north"}


def with_group(core: dict[str, Any] | None = None, **group: Any) -> dict[str, Any]:
    its = {**GOOD["event_core"], "group": {**GROUP, **group}, **(core or {})}
    return {**GOOD, "event_core": its}


def with_dsn(dsn: str, **log: Any) -> dict[str, Any]:
    return with_group(log={**LOG, "dsn": dsn, **log})


def test_a_group() -> None:
    core = config_file.parse(with_group(), "test").event_core
    assert core is not None
    assert core.group == config.GroupConfig(PostgresqlConfig(DSN), "plant", "north")
    its: dict[str, Any] = {"takeover_s": 2, "keep": 60, "unreplicated": True}
    core = config_file.parse(with_group(**its), "test").event_core
    assert core is not None
    assert core.group is not None
    assert (core.group.takeover_s, core.group.keep, core.group.unreplicated) == (2, 60, True)
    of_any = {**GOOD["event_core"], "group": {"log": LOG, "name": "plant"}}
    core = config_file.parse({**GOOD, "event_core": of_any}, "test").event_core
    assert core is not None
    assert core.group is not None
    assert core.group.member == socket.gethostname()


def test_the_servers_of_a_uri() -> None:
    log = PostgresqlConfig("postgresql://a:p%40@[::1]:1,db/my%20db?sslkey=k&sslcert=c")
    assert log.place == "[::1]:1,db/my db"
    assert log.servers() == {
        "[::1]:1/my db": "postgresql://a:p%40@[::1]:1/my%20db?sslkey=k&sslcert=c",
        "db/my db": "postgresql://a:p%40@db/my%20db?sslkey=k&sslcert=c",
    }
    assert log.files() == {"sslkey": Path("k"), "sslcert": Path("c")}
    assert log.has_password
    assert "p%40" not in repr(log)
    assert not PostgresqlConfig(DSN).has_password
    assert PostgresqlConfig("postgresql://h/d?password=x").has_password


@pytest.mark.parametrize(
    ("conf", "problem"),
    [
        (with_group(takeover_s=0.4), "event_core.group.takeover_s: 0.4: expected at least 0.5"),
        (with_group(keep=float("nan")), "event_core.group.keep: nan: expected a number"),
        (with_group(member=""), "event_core.group.member: '': expected a text that is not empty"),
        (
            with_group({"backend": {"type": "memory"}}),
            "event_core.backend.type: memory: expected rocksdb, for a group",
        ),
        (
            with_group({"replication": [{"server_id": 2, "host": "h", "port": 1}]}),
            "event_core.replication: expected either replication or group: the log of the group",
        ),
        (
            with_group(
                {
                    "monitor": {"host": "h", "port": 1, "group": "g"},
                    "eventer_server": {"host": "h", "port": 0},
                }
            ),
            "event_core.monitor: expected either monitor or group",
        ),
        *(
            (with_dsn(dsn), f"event_core.group.log.dsn: ***: expected {expected}")
            for dsn, expected in (
                (f"host=db user=mariner password={SECRET}", "a URI, as postgresql://"),
                (f"mysql://a:{SECRET}@db/events", "a URI"),
                (f"postgresql://a:{SECRET}@db", "a URI"),
                (f"postgresql://a:{SECRET}@db/events?{SECRET}", "a URI"),
                (f"postgresql://a:{SECRET}@x@db/events", "@, / and # in a password to be"),
                (f"postgresql://a:1/{SECRET}@db/events", "@, / and # in a password to be"),
                (f"postgresql://a:{SECRET}/x", "each host as host or host:port"),
            )
        ),
    ],
)
def test_what_is_wrong(conf: Any, problem: str) -> None:
    [found] = problems(conf)
    assert found.startswith(f"gateway.yaml: {problem}")
    assert SECRET not in found


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "gateway.json"


def stored(conf: dict[str, Any], path: Path) -> dict[str, Any]:
    """With a store that can be made, and a token that nobody finds fault with."""
    conf["event_core"]["backend"] = {"type": "rocksdb", "path": str(path.parent / "store")}
    return {**conf, "clients": [], "http": {}}


def test_files_that_cannot_be_used(path: Path) -> None:
    conf = with_dsn(f"{DSN}&sslcert=/nowhere/c", password_file="/nowhere/p")
    result = check(path, stored(conf, path))
    assert result.exit_code == 2
    assert result.stderr.splitlines() == [
        f"mariner: error: event_core.group.log.{line}"
        for line in (
            "password_file: /nowhere/p: No such file or directory",
            "dsn: sslcert: /nowhere/c: No such file or directory",
        )
    ]


def test_who_can_read_a_password(path: Path) -> None:
    password, key = path.parent / "password", path.parent / "key"
    password.write_text(f"{SECRET}\n")
    key.write_text("")
    password.chmod(0o644)
    key.chmod(0o600)
    conf = with_dsn(f"postgresql://a:{SECRET}@db/d?sslkey={key}", password_file=str(password))
    nobody = "clients: none: nobody can connect"
    assert findings(path, stored(conf, path), 0o604) == [
        nobody,
        "has a password, and users other than its owner can read it: mode 0604",
        f"event_core.group.log.password_file: {password}: users other than its owner can read it:"
        " mode 0644",
    ]
    password.write_text("two\nlines")
    text = f"event_core.group.log.password_file: {password}: expected a password in one line"
    assert check(path, stored(conf, path)).stderr == f"mariner: error: {text}\n"


def test_without_the_extra(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "asyncpg", None)
    result = check(path, stored(with_group(), path))
    text = "event_core.group: needs the extra `group` (pip install 'mariner-gateway[group]')"
    assert (result.exit_code, result.stderr) == (2, f"mariner: error: {text}\n")


def test_another_group_takes_a_restart() -> None:
    before = config_file.parse(with_group(), "before")
    after = config_file.parse(with_group(member="south", log={**LOG, "dsn": f"{DSN}x"}), "after")
    runs = config.taken_on(before, after)
    assert list(config.differences(before, runs)) == []
    assert list(config.differences(runs, after)) == [
        "event_core.group.log.dsn",
        "event_core.group.member",
    ]
