"""TLS contexts of server and client: TLS 1.2 or newer, no CBC, peers always verified.

A server with ``client_ca`` requires a certificate of that CA from every client (mutual
TLS) that is not on the revocation list (``crl``). Errors name the faulty file.

Only what looks into certificates needs ``cryptography``, which a client may be without.
"""

import contextlib
import re
import ssl
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from eventer_bridge import limits
from eventer_bridge.errors import ConfigurationError
from eventer_bridge.resources import read_regular

if TYPE_CHECKING:
    from cryptography import x509

_CIPHERS: Final = "ECDHE+AESGCM:ECDHE+CHACHA20"
"""Of TLS 1.2: forward secret and authenticated, as all of TLS 1.3 are; OpenSSL would add CBC."""

_OTHER_KEY: Final = ("KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH", "NO_CERTIFICATE_ASSIGNED")

_CRL: Final = re.compile(rb"-----BEGIN X509 CRL-----.*?-----END X509 CRL-----", re.DOTALL)


def server_context(
    cert: Path, key: Path, client_ca: Path | None = None, crl: Path | None = None
) -> ssl.SSLContext:
    """Context of a listener; ``ConfigurationError``: a file is missing or invalid.

    All are PEM files: ``cert`` is the certificate, followed by its chain up to the CA, ``key`` its
    private key, unencrypted, ``client_ca`` the CA of client certificates (None: clients need none),
    ``crl`` the revocation lists of all CAs in ``client_ca`` that issue certificates of clients
    (None: none is revoked).
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _harden(context)
    _load_pair(context, cert, key)
    if client_ca is not None:
        _load_ca(context, client_ca)
        context.verify_mode = ssl.CERT_REQUIRED
        # the certificate of a client that resumes a session would not be checked again
        context.options |= ssl.OP_NO_TICKET
        context.num_tickets = 0
        if crl is not None:
            _load_crl(context, crl, client_ca)
    return context


def client_context(
    ca: Path | str | None = None, cert: Path | str | None = None, key: Path | str | None = None
) -> ssl.SSLContext:
    """Context of a client; certificate and name of the server are always verified.

    ``ca`` is of the server's certificate; None: the CAs that this system trusts. A client's
    certificate, for servers that require one, comes with its ``key``. ``ConfigurationError``: it
    does not, or a file is missing or invalid.
    """
    if (cert is None) != (key is None):
        raise ConfigurationError("a client certificate and its key must be given together")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    _harden(context)
    if ca is None:
        context.load_default_certs()
    else:
        _load_ca(context, Path(ca))
    if cert is not None and key is not None:
        _load_pair(context, Path(cert), Path(key))
    return context


def peer_names(ssl_object: Any) -> frozenset[str]:
    """Names of the peer's verified certificate, in the form of :func:`certificate_name`.

    Its common name, and the DNS names and URIs of its subject alternative name; empty without TLS
    (``ssl_object`` is None) or a certificate. Several common names count as none: its owner would
    be a guess.
    """
    certificate = ssl_object.getpeercert() if ssl_object is not None else None
    if not certificate:
        return frozenset()
    subject = certificate.get("subject", ())
    common = [value for part in subject for name, value in part if name == "commonName"]
    names = [f"CN:{common[0]}"] if len(common) == 1 else []
    names += [f"{kind}:{value}" for kind, value in certificate.get("subjectAltName", ())]
    return frozenset(certificate_name(name) for name in names)


class PeerCertificate(NamedTuple):
    """A peer's verified certificate, for people: its name, and until when it is valid."""

    name: str
    until: datetime


def peer_certificate(ssl_object: Any) -> PeerCertificate | None:
    """That of a connection; None without TLS (``ssl_object`` is None) or a certificate."""
    certificate = ssl_object.getpeercert() if ssl_object is not None else None
    if not certificate:
        return None
    until = datetime.fromtimestamp(ssl.cert_time_to_seconds(certificate["notAfter"]), UTC)
    return PeerCertificate(" ".join(sorted(peer_names(ssl_object))), until)


def certificate_name(text: str) -> str:
    """A name in a certificate as it is compared: ``CN:name``, ``DNS:host`` or ``URI:uri``.

    ``text`` is the same, or a common name alone.
    """
    kind, _, value = text.partition(":")
    match kind.upper():
        case "DNS":
            return f"DNS:{value.lower()}"
        case "URI" | "CN" as known:
            return f"{known}:{value}"
        case _:
            return f"CN:{text}"


def expiry(cert: Path) -> datetime:
    """When the first certificate of a file expires; ``ConfigurationError`` if it is unusable."""
    return min(i.not_valid_after_utc for i in _read_certificates(cert))


def ca_expiry(ca: Path) -> datetime:
    """When the last CA of a file expires: the others may be there until they are replaced."""
    return max(i.not_valid_after_utc for i in _read_certificates(ca))


