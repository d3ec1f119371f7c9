"""A scanner looks for weak protocols and ciphers where a gateway listens with TLS."""

import asyncio
import datetime
import ipaddress
import shutil
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Final

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from tests.support.certificates import Certificates, make_certificates
from tests.support.gateway import gateway

GOOD: Final = {
    "TLS_AES_256_GCM_SHA384",
    "TLS_CHACHA20_POLY1305_SHA256",
    "TLS_AES_128_GCM_SHA256",
    *(
        f"ECDHE-{key}-{cipher}"
        for key in ("ECDSA", "RSA")
        for cipher in ("AES256-GCM-SHA384", "AES128-GCM-SHA256", "CHACHA20-POLY1305")
    ),
}
"""Forward secret and authenticated."""

pytestmark = pytest.mark.skipif(
    shutil.which("sslscan") is None, reason="there is no sslscan (Debian: sslscan)"
)


async def scan(port: int, client: Certificates) -> ET.Element:
    process = await asyncio.create_subprocess_exec(
        *(
            "sslscan",
            "--xml=-",
            f"--certs={client.client_cert}",
            f"--pk={client.client_key}",
            f"127.0.0.1:{port}",
        ),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    stdout, _ = await process.communicate()
    found = ET.fromstring(stdout).find("ssltest")  # noqa: S314  # of a program that we started
    assert found is not None
    return found


def check(found: ET.Element, kind: str) -> None:
    protocols = [i.attrib for i in found.iter("protocol")]
    assert len(protocols) == 6
    assert [i["version"] for i in protocols if i["enabled"] == "1"] == ["1.2", "1.3"]
    for weakness, flag in (
        ("renegotiation", "supported"),
        ("compression", "supported"),
        ("heartbleed", "vulnerable"),
    ):
        assert {i.attrib[flag] for i in found.iter(weakness)} <= {"0"}
    ciphers = {i.attrib["cipher"] for i in found.iter("cipher")}
    assert ciphers <= GOOD
    assert len(ciphers) == 6
    assert any(f"-{kind}-" in i for i in ciphers)
    assert {i.attrib["strength"] for i in found.iter("cipher")} <= {"acceptable", "strong"}
    assert min(int(i.attrib["bits"]) for i in found.iter("cipher")) >= 128
    assert min(int(i.attrib["bits"]) for i in found.iter("group")) >= 112


def make_rsa(path: Path) -> dict[str, str]:
    """A certificate with an RSA key, as many CAs give."""
    key = rsa.generate_private_key(65537, 2048)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "rsa")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=90))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]),
            critical=False,
        )
        .sign(key, hashes.SHA256())
    )
    files = path / "rsa.pem", path / "rsa.key"
    files[0].write_bytes(certificate.public_bytes(Encoding.PEM))
    form = Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()
    files[1].write_bytes(key.private_bytes(*form))
    return {"cert": str(files[0]), "key": str(files[1])}


async def test_both_listeners(tmp_path: Path) -> None:
    made = make_certificates(tmp_path)
    own = {"cert": str(made.server_cert), "key": str(made.server_key)}
    eventer = {"host": "127.0.0.1", "port": 0, "tls": make_rsa(tmp_path)}
    mutual = {**own, "client_ca": str(made.ca)}
    async with gateway(tmp_path, tls=mutual, core={"eventer_server": eventer}) as running:
        check(await scan(running.port, made), "ECDSA")
        assert running.eventer_port is not None
        check(await scan(running.eventer_port, made), "RSA")
