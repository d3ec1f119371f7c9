"""As ``single``, with a pair of gateways, each with a Monitor Server: everything is done to both.

Some readers use the one that is OPERATIONAL, and one hops between the two, whichever that is.
"""

import random
from pathlib import Path
from typing import Any

from tests.support.hat_peers import monitor_server
from tests.support.pair import core
from tests.torture.histories import faults
from tests.torture.histories.record import History
from tests.torture.histories.servers import Server, closing
from tests.torture.histories.single import judge, read_rows, work
from tests.torture.report import Progress


async def run(directory: Path, rounds: int, chance: random.Random, progress: Progress) -> str:
    """Do ``rounds`` times several things to a pair of gateways.

    Raises:
        ViolationError: the history is not one that docs/delivery.md allows.
    """
    history = History()
    paths = {name: directory / name for name in ("monitor1", "monitor2", "1", "2")}
    for path in paths.values():
        path.mkdir()
    async with (
        monitor_server(paths["monitor1"], rank=1) as first,
        monitor_server(paths["monitor2"], rank=2, master_port=first.master_port) as second,
    ):
        servers = [
            Server(paths[str(n)], n, _core(n, monitor.port, paths[str(n)]), history)
            for n, monitor in enumerate((first, second), 1)
        ]
        async with closing(*servers):
            known = faults.available(faults.OF_DISKS)
            await work(servers, history, chance, known, (rounds, progress))
            for n in (1, 2):
                history.note_stored(n, await read_rows(servers[0].port, n))
    return judge(history, rounds)


def _core(number: int, monitor_port: int, path: Path) -> dict[str, Any]:
    backend = {"type": "rocksdb", "path": str(path / "events")}
    return {**core(number, monitor_port), "backend": backend}
