"""Options of the data source: checked on the driver, before anything is read.

=============== ================================================================================
``path``        a store on this machine, whether a gateway has it open or not
``host``        or a gateway: its name or address
``port``        its Mariner port (23014)
``tls``         ``true``: TLS with the CAs that this system trusts; the next three imply TLS
``tls_ca``      file of the CA that the gateway's certificate is of
``cert``        file of a client certificate, where the gateway requires one
``key``         file of its key
``client_name`` who we are to the gateway; what it may see bounds what is read
``token``       what proves it
``types``       event types: type paths with ``?`` and ``*``, separated by commas, or a JSON array
                of type paths or of arrays of segments (all)
``from``        first moment: ISO 8601 (UTC where it names no zone) or seconds since 1970
``to``          last moment, included
``partitions``  number of tasks (from a store one for each processor, from a gateway 2)
=============== ================================================================================

Files of TLS have to be on every machine that reads.
"""

import os
import ssl
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from eventer_bridge import tls
from eventer_bridge.errors import ConfigurationError, InvalidSubscriptionError
from eventer_bridge.model import EventType
from eventer_bridge.subscription import Subscription
from mariner_spark import limits, times, type_path
from mariner_spark.errors import OptionError
from mariner_spark.times import Interval

T = TypeVar("T")

DEFAULT_PORT: Final = 23014

STORE_OPTIONS: Final = frozenset(("path",))
GATEWAY_OPTIONS: Final = frozenset(
    ("host", "port", "tls", "tls_ca", "cert", "key", "client_name", "token")
)
COMMON_OPTIONS: Final = frozenset(("types", "from", "to", "partitions"))

_decode_types: Final = msgspec.json.Decoder(list[str | tuple[str, ...]]).decode


class GatewayOptions(msgspec.Struct, frozen=True):
    """A gateway and who we are to it. Its text has no token in it."""

    host: str
    port: int
    client_name: str
    token: str | None
    tls: bool
    tls_ca: Path | None
    cert: Path | None
    key: Path | None

    def __repr__(self) -> str:
        return f"{self.host}:{self.port}"

    def context(self) -> ssl.SSLContext | None:
        """Context for TLS; None: plain TCP.

        Raises:
            OptionError: a file is missing or does not fit.
        """
        if not self.tls:
            return None
        try:
            return tls.client_context(self.tls_ca, self.cert, self.key)
        except ConfigurationError as e:
            raise OptionError("tls_ca, cert, key", str(e)) from e


class Options(msgspec.Struct, frozen=True):
    """See the module. Exactly one of ``path`` and ``gateway`` is given."""

    path: Path | None
    gateway: GatewayOptions | None
    types: tuple[EventType, ...] | None
    time: Interval
    partitions: int | None


def parse(given: Mapping[str, str]) -> Options:
    """Check options.

    Args:
        given: by name; names are compared without regard to case.

    Raises:
        OptionError: the first thing that is wrong; it begins with the option's name.
    """
    options = {name.lower(): text for name, text in given.items()}
    known = STORE_OPTIONS | GATEWAY_OPTIONS | COMMON_OPTIONS
    for name in options:
        if name not in known:
            raise OptionError(name, f"no such option, expected some of {', '.join(sorted(known))}")
    if ("path" in options) == ("host" in options):
        raise OptionError("path, host", "expected one of them: a store, or a gateway")
    if "path" in options and (wrong := sorted(GATEWAY_OPTIONS & options.keys())):
        raise OptionError(wrong[0], "is for a gateway (host), but path names a store")
    interval = Interval(_parse("from", options, times.parse), _parse("to", options, times.parse))
    if interval.is_empty:
        raise OptionError("from", "is later than to")
    return Options(
        path=_parse("path", options, _path),
        gateway=_gateway(options) if "host" in options else None,
        types=_parse("types", options, _types),
        time=interval,
        partitions=_parse("partitions", options, _number(1, limits.MAX_PARTITIONS)),
    )


def _gateway(options: Mapping[str, str]) -> GatewayOptions:
    if not options.get("client_name"):
        raise OptionError("client_name", "is needed with host: the name of a configured client")
    for name, other in (("cert", "key"), ("key", "cert")):
        if name in options and other not in options:
            raise OptionError(other, f"is needed with {name}")
    files = {name: _parse(name, options, _path) for name in ("tls_ca", "cert", "key")}
    has_files = any(files.values())
    is_tls = _parse("tls", options, _boolean)
    if is_tls is False and has_files:
        raise OptionError("tls", "is false, but there are files for it")
    gateway = GatewayOptions(
        host=_parse("host", options, _text) or "",
        port=_parse("port", options, _number(1, 65_535)) or DEFAULT_PORT,
        client_name=options["client_name"],
        token=options.get("token"),
        tls=bool(is_tls) or has_files,
        **files,
    )
    gateway.context()
    return gateway


def _parse(name: str, options: Mapping[str, str], parse: Callable[[str], T]) -> T | None:
    """Value of an option; None where it is not given."""
    text = options.get(name)
    if text is None:
        return None
    try:
        return parse(text)
    except OptionError:
        raise
    except (ValueError, OverflowError) as e:
        reason = {
            "from": "expected ISO 8601 (2024-05-01T12:00:00Z) or seconds since 1970-01-01",
            "to": "expected ISO 8601 (2024-05-01T12:00:00Z) or seconds since 1970-01-01",
        }.get(name, str(e))
        raise OptionError(name, f"{text!r}: {reason}") from e


def _text(text: str) -> str:
    if not text:
        raise ValueError("is empty")
    return text


def _path(text: str) -> Path:
    # tasks may run in another directory
    return Path(os.path.abspath(_text(text).removeprefix("file://")))  # noqa: PTH100  # no links


def _number(first: int, last: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not (text.isascii() and text.isdigit() and first <= int(text) <= last):
            raise ValueError(f"expected a number from {first} to {last}")
        return int(text)

    return parse


def _boolean(text: str) -> bool:
    values: Mapping[str, bool] = {"true": True, "false": False}
    if text.lower() not in values:
        raise ValueError("expected true or false")
    return values[text.lower()]


def _types(text: str) -> tuple[EventType, ...]:
    items: list[Any]
    if text.lstrip().startswith("["):
        try:
            items = _decode_types(text)
        except (msgspec.DecodeError, UnicodeError) as e:
            raise ValueError(f"expected a JSON array of event types: {e}") from e
    else:
        items = [i.strip() for i in _text(text).split(",")]
    types = tuple(type_path.decode(i) if isinstance(i, str) else i for i in items)
    if not types:
        raise ValueError("expected an event type")
    try:
        Subscription(types)
    except InvalidSubscriptionError as e:
        raise ValueError(str(e)) from e
    return types
