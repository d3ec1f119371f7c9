"""Fan-out of sessions to subscribed clients, encoded once.

Clients with the same filter (subscription, server id, persisted) form one group. The groups
of a type are cached until a group is added or removed. Groups that receive the same events
share one message; the wire encodes it, and a session's events once (``Batch.encodings``). A
receiver that raises is closed, without effect on the others. So are receivers of a session that
cannot be encoded: they have to know that they missed it.

Filters, which may have a thousand query types, are compared only when clients come and go. On
the way of an event, groups are compared by identity.

Runs on the event loop's thread.
"""

import asyncio
import logging
import sys
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, TypeAlias

from eventer_bridge.memory import BoundedCache, type_bytes
from eventer_bridge.model import EventType
from eventer_bridge.packed import Batch
from eventer_bridge.slices import Steps, parts
from eventer_bridge.subscription import Subscription

mlog = logging.getLogger(__name__)

EncodeCb: TypeAlias = Callable[[Batch, Sequence[int]], bytes]
"""Creates the message with some events of a session, given their ascending indices."""


class Filter(NamedTuple):
    """Selection of a client's notifications (002, ``init_req``; 001, ``MsgInitReq``)."""

    subscription: Subscription
    server_id: int | None
    persisted: bool


class Receiver(Protocol):
    """A client's connection."""

    __slots__ = ()

    def notify(self, message: bytes, event_count: int, session: Batch, /) -> None:
        """Send a message of ``EncodeCb``, of so many events of a session; must not block."""

    def on_failed(self, error: Exception) -> None:
        """Notifying it raised: it missed a message, and is to be closed. Must not raise."""

    def delay_queries(self, commit: asyncio.Future[None]) -> None:
        """It was notified of a large session before the commit: its queries wait for that."""


class _Group:
    """Clients with the same filter; equal to no other."""

    __slots__ = ("filter", "receivers")

    def __init__(self, group_filter: Filter) -> None:
        self.filter = group_filter
        self.receivers: set[Receiver] = set()


