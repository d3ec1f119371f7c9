"""The command ``mariner``.

Exit codes of every command:

* 0: success
* 1: the other side, or the gateway itself, failed (refused, unreachable, damaged store)
* 2: wrong usage, configuration or input
* 3: ``serve`` only: it did not stop in time
"""

import click

from mariner.cli.backup import backup, restore
from mariner.cli.client import ping, query, register, subscribe
from mariner.cli.eventer_server import EVENTER
from mariner.cli.lake import lake
from mariner.cli.mariner_server import MARINER
from mariner.cli.report import report
from mariner.cli.rsb import rsb
from mariner.cli.serve import check, serve
from mariner.cli.servers import command_of
from mariner.cli.store import store
from mariner.version import __version__
from mariner_certs.cli import certs


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="mariner")
def main() -> None:
    """Mariner gateway: an event gateway for Hat-style systems."""


@click.group()
def eventer() -> None:
    """The same client commands for an Event Server (Eventer)."""


_CLIENT_COMMANDS = (ping, register, query, subscribe)

for command in (
    *(serve, check),
    *(command_of(MARINER, i) for i in _CLIENT_COMMANDS),
    eventer,
    rsb,
    *(backup, restore, store),
    *(lake, report),
    certs,
):
    main.add_command(command)
for command in _CLIENT_COMMANDS:
    eventer.add_command(command_of(EVENTER, command))
