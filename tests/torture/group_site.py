"""Gateways of a group, their PostgreSQL, and the links between them, each to be failed at will."""

import asyncio
import contextlib
import os
import shutil
import signal
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Final

import psutil

from eventer_bridge.backends import rocksdb
from eventer_bridge.backends.rocksdb.compare import ext_compare
from eventer_bridge.backends.rocksdb.member import create_member
from eventer_bridge.backends.rocksdb.store import Store
from eventer_bridge.backends.rocksdb.verify import Finding, ext_verify
from eventer_bridge.group.dsn import PostgresqlConfig
from eventer_bridge.group.postgresql import PostgresqlLog, create_group
from tests.support import proxy
from tests.support.gateway import Gateway, gateway
from tests.support.postgresql import OWNER, Cluster
from tests.support.proxy import Proxy
from tests.torture.ledger import OURS, SERVER_ID, ViolationError
from tests.torture.shifted_clock import CLOCK_FILE, write_offset

PROGRAM: str = "tests.torture.shifted_clock"

MARK: Final = ("mark",)
KEPT_MARKS: Final = 20

RETENTION: Final = [
    {"subscriptions": [[*OURS]], "max_entries": 10_000_000},
    {"subscriptions": [[*MARK]], "max_entries": KEPT_MARKS},
]

STREAMING_TIMEOUT_S: Final = 60.0
"""Until all standbys follow again."""

READ_BYTES: Final = 1 << 30


class Machine:
    """A gateway of a group, with its store, its clock, and a link to each PostgreSQL.

    Attributes:
        port: where it listens, each time that it is started; 0: it never was.
        running: its process; None: it has none.
        links: to the servers of the cluster, in their order.
    """

    def __init__(self, directory: Path, cluster: Cluster, core: dict[str, object]) -> None:
        self.name = directory.name
        self.port = 0
        self.running: Gateway | None = None
        self.links: list[Proxy] = [proxy.create(node.port) for node in cluster.nodes]
        self.directory = directory
        self.store = directory / "events"
        self._core = core
        self._clock = directory / "clock"
        self._process = contextlib.AsyncExitStack()
        directory.mkdir()
        self.shift(0.0)

    def shift(self, seconds: float) -> None:
        """Set its clock wrong."""
        write_offset(self._clock, seconds)

    async def start(self) -> None:
        """Start it, and wait until it listens."""
        hosts = ",".join(f"127.0.0.1:{link.port}" for link in self.links)
        log = {"type": "postgresql", "dsn": f"postgresql://{OWNER}@{hosts}/postgres"}
        group = {**self._core, "log": log, "member": self.name}
        backend = {"type": "rocksdb", "path": str(self.store), "retention": RETENTION}
        self.running = await self._process.enter_async_context(
            gateway(
                self.directory,
                core={"backend": backend, "group": group},
                port=self.port,
                program=PROGRAM,
                environment={CLOCK_FILE: str(self._clock)},
            )
        )
        self.port = self.running.port

    async def end(self, number: signal.Signals) -> float:
        """Kill it, or have it stop; returns when that began."""
        since_s = time.monotonic()
        if self.running is not None:
            process = self.running.process
            self.signal(number)
            self.running = None
            await process.wait()
            await self._process.aclose()
            log = self.directory / "gateway.log"
            log.rename(log.with_name(f"{int(since_s * 1_000)}.log"))
        return since_s

    def signal(self, number: signal.Signals) -> None:
        """Send its process a signal."""
        assert self.running is not None
        os.kill(self.running.pid, number)

    @property
    def memory_bytes(self) -> int:
        """Of its process."""
        assert self.running is not None
        return int(psutil.Process(self.running.pid).memory_info().rss)

    async def close(self) -> None:
        """Stop it, and its links."""
        if self.running is not None:
            with contextlib.suppress(ProcessLookupError):
                self.signal(signal.SIGCONT)
            await self._process.aclose()
        for link in self.links:
            await link.async_close()


