"""Options of the data source, as one list: the fields of :class:`Options`.

Each field has the type, the default, the check and the text of an option. Values
(:func:`parse`), arguments of ``mariner_spark.read`` (:func:`to_options`, :func:`documented`) and
the tables of ``spark/README.md`` (:func:`table`) follow from them. The driver checks all options
before anything is read. Files for TLS must exist on every machine that runs tasks.
"""

import dataclasses
import difflib
import inspect
import ssl
import textwrap
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from eventer_bridge import tls
from eventer_bridge.errors import ConfigurationError
from eventer_bridge.model import INT64_MAX, EventType
from eventer_bridge.subscription import Subscription
from mariner_spark import limits, values
from mariner_spark.errors import OptionError, quoted
from mariner_spark.source.kinds import (
    BOOLEAN,
    CLIP,
    FIRST,
    HOSTS,
    LAST,
    NULL,
    OUT_OF_RANGE,
    PATH,
    PORT,
    SERVERS,
    STARTING,
    STRING,
    TYPES,
    VALUE_PATH,
    Kind,
    number,
)
from mariner_spark.times import Interval

F = TypeVar("F", bound=Callable[..., Any])

# --- the list -----------------------------------------------------------------------------


class _For(Enum):
    """The reads that an option is for."""

    STORE = "a store"
    GATEWAY = "a gateway"
    ALL = "all"
    BATCH = "batch reads"
    TASKS = "all but a lake"
    STREAM = "streams"


class _Option(NamedTuple):
    """An option, besides its type and its default; ``about`` is in ``README.md``, and in help.

    ``name``: where the field has another one. ``argument``: that of ``read``, where it has another
    name; empty: there is none.
    """

    kind: Kind
    use: _For
    about: str
    name: str | None = None
    argument: str | None = None


def _option(
    kind: Kind, use: _For, about: str, name: str | None = None, argument: str | None = None
) -> dict[str, _Option]:
    return {"option": _Option(kind, use, about, name, argument)}


class Selection(msgspec.Struct, frozen=True):
    """Conditions that an event of a read must all satisfy; None: all.

    Any of the query types matches. ``source``: source timestamps; None: any, and none at all.
    """

    types: tuple[EventType, ...] | None = None
    time: Interval = Interval()
    servers: frozenset[int] | None = None
    source: Interval | None = None

    def select_types(self, event_types: Iterable[tuple[Any, EventType]]) -> list[Any]:
        """Keys of the selected types, from pairs of key and type."""
        if self.types is None:
            return [key for key, _ in event_types]
        subscription = Subscription(self.types)
        return [key for key, event_type in event_types if subscription.matches(event_type)]

    @property
    def is_servers_only(self) -> bool:
        """Whether it selects by server, and by nothing else."""
        others = self.types is not None or self.source is not None
        return self.servers is not None and not others and self.time.is_everything


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
        """Context for TLS; None: plain TCP. Raises OptionError if a file is missing or invalid."""
        if not self.tls:
            return None
        try:
            return tls.client_context(self.tls_ca, self.cert, self.key)
        except ConfigurationError as e:
            raise OptionError("tls_ca, cert, key", str(e)) from e


