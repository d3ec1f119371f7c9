"""Gateways that serve all wires, those who register there, and those who are told."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Final, NamedTuple
from uuid import UUID

import pytest

from eventer_bridge import chatter, packed
from eventer_bridge.backends.rocksdb import snapshot
from eventer_bridge.eventer import client as eventer_client
from eventer_bridge.eventer import codec as eventer_codec
from eventer_bridge.memory import account_of_process
from eventer_bridge.model import BinaryPayload, Event, EventId, Status, Timestamp
from eventer_bridge.rsb import codec
from eventer_bridge.rsb.event import MetaData, RsbEvent, RsbEventId, Scope
from mariner.gateway.gateway import Gateway
from mariner.wire import codec as mariner_codec
from tests.eventer_bridge.rsb.peers import RawPeer as RsbPeer
from tests.support import hat_events
from tests.support.inprocess import APP, running_gateway
from tests.wires import asking, readers
from tests.wires.model import FEW_TYPES, ROOT, SOME, Case, Expected, difference
from tests.wires.readers import TIMEOUT_S, Reader, rsb_form

LISTEN: Final = {"host": "127.0.0.1", "port": 0}


def eventer_port(gateway: Gateway) -> int:
    """Where it listens for Eventer clients."""
    assert gateway.eventer_server is not None
    return gateway.eventer_server.address.port


def rsb_port(gateway: Gateway) -> int:
    """Where it listens for RSB participants."""
    assert gateway.rsb is not None
    assert gateway.rsb.port is not None
    return gateway.rsb.port


def without_compiled(patch: pytest.MonkeyPatch) -> None:
    """Read nothing by compiled functions: batches are made of objects."""
    for module in packed, mariner_codec, eventer_codec:
        patch.setattr(module, "IS_COMPILED", False)
    patch.setattr(snapshot, "_read_rows", snapshot._read_in_python)


class Gateways(NamedTuple):
    """One that keeps what is registered, one that relays to it, and one that replicates it."""

    origin: Gateway
    relay: Gateway
    replica: Gateway


def _core(path: Path, server_id: int, **keys: Any) -> dict[str, Any]:
    backend = {"type": "rocksdb", "path": str(path / f"store{server_id}")}
    return {"server_id": server_id, "backend": backend, "eventer_server": LISTEN, **keys}


@contextlib.asynccontextmanager
async def one_gateway(
    path: Path, *, has_rsb: bool = False, clients: list[dict[str, Any]] | None = None
) -> AsyncIterator[Gateway]:
    """One that keeps what is registered.

    Args:
        path: for its store.
        has_rsb: whether there is a bridge.
        clients: those who are let in, on both wires; None: one that may do everything.
    """
    keys: dict[str, Any] = {}
    if has_rsb:
        keys["rsb"] = {**LISTEN, "mode": "server", "scopes_in": ["/w/"], "scopes_out": ["/w/"]}
    if clients is not None:
        others = [{**APP, "name": name} for name in ("event/2", "mariner/test")]
        keys["eventer_server"] = {**LISTEN, "clients": [*clients, *others]}
    async with running_gateway(clients, event_core=_core(path, 1, **keys)) as gateway:
        yield gateway


@contextlib.asynccontextmanager
async def three_gateways(
    path: Path, *, has_rsb: bool = False, clients: list[dict[str, Any]] | None = None
) -> AsyncIterator[Gateways]:
    """See :class:`Gateways`, and :func:`one_gateway`."""
    async with one_gateway(path, has_rsb=has_rsb, clients=clients) as origin:
        token = None if clients is None else "secret"
        remote = {"host": "127.0.0.1", "port": eventer_port(origin), "token": token}
        core = _core(path, 2, replication=[{"server_id": 1, **remote}])
        async with (
            running_gateway(clients, eventer=remote) as relay,
            running_gateway(clients, event_core=core) as replica,
        ):
            # who follows before the replica knows the history is closed when it does
            await until_replicated(replica, origin)
            yield Gateways(origin, relay, replica)


async def until_replicated(replica: Gateway, origin: Gateway) -> None:
    """Wait until one has what the other has stored by now."""
    last = origin.core.last_persisted(1)
    try:
        async with asyncio.timeout(TIMEOUT_S):
            while replica.core.last_persisted(1) < last:
                await asyncio.sleep(0.005)
    except TimeoutError:
        has = replica.core.last_persisted(1)
        text = f"replica: has session {has}, not {last}, after {TIMEOUT_S:g} s"
        raise AssertionError(text) from None


class World:
    """What clients of the gateways were told so far.

    Attributes:
        gateways: the gateways.
        readers: those who listen, and whether they are told of each session at one go.
        last: the last event that was registered.
        is_whole: whether all checks succeeded.
    """

    def __init__(self, gateways: Gateways, listening: dict[Reader, bool]) -> None:
        self.gateways = gateways
        self.readers = listening
        self.last = EventId(1, 1, 1)
        self.is_whole = True

    async def play(self, name: str, registering: Awaitable[Expected], *, asks: bool = True) -> None:
        """See that everybody is told of what is registered.

        Args:
            name: of the case.
            registering: registers it.
            asks: whether to ask for it, too.
        """
        self.is_whole, was_whole = False, self.is_whole
        expected = await registering
        last, self.last = self.last, expected.events[-1].id
        for reader, by_session in self.readers.items():
            await reader.check(name, expected, by_session=by_session)
        if asks:
            await self._ask(name, last, expected)
        self.is_whole = was_whole

    async def _ask(self, name: str, last: EventId, expected: Expected) -> None:
        """Ask for it on every wire."""
        origin, relay, replica = self.gateways
        n_events = len(expected.events)
        port = origin.mariner.port
        is_whole = n_events <= asking.MANY_EVENTS
        page = n_events // 3 + 1
        whole = asking.queries(expected, last, None)
        async with readers.mariner(port) as connected:
            pages = asking.queries(expected, last, page)
            asked = [*whole, *pages] if is_whole else whole
            await asking.check_queries("Mariner", connected.query, asked, expected)
            asked = asking.first_pages(expected) if is_whole else []
            await asking.check_first_pages("Mariner", connected.query, asked, expected)
        async with readers.mariner(relay.mariner.port) as connected:
            asked = whole[:4] if is_whole else whole[:1]
            await asking.check_queries("relay", connected.query, asked, expected)
        if is_whole:
            async with readers.mariner(replica.mariner.port) as connected:
                await asking.check_queries("replica", connected.query, whole[:1], expected)
            async with readers.hat(eventer_port(origin)) as hat:
                query = asking.query_of_hat(hat)
                asked = [whole[0], pages[1]]
                await asking.check_queries("hat-event", query, asked, expected.as_read_by_hat)
        await asking.check_replay("replay", port, last, expected)
        await asking.check_cursor(name, replica.mariner.port, last, expected)


def _listening(
    gateways: Gateways, *, is_short: bool
) -> Iterator[AbstractAsyncContextManager[Reader]]:
    """Those who are told of each session at one go."""
    origin, relay, replica = (i.mariner.port for i in gateways)
    eventer = eventer_port(gateways.origin)
    for persisted in False, True:
        name = "persisted" if persisted else "registered"
        if not (is_short and persisted):
            yield readers.mariner_reader(origin, f"Mariner, {name}", persisted=persisted)
            yield readers.eventer_reader(
                eventer, f"Eventer, some {name}", SOME, persisted=persisted
            )
            yield readers.mariner_reader(relay, f"relay, {name}", persisted=persisted)
        if not is_short or persisted:
            yield readers.mariner_reader(origin, f"Mariner, some {name}", SOME, persisted=persisted)
            yield readers.eventer_reader(eventer, f"Eventer, {name}", persisted=persisted)
            yield readers.mariner_reader(replica, f"replica, {name}", persisted=persisted)
    if not is_short:  # it takes long
        yield readers.hat_reader(eventer, "hat-event, persisted", persisted=True)


@contextlib.asynccontextmanager
async def world(path: Path, *, is_short: bool = False) -> AsyncIterator[World]:
    """Everybody listens.

    Args:
        path: for stores.
        is_short: half of them, for sessions of which each takes long.
    """
    # who reads on a machine of its own leaves less with the gateway
    account_of_process().max_bytes = 1 << 30
    async with contextlib.AsyncExitStack() as stack:
        enter = stack.enter_async_context
        gateways = await enter(three_gateways(path, has_rsb=not is_short))
        origin, relay, _ = gateways
        listening = {await enter(i): True for i in _listening(gateways, is_short=is_short)}
        if not is_short:
            listening[await enter(readers.rsb_reader(rsb_port(origin), "RSB"))] = False
        listening[await enter(readers.live_replay(origin.mariner.port, "live replay"))] = False
        await (await enter(readers.mariner(relay.mariner.port))).wait_status(Status.OPERATIONAL)
        made = World(gateways, listening)
        yield made
        for reader in made.readers if made.is_whole else ():
            reader.check_nothing_else()


# --- who registers: the first request alone, whose types are known then; others together ----


async def by_mariner(port: int, case: Case) -> Expected:
    """Register over Mariner; the answers are checked."""
    async with readers.mariner(port) as connected:
        await connected.wait_status(Status.OPERATIONAL)
        answers = [await connected.register(case.sessions[0])]
        sent = [await connected.send_registration(i) for i in case.sessions[1:]]
        answers += [await i for i in sent]
    return _checked(case, answers)


async def by_eventer(port: int, case: Case) -> Expected:
    """The same over Eventer, with our client."""
    at = chatter.Address("127.0.0.1", port, False)
    async with await eventer_client.connect(at, "test") as connected:
        answers = [await connected.register(case.sessions[0])]
        sent = [connected.register(i) for i in case.sessions[1:]]
        answers += [await i for i in sent]
    return _checked(case, answers)


async def by_hat(port: int, case: Case) -> Expected:
    """The same with hat-event's own client, which writes JSON in its own way."""
    case = case._replace(sessions=[[*map(hat_events.as_sent, i)] for i in case.sessions])
    asked = [[*map(hat_events.register_event, i)] for i in case.sessions]
    async with readers.hat(port) as connected:
        answers = [await connected.register(asked[0], with_response=True)]
        sent = [connected.register(i, with_response=True) for i in asked[1:]]
        answers += await asyncio.gather(*sent)
    expected = Expected.of(case, answers)
    told = [event for answer in answers for event in answer]
    assert not (wrong := difference(told, expected.of_hat)), f"answer: {wrong}"
    return expected