def crl_expiry(crl: Path) -> datetime | None:
    """When the first revocation list of a file is out of date; None: never."""
    moments = [i.next_update_utc for i in read_crl(crl)]
    return min((i for i in moments if i is not None), default=None)


def beginning(cert: Path) -> datetime:
    """When the last certificate of a file becomes valid; raises as :func:`expiry`."""
    return max(i.not_valid_before_utc for i in _read_certificates(cert))


def ca_beginning(ca: Path) -> datetime:
    """When the first CA of a file becomes valid."""
    return min(i.not_valid_before_utc for i in _read_certificates(ca))


def crl_beginning(crl: Path) -> datetime:
    """When the last revocation list of a file becomes valid."""
    return max(i.last_update_utc for i in read_crl(crl))


def has_root(ca: Path) -> bool:
    """Whether a CA of a file is its own issuer: without one, no certificate can be verified."""
    return any(i.issuer == i.subject for i in _read_certificates(ca))


def read_crl(crl: Path) -> "list[x509.CertificateRevocationList]":
    """The revocation lists of a PEM file; ``ConfigurationError``: it is missing or invalid."""
    from cryptography import x509  # noqa: PLC0415  # see the module

    try:
        found = [x509.load_pem_x509_crl(i) for i in _CRL.findall(_read(crl))]
    except ValueError:
        found = []
    if not found:
        raise ConfigurationError(f"{crl}: expected a certificate revocation list in PEM form")
    return found


def is_revoked(ssl_object: Any, lists: "Sequence[x509.CertificateRevocationList]") -> bool:
    """Whether the peer's certificate is on one of the lists; ``ssl_object`` is None without TLS."""
    from cryptography import x509  # noqa: PLC0415  # see the module

    encoded = ssl_object.getpeercert(binary_form=True) if ssl_object is not None else None
    if not encoded:
        return False
    certificate = x509.load_der_x509_certificate(encoded)
    return any(
        i.issuer == certificate.issuer
        and i.get_revoked_certificate_by_serial_number(certificate.serial_number) is not None
        for i in lists
    )


def _harden(context: ssl.SSLContext) -> None:
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    context.set_ciphers(_CIPHERS)


def _load_pair(context: ssl.SSLContext, cert: Path, key: Path) -> None:
    _check_certificates(cert)
    with contextlib.suppress(ModuleNotFoundError):  # see the module: the server says it, too
        if (end := _read_certificates(cert)[0].not_valid_after_utc) < datetime.now(UTC):
            raise ConfigurationError(f"{cert}: expired on {end:%Y-%m-%d}")
    _read(key)

    def refuse() -> str:
        raise ConfigurationError(
            f"{key}: the private key is encrypted, expected an unencrypted one"
        )

    try:
        context.load_cert_chain(cert, key, refuse)
    except ssl.SSLError as e:
        if e.reason in _OTHER_KEY:
            raise ConfigurationError(f"{key}: the private key does not match {cert}") from None
        if e.reason is None:
            raise ConfigurationError(f"{key}: expected a private key in PEM form") from None
        raise ConfigurationError(f"{cert}: cannot be used: {e.reason}") from e


def _load_ca(context: ssl.SSLContext, ca: Path) -> None:
    _check_certificates(ca)
    try:
        context.load_verify_locations(ca)
    except ssl.SSLError as e:
        raise ConfigurationError(f"{ca}: cannot be used as CA: {e.reason or e}") from e


def _load_crl(context: ssl.SSLContext, crl: Path, client_ca: Path) -> None:
    issuers = _read_certificates(client_ca)
    for i in read_crl(crl):
        if i.next_update_utc is not None and i.next_update_utc < datetime.now(UTC):
            raise ConfigurationError(
                f"{crl}: out of date since {i.next_update_utc:%Y-%m-%d}: no client could connect"
            )
        keys: list[Any] = [ca.public_key() for ca in issuers if ca.subject == i.issuer]
        if not any(i.is_signature_valid(key) for key in keys):
            raise ConfigurationError(f"{crl}: is not of {client_ca}")
    try:
        context.load_verify_locations(crl)
    except ssl.SSLError as e:
        raise ConfigurationError(f"{crl}: cannot be used: {e.reason or e}") from e
    context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF


def _check_certificates(path: Path) -> None:
    text = _read(path).decode("ascii", "ignore") or "-"
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=text)
    except ssl.SSLError:
        raise _no_certificate(path) from None


def _read_certificates(path: Path) -> "list[x509.Certificate]":
    from cryptography import x509  # noqa: PLC0415  # see the module

    data = _read(path)
    try:
        return x509.load_pem_x509_certificates(data)
    except ValueError:
        raise _no_certificate(path) from None


def _no_certificate(path: Path) -> ConfigurationError:
    return ConfigurationError(f"{path}: expected a certificate in PEM form")


def _read(path: Path) -> bytes:
    try:
        return read_regular(path, limits.MAX_PEM_FILE_BYTES)
    except OSError as e:
        raise ConfigurationError(f"{path}: {e.strerror}") from e
