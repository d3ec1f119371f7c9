"""What reports of a store have to say: plain Python that does the same the slow way.

It knows the events, what is documented of each report, and how numbers are shown; nothing of
Spark. Its rows are all that there are, in the order of the report.
"""

import json
import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from fractions import Fraction
from itertools import groupby, pairwise
from typing import Final, NamedTuple

from eventer_bridge.model import Event, EventType
from eventer_bridge.subscription import Subscription
from mariner_spark import limits, type_path
from mariner_spark.reports import formats
from mariner_spark.reports.events import Span, bucket_width
from mariner_spark.times import MIN_US, to_datetime
from tests.spark.support import EPOCH, Row, row_of

Rows = list[Row]

MINUTE_US: Final = 60_000_000
_US: Final = timedelta(microseconds=1)
_MONDAY_US: Final = 4 * 86_400_000_000
_CHANGES: Final = {"CONNECTED": 1, "DISCONNECTED": -1}
_NAMELESS: Final = {
    ("event", "communication", state.lower()): change for state, change in _CHANGES.items()
}
_CORE: Final = re.compile(
    r"event/(communication/(connected|disconnected)|[^/]+/(engine|history|(eventer|mariner)/[^/]+))"
)


class Seen(NamedTuple):
    """An event as reports see it; moments in microseconds."""

    at: int
    server: int
    session: int
    instance: int
    type: EventType
    path: str
    source: int | None
    kind: str | None
    text: str | None
    size: int
    value: float | None
    is_unread: bool

    @property
    def id(self) -> tuple[int, int, int]:
        return self.server, self.session, self.instance


class Asked(NamedTuple):
    """What is asked for."""

    types: tuple[EventType, ...] | None = None
    depth: int = 2
    keys: tuple[str, ...] = ("value",)


def seen(event: Event, keys: Sequence[str]) -> Seen:
    """An event as reports see it."""
    row = row_of(event)
    text, binary, source = row["payload_json"], row["payload_binary"], row["source_timestamp"]
    value = None if text is None else number_of(text, keys)
    return Seen(
        at=(row["timestamp"] - EPOCH) // _US,
        server=event.id.server,
        session=event.id.session,
        instance=event.id.instance,
        type=event.type,
        path=type_path.encode(event.type),
        source=None if source is None else (source - EPOCH) // _US,
        kind=row["payload_kind"],
        text=text,
        size=len(text.encode()) if text is not None else len(binary or b""),
        value=value if value is not None and math.isfinite(value) else None,
        is_unread=value is not None and not math.isfinite(value),
    )


def number_of(text: str, keys: Sequence[str]) -> float | None:
    """The number of a JSON text, infinite where it is beyond all doubles; None: it has none."""
    found = json.loads(text, parse_int=float)  # `int` refuses thousands of digits
    if not isinstance(found, float):
        if not keys:
            return None
        for key in keys:
            found = found.get(key) if isinstance(found, dict) else None
    return found if isinstance(found, float) else None


def unit_of(text: str | None, keys: Sequence[str]) -> str | None:
    """The unit beside a number, if the begin of a payload, which reports keep, is all of it."""
    try:
        found = json.loads((text or "")[: limits.REPORT_PAYLOAD_CHARACTERS], parse_int=float)
    except json.JSONDecodeError:
        return None
    for key in keys[:-1]:
        found = found.get(key) if isinstance(found, dict) else None
    return found.get("unit") if keys and isinstance(found, dict) else None


