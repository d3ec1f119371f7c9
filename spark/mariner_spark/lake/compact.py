"""Compaction: many small segments become few large ones; what nobody needs is deleted.

Neighbours in time of one day are read, sorted and written as one segment, up to
``limits.SEGMENT_ROWS`` events and ``limits.SEGMENT_BYTES`` of them in memory; then the manifest
names that one in their place, in one step. It needs no Spark, and no more memory however large
the lake is. It can run beside streams, readers, and other compactions: who comes second finds
its segments replaced, and drops its work. Killed at any moment, it leaves the lake whole, and at
most a file to be swept.

Files that were replaced are kept for a grace, because a reader has chosen its files when its
query begins. Files that the manifest never named (of tasks that failed, or were killed) are
deleted when they are older than that: first the manifest says so, so that no stream can make
such a file part of the lake any more.
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

_OURS: Final = re.compile(
    rf"date=\d{{4}}-\d{{2}}-\d{{2}}/({TEMPORARY}[0-9a-f]{{32}}-)?events-[0-9a-f]{{32}}\.parquet"
    rf"|{TEMPORARY}[0-9a-f]{{32}}-{re.escape(manifest.MANIFEST)}"
)
"""Files that we write: no other is ever deleted."""


class Compacted(msgspec.Struct, frozen=True):
    """What a compaction did.

    Attributes:
        replaced: segments that were replaced.
        made: segments that replace them.
        deleted: files that were deleted.
    """

    replaced: int
    made: int
    deleted: int


def compact(
    path: str,
    *,
    grace_s: float = limits.GRACE_S,
    on_progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> Compacted:
    """Compact a lake and delete what nobody needs any more.

    Args:
        path: the lake.
        grace_s: how long files are kept after they were replaced: longer than any reader
            works with the files that it chose.
        on_progress: called with the segments that were looked at, and all of them.

    Raises:
        LakeError: there is no lake, or it cannot be read or written. Where segments cannot be
            made into one, the others are compacted before it is raised.
    """
    files = Files(path)
    groups = plan(manifest.load(files))
    total = sum(map(len, groups))
    done = replaced = made = 0
    failure: LakeError | None = None
    for group in groups:
        on_progress(done, total)
        done += len(group)
        try:
            new = _combine(files, group)
        except LakeError as e:
            failure = failure or e
            continue
        if new and _replace(files, group, new):
            replaced += len(group)
            made += len(new)
    on_progress(done, total)
    deleted = sweep(files, grace_s)
    if failure is not None:
        raise failure
    return Compacted(replaced, made, deleted)


def plan(found: Manifest) -> list[list[Segment]]:
    """Groups of segments that are to become one each: neighbours in time, of one day."""
    groups: list[list[Segment]] = []
    small = [i for i in found.segments if is_small(i)]
    # in the manifest they are by time
    for _, members in groupby(sorted(small, key=lambda i: i.folder), lambda i: i.folder):
        groups += _fill(members)
    return groups


def is_small(segment: Segment) -> bool:
    """Whether a compaction makes a larger one of a segment, where it finds others."""
    return segment.rows < limits.LARGE_ROWS and segment.raw_bytes < limits.LARGE_BYTES


def sweep(files: Files, grace_s: float) -> int:
    """Delete files that are no part of the lake, after a grace.

    Args:
        files: the lake.
        grace_s: how long they are kept since they were replaced or, if the manifest never
            named them, since they were written.

    Returns:
        How many were deleted.

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
            if i.modified_s < deadline_s and i.path not in known and _OURS.fullmatch(i.path)
        )
        return old.changed(replaced=old.replaced + orphans) if orphans else old

    marked = manifest.update(files, mark)
    over = {i.path for i in marked.replaced if i.at_s < deadline_s and _OURS.fullmatch(i.path)}
    if not over:
        return 0
    for path in over:
        files.delete(path)

    def forget(old: Manifest) -> Manifest:
        return old.changed(replaced=tuple(i for i in old.replaced if i.path not in over))

    manifest.update(files, forget)
    return len(over)


def _fill(members: Iterator[Segment]) -> list[list[Segment]]:
    """Cut segments into groups that fit into one; those that would stay alone are left out."""
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


def _combine(files: Files, group: list[Segment]) -> list[Segment]:
    """What some segments make together; nothing where another replaced them.

    Raises:
        LakeError: they cannot be read, or what they make cannot be written.
    """
    if not {i.path for i in group} <= {i.path for i in manifest.load(files).segments}:
        return []
    try:
        return segments.write(files, segments.read(files, group))
    except pa.ArrowException as e:
        names = f"{group[0].path} to {group[-1].path}"
        raise LakeError(f"{files}: {names}: cannot be made into one: {e}") from e


def _replace(files: Files, group: list[Segment], made: list[Segment]) -> bool:
    """Replace segments by what they make together; not where another was faster."""
    paths = frozenset(i.path for i in group)
    is_ours = False

    def change(old: Manifest) -> Manifest:
        nonlocal is_ours
        is_ours = paths <= {i.path for i in old.segments}
        if not is_ours:
            return old
        now_s = time.time()
        replaced = old.replaced + tuple(Replaced(i.path, now_s) for i in group)
        return old.changed(added=tuple(made), removed=paths, replaced=replaced)

    manifest.update(files, change)
    if not is_ours:
        segments.discard(files, made)
    return is_ours
