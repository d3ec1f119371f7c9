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
from datetime import datetime, timedelta
from typing import Any, Final

from mariner_spark import limits
from mariner_spark.reports import formats, views
from mariner_spark.reports.events import ID, IS_OF_CLIENT, prepare, seconds
from mariner_spark.reports.links import Behind
from mariner_spark.reports.relations import R, query

ENGINE: Final = "engine"
ALL_CLIENTS: Final = "clients"

_SUBJECT: Final = "server, kind, name"
_UP_US: Final = "unix_micros(run.end) - unix_micros(run.begin)"
_LATEST_FIRST: Final = (
    "run.begin DESC, server, kind, name ASC NULLS FIRST, run.end, is_begin_seen,"
    " ended_by ASC NULLS FIRST"
)


def find_availability(events: R) -> R:
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
    sql = f"""
        WITH runs AS (
            SELECT {_SUBJECT}, unix_micros(run.begin) AS begin_us, unix_micros(run.end) AS end_us,
                ended_by
            FROM {{runs}} AS run
        ), ordered AS (
            SELECT *, max(end_us) OVER (PARTITION BY server) AS last_us,
                lead(begin_us) OVER (PARTITION BY {_SUBJECT} ORDER BY begin_us, end_us) AS again_us
            FROM runs
        ), found AS (
            SELECT {_SUBJECT}, last_us, count(*) AS runs,
                count(CASE WHEN ended_by = 'killed' THEN 1 END) AS killed,
                min(begin_us) AS first_us, CAST(sum(end_us - begin_us) AS BIGINT) AS up_us,
                nullif(max(greatest(coalesce(again_us, last_us) - end_us, 0)), 0) AS down_us,
                count(*) > count(ended_by) AS is_up
            FROM ordered GROUP BY {_SUBJECT}, last_us
        )
        SELECT {_SUBJECT}, runs, killed, timestamp_micros(first_us) AS first,
            timestamp_micros(last_us) AS last, {seconds("up_us")} AS up_s,
            {seconds("last_us - first_us - up_us")} AS down_s,
            up_us / nullif(last_us - first_us, 0) AS share, {seconds("down_us")} AS longest_down_s,
            is_up
        FROM found
    """
    return query(sql, runs=find_runs(events))


def find_runs(events: R) -> R:
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
    return query(_RUNS, events=prepare(events))


# --- the query of runs --------------------------------------------------------------------

_STATE: Final = "trim(BOTH ' \t\r\n' FROM payload)"
"""Payload that is a JSON string of capital letters, with its quotes."""

_ENGINE: Final = "type_path = concat('event/', CAST(server AS STRING), '/engine')"
"""Condition: an event is about the engine of its server."""

_CLIENT: Final = f"({IS_OF_CLIENT} AND split_part(type_path, '/', 2) = CAST(server AS STRING))"
"""Condition: an event is about a client of its server."""

_START: Final = f"""CASE WHEN {_ENGINE} AND {_STATE} = '"STARTED"' THEN session END"""
_STOP_US: Final = (
    f"""CASE WHEN {_ENGINE} AND {_STATE} = '"STOPPED"' THEN unix_micros(timestamp) END"""
)

_ENGINES: Final = f"""
    sessions AS (
        SELECT server, session, max({_START}) AS start, max({_STOP_US}) AS stop_us,
            min(unix_micros(timestamp)) AS begin_us, max(unix_micros(timestamp)) AS last_us
        FROM {{events}} GROUP BY server, session
    ), sessions_of_runs AS (
        SELECT *, max(start) OVER (
            PARTITION BY server ORDER BY session
            ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
        ) AS run
        FROM sessions
    ), found_engines AS (
        SELECT server, run, min(begin_us) AS begin_us, max(last_us) AS last_us,
            max(stop_us) AS stop_us
        FROM sessions_of_runs GROUP BY server, run
    ), engines AS (
        SELECT server, run, begin_us, coalesce(stop_us, last_us) AS end_us,
            CASE WHEN stop_us IS NOT NULL THEN 'stopped'
                WHEN lead(run) OVER (PARTITION BY server ORDER BY run ASC NULLS FIRST) IS NOT NULL
                THEN 'killed' END AS ended_by
        FROM found_engines
    )
"""
"""Runs of engines; ``run`` is the first session, null if its begin was not read."""

