"""The command ``mariner``.

Exit codes of every command:

* 0: success
* 1: the other side, or the gateway itself, failed (refused, unreachable, damaged store)
* 2: wrong usage, configuration or input
* 3: ``serve`` only: it did not stop in time
* 4: ``register`` only: it is not known whether some of the events are registered
"""

import difflib
import functools
import io
import pkgutil
import signal
import sys
from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final

import click
from typing_extensions import override

from mariner.version import __version__


class LazyGroup(click.Group):
    """A group that imports the module of a command only when it is called: all take a second.

    ``commands`` are by name, as ``package.module:attribute``; ``plugins`` is an entry point group.
    """

    def __init__(
        self, name: str, commands: Mapping[str, str], summary: str, plugins: str | None = None
    ) -> None:
        settings = {"help_option_names": ["-h", "--help"]}
        super().__init__(name, help=summary, context_settings=settings)
        self._commands = commands
        self._plugins = plugins

    @override
    def main(self, *args: Any, **kwargs: Any) -> Any:
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                # what a terminal cannot show (a path, for example) is escaped
                stream.reconfigure(errors="backslashreplace")
        return super().main(*args, **kwargs)

    @override
    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*self._commands, *self._entry_points})

    @override
    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in self._commands:
            command = pkgutil.resolve_name(self._commands[cmd_name])
        elif cmd_name in self._entry_points:  # finding them takes 10 ms
            command = self._entry_points[cmd_name].load()
        else:
            return None
        assert isinstance(command, click.Command)
        return command

    @override
    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as e:
            alike = difflib.get_close_matches(args[0], self.list_commands(ctx))
            if args[0].startswith("-") or not alike:
                raise
            text = f"{e.message} Did you mean {' or '.join(map(repr, alike))}?"
            raise click.UsageError(text, ctx) from e

    @override
    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:  # before the command handles it: during imports
            raise click.exceptions.Exit(128 + signal.SIGINT) from None

    @functools.cached_property
    def _entry_points(self) -> dict[str, EntryPoint]:
        if self._plugins is None:
            return {}
        return {i.name: i for i in entry_points(group=self._plugins)}


_CLIENT_COMMANDS: Final = ("ping", "register", "query", "subscribe")

eventer = LazyGroup(
    "eventer",
    {i: f"mariner.cli.eventer_server:{i}" for i in _CLIENT_COMMANDS},
    "The same client commands, for an Event Server (Eventer).",
)

main = click.version_option(__version__, prog_name="mariner")(
    LazyGroup(
        "mariner",
        {
            **{i: f"mariner.cli.mariner_server:{i}" for i in (*_CLIENT_COMMANDS, "forward")},
            **{i: f"mariner.cli.serve:{i}" for i in ("serve", "check")},
            **{i: f"mariner.cli.backup:{i}" for i in ("backup", "restore")},
            **{i: f"mariner.cli.running:{i}" for i in ("cursors", "reload")},
            "disconnect": "mariner.cli.connections:disconnect",
            **{i: f"mariner.cli.local:{i}" for i in ("completion", "token")},
            **{i: f"mariner.cli.{i}:{i}" for i in ("group", "init", "rsb", "status", "store")},
            "eventer": "mariner.cli:eventer",
            "certs": "mariner_certs.cli:certs",
        },
        "Mariner gateway: an event gateway for Hat-style systems.",
        plugins="mariner.commands",
    )
)
