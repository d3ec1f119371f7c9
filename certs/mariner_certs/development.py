"""Certificates for development: a CA, a server on this machine, one client; made once."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from mariner_certs import authority, files
from mariner_certs.authority import Pair

CLIENT_NAME: Final = "development"
HOSTS: Final = ("localhost", "127.0.0.1", "::1")
RENEW_BEFORE: Final = timedelta(days=7)


def ensure(folder: Path) -> list[str]:
    """Make what is missing, and renew what expires within a week.

    Returns:
        Names of what was made: of ``ca``, ``server`` and ``client``. A new CA makes the
        others new as well.

    Raises:
        CertificateError: a file cannot be read or written.
    """
    made: list[str] = []
    ca = _ensure(folder, "ca", lambda: authority.make_ca("Mariner development CA"), made)
    is_new = bool(made)
    for name, make in (
        ("server", lambda: authority.make_server(ca, HOSTS)),
        ("client", lambda: authority.make_client(ca, CLIENT_NAME)),
    ):
        _ensure(folder, name, make, made, replace=is_new)
    return made


def _ensure(
    folder: Path,
    name: str,
    make: Callable[[], Pair],
    made: list[str],
    *,
    replace: bool = False,
) -> Pair:
    certificate, key = files.certificate_path(folder, name), files.key_path(folder, name)
    if not replace and certificate.exists() and key.exists():
        pair = files.load(folder, name)
        if pair.certificate.not_valid_after_utc - datetime.now(UTC) > RENEW_BEFORE:
            return pair
    pair = make()
    files.save(folder, name, pair, force=True)
    made.append(name)
    return pair