class GroupSite:
    """See the module. Made by :func:`group_site`.

    Attributes:
        machines: by name.
        takeover_s: of the configuration.
    """

    def __init__(self, cluster: Cluster, directory: Path, n_machines: int, takeover_s: float):
        self.cluster = cluster
        self.directory = directory
        self.takeover_s = takeover_s
        self.name = directory.name
        directory.mkdir()
        core: dict[str, object] = {"name": self.name, "takeover_s": takeover_s}
        names = [chr(ord("a") + i) for i in range(n_machines)]
        self.machines = {i: Machine(directory / i, cluster, core) for i in names}
        self._config = PostgresqlConfig(cluster.dsn())
        self._epochs: dict[int, tuple[int, int]] = {}

    async def begin(self) -> None:
        """Make the group, and start all."""
        await create_group(self._config, self.name, SERVER_ID, 10.0, unreplicated=False)
        await asyncio.gather(*(i.start() for i in self.machines.values()))

    async def sql(self, statement: str) -> str:
        """Ask the primary about this group, which is ``{its}`` there."""
        text = statement.format(its=f"name = '{self.name}'")
        return await asyncio.to_thread(self.cluster.primary.sql, text)

    async def until_streaming(self) -> None:
        """Wait until all standbys follow the primary."""
        async with asyncio.timeout(STREAMING_TIMEOUT_S):
            count = "SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'"
            while int(await self.sql(count)) < len(self.cluster.nodes) - 1:
                await asyncio.sleep(0.05)

    # --- what must be so ------------------------------------------------------------------

    async def check_epochs(self) -> None:
        """Check that positions have no gaps, and that no old epoch wrote behind a later one.

        What was seen before is compared, although the log was trimmed since.
        """
        spans = await self.sql(
            "SELECT epoch, min(position), max(position), count(*) FROM mariner.records"
            " WHERE {its} AND n_parts IS NOT NULL GROUP BY epoch ORDER BY epoch"
        )
        last = None
        for line in spans.splitlines():
            epoch, begin, end, count = map(int, line.split("|"))
            if count != end - begin + 1 or (last is not None and begin != last + 1):
                raise ViolationError(f"records are missing, or of an old epoch: {spans}")
            seen = self._epochs.get(epoch)
            if seen is not None and max(self._epochs) > epoch and seen[1] < end:
                raise ViolationError(f"epoch {epoch} wrote {end} after another one had begun")
            last = end
            self._epochs[epoch] = begin, end

    async def check_equal(self) -> int:
        """Compare all stores row for row, and verify one; returns how many rows each has.

        They are copied while their gateways run; the copies apply the rest of the log.
        """
        copies = [self.directory / f"copy-{name}" for name in self.machines]
        log = PostgresqlLog(self._config, self.name, 10.0)
        try:
            for machine, copy in zip(self.machines.values(), copies, strict=True):
                await asyncio.to_thread(rocksdb.checkpoint, machine.store, copy)
            state = await log.state()
            for copy in copies:
                backend = await create_member(copy)
                async with backend:
                    records = await log.read(backend.position, state.position, READ_BYTES)
                    for i in records:
                        await backend.apply(state.group_id, i.position, i.epoch, i.parts)
                    if backend.position != state.position:
                        raise ViolationError(f"{copy.name}: {backend.position} of {state.position}")
            return await asyncio.to_thread(_ext_compare, copies)
        finally:
            await log.async_close()
            for copy in copies:
                shutil.rmtree(copy, ignore_errors=True)


def _ext_compare(paths: Sequence[Path]) -> int:
    stores = [Store(path, read_only=True) for path in paths]
    found: list[Finding] = []
    n_rows = 0
    try:
        for other in stores[1:]:
            n_rows = ext_compare(stores[0], other, found.append)
        ext_verify(stores[0], found.append)
    finally:
        for store in stores:
            store.ext_close()
    if found:
        raise ViolationError(f"stores differ, or are damaged: {found[:5]}, {len(found)} findings")
    return n_rows


@contextlib.asynccontextmanager
async def group_site(
    cluster: Cluster, directory: Path, n_machines: int, takeover_s: float
) -> AsyncIterator[GroupSite]:
    """A new group of gateways that run, in a folder that is named as the group."""
    site = GroupSite(cluster, directory, n_machines, takeover_s)
    try:
        await site.begin()
        yield site
    finally:
        for machine in site.machines.values():
            await machine.close()