class Oracle:
    """Reports of some events.

    Args:
        events: of a store.
        asked: what is asked for.

    Attributes:
        events: those of the types that are asked for.
        everything: all of them.
    """

    def __init__(self, events: Iterable[Event], asked: Asked) -> None:
        self.everything = sorted(seen(event, asked.keys) for event in events)
        self.asked = asked
        chosen = None if asked.types is None else Subscription(asked.types)
        self.events = [i for i in self.everything if chosen is None or chosen.matches(i.type)]
        moments = [event.at for event in self.events] or [0]
        self.span = Span(min(moments), max(moments))
        self._width = bucket_width(self.span)
        self._width_us = self._width // _US

    def rows(self, name: str) -> Rows:
        """All rows of a report, in order."""
        make: Callable[[], Rows] = getattr(self, name)
        return make()

    def finding(self, name: str) -> str:
        """The sentence of the page about a report that has rows."""
        say: Callable[[], str] = getattr(self, f"_say_{name}")
        return say()

    def facts(self) -> dict[str, str]:
        """The figures at the top of the page."""
        seconds = (self.span.last - self.span.first) / 1e6
        n_unread = sum(event.is_unread for event in self.events)
        facts = {
            "Events": formats.count(len(self.events)),
            "Rate": f"{len(self.events) / seconds:,.3g} /s" if seconds else formats.NOTHING,
            "Types": formats.count(len(self._by_type(self.events))),
            "Servers": formats.count(len({event.server for event in self.events})),
            "Payloads": formats.size(sum(event.size for event in self.events)),
            "Time": formats.duration(seconds),
        }
        return facts | ({"Numbers not read": formats.count(n_unread)} if n_unread else {})

    # --- activity -------------------------------------------------------------------------

    def activity(self) -> Rows:
        n_events = Counter(self._prefix(event) for event in self.events)
        largest = sorted(n_events, key=lambda i: (-n_events[i], i))[: limits.REPORT_PREFIXES]
        found: dict[tuple[bool, str, int], list[int]] = defaultdict(lambda: [0, 0])
        for event in self.events:
            prefix = self._prefix(event)
            is_small = prefix not in largest
            key = (is_small, "" if is_small else prefix, self._begin(event.at))
            found[key][0] += 1
            found[key][1] += event.size
        return [
            {
                "prefix": None if is_small else prefix,
                "bucket": to_datetime(max(begin, MIN_US)),
                "bucket_s": self._width.total_seconds(),
                "events": found[is_small, prefix, begin][0],
                "bytes": found[is_small, prefix, begin][1],
            }
            for is_small, prefix, begin in sorted(found)
        ]

    def _say_activity(self) -> str:
        counts = Counter(self._begin(event.at) for event in self.events)
        most = max(counts.values())
        # of equal ones the last
        begin = max(begin for begin, n_events in counts.items() if n_events == most)
        return (
            f"Busiest {formats.duration(self._width.total_seconds())}: {plural(most, 'event')}"
            f" from {formats.moment(to_datetime(max(begin, MIN_US)))} on."
        )

    # --- latest ---------------------------------------------------------------------------

    def latest(self) -> Rows:
        found = self._by_type(self.events)
        return [
            {
                "type_path": last.path,
                "timestamp": to_datetime(last.at),
                "source_timestamp": None if last.source is None else to_datetime(last.source),
                "value": last.value,
                "payload_kind": last.kind,
                "payload": last.text and last.text[: limits.REPORT_PAYLOAD_CHARACTERS],
                "payload_bytes": last.size,
                "server": last.server,
                "session": last.session,
                "instance": last.instance,
                "events": len(found[last.path]),
            }
            for last in sorted((i[-1] for i in found.values()), key=lambda i: (-i.at, i.path))
        ]

    def _say_latest(self) -> str:
        rows = self.latest()
        return (
            f"{plural(len(rows), 'type')}; the last event is of"
            f" {formats.name(rows[0]['type_path'])}, at {formats.moment(rows[0]['timestamp'])}."
        )

    # --- values ---------------------------------------------------------------------------

    def values(self) -> Rows:
        rows = []
        for path, members in sorted(self._shown_numbers().items()):
            for begin, group in groupby(members, key=lambda event: self._begin(event.at)):
                numbers = [event.value or 0.0 for event in group]
                mean = float(sum(map(Fraction, numbers)) / len(numbers))
                weighted = self._mean_over_time(members, begin)
                rows.append(
                    {
                        "type_path": path,
                        "bucket": to_datetime(max(begin, MIN_US)),
                        "bucket_s": self._width.total_seconds(),
                        "count": len(numbers),
                        "min": min(numbers),
                        "max": max(numbers),
                        "mean": mean,
                        "first": numbers[0],
                        "last": numbers[-1],
                        "time_mean": mean if weighted is None else weighted,
                        "unit": unit_of(members[-1].text, self.asked.keys),
                    }
                )
        return rows

    def _numbers(self) -> dict[str, list[Seen]]:
        return self._by_type(event for event in self.events if event.value is not None)

    def _shown_numbers(self) -> dict[str, list[Seen]]:
        found = self._numbers()
        most = sorted(found, key=lambda path: (-len(found[path]), path))
        return {path: found[path] for path in most[: limits.REPORT_VALUE_TYPES]}

    def _mean_over_time(self, members: list[Seen], begin: int) -> float | None:
        """Mean of what each number is from its moment until the next, over the time of a bucket."""
        total, weight = Fraction(), 0
        for this, following in pairwise(members):
            length = min(following.at, begin + self._width_us) - max(this.at, begin)
            if length > 0:
                total += Fraction(this.value or 0.0) * length
                weight += length
        return float(total / weight) if weight else None

    def _say_values(self) -> str:
        found, shown = self._numbers(), self._shown_numbers()
        width = formats.duration(self._width.total_seconds())
        text = (
            f"{plural(sum(map(len, found.values())), 'number')} of {plural(len(found), 'type')}:"
            f" means in {width}, between the least and the largest."
        )
        if len(shown) < len(found):
            text += f" Shown: {len(shown)} of {len(found)} types, those with most numbers."
        return text

    # --- gaps -----------------------------------------------------------------------------

    def gaps(self) -> Rows:
        end = self.everything[-1].at
        rows = []
        for path, members in self._by_type(self.events).items():
            moments = sorted({event.at for event in members})
            lengths = sorted(later - sooner for sooner, later in pairwise(moments))
            is_of_core = self.asked.types is None and _CORE.fullmatch(path) is not None
            if len(lengths) < limits.MIN_INTERVALS or is_of_core:
                continue
            usual = lengths[math.ceil(len(lengths) / 2) - 1]
            rows += [
                {
                    "type_path": path,
                    "begin": to_datetime(sooner),
                    "end": to_datetime(later),
                    "silence_s": (later - sooner) / 1e6,
                    "expected_s": usual / 1e6,
                    "ratio": (later - sooner) / usual,
                    "is_open": sooner == moments[-1],
                }
                for sooner, later in pairwise([*moments, end])
                if later - sooner > 3 * usual
            ]
        return sorted(rows, key=lambda i: (-i["ratio"], i["begin"], i["type_path"]))

    def _say_gaps(self) -> str:
        rows = self.gaps()
        longest = max(rows, key=lambda i: (i["silence_s"], i["begin"], i["type_path"]))
        return (
            f"{plural(len(rows), 'gap')} of {plural(len({i['type_path'] for i in rows}), 'type')};"
            f" the longest is of {formats.name(longest['type_path'])}, for"
            f" {formats.duration(longest['silence_s'])}. Silent until the end:"
            f" {sum(i['is_open'] for i in rows):,}."
        )

    # --- latency --------------------------------------------------------------------------

    def latency(self) -> Rows:
        rows = []
        for prefix in {self._prefix(event) for event in self.events}:
            members = [event for event in self.events if self._prefix(event) == prefix]
            found = sorted(i.at - i.source for i in members if i.source is not None)
            past = [us for us in found if us >= 0]
            percentiles = {
                f"p{part}_s": past[math.ceil(part * len(past) / 100) - 1] / 1e6 if past else None
                for part in (50, 95, 99)
            }
            rows.append(
                {
                    "prefix": prefix,
                    "events": len(members),
                    "with_source": len(found),
                    "late": sum(us > MINUTE_US for us in found),
                    "future": sum(us < 0 for us in found),
                    "min_s": found[0] / 1e6 if found else None,
                    **percentiles,
                    "max_s": found[-1] / 1e6 if found else None,
                }
            )
        return sorted(rows, key=lambda i: (-i["with_source"], i["prefix"]))

    def _say_latency(self) -> str:
        events = [i for i in self.events if i.source is not None]
        found = [i.at - i.source for i in events if i.source is not None]
        return (
            f"{len(found):,} of {plural(len(self.events), 'event')}"
            f" {'has' if len(found) == 1 else 'have'} a source timestamp."
            f" Late: {sum(us > MINUTE_US for us in found):,}."
            f" From the future: {sum(us < 0 for us in found):,}."
        )

    # --- runs and availability --------------------------------------------------------------

    def runs(self) -> Rows:
        found = [run for server in self._servers() for run in self._runs_of(server)]
        found.sort(key=lambda i: (*_subject(i), i["end"], i["is_begin_seen"], i["ended_by"] or ""))
        return sorted(found, key=lambda i: i["begin"], reverse=True)

    def _servers(self) -> list[int]:
        return sorted({event.server for event in self.everything})

    def _runs_of(self, server: int) -> Rows:
        members = sorted(
            (event for event in self.everything if event.server == server),
            key=lambda event: event.id,
        )
        starts = [i.session for i in members if _engine_state(i) == "STARTED"]
        rows = []
        for first in (None, *sorted(set(starts))):
            of_run = [i for i in members if max((s for s in starts if s <= i.session),
                                                default=None) == first]  # fmt: skip
            if not of_run:
                continue
            stops = [i.at for i in of_run if _engine_state(i) == "STOPPED"]
            is_last = first == (max(starts) if starts else None)
            end = max(stops) if stops else max(i.at for i in of_run)
            ended_by = "stopped" if stops else None if is_last else "killed"
            begin = min(i.at for i in of_run)
            rows.append(_run(server, "engine", None, begin, end, first is not None, ended_by))
            rows += _client_runs(server, sorted(of_run), begin, end, ended_by)
        return rows

    def _say_runs(self) -> str:
        rows = self.runs()
        longest = max(
            rows, key=lambda i: (i["up_s"], i["begin"], i["server"], i["kind"], i["name"] or "")
        )
        what = {"engine": "engine", "clients": "any client"}.get(longest["kind"]) or longest["name"]
        of = f" of {longest['server']}" if len(self._servers()) > 1 else ""
        return (
            f"{plural(len(rows), 'time')} up; the longest is of {formats.name(what + of)}, for"
            f" {formats.duration(longest['up_s'])}."
        )

    def availability(self) -> Rows:
        ends = {i: max(run["end"] for run in self.runs() if run["server"] == i)
                for i in self._servers()}  # fmt: skip
        rows = []
        for _, group in groupby(sorted(self.runs(), key=_subject), key=_subject):
            members = sorted(group, key=lambda i: (i["begin"], i["end"]))
            last = ends[members[0]["server"]]
            again = [*(i["begin"] for i in members[1:]), last]
            down = [later - i["end"] for i, later in zip(members, again, strict=True)]
            up = sum((i["end"] - i["begin"] for i in members), timedelta())
            whole = last - members[0]["begin"]
            longest = max(down)
            rows.append(
                {
                    "server": members[0]["server"],
                    "kind": members[0]["kind"],
                    "name": members[0]["name"],
                    "runs": len(members),
                    "killed": sum(i["ended_by"] == "killed" for i in members),
                    "first": members[0]["begin"],
                    "last": last,
                    "up_s": up / _US / 1e6,
                    "down_s": (whole - up) / _US / 1e6,
                    "share": up / whole if whole else None,
                    "longest_down_s": longest / _US / 1e6 if longest > timedelta() else None,
                    "is_up": any(i["ended_by"] is None for i in members),
                }
            )
        return sorted(rows, key=lambda i: (i["kind"] != "engine", -i["runs"], *_subject(i)))

    def _say_availability(self) -> str:
        rows = self.availability()
        engines = [i for i in rows if i["kind"] == "engine"]
        return (
            f"{plural(len(engines), 'engine')}, killed"
            f" {plural(sum(i['killed'] for i in engines), 'time')};"
            f" {plural(sum(i['name'] is not None for i in rows), 'client')}."
        )

    # --- top ------------------------------------------------------------------------------

    def top(self) -> Rows:
        n_bytes = sum(event.size for event in self.events)
        middle = (self.span.first + self.span.last) // 2
        rows = []
        for path, members in self._by_type(self.events).items():
            size = sum(event.size for event in members)
            n_later = sum(event.at > middle for event in members)
            n_earlier = len(members) - n_later
            has_growth = n_earlier and self.span.first < self.span.last
            rows.append(
                {
                    "type_path": path,
                    "events": len(members),
                    "bytes": size,
                    "events_share": len(members) / len(self.events),
                    "bytes_share": size / n_bytes if n_bytes else None,
                    "first": to_datetime(members[0].at),
                    "last": to_datetime(members[-1].at),
                    "growth": n_later / n_earlier - 1 if has_growth else None,
                }
            )
        return sorted(
            rows, key=lambda i: (-max(i["events_share"], i["bytes_share"] or 0), i["type_path"])
        )

    def _say_top(self) -> str:
        first = self.top()[0]
        return (
            f"{formats.name(first['type_path'])} is the largest: {plural(first['events'], 'event')}"
            f" ({formats.show('share', first['events_share'])}), {formats.size(first['bytes'])} of"
            f" payload ({formats.show('share', first['bytes_share'])})."
        )

    # --- of several -------------------------------------------------------------------------

    def _prefix(self, event: Seen) -> str:
        return "/".join(event.path.split("/")[: self.asked.depth])

    def _begin(self, at: int) -> int:
        """Begin of a bucket."""
        return _MONDAY_US + (at - _MONDAY_US) // self._width_us * self._width_us

    @staticmethod
    def _by_type(events: Iterable[Seen]) -> dict[str, list[Seen]]:
        """Events of each type, in order."""
        found: dict[str, list[Seen]] = defaultdict(list)
        for event in sorted(events):
            found[event.path].append(event)
        return found


