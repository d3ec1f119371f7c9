"""The command ``mariner``.

Exit codes of every command:

* 0: success
* 1: the other side, or the gateway itself, failed (refused, unreachable, damaged store)
* 2: wrong usage, configuration or input
* 3: ``serve`` only: it did not stop in time
* 4: ``register`` only: it is not known whether some of the events are registered
"""

from typing import Final

import click

from mariner.cli.lazy import LazyGroup
from mariner.version import __version__

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
            **{
                i: f"mariner.cli.{i}:{i}"
                for i in ("cursors", "reload", "rsb", "status", "store", "token")
            },
            "completion": "mariner.cli.completion:completion",
            "eventer": "mariner.cli:eventer",
            "certs": "mariner_certs.cli:certs",
        },
        "Mariner gateway: an event gateway for Hat-style systems.",
        plugins="mariner.commands",
    )
)
