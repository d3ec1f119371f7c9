"""Notification of clients: who hears of which session, encoded once.

Clients with the same filter (subscription, server id, persisted) form one group. Which
groups a type reaches is remembered per type until a group comes or goes. A session's
events are encoded once; the message of a group is joined from them, and groups that are
to hear of the same events share one message.

Runs on the event loop's thread.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from eventer_bridge.model import EventType
from eventer_bridge.session import Session
from eventer_bridge.subscription import Subscription
from mariner import codec, framing, limits


class Filter(NamedTuple):
    """What a client hears of (002, ``init_req``)."""

    subscription: Subscription
    server_id: int | None
    persisted: bool


class Receiver(Protocol):
    """A client's connection."""

    def notify(self, frame: bytes, event_count: int) -> None:
        """Send a framed ``events`` message; must not block or raise."""


class Fanout:
    """All clients that wait for events."""

    def __init__(self) -> None:
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

        count = len(session.events)
        frames: dict[tuple[int, ...], bytes] = {}
        for group, indices in indices_by_group.items():
            key = tuple(indices)
            frame = frames.get(key)
            if frame is None:
                if len(key) == count:
                    parts: Sequence[bytes] = (encoded_session(session),)
                else:
                    encoded = encoded_events(session)
                    parts = [encoded[i] for i in indices]
                message = codec.encode_events_message(parts)
                frame = frames[key] = framing.encode_frame(message)
            # a copy: a receiver that is closed by its notification leaves the group
            for receiver in tuple(self._groups.get(group, ())):
                receiver.notify(frame, len(key))

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


def encoded_session(session: Session) -> bytes:
    """All of the session's events as JSON (002, ``event``), with commas between them.

    Encoded at the first call; this is what most receivers want, and costs half of encoding
    the events one by one.
    """
    encoded = session.encodings.get("mariner session")
    if encoded is None:
        encoded = session.encodings["mariner session"] = codec.encode_events(session.events)
    return encoded


def encoded_requested(session: Session) -> bytes:
    """As :func:`encoded_session`, of the events that were asked for: not what modules added."""
    if session.requested == len(session.events):
        return encoded_session(session)
    return b",".join(encoded_events(session)[: session.requested])


def encoded_events(session: Session) -> Sequence[bytes]:
    """The session's events as JSON, one by one, in order; encoded at the first call."""
    encoded = session.encodings.get("mariner events")
    if encoded is None:
        encoded = [codec.encode_event(event) for event in session.events]
        session.encodings["mariner events"] = encoded
    return encoded
