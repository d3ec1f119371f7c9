"""Comparing two stores row for row, as those of the members of a group are to be equal.

Runs on a thread that may block.
"""

from collections.abc import Callable, Iterator
from typing import Final

from eventer_bridge.backends import limits as store_limits
from eventer_bridge.backends.rocksdb import contents, keys
from eventer_bridge.backends.rocksdb.store import Store
from eventer_bridge.backends.rocksdb.verify import Finding

_OWN: Final = {keys.LOG_KEY, keys.UNFINISHED_KEY}
"""Rows of ``default`` that each store has for itself."""


def ext_compare(
    store: Store,
    other: Store,
    on_finding: Callable[[Finding], None],
    on_progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> int:
    """Report each row that differs; returns how many rows were compared.

    Nothing writes to them meanwhile. ``on_progress``: as of ``verify.ext_verify``.
    """
    n_rows, n_total = 0, sum(map(store.n_rows, store.families))
    for family in store.families:
        ours, theirs = _rows(store, family), _rows(other, family)
        mine, their = next(ours, None), next(theirs, None)
        while mine is not None or their is not None:
            if their is None or (mine is not None and mine[0] < their[0]):
                assert mine is not None
                on_finding(Finding(family, f"key {mine[0].hex()}", f"is missing in {other.path}"))
                mine = next(ours, None)
            elif mine is None or their[0] < mine[0]:
                on_finding(Finding(family, f"key {their[0].hex()}", f"is only in {other.path}"))
                their = next(theirs, None)
            else:
                if mine[1] != their[1]:
                    found = Finding(family, f"key {mine[0].hex()}", "has another value")
                    on_finding(found)
                mine, their = next(ours, None), next(theirs, None)
            n_rows += 1
            if n_rows % store_limits.VERIFIED_ROWS == 0:
                on_progress(n_rows, max(n_rows, n_total))
    return n_rows


def _rows(store: Store, family: str) -> Iterator[tuple[bytes, bytes]]:
    with store.errors():
        for key, value in contents.rows(store.family(family)):
            if family != "default" or key not in _OWN:
                yield key, value
