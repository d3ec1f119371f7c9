"""Outgoing connections: made, tried again, and why they fail, in plain words.

Runs on the event loop's thread.
"""

import asyncio
import contextlib
import logging
import os
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, Final, TypeVar

import tenacity

from eventer_bridge.errors import ConnectError, EventerBridgeError
from eventer_bridge.net import limits
from eventer_bridge.net.stream import Stream

T = TypeVar("T")

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


@contextlib.asynccontextmanager
async def connecting(
    address: object,
    server_name: str | None = None,
    timeout_s: float | None = None,
    what: str = "connection",
) -> AsyncIterator[None]:
    """Connect within a time limit; a failure is a ``ConnectError`` with the reason.

    ``what`` is made within, for the error. For ``server_name``, see :func:`open_connection`.
    """
    timeout = asyncio.timeout(timeout_s)
    try:
        async with timeout:
            yield
    except OSError as e:
        # TimeoutError, ours or TCP's, is an OSError
        is_late = isinstance(e, TimeoutError) and timeout.expired()
        text = f"no {what} within {timeout_s:g} s" if is_late else refused(e, server_name)
        raise ConnectError(f"{address}: {text}") from e


async def open_connection(
    stream: Stream[Any], host: str, port: int, tls: ssl.SSLContext | None, server_name: str | None
) -> None:
    """Connect a stream, which is notified of its end if it was of its beginning.

    ``server_name`` is what the certificate is checked for; None without TLS. ``OSError``: no
    connection, or no TLS.
    """
    try:
        await asyncio.get_running_loop().create_connection(
            lambda: stream,
            host,
            port,
            ssl=tls,
            server_hostname=server_name,
            ssl_shutdown_timeout=limits.CLOSE_TIMEOUT_S if tls else None,
        )
    except BaseException:
        # a connection that is made while its task is cancelled: uvloop closes it without a word
        stream.end_opening()
        raise


async def keep_trying(
    attempt: Callable[[], Awaitable[T]],
    errors: type[Exception] | tuple[type[Exception], ...],
    log: logging.Logger,
    text: str,
    extra: Mapping[str, object],
    *,
    is_told: bool = False,
    max_wait_s: float = limits.RECONNECT_MAX_S,
    on_failure: Callable[[str], None] = lambda reason: None,
) -> T:
    """Retry until success or an unexpected error.

    The wait between two attempts is random and grows to ``max_wait_s``, so that thousands of
    clients of one server do not reconnect at the same moment. Each reason is logged once, with the
    message ``text`` ("feed is not connected") and ``extra``. With ``is_told``, the message has the
    reason and the time until the next attempt, too: logs of applications show no ``extra``.
    ``on_failure`` is called with the reason each time.
    """
    last_reason: str | None = None

    def log_failure(state: tenacity.RetryCallState) -> None:
        nonlocal last_reason
        assert state.outcome is not None
        error = state.outcome.exception()
        is_expected = isinstance(error, (OSError, EventerBridgeError))
        reason = str(error) if is_expected else repr(error)
        level = logging.DEBUG if reason == last_reason else logging.WARNING
        last_reason = reason
        exc_info = None if is_expected else error
        message = text
        if is_told and state.next_action is not None:
            message = f"{text}: {reason}; next try in {state.next_action.sleep:.1f} s"
        log.log(level, message, extra={**extra, "reason": reason}, exc_info=exc_info)
        on_failure(reason)

    attempts = tenacity.AsyncRetrying(
        retry=tenacity.retry_if_exception_type(errors),
        wait=tenacity.wait_random_exponential(multiplier=limits.RECONNECT_MIN_S, max=max_wait_s),
        before_sleep=log_failure,
    )
    return await attempts(attempt)


def refused(error: OSError, server_name: str | None) -> str:
    """The reason why connecting failed; ``error`` as raised by ``create_connection``.

    ``server_name`` is what the certificate was checked for; None without TLS.
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
