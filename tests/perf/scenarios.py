"""What is measured over the wires: the table of scenarios, with the targets of the project."""

from collections.abc import Mapping
from typing import Final, NamedTuple

from tests.perf.client import Kind
from tests.perf.wires import WireName
from tests.perf.workload import EVENT_TYPES


class Scenario(NamedTuple):
    """One row of the tables; ``Job`` explains the names that are not explained here.

    Attributes:
        unit: ``ms``: the median time of a request counts, else the rate.
        target: how many times better than hat-* it is to be; 0: none.
        requests: to each of the sides that it is measured on, by name; so many that they take about
            a second, and hat-event's registrations two, so that it has written meanwhile.
        small: requests to each, where only the answers count.
    """

    name: str
    title: str
    unit: str
    target: float
    kind: Kind
    requests: Mapping[str, int]
    small: int
    in_flight: int = 1
    connections: int = 1
    events_per_request: int = 1
    wire: WireName = "mariner"


# requests of 100 come last: RocksDB goes on compacting what they stored
ON_EMPTY: Final = (
    Scenario(
        "ping",
        "ping, one in flight",
        "ms",
        3,
        "ping",
        {"ours": 5_000, "tls": 5_000, "hat": 5_000},
        20,
    ),
    Scenario(
        "ping-many",
        "ping, 64 in flight",
        "pings/s",
        3,
        "ping",
        {"ours": 150_000, "tls": 150_000, "hat": 30_000},
        200,
        in_flight=64,
    ),
    Scenario(
        "register-single",
        "register: 1 event, 64 in flight",
        "events/s",
        20,
        "register",
        {
            "ours": 50_000,
            "keyed": 50_000,
            "backwards": 50_000,
            "tls": 50_000,
            "hat": 4_000,
            "limit": 200_000,
            "redis": 100_000,
        },
        300,
        in_flight=64,
    ),
    Scenario(
        "register-latency",
        "register: 1 event, one in flight",
        "ms",
        2,
        "register",
        {"ours": 1_000, "hat": 300, "limit": 1_000, "redis": 1_000},
        50,
    ),
    Scenario(
        "eventer-register-single",
        "Eventer: 1 event, 64 in flight",
        "events/s",
        10,
        "register",
        {"ours": 40_000, "hat": 10_000},
        300,
        in_flight=64,
        wire="eventer",
    ),
    Scenario(
        "register-100",
        "register: 100 events, 64 in flight",
        "events/s",
        20,
        "register",
        {
            "ours": 2_500,
            "keyed": 2_500,
            "backwards": 2_500,
            "tls": 2_500,
            "hat": 250,
            "limit": 4_000,
            "redis": 1_500,
        },
        16,
        in_flight=64,
        events_per_request=100,
    ),
    Scenario(
        "eventer-register-100",
        "Eventer: 100 events, 64 in flight",
        "events/s",
        10,
        "register",
        {"ours": 1_500, "hat": 500},
        16,
        in_flight=64,
        events_per_request=100,
        wire="eventer",
    ),
)

CONNECTIONS: Final = tuple(
    Scenario(
        f"connections-{number}",
        f"register: 1 event, {max(64, number)} in flight, connections: {number}",
        "events/s",
        0,
        "register",
        {"ours": 512 * 60},
        512,
        in_flight=64,
        connections=number,
    )
    for number in (1, 8, 64, 512)
)
"""On another empty store: several clients send events of one type, in no order."""

ON_FILLED: Final = (
    Scenario(
        "timeseries-newest",
        "newest 100 of one type of 100",
        "ms",
        100,
        "newest",
        {"ours": 1_000, "hat": 8},
        5,
    ),
    Scenario(
        "timeseries-absent",
        "newest 100 of an absent type",
        "ms",
        1_000,
        "absent",
        {"ours": 5_000, "hat": 1},
        3,
    ),
    Scenario("latest", "latest of one type", "ms", 3, "latest", {"ours": 5_000, "hat": 1_000}, 20),
    Scenario(
        "eventer-timeseries-newest",
        "Eventer: newest 100 of one type",
        "ms",
        10,
        "newest",
        {"ours": 1_000, "hat": 8},
        5,
        wire="eventer",
    ),
    Scenario(
        "eventer-latest",
        "Eventer: latest of one type",
        "ms",
        0,
        "latest",
        {"ours": 5_000, "hat": 1_000},
        20,
        wire="eventer",
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
        writes: synced writes, of which the median counts.
        subscribers: that hear of the same events.
        millions: events that are stored in all when it is seen whether we slow down.
        millions_types: of so many types.
        millions_requests: registrations of 100 events that one client process makes.
        millions_queries: queries whose median counts.
        replayed: events that one client is told of from the first one on.
        rsb: RSB events that are stored; a twentieth of them for each latency.
        spark: events that Spark reads.
        spark_requests: registrations of 100 events beside it.
        form_events: registered in each form of a message.
        small: for correctness only: few requests, by clients that have no processes of their own.
    """

    rounds: int
    stored: int
    types: int
    many: int
    idle: int
    latencies: int
    writes: int
    subscribers: int
    millions: int
    millions_types: int
    millions_requests: int
    millions_queries: int
    replayed: int
    rsb: int
    spark: int
    spark_requests: int
    form_events: int
    small: bool


FULL: Final = Sizes(
    rounds=5,
    stored=100_000,
    types=EVENT_TYPES,
    many=1_000_000,
    idle=500,
    latencies=2_000,
    writes=500,
    subscribers=100,
    millions=10_000_000,
    millions_types=10_000,
    millions_requests=10_000,
    millions_queries=500,
    replayed=1_000_000,
    rsb=50_000,
    spark=5_000_000,
    spark_requests=10_000,
    form_events=100_000,
    small=False,
)
SMALL: Final = Sizes(
    rounds=1,
    stored=2_000,  # which a query for the newest 100 of a type does not exhaust
    types=10,
    many=2_000,
    idle=20,
    latencies=200,
    writes=5,
    subscribers=6,
    millions=9_000,
    millions_types=200,
    millions_requests=20,
    millions_queries=20,
    replayed=5_000,
    rsb=2_000,
    spark=2_000,
    spark_requests=20,
    form_events=2_000,
    small=True,
)
