"""Tells what a certificate is good for, and until when."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Final, NamedTuple

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID

_PURPOSES: Final = {
    ExtendedKeyUsageOID.SERVER_AUTH: "server",
    ExtendedKeyUsageOID.CLIENT_AUTH: "client",
}
_NOT_SIGNED: Final = "not signed by the CA"


class Description(NamedTuple):
    """What a certificate says, for people; ``problem``: why it cannot be used now, if so."""

    lines: list[tuple[str, str]]
    problem: str | None


def describe(
    certificate: x509.Certificate,
    cas: Sequence[x509.Certificate] = (),
    intermediates: Sequence[x509.Certificate] = (),
    now: datetime | None = None,
) -> Description:
    """Describe a certificate, at an aware moment; None: now.

    One of ``cas``, if any, should have signed it, directly or by ``intermediates``.
    """
    now = now or datetime.now(UTC)
    begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    lines = [
        ("subject", certificate.subject.rfc4514_string()),
        ("issuer", certificate.issuer.rfc4514_string()),
        ("good for", ", ".join(_purposes(certificate)) or "nothing known"),
        ("names", ", ".join(_names(certificate)) or "none"),
        ("valid from", f"{begin:%Y-%m-%d %H:%M:%S} UTC"),
        ("valid until", f"{end:%Y-%m-%d %H:%M:%S} UTC ({_days(end, now)})"),
        ("key", _key_text(certificate)),
        ("SHA-256", certificate.fingerprint(hashes.SHA256()).hex(":").upper()),
    ]
    problem = None
    if now > end:
        problem = "expired"
    elif now < begin:
        problem = "not valid yet"
    if cas:
        chain_problem = _chain_problem(certificate, cas, intermediates, now)
        reason = "" if chain_problem == _NOT_SIGNED else f": {chain_problem}"
        lines.append(("signed by the CA", f"no{reason}" if chain_problem else "yes"))
        problem = problem or chain_problem
    return Description(lines, problem)


def is_ca(certificate: x509.Certificate) -> bool:
    """Whether it may sign others."""
    try:
        return certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except x509.ExtensionNotFound:
        return False


def is_signed_by(certificate: x509.Certificate, ca: x509.Certificate) -> bool:
    """Whether a CA signed it itself, whenever that was."""
    try:
        certificate.verify_directly_issued_by(ca)
    except (InvalidSignature, ValueError, TypeError):
        return False
    return is_ca(ca)


def _days(end: datetime, now: datetime) -> str:
    days = (end - now).days
    unit = "day" if abs(days) == 1 else "days"
    return f"{days} {unit} left" if days >= 0 else f"expired {-days} {unit} ago"


def _purposes(certificate: x509.Certificate) -> Iterator[str]:
    if is_ca(certificate):
        yield "CA"
    try:
        usage = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    except x509.ExtensionNotFound:
        return
    yield from (_PURPOSES.get(i, i.dotted_string) for i in usage)


def _names(certificate: x509.Certificate) -> list[str]:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    return [str(i.value) for i in names]


def _key_text(certificate: x509.Certificate) -> str:
    key = certificate.public_key()
    if isinstance(key, ec.EllipticCurvePublicKey):
        return f"ECDSA {key.curve.name}"
    if isinstance(key, rsa.RSAPublicKey):
        return f"RSA {key.key_size} bits"
    return type(key).__name__


def _chain_problem(
    certificate: x509.Certificate,
    cas: Sequence[x509.Certificate],
    intermediates: Sequence[x509.Certificate],
    now: datetime,
) -> str | None:
    for _ in range(len(intermediates) + 1):
        ca = next((i for i in cas if is_signed_by(certificate, i)), None)
        issuer = ca or next((i for i in intermediates if is_signed_by(certificate, i)), None)
        if issuer is None:
            break
        if not issuer.not_valid_before_utc <= now <= issuer.not_valid_after_utc:
            return f"its issuer {issuer.subject.rfc4514_string()} is expired or not valid yet"
        if ca is not None:
            return None
        certificate = issuer
    return _NOT_SIGNED
