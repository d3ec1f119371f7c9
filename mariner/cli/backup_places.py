"""Places that keep backups: directories, and object stores (the extra ``backup``).

A backup's name is the moment it was made, for people. Its files are ``NAME/FILE``, and
``NAME.json`` is its manifest, written last and removed first: without one there is no backup. It
has what a copy is compared with, and the state of the store. In a directory, ``NAME`` is an
ordinary store.

Backups are ordered by the state of the store that each one has, not by the name, which is a time,
by a clock that may have been wrong. What a store wrote is counted within a history, and each
history names those that it continues (``eventer_bridge.backends.history``). So the backups of one
store have an order; those of other stores, and of histories that a restore left behind, have none
among them.
"""

import abc
import contextlib
import hashlib
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias
from urllib.parse import urlsplit
from urllib.request import url2pathname

import msgspec
from typing_extensions import override

from eventer_bridge.backends.rocksdb import directories
from eventer_bridge.errors import StorageError
from eventer_bridge.resources import open_regular
from mariner import limits

if TYPE_CHECKING:
    from obstore.store import ObjectStore

_FILE: Final = re.compile(r"[A-Za-z0-9_.-]+")
_NAME: Final = re.compile(r"\d{8}T\d{6}Z")
_TIME: Final = "%Y%m%dT%H%M%SZ"
_MANIFEST: Final = ".json"
_SAID: Final = re.compile(r"<Code>(.*?)</Code>\s*<Message>(.*?)</Message>")
_RETRIES: Final[Any] = {
    "max_retries": limits.BACKUP_RETRIES,
    "retry_timeout": timedelta(seconds=limits.BACKUP_RETRY_S),
}


# --- manifests ------------------------------------------------------------------------------


