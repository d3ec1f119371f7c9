"""Targets of commands, and the options that name them: a server, a bus, a running gateway, a store.

A client command is written once, for any :class:`Target`; :func:`command_of` derives that for one
wire. A store is given as a directory, or as the one in a configuration (``--conf``).
"""

import abc
import contextlib
import functools
import os
import ssl
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol, Self, TypeVar

import click
from click.core import ParameterSource

from eventer_bridge import tls
from eventer_bridge.control.client import Addressee, Identity
from eventer_bridge.core import tokens
from eventer_bridge.errors import ConfigurationError, EventerBridgeError, InitError, StoreLossError
from eventer_bridge.model import Event, EventType, QueryParams, RegisterEvent, Status
from mariner.cli.run import EXIT_FAILED, EXIT_USAGE, CommandError, errors

F = TypeVar("F", bound=Callable[..., None])

# --- options --------------------------------------------------------------------------------

FILE: Final = click.Path(path_type=Path, dir_okay=False)
DIRECTORY: Final = click.Path(path_type=Path)


def _exists(path: Path) -> bool:
    """Whether it exists; also where nobody can tell, which ``Path.exists`` raises."""
    return os.path.exists(path)  # noqa: PTH110


def conf_option(
    text: str,
    name: str = "path",
    *,
    default: str = "gateway.yaml",
    variable: str = "MARINER_CONF",
    is_required: bool = True,
) -> Callable[[F], F]:
    """Decorator of a command that takes a configuration file; the default is one of this folder."""

    def check(context: click.Context, option: click.Parameter, path: Path) -> Path:
        is_default = context.get_parameter_source(name) is ParameterSource.DEFAULT
        if is_required and is_default and not _exists(path):
            text = f"There is no {default} in this directory: give --conf, or set {variable}."
            raise click.UsageError(text, context)
        return path

    return click.option(
        "--conf",
        name,
        type=FILE,
        default=Path(default),
        show_default=True,
        envvar=variable,
        show_envvar=True,
        callback=check,
        help=text,
    )


gateway_option: Final = conf_option("Configuration file of the running gateway.")

JSON_OPTION: Final = click.option("--json", "is_json", is_flag=True, help="Print a JSON object.")


def option_of(name: str, kind: Any, default: object, text: str) -> Callable[[F], F]:
    """Decorator of a command with an option that has a default, which its help shows."""
    return click.option(name, type=kind, default=default, show_default=True, help=text)


def _of_server(prefix: str, name: str, text: str, **more: Any) -> dict[str, Any]:
    """Attributes of an option that an environment variable sets as well."""
    variable = f"{prefix}_{name.upper().replace('-', '_')}"
    shown = {"show_envvar": True, "show_default": "default" in more}
    return {"envvar": variable, "help": text, **shown, **more}


def server_options(prefix: str, port: int, *, is_named: bool = True) -> list[click.Option]:
    """Options for the fields of :class:`Target`, and ``--token-file``.

    ``prefix`` is that of their environment variables, as ``MARINER``. Without ``is_named`` the
    command asks for ``--name`` only when the server is used.
    """

    def option(name: str, text: str, **more: Any) -> click.Option:
        return click.Option([f"--{name}"], **_of_server(prefix, name, text, **more))

    return [
        option("host", "Name or address of the server.", default="127.0.0.1", callback=_check_host),
        option("port", "Its TCP port.", type=_PORT, default=port),
        option("name", "Name of this client, as the server knows it.", required=is_named),
        option(
            "token",
            "Token of this client. Other users of this machine can see the command line:"
            " prefer the environment variable or --token-file.",
        ),
        option("token-file", "File with the token in one line.", type=FILE),
        option(
            "tls",
            "Use TLS, with the authorities that this system trusts. Implied by any of the"
            " following.",
            is_flag=True,
        ),
        option("tls-ca", "Use TLS, and trust only this authority (PEM file).", type=FILE),
        option(
            "cert", "Certificate of this client (PEM file), if the server asks for one.", type=FILE
        ),
        option("key", "Its private key (PEM file).", type=FILE),
    ]


_PORT: Final = click.IntRange(1, 65535)


def _check_host(ctx: click.Context, param: click.Parameter, text: str) -> str:
    """A host without a port; an IPv6 address has more than one colon."""
    if text.count(":") == 1 or "]:" in text:
        raise click.BadParameter(
            f"{text!r}: expected a name or an address; the port goes to --port", ctx, param
        )
    return text


def bus_options(port: int) -> Callable[[F], F]:
    """Decorator of a command that takes the server of an RSB bus: ``host`` and ``port``."""

    def decorate(function: F) -> F:
        text = "Name or address of the bus server."
        host = _of_server("MARINER_RSB", "host", text, default="127.0.0.1")
        its_port = _of_server("MARINER_RSB", "port", "Its TCP port.", type=_PORT, default=port)
        return click.option("--host", **host)(click.option("--port", **its_port)(function))

    return decorate


