"""Command groups that import the module of a command only when it is called.

Importing all of them takes more than a second; ``mariner ping`` needs few of them.
"""

import difflib
import functools
import io
import pkgutil
import signal
import sys
from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any

import click


class LazyGroup(click.Group):
    """A group of commands that are imported on demand.

    Args:
        name: name of the group.
        commands: commands by name, as ``package.module:attribute``.
        summary: help text of the group.
        plugins: entry point group of further commands in installed packages; None: none.
    """

    def __init__(
        self, name: str, commands: Mapping[str, str], summary: str, plugins: str | None = None
    ) -> None:
        settings = {"help_option_names": ["-h", "--help"]}
        super().__init__(name, help=summary, context_settings=settings)
        self._commands = commands
        self._plugins = plugins

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """As click does; what a terminal cannot show (a path, for example) is escaped."""
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")
        return super().main(*args, **kwargs)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Sorted names of the commands."""
        return sorted({*self._commands, *self._entry_points})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command with a name; None: there is none."""
        if cmd_name in self._commands:
            command = pkgutil.resolve_name(self._commands[cmd_name])
        elif cmd_name in self._entry_points:  # finding them takes 10 ms
            command = self._entry_points[cmd_name].load()
        else:
            return None
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does; an error names commands that are written alike."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as e:
            alike = difflib.get_close_matches(args[0], self.list_commands(ctx))
            if args[0].startswith("-") or not alike:
                raise
            text = f"{e.message} Did you mean {' or '.join(map(repr, alike))}?"
            raise click.UsageError(text, ctx) from e

    def invoke(self, ctx: click.Context) -> Any:
        """As click does; a SIGINT before the command handles it (imports) is 130, too."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise click.exceptions.Exit(128 + signal.SIGINT) from None

    @functools.cached_property
    def _entry_points(self) -> dict[str, EntryPoint]:
        if self._plugins is None:
            return {}
        return {i.name: i for i in entry_points(group=self._plugins)}