@dataclass(frozen=True, kw_only=True, repr=False)
class Options:
    """The list of all options, and their values. Either ``path`` or ``host`` is set."""

    # fmt: off
    path: Path | None = field(default=None, metadata=_option(
        PATH, _For.STORE, "directory of a store, whether a gateway has it open or not; as an"
        " option, also the argument of `load`", argument="store"))
    host: tuple[tuple[str, int | None], ...] = field(default=(), metadata=_option(
        HOSTS, _For.GATEWAY, "or a gateway: `HOST` or `HOST:PORT`; a stream takes several,"
        " separated by commas (`a,b:23015`)", argument="gateway"))
    port: int = field(default=23014, metadata=_option(
        PORT, _For.GATEWAY, "its Mariner port, where `host` names none; default: 23014",
        argument=""))
    client_name: str = field(default="", metadata=_option(
        STRING, _For.GATEWAY, "name of a configured client; a read returns what that client may"
        " see"))
    token: str | None = field(default=None, metadata=_option(STRING, _For.GATEWAY, "its token"))
    tls: bool | None = field(default=None, metadata=_option(
        BOOLEAN, _For.GATEWAY, "`True`: TLS with the CAs of this system; the next three imply"
        " TLS"))
    tls_ca: Path | None = field(default=None, metadata=_option(
        PATH, _For.GATEWAY, "file of the CA that issued the gateway's certificate; on a cluster,"
        " every machine needs it"))
    cert: Path | None = field(default=None, metadata=_option(
        PATH, _For.GATEWAY, "file of a client certificate, as `tls_ca`"))
    key: Path | None = field(default=None, metadata=_option(
        PATH, _For.GATEWAY, "file of its private key, as `tls_ca`"))
    types: tuple[EventType, ...] | None = field(default=None, metadata=_option(
        TYPES, _For.ALL, "query types as type paths, separated by commas: `machine/cpu/?,lamp/*`;"
        " or a list (option: JSON array) of type paths and of tuples (arrays) of segments; default:"
        " all"))
    from_: int | None = field(default=None, metadata=_option(
        FIRST, _For.BATCH, "first `timestamp`: `datetime` (UTC if it is naive), `date`, ISO 8601"
        " (UTC if it names no zone; eight digits are a date), or seconds since 1970", name="from"))
    to: int | None = field(default=None, metadata=_option(
        LAST, _For.BATCH, "last `timestamp`, included; a date means its whole day"))
    source_from: int | None = field(default=None, metadata=_option(
        FIRST, _For.BATCH, "first `source_timestamp`; events without one are left out"))
    source_to: int | None = field(default=None, metadata=_option(
        LAST, _For.BATCH, "last `source_timestamp`, as `to`; events without one are left out"))
    servers: frozenset[int] | None = field(default=None, metadata=_option(
        SERVERS, _For.ALL, "ids of the servers that registered the events (option: separated by"
        " commas); default: all"))
    source_out_of_range: str = field(default=NULL, metadata=_option(
        OUT_OF_RANGE, _For.ALL, "what a `source_timestamp` before 1678 or after 2261 becomes:"
        " `null` (the default), or `clip`: itself, within the years 1 to 9999"))
    partitions: int | None = field(default=None, metadata=_option(
        number(1, limits.MAX_PARTITIONS), _For.TASKS, "number of tasks; default: one per"
        " processor from a store, 2 from a gateway"))
    value_path: str = field(default=values.DEFAULT_PATH, metadata=_option(
        VALUE_PATH, _For.TASKS, "path in JSON payloads to the numbers of the column `value`;"
        " default: `$.value`"))
    starting_offsets: Mapping[str, Any] | str = field(default="earliest", metadata=_option(
        STARTING, _For.STREAM, "where a new query begins: `earliest` (the default), `latest`, or"
        " offsets, see below", name="startingOffsets", argument=""))
    max_events: int | None = field(default=None, metadata=_option(
        number(1, INT64_MAX), _For.STREAM, "maximum number of events per batch. The gateway walks"
        " through them to count them: batches with a limit cost it up to twice as much",
        name="maxEventsPerBatch", argument=""))
    fails_on_loss: bool = field(default=True, metadata=_option(
        BOOLEAN, _For.STREAM, "`false`: go on if events were deleted before they were read, with a"
        " line in the log", name="failOnDataLoss", argument=""))
    # fmt: on

    given: frozenset[str] = frozenset()

    def __repr__(self) -> str:
        return f"Options({', '.join(sorted(self.given))})"  # not the token

    @property
    def gateways(self) -> tuple[GatewayOptions, ...]:
        """The gateways of a stream, or of a batch read from one."""
        has_tls = bool(self.tls) or any((self.tls_ca, self.cert, self.key))
        files = (self.tls_ca, self.cert, self.key)
        return tuple(
            GatewayOptions(host, port or self.port, self.client_name, self.token, has_tls, *files)
            for host, port in self.host
        )

    @property
    def gateway(self) -> GatewayOptions:
        """The only gateway of a batch read."""
        [gateway] = self.gateways
        return gateway

    @property
    def selection(self) -> Selection:
        """The selected events."""
        found = Interval(self.source_from, self.source_to)
        source = None if found == (None, None) else found
        return Selection(self.types, Interval(self.from_, self.to), self.servers, source)

    @property
    def keeps_all_times(self) -> bool:
        """Whether source timestamps out of the range of Python and pandas are not null."""
        return self.source_out_of_range == CLIP

    def check_batch(self) -> None:
        """Raise OptionError for an option of a stream."""
        if wrong := _given(self.given, _For.STREAM):
            raise OptionError(wrong[0], "is for streams")
        if len(self.host) > 1:
            raise OptionError("host", "expected one gateway; several are for streams")

    def check_stream(self) -> None:
        """Raise OptionError for an option of a batch read."""
        if self.path is not None:
            raise OptionError("path", "is for batch reads; a stream reads from a gateway (host)")
        if wrong := _given(self.given, _For.BATCH):
            is_source = wrong[0].startswith("source")
            other = "filter the stream by source_timestamp" if is_source else "see startingOffsets"
            raise OptionError(wrong[0], f"is for batch reads; {other}")


_OPTIONS: Final[Mapping[str, tuple[str, _Option]]] = {
    option.name or i.name: (i.name, option)
    for i in dataclasses.fields(Options)
    if (option := i.metadata.get("option"))
}
"""Field and option by name."""

_NAMES: Final = {name.lower(): name for name in _OPTIONS}

ARGUMENTS: Final = {
    option.argument or attribute: name
    for name, (attribute, option) in _OPTIONS.items()
    if option.argument != ""
}
"""Options by the names of the arguments of ``read``."""

