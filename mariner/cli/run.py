"""What all client commands share: how they reach the server, and how they fail.

Exit codes: 0 success; 1 the other side refused, is unreachable or did not answer in time;
2 wrong usage or input; 130 interrupted (SIGINT); 141 nobody reads standard output any more
(SIGPIPE). An error is one line on standard error: ``mariner: error: …``.
"""

import functools
import signal
from collections.abc import Callable, Coroutine, Iterable
from pathlib import Path
from typing import IO, Any, Final, NamedTuple, TypeVar

import click
import uvloop

from eventer_bridge import tls
from eventer_bridge.errors import ConfigurationError
from eventer_bridge.model import EventType
from mariner import client
from mariner.errors import MarinerError

EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
EXIT_INTERRUPTED: Final = 128 + signal.SIGINT
EXIT_NO_READER: Final = 128 + signal.SIGPIPE

T = TypeVar("T")


class CommandError(click.ClickException):
    """Ends the command with an exit code; an empty text says nothing."""

    def __init__(self, text: str, exit_code: int) -> None:
        super().__init__(text)
        self.exit_code = exit_code  # type: ignore[misc]  # of the class by default, only

    def show(self, file: IO[Any] | None = None) -> None:
        """Print the error; called by click."""
        if self.message:
            tell(f"error: {self.message}", file)


class ServerOptions(NamedTuple):
    """The server and who we are to it, as told by options and environment."""

    host: str
    port: int
    name: str
    token: str | None
    tls: bool
    tls_ca: Path | None
    cert: Path | None
    key: Path | None

    async def connect(
        self,
        *,
        subscriptions: Iterable[EventType] = (),
        server_id: int | None = None,
        persisted: bool = False,
        timeout_s: float = 10,
    ) -> client.Client:
        """Connect; see :func:`mariner.client.connect` for arguments and errors.

        Raises:
            ConfigurationError: CA, certificate or key cannot be used.
        """
        context = None
        if self.tls or self.tls_ca or self.cert or self.key:
            context = tls.client_context(self.tls_ca, self.cert, self.key)
        return await client.connect(
            self.host,
            self.port,
            client_name=self.name,
            client_token=self.token,
            subscriptions=subscriptions,
            server_id=server_id,
            persisted=persisted,
            ssl=context,
            connect_timeout_s=timeout_s,
        )


def server_options(function: Callable[..., None]) -> Callable[..., None]:
    """Decorator of a command: options of the server; the function gets ``server``."""

    @functools.wraps(function)
    def command(
        *,
        host: str,
        port: int,
        name: str,
        token: str | None,
        token_file: Path | None,
        tls: bool,
        tls_ca: Path | None,
        cert: Path | None,
        key: Path | None,
        **options: Any,
    ) -> None:
        if token is not None and token_file is not None:
            raise click.UsageError("--token and --token-file: only one of them can be given.")
        if token_file is not None:
            token = _read_token(token_file)
        server = ServerOptions(host, port, name, token, tls, tls_ca, cert, key)
        function(server=server, **options)

    for option in reversed(_SERVER_OPTIONS):
        command = option(command)
    return command


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run a command's coroutine; what goes wrong becomes an exit code and a line."""
    try:
        return uvloop.run(main)
    except KeyboardInterrupt:
        raise CommandError("", EXIT_INTERRUPTED) from None
    except ConfigurationError as e:
        raise CommandError(str(e), EXIT_USAGE) from e
    except MarinerError as e:
        raise CommandError(str(e), EXIT_FAILED) from e


def tell(text: str, file: IO[Any] | None = None) -> None:
    """One line for the person, on standard error."""
    click.echo(f"mariner: {printable(text)}", file=file, err=True)


def printable(text: str) -> str:
    """Text of others without control characters, so that it cannot command the terminal."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )


def _read_token(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").rstrip("\r\n")
    except OSError as e:
        raise CommandError(f"{path}: {e.strerror}", EXIT_USAGE) from e
    except UnicodeDecodeError as e:
        raise CommandError(f"{path}: not UTF-8 text", EXIT_USAGE) from e


_FILE = click.Path(path_type=Path, dir_okay=False)

_SERVER_OPTIONS: Final = (
    click.option(
        "--host",
        envvar="MARINER_HOST",
        default="127.0.0.1",
        show_default=True,
        show_envvar=True,
        help="Name or address of the server.",
    ),
    click.option(
        "--port",
        envvar="MARINER_PORT",
        type=click.IntRange(1, 65535),
        default=23014,
        show_default=True,
        show_envvar=True,
        help="Its TCP port.",
    ),
    click.option(
        "--name",
        envvar="MARINER_NAME",
        required=True,
        show_envvar=True,
        help="Name of this client, as the server knows it.",
    ),
    click.option(
        "--token",
        envvar="MARINER_TOKEN",
        show_envvar=True,
        help="Token of this client. Other users of this machine can see the command line:"
        " better use the environment variable or --token-file.",
    ),
    click.option(
        "--token-file",
        envvar="MARINER_TOKEN_FILE",
        type=_FILE,
        show_envvar=True,
        help="File with the token; a line end after it does not count.",
    ),
    click.option(
        "--tls",
        envvar="MARINER_TLS",
        is_flag=True,
        show_envvar=True,
        help="Use TLS, with the authorities that this system trusts. Not needed when one of"
        " the following is given.",
    ),
    click.option(
        "--tls-ca",
        envvar="MARINER_TLS_CA",
        type=_FILE,
        show_envvar=True,
        help="Use TLS and trust this authority (PEM file), and no other.",
    ),
    click.option(
        "--cert",
        envvar="MARINER_CERT",
        type=_FILE,
        show_envvar=True,
        help="Certificate of this client (PEM file), for a server that asks for one.",
    ),
    click.option(
        "--key",
        envvar="MARINER_KEY",
        type=_FILE,
        show_envvar=True,
        help="Its private key (PEM file).",
    ),
)
