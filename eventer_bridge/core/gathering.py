"""Registrations of all clients that came in one iteration of the loop, handed over together.

Each call of the core, and each callback when a commit is done, costs as much as some events. Where
many clients send a little each, most of the time would go there.

Runs on the event loop's thread.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias

from eventer_bridge import limits
from eventer_bridge.backends.type_budget import TypeQuota
from eventer_bridge.core.base import EventCore
from eventer_bridge.core.session import Repeated, Session
from eventer_bridge.errors import EventerBridgeError
from eventer_bridge.model import RegisterEvent, Source
from eventer_bridge.net.stream import Stream

Gathered: TypeAlias = tuple[Any, Sequence[RegisterEvent], str | None, str | None]
"""A request by what its wire tells it by, its events, what the client calls it, and what it calls
the one that must be stored first."""


class GatheringClient(Protocol):
    """Registrations of a client, ``ClientRegistrations``."""

    n_gathered: int
    """Events that it has gathered."""

    @property
    def stream(self) -> Stream[Any]:
        """Its connection."""

    source: Source
    """Of its events."""

    type_quota: TypeQuota
    """For new event types."""

    def take_gathered(self) -> Sequence[Gathered]:
        """What it has gathered; nothing, if that has to be handed over by itself, and was."""

    def take_outcomes(
        self, gathered: Sequence[Gathered], outcomes: "Sequence[Session | EventerBridgeError]", /
    ) -> "Sequence[Session | Repeated]":
        """What became of it; returns what :meth:`answer_large` is for."""

    def answer_large(self, outcome: "Session | Repeated", /) -> None:
        """Answer a large session, when it is encoded."""

    def answer(self) -> None:
        """Answer what has ended; never raises."""


class Gathering:
    """See the module.

    Args:
        core: registers.
    """

    def __init__(self, core: EventCore) -> None:
        self._core = core
        self._loop = asyncio.get_running_loop()
        self._clients: deque[GatheringClient] = deque()
        self._awaiting: dict[asyncio.Future[None], list[GatheringClient]] = {}

    def add(self, client: GatheringClient) -> None:
        """Hand over what a client gathers in this iteration of the loop."""
        if not self._clients:
            self._loop.call_soon(self._hand_over)
        self._clients.append(client)

    def await_commit(self, commit: asyncio.Future[None], client: GatheringClient) -> None:
        """Have a client answer when a commit is done."""
        clients = self._awaiting.get(commit)
        if clients is None:
            self._awaiting[commit] = [client]
            commit.add_done_callback(self._on_done)
        else:
            clients.append(client)

    def _on_done(self, commit: asyncio.Future[None]) -> None:
        for client in self._awaiting.pop(commit):
            client.stream.send_at_once(client.answer)

    def _hand_over(self) -> None:
        taken: list[tuple[GatheringClient, Sequence[Gathered]]] = []
        sources: list[Source] = []
        requests: list[Sequence[RegisterEvent]] = []
        quotas: list[TypeQuota | None] = []
        n_events = 0
        while self._clients and n_events < limits.MAX_GATHERED_EVENTS:
            client = self._clients.popleft()
            n_events += client.n_gathered
            if gathered := client.take_gathered():
                taken.append((client, gathered))
                _, asked, _, _ = zip(*gathered, strict=True)
                requests += asked
                sources += [client.source] * len(gathered)
                quotas += [client.type_quota] * len(gathered)
        if self._clients:  # whatever else there is to do may come before
            self._loop.call_soon(self._hand_over)
        if not requests:
            return
        try:
            outcomes = self._core.register_all(sources, requests, quotas)
        except Exception as e:
            for client, _ in taken:
                client.stream.on_failed(e)
            return
        begin = 0
        for client, gathered in taken:
            end = begin + len(gathered)
            try:
                for outcome in client.take_outcomes(gathered, outcomes[begin:end]):
                    client.answer_large(outcome)
            except Exception as e:
                client.stream.on_failed(e)
            begin = end
