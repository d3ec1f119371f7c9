"""What is measured: the table of scenarios, with the targets of the project."""

from typing import Final, NamedTuple

from tests.perf.client import Kind
from tests.perf.wires import WireName
from tests.perf.workload import EVENT_TYPES


class Counts(NamedTuple):
    """Requests to each side, so chosen that a measurement takes some seconds.

    Registration takes theirs about 20 s: hat-event writes every 10 s what it acknowledged
    until then, and a shorter measurement would leave that work out.
    """

    ours: int
    theirs: int
    small: int

    def of(self, side: str, is_small: bool) -> int:
        """Requests to ``ours`` or ``theirs``; ``is_small``: for correctness only."""
        if is_small:
            return self.small
        return self.ours if side == "ours" else self.theirs


class Scenario(NamedTuple):
    """One row of the comparison; ``Job`` explains the shared names. Target 0: none."""

    name: str
    title: str
    unit: str
    target: float
    kind: Kind
    counts: Counts
    in_flight: int = 1
    events_per_request: int = 1
    wire: WireName = "mariner"


class FanOut(NamedTuple):
    """Events to subscribers over Eventer; ``Job`` explains the shared names."""

    name: str
    title: str
    counts: Counts
    in_flight: int
    events_per_request: int


ON_EMPTY: Final = (
    Scenario(
        "register-single",
        "register, 1 event a request, 64 in flight",
        "events/s",
        20,
        "register",
        Counts(150_000, 66_000, 300),
        in_flight=64,
    ),
    Scenario(
        "register-100",
        "register, 100 events a request, 64 in flight",
        "events/s",
        20,
        "register",
        Counts(5_000, 3_300, 16),
        in_flight=64,
        events_per_request=100,
    ),
    Scenario(
        "register-latency",
        "register, 1 event, one in flight, median",
        "ms",
        2,
        "register",
        Counts(2_000, 1_000, 50),
    ),
    Scenario(
        "eventer-register-single",
        "Eventer: register, 1 event, 64 in flight",
        "events/s",
        10,
        "register",
        Counts(150_000, 100_000, 300),
        in_flight=64,
        wire="eventer",
    ),
    Scenario(
        "eventer-register-100",
        "Eventer: register, 100 events, 64 in flight",
        "events/s",
        10,
        "register",
        Counts(5_000, 4_000, 16),
        in_flight=64,
        events_per_request=100,
        wire="eventer",
    ),
)

ON_FILLED: Final = (
    Scenario(
        "timeseries-newest",
        "timeseries, newest 100 of one type of 100",
        "ms",
        100,
        "newest",
        Counts(2_000, 10, 5),
    ),
    Scenario(
        "timeseries-absent",
        "timeseries, type that does not exist",
        "ms",
        1_000,
        "absent",
        Counts(10_000, 3, 3),
    ),
    Scenario("latest", "latest of one type", "ms", 3, "latest", Counts(10_000, 3_000, 20)),
    Scenario("ping", "ping, one in flight, median", "ms", 3, "ping", Counts(10_000, 10_000, 20)),
    Scenario(
        "ping-many",
        "ping, 64 in flight",
        "pings/s",
        3,
        "ping",
        Counts(200_000, 50_000, 200),
        in_flight=64,
    ),
    Scenario(
        "eventer-timeseries-newest",
        "Eventer: timeseries, newest 100 of one type",
        "ms",
        10,
        "newest",
        Counts(2_000, 10, 5),
        wire="eventer",
    ),
    Scenario(
        "eventer-latest",
        "Eventer: latest of one type",
        "ms",
        0,
        "latest",
        Counts(10_000, 3_000, 20),
        wire="eventer",
    ),
)

FAN_OUTS: Final = (
    FanOut(
        "fan-out-single",
        "Eventer: to {} subscribers, 1 event a session",
        Counts(5_000, 1_000, 50),
        in_flight=64,
        events_per_request=1,
    ),
    FanOut(
        "fan-out-100",
        "Eventer: to {} subscribers, 100 events a session",
        Counts(200, 50, 5),
        in_flight=64,
        events_per_request=100,
    ),
)


class Sizes(NamedTuple):
    """How much is done.

    Attributes:
        rounds: measurements of each scenario and side, of which the median counts.
        stored: events in the filled store.
        types: how many types they have, see ``workload``.
        many: events in our store when its memory is looked at.
        idle: connections that are opened and left idle; hat-mariner has two sockets each.
        latencies: registrations beside a subscriber that does not read, and through a relay.
        subscribers: that hear of the same events.
        millions: events that are stored in all when it is seen whether we slow down.
        millions_types: of so many types.
        millions_requests: registrations of 100 events that one client process makes.
        millions_queries: queries whose median counts.
        rsb: RSB events that are stored; a tenth of them for each latency.
        spark: events that Spark reads.
        spark_requests: registrations of 100 events beside it.
        small: for correctness only: few requests, by clients that have no processes of their own.
    """

    rounds: int
    stored: int
    types: int
    many: int
    idle: int
    latencies: int
    subscribers: int
    millions: int
    millions_types: int
    millions_requests: int
    millions_queries: int
    rsb: int
    spark: int
    spark_requests: int
    small: bool


FULL: Final = Sizes(
    rounds=3,
    stored=100_000,
    types=EVENT_TYPES,
    many=1_000_000,
    idle=500,
    latencies=10_000,
    subscribers=100,
    millions=10_000_000,
    millions_types=10_000,
    millions_requests=10_000,
    millions_queries=500,
    rsb=100_000,
    spark=2_000_000,
    spark_requests=10_000,
    small=False,
)
SMALL: Final = Sizes(
    rounds=1,
    stored=2_000,  # which a query for the newest 100 of a type does not exhaust
    types=10,
    many=2_000,
    idle=20,
    latencies=200,
    subscribers=6,
    millions=9_000,
    millions_types=200,
    millions_requests=20,
    millions_queries=20,
    rsb=2_000,
    spark=2_000,
    spark_requests=20,
    small=True,
)

RECORDS: Final = ("disk", "memory", "idle-connection", "slow-subscriber")
EVENTER: Final = (*(i.name for i in FAN_OUTS), "relay")
"""Rows of ``eventer``."""

MILLIONS: Final = (
    "millions-first",
    "millions-last",
    "millions-slow-down",
    "millions-query-first",
    "millions-query",
    "millions-query-slow-down",
    "millions-memory",
    "millions-disk",
    "millions-start-up",
    "millions-recovery",
)
"""Rows of ``millions``: one run gives all of them."""

RSB: Final = ("rsb-store", "rsb-relay", "rsb-out")
"""Rows of ``rsb``."""

SPARK: Final = (
    "spark-plain",
    "spark-lake",
    "spark-lake-share",
    "spark-path",
    "spark-one-type",
    "spark-ingest",
    "spark-network",
    "spark-beside",
)
"""Rows of ``spark``: one run gives all of them."""

NAMES: Final = (
    *(i.name for i in ON_EMPTY + ON_FILLED),
    *(*RECORDS, *EVENTER, *MILLIONS, *RSB, *SPARK),
)
