"""RSB participants around our gateway: rate into the durable store, and latency.

Ours only: hat-event does not speak RSB.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal

from tests.perf.report import Bound, Measure, Sample
from tests.perf.rsb_client import SCOPE, SCOPE_OUT, RsbJob
from tests.perf.scenarios import Sizes
from tests.perf.sides import OURS, do
from tests.support.gateway import gateway

_KINDS: Final[dict[str, Literal["store", "relay", "out"]]] = {
    "rsb-store": "store",
    "rsb-relay": "relay",
    "rsb-out": "out",
}
CORE: Final[dict[str, Any]] = {
    "rsb": {
        "host": "127.0.0.1",
        "port": 0,
        "mode": "server",
        "scopes_in": [str(SCOPE)],
        "scopes_out": [str(SCOPE_OUT)],
    }
}


def measures(_: Sizes) -> list[Measure]:
    """The rows, without values."""
    return [
        Measure(
            "rsb-store",
            "RSB, 100 bytes, one connection",
            "events/s",
            20_000,
            Bound.AT_LEAST,
        ),
        Measure("rsb-relay", "RSB to RSB, 1,000/s, p99", "ms", 5, Bound.AT_MOST),
        Measure("rsb-out", "Mariner to RSB, 1,000/s, p99", "ms", 5, Bound.AT_MOST),
    ]


async def run(directory: Path, sizes: Sizes, wanted: Mapping[str, Measure]) -> None:
    """Measure, and add a value of each round to each of the wanted rows.

    Raises:
        ChildError: the gateway or a client failed; what came back was not right.
    """
    for number in range(sizes.rounds):
        for name, measure in wanted.items():
            path = directory / f"{name}-{number}"
            path.mkdir()
            measure.add(OURS.name, await _measure(path, sizes, _KINDS[name]))


async def _measure(directory: Path, sizes: Sizes, kind: Literal["store", "relay", "out"]) -> Sample:
    async with gateway(directory, http=True, core=CORE) as server:
        assert server.rsb_port is not None
        assert server.http_port is not None
        job = RsbJob(
            server.host,
            server.rsb_port,
            server.port,
            server.http_port,
            kind,
            events=sizes.rsb if kind == "store" else sizes.rsb // 20,
            warm_up=sizes.rsb // 40,
            pids=[server.pid],
        )
        outcome = await do(job, sizes)
    value = job.events / outcome.seconds if kind == "store" else outcome.p99_s * 1_000
    return Sample(value, outcome.server_cpu_s / job.events * 1e6 if kind == "store" else None)
