"""Connection failures in plain words, from errors of the system and OpenSSL."""

import os
import socket
import ssl
from typing import Final

_UNTRUSTED: Final = (
    "the server's certificate was not issued by a certificate authority that is trusted here"
)

# verify_code of OpenSSL (X509_V_ERR_…)
_CERTIFICATE_PROBLEMS: Final = {
    9: "the server's certificate is not valid yet (or the clock of this machine is wrong)",
    10: "the server's certificate has expired (or the clock of this machine is wrong)",
    18: _UNTRUSTED + " (it is self-signed)",
    19: _UNTRUSTED + " (its authority is self-signed and unknown)",
    20: _UNTRUSTED,
    21: _UNTRUSTED,
    23: "the server's certificate was revoked",
    26: "the server's certificate may not be used for servers",
}
_NOT_FOR_NAME: Final = (62, 64)  # host name, address

# `reason` of an SSLError: mostly an alert of the server, often after the handshake
_TLS_PROBLEMS: Final = {
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": "the server requires a client certificate",
    "TLSV1_ALERT_UNKNOWN_CA": "the server does not trust the issuer of the client certificate",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "the client certificate has expired",
    "SSLV3_ALERT_CERTIFICATE_REVOKED": "the client certificate was revoked",
    "SSLV3_ALERT_BAD_CERTIFICATE": "the server does not accept the client certificate",
    "SSLV3_ALERT_UNSUPPORTED_CERTIFICATE": "the client certificate may not be used for clients",
    "SSLV3_ALERT_HANDSHAKE_FAILURE": "the server requires a client certificate or other ciphers",
    "TLSV1_ALERT_PROTOCOL_VERSION": "server and client share no version of TLS",
    "WRONG_VERSION_NUMBER": "the server does not speak TLS",
    "RECORD_LAYER_FAILURE": "the server does not speak TLS",
    "UNEXPECTED_EOF_WHILE_READING": "the server cut the connection without closing TLS",
}


def refused(error: OSError, server_name: str | None) -> str:
    """The reason why connecting failed.

    Args:
        error: what ``create_connection`` raised.
        server_name: name or address that the certificate was checked for; None without TLS.
    """
    if isinstance(error, ssl.SSLCertVerificationError):
        if error.verify_code in _NOT_FOR_NAME:
            return f"TLS: the server's certificate is not for {server_name!r}"
        return "TLS: " + _CERTIFICATE_PROBLEMS.get(
            error.verify_code, f"the server's certificate: {error.verify_message}"
        )
    if isinstance(error, ssl.SSLError):
        return "TLS: " + _tls_problem(error)
    if isinstance(error, ConnectionResetError | ConnectionAbortedError) and server_name:
        return (
            "TLS: the server closed the connection in the handshake;"
            " it may not speak TLS, or require a client certificate"
        )
    if isinstance(error, socket.gaierror):
        return f"the host name cannot be resolved ({error.strerror})"
    return _os_problem(error)


def lost(error: Exception | None) -> str:
    """The reason why a connection was lost; ``error`` as passed to ``connection_lost``."""
    if error is None:
        return "the server closed the connection"
    if isinstance(error, ssl.SSLError):
        return "TLS: " + _tls_problem(error)
    if isinstance(error, OSError):
        return _os_problem(error)
    return str(error) or type(error).__name__


def _tls_problem(error: ssl.SSLError) -> str:
    return _TLS_PROBLEMS.get(error.reason or "", str(error))


def _os_problem(error: OSError) -> str:
    # several addresses failed in several ways: no errno, the text lists all of them
    return os.strerror(error.errno).lower() if error.errno else str(error)
