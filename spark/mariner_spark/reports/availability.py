"""Reports ``runs`` and ``availability``: when engines ran and clients were connected.

They are computed from the core's own events (``engine`` and ``connection_events`` of
``eventer_bridge.core``):

* ``event/<server>/engine``: ``"STARTED"`` and ``"STOPPED"``
* ``event/<server>/eventer/<client>`` (and ``…/mariner/<client>``): ``"CONNECTED"`` and
  ``"DISCONNECTED"``, of every connection of a client
* ``event/communication/connected`` and ``…/disconnected``: of every connection of all clients

A killed engine registers no STOPPED: its run, and the connections in it, end with the last event of
its server before the next start. A server whose first event is not a start was running before;
a client that disconnects without having connected was connected before. A client may have several
connections at a time, and is connected as long as it has one.

Events of these types count only if the server in the type is the server of the event: a server
reports only itself, but a client can register anything.
"""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as sf

from mariner_spark import limits
from mariner_spark.reports import formats, views
from mariner_spark.reports.events import ORDER, prepare, seconds, us

ENGINE: Final = "engine"
ALL_CLIENTS: Final = "clients"

_SUBJECT: Final = ("server", "kind", "name")
_RUN: Final = (*_SUBJECT, "begin", "end", "is_begin_seen", "ended_by")
_ENGINE_TYPE: Final = r"^event/[^/]+/engine\z"
_CLIENT_TYPE: Final = r"^event/[^/]+/(eventer|mariner)/([^/]+)\z"


def _totals_of_runs(_events: DataFrame, found: DataFrame) -> DataFrame:
    longest = sf.struct(*_SUBJECT, _up_s().alias("up_s"))
    order = sf.struct(_up_s(), "begin", *_SUBJECT)
    return found.agg(
        sf.count("*").alias("rows"),
        sf.count_distinct(sf.struct(*_SUBJECT)).alias("subjects"),
        sf.count_distinct("server").alias("servers"),
        sf.max_by(longest, order).alias("longest"),
    )


def _latest_of_each_kind(found: DataFrame) -> DataFrame:
    """Of each kind, so that many short connections leave the engines in."""
    order = (sf.desc("begin"), *_SUBJECT, "end", "is_begin_seen", "ended_by")
    number = sf.row_number().over(Window.partitionBy("kind").orderBy(*order))
    return (
        found.select("*", number.alias("number"))
        .where(sf.col("number") <= limits.REPORT_ROWS)
        .orderBy(*order)
        .select(*_SUBJECT, "begin", "end", _up_s().alias("up_s"), *_RUN[-2:])
    )


def _up_s() -> Column:
    return seconds(us("end") - us("begin"))


def find_availability(events: DataFrame) -> DataFrame:
    """Uptime of engines and clients; :func:`availability` has engines first, then the most runs.

    A row is an engine or a client (``server``, ``kind``, ``name`` as in :func:`runs`):

    * ``runs``: number of runs; ``killed``: number of runs that ended because the engine was killed
    * ``first``: begin of its first run; ``last``: the last event of its server
    * ``up_s``, ``down_s``: seconds up and down between these two
    * ``share``: ``up_s`` / (``up_s`` + ``down_s``); null: that is 0
    * ``longest_down_s``: seconds of the longest time down; null: there was none
    * ``is_up``: whether it was up at the last event of its server

    The events are as for :func:`runs`.
    """
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
            *(*_SUBJECT, "runs", "killed", "first", "last"),
            seconds(sf.col("up_us")).alias("up_s"),
            seconds(whole_us - sf.col("up_us")).alias("down_s"),
            sf.try_divide(sf.col("up_us"), whole_us).alias("share"),
            seconds(sf.col("longest_down_us")).alias("longest_down_s"),
            "is_up",
        )
    )


def find_runs(events: DataFrame) -> DataFrame:
    """Runs of engines, and connected times of clients, in any order.

    :func:`runs` has the latest ``limits.REPORT_ROWS`` of each kind.

    A row is an uninterrupted time in which an engine ran, or a client had a connection:

    * ``server``: id of the server
    * ``kind``: ``engine``; ``eventer`` or ``mariner`` (a client of that protocol); ``clients`` (any
      client)
    * ``name``: of the client, null otherwise
    * ``begin``, ``end``; and ``up_s`` (of :func:`runs`): seconds between them
    * ``is_begin_seen``: whether its begin was read; false: it began before the first event
    * ``ended_by``: ``stopped`` or ``killed`` (the engine), ``disconnected`` (the client); null:
      it was up at the last event of the server

    The events are all of the servers, of any type, because a killed engine's run ends with the last
    one; or the result of this function: ``find_runs(events).persist()`` does most of the work of
    both reports once.
    """
    if "is_begin_seen" in events.columns:
        return events
    events = prepare(events)
    engines = _engine_runs(events)
    clients = _client_runs(_connections(events), engines)
    return engines.select(*_RUN).unionByName(clients)


