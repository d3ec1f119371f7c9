"""Groups of commands that import a command's module only when it is called.

Importing all of them takes more than a second; ``mariner ping`` needs little of that.
"""

import pkgutil
from collections.abc import Mapping

import click


class LazyGroup(click.Group):
    """A group of commands that are named, rather than given.

    Args:
        name: of the group.
        commands: where each command is, as ``package.module:attribute``, by its name.
        summary: what is said of the group.
    """

    def __init__(self, name: str, commands: Mapping[str, str], summary: str) -> None:
        settings = {"help_option_names": ["-h", "--help"]}
        super().__init__(name, help=summary, context_settings=settings)
        self._places = commands

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names of the commands, sorted."""
        return sorted(self._places)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of a name; None if there is none."""
        place = self._places.get(cmd_name)
        if place is None:
            return None
        command = pkgutil.resolve_name(place)
        assert isinstance(command, click.Command)
        return command
