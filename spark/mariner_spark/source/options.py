"""Options of the data source, which the driver checks before anything is read.

===================== ==========================================================================
``path``              a store on this machine, whether a gateway has it open or not; only batch
``host``              or a gateway: its name or address; for a stream one or more of them,
                      separated by commas, each with its own port if need be: ``a,b:23015``
``port``              its Mariner port (23014)
``tls``               ``true``: TLS with the CAs that this system trusts; the next three imply
                      TLS
``tls_ca``            file of the CA that issued the gateway's certificate
``cert``              file of a client certificate, if the gateway requires one
``key``               file of its private key
``client_name``       name of a configured client; its rights bound what is read
``token``             its token
``types``             event types: type paths with ``?`` and ``*``, separated by commas, or a JSON
                      array of type paths or of arrays of segments (all)
``from``              first moment: ISO 8601 (UTC without a zone; eight digits are a date) or
                      seconds since 1970; only batch
``to``                last moment, included: for a date, its whole day; only batch
``source_from``       first source timestamp, as ``from``; events without one are left out; only
                      batch
``source_to``         last source timestamp, as ``to``; the same
``servers``           ids of the servers whose events are read, separated by commas (all)
``partitions``        number of tasks (store: one per processor; gateway: 2)
``startingOffsets``   stream: offsets at which a new query begins: ``earliest``, ``latest`` or
                      JSON (see ``offsets``); events after them are read (``earliest``)
``maxEventsPerBatch`` stream: maximum number of events in a batch (no limit)
``failOnDataLoss``    stream: whether the query fails if events were deleted before they were
                      read (``true``)
===================== ==========================================================================

Defaults are in parentheses. Files for TLS must exist on every machine that runs tasks.
"""

import difflib
import re
import ssl
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from eventer_bridge import moments, tls
from eventer_bridge.errors import ConfigurationError, InvalidSubscriptionError
from eventer_bridge.model import INT64_MAX, INT64_MIN, EventType
from eventer_bridge.subscription import Subscription
from mariner_spark import limits, times, type_path
from mariner_spark.errors import OptionError
from mariner_spark.local_path import local_path
from mariner_spark.source import offsets
from mariner_spark.source.selection import Selection
from mariner_spark.times import Interval

T = TypeVar("T")

DEFAULT_PORT: Final = 23014

STORE_OPTIONS: Final = frozenset(("path",))
GATEWAY_OPTIONS: Final = frozenset(
    ("host", "port", "tls", "tls_ca", "cert", "key", "client_name", "token")
)
COMMON_OPTIONS: Final = frozenset(("types", "servers", "partitions"))
BATCH_OPTIONS: Final = frozenset(("from", "to", "source_from", "source_to"))
STREAM_OPTIONS: Final = frozenset(("startingOffsets", "maxEventsPerBatch", "failOnDataLoss"))

_NAMES: Final = {
    name.lower(): name
    for name in STORE_OPTIONS | GATEWAY_OPTIONS | COMMON_OPTIONS | BATCH_OPTIONS | STREAM_OPTIONS
}

_decode_types: Final = msgspec.json.Decoder(list[str | tuple[str, ...]]).decode