# --- engines ------------------------------------------------------------------------------


def _engine_runs(events: DataFrame) -> DataFrame:
    """Runs of engines; ``run`` is the first session, null if its begin was not read."""
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
    """Events with ``run``: the first session of their run, null before the first start.

    Each event is processed once, however many runs there are.
    """
    is_start = _is_of_engine() & (_state() == "STARTED")
    until_now = (
        Window.partitionBy("server").orderBy("session").rangeBetween(Window.unboundedPreceding, 0)
    )
    run = sf.max(sf.when(sf.col("is_start"), sf.col("session"))).over(until_now)
    # tasks get a flag instead of texts
    return events.select("*", is_start.alias("is_start")).select("*", run.alias("run"))


def _is_of_engine() -> Column:
    is_about_engine = sf.col("type_path").rlike(_ENGINE_TYPE)
    return sf.col("type_path").startswith("event/") & is_about_engine & _is_of_its_server()


def _is_of_its_server() -> Column:
    return sf.split_part("type_path", sf.lit("/"), sf.lit(2)) == sf.col("server").cast("string")


def _state() -> Column:
    """Text of a payload that is a JSON string of capital letters."""
    return sf.regexp_extract("payload", r'^\s*"([A-Z]+)"\s*\z', 1)


# --- clients ------------------------------------------------------------------------------


def _connections(events: DataFrame) -> DataFrame:
    """Connection events: the client, its ``run``, and ``change``: 1 connected, -1 disconnected."""
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
    """Times in which clients were connected, within the runs of their server's engine."""
    limits_of_runs = engines.select(
        sf.col("server").alias("of"),
        sf.col("run").alias("this_run"),
        sf.col("begin").alias("run_begin"),
        sf.col("end").alias("run_end"),
        sf.col("ended_by").alias("run_ended_by"),
    )
    of_subject = Window.partitionBy(*_SUBJECT, "run")
    in_order = of_subject.orderBy(*ORDER)
    # connections from before the first event: as many as keep the sum from falling below 0
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
    """A moment at which a client becomes connected or disconnected."""
    return sf.struct(
        sf.col(moment).alias("moment"),
        sf.lit(is_begin).alias("is_begin"),
        sf.lit(is_seen).alias("is_seen"),
    )


# --- on the page --------------------------------------------------------------------------


def _view_availability(
    rows: Sequence[views.Row], totals: views.Row, _domain: views.Domain
) -> views.View:
    shown = rows[: views.N_BARS]
    names = _labels_of_subjects(shown, totals)
    marks = [
        {
            "name": names[_subject(row)],
            "value": row["share"] or 0,
            "shown": formats.show("share", row["share"]),
            "up": formats.duration(row["up_s"]),
            "down": formats.duration(row["down_s"]),
            "runs": formats.count(row["runs"]),
        }
        for row in shown
    ]
    tips = views.tooltip(what="name", up="up", down="down", runs="runs")
    engines, clients = (views.plural(totals[f"{i}s"], i) for i in ("engine", "client"))
    finding = f"{engines}, killed {views.plural(totals['killed'], 'time')}; {clients}."
    if all(row["share"] is None for row in shown):
        return views.View(finding)
    note = views.part_of(len(shown), totals["rows"], "row")
    spec = views.bars(marks, list(names.values()), tips, views.shares_axis("value"))
    return views.View(finding, [views.Chart("Part of the time that it was up", spec, note=note)])


_STATES: Final = {
    (False, False): "up",
    (False, True): "ended by being killed",
    (True, False): "several short times up",
    (True, True): "several, some of them killed",
}
_COLOURS: Final = dict(
    zip(_STATES.values(), ("#3ca951", "#ff725c", "#a8d5ae", "#ffc2b5"), strict=True)
)


def _view_runs(rows: Sequence[views.Row], totals: views.Row, domain: views.Domain) -> views.View:
    engines_first = sorted(rows, key=lambda row: (row["kind"] != "engine", row["begin"]))
    names = _labels_of_subjects(engines_first, totals)
    shown = dict(list(names.items())[: views.N_BARS])
    found = [row for row in rows if _subject(row) in shown]
    marks = [_mark_of(group, shown) for group in _drawn_as_one(found, domain)]
    tips = views.tooltip(what="name", up="shown", times="times", from_to="when", end="ended")
    longest = totals["longest"]
    finding = (
        f"{views.plural(totals['rows'], 'time')} up; the longest is of"
        f" {formats.name(_name_of_subject(longest, totals))},"
        f" for {formats.duration(longest['up_s'])}."
    )
    notes = [views.part_of(len(shown), totals["subjects"], "row")]
    if len(rows) < totals["rows"]:
        notes.append(f"of each kind the latest {views.plural(limits.REPORT_ROWS, 'time')}")
    return views.View(
        finding,
        views.timeline(
            "Times up", marks, names=shown, colours=_COLOURS, tips=tips, domain=domain,
            note="; ".join(filter(None, notes)),
        ),
    )  # fmt: skip