_CONNECTIONS: Final = f"""
    core AS (
        SELECT {", ".join(ID)}, type_path, payload, unix_micros(timestamp) AS us,
            max({_START}) OVER (
                PARTITION BY server ORDER BY session
                RANGE BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
            ) AS run
        FROM {{events}} WHERE type_path LIKE 'event/%'
    ), changes AS (
        SELECT {", ".join(ID)}, us, run,
            CASE WHEN {_CLIENT} THEN split_part(type_path, '/', 3) ELSE '{ALL_CLIENTS}' END AS kind,
            CASE WHEN {_CLIENT} THEN
                replace(replace(split_part(type_path, '/', 4), '~1', '/'), '~0', '~') END AS name,
            CASE WHEN type_path = 'event/communication/connected' THEN 1
                WHEN type_path = 'event/communication/disconnected' THEN -1
                WHEN {_CLIENT} AND {_STATE} = '"CONNECTED"' THEN 1
                WHEN {_CLIENT} AND {_STATE} = '"DISCONNECTED"' THEN -1 END AS change
        FROM core
    ), connections AS (SELECT * FROM changes WHERE change IS NOT NULL)
"""
"""Connection events: the client, its ``run``, and ``change``: 1 connected, -1 disconnected."""

_IN_ORDER: Final = f"PARTITION BY {_SUBJECT}, run ORDER BY us, session, instance"

_CLIENTS: Final = f"""
    balances AS (
        SELECT /*+ BROADCAST(of_run) */ connections.*, of_run.begin_us AS run_begin_us,
            of_run.end_us AS run_end_us, of_run.ended_by AS run_ended_by,
            CAST(sum(change) OVER (
                PARTITION BY connections.server, kind, name, connections.run
                ORDER BY us, session, instance
                ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
            ) AS BIGINT) AS balance
        FROM connections JOIN engines AS of_run ON connections.server = of_run.server
            AND connections.run IS NOT DISTINCT FROM of_run.run
    ), counted AS (
        SELECT *, row_number() OVER ({_IN_ORDER}) AS place,
            greatest(-min(balance) OVER (PARTITION BY {_SUBJECT}, run), 0) AS n_unseen
        FROM balances
    ), marks AS (
        SELECT *, CASE WHEN is_seen THEN us ELSE run_begin_us END AS mark_us
        FROM counted CROSS JOIN (VALUES (FALSE), (TRUE)) AS begins(is_seen)
        WHERE (NOT is_seen AND place = 1 AND n_unseen > 0)
            OR (is_seen AND n_unseen + balance = 0)
            OR (is_seen AND n_unseen + balance = 1 AND change = 1)
    ), in_turn AS (
        SELECT *, NOT is_seen OR change = 1 AS is_begin,
            lead(mark_us) OVER ({_IN_ORDER}, is_seen) AS next_us
        FROM marks
    )
"""
"""Moments (``mark_us``) at which clients become connected, or disconnected.

Connections from before the first event (``n_unseen``) are as many as keep the balance from falling
below 0.
"""

_RUNS: Final = f"""
    WITH {_ENGINES}, {_CONNECTIONS}, {_CLIENTS}, runs AS (
        SELECT server, '{ENGINE}' AS kind, CAST(NULL AS STRING) AS name, begin_us, end_us,
            run IS NOT NULL AS is_begin_seen, ended_by
        FROM engines
        UNION ALL
        SELECT {_SUBJECT}, mark_us, coalesce(next_us, run_end_us), is_seen,
            CASE WHEN next_us IS NULL THEN run_ended_by ELSE 'disconnected' END
        FROM in_turn WHERE is_begin
    )
    SELECT {_SUBJECT}, timestamp_micros(begin_us) AS begin, timestamp_micros(end_us) AS end,
        is_begin_seen, ended_by
    FROM runs
"""