def _checked(case: Case, answers: Sequence[Sequence[Event]]) -> Expected:
    expected = Expected.of(case, answers)
    for answer, session in zip(answers, expected.sessions, strict=True):
        assert not (wrong := difference(answer, session)), f"answer: {wrong}"
    return expected


async def register(gateways: Gateways, wire: str, case: Case) -> Expected:
    """Register over a wire."""
    origin, relay, _ = gateways
    if wire == "eventer":
        return await by_eventer(eventer_port(origin), case)
    if wire == "hat-event":
        return await by_hat(eventer_port(origin), case)
    return await by_mariner((relay if wire == "relay" else origin).mariner.port, case)


SENDER: Final = UUID("D8FBFEF4-4EB0-4C89-9716-C425DED3C527")


def _rsb_event(name: str, i: int) -> RsbEvent:
    schema, data = [
        ("utf-8-string", f"žluť {i}".encode()),
        ("int64", i.to_bytes(8, "little")),
        (".x.Image", i.to_bytes(4, "big")),
    ][i % 3]
    scope = Scope((*ROOT[1:], name, str(i % FEW_TYPES)))
    meta = MetaData(create_time=1_700_000_000_000_000 - i)
    return RsbEvent(RsbEventId(SENDER, i), scope, schema, data, meta=meta)


