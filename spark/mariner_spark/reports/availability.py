"""Reports ``runs`` and ``availability``: when engines ran and clients were connected.

What the core says of itself (``engine`` and ``connection_events`` of ``eventer_bridge.core``):

* ``event/<server>/engine``: ``"STARTED"`` and ``"STOPPED"``
* ``event/<server>/eventer/<client>`` (and ``…/mariner/<client>``): ``"CONNECTED"`` and
  ``"DISCONNECTED"``, of every connection of a client
* ``event/communication/connected`` and ``…/disconnected``: of every connection of all clients

An engine that was killed said nothing at its end: its run ends with the last event of its
server before it started anew, and the connections with it. A server whose first event is no
start had been running before; so had clients that disconnect without having connected. A
client may have several connections at a time, and is connected as long as it has one.

Events with these types count only where they are of the server that their type names: a
server does not tell of another one, and a client could.
"""

from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as sf

from mariner_spark import limits
from mariner_spark.reports.events import ORDER, prepare, seconds, us

ENGINE: Final = "engine"
ALL_CLIENTS: Final = "clients"

_SUBJECT: Final = ("server", "kind", "name")
_RUN: Final = (*_SUBJECT, "begin", "end", "is_begin_seen", "ended_by")
_ENGINE_TYPE: Final = r"^event/[^/]+/engine\z"
_CLIENT_TYPE: Final = r"^event/[^/]+/(eventer|mariner)/([^/]+)\z"


def runs(events: DataFrame) -> DataFrame:
    """Times that something was up.

    A row is a time without interruption in which an engine ran, or a client had a connection:

    * ``server``: id of the server
    * ``kind``: ``engine``; ``eventer`` or ``mariner`` (a client, as the server calls it);
      ``clients`` (any client at all)
    * ``name``: of the client, null otherwise
    * ``begin``, ``end``, and ``up_s``: seconds between them
    * ``is_begin_seen``: whether it began there, not before what was read
    * ``ended_by``: ``stopped`` or ``killed`` (the engine), ``disconnected`` (the client); null:
      it was up at the last event of the server

    Args:
        events: see ``events``; all events of the servers, whatever their types, because their
            last ones tell when a killed one ended. Or :func:`find_runs` of them.

    Returns:
        The ``limits.REPORT_ROWS`` that began last, the latest first.
    """
    return first_runs(find_runs(events))


def first_runs(found: DataFrame) -> DataFrame:
    """Those of :func:`find_runs` that :func:`runs` has."""
    return (
        found.orderBy(sf.desc("begin"), *_SUBJECT, "end", "is_begin_seen", "ended_by")
        .limit(limits.REPORT_ROWS)
        .select(*_SUBJECT, "begin", "end", _up_s().alias("up_s"), *_RUN[-2:])
    )


def totals_of_runs(found: DataFrame) -> DataFrame:
    """All of :func:`find_runs` in figures: a row."""
    longest = sf.struct(*_SUBJECT, _up_s().alias("up_s"))
    order = sf.struct(_up_s(), "begin", *_SUBJECT)
    return found.agg(
        sf.count("*").alias("rows"),
        sf.count_distinct(sf.struct(*_SUBJECT)).alias("subjects"),
        sf.count_distinct("server").alias("servers"),
        sf.max_by(longest, order).alias("longest"),
    )


def _up_s() -> Column:
    return seconds(us("end") - us("begin"))


def availability(events: DataFrame) -> DataFrame:
    """How long engines and clients were up.

    A row is an engine or a client (``server``, ``kind``, ``name`` as in :func:`runs`):

    * ``runs``: number of times that it was up; ``killed``: those that the engine's death ended
    * ``first``: when it was up first; ``last``: the last event of its server
    * ``up_s``, ``down_s``: seconds that it was up and was not, between these
    * ``share``: part of that time that it was up, null if it is no time
    * ``longest_down_s``: seconds of the longest time that it was not; null: there was none
    * ``is_up``: whether it was up at the last event of its server

    Args:
        events: as of :func:`runs`.

    Returns:
        Engines first, then by number of runs, the most first; ``limits.REPORT_ROWS`` at most.
    """
    return first_availability(find_availability(events))


def first_availability(found: DataFrame) -> DataFrame:
    """Those of :func:`find_availability` that :func:`availability` has."""
    engines_first = sf.desc(sf.col("kind") == ENGINE)
    return found.orderBy(engines_first, sf.desc("runs"), *_SUBJECT).limit(limits.REPORT_ROWS)


