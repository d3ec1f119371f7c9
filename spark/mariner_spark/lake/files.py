"""The files of a lake, wherever they are: on this machine, or in an object store.

Writes are atomic. On a local file system a file is written under a name that readers skip, synced
and renamed, and its folder is synced; an object store shows an object when its upload is complete.
"""

import contextlib
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import quote

import pyarrow as pa
from pyarrow import fs

from mariner_spark.errors import LakeError
from mariner_spark.local_path import local_path

TEMPORARY: Final = "_tmp-"
"""Prefix of the name of a file while it is written."""

_OBJECT_SCHEMES: Final = frozenset(("s3", "s3a", "s3n", "gs", "gcs", "abfs", "abfss"))
_SPARK_ONLY: Final = {"s3a": "s3", "s3n": "s3"}
_GLOB: Final = str.maketrans({i: f"\\{i}" for i in "\\{}[]*?"})


class Stored(NamedTuple):
    """A file of the lake's folder.

    Attributes:
        path: below the root of the lake.
        size_bytes: its size.
        modified_s: when it was last written, by the clock of the file system, since 1970.
    """

    path: str
    size_bytes: int
    modified_s: float


class Files:
    """Files below a root.

    Args:
        root: a path of this machine, or a URI as Spark takes it: ``file``, ``s3``, ``s3a``,
            ``gs``, ``abfs``, ``abfss``.

    Raises:
        LakeError: the file system is of an unsupported kind, or cannot be used.
    """

    def __init__(self, root: str) -> None:
        scheme, separator, rest = root.partition("://")
        self.is_local = not separator or scheme == "file"
        if self.is_local:
            folder = str(local_path(root))
            self.root = f"file://{folder}"
            self.arrow, self.base = fs.LocalFileSystem(), folder
        elif scheme in _OBJECT_SCHEMES:
            self.root = root.rstrip("/")
            # a bucket, or `container@account.host`; nothing in a path is special to Spark
            uri = f"{_SPARK_ONLY.get(scheme, scheme)}://{quote(rest, safe='/@:')}"
            with self.errors(""):
                self.arrow, base = fs.FileSystem.from_uri(uri)
            self.base = base.rstrip("/")
        else:
            raise LakeError(
                f"{root}: a lake is on a local path or in an object store, as"
                f" {', '.join(sorted(_OBJECT_SCHEMES))}"
            )

    def __str__(self) -> str:
        return self.base if self.is_local else self.root

    def full(self, path: str) -> str:
        """A path for pyarrow, together with ``arrow``."""
        return f"{self.base}/{path}"

    def for_spark(self, path: str) -> str:
        """A path for Spark, with the characters of glob patterns escaped."""
        return f"{self.root}/{path}".translate(_GLOB)

    def read(self, path: str, max_bytes: int) -> bytes | None:
        """Content of a file; None: there is none.

        Raises:
            LakeError: it cannot be read, or is larger.
        """
        with self.errors(path):
            try:
                with self.arrow.open_input_file(self.full(path)) as file:
                    if file.size() > max_bytes:
                        raise LakeError(f"{self}/{path}: is larger than {max_bytes} bytes")
                    return bytes(file.read())
            except FileNotFoundError:
                return None

    @contextlib.contextmanager
    def create(self, path: str) -> Iterator[Any]:
        """Write a file, which replaces an existing one.

        Yields:
            A binary file to write to. If the block raises, no file is created.

        Raises:
            LakeError: it cannot be written.
        """
        create = self._create_local if self.is_local else self._create_object
        with self.errors(path), create(path) as file:
            yield file

    def delete(self, path: str) -> None:
        """Delete a file, if it exists.

        Raises:
            LakeError: it cannot be deleted.
        """
        with self.errors(path), contextlib.suppress(FileNotFoundError):
            self.arrow.delete_file(self.full(path))

    def walk(self, folder: str = "") -> list[Stored]:
        """All files in a folder and below it; none if the folder does not exist.

        Raises:
            LakeError: it cannot be listed.
        """
        base = self.full(folder) if folder else self.base
        with self.errors(folder):
            selector = fs.FileSelector(base, allow_not_found=True, recursive=True)
            found = self.arrow.get_file_info(selector)
        return [
            Stored(i.path[len(self.base) + 1 :], i.size, i.mtime_ns / 1e9)
            for i in found
            if i.type == fs.FileType.File
        ]

    def sizes(self, paths: list[str]) -> dict[str, int | None]:
        """Size in bytes of each file; None: there is none.

        Raises:
            LakeError: the file system cannot be read.
        """
        with self.errors(""):
            found = self.arrow.get_file_info([self.full(i) for i in paths])
        return {
            path: info.size if info.type == fs.FileType.File else None
            for path, info in zip(paths, found, strict=True)
        }

    @contextlib.contextmanager
    def errors(self, path: str) -> Iterator[None]:
        """Convert errors about a file to LakeError."""
        try:
            yield
        except (OSError, pa.ArrowException) as e:
            reason = getattr(e, "strerror", None) or str(e)
            raise LakeError(f"{self}/{path}: {reason}") from e

    @contextlib.contextmanager
    def _create_local(self, path: str) -> Iterator[Any]:
        target = Path(self.full(path))
        make_folder(target.parent)
        temporary = target.with_name(f"{TEMPORARY}{uuid.uuid4().hex}-{target.name}")
        try:
            with temporary.open("xb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(target)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        _sync_folder(target.parent)

    @contextlib.contextmanager
    def _create_object(self, path: str) -> Iterator[Any]:
        try:
            with self.arrow.open_output_stream(self.full(path)) as file:
                yield file
        except BaseException:
            # closing it created an object with the data so far
            with contextlib.suppress(OSError):
                self.arrow.delete_file(self.full(path))
            raise


def make_folder(folder: Path) -> None:
    """Create a folder durably: it survives a power failure."""
    if folder.is_dir():
        return
    make_folder(folder.parent)
    folder.mkdir(exist_ok=True)
    _sync_folder(folder.parent)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
