"""Makes keys and certificates: a CA of its own, server and client certificates of it."""

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
    return _make(None, name, days)


def make_server(ca: Pair, hosts: Sequence[str], days: int = LEAF_DAYS) -> Pair:
    """Make a server certificate, valid as long as the CA at most.

    ``hosts`` are DNS names and IP addresses that clients connect to; the first is its common name.
    Raises InvalidNameError if one is neither.
    """
    names = x509.SubjectAlternativeName([general_name(host) for host in hosts])
    purpose = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])
    # the common name only tells people which server it is: peers look at the names
    return _make(ca, hosts[0][:MAX_NAME_LENGTH], days, purpose, names)


def make_client(ca: Pair, name: str, days: int = LEAF_DAYS) -> Pair:
    """Make a client certificate, valid as long as the CA at most; raises as :func:`name_of`.

    The common name is usually the client's name in the configuration.
    """
    return _make(ca, name, days, x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]))


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


def _make(ca: Pair | None, name: str, days: int, *more: x509.ExtensionType) -> Pair:
    """Make a certificate of a CA, or (None) one."""
    key = ec.generate_private_key(ec.SECP256R1())
    signing, subject = key if ca is None else ca.key, name_of(name)
    now = datetime.now(UTC)
    end = now + timedelta(days=days)
    builder = x509.CertificateBuilder(
        subject_name=subject,
        issuer_name=subject if ca is None else ca.certificate.subject,
        public_key=key.public_key(),
        serial_number=x509.random_serial_number(),
        not_valid_before=now - _CLOCK_SKEW,
        # peers refuse it from the CA's last day on, whatever it says of itself
        not_valid_after=end if ca is None else min(end, ca.certificate.not_valid_after_utc),
    )
    extensions: dict[x509.ExtensionType, bool] = {
        x509.SubjectKeyIdentifier.from_public_key(key.public_key()): False,
        x509.AuthorityKeyIdentifier.from_issuer_public_key(signing.public_key()): False,
        x509.BasicConstraints(ca=ca is None, path_length=0 if ca is None else None): True,
        _key_usage(ca=ca is None): True,
        **dict.fromkeys(more, False),
    }
    for extension, is_critical in extensions.items():
        builder = builder.add_extension(extension, critical=is_critical)
    return Pair(builder.sign(signing, hashes.SHA256()), key)


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
