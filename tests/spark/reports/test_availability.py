"""When engines ran and clients were connected: what is seen, and what has to be inferred.

All lives are told by one report, each by a server of its own: they do not know each other.
"""

from typing import Any, Final, NamedTuple

import pytest
from duckdb import DuckDBPyConnection

from mariner_spark import limits
from mariner_spark.reports.availability import availability, runs
from tests.spark.reports.support import T0, E, S, at, frame, rows


def engine(at_s: int, state: str) -> E:
    return E("event/SERVER/engine", T0 + at_s * S, f'"{state}"')


def client(at_s: int, name: str, state: str, kind: str = "eventer") -> E:
    return E(f"event/SERVER/{kind}/{name}", T0 + at_s * S, f'"{state}"')


def other(at_s: int) -> E:
    return E("a", T0 + at_s * S)


class Life(NamedTuple):
    """Events of a server, and its runs by their begins: times in seconds, without ``up_s``."""

    events: list[E]
    runs: list[tuple[str, str | None, float, float, bool, str | None]]


LIVES: Final = {
    "an engine stops, and another one is up": Life(
        [
            engine(0, "STARTED"),
            other(3),
            engine(5, "STOPPED"),
            engine(8, "STARTED"),
            other(9),
        ],
        [
            ("engine", None, 0.0, 5.0, True, "stopped"),
            ("engine", None, 8.0, 9.0, True, None),
        ],
    ),
    "an engine that was killed ran until its last event": Life(
        [
            engine(0, "STARTED"),
            client(1, "a", "CONNECTED"),
            other(4),
            engine(10, "STARTED"),
            client(11, "a", "CONNECTED"),
            engine(12, "STOPPED"),
        ],
        [
            ("engine", None, 0.0, 4.0, True, "killed"),
            ("eventer", "a", 1.0, 4.0, True, "killed"),
            ("engine", None, 10.0, 12.0, True, "stopped"),
            ("eventer", "a", 11.0, 12.0, True, "stopped"),
        ],
    ),
    "a server that only tells of other things was up": Life(
        [other(20), other(21)], [("engine", None, 20.0, 21.0, False, None)]
    ),
    "some of it began before the first event": Life(
        [
            other(0),
            client(2, "a", "DISCONNECTED"),
            client(3, "a", "CONNECTED"),
            client(4, "a", "DISCONNECTED"),
            engine(5, "STOPPED"),
        ],
        [
            ("engine", None, 0.0, 5.0, False, "stopped"),
            ("eventer", "a", 0.0, 2.0, False, "disconnected"),
            ("eventer", "a", 3.0, 4.0, True, "disconnected"),
        ],
    ),
    "a client is connected as long as it has a connection": Life(
        [
            engine(0, "STARTED"),
            client(1, "a", "CONNECTED"),
            client(2, "a", "CONNECTED"),
            client(3, "a", "DISCONNECTED"),
            client(4, "b~1c~0", "CONNECTED", kind="mariner"),
            client(5, "a", "DISCONNECTED"),
            client(5, "a", "CONNECTED"),
            other(7),
        ],
        [
            ("engine", None, 0.0, 7.0, True, None),
            ("eventer", "a", 1.0, 5.0, True, "disconnected"),
            ("mariner", "b/c~", 4.0, 7.0, True, None),
            ("eventer", "a", 5.0, 7.0, True, None),
        ],
    ),
    "of two connections from before, both end": Life(
        [
            other(0),
            client(1, "a", "DISCONNECTED"),
            client(2, "a", "DISCONNECTED"),
            client(3, "a", "CONNECTED"),
            client(4, "a", "CONNECTED"),
            other(6),
        ],
        [
            ("engine", None, 0.0, 6.0, False, None),
            ("eventer", "a", 0.0, 2.0, False, "disconnected"),
            ("eventer", "a", 3.0, 6.0, True, None),
        ],
    ),
    "connections without names": Life(
        [
            engine(0, "STARTED"),
            E("event/communication/connected", T0 + 1 * S),
            E("event/communication/connected", T0 + 2 * S),
            E("event/communication/disconnected", T0 + 3 * S),
            E("event/communication/disconnected", T0 + 4 * S),
            other(5),
        ],
        [
            ("engine", None, 0.0, 5.0, True, None),
            ("clients", None, 1.0, 4.0, True, "disconnected"),
        ],
    ),
    "what only looks like the core does not count": Life(
        [
            engine(0, "STARTED"),
            E("event/999/engine", T0 + 1 * S, '"STOPPED"'),  # of another server
            E("event/999/eventer/a", T0 + 1 * S, '"CONNECTED"'),
            E("event/SERVER/engine", T0 + 2 * S, '"OTHER"'),
            E("event/SERVER/engine", T0 + 2 * S, b'"STOPPED"'),
            E("event/SERVER/engine/x", T0 + 2 * S, '"STOPPED"'),
            E("event/SERVER/engine\n", T0 + 2 * S, '"STOPPED"'),
            E("event/SERVER/eventer/a\n/b", T0 + 2 * S, '"CONNECTED"'),
            E("x/event/SERVER/engine", T0 + 2 * S, '"STOPPED"'),
            E("event/SERVER/eventer", T0 + 2 * S, '"CONNECTED"'),
            E("event/SERVER/eventer/a/b", T0 + 2 * S, '"CONNECTED"'),
            E("event/SERVER/eventer/a", T0 + 2 * S, "1"),
            E("event/SERVER/eventer/a", T0 + 2 * S),
            E("event/SERVER/other/a", T0 + 2 * S, '"CONNECTED"'),
        ],
        [("engine", None, 0.0, 2.0, True, None)],
    ),
    "at one moment ids tell the order": Life(
        [
            E("event/SERVER/engine", T0, '"STARTED"', session=5),
            E("a", T0, session=4),
            E("event/SERVER/eventer/a", T0, '"DISCONNECTED"', session=6, instance=2),
            E("event/SERVER/eventer/a", T0, '"CONNECTED"', session=6, instance=1),
            E("a", T0 + S, session=7),
        ],
        [
            ("engine", None, 0.0, 0.0, False, "killed"),
            ("engine", None, 0.0, 1.0, True, None),
            ("eventer", "a", 0.0, 0.0, True, "disconnected"),
        ],
    ),
}