def _drawn_as_one(rows: Sequence[views.Row], domain: views.Domain) -> list[list[views.Row]]:
    """Runs by their marks: short ones of the same subject that are close to each other have one."""
    close = timedelta(milliseconds=(domain[1] - domain[0]) / views.MARKS)
    groups: list[list[views.Row]] = []
    last: dict[tuple[int, str, str | None], list[views.Row]] = {}
    for row in sorted(rows, key=lambda row: row["begin"]):
        group = last.get(_subject(row))
        if group and all(
            length < close
            for length in (
                row["end"] - row["begin"],
                group[-1]["end"] - group[-1]["begin"],
                row["begin"] - group[-1]["end"],
            )
        ):
            group.append(row)
        else:
            last[_subject(row)] = [row]
            groups.append(last[_subject(row)])
    return groups


def _mark_of(
    group: Sequence[views.Row], names: Mapping[tuple[int, str, str | None], str]
) -> dict[str, Any]:
    first, last = group[0], group[-1]
    is_killed = any(row["ended_by"] == "killed" for row in group)
    return {
        "name": names[_subject(first)],
        "begin": views.ms(first["begin"]),
        "end": views.ms(last["end"]),
        "state": _STATES[len(group) > 1, is_killed],
        "when": f"{formats.moment(first['begin'])} to {formats.moment(last['end'])}",
        "shown": formats.duration(sum(row["up_s"] for row in group)),
        "times": formats.count(len(group)),
        "ended": last["ended_by"] or "still up",
    }


def _subject(row: views.Row) -> tuple[int, str, str | None]:
    return row["server"], row["kind"], row["name"]


def _labels_of_subjects(
    rows: Sequence[views.Row], totals: views.Row
) -> dict[tuple[int, str, str | None], str]:
    return views.labels({_subject(row): _name_of_subject(row, totals) for row in rows})


def _name_of_subject(row: views.Row, totals: views.Row) -> str:
    """Name of an engine or client; with its server, if there are several."""
    words = {"engine": "engine", "clients": "any client"}
    what = words[row["kind"]] if row["name"] is None else str(row["name"])
    return f"{what} of {row['server']}" if totals["servers"] > 1 else what


AVAILABILITY: Final = views.Report(
    "availability",
    "Availability",
    "Engines and clients: part of the time that they were up, from the core's own events.",
    lambda events, _: find_availability(events),
    _view_availability,
    views.columns(
        kind="What: text", name="Client: text", server="Server: text", share="Up: share",
        up_s="Up for: duration", down_s="Down for: duration",
        longest_down_s="Longest down: duration", runs="Times up: count", killed="Killed: count",
        is_up="Up at the end: flag", first="First up: moment",
    ),
    first=lambda found: found.orderBy(
        sf.desc(sf.col("kind") == ENGINE), sf.desc("runs"), *_SUBJECT
    ).limit(limits.REPORT_ROWS),
    first_are="engines, then those that were up most often",
    totals=lambda _, found: found.agg(
        sf.count("*").alias("rows"),
        sf.count_if(sf.col("kind") == ENGINE).alias("engines"),
        sf.coalesce(
            sf.sum(sf.when(sf.col("kind") == ENGINE, sf.col("killed"))), sf.lit(0)
        ).alias("killed"),
        sf.count("name").alias("clients"),
        sf.count_distinct("server").alias("servers"),
    ),
    is_about_servers=True,
)  # fmt: skip


RUNS: Final = views.Report(
    "runs",
    "Runs",
    "Each time that an engine ran or a client was connected.",
    lambda events, _: find_runs(events),
    _view_runs,
    views.columns(
        kind="What: text", name="Client: text", server="Server: text", begin="Begin: moment",
        end="End: moment", up_s="Up for: duration", ended_by="Ended by: text",
        is_begin_seen="Begin seen: flag",
    ),
    first=_latest_of_each_kind,
    first_are="of each kind those that began last",
    totals=_totals_of_runs,
    is_about_servers=True,
)  # fmt: skip

runs: Final = views.first_of(find_runs, RUNS)
availability: Final = views.first_of(find_availability, AVAILABILITY)
