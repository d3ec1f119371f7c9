"""RSB's introspection: describes this process to RSB's tools (as real peers do).

Below the scope ``/__rsb/introspection/participants/`` a participant announces itself with ``Hello``
on a scope of its own (its UUID), and its end with ``Bye``. A tool queries all by the method SURVEY,
or one of them by REQUEST on its scope: without data for ``Hello``, or with "ping" for "pong".
Answers name the request as their cause. Published are the process' id, its name and its host's
name; not its arguments and user.

Sans I/O; used by the bridge.
"""

import os
import platform
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple
from uuid import UUID

from eventer_bridge.rsb.codec import Bye, Hello
from eventer_bridge.rsb.event import Informer, RsbEvent, RsbEventId, Scope, now_us, parse_scope

RSB_SCOPE: Final = parse_scope("/__rsb/")
"""Scope of RSB's internal events, not those of its users."""

PARTICIPANTS_SCOPE: Final = parse_scope("/__rsb/introspection/participants/")

_HELLO: Final = ".rsb.protocol.introspection.Hello"
_BYE: Final = ".rsb.protocol.introspection.Bye"
_TEXT: Final = "utf-8-string"


class Participant(NamedTuple):
    """A participant of this process: "informer" or "listener", and its scope."""

    kind: str
    id: UUID
    scope: Scope

    @property
    def own_scope(self) -> Scope:
        """Scope of its announcements."""
        return Scope((*PARTICIPANTS_SCOPE.segments, str(self.id)))


class Introspection:
    """See the module; ``send`` sends an event to the bus."""

    def __init__(
        self, name: str, participants: tuple[Participant, ...], send: Callable[[RsbEvent], None]
    ) -> None:
        self._name = name
        self._participants = participants
        self._send = send
        self._informer = Informer(PARTICIPANTS_SCOPE)
        self._started_us = now_us()

    def say_hello(self, question: RsbEvent | None = None) -> None:
        """Announce all participants."""
        for participant in self._participants:
            self._answer(participant, _HELLO, self._hello(participant), question)

    def say_bye(self) -> None:
        """Announce the end of all participants."""
        for participant in self._participants:
            data = Bye(id=participant.id.bytes).SerializeToString()
            self._answer(participant, _BYE, data, None)

    def on_event(self, event: RsbEvent) -> None:
        """Handle an event below ``RSB_SCOPE``: answer requests to us."""
        for participant in self._addressees(event):
            if event.data == b"ping" and event.schema in {_TEXT, "ascii-string"}:
                self._answer(participant, _TEXT, b"pong", event)
            elif not event.data:
                self._answer(participant, _HELLO, self._hello(participant), event)

    def _addressees(self, event: RsbEvent) -> Iterator[Participant]:
        if event.method == "SURVEY" and event.scope == PARTICIPANTS_SCOPE:
            yield from self._participants
        elif event.method == "REQUEST":
            yield from [i for i in self._participants if i.own_scope == event.scope]

    def _answer(
        self, participant: Participant, schema: str, data: bytes, question: RsbEvent | None
    ) -> None:
        causes: tuple[RsbEventId, ...] = () if question is None else (question.event_id,)
        event = self._informer.create(participant.own_scope, schema, data, causes=causes)
        self._send(event)

    def _hello(self, participant: Participant) -> bytes:
        hostname = platform.node()
        message = Hello(
            kind=participant.kind,
            id=participant.id.bytes,
            scope=str(participant.scope),
            process={
                "id": str(os.getpid()),
                "program_name": "mariner",
                "start_time": self._started_us,
                "display_name": self._name,
            },
            host={
                "id": hostname,
                "hostname": hostname,
                "machine_type": platform.machine().lower(),
                "software_type": platform.system().lower(),
            },
        )
        return bytes(message.SerializeToString())
