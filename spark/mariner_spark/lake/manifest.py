"""The manifest of a lake: which files are the lake, and what of each server is in it.

``_manifest.json`` is replaced as a whole, under the lock, by every change of the lake. Who
reads it has a lake that is whole, with every event once, at that moment. It holds for each
server the id of its last event that is in the lake: a server gives ids in ascending order and
streams keep it, so what is not behind that id is in the lake already.
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


class Begun(msgspec.Struct, frozen=True, order=True):
    """A history of a server (``eventer_bridge.backends.history``).

    Attributes:
        first: session that it begins with.
        id: its name.
    """

    first: int
    id: str


class Position(msgspec.Struct, frozen=True):
    """An event of a server.

    Attributes:
        session: of its id.
        instance: of its id.
        timestamp: of it, microseconds since 1970, by which another store of a server with the
            same id is known; None: a manifest of an earlier version does not tell.
        history: that it is of, as far as that was told.
    """

    session: int
    instance: int
    timestamp: int | None = None
    history: Begun | None = None

    @property
    def place(self) -> tuple[int, int]:
        """What positions of a server are ordered by."""
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
        bytes: its size.
        first: timestamp of the first event, microseconds since 1970.
        last: timestamp of the last event.
        raw_bytes: what its events take in memory as Arrow data, at most. Where a manifest does
            not say, it is too much for a compaction.
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
    """A file that is no part of the lake any more, but may still be read.

    Attributes:
        path: below the root of the lake.
        at_s: since when, seconds since 1970.
    """

    path: str
    at_s: float


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What a lake is.

    Attributes:
        format: version of this layout.
        version: number of the change that made it, ascending.
        value_path: where in JSON payloads the column ``value`` comes from.
        segments: the files of the lake, by time.
        positions: server to the last of its events that is in the lake.
        queries: id of a stream query to the last of its batches that is in the lake; the
            last ``limits.LAKE_QUERIES`` queries.
        replaced: files to be deleted when nobody reads them any more.
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
        """The same with other segments, and with what else is given in place of its own."""
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
    """The same with values of a path, as long as it holds none of another one.

    Args:
        files: the lake, for the text of the error.
        old: the manifest.
        value_path: the path.

    Raises:
        LakeError: it holds values of another one.
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
        LakeError: it is damaged, of a newer version, or cannot be read.
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


def check_place(files: Files) -> None:
    """Refuse to make a lake where an event store is: what is there is the store's.

    Raises:
        LakeError: there is no lake yet, and a store; or as :func:`find`.
    """
    if not files.is_local or find(files) is not None:
        return
    try:
        refuse_within_store(Path(files.base, MANIFEST))
    except MarinerSparkError as e:
        raise LakeError(str(e)) from e


def update(files: Files, change: Callable[[Manifest], Manifest]) -> Manifest:
    """Change a lake; an empty one is made where there is none.

    Args:
        files: the lake.
        change: makes the new manifest of the old one; where it gives back the old one
            nothing is changed.

    Returns:
        What the manifest is now.

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