class GatewayOptions(msgspec.Struct, frozen=True):
    """A gateway, and the credentials. Its ``repr`` does not contain the token."""

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
            OptionError: a file is missing or invalid.
        """
        if not self.tls:
            return None
        try:
            return tls.client_context(self.tls_ca, self.cert, self.key)
        except ConfigurationError as e:
            raise OptionError("tls_ca, cert, key", str(e)) from e


class StreamOptions(msgspec.Struct, frozen=True):
    """Options of a stream only.

    Attributes:
        starting: offsets at which a new query begins (``offsets``); None: the latest.
        max_events: maximum number of events in a batch; None: no limit.
        fails_on_loss: whether deleted events fail the query.
    """

    starting: Mapping[str, Any] | None
    max_events: int | None
    fails_on_loss: bool


class Options(msgspec.Struct, frozen=True):
    """See the module. Either ``path`` or ``gateways`` is set."""

    path: Path | None
    gateways: tuple[GatewayOptions, ...]
    selection: Selection
    partitions: int | None
    stream: StreamOptions
    given: frozenset[str]

    @property
    def gateway(self) -> GatewayOptions:
        """The only gateway of a batch read."""
        [gateway] = self.gateways
        return gateway

    def check_batch(self) -> None:
        """Refuse options of a stream.

        Raises:
            OptionError: there is one.
        """
        if wrong := sorted(STREAM_OPTIONS & self.given):
            raise OptionError(wrong[0], "is for streams")
        if len(self.gateways) > 1:
            raise OptionError("host", "expected one gateway; several are for streams")

    def check_stream(self) -> None:
        """Refuse options of a batch read.

        Raises:
            OptionError: there is one.
        """
        if self.path is not None:
            raise OptionError("path", "is for batch reads; a stream reads from a gateway (host)")
        for names, other in (
            (("from", "to"), "see startingOffsets"),
            (("source_from", "source_to"), "filter the stream by source_timestamp"),
        ):
            if wrong := sorted(self.given.intersection(names)):
                raise OptionError(wrong[0], f"is for batch reads; {other}")


def parse(given: Mapping[str, str]) -> Options:
    """Parse and check options.

    Args:
        given: texts by name; names are not case-sensitive.

    Raises:
        OptionError: the first invalid one; its text begins with the option's name.
    """
    options: dict[str, str] = {}
    for name, text in given.items():
        known_name = _NAMES.get(name.lower())
        if known_name is None:
            raise OptionError(name, f"no such option, {_suggest(name)}")
        options[known_name] = text
    if ("path" in options) == ("host" in options):
        raise OptionError("path, host", "expected one of them: a store, or a gateway")
    if "path" in options and (wrong := sorted(GATEWAY_OPTIONS & options.keys())):
        raise OptionError(wrong[0], "is for a gateway, not for a store")
    return Options(
        path=_parse("path", options, _path),
        gateways=_gateways(options) if "host" in options else (),
        selection=_selection(options),
        partitions=_parse("partitions", options, _number(1, limits.MAX_PARTITIONS)),
        stream=_stream(options),
        given=frozenset(options),
    )


def _suggest(name: str) -> str:
    """Suggestion for an unknown option."""
    if close := difflib.get_close_matches(name.lower(), _NAMES, n=1, cutoff=0.5):
        return f"maybe {_NAMES[close[0]]}?"
    return f"expected some of {', '.join(sorted(_NAMES.values(), key=str.lower))}"


def _selection(options: Mapping[str, str]) -> Selection:
    return Selection(
        types=_parse("types", options, _types),
        time=_interval("from", "to", options) or Interval(),
        servers=_parse("servers", options, _servers),
        source=_interval("source_from", "source_to", options),
    )


def _interval(first: str, last: str, options: Mapping[str, str]) -> Interval | None:
    """Interval of two options; None: neither is given."""
    interval = Interval(
        _parse(first, options, times.parse), _parse(last, options, times.parse_last)
    )
    if interval.is_empty:
        raise OptionError(first, f"is later than {last}")
    return None if interval == (None, None) else interval


def _stream(options: Mapping[str, str]) -> StreamOptions:
    starting = options.get("startingOffsets", "earliest")
    return StreamOptions(
        starting=_parse("startingOffsets", {"startingOffsets": starting}, _starting),
        max_events=_parse("maxEventsPerBatch", options, _number(1, INT64_MAX)),
        fails_on_loss=_parse("failOnDataLoss", options, _boolean) is not False,
    )


def _gateways(options: Mapping[str, str]) -> tuple[GatewayOptions, ...]:
    if not options.get("client_name"):
        raise OptionError("client_name", "is needed for a gateway: the name of a configured client")
    for name, other in (("cert", "key"), ("key", "cert")):
        if name in options and other not in options:
            raise OptionError(other, f"is needed with {name}")
    files = {name: _parse(name, options, _path) for name in ("tls_ca", "cert", "key")}
    has_files = any(files.values())
    is_tls = _parse("tls", options, _boolean)
    if is_tls is False and has_files:
        raise OptionError("tls", "is false, but there are files for it")
    port = _parse("port", options, _PORT) or DEFAULT_PORT
    gateways = tuple(
        GatewayOptions(
            host=host,
            port=own_port or port,
            client_name=options["client_name"],
            token=options.get("token"),
            tls=bool(is_tls) or has_files,
            **files,
        )
        for host, own_port in _parse("host", options, _hosts) or ()
    )
    gateways[0].context()
    return gateways


def _parse(name: str, options: Mapping[str, str], parse: Callable[[str], T]) -> T | None:
    """Value of an option; None: it is not given."""
    text = options.get(name)
    if text is None:
        return None
    try:
        return parse(text)
    except OptionError:
        raise
    except (ValueError, OverflowError) as e:
        reason = moments.EXPECTED if name in BATCH_OPTIONS else str(e)
        raise OptionError(name, f"{text!r}: {reason}") from e


def _text(text: str) -> str:
    if not text:
        raise ValueError("is empty")
    return text


def _hosts(text: str) -> list[tuple[str, int | None]]:
    hosts: list[tuple[str, int | None]] = []
    for item in _text(text).split(","):
        match = _HOST.fullmatch(item.strip())
        if match is None:
            raise ValueError("expected HOST or HOST:PORT, separated by commas")
        own_port = None if match["port"] is None else _PORT(match["port"])
        hosts.append((match["bracketed"] or match["plain"], own_port))
    if len(set(hosts)) < len(hosts):
        raise ValueError("names a gateway twice")
    return hosts


def _path(text: str) -> Path:
    return local_path(_text(text))


def _number(first: int, last: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not (text.isascii() and text.isdigit() and first <= int(text) <= last):
            raise ValueError(f"expected a number from {first} to {last}")
        return int(text)

    return parse


_PORT: Final = _number(1, 65_535)

_HOST: Final = re.compile(
    # an IPv6 address has brackets if there is a port, and needs none otherwise
    r"(?:\[(?P<bracketed>[^\[\]]+)\]|(?P<plain>[^:\[\]]+|[^\[\]]*:[^\[\]]*:[^\[\]]*))(?::(?P<port>\d+))?"
)


def _servers(text: str) -> frozenset[int]:
    try:
        servers = frozenset(int(i) for i in text.split(","))
    except ValueError:
        raise ValueError("expected ids of servers, separated by commas") from None
    if not all(INT64_MIN <= i <= INT64_MAX for i in servers):
        raise ValueError("ids of servers have 64 bits")
    return servers


def _starting(text: str) -> Mapping[str, Any] | None:
    if text == "latest":
        return None
    return {} if text == "earliest" else offsets.parse(text)


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
