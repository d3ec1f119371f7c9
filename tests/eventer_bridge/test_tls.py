"""TLS contexts: real handshakes, and errors that name the file."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
)
from cryptography.x509.oid import NameOID

from eventer_bridge import tls
from eventer_bridge.errors import ConfigurationError
from mariner_certs import authority, development, files
from tests.support.certificates import Certificates, make_certificates


@pytest.fixture
def made(tmp_path: Path) -> Certificates:
    return make_certificates(tmp_path / "certs")


@contextlib.asynccontextmanager
async def server(context: ssl.SSLContext) -> AsyncIterator[int]:
    """Answers each connection with the common name of its client certificate."""

    async def on_connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        name = tls.peer_common_name(writer.get_extra_info("ssl_object"))
        writer.write(f"{name}\n".encode())
        writer.close()

    listener = await asyncio.start_server(on_connection, "127.0.0.1", 0, ssl=context)
    try:
        yield listener.sockets[0].getsockname()[1]
    finally:
        listener.close()


async def ask(port: int, context: ssl.SSLContext, name: str = "127.0.0.1") -> str:
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", port, ssl=context, server_hostname=name
    )
    try:
        return (await reader.readline()).decode().strip()
    finally:
        writer.close()


async def is_refused(port: int, context: ssl.SSLContext) -> bool:
    """Whether the server ends the connection without an answer.

    With TLS 1.3 a client learns only when it reads that its certificate was refused.
    """
    try:
        return await ask(port, context) == ""
    except (ssl.SSLError, ConnectionError):
        return True


async def test_the_server_is_verified_by_address_and_name(
    made: Certificates, tmp_path: Path
) -> None:
    async with server(tls.server_context(made.server_cert, made.server_key)) as port:
        assert await ask(port, tls.client_context(made.ca)) == "None"
        assert await ask(port, tls.client_context(made.ca), "localhost") == "None"
        with pytest.raises(ssl.SSLCertVerificationError, match=r"[Hh]ostname|mismatch"):
            await ask(port, tls.client_context(made.ca), "example.org")
        with pytest.raises(ssl.SSLCertVerificationError):
            await ask(port, tls.client_context())
        # of the same name, so that only the signature tells them apart
        stranger = authority.make_ca(development.CA_NAME)
        files.save(tmp_path, "stranger", stranger)
        with pytest.raises(ssl.SSLCertVerificationError):
            await ask(port, tls.client_context(tmp_path / "stranger.pem"))


async def test_mutual_tls(made: Certificates, tmp_path: Path) -> None:
    stranger = authority.make_ca("stranger")
    files.save(tmp_path, "other", authority.make_client(stranger, "development"))
    context = tls.server_context(made.server_cert, made.server_key, made.ca)
    async with server(context) as port:
        client = tls.client_context(made.ca, made.client_cert, made.client_key)
        assert await ask(port, client) == "development"
        other = tls.client_context(made.ca, tmp_path / "other.pem", tmp_path / "other.key")
        assert await is_refused(port, tls.client_context(made.ca))
        assert await is_refused(port, other)


async def test_a_server_certificate_is_no_client_certificate(made: Certificates) -> None:
    context = tls.server_context(made.server_cert, made.server_key, made.ca)
    async with server(context) as port:
        wrong = tls.client_context(made.ca, made.server_cert, made.server_key)
        assert await is_refused(port, wrong)


async def test_old_versions_are_refused(made: Certificates) -> None:
    context = tls.client_context(made.ca)
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2
    ours = tls.server_context(made.server_cert, made.server_key)
    assert ours.minimum_version is ssl.TLSVersion.TLSv1_2
    async with server(ours) as port:
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        assert await ask(port, context) == "None"
        old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        old.load_verify_locations(made.ca)
        old.set_ciphers("ALL:@SECLEVEL=0")
        with pytest.warns(DeprecationWarning, match="TLSv1_1"):
            old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_1
        assert await is_refused(port, old)
    # the control: that client gets its answer where the version is allowed
    lax = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    lax.load_cert_chain(made.server_cert, made.server_key)
    lax.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        lax.minimum_version = ssl.TLSVersion.TLSv1_1
    async with server(lax) as port:
        assert await ask(port, old) == "None"


def test_errors_name_the_file(made: Certificates, tmp_path: Path) -> None:
    missing = tmp_path / "missing.pem"
    for arguments, problem in (
        ((missing, made.server_key), f"{missing}: No such file or directory"),
        ((made.server_cert, missing), f"{missing}: No such file or directory"),
        ((made.server_key, made.server_key), f"{made.server_key}: expected a certificate in PEM"),
        ((made.server_cert, made.ca), f"{made.ca}: expected a private key in PEM form"),
        (
            (made.server_cert, made.client_key),
            f"{made.client_key}: the private key does not match {made.server_cert}",
        ),
        ((made.server_cert, made.server_key, made.client_key), "expected a certificate in PEM"),
    ):
        with pytest.raises(ConfigurationError) as raised:
            tls.server_context(*arguments)
        assert problem in str(raised.value)
    with pytest.raises(ConfigurationError, match="certificate and its key must be given together"):
        tls.client_context(made.ca, made.client_cert)
    with pytest.raises(ConfigurationError, match="No such file"):
        tls.client_context(missing)


def test_files_that_no_peer_would_accept(made: Certificates, tmp_path: Path) -> None:
    old = authority.make_server(authority.make_ca("old"), ["localhost"], days=-1)
    files.save(tmp_path, "old", old)
    with pytest.raises(ConfigurationError, match=r"old\.pem: expired on \d{4}-\d\d-\d\d$"):
        tls.server_context(tmp_path / "old.pem", tmp_path / "old.key")
    with pytest.raises(ConfigurationError, match=r"old\.pem: expired on"):
        tls.client_context(made.ca, tmp_path / "old.pem", tmp_path / "old.key")
    key = files.load(made.ca.parent, "server").key
    secret = tmp_path / "secret.key"
    encryption = BestAvailableEncryption(b"secret")
    secret.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption))
    with pytest.raises(ConfigurationError, match=r"secret\.key: the private key is encrypted"):
        tls.server_context(made.server_cert, secret)


async def test_a_certificate_with_two_names_has_none(made: Certificates, tmp_path: Path) -> None:
    ca = files.load(made.ca.parent, "ca")
    one = authority.make_client(ca, "app")
    names = [x509.NameAttribute(NameOID.COMMON_NAME, name) for name in ("app", "admin")]
    both = (
        x509.CertificateBuilder()
        .subject_name(x509.Name(names))
        .issuer_name(ca.certificate.subject)
        .public_key(one.key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(one.certificate.not_valid_before_utc)
        .not_valid_after(one.certificate.not_valid_after_utc)
        .sign(ca.key, hashes.SHA256())
    )
    files.save(tmp_path, "one", one)
    files.save(tmp_path, "both", authority.Pair(both, one.key))
    context = tls.server_context(made.server_cert, made.server_key, made.ca)
    async with server(context) as port:
        for name, expected in (("one", "app"), ("both", "None")):
            client = tls.client_context(made.ca, tmp_path / f"{name}.pem", tmp_path / f"{name}.key")
            assert await ask(port, client) == expected


def test_without_tls_there_is_no_name() -> None:
    assert tls.peer_common_name(None) is None
