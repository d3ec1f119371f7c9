"""Keeps certificates and keys in PEM files: ``NAME.pem`` and ``NAME.key`` of a folder.

A key is private from its first byte on, and neither is ever half written or overwritten unasked.
"""

import os
import secrets
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from mariner_certs import inspection
from mariner_certs.authority import Pair
from mariner_certs.errors import CertificateError

KEY_MODE: Final = 0o600
CERTIFICATE_MODE: Final = 0o644


def certificate_path(folder: Path, name: str) -> Path:
    """File of a certificate."""
    return folder / f"{name}.pem"


def key_path(folder: Path, name: str) -> Path:
    """File of its private key."""
    return folder / f"{name}.key"


def save(folder: Path, name: str, pair: Pair, *, force: bool = False) -> None:
    """Write a certificate and its key into a folder, which is made if it is not there.

    Raises CertificateError if a file cannot be written, or is there already, unless ``force``
    replaces it.
    """
    key = pair.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    certificate = pair.certificate.public_bytes(Encoding.PEM)
    files = (
        (key_path(folder, name), key, KEY_MODE),
        (certificate_path(folder, name), certificate, CERTIFICATE_MODE),
    )
    for path, _, _ in files:
        if path.exists() and not force:
            raise CertificateError(f"{path}: exists already; --force replaces it")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path, data, mode in files:
            _write(path, data, mode)
    except OSError as e:
        raise CertificateError(f"{e.filename or folder}: {e.strerror}") from e


def load(folder: Path, name: str) -> Pair:
    """Read a certificate and its key; raises CertificateError if a file is missing or wrong."""
    path = key_path(folder, name)
    certificate = load_certificate(certificate_path(folder, name))
    try:
        key = load_pem_private_key(_read(path), None)
    except (TypeError, ValueError):
        raise CertificateError(f"{path}: expected a private key in PEM form") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise CertificateError(f"{path}: expected an elliptic curve key, as made by this tool")
    if key.public_key() != certificate.public_key():
        raise CertificateError(f"{path}: not the key of {certificate_path(folder, name)}")
    return Pair(certificate, key)


def load_ca(folder: Path) -> Pair:
    """Read the CA of a folder, to sign with it; raises as :func:`load`, or if it has expired."""
    pair = load(folder, "ca")
    path = certificate_path(folder, "ca")
    if not inspection.is_ca(pair.certificate):
        raise CertificateError(f"{path}: not the certificate of a CA")
    if pair.certificate.not_valid_after_utc < datetime.now(UTC):
        raise CertificateError(f"{path}: expired")
    return pair


def load_certificate(path: Path) -> x509.Certificate:
    """Read a certificate, the first one of a chain; as :func:`load_certificates`."""
    return load_certificates(path)[0]


def load_certificates(path: Path) -> list[x509.Certificate]:
    """Read all certificates of a file; raises CertificateError if there is none."""
    try:
        return x509.load_pem_x509_certificates(_read(path))
    except ValueError:
        raise CertificateError(f"{path}: expected a certificate in PEM form") from None


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as e:
        raise CertificateError(f"{path}: {e.strerror}") from e


def _write(path: Path, data: bytes, mode: int) -> None:
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(descriptor, mode)  # whatever the umask is
            file.write(data)
            file.flush()
            os.fsync(descriptor)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
