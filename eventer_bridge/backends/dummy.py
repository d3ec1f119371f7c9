"""Backend that stores nothing: for gateways that only distribute events.

Registrations succeed at once, and answers to queries are empty. It keeps the last session and
timestamp of each server in memory, so that ids ascend; a restart forgets them.
"""

from collections.abc import Iterable, Sequence
from contextlib import ExitStack

from eventer_bridge.backends.base import StoreStats
from eventer_bridge.backends.common import check_ids
from eventer_bridge.backends.type_budget import TypeQuota
from eventer_bridge.backends.visible_query import VisibleQuery
from eventer_bridge.backends.volatile import VolatileBackend
from eventer_bridge.model import Event, EventType, QueryResult


def create() -> "DummyBackend":
    """Create a backend."""
    return DummyBackend()


class DummyBackend(VolatileBackend):
    """See the module. Made by :func:`create`."""

    @property
    def is_keeping(self) -> bool:
        """See :class:`Backend`."""
        return False

    @property
    def is_whole(self) -> bool:
        """See :class:`Backend`; nothing can be missing."""
        return True

    def check_types(self, event_types: Iterable[EventType], quota: TypeQuota | None = None) -> None:
        """See :class:`Backend`; there is no limit, because no type is stored."""

    async def answer(
        self, query: VisibleQuery, client: str = "", holding: ExitStack | None = None
    ) -> QueryResult:
        """See :class:`Backend`; the answer is empty."""
        self._check_open()
        check_ids(query.params)  # refuses what every backend refuses
        _ = query.types
        return QueryResult([], False)

    def stats(self) -> StoreStats:
        """See :class:`Backend`."""
        self._check_open()
        return StoreStats(0, 0, 0)

    def _keep(self, events: Sequence[Event], quota: TypeQuota | None, n_asked: int) -> None:
        """Nothing."""
