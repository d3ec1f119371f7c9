"""Every scenario in small, for its answers only: nothing here looks at the time taken."""

import copy
import io
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from rich.console import Console

from tests.perf import eventer, report, rsb, runner, scenarios, sides, subscribers, workload
from tests.perf.client import Job
from tests.perf.report import Bound, Measure
from tests.perf.rsb_client import RsbJob
from tests.support.gateway import gateway
from tests.support.process import ChildError

pytestmark = pytest.mark.perf

OURS_ONLY = {
    *("relay", "memory", "slow-subscriber"),
    *(*scenarios.MILLIONS, *scenarios.RSB, *scenarios.SPARK),
}

DIFFERENCES = {"idle-connection", "spark-one-type"}
"""In small, a difference may be none: so few fit into memory, or time, that is there anyway."""

GROUPS = {
    "an empty store": [i.name for i in scenarios.ON_EMPTY],
    "a filled store": [*(i.name for i in scenarios.ON_FILLED), "disk"],
    "memory and neighbours": ["memory", "idle-connection", "slow-subscriber"],
    "eventer": list(scenarios.EVENTER),
    "millions": list(scenarios.MILLIONS),
    "rsb": list(scenarios.RSB),
}


def test_every_scenario_is_in_a_group() -> None:
    groups = [*GROUPS.values(), scenarios.SPARK]
    assert sorted(i for group in groups for i in group) == sorted(scenarios.NAMES)


@pytest.mark.timeout(600)  # on a machine that may be busy
@pytest.mark.parametrize("group", GROUPS.values(), ids=GROUPS)
async def test_scenarios_give_right_answers_on_both_sides(group: list[str], tmp_path: Path) -> None:
    """A wrong answer to any request makes its client, and so this test, fail."""
    await _check(group, tmp_path)


async def test_clients_with_processes_of_their_own(tmp_path: Path) -> None:
    """As they are measured with: an outcome, or why there is none."""
    async with gateway(tmp_path, http=True, core=rsb.CORE) as server:
        ping = Job(server.host, server.port, "ping", requests=3)
        assert (await sides.do_in_process(ping)).median_s > 0
        assert server.rsb_port is not None
        assert server.http_port is not None
        ports = (server.rsb_port, server.port, server.http_port)
        relay = RsbJob(server.host, *ports, "relay", events=3)
        assert (await sides.do_in_process(relay)).p99_s > 0
        subscribed = subscribers.Job(server.host, server.port, "mariner", 2, events=3)
        async with eventer.subscribed_process(subscribed) as hearing:
            register = Job(server.host, server.port, "register", requests=3)
            begun_at = (await sides.do_in_process(register)).begun_at
            assert (await hearing).ended_at > begun_at
        latest = Job(server.host, server.port, "latest", requests=1, stored=8)  # event 7: it has 3
        with pytest.raises(ChildError, match=r"(?s)Traceback.*WrongAnswerError: got \[\]"):
            await sides.do_in_process(latest)


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_spark_scenarios_give_right_answers(spark: SparkSession, tmp_path: Path) -> None:
    """Wrong rows make it fail."""
    await _check(scenarios.SPARK, tmp_path, spark)


async def _check(
    group: Sequence[str], directory: Path, session: SparkSession | None = None
) -> None:
    measures = await runner.run(directory, scenarios.SMALL, frozenset(group), session)

    assert [i.name for i in measures] == [i for i in scenarios.NAMES if i in group]
    for measure in measures:
        assert len(measure.ours) == 1, measure
        assert len(measure.theirs) == (0 if measure.name in OURS_ONLY else 1), measure
        if measure.name not in DIFFERENCES:
            assert all(i > 0 for i in measure.ours + measure.theirs), measure


def _registered(requests: int, events_per_request: int) -> list[dict[str, Any]]:
    """Right answers to ``workload.register_requests(0, …)``."""
    return [
        {
            "msg_type": "register_res",
            "register_id": i,
            "success": True,
            "events": [
                {
                    "id": {"server": 1, "session": 10 + i, "instance": j + 1},
                    "timestamp": {"s": 1, "us": i},
                    **workload.register_event(i * events_per_request + j),
                }
                for j in range(events_per_request)
            ],
        }
        for i in range(requests)
    ]


def test_right_registrations_pass() -> None:
    workload.check_registered(_registered(3, 2), 0, 2)


