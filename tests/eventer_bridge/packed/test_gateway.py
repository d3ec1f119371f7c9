"""A gateway that packs does everything as one that does not: to the byte, at the same time."""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Final

import pytest

from eventer_bridge import limits, packed
from eventer_bridge.backends.rocksdb import RocksDbBackend, control, keys
from eventer_bridge.backends.rocksdb.store import Store
from eventer_bridge.backends.type_budget import TypeQuota
from eventer_bridge.core.engine import Engine
from eventer_bridge.core.gathering import Gathered, Gathering
from eventer_bridge.core.session import Session
from eventer_bridge.errors import EventerBridgeError
from eventer_bridge.eventer.messages import MsgRegisterReq, MsgRegisterRes
from eventer_bridge.model import (
    Event,
    JsonPayload,
    Order,
    OrderBy,
    QueryLatestParams,
    QueryParams,
    QueryTimeseriesParams,
    RegisterEvent,
    Source,
    SourceType,
    Timestamp,
)
from eventer_bridge.packed import KnownTypes, Packed
from mariner.gateway.gateway import Gateway
from tests.eventer_bridge.backends.consistency import check_store
from tests.eventer_bridge.backends.faults import being_synced, failing_sync, held_sync, recovered
from tests.eventer_bridge.eventer.peers import initialised
from tests.eventer_bridge.packed.messages import Writer
from tests.eventer_bridge.packed.support import compiled, decode_events, event_text, request
from tests.support.inprocess import APP, running_gateway
from tests.support.peer import RawPeer
from tests.support.waiting import until

pytestmark = compiled

TIME: Final = Timestamp(1_700_000_000, 0)
TEXTS: Final = (
    *(b'["a"]', b'["a"]', b'[ "a" ]', b'["b"]', b'["\\u0062"]', b'["a","b"]', b'["c"]'),
    *(b'["*"]', b'["a","\xc4\x8d"]', b"[]"),
)
"""Of types: the same ones again and again, one that nobody may register, and unusual ones."""

LIMITED: Final = {
    **APP,
    "name": "limited",
    "register_events": [{"subscriptions": [["a", "*"], ["c"]]}],
}
OURS: Final = [("?",), ("a", "*"), ()]
"""To what is registered here, and not to the events of the server."""

TIMEOUT_S: Final = 30.0

Play = Callable[[Gateway], Awaitable[Any]]


