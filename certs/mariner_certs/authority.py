"""Makes keys and certificates: a CA of its own, server and client certificates of it.

Values only; ``files`` writes them.
"""

import ipaddress
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

CA_DAYS: Final = 3650
LEAF_DAYS: Final = 365

_CLOCK_SKEW: Final = timedelta(minutes=5)
"""Validity begins so much earlier, for peers whose clock is behind."""


class Pair(NamedTuple):
    """A certificate and its private key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey


def make_ca(name: str, days: int = CA_DAYS) -> Pair:
    """Make a CA that signs leaf certificates only.

    Args:
        name: its common name.
        days: how long it is valid.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    subject = _name(name)
    builder = _builder(subject, subject, key, days)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_key_usage(ca=True), critical=True)
    return Pair(builder.sign(key, hashes.SHA256()), key)


def make_server(ca: Pair, hosts: Sequence[str], days: int = LEAF_DAYS) -> Pair:
    """Make a server certificate.

    Args:
        ca: who signs it.
        hosts: DNS names and IP addresses that clients connect to, at least one; the first
            is its common name.
        days: how long it is valid.
    """
    names = x509.SubjectAlternativeName([_general_name(host) for host in hosts])
    return _make_leaf(ca, hosts[0], ExtendedKeyUsageOID.SERVER_AUTH, days, names)


def make_client(ca: Pair, name: str, days: int = LEAF_DAYS) -> Pair:
    """Make a client certificate.

    Args:
        ca: who signs it.
        name: its common name, usually the client's name in the configuration.
        days: how long it is valid.
    """
    return _make_leaf(ca, name, ExtendedKeyUsageOID.CLIENT_AUTH, days, None)


def _make_leaf(
    ca: Pair,
    name: str,
    purpose: x509.ObjectIdentifier,
    days: int,
    alternative_names: x509.SubjectAlternativeName | None,
) -> Pair:
    key = ec.generate_private_key(ec.SECP256R1())
    builder = _builder(_name(name), ca.certificate.subject, key, days)
    builder = builder.add_extension(
        x509.BasicConstraints(ca=False, path_length=None), critical=True
    )
    builder = builder.add_extension(_key_usage(ca=False), critical=True)
    builder = builder.add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
    identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(ca.key.public_key())
    builder = builder.add_extension(identifier, critical=False)
    if alternative_names is not None:
        builder = builder.add_extension(alternative_names, critical=False)
    return Pair(builder.sign(ca.key, hashes.SHA256()), key)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    builder = x509.CertificateBuilder(
        subject_name=subject,
        issuer_name=issuer,
        public_key=key.public_key(),
        serial_number=x509.random_serial_number(),
        not_valid_before=now - _CLOCK_SKEW,
        not_valid_after=now + timedelta(days=days),
    )
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    return builder.add_extension(identifier, critical=False)


def _key_usage(*, ca: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not ca,
        key_cert_sign=ca,
        crl_sign=ca,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
