"""A gateway that is compiled does everything as one that is not: to the byte."""

import asyncio
import contextlib
import re
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

from eventer_bridge import limits, packed
from eventer_bridge.backends.rocksdb import RocksDbBackend, control, keys, rows, snapshot
from eventer_bridge.backends.rocksdb import store as store_module
from eventer_bridge.core.engine import Engine
from eventer_bridge.eventer import codec as eventer_codec
from eventer_bridge.eventer.messages import MsgRegisterReq, MsgRegisterRes
from eventer_bridge.model import (
    Event,
    JsonPayload,
    Order,
    OrderBy,
    QueryLatestParams,
    QueryParams,
    QueryTimeseriesParams,
    SourceType,
    Timestamp,
)
from eventer_bridge.packed import Batch, TypeTable, plain
from mariner.gateway.gateway import Gateway
from mariner.wire import codec, protocol
from tests.eventer_bridge.backends.consistency import check_store
from tests.eventer_bridge.backends.faults import being_synced, failing_sync, held_sync, recovered
from tests.eventer_bridge.eventer.peers import initialised
from tests.eventer_bridge.packed.messages import Writer
from tests.eventer_bridge.packed.support import compiled, decode_events, event_text, request
from tests.support.inprocess import APP, running_gateway
from tests.support.peer import RawPeer
from tests.support.waiting import until

pytestmark = compiled

_packed: Final[Any] = sys.modules.get("eventer_bridge.packed._packed")

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


class Read(list[bool]):
    """Whether requests were read as they came, each time."""

    @property
    def share(self) -> float:
        return sum(self) / len(self) if self else 0.0


@pytest.fixture
def was_read(monkeypatch: pytest.MonkeyPatch) -> Read:
    noted = Read()
    modules: list[tuple[Any, str]] = [(codec, "read_json"), (eventer_codec, "read_sbs")]
    for module, name in modules:
        monkeypatch.setattr(module, name, partial(_note, noted, getattr(module, name)))
    return noted


def _note(noted: Read, read: Callable[..., Batch | None], *args: Any) -> Batch | None:
    batch = read(*args)
    noted.append(batch is not None)
    return batch


def use_plain(patch: pytest.MonkeyPatch) -> None:
    """Have every module use the implementation in Python, as where there is no compiler."""
    others = {
        id(getattr(packed, name)): found
        for name, found in vars(plain).items()
        if found is not None and hasattr(_packed, name) and hasattr(packed, name)
    }
    for name, module in [*sys.modules.items()]:
        if name.startswith(("eventer_bridge.", "mariner.")) and module is not _packed:
            for key, value in [*vars(module).items()]:
                if key == "IS_COMPILED":
                    patch.setattr(module, key, False)
                elif id(value) in others:
                    patch.setattr(module, key, others[id(value)])
    patch.setattr(store_module, "ROWS", rows.PlainRows)
    patch.setattr(snapshot, "_read_rows", snapshot._read_in_python)
    may_send = protocol._MAY_SEND
    key_of = protocol.Role.CLIENT, protocol.State.OPEN
    patch.setitem(may_send, key_of, may_send[key_of] | {plain.Batch})


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
    assert isinstance(gateway.backend, RocksDbBackend)
    return gateway.backend


def core_of(gateway: Gateway) -> Engine:
    assert isinstance(gateway.core, Engine)
    return gateway.core


def types_of(gateway: Gateway) -> TypeTable:
    """Of the Mariner wire."""
    assert gateway.mariner.service.types is not None
    return gateway.mariner.service.types


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
    """What is told and stored by a gateway that is compiled, and by one that is not."""
    async with serving(path / "packing", **store) as gateway:
        assert type(types_of(gateway)) is _packed.TypeTable
        told = await play(gateway)
    with pytest.MonkeyPatch.context() as patch:
        use_plain(patch)
        async with serving(path / "plain", **store) as gateway:
            in_python: Any = types_of(gateway)
            assert type(in_python) is plain.TypeTable
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
    tmp_path: Path, was_read: Read, seed: int
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
    assert len(was_read) > 20
    assert was_read.share > 0.2


async def test_eventer_beside_mariner(tmp_path: Path, was_read: Read) -> None:
    """The same types come over both wires, as other texts."""

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
        told.append(await queried(gateway))
        return told

    packing, plain = await both(tmp_path, play)
    assert packing == plain
    assert was_read.share > 0.2


async def test_request_keys(tmp_path: Path, was_read: Read) -> None:
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
    assert any(was_read)


async def test_a_client_of_limited_rights(tmp_path: Path, was_read: Read) -> None:
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
    assert sum(was_read) > len(turns)


