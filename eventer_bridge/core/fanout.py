"""Notification of clients: who hears of which session, encoded once.

Clients with the same filter (subscription, server id, persisted) form one group. Which
groups a type reaches is remembered per type until a group comes or goes. Groups that are
to hear of the same events share one message; what it looks like is up to the wire, which
encodes a session's events once (``Session.encodings``). One that raises is closed, and costs the
others nothing.

Filters are compared when clients come and go only: they may have a thousand query types. For
an event, a group is told from others by its identity.

Runs on the event loop's thread.
"""

import asyncio
import logging
import sys
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, TypeAlias

from eventer_bridge.core.remembered import Remembered, type_bytes
from eventer_bridge.core.session import Session
from eventer_bridge.model import Event, EventType
from eventer_bridge.slices import Steps, parts
from eventer_bridge.subscription import Subscription

mlog = logging.getLogger(__name__)

EncodeCb: TypeAlias = Callable[[Session, Sequence[int]], bytes]
"""Makes the message that tells of some events of a session, given their indices, rising."""


class Filter(NamedTuple):
    """What a client hears of (002, ``init_req``; 001, ``MsgInitReq``)."""

    subscription: Subscription
    server_id: int | None
    persisted: bool


class Receiver(Protocol):
    """A client's connection."""

    def notify(self, message: bytes, event_count: int) -> None:
        """Send a message that ``EncodeCb`` made; must not block."""

    def on_failed(self, error: Exception) -> None:
        """Telling it raised: it misses something, and is to be closed. Must not raise."""

    def heard_of(self, commit: asyncio.Future[None]) -> None:
        """It was notified of a large session that is not committed: its queries wait for that."""


class _Group:
    """Clients with the same filter; equal to no other."""

    __slots__ = ("filter", "receivers")

    def __init__(self, group_filter: Filter) -> None:
        self.filter = group_filter
        self.receivers: set[Receiver] = set()


_GroupsByType: TypeAlias = Remembered[EventType, tuple[_Group, ...]]


class Fanout:
    """All clients of a wire that wait for events.

    Args:
        encode: see :data:`EncodeCb`.
        prepare: encodes all events of a large session in steps, so that ``encode`` need not.
    """

    def __init__(self, encode: EncodeCb, prepare: Callable[[Session], Steps[None]]) -> None:
        self._encode = encode
        self._prepare = prepare
        self._groups: dict[Filter, _Group] = {}
        self._registered: _GroupsByType = Remembered()
        self._persisted: _GroupsByType = Remembered()

    def add(self, receiver: Receiver, receiver_filter: Filter) -> None:
        """Notify ``receiver`` from now on."""
        if receiver_filter.subscription.is_empty:
            return
        group = self._groups.get(receiver_filter)
        if group is None:
            group = self._groups[receiver_filter] = _Group(receiver_filter)
            self._forget(receiver_filter.persisted)
        group.receivers.add(receiver)

    def remove(self, receiver: Receiver, receiver_filter: Filter) -> None:
        """Notify ``receiver`` no longer."""
        group = self._groups.get(receiver_filter)
        if group is None:
            return
        group.receivers.discard(receiver)
        if not group.receivers:
            del self._groups[receiver_filter]
            self._forget(receiver_filter.persisted)

    def notify(self, session: Session, persisted: bool) -> None:
        """Tell of a session all who want to hear of it at this moment."""
        if not self._groups:
            return
        indices_by_group: dict[_Group, list[int]] = {}
        self._collect(indices_by_group, session.events, persisted)
        if indices_by_group:
            for _ in self._notify_groups(indices_by_group, session):
                pass

    def notify_in_steps(self, session: Session, persisted: bool) -> Steps[None]:
        """As :meth:`notify`, of a large session."""
        if not self._groups:
            return
        indices_by_group: dict[_Group, list[int]] = {}
        groups_by_type = (self._persisted if persisted else self._registered).known
        for part in parts(len(session.events)):
            for event in session.events[part]:
                if event.type not in groups_by_type:
                    self._groups_of(event.type, persisted)
                    yield
            self._collect(indices_by_group, session.events[part], persisted, part.start)
            yield
        if indices_by_group:
            yield from self._prepare(session)
            for group in indices_by_group if not persisted else ():
                for receiver in group.receivers:
                    receiver.heard_of(session.committed)
            yield from self._notify_groups(indices_by_group, session)

    def _collect(
        self,
        indices_by_group: dict[_Group, list[int]],
        events: Sequence[Event],
        persisted: bool,
        first_index: int = 0,
    ) -> None:
        groups_by_type = (self._persisted if persisted else self._registered).known
        for index, event in enumerate(events, first_index):
            groups = groups_by_type.get(event.type)
            if groups is None:
                groups = self._groups_of(event.type, persisted)
            for group in groups:
                server_id = group.filter.server_id
                if server_id is None or server_id == event.id.server:
                    indices_by_group.setdefault(group, []).append(index)

    def _notify_groups(
        self, indices_by_group: dict[_Group, list[int]], session: Session
    ) -> Steps[None]:
        messages: dict[tuple[int, ...], bytes] = {}
        for group, indices in indices_by_group.items():
            key = tuple(indices)
            message = messages.get(key)
            if message is None:
                message = messages[key] = self._encode(session, indices)
            # a copy: a receiver that is closed by its notification leaves the group
            for receiver in tuple(group.receivers):
                try:
                    receiver.notify(message, len(key))
                except Exception as e:
                    mlog.exception("a receiver failed")
                    receiver.on_failed(e)
            yield

    def _groups_of(self, event_type: EventType, persisted: bool) -> tuple[_Group, ...]:
        """Groups that a type reaches, from now on remembered."""
        groups = tuple(
            group
            for key, group in self._groups.items()
            if key.persisted is persisted and key.subscription.matches(event_type)
        )
        n_bytes = type_bytes(event_type) + sys.getsizeof(groups)
        remembered = self._persisted if persisted else self._registered
        remembered.remember(event_type, groups, n_bytes)
        return groups

    def _forget(self, persisted: bool) -> None:
        (self._persisted if persisted else self._registered).forget()
