"""Rows of a store that nobody has open: changed by hand, and verified."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

from rocksdict import Options, Rdict

from eventer_bridge.backends.rocksdb import control
from eventer_bridge.backends.rocksdb.contents import FAMILIES
from eventer_bridge.backends.rocksdb.markers import MARKER
from eventer_bridge.backends.rocksdb.verify import ext_verify

BatchRows: TypeAlias = dict[str, Any]
"""Column families, by name: each a mapping of bytes that can be changed."""


@contextlib.contextmanager
def raw_rows(path: Path) -> Iterator[BatchRows]:
    """The rows of a store."""
    (path / MARKER).unlink(missing_ok=True)
    families = {name: Options(raw_mode=True) for name in ("default", *FAMILIES)}
    db = Rdict(str(path), Options(raw_mode=True), families)
    rows: BatchRows = {name: db.get_column_family(name) for name in families}
    yield rows
    for family in (*rows.values(), db):
        family.close()


def findings(path: Path) -> list[str]:
    """What verifying a store finds."""
    found: list[str] = []
    with control.open_read_only(path) as store:
        ext_verify(store, lambda finding: found.append(str(finding)))
    return found


def findings_after(path: Path, damage: Callable[[BatchRows], None]) -> list[str]:
    """As :func:`findings`, after a damage."""
    with raw_rows(path) as rows:
        damage(rows)
    return findings(path)