def lived_by(server: int, events: list[E]) -> list[E]:
    return [
        event._replace(
            type=event.type.replace("SERVER", str(server)),
            server=server,
            session=number if event.session is None else event.session,
        )
        for number, event in enumerate(events, 1)
    ]


@pytest.fixture(scope="module")
def report(duck: DuckDBPyConnection) -> list[tuple[Any, ...]]:
    """Runs of all servers, which are numbered from 1 on."""
    lives = enumerate(LIVES.values(), 1)
    events = [event for server, life in lives for event in lived_by(server, life.events)]
    return rows(runs(frame(duck, events)))


@pytest.fixture(scope="module")
def told(report: list[tuple[Any, ...]]) -> dict[int, list[tuple[object, ...]]]:
    """Runs by their servers."""
    found: dict[int, list[tuple[object, ...]]] = {}
    for server, kind, name, begin, end, up_s, is_seen, ended_by in report:
        assert up_s == (end - begin).total_seconds()
        seconds = [(moment - at(T0)).total_seconds() for moment in (begin, end)]
        found.setdefault(server, []).append((kind, name, *seconds, is_seen, ended_by))
    return found


@pytest.mark.parametrize("life", LIVES)
def test_runs(told: dict[int, list[tuple[object, ...]]], life: str) -> None:
    found = sorted(told[list(LIVES).index(life) + 1], key=lambda run: (run[2], run[0], run[3]))
    assert found == sorted(LIVES[life].runs, key=lambda run: (run[2], run[0], run[3]))


def test_the_latest_runs_come_first(report: list[tuple[Any, ...]]) -> None:
    def order(run: tuple[Any, ...]) -> tuple[Any, ...]:
        server, kind, name, begin, end, *_ = run
        return at(T0) - begin, server, kind, name or "", end

    assert report == sorted(report, key=order)
    assert len({begin for _, _, _, begin, *_ in report}) > 5


def test_short_connections_leave_the_engines_in(
    duck: DuckDBPyConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "REPORT_ROWS", 2)
    events = [engine(0, "STARTED")]
    for i in range(1, 9, 2):
        events += [client(i, "a", "CONNECTED"), client(i + 1, "a", "DISCONNECTED")]
    found = rows(runs(frame(duck, lived_by(1, events))))
    assert [(kind, (begin - at(T0)).seconds) for _, kind, _, begin, *_ in found] == [
        ("eventer", 7),
        ("eventer", 5),
        ("engine", 0),
    ]


def test_availability(duck: DuckDBPyConnection) -> None:
    events = [
        engine(0, "STARTED"),
        client(2, "a", "CONNECTED"),
        engine(40, "STARTED"),
        client(50, "a", "CONNECTED"),
        engine(70, "STOPPED"),
        engine(80, "STARTED"),
        client(90, "b", "CONNECTED"),
        other(100),
    ]
    both = lived_by(1, events) + lived_by(2, [other(0)])
    first, last = at(T0), at(T0 + 100 * S)
    assert rows(availability(frame(duck, both))) == [
        # killed after 2 s, then 40 to 70, then 80 to the end
        (1, "engine", None, 3, 1, first, last, 52.0, 48.0, 0.52, 38.0, True),
        (2, "engine", None, 1, 0, first, first, 0.0, 0.0, None, None, True),
        (1, "eventer", "a", 2, 1, at(T0 + 2 * S), last, 20.0, 78.0, 20 / 98, 48.0, False),
        (1, "eventer", "b", 1, 0, at(T0 + 90 * S), last, 10.0, 0.0, 1.0, None, True),
    ]