# --- first rows and totals ----------------------------------------------------------------


def _first_availability(found: R) -> R:
    sql = f"""
        SELECT * FROM {{found}}
        ORDER BY CASE WHEN kind = '{ENGINE}' THEN 0 ELSE 1 END, runs DESC, server, kind,
            name ASC NULLS FIRST
        LIMIT {limits.REPORT_ROWS}
    """
    return query(sql, found=found)


_TOTALS_OF_AVAILABILITY: Final = f"""
    SELECT count(*) AS rows, count(CASE WHEN kind = '{ENGINE}' THEN 1 END) AS engines,
        CAST(coalesce(sum(CASE WHEN kind = '{ENGINE}' THEN killed END), 0) AS BIGINT) AS killed,
        count(name) AS clients, count(DISTINCT server) AS servers, min(share) AS share,
        max(longest_down_s) AS longest_down_s
    FROM {{found}}
"""


def _first_runs(found: R) -> R:
    """Of each kind, so that many short connections leave the engines in."""
    sql = f"""
        SELECT {_SUBJECT}, run.begin, run.end, {seconds(_UP_US)} AS up_s, is_begin_seen, ended_by
        FROM (
            SELECT *, row_number() OVER (PARTITION BY kind ORDER BY {_LATEST_FIRST}) AS place
            FROM {{found}} AS run
        ) AS run
        WHERE place <= {limits.REPORT_ROWS}
        ORDER BY {_LATEST_FIRST}
    """
    return query(sql, found=found)


_TOTALS_OF_RUNS: Final = f"""
    SELECT * FROM (
        SELECT count(*) AS rows, count(DISTINCT server) AS servers FROM {{found}}
    ) CROSS JOIN (
        SELECT count(*) AS subjects FROM (SELECT DISTINCT {_SUBJECT} FROM {{found}})
    ) LEFT JOIN (
        SELECT {_SUBJECT}, {seconds(_UP_US)} AS up_s FROM {{found}} AS run
        ORDER BY {_UP_US} DESC, run.begin DESC, server DESC, kind DESC, name DESC NULLS LAST
        LIMIT 1
    ) ON TRUE
"""
"""Numbers, and the longest run."""


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
            **views.linked(row),
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
    finding = (
        f"{views.plural(totals['rows'], 'time')} up; the longest is of"
        f" {formats.name(_name_of_subject(totals, totals))},"
        f" for {formats.duration(totals['up_s'])}."
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
        **views.linked(last),
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


def _behind(row: views.Row, begin: datetime, end: datetime) -> Behind:
    """The core's events about an engine or client."""
    server, kind, name = _subject(row)
    if kind == ALL_CLIENTS:
        return Behind(("event", "communication", "*"), begin, end)
    names = (kind,) if name is None else (kind, name)
    return Behind(("event", str(server), *names), begin, end)


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
    first=_first_availability,
    first_are="engines, then those that were up most often",
    totals=lambda _, found: query(_TOTALS_OF_AVAILABILITY, found=found),
    needs=(*ID, "type_path", "timestamp", "payload"),
    is_about_servers=True,
    figures=views.columns(
        engines="Engines: count", clients="Clients: count", killed="Killed: count",
        share="Least share up: share", longest_down_s="Longest down: duration",
    ),
    behind=lambda row: _behind(row, row["first"], row["last"]),
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
    first=_first_runs,
    first_are="of each kind those that began last",
    totals=lambda _, found: query(_TOTALS_OF_RUNS, found=found),
    needs=(*ID, "type_path", "timestamp", "payload"),
    is_about_servers=True,
    figures=views.columns(rows="Times up: count"),
    behind=lambda row: _behind(row, row["begin"], row["end"]),
)  # fmt: skip

runs: Final = views.first_of(find_runs, RUNS)
availability: Final = views.first_of(find_availability, AVAILABILITY)
