"""TLS contexts: real handshakes, and errors that name the file."""

import asyncio
import contextlib
import os
import socket
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
)
from cryptography.x509.oid import NameOID

from eventer_bridge import tls
from eventer_bridge.errors import ConfigurationError
from mariner_certs import authority, development, files
from tests.support.certificates import Certificates, issue_client, make_certificates, write_crl


@pytest.fixture
def made(tmp_path: Path) -> Certificates:
    return make_certificates(tmp_path / "certs")


@contextlib.asynccontextmanager
async def server(context: ssl.SSLContext) -> AsyncIterator[int]:
    """Answers each connection with the names of its client certificate."""

    async def on_connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        names = tls.peer_names(writer.get_extra_info("ssl_object"))
        writer.write(f"{' '.join(sorted(names)) or None}\n".encode())
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
        assert await ask(port, client) == "CN:development"
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
    missing, other = tmp_path / "missing.pem", tmp_path / "rsa.key"
    rsa_key = rsa.generate_private_key(65_537, 2_048)
    other.write_bytes(rsa_key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    for arguments, problem in (
        ((missing, made.server_key), f"{missing}: No such file or directory"),
        ((made.server_cert, missing), f"{missing}: No such file or directory"),
        ((made.server_key, made.server_key), f"{made.server_key}: expected a certificate in PEM"),
        ((made.server_cert, made.ca), f"{made.ca}: expected a private key in PEM form"),
        (
            (made.server_cert, made.client_key),
            f"{made.client_key}: the private key does not match {made.server_cert}",
        ),
        (
            (made.server_cert, other),
            f"{other}: the private key does not match {made.server_cert}",
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


def test_what_is_no_regular_file_is_not_read(made: Certificates, tmp_path: Path) -> None:
    fifo, huge = tmp_path / "fifo", tmp_path / "huge"
    os.mkfifo(fifo)
    with huge.open("wb") as file:
        file.truncate(1 << 40)
    cert, key, ca = made.server_cert, made.server_key, made.ca
    for path, problem in (
        (fifo, "is a FIFO, expected a regular file"),
        (huge, f"has {1 << 40}"),
    ):
        for given in ((path, key), (cert, path), (cert, key, path), (cert, key, ca, path)):
            with pytest.raises(ConfigurationError, match=f"^{path}: {problem}"):
                tls.server_context(*given)
        with pytest.raises(ConfigurationError, match=f"^{path}: {problem}"):
            tls.client_context(path)


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
        for name, expected in (("one", "CN:app"), ("both", "None")):
            client = tls.client_context(made.ca, tmp_path / f"{name}.pem", tmp_path / f"{name}.key")
            assert await ask(port, client) == expected


def test_without_tls_there_is_no_name() -> None:
    assert tls.peer_names(None) == frozenset()


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("app", "CN:app"),
        ("cn:App", "CN:App"),
        ("dns:App.Example", "DNS:app.example"),
        ("Uri:spiffe://Example/app", "URI:spiffe://Example/app"),
        ("a:b", "CN:a:b"),
    ],
)
def test_names_as_they_are_compared(text: str, name: str) -> None:
    assert tls.certificate_name(text) == name


async def test_names_of_the_subject_alternative_name(made: Certificates) -> None:
    folder = made.ca.parent
    issue_client(folder, "app", dns=["App.Example"], uris=["spiffe://example/app"])
    context = tls.server_context(made.server_cert, made.server_key, made.ca)
    client = tls.client_context(made.ca, folder / "app.pem", folder / "app.key")
    async with server(context) as port:
        assert await ask(port, client) == "CN:app DNS:app.example URI:spiffe://example/app"


async def test_revoked_certificates_are_refused(made: Certificates) -> None:
    folder = made.ca.parent
    issue_client(folder, "good")
    crl = write_crl(folder, issue_client(folder, "bad"))
    context = tls.server_context(made.server_cert, made.server_key, made.ca, crl)
    async with server(context) as port:
        good, bad = (
            tls.client_context(made.ca, folder / f"{name}.pem", folder / f"{name}.key")
            for name in ("good", "bad")
        )
        assert await ask(port, good) == "CN:good"
        assert await is_refused(port, bad)
        assert await ask(port, good) == "CN:good"


async def test_a_resumed_session_skips_no_check(made: Certificates) -> None:
    context = tls.server_context(made.server_cert, made.server_key, made.ca)
    client = tls.client_context(made.ca, made.client_cert, made.client_key)
    for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
        client.maximum_version = version
        async with server(context) as port:
            with socket.create_connection(("127.0.0.1", port)) as tcp:
                tcp.settimeout(60)
                wrapped = await asyncio.to_thread(
                    client.wrap_socket, tcp, server_hostname="127.0.0.1"
                )
                with wrapped:
                    await asyncio.to_thread(wrapped.recv, 100)
                    assert wrapped.session is None or not wrapped.session.has_ticket


def test_a_revocation_list_that_cannot_be_used(made: Certificates, tmp_path: Path) -> None:
    arguments = made.server_cert, made.server_key, made.ca
    folder = made.ca.parent
    with pytest.raises(
        ConfigurationError, match=r"ca\.pem: expected a certificate revocation list"
    ):
        tls.server_context(*arguments, made.ca)
    with pytest.raises(ConfigurationError, match=r"none\.pem: No such file"):
        tls.server_context(*arguments, tmp_path / "none.pem")
    old = write_crl(folder, days=-1)
    with pytest.raises(ConfigurationError, match=r"crl\.pem: out of date since 2.*could connect"):
        tls.server_context(*arguments, old)
    others = write_crl(make_certificates(tmp_path / "others").ca.parent)
    with pytest.raises(ConfigurationError, match=r"crl\.pem: is not of .*ca\.pem"):
        tls.server_context(*arguments, others)
