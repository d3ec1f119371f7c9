"""Places that keep backups: directories, and object stores (the extra ``backup``).

A backup's name is the moment it was made. Its files are ``NAME/FILE``, and ``NAME.json`` is its
manifest, written last and removed first: without one there is no backup. A copy of it is compared
with its manifest. In a directory, ``NAME`` is an ordinary store.
"""

import abc
import contextlib
import hashlib
import re
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from eventer_bridge.backends.rocksdb import directories
from eventer_bridge.errors import StorageError

if TYPE_CHECKING:
    from obstore.store import ObjectStore

_NAME: Final = re.compile(r"\d{8}T\d{6}Z")
_FORM: Final = "%Y%m%dT%H%M%SZ"
_MANIFEST: Final = ".json"
_MAX_MANIFEST_BYTES: Final = 16 << 20
_CHUNK_BYTES: Final = 4 << 20
_FILE: Final = re.compile(r"[A-Za-z0-9_.-]+")
_SAID: Final = re.compile(r"<Code>(.*?)</Code>\s*<Message>(.*?)</Message>")
_RETRIES: Final = {"max_retries": 5, "retry_timeout": timedelta(seconds=30)}
_LEFT_OVER: Final = timedelta(days=1)
"""Age from which on what an interrupted backup left behind is removed."""


def new_name() -> str:
    """Name of a backup that is made now."""
    return datetime.now(UTC).strftime(_FORM)


def find(text: str) -> "Place":
    """A place by its directory or URL.

    Raises:
        StorageError: it cannot be used.
    """
    return ObjectPlace(text) if "://" in text else DirectoryPlace(Path(text))


class Place(abc.ABC):
    """See the module. All methods block and raise ``StorageError``."""

    @abc.abstractmethod
    def names(self) -> list[str]:
        """Names of complete backups, the oldest first."""

    @abc.abstractmethod
    def save(self, name: str, source: Path) -> None:
        """Keep the files of a store."""

    @abc.abstractmethod
    def load(self, name: str, target: Path) -> None:
        """Copy a backup to a directory that does not exist yet, and compare it."""

    @abc.abstractmethod
    def remove(self, name: str) -> None:
        """Remove a backup."""

    @abc.abstractmethod
    def left_over(self) -> list[str]:
        """Names of which interrupted backups, or removals, left something behind."""

    def hint(self) -> str:
        """What to add when there is no backup; empty: nothing."""
        return ""

    def choose(self, name: str | None) -> str:
        """A backup by its name; None: the newest."""
        names = self.names()
        if not names:
            raise StorageError(f"{self}: there is no backup{self.hint()}")
        if name is not None and name not in names:
            known = ", ".join(names)
            raise StorageError(f"{self}: there is no backup {name}, expected one of {known}")
        return names[-1] if name is None else name

    def prune(self, n_kept: int) -> list[str]:
        """Remove all backups but the newest; returns their names."""
        names = self.names()
        removed = names[: max(0, len(names) - n_kept)]
        oldest = (datetime.now(UTC) - _LEFT_OVER).strftime(_FORM)
        for name in (*removed, *(i for i in self.left_over() if i < oldest)):
            self.remove(name)
        return removed


class BackupFile(NamedTuple):
    """A file of a backup in its manifest."""

    size: int
    sha256: str


class Manifest(msgspec.Struct, forbid_unknown_fields=True):
    """What belongs to a backup."""

    files: dict[str, BackupFile]
    format: int = 1


def _describe(file: Path) -> BackupFile:
    with file.open("rb") as data:
        digest = hashlib.file_digest(data, "sha256").hexdigest()
    return BackupFile(file.stat().st_size, digest)


def _parse(data: bytes, path: str) -> Manifest:
    """A manifest of this name."""
    if len(data) > _MAX_MANIFEST_BYTES:
        raise StorageError(f"{path}: more than {_MAX_MANIFEST_BYTES} bytes")
    try:
        manifest = msgspec.json.decode(data, type=Manifest)
    except msgspec.DecodeError as e:
        raise StorageError(f"{path}: not a manifest: {e}") from None
    if manifest.format != 1:
        raise StorageError(f"{path}: format {manifest.format}, this version reads format 1")
    for file in manifest.files:
        if not _FILE.fullmatch(file) or not file.strip("."):
            raise StorageError(f"{path}: not the name of a file: {file!a}")
    return manifest


