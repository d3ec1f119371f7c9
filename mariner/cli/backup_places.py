"""Places that keep backups: directories, and object stores (the extra ``backup``).

A backup's name is the moment it was made, for people. Its files are ``NAME/FILE``, and
``NAME.json`` is its manifest, written last and removed first: without one there is no backup. It
has what a copy is compared with, and the state of the store, by which backups are ordered
(``backup_manifest``, ``backup_order``). In a directory, ``NAME`` is an ordinary store.
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
from urllib.parse import urlsplit
from urllib.request import url2pathname

import msgspec

from eventer_bridge.backends.rocksdb import directories
from eventer_bridge.errors import StorageError
from eventer_bridge.resources import open_regular
from mariner import limits
from mariner.cli import backup_order
from mariner.cli.backup_manifest import (
    BackupFile,
    Manifest,
    ManifestError,
    describe,
    parse,
)
from mariner.cli.backup_order import StoreState

if TYPE_CHECKING:
    from obstore.store import ObjectStore

_NAME: Final = re.compile(r"\d{8}T\d{6}Z")
_TIME: Final = "%Y%m%dT%H%M%SZ"
_MANIFEST: Final = ".json"
_CHUNK_BYTES: Final = 4 << 20
_SAID: Final = re.compile(r"<Code>(.*?)</Code>\s*<Message>(.*?)</Message>")
_RETRIES: Final[Any] = {"max_retries": 5, "retry_timeout": timedelta(seconds=30)}
_LEFT_OVER: Final = timedelta(days=1)
"""Age from which on what an interrupted backup left behind is removed."""


def new_name() -> str:
    """Name of a backup that is made now."""
    return datetime.now(UTC).strftime(_TIME)


def find(text: str) -> "Place":
    """A place by its directory or URL.

    Raises:
        StorageError: it cannot be used.
    """
    if text.startswith("file:///"):
        return DirectoryPlace(Path(url2pathname(urlsplit(text).path)), text)
    return ObjectPlace(text) if "://" in text else DirectoryPlace(Path(text), text)


class KeptBackups(NamedTuple):
    """What a place has.

    Attributes:
        positions: of the backups that have an order, by name.
        problems: why others have none, by name: neither restored nor removed by default.
    """

    positions: dict[str, StoreState]
    problems: dict[str, str]


class Place(abc.ABC):
    """See the module. All methods block and raise ``StorageError``."""

    @abc.abstractmethod
    def names(self) -> list[str]:
        """Names of complete backups, sorted."""

    @abc.abstractmethod
    def manifest(self, name: str) -> Manifest:
        """The manifest of a backup; raises ``ManifestError`` as well."""

    @abc.abstractmethod
    def save(self, name: str, source: Path, position: StoreState) -> None:
        """Keep the files of a store of this state; refused if there is a backup of this name."""

    @abc.abstractmethod
    def load(self, name: str, target: Path) -> None:
        """Copy a backup to a directory that does not exist yet, and compare it."""

    @abc.abstractmethod
    def remove(self, name: str) -> None:
        """Remove a backup."""

    @abc.abstractmethod
    def left_over(self) -> dict[str, bool]:
        """Names without a manifest, and whether all files are there, so that only that is lost."""

    def hint(self) -> str:
        """What to add when there is no backup; empty: nothing."""
        return ""

    def kept(self) -> KeptBackups:
        """All backups."""
        found = KeptBackups({}, {})
        for name in self.names():
            try:
                position = self.manifest(name).position
            except ManifestError as e:
                found.problems[name] = str(e)
                continue
            if position is None or position.history is None:
                found.problems[name] = f"{self}/{name}{_MANIFEST}: does not say which store it is"
            else:
                found.positions[name] = position
        for name, is_whole in self.left_over().items():
            if is_whole:
                found.problems[name] = f"{self}/{name}: has no manifest"
        return found

    def choose(self, name: str | None) -> tuple[str, list[str]]:
        """A backup by its name; None: the one with the newest state.

        Returns:
            Its name, and why others were not considered.
        """
        names = self.names()
        if name is not None and name in names:
            return name, []
        if name is not None and names:
            known = ", ".join(names)
            raise StorageError(f"{self}: there is no backup {name}, expected one of {known}")
        kept = self.kept()
        newest = backup_order.newest(kept.positions)
        if len(newest) > 1:
            raise StorageError(
                f"{self}: has backups of {len(newest)} stores, or histories of one: choose by"
                f" --name; the newest of each are {', '.join(newest)}"
            )
        if not newest:
            reasons = "".join(f"; {i}" for i in kept.problems.values())
            raise StorageError(f"{self}: there is no backup{reasons or self.hint()}")
        return newest[0], [f"{i}: not considered" for i in kept.problems.values()]

    def prune(self, made: str, n_kept: int) -> tuple[list[str], list[str]]:
        """Remove all backups of a store but those with the newest states.

        What interrupted backups left behind a day ago is removed, too. Nothing is removed whose
        state or store is not known.

        Args:
            made: the backup that was just made, which is kept in any case.
            n_kept: how many are kept.

        Returns:
            What was removed, and what the operator should know, for people.
        """
        kept = self.kept()
        if made not in kept.positions:
            raise StorageError(f"{kept.problems.get(made, made)}: nothing is removed")
        removed = backup_order.surplus(kept.positions, made, n_kept)
        oldest = (datetime.now(UTC) - _LEFT_OVER).strftime(_TIME)
        unfinished = [i for i, is_whole in self.left_over().items() if i < oldest and not is_whole]
        for name in (*removed, *unfinished):
            self.remove(name)
        told = [f"{i}: not removed" for i in kept.problems.values()]
        ordered = backup_order.in_order(kept.positions, kept.positions[made].histories)
        if others := sorted(kept.positions.keys() - {*ordered}):
            told.append(f"{self}: of another store, or history: not removed: {', '.join(others)}")
        if ordered[-1] != made:
            told.append(
                f"{self}/{ordered[-1]}: has a newer state of the store than the backup just made,"
                " and is what is restored by default"
            )
        unfinished = [f"{i} (was never completed)" for i in unfinished]
        return [f"{self}/{i}" for i in (*removed, *unfinished)], told


class DirectoryPlace(Place):
    """A directory; what is put there gets its owner, and its group's rights.

    Args:
        path: the directory.
        text: what to call it.
    """

    def __init__(self, path: Path, text: str) -> None:
        self._path = path
        self._text = text.rstrip("/") or text

    def __str__(self) -> str:
        return self._text

    def names(self) -> list[str]:
        """See :class:`Place`."""
        return [i for i in self._all() if self._is_whole(i)]

    def left_over(self) -> dict[str, bool]:
        """See :class:`Place`."""
        names = [i for i in self._all() if not self._is_whole(i)]
        return {i: (self._path / i / "CURRENT").exists() for i in names}

    def hint(self) -> str:
        """See :class:`Place`."""
        if not (self._path / "CURRENT").exists():
            return ""
        return f" in it, it is one: mariner restore {self._path} STORE"

    def manifest(self, name: str) -> Manifest:
        """See :class:`Place`."""
        with self._errors("read"), open_regular(self._manifest_path(name)) as file:
            data = file.read(limits.MAX_MANIFEST_BYTES + 1)
        return parse(data, f"{self}/{name}{_MANIFEST}")

    def save(self, name: str, source: Path, position: StoreState) -> None:
        """See :class:`Place`."""
        with directories.new_directory(self._path / name) as path, self._errors("written"):
            directories.copy(source, path)
            directories.share_with_group_of(self._path, path)
            files = {i.name: describe(i) for i in directories.files_of(path)}
        file = self._manifest_path(name)
        temporary = file.with_name(file.name + directories.PARTIAL)
        with self._errors("written"):
            temporary.write_bytes(msgspec.json.encode(Manifest(files, position)))
            directories.give_to_owner_of(self._path, temporary)
            directories.share_with_group_of(self._path, temporary)
            directories.sync(temporary)
            temporary.rename(file)
            directories.sync(self._path)

    def load(self, name: str, target: Path) -> None:
        """See :class:`Place`."""
        manifest = self.manifest(name)
        with self._errors("copied"):
            directories.copy(self._path / name, target)
            copied = {i.name: describe(i) for i in directories.files_of(target)}
        for file in sorted({*copied, *manifest.files}):
            if copied.get(file) != manifest.files.get(file):
                raise StorageError(f"{self}/{name}/{file}: is not what was backed up")

    def remove(self, name: str) -> None:
        """See :class:`Place`."""
        with self._errors("removed"):
            self._manifest_path(name).unlink(missing_ok=True)
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
        return self._manifest_path(name).is_file()

    def _manifest_path(self, name: str) -> Path:
        return self._path / (name + _MANIFEST)

    @contextlib.contextmanager
    def _errors(self, what: str) -> Iterator[None]:
        try:
            yield
        except OSError as e:
            raise StorageError(f"{e.filename or self}: cannot be {what}: {e.strerror}") from e


class ObjectPlace(Place):
    """A folder of an object store: ``s3://``, ``gs://``, ``az://``.

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
            self._store: ObjectStore = store.from_url(self._url, retry_config=_RETRIES)

    def __str__(self) -> str:
        return self._url

    def names(self) -> list[str]:
        """See :class:`Place`."""
        return self._all()[0]

    def left_over(self) -> dict[str, bool]:
        """See :class:`Place`."""
        whole, begun = self._all()
        names = sorted({*begun} - {*whole})
        with self._errors("read"):
            return {i: f"{i}/CURRENT" in self._paths(i) for i in names}

    def manifest(self, name: str) -> Manifest:
        """See :class:`Place`."""
        path = name + _MANIFEST
        with self._errors("read"):
            if self._store.head(path)["size"] > limits.MAX_MANIFEST_BYTES:
                raise ManifestError(f"{self}/{path}: more than {limits.MAX_MANIFEST_BYTES} bytes")
            data = bytes(self._store.get(path).bytes())
        return parse(data, f"{self}/{path}")

    def save(self, name: str, source: Path, position: StoreState) -> None:
        """See :class:`Place`."""
        files: dict[str, BackupFile] = {}
        if any(name in names for names in self._all()):
            raise StorageError(f"{self}/{name}: exists already")
        with self._errors("written"):
            for path in directories.files_of(source):
                files[path.name] = describe(path)
                self._store.put(f"{name}/{path.name}", path)
            self._store.put(name + _MANIFEST, msgspec.json.encode(Manifest(files, position)))

    def load(self, name: str, target: Path) -> None:
        """See :class:`Place`."""
        manifest = self.manifest(name)
        with self._errors("read"):
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
            paths = self._paths(name)
            if (current := f"{name}/CURRENT") in paths:  # first: see the other places
                self._store.delete(current)
                paths.remove(current)
            if paths:
                self._store.delete(paths)

    def _paths(self, name: str) -> list[str]:
        return [i["path"] for part in self._store.list(prefix=name) for i in part]

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