def plural(number: int, one: str) -> str:
    return f"{number:,} {one}{'' if number == 1 else 's'}"


def _subject(run: Row) -> tuple[int, str, bool, str]:
    return run["server"], run["kind"], run["name"] is not None, run["name"] or ""


def _engine_state(event: Seen) -> str | None:
    """What an event says of the engine of its server."""
    return _state(event) if event.type == ("event", str(event.server), "engine") else None


def _state(event: Seen) -> str | None:
    found = None if event.text is None else json.loads(event.text, parse_int=float)
    return found if isinstance(found, str) else None


def _connection(event: Seen) -> tuple[str, str | None, int] | None:
    """Of whom an event tells a connection more or less; None: of nobody."""
    if event.type in _NAMELESS:
        return "clients", None, _NAMELESS[event.type]
    change = _CHANGES.get(_state(event) or "")
    if change is None or len(event.type) != 4 or event.type[:2] != ("event", str(event.server)):
        return None
    is_client = event.type[2] in {"eventer", "mariner"} and event.type[3]
    return (event.type[2], event.type[3], change) if is_client else None


def _run(  # noqa: PLR0917  # as the columns are
    server: int, kind: str, name: str | None, begin: int, end: int, is_seen: bool, how: str | None
) -> Row:
    return {
        "server": server,
        "kind": kind,
        "name": name,
        "begin": to_datetime(begin),
        "end": to_datetime(end),
        "up_s": (end - begin) / 1e6,
        "is_begin_seen": is_seen,
        "ended_by": how,
    }


def _client_runs(
    server: int, events: list[Seen], begin: int, end: int, ended_by: str | None
) -> Rows:
    """When clients were connected in a run of the engine."""
    changes: dict[tuple[str, str | None], list[tuple[int, int]]] = defaultdict(list)
    for event in events:
        if (found := _connection(event)) is not None:
            changes[found[:2]].append((event.at, found[2]))
    rows = []
    for (kind, name), of_client in changes.items():
        sums = [sum(change for _, change in of_client[: i + 1]) for i in range(len(of_client))]
        # as many were there before as it takes for none to be less than none
        n_open = max(0, -min(sums))
        since = (begin, False)
        for at, change in of_client:
            n_open += change
            if change == 1 and n_open == 1:
                since = (at, True)
            elif n_open == 0:
                rows.append(_run(server, kind, name, since[0], at, since[1], "disconnected"))
        if n_open:
            rows.append(_run(server, kind, name, since[0], end, since[1], ended_by))
    return rows
