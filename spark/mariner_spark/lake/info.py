"""Summary of a lake, from its manifest alone."""

import msgspec

from mariner_spark.lake import manifest
from mariner_spark.lake.compact import is_small
from mariner_spark.lake.files import Files
from mariner_spark.lake.manifest import Position


class LakeInfo(msgspec.Struct, frozen=True):
    """Summary of a lake; printed by ``mariner lake info --json``.

    Attributes:
        version: number of its last change.
        rows: number of events.
        bytes: size of its segments.
        segments: number of Parquet files.
        small_segments: number of segments that a compaction may merge.
        days: number of days with events.
        first: timestamp of the first event, microseconds since 1970; None: there is none.
        last: timestamp of the last event.
        value_path: path of the column ``value``.
        positions: server to its last event.
        replaced: number of files to be deleted.
    """

    version: int
    rows: int
    bytes: int
    segments: int
    small_segments: int
    days: int
    first: int | None
    last: int | None
    value_path: str
    positions: dict[int, Position]
    replaced: int


def info(path: str) -> LakeInfo:
    """Summarise a lake.

    Raises:
        LakeError: there is no lake, or its manifest cannot be read.
    """
    found = manifest.load(Files(path))
    segments = found.segments
    return LakeInfo(
        version=found.version,
        rows=sum(i.rows for i in segments),
        bytes=sum(i.bytes for i in segments),
        segments=len(segments),
        small_segments=sum(map(is_small, segments)),
        days=len({i.folder for i in segments}),
        first=min((i.first for i in segments), default=None),
        last=max((i.last for i in segments), default=None),
        value_path=found.value_path,
        positions=found.positions,
        replaced=len(found.replaced),
    )
