"""Batch reads with Python arguments: :func:`read`.

The arguments become options of the data source (``source.options``), which are checked here, before
Spark is called. A lake is read by Spark's own Parquet source (``lake_reader``).
"""

from collections.abc import Callable, Iterable, Mapping
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from eventer_bridge.errors import InvalidEventError
from eventer_bridge.model import EventType
from mariner_spark import times
from mariner_spark.errors import OptionError
from mariner_spark.lake_reader import read_events as read_lake
from mariner_spark.schema import LAKE_SCHEMA, SCHEMA
from mariner_spark.source import options

Moment: TypeAlias = str | date | float
"""A moment: ``datetime`` (UTC if it is naive), ``date``, a string as the options take it (ISO 8601,
UTC if it names no zone), or seconds since 1970."""


def read(
    spark: SparkSession,
    *,
    store: str | Path | None = None,
    gateway: str | None = None,
    lake: str | Path | None = None,
    version: int | None = None,
    as_of: Moment | None = None,
    types: str | Iterable[str | EventType] | None = None,
    from_: Moment | None = None,
    to: Moment | None = None,
    servers: int | Iterable[int] | None = None,
    source_from: Moment | None = None,
    source_to: Moment | None = None,
    columns: Iterable[str] | None = None,
    partitions: int | None = None,
    client_name: str | None = None,
    token: str | None = None,
    tls: bool | None = None,
    tls_ca: str | Path | None = None,
    cert: str | Path | None = None,
    key: str | Path | None = None,
) -> DataFrame:
    """Read events from a store, a gateway or a lake; only the selected ones are read.

    ``read(spark, store="data/events", types="machine/cpu/?", from_=date(2025, 1, 1))``

    Args:
        spark: a session with the data source: from ``get_session``, or after ``register``.
        store: directory of a store, whether a gateway has it open or not.
        gateway: or a gateway: ``HOST`` or ``HOST:PORT``.
        lake: or a lake: a folder, or a location in an object store. It also has the column
            ``value``. Takes ``types``, ``from_``, ``to``, ``servers``, ``source_from``,
            ``source_to`` and ``columns``.
        version: version of the lake's table ``events``; None: the latest.
        as_of: or the moment of a version.
        types: event types: type paths, where ``?`` stands for one segment and ``*``, at the end,
            for any number, or tuples of segments. A string is one or more paths, separated by
            commas.
        from_: first timestamp.
        to: last timestamp, included; a date is its whole day.
        servers: ids of the servers that registered the events.
        source_from: first source timestamp. With this or ``source_to``, events without one are
            left out.
        source_to: last source timestamp, as ``to``.
        columns: names of the columns to read, in order; None: all of ``schema.SCHEMA``.
        partitions: number of tasks, at most.
        client_name: name of a configured client of the gateway.
        token: its token.
        tls: TLS with the CAs that this system trusts; the next three imply TLS.
        tls_ca: file of the CA that issued the gateway's certificate.
        cert: file of a client certificate.
        key: file of its private key.

    Raises:
        OptionError: an argument is wrong; the text begins with its name.
        LakeError: there is no such lake or version, or it cannot be read.
    """
    arguments = dict(locals())
    given = to_options({i: j for i, j in arguments.items() if i in _ARGUMENTS})
    if lake is not None:
        return _read_lake(spark, str(lake), _version(version, as_of), given, columns)
    if version is not None or as_of is not None:
        raise OptionError("version" if as_of is None else "as_of", "is for a lake")
    try:
        options.parse(given).check_batch()
    except OptionError as e:
        raise OptionError(_ARGUMENT_NAMES.get(e.option, e.option), e.reason) from e
    reader = spark.read.format("mariner").options(**given)
    return reader.schema(SCHEMA if columns is None else _schema(columns)).load()


def _read_lake(
    spark: SparkSession,
    lake: str,
    version: int | datetime | None,
    given: dict[str, str],
    columns: Iterable[str] | None,
) -> DataFrame:
    if others := given.keys() - _OF_LAKE:
        raise OptionError(_ARGUMENT_NAMES.get(min(others), min(others)), "is not for a lake")
    # the path makes the options complete
    selection = options.parse({**given, "path": "/"}).selection
    events = read_lake(spark, lake, selection, version=version)
    return events if columns is None else events.select(*_schema(columns, LAKE_SCHEMA).names)


def _version(version: int | None, as_of: Moment | None) -> int | datetime | None:
    if as_of is None:
        if version is None or _integer(version) is not None:
            return version
        raise OptionError("version", f"expected a number, not {type(version).__name__}")
    if version is not None:
        raise OptionError("as_of", "cannot be combined with version")
    text = _moment(as_of)
    if text is None:
        raise OptionError("as_of", f"expected {_A_MOMENT}, not {type(as_of).__name__}")
    try:
        return times.to_datetime(times.parse_last(text))
    except InvalidEventError as e:
        raise OptionError("as_of", str(e)) from e


