"""Makes keys and certificates: a CA of its own, server and client certificates of it.

Values only; ``files`` writes them.
"""

import ipaddress
import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from mariner_certs.errors import InvalidNameError

CA_DAYS: Final = 3650
LEAF_DAYS: Final = 365
MAX_NAME_LENGTH: Final = 64
"""Characters of a common name (X.520, ub-common-name)."""

_CLOCK_SKEW: Final = timedelta(minutes=5)
"""Validity begins so much earlier, for peers whose clock is behind."""

_LABEL: Final = r"(?!-)[a-z0-9_-]{1,63}(?<!-)"
_DNS_NAME: Final = re.compile(rf"(?=.{{1,253}}\Z)(\*\.)?({_LABEL}\.)*(?!\d+\Z){_LABEL}", re.ASCII)
"""Lower case; a last label of digits only is a mistyped IPv4 address."""


class Pair(NamedTuple):
    """A certificate and its private key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey


def make_ca(name: str, days: int = CA_DAYS) -> Pair:
    """Make a CA that signs leaf certificates only; raises as :func:`name_of`."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = name_of(name)
    builder = _builder(subject, subject, key, _end(days))
    identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key())
    builder = builder.add_extension(identifier, critical=False)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_key_usage(ca=True), critical=True)
    return Pair(builder.sign(key, hashes.SHA256()), key)


def make_server(ca: Pair, hosts: Sequence[str], days: int = LEAF_DAYS) -> Pair:
    """Make a server certificate, valid as long as the CA at most.

    ``hosts`` are DNS names and IP addresses that clients connect to; the first is its common name.
    Raises InvalidNameError if one is neither.
    """
    names = x509.SubjectAlternativeName([general_name(host) for host in hosts])
    # the common name only tells people which server it is: peers look at the names
    common_name = hosts[0][:MAX_NAME_LENGTH]
    return _make_leaf(ca, common_name, ExtendedKeyUsageOID.SERVER_AUTH, days, names)


def make_client(ca: Pair, name: str, days: int = LEAF_DAYS) -> Pair:
    """Make a client certificate, valid as long as the CA at most; raises as :func:`name_of`.

    The common name is usually the client's name in the configuration.
    """
    return _make_leaf(ca, name, ExtendedKeyUsageOID.CLIENT_AUTH, days, None)


def name_of(common_name: str) -> x509.Name:
    """Subject with nothing but a common name; raises InvalidNameError if it cannot be one."""
    if not 1 <= len(common_name) <= MAX_NAME_LENGTH:
        raise InvalidNameError(f"expected a name of 1 to {MAX_NAME_LENGTH} characters")
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def general_name(host: str) -> x509.GeneralName:
    """What a server certificate says of a host, as an address if it is one.

    Raises InvalidNameError if it is neither a DNS name nor an IP address.
    """
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    if not _DNS_NAME.fullmatch(host.lower()):
        raise InvalidNameError(
            f"{host!r}: expected an IP address or a DNS name (ASCII, without port)"
        )
    return x509.DNSName(host.lower())


def _make_leaf(
    ca: Pair,
    name: str,
    purpose: x509.ObjectIdentifier,
    days: int,
    alternative_names: x509.SubjectAlternativeName | None,
) -> Pair:
    key = ec.generate_private_key(ec.SECP256R1())
    # peers refuse it from the CA's last day on, whatever it says of itself
    end = min(_end(days), ca.certificate.not_valid_after_utc)
    builder = _builder(name_of(name), ca.certificate.subject, key, end)
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
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, end: datetime
) -> x509.CertificateBuilder:
    builder = x509.CertificateBuilder(
        subject_name=subject,
        issuer_name=issuer,
        public_key=key.public_key(),
        serial_number=x509.random_serial_number(),
        not_valid_before=datetime.now(UTC) - _CLOCK_SKEW,
        not_valid_after=end,
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


def _end(days: int) -> datetime:
    return datetime.now(UTC) + timedelta(days=days)
