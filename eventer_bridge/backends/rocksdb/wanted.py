"""Which types a query wants: what it asks for, as far as it may be seen.

Runs on a reader thread, in steps of 0.1 ms with a pause after each. The types that a client
may see are kept (``types.VisibleTypes``). What a query asks for is sought among the known
types; where that takes long, only once reading needs it: events that come first in the
order are often found without it.
"""

from collections.abc import Collection, Iterator
from typing import Final

from eventer_bridge.backends.readers import PauseCb
from eventer_bridge.backends.rocksdb import keys
from eventer_bridge.backends.rocksdb.keys import TypeId
from eventer_bridge.backends.rocksdb.types import TypeRegistry, VisibleTypes
from eventer_bridge.backends.visible_query import VisibleQuery
from eventer_bridge.subscription import Subscription

FEW_STEPS: Final = 8
"""Steps in which the types that match are sought before anything is read."""

FREE_PASSES: Final = 10_000
"""Events that are passed over before those types are sought that took longer."""


class EveryType(Collection[TypeId]):
    """All types: what is wanted where none are asked for, and all may be seen.

    Args:
        n_types: how many there are; their ids are numbers.
    """

    def __init__(self, n_types: int) -> None:
        self._n_types = n_types

    def __contains__(self, type_id: object) -> bool:
        return True

    def __len__(self) -> int:
        return self._n_types

    def __iter__(self) -> Iterator[TypeId]:
        return self.since(0)

    def since(self, first: int) -> Iterator[TypeId]:
        """Those whose number is not below ``first``, in the order of their numbers."""
        return map(keys.encode_type_id, range(first, self._n_types))


class SoughtTypes(Collection[TypeId]):
    """Types that match a subscription; how many and which they all are is sought when asked for.

    Args:
        types: all types.
        subscription: what has to match.
        pause: called again and again.
    """

    def __init__(self, types: TypeRegistry, subscription: Subscription, pause: PauseCb) -> None:
        self._types = types
        self._subscription = subscription
        self._pause = pause
        self._known: dict[TypeId, bool] = {}
        self._found: VisibleTypes | None = None

    def __contains__(self, type_id: object) -> bool:
        assert isinstance(type_id, bytes)
        is_wanted = self._known.get(type_id)
        if is_wanted is None:
            is_wanted = self._subscription.matches(self._types.names[type_id])
            self._known[type_id] = is_wanted
        return is_wanted

    def __len__(self) -> int:
        return len(self._sought())

    def __iter__(self) -> Iterator[TypeId]:
        return iter(self._sought())

    def _sought(self) -> VisibleTypes:
        if self._found is None:
            found = VisibleTypes(self._types, self._subscription)
            catch_up(found, self._pause)
            self._found = found
        return self._found


def catch_up(visible: VisibleTypes, pause: PauseCb) -> None:
    """Look at the types that came since the last time."""
    if not visible.is_up_to_date:
        for _ in visible.catch_up():
            pause()


def patience(wanted: Collection[TypeId]) -> int:
    """Events that may be passed over before a merge would have been better, at least."""
    return FREE_PASSES if isinstance(wanted, SoughtTypes) else len(wanted)


def find_wanted(types: TypeRegistry, query: VisibleQuery, pause: PauseCb) -> Collection[TypeId]:
    """Types that a query wants.

    Args:
        types: all types: those of every row that is read are known before this is called.
        query: the query.
        pause: called again and again.

    Raises:
        InvalidSubscriptionError: ``*`` is not last in one of the event types.
    """
    if query.asks_for_all:
        return _all_visible(types, query.types, pause)
    found: list[TypeId] = []
    steps = types.find(query.types)
    for n_steps, some in enumerate(steps):
        found += some
        pause()
        if n_steps == FEW_STEPS:
            return SoughtTypes(types, query.types, pause)
    return frozenset(found)


def all_wanted(
    types: TypeRegistry, query: VisibleQuery, pause: PauseCb
) -> VisibleTypes | EveryType:
    """As :func:`find_wanted`, in the order of their numbers, for who wants them all anyway."""
    if query.asks_for_all:
        return _all_visible(types, query.types, pause)
    wanted = VisibleTypes(types, query.types)
    catch_up(wanted, pause)
    return wanted


def _all_visible(
    types: TypeRegistry, rights: Subscription, pause: PauseCb
) -> VisibleTypes | EveryType:
    if rights.is_everything:
        return EveryType(len(types))
    visible = types.visible(rights)
    catch_up(visible, pause)
    return visible
