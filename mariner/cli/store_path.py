"""The store of a command: its path, and errors about it.

A store is given as a directory, or as the one in a configuration (``--conf``).
"""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, TypeVar

import click

from eventer_bridge.backends.rocksdb import directories
from eventer_bridge.errors import ConfigurationError, EventerBridgeError, StoreLossError
from mariner.cli.run import EXIT_FAILED, EXIT_USAGE, CommandError
from mariner.gateway import config, config_file

F = TypeVar("F", bound=Callable[..., None])

DIRECTORY = click.Path(path_type=Path)

_conf_option = click.option(
    "--conf",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Use the store that this gateway configuration names.",
)


def store_option(*names: str) -> Callable[[F], F]:
    """Decorator of a command that takes ``--conf`` or the store's directory.

    Args:
        names: metavars of its paths in order; ``STORE`` is left out with ``--conf``. The function
            gets ``conf`` and ``paths``, for :func:`resolve`.
    """
    metavar = " ".join(f"[{name}]" if name == "STORE" else name for name in names)

    def decorate(function: F) -> F:
        paths = click.argument("paths", nargs=-1, type=DIRECTORY, metavar=metavar)
        return paths(_conf_option(function))

    return decorate


def resolve(names: tuple[str, ...], conf: Path | None, paths: tuple[Path, ...]) -> tuple[Path, ...]:
    """The paths of a command, including the store's directory.

    Raises:
        UsageError: too few or too many paths.
        CommandError: the configuration is wrong, or has no store on disk.
    """
    expected = [name for name in names if conf is None or name != "STORE"]
    if len(paths) != len(expected):
        text = f"expected {' '.join(expected)}" + (" besides --conf" if conf else "")
        raise click.UsageError(text + ("" if conf else ", or --conf in place of STORE") + ".")
    if conf is None:
        return paths
    found = iter(paths)
    return tuple(_store_of(conf) if name == "STORE" else next(found) for name in names)


def _store_of(conf: Path) -> Path:
    try:
        core = config_file.load(conf).event_core
    except ConfigurationError as e:
        raise CommandError(str(e), EXIT_USAGE) from e
    backend = None if core is None else core.backend
    if not isinstance(backend, config.RocksDbConfig):
        raise CommandError(f"{conf}: event_core.backend: has no store on disk", EXIT_USAGE)
    return backend.path


ACCEPT_LOSS: Final = "restore a backup, or start without them: mariner serve --accept-loss"
"""Advice for a store that lost acknowledged events."""


@contextlib.contextmanager
def store_errors() -> Iterator[None]:
    """Convert errors of a store to an exit code and a line; new files are private."""
    try:
        with directories.private_files():
            yield
    except StoreLossError as e:
        raise CommandError(f"{e}: {ACCEPT_LOSS}", EXIT_FAILED) from e
    except EventerBridgeError as e:
        raise CommandError(str(e), EXIT_FAILED) from e