class Fanout:
    """All subscribed clients of a wire.

    ``prepare`` encodes all events of a large session in steps, before ``encode``; ``on_hearing`` is
    called when :meth:`hears` changed. ``groups`` of receivers are by filter.
    """

    def __init__(
        self,
        encode: EncodeCb,
        prepare: Callable[[Batch], Steps[None]],
        on_hearing: Callable[[], None] = lambda: None,
    ) -> None:
        self._encode = encode
        self._prepare = prepare
        self._on_hearing = on_hearing
        self.groups: dict[Filter, _Group] = {}
        self._n_groups = {False: 0, True: 0}  # by ``persisted``
        self._by_type: dict[bool, BoundedCache[EventType, tuple[_Group, ...]]] = {
            False: BoundedCache(),
            True: BoundedCache(),
        }

    def add(self, receiver: Receiver, receiver_filter: Filter) -> None:
        """Notify ``receiver`` from now on."""
        if receiver_filter.subscription.is_empty:
            return
        group = self.groups.get(receiver_filter)
        if group is None:
            group = self.groups[receiver_filter] = _Group(receiver_filter)
            self._count_group(receiver_filter.persisted, 1)
        group.receivers.add(receiver)

    def remove(self, receiver: Receiver, receiver_filter: Filter) -> None:
        """Stop notifying ``receiver``."""
        group = self.groups.get(receiver_filter)
        if group is None:
            return
        group.receivers.discard(receiver)
        if not group.receivers:
            del self.groups[receiver_filter]
            self._count_group(receiver_filter.persisted, -1)

    def _count_group(self, persisted: bool, change: int) -> None:
        self._by_type[persisted].clear()
        heard = self.hears(persisted=persisted)
        self._n_groups[persisted] += change
        if self.hears(persisted=persisted) is not heard:
            self._on_hearing()

    def hears(self, *, persisted: bool) -> bool:
        """Whether any receiver wants sessions that were registered (false) or are durable."""
        return self._n_groups[persisted] > 0

    def notify(self, session: Batch, persisted: bool) -> None:
        """Notify all current receivers whose filter matches a session."""
        if not self.hears(persisted=persisted):
            return
        indices_by_group: dict[_Group, list[int]] = {}
        self._collect(indices_by_group, session.event_types, session.server, persisted)
        if indices_by_group:
            for _ in self._notify_groups(indices_by_group, session):
                pass

    def notify_in_steps(self, session: Batch, persisted: bool) -> Steps[None]:
        """As :meth:`notify`, of a large session."""
        if not self.hears(persisted=persisted):
            return
        indices_by_group: dict[_Group, list[int]] = {}
        groups_by_type = self._by_type[persisted].known
        server_id = session.server
        all_types = session.event_types
        for part in parts(len(session)):
            types = all_types[part]
            for event_type in types:
                if event_type not in groups_by_type:
                    self._groups_of(event_type, persisted)
                    yield
            self._collect(indices_by_group, types, server_id, persisted, part.start)
            yield
        if indices_by_group:
            yield from self._prepare(session)
            for group in indices_by_group if not persisted else ():
                for receiver in group.receivers:
                    receiver.delay_queries(session.committed)
            yield from self._notify_groups(indices_by_group, session)

    def _collect(
        self,
        indices_by_group: dict[_Group, list[int]],
        types: Sequence[EventType],
        server_id: int,
        persisted: bool,
        first_index: int = 0,
    ) -> None:
        groups_by_type = self._by_type[persisted].known
        for index, event_type in enumerate(types, first_index):
            groups = groups_by_type.get(event_type)
            if groups is None:
                groups = self._groups_of(event_type, persisted)
            for group in groups:
                if group.filter.server_id in (None, server_id):
                    indices_by_group.setdefault(group, []).append(index)

    def _notify_groups(
        self, indices_by_group: dict[_Group, list[int]], session: Batch
    ) -> Steps[None]:
        messages: dict[tuple[int, ...], bytes] = {}
        for group, indices in indices_by_group.items():
            try:
                key = tuple(indices)
                message = messages.get(key)
                if message is None:
                    message = messages[key] = self._encode(session, indices)
            except Exception as e:
                _fail(group, e)
                yield
                continue
            # a copy: a receiver closed by its notification leaves the group
            for receiver in tuple(group.receivers):
                try:
                    receiver.notify(message, len(key), session)
                except Exception as e:
                    mlog.exception("a receiver failed")
                    receiver.on_failed(e)
            yield

    def fail(self, session: Batch | None, persisted: bool, error: Exception) -> None:
        """A session (None: any) could not be notified: close the receivers that may want it."""
        for group in tuple(self.groups.values()):
            if group.filter.persisted is persisted and _may_want(group.filter, session):
                _fail(group, error)

    def _groups_of(self, event_type: EventType, persisted: bool) -> tuple[_Group, ...]:
        """Groups of a type, cached."""
        groups = tuple(
            group
            for key, group in self.groups.items()
            if key.persisted is persisted and key.subscription.matches(event_type)
        )
        n_bytes = type_bytes(event_type) + sys.getsizeof(groups)
        self._by_type[persisted].put(event_type, groups, n_bytes)
        return groups


def _fail(group: _Group, error: Exception) -> None:
    """Close all receivers of a group."""
    for receiver in tuple(group.receivers):
        receiver.on_failed(error)
    mlog.error("clients cannot be told of a session", exc_info=error)


def _may_want(group_filter: Filter, session: Batch | None) -> bool:
    """Whether a session has something for a filter, as far as can be found out."""
    if session is None:
        return True
    try:
        is_wanted = any(map(group_filter.subscription.matches, session.types))
        return is_wanted and group_filter.server_id in (None, session.server)
    except Exception:  # what failed before may fail again
        return True
