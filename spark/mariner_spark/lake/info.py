"""What is in a lake, told by its manifest alone."""

import msgspec

from mariner_spark.lake import manifest
from mariner_spark.lake.compact import is_small
from mariner_spark.lake.files import Files
from mariner_spark.lake.manifest import Position


class LakeInfo(msgspec.Struct, frozen=True):
    """What is in a lake.

    Attributes:
        version: number of its last change.
        rows: events.
        bytes: of its segments.
        segments: Parquet files.
        small_segments: those that a compaction may make fewer.
        days: days that have events.
        first: timestamp of the first event, microseconds since 1970; None: there is none.
        last: timestamp of the last event.
        value_path: where the column ``value`` comes from.
        positions: server to session and instance of its last event.
        replaced: files that wait to be deleted.
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
    """What is in a lake.

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
