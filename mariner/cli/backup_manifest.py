"""Manifests of backups: their files, and the state of the store."""

import hashlib
import re
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from eventer_bridge.errors import StorageError
from eventer_bridge.resources import open_regular
from mariner import limits
from mariner.cli.backup_order import StoreState

_FILE: Final = re.compile(r"[A-Za-z0-9_.-]+")


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


def describe(file: Path) -> BackupFile:
    """What a manifest says of a file.

    Raises:
        OSError: it cannot be read.
    """
    with open_regular(file) as data:
        digest = hashlib.file_digest(data, "sha256").hexdigest()
        return BackupFile(data.tell(), digest)


def parse(data: bytes, path: str) -> Manifest:
    """Decode a manifest.

    Args:
        data: all of it.
        path: its name, for errors.

    Raises:
        ManifestError: it is none, or of another version.
    """
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
