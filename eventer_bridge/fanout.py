"""Notification of clients: who hears of which session, encoded once.

Clients with the same filter (subscription, server id, persisted) form one group. Which
groups a type reaches is remembered per type until a group comes or goes. Groups that are
to hear of the same events share one message; what it looks like is up to the wire, which
encodes a session's events once (``Session.encodings``).

Runs on the event loop's thread.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Protocol, TypeAlias

from eventer_bridge import limits
from eventer_bridge.model import EventType
from eventer_bridge.session import Session
from eventer_bridge.subscription import Subscription

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
        """Send a message that ``EncodeCb`` made; must not block or raise."""


class Fanout:
    """All clients of a wire that wait for events.

    Args:
        encode: see :data:`EncodeCb`.
    """

    def __init__(self, encode: EncodeCb) -> None:
        self._encode = encode
        self._groups: dict[Filter, set[Receiver]] = {}
        self._groups_by_type: dict[tuple[EventType, bool], tuple[Filter, ...]] = {}

    def add(self, receiver: Receiver, receiver_filter: Filter) -> None:
        """Notify ``receiver`` from now on."""
        if receiver_filter.subscription.is_empty:
            return
        group = self._groups.get(receiver_filter)
        if group is None:
            group = self._groups[receiver_filter] = set()
            self._groups_by_type.clear()
        group.add(receiver)

    def remove(self, receiver: Receiver, receiver_filter: Filter) -> None:
        """Notify ``receiver`` no longer."""
        group = self._groups.get(receiver_filter)
        if group is None:
            return
        group.discard(receiver)
        if not group:
            del self._groups[receiver_filter]
            self._groups_by_type.clear()

    def notify(self, session: Session, persisted: bool) -> None:
        """Tell of a session all who want to hear of it at this moment."""
        if not self._groups:
            return
        indices_by_group: dict[Filter, list[int]] = {}
        for index, event in enumerate(session.events):
            for group in self._groups_of(event.type, persisted):
                if group.server_id is None or group.server_id == event.id.server:
                    indices_by_group.setdefault(group, []).append(index)
        if not indices_by_group:
            return

        messages: dict[tuple[int, ...], bytes] = {}
        for group, indices in indices_by_group.items():
            key = tuple(indices)
            message = messages.get(key)
            if message is None:
                message = messages[key] = self._encode(session, indices)
            # a copy: a receiver that is closed by its notification leaves the group
            for receiver in tuple(self._groups.get(group, ())):
                receiver.notify(message, len(key))

    def _groups_of(self, event_type: EventType, persisted: bool) -> Iterable[Filter]:
        key = event_type, persisted
        groups = self._groups_by_type.get(key)
        if groups is None:
            groups = tuple(
                i
                for i in self._groups
                if i.persisted is persisted and i.subscription.matches(event_type)
            )
            if len(self._groups_by_type) >= limits.REMEMBERED_TYPES:
                self._groups_by_type.clear()
            self._groups_by_type[key] = groups
        return groups
