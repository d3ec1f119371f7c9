"""``mariner reload``."""

from pathlib import Path

import click

from eventer_bridge.control import client
from eventer_bridge.errors import ConfigurationError, ControlError
from mariner import limits
from mariner.cli import output, running
from mariner.cli.run import EXIT_FAILED, EXIT_USAGE, CommandError, report


@click.command()
@click.option(
    "--conf",
    "path",
    type=click.Path(path_type=Path, dir_okay=False),
    required=True,
    help="Configuration file of the running gateway.",
)
def reload(path: Path) -> None:
    """Have a running gateway read its configuration again; no connection is dropped.

    It reloads certificates, CAs, revocation lists, clients with their rights and tokens, payload
    schemas, quotas, retention, audit and log. Connections go on with the new rights; those of
    clients that were removed, or whose token or certificate was removed, are closed. It prints what
    changed, and what takes a restart. SIGHUP does the same, but only the log tells.

    Exit code 0: reloaded; 1: there is no gateway, or it failed; 2: the configuration cannot be
    used, and everything stays as it was.
    """
    try:
        socket, to = running.find(path, "; SIGHUP reloads, too")
        what, timeout_s = f"{socket}: the gateway", limits.RELOAD_TIMEOUT_S
        answer = client.request(socket, "reload", None, to=to, what=what, timeout_s=timeout_s)
    except ConfigurationError as e:
        for line in str(e).splitlines():
            report(f"error: {line}")
        raise SystemExit(EXIT_USAGE) from e
    except ControlError as e:
        raise CommandError(str(e), EXIT_FAILED) from e
    for what, text in (("changed", "changed"), ("needs_restart", "needs a restart")):
        for line in answer[what]:
            output.write_text(f"{text}: {line}")
    output.write_text("reloaded")
