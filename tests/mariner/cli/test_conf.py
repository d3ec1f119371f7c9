"""``--conf``: its default and its variable, of every command that takes it."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from eventer_bridge.backends import rocksdb
from eventer_bridge.control.client import SOCKET
from eventer_bridge.control.server import listen
from mariner.cli import main

CONF = """\
name: {name}
mariner: {{host: 127.0.0.1, port: 0}}
event_core: {{server_id: 1, backend: {{type: rocksdb, path: {path}}}}}
clients: []
"""


def configure(path: Path, name: str = "x") -> Path:
    path.write_text(CONF.format(name=name, path=path.parent / "store"))
    return path


def run(*arguments: str, conf: Path | None = None) -> Result:
    environment = {} if conf is None else {"MARINER_CONF": str(conf)}
    return CliRunner().invoke(main, arguments, env=environment)


def takers(command: click.Command, name: str) -> Iterator[tuple[str, click.Option]]:
    """Commands that take ``--conf``, with that option."""
    if isinstance(command, click.Group):
        context = click.Context(command)
        for i in command.list_commands(context):
            found = command.get_command(context, i)
            assert found is not None
            yield from takers(found, f"{name} {i}")
    for option in command.params:
        if isinstance(option, click.Option) and "--conf" in option.opts:
            yield name, option


def test_every_command_that_takes_it_has_both() -> None:
    found = dict(takers(main, "mariner"))
    assert {"mariner serve", "mariner status", "mariner store verify"} <= found.keys()
    for name, option in found.items():
        expected = ("console.yaml", "MARINER_CONSOLE_CONF")
        if name != "mariner console":
            expected = ("gateway.yaml", "MARINER_CONF")
        assert (str(option.default), option.envvar) == expected, name


def test_the_command_line_goes_before_the_variable_and_that_before_the_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = run("check")
    text = "Error: There is no gateway.yaml in this directory: give --conf, or set MARINER_CONF.\n"
    assert (result.exit_code, result.stderr.endswith(text)) == (2, True)
    configure(tmp_path / "gateway.yaml")
    assert run("check").stdout == "gateway.yaml: ok\n"
    other = configure(tmp_path / "other.yaml")
    assert run("check", conf=other).stdout == f"{other}: ok\n"
    assert run("check", "--conf", "gateway.yaml", conf=other).stdout == "gateway.yaml: ok\n"
    missing = run("check", conf=tmp_path / "none.yaml")
    assert (missing.exit_code, "none.yaml: No such file" in missing.stderr) == (2, True)


async def test_a_store_that_is_named_needs_no_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    for name in ("one", "store"):
        async with await rocksdb.create(tmp_path / name):
            pass
    conf = configure(tmp_path / "gateway.yaml")
    assert run("store", "verify", conf=conf).stdout.startswith(f"{tmp_path}/store: 0 events")
    assert run("store", "verify", "../one", conf=conf).stdout.startswith("../one: 0 events")
    assert run("backup", str(tmp_path / "a"), conf=conf).exit_code == 0
    assert run("backup", "../one", str(tmp_path / "b"), conf=conf).exit_code == 0
    text = "Error: expected STORE TARGET, or --conf in place of STORE.\n"
    assert run("backup", str(tmp_path / "c")).stderr.endswith(text)
    conf.rename(tmp_path / "here" / "gateway.yaml")
    assert "../store" not in run("store", "verify").stdout


async def test_a_relative_store_is_not_looked_for_in_whatever_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    async with await rocksdb.create(tmp_path / "store"):
        pass
    conf = tmp_path / "gateway.yaml"
    conf.write_text(CONF.format(name="x", path="store"))
    assert run("store", "verify", "--conf", str(conf)).stdout.startswith("store: 0 events")
    refused = run("store", "verify", conf=conf)
    text = (
        f"mariner: error: {conf}: event_core.backend.path: store would be another one in each"
        " directory: give --conf in place of MARINER_CONF, or an absolute path\n"
    )
    assert (refused.exit_code, refused.stderr) == (2, text)


async def test_a_good_drill_is_good_though_the_gateway_cannot_be_told(tmp_path: Path) -> None:
    for name in ("drill", "store"):
        async with await rocksdb.create(tmp_path / name):
            pass
    conf = configure(tmp_path / "gateway.yaml")
    arguments = ("store", "verify", str(tmp_path / "drill"), "--drill-of", str(conf))
    async with await listen(tmp_path / "store" / SOCKET):  # knows nothing of drills
        told = await asyncio.to_thread(run, *arguments)
    assert told.exit_code == 0
    assert "mariner: warning: the gateway is not told: " in told.stderr
