"""The manifest of a lake: its files, and the offset of each server.

Every change of the lake replaces ``_manifest.json`` as a whole, under the lock. A reader gets a
consistent lake from it, with every event once. It has the id of each server's last event in the
lake: servers allocate ids in ascending order and streams keep the order, so every event up to that
id is in the lake already.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Final, TypeAlias

import msgspec

from mariner_spark import limits
from mariner_spark.errors import LakeError, MarinerSparkError, NoLakeError
from mariner_spark.lake.files import Files
from mariner_spark.lake.lock import locked
from mariner_spark.local_path import refuse_within_store
from mariner_spark.values import DEFAULT_PATH

MANIFEST: Final = "_manifest.json"
FORMAT: Final = 1

SegmentPath: TypeAlias = Annotated[
    str, msgspec.Meta(pattern=r"^date=\d{4}-\d{2}-\d{2}/events-[0-9a-f]{32}\.parquet\Z")
]


class HistoryStart(msgspec.Struct, frozen=True, order=True):
    """Start of a history of a server (``eventer_bridge.backends.history``).

    Attributes:
        first: its first session.
        id: its name.
    """

    first: int
    id: str


class Position(msgspec.Struct, frozen=True):
    """Offset of a server: its last event in the lake.

    Attributes:
        session: of the event's id.
        instance: of the event's id.
        timestamp: of the event, microseconds since 1970: reveals another store of a server with
            the same id; None: the manifest is of an earlier version.
        history: of the event, if the server reported one.
    """

    session: int
    instance: int
    timestamp: int | None = None
    history: HistoryStart | None = None

    @property
    def offset(self) -> tuple[int, int]:
        """Session and instance, by which positions of a server are ordered."""
        return self.session, self.instance

    @property
    def history_id(self) -> str | None:
        """Name of the history."""
        return None if self.history is None else self.history.id


class Segment(msgspec.Struct, frozen=True):
    """A Parquet file of the lake: events of one day (UTC), sorted by time.

    Attributes:
        path: below the root of the lake.
        rows: number of events.
        bytes: size of the file.
        first: timestamp of the first event, microseconds since 1970.
        last: timestamp of the last event.
        raw_bytes: size of its events in memory as Arrow data, at most. The default, for a
            manifest of an earlier version, is too large for a compaction.
    """

    path: SegmentPath
    rows: int
    bytes: int
    first: int
    last: int
    raw_bytes: int = limits.SEGMENT_BYTES

    @property
    def folder(self) -> str:
        """Folder of its day: ``date=YYYY-MM-DD``."""
        return self.path.partition("/")[0]


class Replaced(msgspec.Struct, frozen=True):
    """A file that is no longer part of the lake, but may still be read.

    Attributes:
        path: below the root of the lake.
        at_s: when it was replaced, seconds since 1970.
    """

    path: str
    at_s: float


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """Contents of a lake.

    Attributes:
        format: version of this layout.
        version: number of changes of the lake.
        value_path: path in JSON payloads of the column ``value``.
        segments: the files of the lake, by time.
        positions: server to its last event in the lake.
        queries: id of a stream query to its last batch in the lake; the last
            ``limits.LAKE_QUERIES`` queries.
        replaced: files to be deleted when no reader can be using them.
    """

    format: int = FORMAT
    version: int = 0
    value_path: str = DEFAULT_PATH
    segments: tuple[Segment, ...] = ()
    positions: dict[int, Position] = {}
    queries: dict[str, int] = {}
    replaced: tuple[Replaced, ...] = ()

    def changed(
        self,
        *,
        added: tuple[Segment, ...] = (),
        removed: frozenset[str] = frozenset(),
        replaced: tuple[Replaced, ...] | None = None,
        positions: dict[int, Position] | None = None,
        queries: dict[str, int] | None = None,
    ) -> "Manifest":
        """A copy with segments added and removed, and with the other arguments replaced."""
        segments = [i for i in self.segments if i.path not in removed]
        segments += added
        segments.sort(key=lambda i: (i.first, i.last, i.path))
        return Manifest(
            version=self.version,
            value_path=self.value_path,
            segments=tuple(segments),
            positions=self.positions if positions is None else positions,
            queries=self.queries if queries is None else queries,
            replaced=self.replaced if replaced is None else replaced,
        )


def with_values(files: Files, old: Manifest, value_path: str) -> Manifest:
    """A copy with this path of values.

    Args:
        files: the lake, for the text of the error.
        old: the manifest.
        value_path: the path.

    Raises:
        LakeError: it has values from another path.
    """
    if old.value_path == value_path:
        return old
    if old.segments:
        raise LakeError(f"{files}: its values are those of {old.value_path}, not of {value_path}")
    return msgspec.structs.replace(old, value_path=value_path)


_decode: Final = msgspec.json.Decoder(Manifest).decode
_encode: Final = msgspec.json.Encoder().encode


def find(files: Files) -> Manifest | None:
    """The manifest; None: there is no lake.

    Raises:
        LakeError: it is damaged, has a newer format, or cannot be read.
    """
    data = files.read(MANIFEST, limits.MANIFEST_BYTES)
    if data is None:
        return None
    try:
        manifest = _decode(data)
    except (msgspec.DecodeError, UnicodeError) as e:
        raise LakeError(f"{files}/{MANIFEST}: not a manifest: {e}") from e
    if manifest.format != FORMAT:
        raise LakeError(
            f"{files}/{MANIFEST}: format {manifest.format}, this version knows {FORMAT}"
        )
    return manifest


def load(files: Files) -> Manifest:
    """The manifest.

    Raises:
        NoLakeError: there is no lake.
        LakeError: as :func:`find`.
    """
    manifest = find(files)
    if manifest is None:
        raise NoLakeError(f"{files}: no lake: it has no {MANIFEST}")
    return manifest


def check_location(files: Files) -> None:
    """Refuse to create a lake inside an event store.

    Raises:
        LakeError: it would be inside one; or as :func:`find`.
    """
    if not files.is_local or find(files) is not None:
        return
    try:
        refuse_within_store(Path(files.base, MANIFEST))
    except MarinerSparkError as e:
        raise LakeError(str(e)) from e


def update(files: Files, change: Callable[[Manifest], Manifest]) -> Manifest:
    """Change the manifest of a lake; creates the lake if there is none.

    Args:
        files: the lake.
        change: returns the new manifest, given the old one; if it returns the old one, nothing
            is written.

    Returns:
        The new manifest.

    Raises:
        LakeError: as :func:`find`, or it cannot be written, or ``change`` raised it.
    """
    with locked(files) as check:
        found = find(files)
        old = Manifest() if found is None else found
        new = change(old)
        if new is old and found is not None:
            return old
        new = msgspec.structs.replace(new, version=old.version + 1)
        check()
        with files.create(MANIFEST) as file:
            file.write(_encode(new))
    return new
