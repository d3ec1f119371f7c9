"""``mariner cursors``, against a gateway."""

import asyncio
import json
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from mariner import client
from mariner.cli import main
from tests.mariner.gateway.test_replay import connect, id_of, register, serving


def conf_of(directory: Path) -> Path:
    path = directory / "gateway.json"
    backend = {"type": "rocksdb", "path": str(directory / "store")}
    path.write_text(json.dumps({"event_core": {"server_id": 1, "backend": backend}}))
    return path


async def cursors(path: Path, *arguments: str, code: int = 0) -> str:
    command = ["cursors", arguments[0], "--conf", str(path), *arguments[1:]]
    result = await asyncio.to_thread(CliRunner().invoke, main, command)
    assert result.exit_code == code, result.output
    return result.output


async def take(connection: client.Client) -> int:
    batch = await anext(connection.replay())
    await batch.ack({event.id: "no idea" for event in batch.events[:2]})
    await connection.ping()
    return len(batch.events)


async def test_looking_and_changing(tmp_path: Path) -> None:
    path = conf_of(tmp_path)
    async with serving(tmp_path) as gateway, await connect(gateway) as writer:
        for control in gateway.controls:
            control.configuration = path
        events = await register(writer, *range(5))
        ids = ["/".join(map(str, id_of(i).values())) for i in events]
        wanted: Any = {"subscriptions": [("a",)], "cursor": "c"}
        async with await connect(gateway, **wanted) as connection:
            assert await take(connection) == 5
            listed = (await cursors(path, "list")).splitlines()
            assert "CURSOR  POSITION  EVENTS BEHIND  SECONDS BEHIND  PARKED" in listed[0]
            assert listed[1].split()[:7] == ["app", "c", ids[4], "0", "0.0", "2", "yes"]
        shown = json.loads(await cursors(path, "show", "app", "c", "--json"))
        assert [i["reason"] for i in shown["parked"]] == ["no idea", "no idea"]
        assert shown["cursors"][0]["is_connected"] is False
        redelivered = (await cursors(path, "redeliver", "app", "c", ids[0])).splitlines()
        assert redelivered[3].split()[0] == ids[0]
        assert redelivered[3].split()[2] == "yes"
        await cursors(path, "drop", "app", "c", ids[1])
        text = await cursors(path, "drop", "app", "c", ids[1], code=1)
        assert text.endswith(f"event {ids[1]} is not parked by 'c'\n")
        await cursors(path, "drop", "app", "c")
        await cursors(path, "reset", "app", "c", ids[2])
        async with await connect(gateway, **wanted) as connection:
            assert await take(connection) == 2
        assert "the start" in await cursors(path, "reset", "app", "c")
        async with await connect(gateway, **wanted) as connection:
            assert await take(connection) == 5
        assert await cursors(path, "delete", "app", "c") == "deleted: app c\n"
        text = await cursors(path, "show", "app", "c", code=1)
        assert text.endswith("client 'app' has no cursor 'c'\n")


async def test_without_a_gateway(tmp_path: Path) -> None:
    text = await cursors(conf_of(tmp_path), "list", code=1)
    assert "cannot be reached" in text
