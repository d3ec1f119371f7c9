"""Certificates for development: a CA, a server on this machine, one client; made once.

It replaces only what it made itself: what somebody else put into the folder stays.
"""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from cryptography import x509

from mariner_certs import authority, files, inspection
from mariner_certs.authority import Pair
from mariner_certs.errors import CertificateError

CA_NAME: Final = "Mariner development CA"
CLIENT_NAME: Final = "development"
HOSTS: Final = ("localhost", "127.0.0.1", "::1")
RENEW_BEFORE: Final = timedelta(days=7)


def ensure(folder: Path) -> list[str]:
    """Make what is missing, and renew what expires within a week.

    A new CA makes the others new as well. Returns names of what was made: of ``ca``, ``server`` and
    ``client``. Raises CertificateError if a file cannot be read or written, or should be replaced
    but was not made here.
    """
    made: list[str] = []
    if not _is_current(folder, "ca", authority.name_of(CA_NAME)):
        files.save(folder, "ca", authority.make_ca(CA_NAME), force=True)
        made.append("ca")
    ca = files.load_ca(folder)
    leaves: dict[str, Callable[[], Pair]] = {
        "server": lambda: authority.make_server(ca, HOSTS),
        "client": lambda: authority.make_client(ca, CLIENT_NAME),
    }
    for name, make in leaves.items():
        if not _is_current(folder, name, ca.certificate.subject, ca.certificate):
            files.save(folder, name, make(), force=True)
            made.append(name)
    return made


def _is_current(
    folder: Path, name: str, issuer: x509.Name, ca: x509.Certificate | None = None
) -> bool:
    """Whether a certificate and its key are there and stay.

    ``issuer`` is that of the certificates made here, ``ca`` the one that must have signed it, if it
    was made here; None: itself. Raises CertificateError if they should not stay, but were not made
    here.
    """
    path, key_path = files.certificate_path(folder, name), files.key_path(folder, name)
    if not path.exists():
        if key_path.exists():
            raise CertificateError(f"{key_path}: a key without {path.name}: move it away")
        return False
    certificate = files.load_certificate(path)
    left = certificate.not_valid_after_utc - datetime.now(UTC)
    is_usable = key_path.exists() and left > RENEW_BEFORE
    if certificate.issuer != issuer:
        if not is_usable:
            raise CertificateError(
                f"{path}: expires within a week or has no key, but was not made here: "
                "renew it or move it away"
            )
        return True
    if not is_usable or not inspection.is_signed_by(certificate, ca or certificate):
        return False
    files.load(folder, name)  # raises if the key is not its own
    return True
