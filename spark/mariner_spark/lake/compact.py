"""Compaction: merges small segments into large ones, and deletes unused files.

Consecutive segments of one day are read, sorted and written as one, up to ``limits.SEGMENT_ROWS``
events and ``limits.SEGMENT_BYTES`` of them in memory; then the manifest replaces them by that one,
in one step. It needs no Spark, and its memory does not grow with the lake. It can run beside
streams, readers, and other compactions: the later of two finds its segments replaced, and discards
its work. Killed at any moment, it leaves a consistent lake, and at most one file to be swept.

Replaced files are kept for a grace period, because a reader chooses its files when its query
starts. Files that were never in the manifest (of failed or killed tasks) are deleted when they are
older than that: they are first listed as replaced, so that no stream can still commit them.
"""

import re
import time
from collections.abc import Callable, Iterator
from itertools import groupby
from typing import Final

import msgspec
import pyarrow as pa

from mariner_spark import limits
from mariner_spark.errors import LakeError
from mariner_spark.lake import manifest, segments
from mariner_spark.lake.files import TEMPORARY, Files
from mariner_spark.lake.manifest import Manifest, Replaced, Segment

_LAKE_FILE: Final = re.compile(
    rf"date=\d{{4}}-\d{{2}}-\d{{2}}/({TEMPORARY}[0-9a-f]{{32}}-)?events-[0-9a-f]{{32}}\.parquet"
    rf"|{TEMPORARY}[0-9a-f]{{32}}-{re.escape(manifest.MANIFEST)}"
)
"""Names of files of a lake: no other file is ever deleted."""


class Compacted(msgspec.Struct, frozen=True):
    """Result of a compaction.

    Attributes:
        replaced: number of replaced segments.
        written: number of segments that replace them.
        deleted: number of deleted files.
    """

    replaced: int
    written: int
    deleted: int


def compact(
    path: str,
    *,
    grace_s: float = limits.GRACE_S,
    on_progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> Compacted:
    """Compact a lake and delete unused files.

    Args:
        path: the lake.
        grace_s: how long replaced files are kept: longer than the longest query.
        on_progress: called with the number of segments done, and of all.

    Raises:
        LakeError: there is no lake, or it cannot be read or written. If segments cannot be
            merged, the others are compacted before it is raised.
    """
    files = Files(path)
    groups = plan(manifest.load(files))
    total = sum(map(len, groups))
    done = replaced = written = 0
    failure: LakeError | None = None
    for group in groups:
        on_progress(done, total)
        done += len(group)
        try:
            new = _merge(files, group)
        except LakeError as e:
            failure = failure or e
            continue
        if new and _replace(files, group, new):
            replaced += len(group)
            written += len(new)
    on_progress(done, total)
    deleted = sweep(files, grace_s)
    if failure is not None:
        raise failure
    return Compacted(replaced, written, deleted)


def plan(found: Manifest) -> list[list[Segment]]:
    """Groups of segments to be merged into one each: consecutive ones of one day."""
    groups: list[list[Segment]] = []
    small = [i for i in found.segments if is_small(i)]
    # the manifest has them in order of time
    for _, members in groupby(sorted(small, key=lambda i: i.folder), lambda i: i.folder):
        groups += _fill(members)
    return groups


def is_small(segment: Segment) -> bool:
    """Whether a compaction merges a segment, if there are others of its day."""
    return segment.rows < limits.LARGE_ROWS and segment.raw_bytes < limits.LARGE_BYTES


def sweep(files: Files, grace_s: float) -> int:
    """Delete files that are not part of the lake, after a grace period.

    Args:
        files: the lake.
        grace_s: how long they are kept after they were replaced or, if they were never in the
            manifest, after they were written.

    Returns:
        Number of deleted files.

    Raises:
        LakeError: as :func:`compact`.
    """
    deadline_s = time.time() - grace_s
    stored = files.walk()

    def mark(old: Manifest) -> Manifest:
        known = {i.path for i in old.segments} | {i.path for i in old.replaced}
        orphans = tuple(
            Replaced(i.path, i.modified_s)
            for i in stored
            if i.modified_s < deadline_s and i.path not in known and _LAKE_FILE.fullmatch(i.path)
        )
        return old.changed(replaced=old.replaced + orphans) if orphans else old

    marked = manifest.update(files, mark)
    expired = {
        i.path for i in marked.replaced if i.at_s < deadline_s and _LAKE_FILE.fullmatch(i.path)
    }
    if not expired:
        return 0
    for path in expired:
        files.delete(path)

    def forget(old: Manifest) -> Manifest:
        return old.changed(replaced=tuple(i for i in old.replaced if i.path not in expired))

    manifest.update(files, forget)
    return len(expired)


def _fill(members: Iterator[Segment]) -> list[list[Segment]]:
    """Group segments that fit into one; groups of one are left out."""
    groups: list[list[Segment]] = []
    rows = raw_bytes = 0
    for segment in members:
        rows += segment.rows
        raw_bytes += segment.raw_bytes
        if not groups or rows > limits.SEGMENT_ROWS or raw_bytes > limits.SEGMENT_BYTES:
            groups.append([])
            rows, raw_bytes = segment.rows, segment.raw_bytes
        groups[-1].append(segment)
    return [i for i in groups if len(i) > 1]


def _merge(files: Files, group: list[Segment]) -> list[Segment]:
    """Merge segments; returns none if another compaction replaced them.

    Raises:
        LakeError: they cannot be read, or the merged one cannot be written.
    """
    if not {i.path for i in group} <= {i.path for i in manifest.load(files).segments}:
        return []
    try:
        return segments.write(files, segments.read(files, group))
    except pa.ArrowException as e:
        names = f"{group[0].path} to {group[-1].path}"
        raise LakeError(f"{files}: {names}: cannot be made into one: {e}") from e


def _replace(files: Files, group: list[Segment], merged: list[Segment]) -> bool:
    """Replace segments by the merged ones; false if another compaction was faster."""
    paths = frozenset(i.path for i in group)
    is_replaced = False

    def change(old: Manifest) -> Manifest:
        nonlocal is_replaced
        is_replaced = paths <= {i.path for i in old.segments}
        if not is_replaced:
            return old
        now_s = time.time()
        replaced = old.replaced + tuple(Replaced(i.path, now_s) for i in group)
        return old.changed(added=tuple(merged), removed=paths, replaced=replaced)

    manifest.update(files, change)
    if not is_replaced:
        segments.discard(files, merged)
    return is_replaced
