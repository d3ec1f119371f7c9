"""Certificates for tests, made by our own tool."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID

from mariner_certs import authority, development, files


class Certificates(NamedTuple):
    """Files of a CA, a server on this machine and a client named ``development``."""

    ca: Path
    server_cert: Path
    server_key: Path
    client_cert: Path
    client_key: Path


def make_certificates(directory: Path) -> Certificates:
    """Make them in a directory of their own."""
    development.ensure(directory)
    names = ("ca.pem", "server.pem", "server.key", "client.pem", "client.key")
    return Certificates(*(directory / name for name in names))


def issue_client(
    directory: Path,
    name: str,
    *,
    dns: Sequence[str] = (),
    uris: Sequence[str] = (),
    days: int = 30,
) -> x509.Certificate:
    """Make ``NAME.pem`` and ``NAME.key`` of a client, with alternative names, by the CA there."""
    names: list[x509.GeneralName] = [x509.DNSName(i) for i in dns]
    names += [x509.UniformResourceIdentifier(i) for i in uris]
    purpose = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH])
    more = [x509.SubjectAlternativeName(names)] if names else []
    pair = authority._make(files.load_ca(directory), name, days, purpose, *more)
    files.save(directory, name, pair, force=True)
    return pair.certificate


def postpone(directory: Path, name: str, begin: datetime) -> None:
    """Have the certificate ``NAME.pem`` of the CA there be valid from a moment on."""
    ca = files.load_ca(directory)
    path = directory / f"{name}.pem"
    before = x509.load_pem_x509_certificate(path.read_bytes())
    builder = x509.CertificateBuilder(
        issuer_name=before.issuer,
        subject_name=before.subject,
        public_key=before.public_key(),
        serial_number=before.serial_number,
        not_valid_before=begin,
        not_valid_after=begin + timedelta(days=60),
    )
    path.write_bytes(builder.sign(ca.key, hashes.SHA256()).public_bytes(Encoding.PEM))


def write_crl(directory: Path, *revoked: x509.Certificate, days: int = 7) -> Path:
    """Make ``crl.pem``, the revocation list of the CA there, good for so many days."""
    ca = files.load_ca(directory)
    now = datetime.now(UTC)
    builder = x509.CertificateRevocationListBuilder(
        ca.certificate.subject, now - timedelta(days=2), now + timedelta(days=days)
    )
    for certificate in revoked:
        entry = x509.RevokedCertificateBuilder(certificate.serial_number, now - timedelta(days=1))
        builder = builder.add_revoked_certificate(entry.build())
    path = directory / "crl.pem"
    path.write_bytes(builder.sign(ca.key, hashes.SHA256()).public_bytes(Encoding.PEM))
    return path