def to_options(arguments: Mapping[str, Any]) -> dict[str, str]:
    """Options of the data source for arguments of :func:`read`, ``columns`` excepted.

    Raises:
        OptionError: an argument has a wrong type. ``source.options`` checks the values.
    """
    given: dict[str, str] = {}
    for name, value in arguments.items():
        if value is None:
            continue
        argument = _ARGUMENTS[name]
        text = argument.to_text(value)
        if text is None:
            # not the value, which may be a token
            raise OptionError(name, f"expected {argument.expected}, not {type(value).__name__}")
        given[argument.option] = text
    return given


def _schema(columns: Iterable[str], known: StructType = SCHEMA) -> StructType:
    """The schema of some columns.

    Raises:
        OptionError: a column is unknown or repeated, or there are none.
    """
    names = [] if isinstance(columns, str) else list(columns)
    if not names:
        raise OptionError("columns", f"expected a list of names, not {columns!r}")
    for index, name in enumerate(names):
        if name not in known.names:
            raise OptionError(
                "columns", f"no column {name!r}, expected some of {', '.join(known.names)}"
            )
        if name in names[:index]:
            raise OptionError("columns", f"names {name!r} twice")
    return StructType([known[name] for name in names])


def _string(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _path(value: Any) -> str | None:
    return str(value) if isinstance(value, str | Path) else None


def _boolean(value: Any) -> str | None:
    return str(value).lower() if isinstance(value, bool) else None


def _integer(value: Any) -> str | None:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else None


def _moment(value: Any) -> str | None:
    match value:
        case bool():
            return None
        case str():
            return value
        case date():  # includes datetime
            return value.isoformat()
        case int() | float():
            # as text, 20240501 would be a date
            try:
                return (times.EPOCH + timedelta(seconds=value)).isoformat()
            except (OverflowError, ValueError):
                return str(value)  # refused with the reason
    return None


def _types(value: Any) -> str | None:
    if isinstance(value, str) or not isinstance(value, Iterable):
        return _string(value)
    items = list(value)
    # a tuple of strings is ambiguous: one type, or several
    is_unclear = isinstance(value, tuple) and any(isinstance(i, str) for i in items)
    if is_unclear or not all(_is_type(i) for i in items):
        return None
    return msgspec.json.encode(items).decode()


def _is_type(value: Any) -> bool:
    if isinstance(value, str):
        return True
    return isinstance(value, tuple | list) and all(isinstance(i, str) for i in value)


def _servers(value: Any) -> str | None:
    items = [_integer(i) for i in (value if isinstance(value, Iterable) else [value])]
    texts = [i for i in items if i is not None]
    return ",".join(texts) if len(texts) == len(items) else None


class _Argument(NamedTuple):
    """An argument.

    Attributes:
        option: option of the data source.
        to_text: converts a value to the option's text; None: the value has a wrong type.
        expected: description of the type.
    """

    option: str
    to_text: Callable[[Any], str | None]
    expected: str


_A_PATH: Final = "a path"
_A_MOMENT: Final = "a datetime, a date, a string or seconds"
_A_STRING: Final = "a string"

_ARGUMENTS: Final = {
    "store": _Argument("path", _path, _A_PATH),
    "gateway": _Argument("host", _string, "HOST or HOST:PORT"),
    "types": _Argument("types", _types, "a string, or a list of strings and of tuples of segments"),
    "from_": _Argument("from", _moment, _A_MOMENT),
    "to": _Argument("to", _moment, _A_MOMENT),
    "servers": _Argument("servers", _servers, "an id, or a list of ids"),
    "source_from": _Argument("source_from", _moment, _A_MOMENT),
    "source_to": _Argument("source_to", _moment, _A_MOMENT),
    "partitions": _Argument("partitions", _integer, "a number"),
    "client_name": _Argument("client_name", _string, _A_STRING),
    "token": _Argument("token", _string, _A_STRING),
    "tls": _Argument("tls", _boolean, "True or False"),
    "tls_ca": _Argument("tls_ca", _path, _A_PATH),
    "cert": _Argument("cert", _path, _A_PATH),
    "key": _Argument("key", _path, _A_PATH),
}

_OF_LAKE: Final = frozenset(("types", "from", "to", "servers", "source_from", "source_to"))

_ARGUMENT_NAMES: Final = {"path, host": "store, gateway"} | {
    argument.option: name for name, argument in _ARGUMENTS.items()
}