def totals_of_availability(found: DataFrame) -> DataFrame:
    """All of :func:`find_availability` in figures: a row."""
    is_engine = sf.col("kind") == ENGINE
    return found.agg(
        sf.count("*").alias("rows"),
        sf.count_if(is_engine).alias("engines"),
        sf.coalesce(sf.sum(sf.when(is_engine, sf.col("killed"))), sf.lit(0)).alias("killed"),
        sf.count("name").alias("clients"),
        sf.count_distinct("server").alias("servers"),
    )


def find_availability(events: DataFrame) -> DataFrame:
    """All of :func:`availability`, in any order."""
    of_subject = Window.partitionBy(*_SUBJECT).orderBy("begin", "end")
    whole_us = us("last") - us("first")
    down_us = us("up_again") - us("end")
    return (
        find_runs(events)
        .select(
            "*",
            sf.max("end").over(Window.partitionBy("server")).alias("last"),
            sf.lead("begin").over(of_subject).alias("next"),
        )
        .select("*", sf.coalesce("next", "last").alias("up_again"))
        .groupBy(*_SUBJECT, "last")
        .agg(
            sf.count("*").alias("runs"),
            sf.count_if(sf.col("ended_by") == "killed").alias("killed"),
            sf.min("begin").alias("first"),
            sf.sum(us("end") - us("begin")).alias("up_us"),
            sf.max(sf.when(down_us > 0, down_us)).alias("longest_down_us"),
            sf.bool_or(sf.isnull("ended_by")).alias("is_up"),
        )
        .select(
            *_SUBJECT,
            "runs",
            "killed",
            "first",
            "last",
            seconds(sf.col("up_us")).alias("up_s"),
            seconds(whole_us - sf.col("up_us")).alias("down_s"),
            sf.try_divide(sf.col("up_us"), whole_us).alias("share"),
            seconds(sf.col("longest_down_us")).alias("longest_down_s"),
            "is_up",
        )
    )


def find_runs(events: DataFrame) -> DataFrame:
    """What both reports are made of: columns of :func:`runs`, but ``up_s``, in any order.

    It takes most of their work: ``find_runs(events).persist()`` does it once for both.

    Args:
        events: as of :func:`runs`, or what this gave.
    """
    if "is_begin_seen" in events.columns:
        return events
    events = prepare(events)
    engines = _engine_runs(events)
    clients = _client_runs(_connections(events), engines)
    return engines.select(*_RUN).unionByName(clients)


# --- engines ------------------------------------------------------------------------------


def _engine_runs(events: DataFrame) -> DataFrame:
    """Runs of engines, with ``run``: its first session, null where that was not seen."""
    is_stop = _is_of_engine() & (_state() == "STOPPED")
    of_server = Window.partitionBy("server").orderBy(sf.asc_nulls_first("run"))
    return (
        _with_runs(events.select("*", is_stop.alias("is_stop")))
        .groupBy("server", "run")
        .agg(
            sf.min("timestamp").alias("begin"),
            sf.max("timestamp").alias("last"),
            sf.max(sf.when(sf.col("is_stop"), sf.col("timestamp"))).alias("stopped"),
        )
        .select("*", sf.lead("run").over(of_server).alias("next_run"))
        .select(
            "server",
            sf.lit(ENGINE).alias("kind"),
            sf.lit(None).cast("string").alias("name"),
            "begin",
            sf.coalesce("stopped", "last").alias("end"),
            sf.isnotnull("run").alias("is_begin_seen"),
            sf.when(sf.isnotnull("stopped"), "stopped")
            .when(sf.isnotnull("next_run"), "killed")
            .alias("ended_by"),
            "run",
        )
    )


def _with_runs(events: DataFrame) -> DataFrame:
    """Events with ``run``: the first session of the run that they are in, null before the first.

    However many runs there are, each event is looked at once.
    """
    is_start = _is_of_engine() & (_state() == "STARTED")
    until_now = (
        Window.partitionBy("server").orderBy("session").rangeBetween(Window.unboundedPreceding, 0)
    )
    run = sf.max(sf.when(sf.col("is_start"), sf.col("session"))).over(until_now)
    # what a task gets has a flag in the place of texts
    return events.select("*", is_start.alias("is_start")).select("*", run.alias("run"))


