"""Servers as targets of client commands: their options, and the interface of their clients.

A command is written once, for any :class:`Target`; :func:`command_of` derives the command for one
wire, with the options of a server of that kind.
"""

import abc
import functools
import ssl
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol, Self

import click
from click.core import ParameterSource

from eventer_bridge import tls
from eventer_bridge.core import tokens
from eventer_bridge.errors import ConfigurationError, InitError
from eventer_bridge.model import Event, EventType, QueryParams, RegisterEvent, Status
from mariner.cli.run import EXIT_USAGE, CommandError


class TargetClient(Protocol):
    """A connection to a server; ``mariner.client.Client`` is one.

    Errors are subclasses of ``MarinerError``, as there.
    """

    @property
    def address(self) -> str:
        """Name of the server in messages."""

    @property
    def status(self) -> Status:
        """Last known status of the server."""

    @property
    def close_reason(self) -> str | None:
        """Why the client is closed; None while it is open."""

    async def register(self, events: Sequence[RegisterEvent]) -> Sequence[Event]:
        """Register events, in one session."""

    def query_all(self, params: QueryParams, *, limit: int | None = None) -> AsyncIterator[Event]:
        """Query all events, page by page."""

    def events(self) -> AsyncIterator[Sequence[Event]]:
        """Notifications; ends when the client is closed."""

    async def ping(self) -> float:
        """Ping the server: round-trip time in seconds."""

    async def wait_closing(self) -> None:
        """Wait until the client closes."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *_: object) -> None: ...


@dataclass(frozen=True)
class Target(abc.ABC):
    """A server and the credentials, from options and environment."""

    host: str
    port: int
    name: str
    token: str | None
    tls: bool
    tls_ca: Path | None
    cert: Path | None
    key: Path | None

    @abc.abstractmethod
    async def connect(
        self,
        *,
        subscriptions: Iterable[EventType] = (),
        server_id: int | None = None,
        persisted: bool = False,
        timeout_s: float = 10,
    ) -> TargetClient:
        """Connect; see ``mariner.client.connect`` for arguments and errors.

        Raises:
            ConfigurationError: CA, certificate or key cannot be used.
        """

    def ssl_context(self) -> ssl.SSLContext | None:
        """Context for TLS from the options; None: plain TCP.

        Raises:
            ConfigurationError: as :meth:`connect`.
        """
        if self.tls or self.tls_ca or self.cert or self.key:
            return tls.client_context(self.tls_ca, self.cert, self.key)
        return None


class TargetWire(NamedTuple):
    """A kind of server.

    Attributes:
        server: its class; created with the values of the options.
        options: options of a server of this kind, see :func:`server_options`.
        notes: epilogs of the help texts, by name of the command.
    """

    server: Callable[..., Target]
    options: Sequence[click.Option]
    notes: Mapping[str, str]


def command_of(wire: TargetWire, command: click.Command) -> click.Command:
    """Derive a command for servers of one kind, with their options.

    Args:
        wire: the kind.
        command: the command for any server, called with ``server``; not changed.
    """
    callback = command.callback
    assert callback is not None

    @functools.wraps(callback)
    def call(**values: Any) -> None:
        token_file: Path | None = values.pop("token_file")
        named = {i.name: values.pop(i.name) for i in wire.options if i.name in values}
        named["token"] = token = choose_token(named["token"], token_file)
        try:
            callback(server=wire.server(**named), **values)
        except CommandError as e:
            if token is None and isinstance(e.__cause__, InitError):
                text = f"{e.message}; no token was given: see --token and --token-file"
                raise CommandError(text, e.exit_code) from e
            raise

    return click.Command(
        command.name,
        callback=call,
        params=[*wire.options, *command.params],
        help=command.help,
        epilog=wire.notes.get(command.name or ""),
    )


def is_from_environment(option: str) -> bool:
    """Whether the value of an option of this command comes from its environment variable."""
    source = click.get_current_context().get_parameter_source(option)
    return source is ParameterSource.ENVIRONMENT


def choose_token(token: str | None, file: Path | None) -> str | None:
    """The token of ``--token`` or ``--token-file``; the command line goes before the environment.

    Raises:
        click.UsageError: both are on the command line, or both in the environment.
        CommandError: there is no token in the file or the environment (``tokens.without_end``).
    """
    is_of_environment = token is not None and is_from_environment("token")
    if token is not None and file is not None:
        if is_of_environment is is_from_environment("token_file"):
            raise click.UsageError("Give either --token or --token-file, not both.")
        if is_from_environment("token_file"):
            file = None
    try:
        if file is not None:
            return tokens.read_file(file, str(file))
        if token is not None and is_of_environment:
            return tokens.without_end(token, "the token in the environment")
        return token
    except ConfigurationError as e:
        raise CommandError(str(e), EXIT_USAGE) from e


def _check_host(ctx: click.Context, param: click.Parameter, text: str) -> str:
    """A host without a port; an IPv6 address has more than one colon."""
    if text.count(":") == 1 or "]:" in text:
        raise click.BadParameter(
            f"{text!r}: expected a name or an address; the port goes to --port", ctx, param
        )
    return text


def server_options(prefix: str, port: int) -> list[click.Option]:
    """Options for the fields of :class:`Target`, and ``--token-file``.

    Args:
        prefix: prefix of their environment variables, as ``MARINER``.
        port: default port of such servers.
    """
    file = click.Path(path_type=Path, dir_okay=False)

    def option(name: str, text: str, **attributes: Any) -> click.Option:
        variable = f"{prefix}_{name.upper().replace('-', '_')}"
        shown = {"show_envvar": True, "show_default": "default" in attributes}
        return click.Option([f"--{name}"], envvar=variable, help=text, **shown, **attributes)

    return [
        option("host", "Name or address of the server.", default="127.0.0.1", callback=_check_host),
        option("port", "Its TCP port.", type=click.IntRange(1, 65535), default=port),
        option("name", "Name of this client, as the server knows it.", required=True),
        option(
            "token",
            "Token of this client. Other users of this machine can see the command line:"
            " prefer the environment variable or --token-file.",
        ),
        option("token-file", "File with the token in one line.", type=file),
        option(
            "tls",
            "Use TLS, with the authorities that this system trusts. Implied by any of the"
            " following.",
            is_flag=True,
        ),
        option("tls-ca", "Use TLS, and trust only this authority (PEM file).", type=file),
        option(
            "cert",
            "Certificate of this client (PEM file), if the server asks for one.",
            type=file,
        ),
        option("key", "Its private key (PEM file).", type=file),
    ]
