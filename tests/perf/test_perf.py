"""Every scenario in small, for its answers only: nothing here looks at the time taken."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.perf import fanout, rsb, runner, scenarios, sides, subscribers
from tests.perf import spark as spark_suite
from tests.perf.client import Job
from tests.perf.report import Measure
from tests.perf.rsb_client import RsbJob
from tests.perf.runner import SLOW_SUITES, SUITES
from tests.support.gateway import gateway
from tests.support.process import ChildError

pytestmark = pytest.mark.perf

DIFFERENCES = {"idle-connection", "spark-one-type"}
"""In small, a difference may be none: so few fit into memory, or time, that is there anyway."""

ON_EMPTY = [i.name for i in (*scenarios.ON_EMPTY, *scenarios.CONNECTIONS)]

GROUPS = {
    "an empty store": ON_EMPTY,
    "a filled store": [i for i in runner.names({"": SUITES["rounds"]}) if i not in ON_EMPTY],
    **{
        name: runner.names({"": suite})
        for name, suite in (SUITES | SLOW_SUITES).items()
        if name not in {"rounds", "spark"}
    },
}


@pytest.mark.parametrize("group", GROUPS.values(), ids=GROUPS)
async def test_scenarios_give_right_answers_on_all_sides(group: list[str], tmp_path: Path) -> None:
    """A wrong answer to any request makes its client, and so this test, fail."""
    measures = await runner.run(tmp_path, scenarios.SMALL, frozenset(group))
    assert [i.name for i in measures] == group
    _check(measures)


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
        async with fanout.subscribed_process(subscribed) as hearing:
            register = Job(server.host, server.port, "register", requests=3)
            begun_at = (await sides.do_in_process(register)).begun_at
            assert (await hearing).ended_at > begun_at
        latest = Job(server.host, server.port, "latest", requests=1, stored=8)  # event 7: it has 3
        with pytest.raises(ChildError, match=r"(?s)Traceback.*WrongAnswerError: got \[\]"):
            await sides.do_in_process(latest)


@pytest.mark.slow
async def test_spark_scenarios_give_right_answers(spark: SparkSession, tmp_path: Path) -> None:
    """Wrong rows make it fail."""
    measures = spark_suite.measures(scenarios.SMALL)
    wanted = {i.name: i for i in measures}
    await spark_suite.run(tmp_path, scenarios.SMALL, wanted, spark)
    _check(measures)


def _check(measures: Sequence[Measure]) -> None:
    """Each side that can be measured here was, once, and the figures can be."""
    missing = {i.name for i in sides.SIDES if not i.is_there}
    for measure in measures:
        assert measure.samples.keys() == {*measure.sides} - missing, measure
        for [sample] in measure.samples.values():
            if measure.name not in DIFFERENCES:
                assert sample.value > 0, measure
            if measure.unit in {"events/s", "pings/s"}:
                assert sample.cpu_us is not None, measure
                assert sample.cpu_us > 0, measure