def _is_of_engine() -> Column:
    is_about_engine = sf.col("type_path").rlike(_ENGINE_TYPE)
    return sf.col("type_path").startswith("event/") & is_about_engine & _is_of_its_server()


def _is_of_its_server() -> Column:
    return sf.split_part("type_path", sf.lit("/"), sf.lit(2)) == sf.col("server").cast("string")


def _state() -> Column:
    """Text of a payload that is a JSON string of capitals."""
    return sf.regexp_extract("payload", r'^\s*"([A-Z]+)"\s*\z', 1)


# --- clients ------------------------------------------------------------------------------


def _connections(events: DataFrame) -> DataFrame:
    """Events about connections: who, in which ``run``, and ``change``: 1 more, or 1 less."""
    path = sf.col("type_path")
    is_of_one = path.rlike(_CLIENT_TYPE) & _is_of_its_server()
    name = sf.regexp_extract(path, _CLIENT_TYPE, 2)
    name = sf.replace(sf.replace(name, sf.lit("~1"), sf.lit("/")), sf.lit("~0"), sf.lit("~"))
    return (
        _with_runs(events.where(path.startswith("event/")))
        .select(
            *ORDER,
            "run",
            sf.when(is_of_one, sf.regexp_extract(path, _CLIENT_TYPE, 1))
            .otherwise(ALL_CLIENTS)
            .alias("kind"),
            sf.when(is_of_one, name).alias("name"),
            sf.when(path == "event/communication/connected", 1)
            .when(path == "event/communication/disconnected", -1)
            .when(is_of_one & (_state() == "CONNECTED"), 1)
            .when(is_of_one & (_state() == "DISCONNECTED"), -1)
            .alias("change"),
        )
        .where("change IS NOT NULL")
    )


def _client_runs(connections: DataFrame, engines: DataFrame) -> DataFrame:
    """Times in which clients had a connection, within the runs of their server's engine."""
    limits_of_runs = engines.select(
        sf.col("server").alias("of"),
        sf.col("run").alias("this_run"),
        sf.col("begin").alias("run_begin"),
        sf.col("end").alias("run_end"),
        sf.col("ended_by").alias("run_ended_by"),
    )
    of_subject = Window.partitionBy(*_SUBJECT, "run")
    in_order = of_subject.orderBy(*ORDER)
    # connections from before what was read: as many as it takes for none to be less than none
    unseen = sf.greatest(-sf.min("sum").over(of_subject), sf.lit(0))
    marks = sf.array_compact(
        sf.array(
            sf.when((sf.col("row") == 1) & (sf.col("unseen") > 0), _mark("run_begin", True, False)),
            sf.when(
                (sf.col("open") == 1) & (sf.col("change") == 1), _mark("timestamp", True, True)
            ),
            sf.when((sf.col("open") == 0), _mark("timestamp", False, True)),
        )
    )
    is_in_run = (sf.col("server") == sf.col("of")) & sf.col("run").eqNullSafe(sf.col("this_run"))
    return (
        connections.join(sf.broadcast(limits_of_runs), on=is_in_run)
        .select(
            "*",
            sf.sum("change").over(in_order.rowsBetween(Window.unboundedPreceding, 0)).alias("sum"),
            sf.row_number().over(in_order).alias("row"),
        )
        .select("*", unseen.alias("unseen"))
        .select("*", (sf.col("unseen") + sf.col("sum")).alias("open"))
        .select("*", sf.posexplode(marks).alias("position", "mark"))
        .select("*", "mark.*")
        .select("*", sf.lead("moment").over(of_subject.orderBy(*ORDER, "position")).alias("next"))
        .where("is_begin")
        .select(
            *_SUBJECT,
            sf.col("moment").alias("begin"),
            sf.coalesce("next", "run_end").alias("end"),
            sf.col("is_seen").alias("is_begin_seen"),
            sf.when(sf.isnotnull("next"), "disconnected")
            .otherwise(sf.col("run_ended_by"))
            .alias("ended_by"),
        )
    )


def _mark(moment: str, is_begin: bool, is_seen: bool) -> Column:
    """A moment at which a client's first connection begins, or its last one ends."""
    return sf.struct(
        sf.col(moment).alias("moment"),
        sf.lit(is_begin).alias("is_begin"),
        sf.lit(is_seen).alias("is_seen"),
    )
