"""Those who hear of events on each wire, and keep everything that they are told."""

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from itertools import chain
from typing import Any, Final

from hat.drivers import net
from hat.event import eventer as hat_eventer

from eventer_bridge import chatter
from eventer_bridge.eventer import client as eventer_client
from eventer_bridge.model import EventType
from eventer_bridge.rsb import codec
from eventer_bridge.rsb.event import RsbEvent
from mariner import client as mariner_client
from tests.eventer_bridge.rsb.peers import RawPeer as RsbPeer
from tests.wires.model import ALL, ROOT, Expected, difference

TIMEOUT_S: Final = 60.0
"""For what takes seconds on a busy machine."""


class Reader:
    """Keeps what is told on one connection.

    Args:
        name: says what it reads, for failures.
        patterns: what it subscribed to.
        form: what it is to be told, as it is told.
        case_of: name of the case that something told is of.
    """

    def __init__(
        self,
        name: str,
        patterns: Sequence[EventType] = ALL,
        form: Callable[[Expected], Sequence[Any]] = lambda expected: expected.events,
        case_of: Callable[[Any], str] = lambda event: event.type[2],
    ) -> None:
        self.name = name
        self._patterns = patterns
        self._form = form
        self._case_of = case_of
        self._heard: defaultdict[str, list[Sequence[Any]]] = defaultdict(list)
        self._changed = asyncio.Event()

    def hear(self, events: Sequence[Any]) -> None:
        """Some more was told, at one go."""
        self._heard[self._case_of(events[0])].append(events)
        self._changed.set()

    async def check(self, case: str, expected: Expected, *, by_session: bool = True) -> None:
        """Wait for what is to be told of a case, and see that it is that.

        Args:
            case: its name.
            expected: what was registered.
            by_session: whether each session is to be told at one go.
        """
        wanted = expected.wanted(self._patterns)
        told = await self.wait(case, len(wanted.events))
        heard = [*chain.from_iterable(told)]
        assert not (wrong := difference(heard, self._form(wanted))), f"{self.name}: {wrong}"
        if by_session:
            assert [*map(len, told)] == [*map(len, wanted.sessions)], self.name
        del self._heard[case]  # what comes later is too much

    async def wait(self, case: str, n_events: int) -> list[Sequence[Any]]:
        """Wait for so many events of a case; gives them as they were told."""
        told = self._heard[case]
        try:
            async with asyncio.timeout(TIMEOUT_S):
                while sum(map(len, told)) < n_events:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            n_told = f"{sum(map(len, told))} of {n_events} events of {case!r}"
            text = f"{self.name}: told of {n_told} within {TIMEOUT_S:g} s"
            raise AssertionError(text) from None
        return told

    def check_nothing_else(self) -> None:
        """See that nothing came after what was checked, and of nothing else."""
        more = {case: told[0][:2] for case, told in self._heard.items()}
        assert not more, f"{self.name}: {more}"


@contextlib.asynccontextmanager
async def task(work: Awaitable[None]) -> AsyncIterator[None]:
    """Run something meanwhile; what it raises fails the caller."""
    async with asyncio.TaskGroup() as group:

        async def run() -> None:
            await work

        running = group.create_task(run())
        yield
        running.cancel()


@contextlib.asynccontextmanager
async def mariner(port: int, **keys: Any) -> AsyncIterator[mariner_client.Client]:
    """A Mariner client."""
    options = {"client_name": "app", "client_token": "secret", **keys}
    async with await mariner_client.connect("127.0.0.1", port, **options) as connected:
        yield connected


@contextlib.asynccontextmanager
async def mariner_reader(
    port: int,
    name: str,
    patterns: Sequence[EventType] = ALL,
    *,
    told: Sequence[EventType] | None = None,
    **keys: Any,
) -> AsyncIterator[Reader]:
    """Subscribed over Mariner, and told of these types, or ``told``."""
    reader = Reader(name, told or patterns)
    async with mariner(port, subscriptions=patterns, **keys) as connected:

        async def read() -> None:
            async for events in connected.events():
                reader.hear(events)

        async with task(read()):
            yield reader


@contextlib.asynccontextmanager
async def live_replay(
    port: int, name: str, *, told: Sequence[EventType] = ALL, **keys: Any
) -> AsyncIterator[Reader]:
    """Up to date by ``start``, and then told of what is new."""
    reader = Reader(name, told)
    async with mariner(port, subscriptions=ALL, start="earliest", **keys) as connected:

        async def read() -> None:
            async for batch in connected.replay():
                reader.hear(batch.events)

        async with task(read()):
            await connected.wait_up_to_date()
            yield reader


@contextlib.asynccontextmanager
async def eventer_reader(
    port: int,
    name: str,
    patterns: Sequence[EventType] = ALL,
    *,
    told: Sequence[EventType] | None = None,
    client_name: str = "test",
    **keys: Any,
) -> AsyncIterator[Reader]:
    """Subscribed over Eventer, with our client."""
    reader = Reader(name, told or patterns)
    at = chatter.Address("127.0.0.1", port, False)
    async with await eventer_client.connect(
        at, client_name, subscriptions=patterns, on_events=reader.hear, **keys
    ):
        yield reader


@contextlib.asynccontextmanager
async def hat(port: int, **keys: Any) -> AsyncIterator[Any]:
    """hat-event's own client."""
    connected = await hat_eventer.connect(net.TcpAddress("127.0.0.1", port), "test", **keys)
    try:
        yield connected
    finally:
        await connected.async_close()


@contextlib.asynccontextmanager
async def hat_reader(
    port: int, name: str, patterns: Sequence[EventType] = ALL, **keys: Any
) -> AsyncIterator[Reader]:
    """Subscribed over Eventer, with hat-event's own client."""
    reader = Reader(name, patterns, lambda expected: expected.of_hat)

    def on_events(_: object, events: Sequence[Any]) -> None:
        reader.hear(events)

    async with hat(port, subscriptions=patterns, events_cb=on_events, **keys):
        yield reader


def rsb_form(event: RsbEvent) -> tuple[str, str, bytes, int | None]:
    """See ``model.rsb_form``."""
    return str(event.scope), event.schema, event.data, event.meta.create_time


@contextlib.asynccontextmanager
async def rsb_reader(port: int, name: str) -> AsyncIterator[Reader]:
    """A participant of the bus."""
    reader = Reader(name, form=lambda i: i.of_rsb, case_of=lambda i: i[0].split("/")[2])
    async with await RsbPeer.connect(port) as peer:

        async def read() -> None:
            while True:
                size = int.from_bytes(await peer.reader.readexactly(4), "little")
                event = codec.decode(await peer.reader.readexactly(size))
                if event.scope.segments[:1] == ROOT[1:]:  # else it is about the bus
                    reader.hear([rsb_form(event)])

        async with task(read()):
            yield reader