async def by_rsb(to: World, name: str, n: int) -> Expected:
    """Register over RSB, which has no answers: the first reader tells what sessions these are."""
    sent = [_rsb_event(name, i) for i in range(n)]
    witness = next(iter(to.readers))
    async with await RsbPeer.connect(rsb_port(to.gateways.origin)) as peer:
        peer.send(*sent)
        sessions = await witness.wait(name, n)
    registered: list[Event] = [event for session in sessions for event in session]
    for asked, event in zip(sent, registered, strict=True):
        assert event.type == ("rsb", *asked.scope.segments)
        assert event.source_timestamp == _moment(asked)
        assert _content(event) == (asked.event_id.sequence, asked.schema, asked.data)
    return Expected(sessions, [*map(rsb_form, sent)])


def _moment(event: RsbEvent) -> Timestamp:
    assert event.meta.create_time is not None
    return Timestamp(*divmod(event.meta.create_time, 1_000_000))


def _content(event: Event) -> tuple[int, str, bytes]:
    """Sequence number, schema and data of the RSB event that one was."""
    assert event.payload is not None
    if isinstance(event.payload, BinaryPayload):
        was = codec.decode(event.payload.data)
        return was.event_id.sequence, event.payload.data_type, was.data
    value = event.payload.value()
    data, schema = value["value"], value["rsb"]["schema"]
    as_bytes = data.encode() if isinstance(data, str) else data.to_bytes(8, "little")
    return value["rsb"]["sequence"], schema, as_bytes