def store_option(*names: str) -> Callable[[F], F]:
    """Decorator of a command that takes ``--conf`` or the store's directory, for :func:`resolve`.

    ``names`` are metavars of its ``paths`` in order; without ``STORE``, it is that of ``--conf``.
    """
    metavar = " ".join(f"[{name}]" if name == "STORE" else name for name in names)

    def decorate(function: F) -> F:
        paths = click.argument("paths", nargs=-1, type=DIRECTORY, metavar=metavar)
        text = "In place of STORE: the configuration of the gateway that it is of."
        return paths(conf_option(text, "conf", is_required=False)(function))

    return decorate


# --- servers --------------------------------------------------------------------------------


class TargetClient(Protocol):
    """A connection to a server; ``mariner.client.Client`` is one. Errors are MarinerErrors."""

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
        """Connect; arguments and errors as of ``mariner.client.connect``, and TLS."""

    def ssl_context(self) -> ssl.SSLContext | None:
        """Context for TLS from the options; None: plain TCP. Raises ConfigurationError."""
        if self.tls or self.tls_ca or self.cert or self.key:
            return tls.client_context(self.tls_ca, self.cert, self.key)
        return None


class TargetWire(NamedTuple):
    """A kind of server: its class, its options, epilogs of help texts by name of the command."""

    server: Callable[..., Target]
    options: Sequence[click.Option]
    notes: Mapping[str, str]


def command_of(wire: TargetWire, command: click.Command) -> click.Command:
    """Derive a command for servers of one kind, with their options, from one for any server."""
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
        context_settings=command.context_settings,
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

    Raises click.UsageError if both are in the same place, CommandError if there is no token in it.
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


# --- a running gateway ----------------------------------------------------------------------


def find_gateway(conf: Path, advice: str = "") -> tuple[Path, Addressee]:
    """The socket of the gateway that a file configures, and what a request to it says it means.

    Raises ConfigurationError if the file cannot be read; CommandError (whose text ends with
    ``advice``) if it has neither a store nor ``control``.
    """
    from mariner.gateway import config_file  # noqa: PLC0415  # slow to import

    socket = config_file.control_socket(conf)
    if socket is None:
        text = f"{conf}: control: missing, and there is no store that would have a socket{advice}"
        raise CommandError(text, EXIT_USAGE)
    return socket, Addressee(configuration=Identity.of(conf))


# --- stores ---------------------------------------------------------------------------------


def resolve(names: tuple[str, ...], conf: Path, paths: tuple[Path, ...]) -> tuple[Path, ...]:
    """The paths of a command, including the store's directory.

    Raises UsageError for too few or too many, CommandError if the configuration names no store.
    """
    source = click.get_current_context().get_parameter_source("conf")
    is_given = source is ParameterSource.COMMANDLINE
    if len(paths) == len(names) and not is_given:
        return paths
    others = [name for name in names if name != "STORE"]
    is_known = is_given or source is ParameterSource.ENVIRONMENT or _exists(conf)
    if len(paths) != len(others) or not is_known:
        wanted = " ".join(others if is_given else names)
        more = " besides --conf" if is_given else ", or --conf in place of STORE"
        raise click.UsageError(f"expected {wanted}{more}.")
    found = iter(paths)
    store = store_of(conf)
    if source is ParameterSource.ENVIRONMENT and not store.is_absolute():
        raise CommandError(
            f"{conf}: event_core.backend.path: {store} would be another one in each directory:"
            " give --conf in place of MARINER_CONF, or an absolute path",
            EXIT_USAGE,
        )
    return tuple(store if name == "STORE" else next(found) for name in names)


def store_of(conf: Path) -> Path:
    """The directory of the store that a configuration names; CommandError if it names none."""
    from mariner.gateway import config, config_file  # noqa: PLC0415  # slow to import

    with errors():
        core = config_file.load(conf).event_core
    backend = None if core is None else core.backend
    if not isinstance(backend, config.RocksDbConfig):
        raise CommandError(f"{conf}: event_core.backend: has no store on disk", EXIT_USAGE)
    return backend.path


ACCEPT_LOSS: Final = "restore a backup, or start without them: mariner serve --accept-loss"
"""Advice for a store that lost acknowledged events."""


@contextlib.contextmanager
def store_errors() -> Iterator[None]:
    """Convert errors of a store to an exit code and a line; new files are private."""
    from eventer_bridge.backends.rocksdb import directories  # noqa: PLC0415  # slow to import

    try:
        with directories.private_files():
            yield
    except StoreLossError as e:
        raise CommandError(f"{e}: {ACCEPT_LOSS}", EXIT_FAILED) from e
    except EventerBridgeError as e:
        raise CommandError(str(e), EXIT_FAILED) from e
