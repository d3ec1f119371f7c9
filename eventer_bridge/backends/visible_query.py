"""Queries, narrowed to the rights of the client: the one place that applies these rights.

Cores and backends answer clients in no other form. They find the types to look for here only, so
that an answer has what may be seen, and nothing else, whichever way it takes (from the cache, on
the event loop, by a reader thread, from another server).

Belongs to one thread at a time.
"""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet

from eventer_bridge.backends import limits as store_limits
from eventer_bridge.model import EventType, QueryParams, QueryServerParams
from eventer_bridge.subscription import Subscription


class VisibleQuery:
    """A query, as far as it may be answered, by the rights of a client.

    ``EVERYTHING`` are those of the server itself. Deletions up to ``n_deletions``, of an earlier
    answer, are left out of ``deleted``. ``event_types`` of its ``params`` are not to be read:
    :attr:`types` and :attr:`few_types` are.
    """

    __slots__ = ("_few_types", "_rights", "_types", "n_deletions", "params")

    def __init__(self, params: QueryParams, rights: Subscription, n_deletions: int = 0) -> None:
        self.params = params
        self.n_deletions = n_deletions
        self._rights = rights
        self._types: Subscription | None = None
        self._few_types: tuple[AbstractSet[EventType] | None] | None = None

    @property
    def types(self) -> Subscription:
        """The types of the query that may be seen; raises ``InvalidSubscriptionError``."""
        if self._types is None:
            self._types = self._rights
            if (query_types := self._query_types()) is not None:
                requested = Subscription(query_types)
                if not requested.is_everything:
                    self._types = requested.intersection(self._rights)
        return self._types

    @property
    def asks_for_all(self) -> bool:
        """Whether :attr:`types` are all that may be seen; raises as these."""
        return self.types is self._rights

    @property
    def few_types(self) -> AbstractSet[EventType] | None:
        """The types of the query that may be seen, if there are few; the set may be empty.

        None: it has wildcards, or more types than ``store_limits.FEW_TYPES``.
        """
        if self._few_types is None:
            self._few_types = (self._find_few_types(),)
        return self._few_types[0]

    def _find_few_types(self) -> AbstractSet[EventType] | None:
        query_types = self._query_types()
        if query_types is None or len(query_types) > store_limits.FEW_TYPES:
            return None
        types = dict.fromkeys(map(tuple, query_types))
        if any("?" in i or "*" in i for i in types):
            return None
        rights = self._rights
        return types.keys() if rights.is_everything else {*filter(rights.matches, types)}

    def _query_types(self) -> Sequence[EventType] | None:
        params = self.params
        return None if isinstance(params, QueryServerParams) else params.event_types
