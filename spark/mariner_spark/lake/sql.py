"""SQL about a lake, which Spark, DuckDB and Trino execute: what differs is in :data:`DIALECTS`."""

from typing import Final, NamedTuple

from mariner_spark import times
from mariner_spark.lake.tables import TABLES, Lake

_S: Final = 1_000_000
WIDTHS_US: Final = {"1m": 60 * _S, "1h": 3_600 * _S, "1d": 86_400 * _S}
"""Widths of buckets, by name in the column ``every``; each is a multiple of the one before."""

_TINY: Final = 2.0**-64
"""Scale that keeps the sum of any number of doubles finite."""

ORIGIN_US: Final = 4 * 86_400_000_000
"""A Monday, at which a bucket of any width begins: so do those of weeks."""


class SqlDialect(NamedTuple):
    """What an engine calls what has no common name.

    ``to_us`` and ``from_us`` are formats of an argument, ``tables`` of statements that give a table
    (``name``) at a location (``uri``) its name.
    """

    to_us: str
    from_us: str
    tables: str


DIALECTS: Final = {
    "duckdb": SqlDialect(
        "epoch_us({})",
        "make_timestamptz({})",
        "CREATE OR REPLACE VIEW {name} AS SELECT * FROM delta_scan('{uri}')",
    ),
    "spark": SqlDialect(
        "unix_micros({})",
        "timestamp_micros({})",
        "CREATE OR REPLACE TEMPORARY VIEW {name} USING delta OPTIONS (path '{uri}')",
    ),
    "trino": SqlDialect(
        "CAST(round(to_unixtime({}) * 1e6) AS bigint)",
        "CAST(from_unixtime_nanos(CAST({} AS decimal(38)) * 1000) AS timestamp(6) with time zone)",
        "CALL system.register_table('mariner', '{name}', '{uri}')",
    ),
}

_TRINO: Final = "CREATE SCHEMA IF NOT EXISTS mariner", "USE mariner"


_BUCKETS: Final = """\
WITH pieces AS (
  SELECT
    *,
    {bucket_us} - mod({bucket_us} - ({origin_us}), {width_us}) AS begin_us,
    {first_us} AS first_us,
    {last_us} AS last_us,
    lag(last) {in_order} AS held,
    lag({last_us}) {in_order} AS held_us,
    lead({first_us}) {in_order} AS next_us
  FROM {source}
),
held AS (
  SELECT
    *,
    CASE WHEN held_us < begin_us THEN first_us - begin_us ELSE 0 END AS before_us,
    last_us - first_us AS within_us,
    CASE WHEN next_us IS NULL THEN 0
      ELSE least(next_us, begin_us + {width_us}) - last_us END AS after_us
  FROM pieces
),
sums AS (
  SELECT
    type_path,
    begin_us,
    CAST(sum(events) AS bigint) AS events,
    CAST(sum(numbers) AS bigint) AS numbers,
    min(min) AS min,
    max(max) AS max,
    sum(mean * numbers) / nullif(sum(numbers), 0) AS plain_mean,
    sum(mean * {tiny} * numbers) / nullif(sum(numbers), 0) / {tiny} AS safe_mean,
    sum(coalesce(held, 0e0) * (CAST(before_us AS double) / {width_us})
      + coalesce(held_mean, 0e0) * (CAST(within_us AS double) / {width_us})
      + last * (CAST(after_us AS double) / {width_us})) AS weighted,
    CAST(sum(before_us + within_us + after_us) AS double) / {width_us} AS covered,
    min(least(min, CASE WHEN before_us > 0 THEN held ELSE min END)) AS least_held,
    max(greatest(max, CASE WHEN before_us > 0 THEN held ELSE max END)) AS greatest_held,
    min_by(first, first_at) AS first,
    min(first_at) AS first_at,
    max_by(last, last_at) AS last,
    max(last_at) AS last_at
  FROM held
  GROUP BY type_path, begin_us
),
means AS (
  SELECT
    *,
    greatest(min, least(max, CASE WHEN abs(plain_mean) < CAST('Infinity' AS double)
      THEN plain_mean ELSE safe_mean END)) AS mean
  FROM sums
)
SELECT
  type_path,
  {begin} AS bucket,
  events,
  numbers,
  min,
  max,
  mean,
  CASE WHEN covered > 0
    THEN greatest(least_held, least(greatest_held, weighted / covered)) ELSE mean END AS time_mean,
  first,
  first_at,
  last,
  last_at,
  covered,
  CAST(numbers AS double) / events AS quality
FROM means"""


