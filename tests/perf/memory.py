"""Memory of a server: with many stored events, and for each connection that is idle."""

from collections.abc import Mapping
from pathlib import Path

import psutil

from tests.perf.client import Job
from tests.perf.report import Bound, Measure
from tests.perf.scenarios import Sizes
from tests.perf.sides import HAT, OURS, do, fill, new_directory


def measures(sizes: Sizes) -> list[Measure]:
    """The rows, without values."""
    many, idle = f"{sizes.many:,} stored events", f"an idle connection of {sizes.idle}"
    sides = (OURS.name, HAT.name)
    return [
        Measure("memory", f"RSS with {many}", "MB", 300, Bound.AT_MOST),
        Measure("idle-connection", f"RSS of {idle}", "kB", 30, Bound.AT_MOST, sides),
    ]


async def run(directory: Path, sizes: Sizes, wanted: Mapping[str, Measure]) -> None:
    """Measure, and add a value to each of the wanted rows.

    Raises:
        ChildError: a server or a client failed; an answer was not right.
    """
    if "memory" in wanted:  # hat-event would need some minutes to store as many
        async with OURS.start(new_directory(directory, OURS, "many")) as server:
            await fill(server, sizes, sizes.many)
            rss_bytes = sum(psutil.Process(pid).memory_info().rss for pid in server.pids)
        wanted["memory"].add(OURS.name, rss_bytes / 1e6)
    if "idle-connection" in wanted:
        for side in (OURS, HAT):
            async with side.start(new_directory(directory, side, "idle")) as server:
                job = Job(
                    server.host,
                    server.port,
                    "idle",
                    requests=sizes.idle,
                    warm_up=sizes.idle // 10,
                    pids=server.pids,
                )
                grown_bytes = (await do(job, sizes)).bytes_per_connection
            wanted["idle-connection"].add(side.name, grown_bytes / 1e3)
