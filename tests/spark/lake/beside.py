"""Writers, compaction, vacuum and readers of a lake, all at the same time."""

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

from mariner_spark.errors import LakeError
from mariner_spark.lake import maintenance
from mariner_spark.lake.maintenance import compact
from tests.spark.lake.oracle import check_rollups
from tests.spark.lake.support import append, opened, stored
from tests.spark.support import plain_events, rows_of

SIZE = 10
"""Events of a commit, which are of one server."""


class Readers:
    """What they have seen."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.most = self.reads = 0

    def read(self) -> None:
        """Read all, and check that it is whole commits, each event once, and none is gone."""
        seen = self.most
        rows = opened(self._root).to_pyarrow_table(columns=["server", "session", "instance"])
        ids = sorted(zip(*rows.to_pydict().values(), strict=True))
        expected = [
            (server, 1 + i // 10, 1 + i % 10)
            for server in (1, 2)
            for i in range(sum(found[0] == server for found in ids))
        ]
        assert ids == expected
        assert len(ids) % SIZE == 0
        assert len(ids) >= seen
        self.most = max(self.most, len(ids))
        self.reads += 1


def work_beside(root: Path, seconds: float) -> Readers:
    """Add events of two servers, each by two writers at once; compact, twice at once; read.

    Orphans appear all the time, and are old enough for the vacuum.
    """
    path, is_over, errors = str(root), threading.Event(), list[BaseException]()
    readers, n_written = Readers(root), dict.fromkeys((1, 2), 0)
    append(root, plain_events(SIZE, server=1))

    def ingest(server: int) -> None:
        n = n_written[server] + SIZE
        try:
            append(root, plain_events(n, server=server))
        except LakeError as e:
            assert "another ingestion added events of server" in str(e)  # noqa: PT017
        else:
            n_written[server] = max(n, n_written[server])

    def maintain(is_by_type: bool) -> None:
        orphan = root / "events" / "date=2025-01-01" / f"orphan-{time.monotonic_ns()}.parquet"
        orphan.write_bytes(b"")
        os.utime(orphan, (0, 0))
        maintenance.update(path)
        compact(path, is_by_type=is_by_type)
        assert not orphan.exists()

    def repeat(work: Callable[[], object]) -> None:
        try:
            while not is_over.is_set():
                work()
        except BaseException as e:
            errors.append(e)
            raise

    work: list[Callable[[], object]] = [
        *(lambda server=i: ingest(server) for i in (1, 1, 2, 2)),
        *(lambda by_type=i: maintain(by_type) for i in (False, True)),
        *(readers.read, readers.read),
    ]
    threads = [threading.Thread(target=repeat, args=(i,)) for i in work]
    for thread in threads:
        thread.start()
    is_over.wait(seconds)
    is_over.set()
    for thread in threads:
        thread.join()
    assert errors == []
    maintain(is_by_type=False)
    both = [plain_events(n, server=server) for server, n in n_written.items()]
    assert stored(root) == rows_of([event for events in both for event in events])
    check_rollups(root)
    return readers
