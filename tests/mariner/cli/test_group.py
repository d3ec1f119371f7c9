"""``mariner group``, of a log that no gateway uses."""

import asyncio
import json
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from eventer_bridge.group.dsn import PostgresqlConfig
from eventer_bridge.group.postgresql import PostgresqlLog
from mariner.cli import main
from tests.support.machine import free_port
from tests.support.postgresql import Cluster

NAME = "plant of test_group"


def conf_of(directory: Path, dsn: str) -> Path:
    path = directory / "gateway.json"
    core = {
        "server_id": 7,
        "backend": {"type": "rocksdb", "path": str(directory / "store")},
        "group": {"log": {"type": "postgresql", "dsn": dsn}, "name": NAME, "member": "north"},
    }
    conf: dict[str, Any] = {"name": "gateway", "clients": [], "event_core": core}
    path.write_text(json.dumps({**conf, "mariner": {"host": "127.0.0.1", "port": 0}}))
    return path


async def group(conf: Path, command: str, *arguments: str) -> Result:
    line = ["group", command, "--conf", str(conf), *arguments]
    return await asyncio.to_thread(CliRunner().invoke, main, line)


async def test_a_group_from_its_beginning(tmp_path: Path, postgresql: Cluster) -> None:
    conf = conf_of(tmp_path, postgresql.dsn())
    at = "at " + postgresql.dsn().partition("@")[2]
    here = f"PostgreSQL at 127.0.0.1:{postgresql.primary.port}/postgres"
    missing = f"{here} has no group {NAME}: make it with `mariner group init`"
    for line in (["status"], ["remove", "north"]):
        result = await group(conf, *line)
        # the tables may be there, for other groups
        assert (result.exit_code, result.stderr) == (1, f"mariner: error: {missing}\n")
    result = await group(conf, "init")
    assert result.exit_code == 0, result.output
    async with PostgresqlLog(PostgresqlConfig(postgresql.dsn()), NAME, 30.0) as log:
        group_id = (await log.state()).group_id
        assert result.stdout == f"made: group {NAME} ({group_id}), for server 7, {at}\n"
        result = await group(conf, "init")
        text = f"{here} has a group {NAME} already"
        assert (result.exit_code, result.stderr) == (1, f"mariner: error: {text}\n")
        result = await group(conf, "status")
        assert result.stdout.splitlines() == [
            f"group    {NAME}, {at}",
            "active   nobody",
            "records  0, 0 kept",
            "",
            "MEMBER  STATE  POSITION  RECORDS BEHIND  BEHIND  LAST SEEN",
        ]
        state = await log.claim(await log.state(), "north", "")
        for position in (1, 2, 3):
            await log.append(1, position, [b"x"])
        await log.note_member("north", 2)
        await log.note_member("so\x1buth", 1)
        await log.trim(3600.0)
        lines = (await group(conf, "status")).stdout.splitlines()
        assert lines[1].startswith("active   north, epoch 1, since 20")
        assert lines[2] == "records  3, 2 kept"
        north, south = (line.split() for line in lines[5:])
        assert north[:4] == ["north", "active", "2", "0"]
        assert south[:4] == [r"so\x1buth", "follower", "1", "2"]
        assert south[5] == "s"
        assert south[7:] == ["s", "ago"]
        answer = json.loads((await group(conf, "status", "--json")).stdout)
        seen = [(i["name"], i["is_active"], i["lag_records"]) for i in answer.pop("members")]
        assert seen == [("north", True, 0), ("so\x1buth", False, 2)]
        assert answer.pop("since").startswith("20")
        assert answer == {
            "name": NAME,
            "group_id": group_id,
            "server_id": 7,
            "epoch": 1,
            "active": "north",
            "position": 3,
            "acknowledged": 2,
            "trimmed": 1,
        }
        await log.release(state.epoch)
    assert "active   nobody since 20" in (await group(conf, "status")).stdout
    result = await group(conf, "remove", "so\x1buth")
    assert (result.exit_code, result.stdout) == (0, "removed: so\\x1buth\n")
    result = await group(conf, "remove", "east")
    text = f"group {NAME} has no member 'east'"
    assert (result.exit_code, result.stderr) == (1, f"mariner: error: {text}\n")


async def test_the_sql_needs_no_server(tmp_path: Path) -> None:
    conf = conf_of(tmp_path, "postgresql://my-role@nowhere/events")
    result = await group(conf, "init", "--print-sql")
    assert result.exit_code == 0
    assert result.stdout.startswith("CREATE SCHEMA IF NOT EXISTS mariner;\n")
    assert result.stdout.endswith('mariner.records, mariner.members TO "my-role";\n')


async def test_what_cannot_be_asked(tmp_path: Path) -> None:
    port = free_port()
    conf = conf_of(tmp_path, f"postgresql://a:hunter2@127.0.0.1:{port}/events")
    for line in (["init"], ["status"], ["remove", "north"]):
        result = await group(conf, *line)
        text = f"PostgreSQL at 127.0.0.1:{port}/events: connection refused"
        assert (result.exit_code, result.output) == (1, f"mariner: error: {text}\n")
    data = json.loads(conf.read_text())
    del data["event_core"]["group"]
    conf.write_text(json.dumps(data))
    result = await group(conf, "status")
    text = f"{conf}: event_core.group: missing"
    assert (result.exit_code, result.output) == (2, f"mariner: error: {text}\n")
