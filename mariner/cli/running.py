"""The running gateway of a configuration, for commands that ask it."""

from pathlib import Path

from eventer_bridge.control.client import Addressee, Identity
from mariner.cli.run import EXIT_USAGE, CommandError
from mariner.gateway import config_file


def find(conf: Path, advice: str = "") -> tuple[Path, Addressee]:
    """The socket of the gateway that a file configures, and what a request to it says it means.

    Args:
        conf: the configuration file.
        advice: what to add to the error when there is no socket.

    Raises:
        ConfigurationError: the file cannot be read.
        CommandError: it has neither a store nor ``control``.
    """
    socket = config_file.control_socket(conf)
    if socket is None:
        text = f"{conf}: control: missing, and there is no store that would have a socket{advice}"
        raise CommandError(text, EXIT_USAGE)
    return socket, Addressee(configuration=Identity.of(conf))