_ARGUMENT_OF: Final = {name: argument for argument, name in ARGUMENTS.items()}


def _given(names: Iterable[str], *uses: _For) -> list[str]:
    """Those of some options that are for certain reads only."""
    return sorted(i for i in names if _OPTIONS[i][1].use in uses)


# --- checks -------------------------------------------------------------------------------


def parse(given: Mapping[str, str]) -> Options:
    """Parse and check options: texts by name; names are not case-sensitive.

    Raises OptionError if one is invalid; the text begins with the option's name.
    """
    texts: dict[str, str] = {}
    for name, text in given.items():
        known_name = _NAMES.get(name.lower())
        if known_name is None:
            raise OptionError(name, f"no such option, {_suggest(name)}")
        texts[known_name] = text
    if ("path" in texts) == ("host" in texts):
        raise OptionError("path, host", "expected one of them: a store, or a gateway")
    if "path" in texts and (wrong := _given(texts, _For.GATEWAY)):
        raise OptionError(wrong[0], "is for a gateway, not for a store")
    if "host" in texts and not texts.get("client_name"):
        raise OptionError("client_name", "is needed for a gateway: the name of a configured client")
    values = {_OPTIONS[name][0]: _parse(name, texts[name]) for name in _OPTIONS if name in texts}
    options = Options(**values, given=frozenset(texts))
    _check(options)
    return options


def _parse(name: str, text: str) -> Any:
    try:
        return _OPTIONS[name][1].kind.parse(text)
    except ValueError as e:
        raise OptionError(name, f"{quoted(text)}: {e}") from e


def _check(options: Options) -> None:
    for name, other in (("cert", "key"), ("key", "cert")):
        if name in options.given and other not in options.given:
            raise OptionError(other, f"is needed with {name}")
    if options.tls is False and any((options.tls_ca, options.cert, options.key)):
        raise OptionError("tls", "is false, but there are files for it")
    if Interval(options.from_, options.to).is_empty:
        raise OptionError("from", "is later than to")
    if Interval(options.source_from, options.source_to).is_empty:
        raise OptionError("source_from", "is later than source_to")
    if options.host:
        options.gateways[0].context()


def _suggest(name: str) -> str:
    if close := difflib.get_close_matches(name.lower(), _NAMES, n=1, cutoff=0.5):
        return f"maybe {_NAMES[close[0]]}?"
    return f"expected some of {', '.join(sorted(_NAMES.values(), key=str.lower))}"


# --- arguments of read, and tables --------------------------------------------------------


def to_options(arguments: Mapping[str, Any]) -> dict[str, str]:
    """Texts of options for arguments of ``read``; those that are None are left out.

    Raises OptionError if an argument has a wrong type. :func:`parse` checks the values.
    """
    given: dict[str, str] = {}
    for argument, value in arguments.items():
        if value is None:
            continue
        name = ARGUMENTS[argument]
        kind = _OPTIONS[name][1].kind
        text = kind.to_text(value)
        if text is None:
            # not the value, which may be a token
            raise OptionError(argument, f"expected {kind.expected}, not {type(value).__name__}")
        given[name] = text
    return given


def parse_arguments(given: Mapping[str, str], *, is_lake: bool = False) -> Options:
    """As :func:`parse`, for the result of :func:`to_options`: errors name arguments.

    For a lake, only options that select events are allowed, and ``source_out_of_range``.
    """
    if is_lake:
        if others := given.keys() - set(_given(given, _For.ALL, _For.BATCH)):
            raise OptionError(_ARGUMENT_OF[min(others)], "is not for a lake")
        return parse({**given, "path": "/"})  # which makes the options complete
    try:
        options = parse(given)
        options.check_batch()
    except OptionError as e:
        names = {**_ARGUMENT_OF, "path, host": "store, gateway"}
        raise OptionError(names.get(e.option, e.option), e.reason) from e
    return options


def documented(function: F) -> F:
    """Decorator: list the arguments that are options at the end of a docstring."""
    lines = [
        textwrap.fill(f"{argument}: {_OPTIONS[name][1].about}.", 92, subsequent_indent="    ")
        for argument, name in ARGUMENTS.items()
    ]
    listed = textwrap.indent("\n".join(lines), "    ")
    text = inspect.cleandoc(function.__doc__ or "")
    function.__doc__ = f"{text}\n\nArguments that are options:\n{listed}\n"
    return function


def table(*, of_streams: bool) -> list[str]:
    """Rows of the tables in ``spark/README.md``: options of streams only, or all others."""
    rows = []
    for name, (_, option) in _OPTIONS.items():
        if of_streams and option.use is _For.STREAM:
            rows.append(f"| `{name}` | {option.about} |")
        if not of_streams and option.use is not _For.STREAM:
            argument = _ARGUMENT_OF.get(name)
            left = "" if argument is None else f"`{argument}` "
            shown = "the same" if name == argument else f"`{name}`"
            rows.append(f"| {left}| {shown} | {option.about} |")
    return rows