class StoreState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The state of a store.

    ``histories``: those that it continues, oldest first, and its own; ``sequence``: rows written.
    """

    histories: tuple[str, ...]
    sequence: int

    @property
    def history(self) -> str | None:
        """Its own history; None: the store has no name for it yet."""
        return self.histories[-1] if self.histories else None


class BackupFile(NamedTuple):
    """A file of a backup in its manifest."""

    size: int
    sha256: str


class Manifest(msgspec.Struct, forbid_unknown_fields=True):
    """What belongs to a backup, and the state of the store."""

    files: dict[str, BackupFile]
    position: StoreState | None = None
    format: int = 1


class ManifestError(StorageError):
    """A manifest is damaged, or of another version."""


def _describe(file: Path) -> BackupFile:
    """The entry of a file in a manifest; raises OSError."""
    with open_regular(file) as data:
        digest = hashlib.file_digest(data, "sha256").hexdigest()
        return BackupFile(data.tell(), digest)


def _parse(data: bytes, path: str) -> Manifest:
    """Decode a manifest of this name, or raise ManifestError."""
    if len(data) > limits.MAX_MANIFEST_BYTES:
        raise ManifestError(f"{path}: more than {limits.MAX_MANIFEST_BYTES} bytes")
    try:
        manifest = msgspec.json.decode(data, type=Manifest)
    except msgspec.DecodeError as e:
        raise ManifestError(f"{path}: not a manifest: {e}") from None
    if manifest.format != 1:
        raise ManifestError(f"{path}: format {manifest.format}, this version reads format 1")
    for file in manifest.files:
        if not _FILE.fullmatch(file) or not file.strip("."):
            raise ManifestError(f"{path}: not the name of a file: {file!a}")
    return manifest


# --- order ----------------------------------------------------------------------------------

States: TypeAlias = Mapping[str, StoreState]
"""Of backups, by their names."""


def in_order(positions: States, histories: Sequence[str]) -> list[str]:
    """Backups of the store that has these histories, the oldest state first.

    Histories that continue them are left out, as are other stores.
    """
    ages = {history: age for age, history in enumerate(histories)}
    found = [
        (ages[position.history], position.sequence, name)
        for name, position in positions.items()
        if position.history is not None and position.history in ages
    ]
    return [name for *_, name in sorted(found)]


def newest(positions: States) -> list[str]:
    """The backup with the newest state of each store, or of each history that nothing continues."""
    continued = {i for position in positions.values() for i in position.histories[:-1]}
    heads = {
        position.history: position.histories
        for position in positions.values()
        if position.history is not None and position.history not in continued
    }
    return sorted(in_order(positions, histories)[-1] for histories in heads.values())


def surplus(positions: States, made: str, n_kept: int) -> list[str]:
    """The backups of a store that are to be removed, the oldest state first.

    So many are kept, at least the one just ``made``, whatever its state, and the newest state.
    """
    ordered = in_order(positions, positions[made].histories)
    if not ordered:  # the history of its store has no name
        return []
    kept = {made, ordered[-1]}
    for name in reversed(ordered):
        if len(kept) < n_kept:
            kept.add(name)
    return [name for name in ordered if name not in kept]


# --- places ---------------------------------------------------------------------------------


def new_name() -> str:
    """Name of a backup that is made now."""
    return datetime.now(UTC).strftime(_TIME)


def find(text: str) -> "Place":
    """A place by its directory or URL; raises StorageError."""
    if text.startswith("file:///"):
        return DirectoryPlace(Path(url2pathname(urlsplit(text).path)), text)
    return ObjectPlace(text) if "://" in text else DirectoryPlace(Path(text), text)


class KeptBackups(NamedTuple):
    """Backups of a place, by name: states of those that have an order.

    ``problems`` are why others have none: these are neither restored nor removed by default.
    """

    positions: dict[str, StoreState]
    problems: dict[str, str]


class Place(abc.ABC):
    """See the module. All methods block and raise ``StorageError``."""

    @abc.abstractmethod
    def listed(self) -> tuple[list[str], list[str]]:
        """Names of complete backups, and of those that were begun, sorted."""

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
    def has_current(self, name: str) -> bool:
        """Whether all files of a backup are there: it has the last one."""

    def names(self) -> list[str]:
        """Names of complete backups, sorted."""
        return self.listed()[0]

    def left_over(self) -> dict[str, bool]:
        """Names without a manifest, and whether all files are there, so that only that is lost."""
        whole, begun = self.listed()
        return {i: self.has_current(i) for i in begun if i not in whole}

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
        """A backup by its name, or (None) the newest state; and why others were not considered."""
        names = self.names()
        if name is not None and names:
            if name in names:
                return name, []
            known = ", ".join(names)
            raise StorageError(f"{self}: there is no backup {name}, expected one of {known}")
        kept = self.kept()
        found = newest(kept.positions)
        if len(found) > 1:
            raise StorageError(
                f"{self}: has backups of {len(found)} stores, or histories of one: choose by"
                f" --name; the newest of each are {', '.join(found)}"
            )
        if not found:
            reasons = "".join(f"; {i}" for i in kept.problems.values())
            raise StorageError(f"{self}: there is no backup{reasons or self.hint()}")
        return found[0], [f"{i}: not considered" for i in kept.problems.values()]

    def prune(self, made: str, n_kept: int) -> tuple[list[str], list[str]]:
        """Remove the backups of a store except the one just ``made``, and the newest states.

        What interrupted backups left behind a day ago is removed, too. Nothing is removed whose
        state or store is not known. Returns what was removed, and what the operator should know.
        """
        kept = self.kept()
        if made not in kept.positions:
            raise StorageError(f"{kept.problems.get(made, made)}: nothing is removed")
        removed = surplus(kept.positions, made, n_kept)
        oldest = (datetime.now(UTC) - timedelta(limits.LEFT_OVER_DAYS)).strftime(_TIME)
        unfinished = [i for i, is_whole in self.left_over().items() if i < oldest and not is_whole]
        for name in (*removed, *unfinished):
            self.remove(name)
        told = [f"{i}: not removed" for i in kept.problems.values()]
        ordered = in_order(kept.positions, kept.positions[made].histories)
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
    """A directory; what is put there gets its owner, and its group's rights."""

    def __init__(self, path: Path, text: str) -> None:
        self._path = path
        self._text = text.rstrip("/") or text

    def __str__(self) -> str:
        return self._text

    @override
    def listed(self) -> tuple[list[str], list[str]]:
        try:
            entries = [i.name.removesuffix(directories.PARTIAL) for i in self._path.iterdir()]
        except FileNotFoundError:
            return [], []
        except OSError as e:
            raise StorageError(f"{self}: cannot be read: {e.strerror}") from e
        begun = sorted(filter(_NAME.fullmatch, {*entries}))
        return [i for i in begun if self._manifest_path(i).is_file()], begun

    @override
    def has_current(self, name: str) -> bool:
        return (self._path / name / "CURRENT").exists()

    @override
    def hint(self) -> str:
        if not (self._path / "CURRENT").exists():
            return ""
        return f" in it, it is one: mariner restore {self._path} STORE"

    @override
    def manifest(self, name: str) -> Manifest:
        with self._errors("read"), open_regular(self._manifest_path(name)) as file:
            data = file.read(limits.MAX_MANIFEST_BYTES + 1)
        return _parse(data, f"{self}/{name}{_MANIFEST}")

    @override
    def save(self, name: str, source: Path, position: StoreState) -> None:
        with directories.new_directory(self._path / name) as path, self._errors("written"):
            directories.copy(source, path)
            directories.share_with_group_of(self._path, path)
            files = {i.name: _describe(i) for i in directories.files_of(path)}
        file = self._manifest_path(name)
        temporary = file.with_name(file.name + directories.PARTIAL)
        with self._errors("written"):
            temporary.write_bytes(msgspec.json.encode(Manifest(files, position)))
            directories.give_to_owner_of(self._path, temporary)
            directories.share_with_group_of(self._path, temporary)
            directories.sync(temporary)
            temporary.rename(file)
            directories.sync(self._path)

    @override
    def load(self, name: str, target: Path) -> None:
        manifest = self.manifest(name)
        with self._errors("copied"):
            directories.copy(self._path / name, target)
            copied = {i.name: _describe(i) for i in directories.files_of(target)}
        for file in sorted({*copied, *manifest.files}):
            if copied.get(file) != manifest.files.get(file):
                raise StorageError(f"{self}/{name}/{file}: is not what was backed up")

    @override
    def remove(self, name: str) -> None:
        with self._errors("removed"):
            self._manifest_path(name).unlink(missing_ok=True)
            for i in (name, name + directories.PARTIAL):
                # without this file it is no store: an interrupted removal leaves no broken one
                (self._path / i / "CURRENT").unlink(missing_ok=True)
                shutil.rmtree(self._path / i, ignore_errors=True)

    def _manifest_path(self, name: str) -> Path:
        return self._path / (name + _MANIFEST)

    @contextlib.contextmanager
    def _errors(self, what: str) -> Iterator[None]:
        try:
            yield
        except OSError as e:
            raise StorageError(f"{e.filename or self}: cannot be {what}: {e.strerror}") from e