class DirectoryPlace(Place):
    """A directory."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __str__(self) -> str:
        return str(self._path)

    def names(self) -> list[str]:
        """See :class:`Place`."""
        return [i for i in self._all() if self._is_whole(i)]

    def left_over(self) -> list[str]:
        """See :class:`Place`."""
        return [i for i in self._all() if not self._is_whole(i)]

    def hint(self) -> str:
        """See :class:`Place`."""
        if not (self._path / "CURRENT").exists():
            return ""
        return f" in it, it is one: mariner restore {self._path} STORE"

    def save(self, name: str, source: Path) -> None:
        """See :class:`Place`."""
        with directories.new_directory(self._path / name) as path, self._errors("written"):
            directories.copy(source, path)
            manifest = Manifest({i.name: _describe(i) for i in directories.files_of(path)})
        file = self._manifest(name)
        temporary = file.with_name(file.name + directories.PARTIAL)
        with self._errors("written"):
            temporary.write_bytes(msgspec.json.encode(manifest))
            directories.sync(temporary)
            temporary.rename(file)
            directories.sync(self._path)

    def load(self, name: str, target: Path) -> None:
        """See :class:`Place`."""
        with self._errors("copied"):
            with self._manifest(name).open("rb") as stream:
                data = stream.read(_MAX_MANIFEST_BYTES + 1)
            manifest = _parse(data, str(self._manifest(name)))
            directories.copy(self._path / name, target)
            copied = {i.name: _describe(i) for i in directories.files_of(target)}
        for file in sorted({*copied, *manifest.files}):
            if copied.get(file) != manifest.files.get(file):
                raise StorageError(f"{self}/{name}/{file}: is not what was backed up")

    def remove(self, name: str) -> None:
        """See :class:`Place`."""
        with self._errors("removed"):
            self._manifest(name).unlink(missing_ok=True)
            for i in (name, name + directories.PARTIAL):
                # without this file it is no store: an interrupted removal leaves no broken one
                (self._path / i / "CURRENT").unlink(missing_ok=True)
                shutil.rmtree(self._path / i, ignore_errors=True)

    def _all(self) -> list[str]:
        try:
            entries = [i.name.removesuffix(directories.PARTIAL) for i in self._path.iterdir()]
        except FileNotFoundError:
            return []
        except OSError as e:
            raise StorageError(f"{self}: cannot be read: {e.strerror}") from e
        return sorted(i for i in {*entries} if _NAME.fullmatch(i))

    def _is_whole(self, name: str) -> bool:
        return self._manifest(name).exists()

    def _manifest(self, name: str) -> Path:
        return self._path / (name + _MANIFEST)

    @contextlib.contextmanager
    def _errors(self, what: str) -> Iterator[None]:
        try:
            yield
        except OSError as e:
            raise StorageError(f"{e.filename or self}: cannot be {what}: {e.strerror}") from e


class ObjectPlace(Place):
    """A folder of an object store: ``s3://``, ``gs://``, ``az://``, or ``file://``.

    Credentials and endpoint are those of the environment (``AWS_…``, for example).
    """

    def __init__(self, url: str) -> None:
        try:
            # of an extra, and slow to import
            from obstore import store  # noqa: PLC0415
            from obstore.exceptions import BaseError  # noqa: PLC0415
        except ImportError as e:
            raise StorageError(
                f"{url}: object stores need the extra `backup`"
                " (pip install 'mariner-gateway[backup]')"
            ) from e
        self._url = url.rstrip("/")
        self._failures = (BaseError, OSError, ValueError)
        with self._errors("used"):
            options: dict[str, Any] = {"retry_config": _RETRIES}
            if url.startswith("file://"):
                options = {"mkdir": True, "automatic_cleanup": True}
            self._store: ObjectStore = store.from_url(self._url, **options)

    def __str__(self) -> str:
        return self._url

    def names(self) -> list[str]:
        """See :class:`Place`."""
        return self._all()[0]

    def left_over(self) -> list[str]:
        """See :class:`Place`."""
        whole, begun = self._all()
        return sorted({*begun} - {*whole})

    def save(self, name: str, source: Path) -> None:
        """See :class:`Place`."""
        files: dict[str, BackupFile] = {}
        with self._errors("written"):
            for path in directories.files_of(source):
                files[path.name] = _describe(path)
                self._store.put(f"{name}/{path.name}", path)
            self._store.put(name + _MANIFEST, msgspec.json.encode(Manifest(files)))

    def load(self, name: str, target: Path) -> None:
        """See :class:`Place`."""
        with self._errors("read"):
            manifest = self._manifest(name)
            target.mkdir(mode=directories.PRIVATE)
            # CURRENT is last: an interrupted copy is no store
            for file in sorted(manifest.files, key=lambda i: (i == "CURRENT", i)):
                self._load(f"{name}/{file}", target / file, manifest.files[file])
            directories.sync(target)

    def remove(self, name: str) -> None:
        """See :class:`Place`."""
        with self._errors("removed"):
            if name in self.names():
                self._store.delete(name + _MANIFEST)
            for part in self._store.list(prefix=name):
                self._store.delete([i["path"] for i in part])

    def _all(self) -> tuple[list[str], list[str]]:
        """Names of complete backups, and of those that have files."""
        with self._errors("read"):
            found = self._store.list_with_delimiter()
        names = [i["path"].removesuffix(_MANIFEST) for i in found["objects"]]
        folders = found["common_prefixes"]
        whole, begun = (
            sorted(i for i in every if _NAME.fullmatch(i)) for every in (names, folders)
        )
        return whole, begun

    def _manifest(self, name: str) -> Manifest:
        path = name + _MANIFEST
        if self._store.head(path)["size"] > _MAX_MANIFEST_BYTES:
            raise StorageError(f"{self}/{path}: more than {_MAX_MANIFEST_BYTES} bytes")
        return _parse(bytes(self._store.get(path).bytes()), f"{self}/{path}")

    def _load(self, path: str, target: Path, expected: BackupFile) -> None:
        digest, size = hashlib.sha256(), 0
        with target.open("xb") as out:
            for chunk in self._store.get(path).stream(_CHUNK_BYTES):
                digest.update(chunk)
                size += len(chunk)
                if size > expected.size:
                    break
                out.write(chunk)
        if (size, digest.hexdigest()) != expected:
            raise StorageError(f"{self}/{path}: is not what was backed up")
        target.chmod(0o600)
        directories.sync(target)

    @contextlib.contextmanager
    def _errors(self, what: str) -> Iterator[None]:
        try:
            yield
        except self._failures as e:
            raise StorageError(f"{self}: cannot be {what}: {_reason(e)}") from e


def _reason(error: Exception) -> str:
    """One line of the many that obstore has: what the server said, if it did."""
    text = str(error).strip() or repr(error)
    if said := _SAID.search(text):
        return f"{said[1]}: {said[2]}"
    return text.splitlines()[0]
