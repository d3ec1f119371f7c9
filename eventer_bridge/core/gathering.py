"""Registrations of all clients that came in one iteration of the loop, handed over together.

Each call of the core, and each callback when a commit is done, costs as much as some events. Where
many clients send a little each, most of the time would go there.

Runs on the event loop's thread.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Any, Final, Generic, Protocol, Self, TypeVar

import msgspec

from eventer_bridge import limits
from eventer_bridge.backends.type_budget import TypeQuota
from eventer_bridge.core.base import EventCore
from eventer_bridge.core.session import Repeated, Session
from eventer_bridge.errors import EventerBridgeError
from eventer_bridge.model import RegisterEvent, Source
from eventer_bridge.net.stream import Stream
from eventer_bridge.packed import Packed

RequestT = TypeVar("RequestT")


class Gathered(msgspec.Struct, Generic[RequestT]):
    """Requests of a client that the core does not know of yet, one or more.

    Attributes:
        requests: what its wire tells each by.
        events: the events of each.
        n_events: number of all of them; each request counts as one at least.
        names: what the client calls each (``request_key``); empty: it calls none of them anything.
        afters: what it calls the one that must be stored before each; empty like ``names``.
        held_bytes: memory that is counted for them (``Stream.hold``).
    """

    requests: list[RequestT]
    events: list[Sequence[RegisterEvent]]
    n_events: int
    names: Sequence[str | None] = ()
    afters: Sequence[str | None] = ()
    held_bytes: int = 0

    def add(self, others: Self) -> None:
        """Add requests that came behind these."""
        if self.names or others.names:
            self.names = [*self._filled(self.names), *others._filled(others.names)]
            self.afters = [*self._filled(self.afters), *others._filled(others.afters)]
        self.requests += others.requests
        self.events += others.events
        self.n_events += others.n_events
        self.held_bytes += others.held_bytes

    def _filled(self, names: Sequence[str | None]) -> Sequence[str | None]:
        return names or [None] * len(self.requests)


class GatheringClient(Protocol):
    """Registrations of a client, ``ClientRegistrations``."""

    @property
    def stream(self) -> Stream[Any]:
        """Its connection."""

    source: Source
    """Of its events."""

    type_quota: TypeQuota
    """For new event types."""

    gathered: Gathered[Any] | None
    """What it has gathered."""

    def take_gathered(self) -> Gathered[Any] | None:
        """As :attr:`gathered`, which begins anew; None: it had to be handed over by itself."""

    def wait_for_room(self) -> None:
        """The core is full: what is gathered is to be handed over when it is not."""

    def take_outcomes(
        self, gathered: Gathered[Any], outcomes: "Sequence[Session | EventerBridgeError]", /
    ) -> "Sequence[Session | Repeated]":
        """What became of it; returns what :meth:`answer_large` is for."""

    def answer_large(self, outcome: "Session | Repeated", /) -> None:
        """Answer a large session, when it is encoded."""

    def answer(self) -> None:
        """Answer what has ended; never raises."""


_PACKED: Final[frozenset[type[Any]]] = frozenset({Packed})


class _Run:
    """What several clients sent, one after the other, and goes to the core in one call.

    Either all of it is packed or, of each client, something is not: no client takes others off the
    faster way.
    """

    def __init__(self, is_packed: bool) -> None:
        self.is_packed = is_packed
        self.taken: list[tuple[GatheringClient, Gathered[Any]]] = []
        self.sources: list[Source] = []
        self.requests: list[Sequence[RegisterEvent]] = []
        self.quotas: list[TypeQuota | None] = []

    def add(self, client: GatheringClient, gathered: Gathered[Any]) -> None:
        """Add what a client sent."""
        self.taken.append((client, gathered))
        self.requests += gathered.events
        n_requests = len(gathered.requests)
        self.sources += [client.source] * n_requests
        self.quotas += [client.type_quota] * n_requests


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
        if len(self._clients) >= limits.MAX_GATHERED_EVENTS:  # they gain nothing by more
            self._hand_over()

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
        if self._core.is_full:
            clients, self._clients = self._clients, deque()
            for client in clients:
                client.wait_for_room()
            return
        runs: list[_Run] = []
        n_events = n_bytes = 0
        while (
            self._clients
            and n_events < limits.MAX_GATHERED_EVENTS
            and n_bytes < limits.MAX_GATHERED_BYTES
        ):
            client = self._clients.popleft()
            if client.gathered is not None:
                n_events += client.gathered.n_events
                n_bytes += client.gathered.held_bytes
            gathered = client.take_gathered()
            if gathered is not None:
                is_packed = _PACKED.issuperset(map(type, gathered.events))
                if not runs or runs[-1].is_packed is not is_packed:
                    runs.append(_Run(is_packed))
                runs[-1].add(client, gathered)
        if self._clients:  # whatever else there is to do may come before
            self._loop.call_soon(self._hand_over)
        for run in runs:
            self._register(run)

    def _register(self, run: "_Run") -> None:
        try:
            outcomes = self._core.register_all(run.sources, run.requests, run.quotas)
        except Exception as e:
            for client, _ in run.taken:
                client.stream.on_failed(e)
            return
        begin = 0
        for client, gathered in run.taken:
            end = begin + len(gathered.requests)
            some = outcomes if len(run.taken) == 1 else outcomes[begin:end]
            try:
                for outcome in client.take_outcomes(gathered, some):
                    client.answer_large(outcome)
            except Exception as e:
                client.stream.on_failed(e)
            begin = end