class ObjectPlace(Place):
    """A folder of an object store, with credentials and endpoint of the environment (``AWS_…``)."""

    def __init__(self, url: str) -> None:
        try:
            # of an extra, and slow to import
            from obstore import store  # noqa: PLC0415
            from obstore.exceptions import BaseError  # noqa: PLC0415
        except ImportError as e:
            advice = "object stores need the extra `backup` (pip install 'mariner-gateway[backup]')"
            raise StorageError(f"{url}: {advice}") from e
        self._url = url.rstrip("/")
        self._failures = (BaseError, OSError, ValueError)
        with self._errors("used"):
            self._store: ObjectStore = store.from_url(self._url, retry_config=_RETRIES)

    def __str__(self) -> str:
        return self._url

    @override
    def listed(self) -> tuple[list[str], list[str]]:
        with self._errors("read"):
            found = self._store.list_with_delimiter()
        names = [i["path"].removesuffix(_MANIFEST) for i in found["objects"]]
        whole, begun = (
            sorted(filter(_NAME.fullmatch, every)) for every in (names, found["common_prefixes"])
        )
        return whole, begun

    @override
    def has_current(self, name: str) -> bool:
        with self._errors("read"):
            return f"{name}/CURRENT" in self._paths(name)

    @override
    def manifest(self, name: str) -> Manifest:
        path = name + _MANIFEST
        with self._errors("read"):
            if self._store.head(path)["size"] > limits.MAX_MANIFEST_BYTES:
                raise ManifestError(f"{self}/{path}: more than {limits.MAX_MANIFEST_BYTES} bytes")
            data = bytes(self._store.get(path).bytes())
        return _parse(data, f"{self}/{path}")

    @override
    def save(self, name: str, source: Path, position: StoreState) -> None:
        files: dict[str, BackupFile] = {}
        if any(name in names for names in self.listed()):
            raise StorageError(f"{self}/{name}: exists already")
        with self._errors("written"):
            for path in directories.files_of(source):
                files[path.name] = _describe(path)
                self._store.put(f"{name}/{path.name}", path)
            self._store.put(name + _MANIFEST, msgspec.json.encode(Manifest(files, position)))

    @override
    def load(self, name: str, target: Path) -> None:
        manifest = self.manifest(name)
        with self._errors("read"):
            target.mkdir(mode=directories.PRIVATE)
            # CURRENT is last: an interrupted copy is no store
            for file in sorted(manifest.files, key=lambda i: (i == "CURRENT", i)):
                self._load(f"{name}/{file}", target / file, manifest.files[file])
            directories.sync(target)

    @override
    def remove(self, name: str) -> None:
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

    def _load(self, path: str, target: Path, expected: BackupFile) -> None:
        digest, size = hashlib.sha256(), 0
        with target.open("xb") as out:
            for chunk in self._store.get(path).stream(limits.BACKUP_CHUNK_BYTES):
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
