"""What takes long to import is imported by the commands that need it, and by no other."""

import pkgutil
import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

from mariner.cli import eventer, main

SLOW = {"aiohttp", "hat.sbs", "jsonschema", "pyarrow", "pyspark", "rocksdict"}


@pytest.mark.parametrize(
    ("module", "imported"),
    [
        ("mariner.cli.mariner_server", set()),
        ("mariner.cli.eventer_server", set()),
        ("mariner.cli.serve", {"jsonschema", "rocksdict"}),
    ],
)
def test_slow_packages(module: str, imported: set[str]) -> None:
    program = f"import sys, {module}; print(*sys.modules)"
    output = subprocess.run(
        (sys.executable, "-c", program), capture_output=True, text=True, check=True, timeout=60
    ).stdout
    assert SLOW & set(output.split()) == imported


def test_a_mistyped_command_names_those_alike() -> None:
    result = CliRunner().invoke(main, ["pign"])
    assert result.exit_code == 2
    assert "No such command 'pign'. Did you mean 'ping'?" in result.stderr.replace("\n", " ")
    assert "Did you mean" not in CliRunner().invoke(main, ["zzz"]).stderr


def test_sigint_while_a_command_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(pkgutil, "resolve_name", interrupted)
    result = CliRunner().invoke(main, ["query"])
    assert (result.exit_code, result.output) == (130, "")


@pytest.mark.parametrize("group", [main, eventer], ids=["mariner", "eventer"])
def test_every_command_is_where_it_is_said_to_be(group: click.Group) -> None:
    with click.Context(group) as context:
        names = group.list_commands(context)
        assert "ping" in names
        assert [getattr(group.get_command(context, i), "name", None) for i in names] == names
        assert group.get_command(context, "pong") is None
