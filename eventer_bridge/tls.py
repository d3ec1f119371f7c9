"""TLS contexts of server and client: TLS 1.2 or newer, peers always verified.

A server with ``client_ca`` requires a certificate of that CA from every client (mutual
TLS). Errors name the faulty file.
"""

import ssl
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_private_key,
)

from eventer_bridge.errors import ConfigurationError


def server_context(cert: Path, key: Path, client_ca: Path | None = None) -> ssl.SSLContext:
    """Context of a listener.

    Args:
        cert: PEM file of the certificate, followed by its chain up to the CA.
        key: PEM file of its private key, unencrypted.
        client_ca: PEM file of the CA of client certificates; None: clients need none.

    Raises:
        ConfigurationError: a file is missing or invalid.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _harden(context)
    _load_pair(context, cert, key)
    if client_ca is not None:
        _load_ca(context, client_ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def client_context(
    ca: Path | None = None, cert: Path | None = None, key: Path | None = None
) -> ssl.SSLContext:
    """Context of a client; certificate and name of the server are always verified.

    Args:
        ca: PEM file of the CA of the server's certificate; None: the CAs that this system
            trusts.
        cert: PEM file of the client's certificate, for servers that require one.
        key: PEM file of its private key; needed with ``cert``.

    Raises:
        ConfigurationError: a file is missing or invalid, or one of ``cert`` and ``key`` is
            given without the other.
    """
    if (cert is None) != (key is None):
        raise ConfigurationError("a client certificate and its key must be given together")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    _harden(context)
    if ca is None:
        context.load_default_certs()
    else:
        _load_ca(context, ca)
    if cert is not None and key is not None:
        _load_pair(context, cert, key)
    return context


def peer_common_name(ssl_object: Any) -> str | None:
    """Common name of the peer's verified certificate.

    Args:
        ssl_object: ``ssl.SSLObject`` of a connection, or None for one without TLS.

    Returns:
        The name; None without TLS, without a certificate, or without a name in it. A
        certificate with several names counts as without: its owner would be a guess.
    """
    certificate = ssl_object.getpeercert() if ssl_object is not None else None
    subject = (certificate or {}).get("subject", ())
    names = [value for part in subject for name, value in part if name == "commonName"]
    return names[0] if len(names) == 1 else None


def _harden(context: ssl.SSLContext) -> None:
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION


def _load_pair(context: ssl.SSLContext, cert: Path, key: Path) -> None:
    certificate = _read_certificates(cert)[0]
    if certificate.not_valid_after_utc < datetime.now(UTC):
        raise ConfigurationError(f"{cert}: expired on {certificate.not_valid_after_utc:%Y-%m-%d}")
    data = _read(key)
    try:
        private_key = load_pem_private_key(data, None)
    except TypeError:
        raise ConfigurationError(
            f"{key}: the private key is encrypted, expected an unencrypted one"
        ) from None
    except ValueError:
        raise ConfigurationError(f"{key}: expected a private key in PEM form") from None
    form = Encoding.DER, PublicFormat.SubjectPublicKeyInfo
    if certificate.public_key().public_bytes(*form) != private_key.public_key().public_bytes(*form):
        raise ConfigurationError(f"{key}: the private key does not match {cert}")
    try:
        context.load_cert_chain(cert, key)
    except ssl.SSLError as e:
        raise ConfigurationError(f"{cert}: cannot be used: {e.reason or e}") from e


def _load_ca(context: ssl.SSLContext, ca: Path) -> None:
    _read_certificates(ca)
    try:
        context.load_verify_locations(ca)
    except ssl.SSLError as e:
        raise ConfigurationError(f"{ca}: cannot be used as CA: {e.reason or e}") from e


def _read_certificates(path: Path) -> list[x509.Certificate]:
    data = _read(path)
    try:
        return x509.load_pem_x509_certificates(data)
    except ValueError:
        raise ConfigurationError(f"{path}: expected a certificate in PEM form") from None


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as e:
        raise ConfigurationError(f"{path}: {e.strerror}") from e
