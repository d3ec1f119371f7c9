"""The command ``mariner certs``, also ``python -m mariner_certs``.

Exit codes: 0 success, 1 failure (``show``: the certificate cannot be used), 2 wrong usage.
"""

from pathlib import Path

import click

from mariner_certs import authority, development, files, inspection
from mariner_certs.authority import Pair
from mariner_certs.errors import CertificateError, InvalidNameError

_DIR = click.option(
    "--dir",
    "folder",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("certs"),
    show_default=True,
    help="Folder of the files.",
)
_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_DAYS = click.IntRange(1, 36_500)
_FORCE = click.option("--force", is_flag=True, help="Replace existing files.")


class _Failure(click.ClickException):
    """A failure: one line, and exit code 1."""

    def show(self, file: object = None) -> None:
        click.echo(f"mariner: error: {self.message}", err=True)


def _common_name(_context: click.Context, _parameter: click.Parameter, value: str) -> str:
    try:
        authority.name_of(value)
    except InvalidNameError as e:
        raise click.BadParameter(str(e)) from e
    return value


def _file_name(context: click.Context, parameter: click.Parameter, value: str) -> str:
    if "/" in value or value.startswith("."):
        raise click.BadParameter("expected a file name without '/' and without leading '.'")
    if value == "ca":
        raise click.BadParameter("'ca' is the name of the CA's own files")
    return _common_name(context, parameter, value)


def _hosts(
    _context: click.Context, _parameter: click.Parameter, value: tuple[str, ...]
) -> tuple[str, ...]:
    try:
        for host in value:
            authority.general_name(host)
    except InvalidNameError as e:
        raise click.BadParameter(str(e)) from e
    return value


@click.group()
def certs() -> None:
    """Make and inspect certificates: a CA, and its servers and clients."""


@certs.command()
@_DIR
@click.option(
    "--name",
    default="Mariner CA",
    show_default=True,
    callback=_common_name,
    help="Its common name.",
)
@click.option("--days", type=_DAYS, default=authority.CA_DAYS, show_default=True)
@_FORCE
def ca(folder: Path, name: str, days: int, force: bool) -> None:
    """Make a CA: ca.pem, to give to everybody, and ca.key, to keep secret."""
    _save(folder, "ca", authority.make_ca(name, days), force)


@certs.command()
@_DIR
@click.option(
    "--host",
    "hosts",
    multiple=True,
    required=True,
    callback=_hosts,
    help="DNS name or IP address that clients connect to. Can be repeated.",
)
@click.option(
    "--name",
    default="server",
    show_default=True,
    callback=_file_name,
    help="Name of the files.",
)
@click.option("--days", type=_DAYS, default=authority.LEAF_DAYS, show_default=True)
@_FORCE
def server(folder: Path, hosts: tuple[str, ...], name: str, days: int, force: bool) -> None:
    """Make a server certificate, signed by the CA in the same folder."""
    _save(folder, name, authority.make_server(_load_ca(folder), hosts, days), force)


@certs.command()
@_DIR
@click.option(
    "--name",
    required=True,
    callback=_file_name,
    help="Name of the client, and of the files.",
)
@click.option("--days", type=_DAYS, default=authority.LEAF_DAYS, show_default=True)
@_FORCE
def client(folder: Path, name: str, days: int, force: bool) -> None:
    """Make a client certificate, signed by the CA in the same folder."""
    _save(folder, name, authority.make_client(_load_ca(folder), name, days), force)


@certs.command()
@click.argument("path", type=_FILE)
@click.option("--ca", "ca_path", type=_FILE, help="Check that this CA signed it.")
def show(path: Path, ca_path: Path | None) -> None:
    """Show what a certificate is good for, and until when."""
    try:
        certificate, *intermediates = files.load_certificates(path)
        cas = files.load_certificates(ca_path) if ca_path else []
    except CertificateError as e:
        raise _Failure(str(e)) from e
    description = inspection.describe(certificate, cas, intermediates)
    for what, value in description.lines:
        click.echo(f"{what + ':':18}{value}")
    if description.problem:
        raise _Failure(f"{path}: {description.problem}")


@certs.command("development")
@_DIR
def development_command(folder: Path) -> None:
    """Make a CA, a server certificate for this machine and a client certificate, once.

    Run again, it renews what expires within a week and leaves the rest alone. It never touches
    what it did not make itself.
    """
    try:
        made = development.ensure(folder)
    except CertificateError as e:
        raise _Failure(str(e)) from e
    what = f"made {', '.join(made)}" if made else "nothing to do"
    click.echo(f"{folder}: development certificates: {what}")


def _load_ca(folder: Path) -> Pair:
    try:
        return files.load_ca(folder)
    except CertificateError as e:
        is_missing = not files.certificate_path(folder, "ca").exists()
        raise _Failure(f"{e}; `mariner certs ca` makes a CA" if is_missing else str(e)) from e


def _save(folder: Path, name: str, pair: Pair, force: bool) -> None:
    try:
        files.save(folder, name, pair, force=force)
    except CertificateError as e:
        raise _Failure(str(e)) from e
    until = pair.certificate.not_valid_after_utc
    click.echo(f"{files.certificate_path(folder, name)}: valid until {until:%Y-%m-%d}")