@pytest.mark.parametrize(
    ("path", "wrong"),
    [
        ((1, "register_id"), 0),
        ((1, "success"), False),
        ((1, "events", 1, "id", "session"), 12),
        ((1, "events", 1, "id", "instance"), 1),
        ((1, "events", 0, "id", "server"), 2),
        ((1, "events", 0, "type"), ["perf", "0"]),
        ((1, "events", 0, "source_timestamp"), None),
        ((1, "events", 0, "payload", "data", "value"), 0),
        ((1, "events"), []),
    ],
)
def test_wrong_registrations_are_noticed(path: tuple[str | int, ...], wrong: object) -> None:
    messages: Any = _registered(3, 2)
    place = messages
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = wrong
    with pytest.raises(workload.WrongAnswerError):
        workload.check_registered(messages, 0, 2)


def test_session_that_does_not_rise_is_noticed() -> None:
    messages = _registered(2, 1)
    messages[1]["events"][0]["id"]["session"] = 10
    with pytest.raises(workload.WrongAnswerError, match="sessions"):
        workload.check_registered(messages, 0, 1)


def _queried(indexes: range, more_follows: bool) -> dict[str, Any]:
    events = [
        {
            "id": {"server": 1, "session": i, "instance": 1},
            "timestamp": {"s": 1, "us": i},
            **workload.register_event(i),
        }
        for i in indexes
    ]
    return {"msg_type": "query_res", "query_id": 0, "events": events, "more_follows": more_follows}


def test_only_the_newest_events_in_order_pass() -> None:
    stored = 20_000
    right = _queried(range(19_907, 9_907, -100), True)
    workload.check_queried([right], "newest", stored)

    older = _queried(range(19_807, 9_807, -100), True)
    ascending = copy.deepcopy(right)
    ascending["events"].reverse()
    for wrong in (older, ascending, {**right, "more_follows": False}):
        with pytest.raises(workload.WrongAnswerError):
            workload.check_queried([wrong], "newest", stored)


def test_only_the_latest_event_passes() -> None:
    workload.check_queried([_queried(range(107, 108), False)], "latest", 200)
    with pytest.raises(workload.WrongAnswerError):
        workload.check_queried([_queried(range(7, 8), False)], "latest", 200)


def test_events_of_an_absent_type_are_noticed() -> None:
    workload.check_queried([_queried(range(0), False)], "absent", 200)
    with pytest.raises(workload.WrongAnswerError):
        workload.check_queried([_queried(range(7, 8), False)], "absent", 200)


def test_wrong_pong_is_noticed() -> None:
    pong = {"msg_type": "ping_res", "ping_id": 0}
    workload.check_pinged([pong])
    with pytest.raises(workload.WrongAnswerError):
        workload.check_pinged([pong, pong])


@pytest.mark.parametrize(
    ("measure", "ratio", "met"),
    [
        (Measure("", "", "events/s", 20, Bound.SPEED_UP, [4e4], [2e3]), 20, True),
        (Measure("", "", "events/s", 20, Bound.SPEED_UP, [2e3], [4e4]), 0.05, False),
        (Measure("", "", "ms", 2, Bound.SPEED_UP, [9, 0.5, 0.4], [1]), 2, True),
        (Measure("", "", "ms", 2, Bound.SPEED_UP, [1], [1]), 1, False),
        (Measure("", "", "MB", 300, Bound.AT_MOST, [300]), None, True),
        (Measure("", "", "MB", 300, Bound.AT_MOST, [301], [1]), 1 / 301, False),
        (Measure("", "", "B", 0, Bound.NONE, [100], [500]), 5, None),
    ],
)
def test_ratio_says_how_many_times_better_ours_is(
    measure: Measure, ratio: float | None, met: bool | None
) -> None:
    assert measure.met is met
    if ratio is None:
        assert measure.ratio is None
    else:
        assert measure.ratio is not None
        assert math.isclose(measure.ratio, ratio)


def test_table_and_file_tell_medians_ratio_and_target(tmp_path: Path) -> None:
    measure = Measure("a", "some scenario", "ms", 2, Bound.SPEED_UP, [1, 2, 900], [8, 7, 9])
    sink = io.StringIO()
    report.print_table([measure], Console(file=sink, width=120))
    row = next(i for i in sink.getvalue().splitlines() if "some scenario" in i)
    assert [i.strip() for i in row.strip("│ ").split("│")] == [
        "some scenario", "2", "8", "ms", "4x", "≥ 2x", "yes",
    ]  # fmt: skip

    path = tmp_path / "perf.json"
    report.save([measure], path)
    saved = json.loads(path.read_text())
    assert saved["measures"][0]["ours"] == [1, 2, 900]
    assert saved["measures"][0]["ratio"] == 4
    assert saved["measures"][0]["met"] is True
    assert saved["machine"]["cpus"] > 0