async def test_retention_counts_what_was_packed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, was_read: Read
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
    assert sum(was_read) > 35


async def gathered(backend: RocksDbBackend, n_events: int) -> None:
    """Wait until so many events are not committed yet."""
    await until(lambda: sum(i.commit.n_events for i in backend._groups) == n_events, pause_s=0)


async def fail_with_new_types(gateway: Gateway, peer: RawPeer, *names: str) -> list[bytes]:
    """Have a commit with the first type fail, and with it types that gathered behind it.

    Nothing else is under way.
    """
    backend = backend_of(gateway)
    with held_sync() as may_sync:
        with failing_sync():
            peer.send(request(event_text(names[0])))
            await being_synced(backend)
            for number, name in enumerate((*names[1:], *names[1:]), 1):
                peer.send(request(event_text(name)))
                await gathered(backend, number + 1)
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


async def test_types_of_a_failed_commit_are_not_confused(tmp_path: Path, was_read: Read) -> None:
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
    assert sum(was_read) > 6


async def test_what_was_read_before_the_store_was_opened_again(tmp_path: Path) -> None:
    """Its types have other ids now; it becomes a session all the same."""
    async with serving(tmp_path) as gateway:
        core, backend, types = core_of(gateway), backend_of(gateway), types_of(gateway)
        async with await RawPeer.init(gateway.mariner.port) as peer:
            await answers(peer, [request(event_text("a", 1))])
            messages = [request(event_text(name, 5, name), event_text(name, 6)) for name in "qrz"]
            old = [codec.read_batch(i, types) for i in messages]
            await fail_with_new_types(gateway, peer, "p", "q", "r")
            await until(lambda: core.status.name == "OPERATIONAL", pause_s=0)
            peer.send(request(event_text("r", 1, "r")))
            await answer(peer)
            peer.send(request(event_text("q", 1, "q")))
            await answer(peer)
            await submitted(core, old)
            await backend.flush()
        found = (await backend.query(QueryTimeseriesParams(OURS))).events
        by_payload = types_by_payload(found)
        assert {*by_payload.values()} >= {*"qrz"}
        for payload, name in by_payload.items():
            assert payload == b'"%b"' % name.encode()
    check_store(tmp_path)


async def submitted(core: Engine, batches: Sequence[Batch | None]) -> list[Batch]:
    """Register batches together, and wait until they are durable."""
    found: list[Batch] = []
    for batch in batches:
        assert batch is not None
        batch.source = core.create_source(SourceType.CONNECTION)
        found.append(batch)
    core.submit(found)
    await asyncio.wait({i.committed for i in found})
    for batch in found:
        await batch.committed
    return found


async def test_sessions_have_their_events(tmp_path: Path) -> None:
    """Who asks for them later, while the message is all that is kept."""
    async with serving(tmp_path) as gateway:
        core, types = core_of(gateway), types_of(gateway)
        message = request(event_text("a", 1, [1]), event_text("a", 2))
        before = codec.read_batch(request(event_text("a", 0)), types)
        await submitted(core, [before])
        [session] = await submitted(core, [codec.read_batch(message, types)])
        events = [*session.events]
        assert len(events) == 2
        backend = backend_of(gateway)
        params = QueryTimeseriesParams([("a",)], order=Order.ASCENDING)
        assert events == [*(await backend.query(params)).events][-2:]


async def test_what_is_unusual_is_registered_with_the_rest(tmp_path: Path, was_read: Read) -> None:
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
    assert any(was_read)
    assert not all(was_read)


async def test_read_batches_and_others_are_committed_together(tmp_path: Path) -> None:
    async with serving(tmp_path) as gateway:
        core, types = core_of(gateway), types_of(gateway)
        messages = [request(event_text("a", n), event_text("new one", n)) for n in range(9)]
        batches = [
            packed.batch_of(decode_events(message), types)
            if number % 2
            else codec.read_batch(message, types)
            for number, message in enumerate(messages)
        ]
        sessions = await submitted(core, batches)
        assert len({i.committed for i in sessions}) == 1
        ids = [session.last_id.session for session in sessions]
        assert ids == [*range(ids[0], ids[0] + len(ids))]
        for session, message in zip(sessions, messages, strict=True):
            events = decode_events(message)
            assert [*session] == [*events]
            assert session.last_id == session.events[-1].id
            assert packed.encode_events(session) == codec.encode_events(session.events)
        params = QueryTimeseriesParams(OURS, order=Order.ASCENDING)
        found = (await backend_of(gateway).query(params)).events
        assert [*found] == [event for session in sessions for event in session.events]
    check_store(tmp_path)