@pytest.fixture(autouse=True)
def still(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock stands still, so that answers are equal to the byte; failed stores open at once."""
    monkeypatch.setattr(Timestamp, "now", classmethod(lambda _: TIME))
    monkeypatch.setattr(limits, "STORE_RETRY_PERIOD_S", 0.02)


class Staged(list[bool]):
    """Whether requests were staged as they came, each time."""

    @property
    def share(self) -> float:
        return sum(self) / len(self) if self else 0.0


@pytest.fixture
def staged(monkeypatch: pytest.MonkeyPatch) -> Staged:
    found = Staged()
    stage_packed = Store.stage_packed

    def note(*args: Any) -> bool:
        is_staged = stage_packed(*args)
        found.append(is_staged)
        return is_staged

    monkeypatch.setattr(Store, "stage_packed", note)
    return found


@contextlib.asynccontextmanager
async def serving(path: Path, **store: Any) -> AsyncIterator[Gateway]:
    core = {
        "server_id": 1,
        "backend": {"type": "rocksdb", "path": str(path), **store},
        "eventer_server": {"host": "127.0.0.1", "port": 0, "token": None},
    }
    async with running_gateway([APP, LIMITED], event_core=core) as gateway:
        yield gateway


def backend_of(gateway: Gateway) -> RocksDbBackend:
    assert isinstance(gateway._backend, RocksDbBackend)
    return gateway._backend


def core_of(gateway: Gateway) -> Engine:
    assert isinstance(gateway.core, Engine)
    return gateway.core


def known_types(gateway: Gateway) -> KnownTypes | None:
    return gateway.mariner.service.known_types


def stored(path: Path) -> dict[str, list[Any]]:
    """What is stored of what clients registered; the store is closed.

    But for blocks, which depend on what came together; they are checked.
    """
    check_store(path)
    found: dict[str, list[Any]] = {"order": []}
    with control.open_read_only(path) as store, store.in_use():
        types = found["type"] = store.ext_types()
        ours = {type_id for type_id, event_type in types if event_type[:1] != ("event",)}
        for family in ("event", "source"):
            rows_of = store.snapshot().rows(family)
            found[family] = [row for row in rows_of if row[0][: keys.TYPE_BYTES] in ours]
        rows = store.iterator("default")
        rows.seek(keys.IN_ORDER_KEY)
        while rows.valid() and rows.key().startswith(keys.IN_ORDER_KEY):
            found["order"].append((rows.key(), rows.value()))
            rows.next()
        del rows
    return found


async def both(path: Path, play: Play, **store: Any) -> tuple[Any, Any]:
    """What is told and stored by a gateway that packs, and by one that does not."""
    async with serving(path / "packing", **store) as gateway:
        assert known_types(gateway) is not None
        told = await play(gateway)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packed, "IS_COMPILED", False)
        async with serving(path / "plain", **store) as gateway:
            assert known_types(gateway) is None
            expected = await play(gateway)
    return (told, stored(path / "packing")), (expected, stored(path / "plain"))


# --- peers --------------------------------------------------------------------------------


async def received(peer: RawPeer) -> bytes:
    """The next message, as it came."""
    size = (await peer.reader.readexactly(1))[0]
    length = int.from_bytes(await peer.reader.readexactly(size), "big")
    return await peer.reader.readexactly(length)


async def answers(peer: RawPeer, requests: Sequence[bytes]) -> list[bytes]:
    """Send requests together; the answers."""
    peer.send_together(requests)
    return [await received(peer) for _ in requests]


_EVENT: Final = re.compile(rb'\{"id":')


async def heard(peer: RawPeer, n_events: int) -> bytes:
    """What a subscriber hears of so many events, without how they are grouped to messages."""
    found = b""
    while n_events > 0:
        message = await received(peer)
        if b'"msg_type":"events"' in message:
            n_events -= len(_EVENT.findall(message))
            found += message.removeprefix(b'{"msg_type":"events","events":[')[:-2] + b","
    assert n_events == 0
    return found


def n_stored(found: Sequence[bytes]) -> int:
    """Number of events that became so, by answers."""
    return sum(len(_EVENT.findall(i)) for i in found if b'"repeated":true' not in i)


async def queried(gateway: Gateway) -> list[list[Event]]:
    """What is found, in every order."""
    params: list[QueryParams] = [
        QueryLatestParams(OURS),
        QueryLatestParams([("a",), ("c",)]),
        *(
            QueryTimeseriesParams(types, order=order, order_by=order_by)
            for types in (OURS, [("a",)], [("b",), ("a", "*")])
            for order in Order
            for order_by in OrderBy
        ),
    ]
    backend = backend_of(gateway)
    return [[*(await backend.query(i)).events] for i in params]


def some_requests(seed: int, number: int) -> list[list[bytes]]:
    """Requests in turns, right ones, which most often are in order."""
    writer, turns = Writer(seed, TEXTS), []
    source = 0
    for turn in range(number):
        requests = [writer.right() for _ in range(turn % 4)]
        for name in ("d", "e", "d"):
            events = [event_text(name, source + i, {"n": i}) for i in range(1 + turn % 3)]
            requests.append(request(*events, register_id=turn))
            source += len(events) // 2
        turns.append(requests)
    return turns


# --- tests --------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_answers_notifications_and_rows_are_the_same(
    tmp_path: Path, staged: Staged, seed: int
) -> None:
    async def play(gateway: Gateway) -> Any:
        told: list[Any] = []
        port, n_events = gateway.mariner.port, 0
        async with contextlib.AsyncExitStack() as stack:
            app = await stack.enter_async_context(await RawPeer.init(port))
            limited = await stack.enter_async_context(
                await RawPeer.init(port, client_name="limited")
            )
            listeners: list[tuple[RawPeer, int]] = []
            for turn, requests in enumerate(some_requests(seed, 24)):
                if turn in (6, 12):  # nobody listens at first
                    listener = await RawPeer.init(port, subscriptions=OURS, persisted=turn == 12)
                    listeners.append((await stack.enter_async_context(listener), n_events))
                for peer in (app, limited):
                    found = await answers(peer, requests)
                    told.append(found)
                    n_events += n_stored(found)
            for listener, n_before in listeners:
                told.append(await heard(listener, n_events - n_before))
        told.append(await queried(gateway))
        return told

    packing, plain = await both(tmp_path, play)
    assert packing == plain
    assert len(staged) > 20
    assert staged.share > 0.2


async def test_eventer_beside_mariner(tmp_path: Path, staged: Staged) -> None:
    """The same types come over both wires, as other texts."""
    n_known: list[int] = []

    async def play(gateway: Gateway) -> Any:
        told: list[Any] = []
        assert gateway.eventer_server is not None
        async with (
            await RawPeer.init(gateway.mariner.port) as app,
            initialised(gateway.eventer_server) as eventer,
        ):
            for requests in some_requests(4, 16):
                told.append(await answers(app, requests))
                asked = [MsgRegisterReq([*decode_events(i)]) for i in requests]
                for to_send in asked:
                    eventer.send(to_send, last=False)
                for _ in asked:
                    _, message = await eventer.receive(MsgRegisterRes)
                    told.append(message.data)
            known = gateway.eventer_server.service.known_types
            n_known.append(0 if known is None else len(known))
        told.append(await queried(gateway))
        return told

    packing, plain = await both(tmp_path, play)
    assert packing == plain
    assert staged.share > 0.2
    assert n_known[0] > 0
    assert n_known[1] == 0


async def test_request_keys(tmp_path: Path, staged: Staged) -> None:
    def keyed(n: int, key: str, after: str | None = None) -> bytes:
        more = f',"request_key":"{key}"' + (f',"after_key":"{after}"' if after else "")
        return request(event_text("a", n, n), event_text("b", n), register_id=n, more=more.encode())

    first = [keyed(n, f"k{n}", f"k{n - 1}" if n else None) for n in range(5)]
    turns = [
        [request(event_text("a", 0, 0), event_text("b", 0))],
        first,
        first,
        [keyed(9, "k3"), keyed(10, "k10", "none"), keyed(11, "k11", "k10"), keyed(12, "k12")],
        [keyed(13, "k13"), keyed(13, "k13"), keyed(14, "k13"), request(event_text("a", 99))],
        first[::-1],
    ]

    async def play(gateway: Gateway) -> Any:
        told: list[Any] = []
        for number in range(2):
            async with await RawPeer.init(gateway.mariner.port) as peer:
                told += [await answers(peer, requests) for requests in turns[number:]]
        return told, await queried(gateway)

    packing, plain = await both(tmp_path, play)
    assert packing == plain
    assert any(b'"repeated":true' in i for turn in packing[0][0] for i in turn)
    assert any(staged[1:])


async def test_a_client_of_limited_rights(tmp_path: Path, staged: Staged) -> None:
    """It is refused what it may not, also when others have registered that type."""
    turns = [
        [request(event_text(name, n)) for name in names]
        for n, names in enumerate(["abc", "abc", "cac", "b", "ccb", "bcc"])
    ]

    async def play(gateway: Gateway) -> Any:
        port = gateway.mariner.port
        async with (
            await RawPeer.init(port) as app,
            await RawPeer.init(port, client_name="limited") as limited,
        ):
            return [(await answers(app, i), await answers(limited, i)) for i in turns]

    packing, plain = await both(tmp_path, play)
    assert packing == plain
    for (by_app, by_limited), requests in zip(packing[0], turns, strict=True):
        assert all(b'"success":true' in i for i in by_app)
        for answer, asked in zip(by_limited, requests, strict=True):
            assert (b'"success":true' in answer) is (b'["b"]' not in asked)
    assert sum(staged) > len(turns)


async def test_retention_counts_what_was_packed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, staged: Staged
) -> None:
    monkeypatch.setattr(limits, "RETENTION_PERIOD_S", 0.01)
    monkeypatch.setattr(limits, "RETENTION_MIN_PERIOD_S", 0.01)
    rules = [
        {"subscriptions": [["a"]], "max_entries": 5},
        {"subscriptions": [["b"]], "max_entries": 1_000},
    ]

    async def play(gateway: Gateway) -> Any:
        backend = backend_of(gateway)
        async with await RawPeer.init(gateway.mariner.port) as peer:
            for n in range(40):
                requests = [request(event_text("a", n), event_text("b", n, n))] * (1 + n % 3)
                for answer in await answers(peer, requests):
                    assert b'"success":true' in answer
        params = QueryTimeseriesParams([("a",)])
        while len((await backend.query(params)).events) != 5:
            await asyncio.sleep(0.001)
        return await queried(gateway)

    packing, plain = await both(tmp_path, play, retention=rules)
    assert packing[0] == plain[0]
    assert packing[1]["event"] == plain[1]["event"]
    assert sum(staged) > 35


async def gathered(backend: RocksDbBackend, n_events: int) -> None:
    """Wait until so many events are not committed yet."""
    await until(lambda: sum(i.commit.n_events for i in backend._groups) == n_events, pause_s=0)


async def fail_with_new_types(gateway: Gateway, peer: RawPeer, *names: str) -> list[bytes]:
    """Have a commit with the first type fail, and with it types that gathered behind it.

    Nothing else is under way.
    """
    backend, known = backend_of(gateway), known_types(gateway)
    n_known = 0 if known is None else len(known)
    with held_sync() as may_sync:
        with failing_sync():
            peer.send(request(event_text(names[0])))
            await being_synced(backend)
            for number, name in enumerate((*names[1:], *names[1:]), 1):
                peer.send(request(event_text(name)))
                await gathered(backend, number + 1)
            if known is not None:  # all but the first one were asked for again
                assert len(known) >= n_known + len(names) - 1
            may_sync.release()
            await until(lambda: backend.failure is not None, pause_s=0)
        may_sync.release(1_000)
        await recovered(backend)
    return [await answer(peer) for _ in range(2 * len(names) - 1)]


async def answer(peer: RawPeer) -> bytes:
    while b'"register_res"' not in (found := await received(peer)):
        pass
    return found


def types_by_payload(events: Sequence[Event]) -> dict[bytes, str]:
    return {bytes(i.payload.data): i.type[0] for i in events if isinstance(i.payload, JsonPayload)}


async def test_types_of_a_failed_commit_are_not_confused(tmp_path: Path, staged: Staged) -> None:
    names = "pqrs"

    async def play(gateway: Gateway) -> Any:
        backend = backend_of(gateway)
        async with await RawPeer.init(gateway.mariner.port) as peer:
            told = await answers(peer, [request(event_text("a", 1)), request(event_text("a", 2))])
            told += await fail_with_new_types(gateway, peer, *names)
            peer.send(b'{"msg_type":"ping_req","ping_id":1}')
            while b"ping_res" not in await received(peer):  # it is operational again
                pass
            for number in range(3):
                for name in (*reversed(names), "a"):  # their ids are others now
                    text = event_text(name, 9 + number, f"{name} {number}")
                    peer.send(request(text))
                    told.append(await answer(peer))
                    assert b'"success":true' in told[-1]
        found = (await backend.query(QueryTimeseriesParams(OURS))).events
        by_payload = types_by_payload(found)
        assert len(by_payload) == 3 * (len(names) + 1)
        for payload, name in by_payload.items():
            assert payload[1:2].decode() == name
        return [i.replace(str(tmp_path / "packing").encode(), b"") for i in told]

    (told, rows), (expected, expected_rows) = await both(tmp_path, play)
    plain_path = str(tmp_path / "plain").encode()
    assert told == [i.replace(plain_path, b"") for i in expected]
    assert rows == expected_rows
    assert staged.count(True) > 6


async def test_what_was_packed_before_the_store_was_opened_again(tmp_path: Path) -> None:
    """Its types have other ids now; it becomes a session all the same."""
    async with serving(tmp_path) as gateway:
        core, backend = core_of(gateway), backend_of(gateway)
        known = known_types(gateway)
        assert known is not None
        async with await RawPeer.init(gateway.mariner.port) as peer:
            await answers(peer, [request(event_text("a", 1))])
            await fail_with_new_types(gateway, peer, "p", "q", "r")
            await until(lambda: core.status.name == "OPERATIONAL", pause_s=0)
            peer.send(request(event_text("r", 1, "r")))
            await answer(peer)
            peer.send(request(event_text("q", 1, "q")))
            await answer(peer)
            messages = [request(event_text(name, 5, name), event_text(name, 6)) for name in "qr"]
            old = [packed.pack(i, known, decode_events) for i in messages]
            assert all(old)
            known.clear()
            registered = [i for i in old if i is not None]
            assert not any(i.is_valid for i in registered)
            sources = [Source(SourceType.CONNECTION, 99)] * 2
            outcomes = core.register_all(sources, registered, [None, None])
            assert all(isinstance(i, Session) and i.packed is None for i in outcomes)
            await backend.flush()
        found = (await backend.query(QueryTimeseriesParams(OURS))).events
        for payload, name in types_by_payload(found).items():
            assert payload == b'"%b"' % name.encode()
    check_store(tmp_path)


async def test_packed_sessions_have_their_events(tmp_path: Path) -> None:
    """Who asks for them later, while the message is all that is kept."""
    async with serving(tmp_path) as gateway:
        core = core_of(gateway)
        async with await RawPeer.init(gateway.mariner.port) as peer:
            await answers(peer, [request(event_text("a"))] * 2)
        known = known_types(gateway)
        assert known is not None
        message = request(event_text("a", 1, [1]), event_text("a", 2))
        found = packed.pack(message, known, decode_events)
        assert isinstance(found, Packed)
        sources = [Source(SourceType.CONNECTION, 99)]
        core.register_all(sources, [decode_events(request(event_text("a", 0)))], [None])
        [session] = core.register_all(sources, [found], [None])
        assert isinstance(session, Session)
        await asyncio.wait([session.committed])
        events = [*session.events]
        backend = backend_of(gateway)
        params = QueryTimeseriesParams([("a",)], order=Order.ASCENDING)
        assert events == [*(await backend.query(params)).events][-2:]


async def test_what_cannot_be_packed_is_registered_with_the_rest(
    tmp_path: Path, staged: Staged
) -> None:
    """Requests of several kinds, in one piece, keep their order."""
    binary = (
        b'{"type":["a"],"source_timestamp":null,'
        b'"payload":{"payload_type":"binary","data_type":"x","data":"AA=="}}'
    )
    turn = [
        *(request(event_text("a", n), event_text("a", n)) for n in range(3)),
        request(binary),
        request(event_text("a", 5)),
        request(),
        request(event_text("a", None, b"[" * 40 + b"]" * 40)),
        request(event_text("a", 6), event_text("new one", 6)),
        request(event_text("?")),
        request(event_text("a", 7)),
        b'{"register_id":3,"msg_type":"register_req","register_events":[%b]}' % event_text("a", 8),
        request(event_text("a", 9)),
    ]

    async def play(gateway: Gateway) -> Any:
        async with await RawPeer.init(gateway.mariner.port) as peer:
            told = [await answers(peer, turn) for _ in range(3)]
            told += [await answers(peer, [message]) for message in turn]
        return told, await queried(gateway)

    packing, plain = await both(tmp_path, play)
    assert packing == plain
    assert any(staged)


class Gatherer:
    """What a client sent in an iteration of the loop (``gathering.GatheringClient``)."""

    stream: Any = None

    def __init__(self, core: Engine, requests: Sequence[Sequence[RegisterEvent]]) -> None:
        self.source = core.create_source(SourceType.CONNECTION)
        self.type_quota = TypeQuota("client app", 100)
        n_requests = len(requests)
        self.gathered: Gathered[int] | None
        self.gathered = Gathered([*range(n_requests)], [*requests], n_requests)
        self.sessions: list[Session] = []

    def wait_for_room(self) -> None:
        raise AssertionError("the core is not full")

    def take_gathered(self) -> Gathered[int] | None:
        return self.gathered

    def take_outcomes(
        self, gathered: Gathered[int], outcomes: Sequence[Session | EventerBridgeError]
    ) -> Sequence[Session]:
        assert len(gathered.requests) == len(outcomes)
        self.sessions = [i for i in outcomes if isinstance(i, Session)]
        return []

    def answer_large(self, outcome: object) -> None:
        raise AssertionError

    def answer(self) -> None:
        raise AssertionError


async def test_one_client_does_not_take_the_others_off_the_faster_way(tmp_path: Path) -> None:
    async with serving(tmp_path) as gateway:
        async with await RawPeer.init(gateway.mariner.port) as peer:
            await answers(peer, [request(event_text("a"))])
        types = gateway.mariner.service.known_types
        assert types is not None
        messages = [request(event_text("a", n)) for n in range(3)]
        decoded = [decode_events(message) for message in messages]

        def packing() -> list[Packed]:
            asked = [packed.pack(message, types, decode_events) for message in messages]
            return [i for i in asked if i is not None]

        core = core_of(gateway)
        clients = [
            Gatherer(core, packing()),
            Gatherer(core, [packing()[0], decoded[1]]),
            Gatherer(core, decoded),
            Gatherer(core, packing()),
        ]
        gathering = Gathering(core)
        for client in clients:
            gathering.add(client)
        async with asyncio.timeout(TIMEOUT_S):
            while not clients[-1].sessions:
                await asyncio.sleep(0)
        sessions = [session for client in clients for session in client.sessions]
        commits = {session.committed for session in sessions}
        await asyncio.wait(commits)
        assert len(commits) == 1
        kept = [[i.packed is not None for i in client.sessions] for client in clients]
        assert kept == [[True] * 3, [False] * 2, [False] * 3, [True] * 3]
        ids = [session.last_id.session for session in sessions]
        assert ids == [*range(ids[0], ids[0] + len(ids))]
        assert [i.last_id for i in sessions] == [i.events[-1].id for i in sessions]