def buckets(source: str, width_us: int, dialect: SqlDialect, origin_us: int = ORIGIN_US) -> str:
    """Query of rollups with buckets of a width, made of those of a width that divides it.

    ``source`` is what follows FROM: a relation with the columns of ``schema.ROLLUP_SCHEMA``;
    ``origin_us`` is where some bucket begins, and a rollup. A row is a type and a bucket with
    events:

    * ``type_path``; ``bucket``: start of the bucket
    * ``events``; ``numbers``: how many of them have a number. If none has, all columns that follow
      are null, except ``quality``
    * ``min``, ``max``, ``mean`` of the numbers
    * ``time_mean``: mean weighted by time: a number holds until the type's next one, across
      buckets. The time before the first and after the last number of the rows of ``source`` does
      not count; if no time is left, it is ``mean``
    * ``first``, ``first_at``, ``last``, ``last_at``: numbers, and the timestamps of their events
    * ``covered``: share of the bucket that ``time_mean`` is the mean of (0 to 1)
    * ``quality``: share of the events that have a number (0 to 1)
    """
    us = dialect.to_us.format
    return _BUCKETS.format(
        source=source,
        width_us=width_us,
        # from a begin before all moments, since mod is negative for negative numbers
        origin_us=(times.MIN_US - origin_us) // width_us * width_us + origin_us,
        bucket_us=us("bucket"),
        first_us=us("first_at"),
        last_us=us("last_at"),
        begin=dialect.from_us.format(f"greatest(begin_us, {times.MIN_US})"),
        in_order="OVER (PARTITION BY type_path, numbers > 0 ORDER BY bucket)",
        tiny=_TINY,
    )


def views(dialect: str) -> dict[str, str]:
    """Queries by name of a view, in a dialect (a key of :data:`DIALECTS`).

    ``numbers`` are those of events; ``minutes``, ``hours`` and ``days`` have the columns of
    :func:`buckets`. They are of the tables ``events`` and ``rollups``.
    """
    found = {
        "numbers": "SELECT type_path, timestamp, value FROM events WHERE value IS NOT NULL",
    }
    for name, every in {"minutes": "1m", "hours": "1h", "days": "1d"}.items():
        source = f"(SELECT * FROM rollups WHERE every = '{every}') AS found"  # noqa: S608  # ours
        found[name] = buckets(source, WIDTHS_US[every], DIALECTS[dialect])
    return found


def statements(lake: Lake, dialect: str) -> list[str]:
    """Statements that make the tables of a lake, and the views of them, known to an engine."""
    made = [
        DIALECTS[dialect].tables.format(name=name, uri=_quoted(lake.uri(name), dialect))
        for name in TABLES
    ]
    if dialect == "trino":
        made = [*_TRINO, *made]
    what = "CREATE OR REPLACE TEMPORARY VIEW" if dialect == "spark" else "CREATE OR REPLACE VIEW"
    return [*made, *(f"{what} {name} AS\n{query}" for name, query in views(dialect).items())]


def _quoted(text: str, dialect: str) -> str:
    """Inside of a literal."""
    if dialect == "spark":
        return text.replace("\\", "\\\\").replace("'", "\\'")
    return text.replace("'", "''")
