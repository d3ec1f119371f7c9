"""Registrations with a request key: stored once, whatever becomes of the first answer."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import pytest

from eventer_bridge import limits
from eventer_bridge.backends.rocksdb import RocksDbBackend
from eventer_bridge.core.engine import Engine
from eventer_bridge.model import (
    Event,
    JsonPayload,
    QueryTimeseriesParams,
    RegisterEvent,
    Status,
)
from mariner import client
from mariner.errors import (
    LocalProtocolError,
    OutcomeUnknownError,
    RegisterError,
    UnavailableError,
    UnsupportedError,
)
from mariner.gateway.gateway import Gateway
from tests.eventer_bridge.backends.faults import (
    being_synced,
    failing_from,
    full_disk,
    held_sync,
    recovered,
)
from tests.support.inprocess import APP, running_gateway
from tests.support.peer import RawPeer, event, frame, register_req

LISTEN: Final = {"host": "127.0.0.1", "port": 0}
OTHER: Final = {**APP, "name": "other"}


@contextlib.asynccontextmanager
async def serving(path: Path | None, **keys: Any) -> AsyncIterator[Gateway]:
    backend: dict[str, Any] = {"type": "memory"}
    if path is not None:
        backend = {"type": "rocksdb", "path": str(path / "store")}
    core = {"server_id": 1, "backend": {**backend, **keys}}
    async with running_gateway([APP, OTHER], event_core=core) as gateway:
        yield gateway


async def connect(gateway: Gateway, name: str = "app") -> client.Client:
    return await client.connect(
        "127.0.0.1", gateway.mariner.port, client_name=name, client_token="secret"
    )


def keyed(register_id: int, key: str, *events: dict[str, Any]) -> dict[str, Any]:
    return {**register_req(register_id, *events), "request_key": key}


def of(*segments: str, value: Any = 1) -> RegisterEvent:
    return RegisterEvent(segments, None, JsonPayload.of(value))


async def stored(connection: client.Client, *segments: str) -> list[Event]:
    params = QueryTimeseriesParams([segments])
    return [i async for i in connection.query_all(params)]


@pytest.fixture(params=["memory", "rocksdb"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path | None:
    return tmp_path if request.param == "rocksdb" else None


async def test_the_same_key_again_is_answered_as_the_first_time(path: Path | None) -> None:
    async with serving(path) as gateway, await connect(gateway) as connection:
        events = [of("a"), of("b", value={"x": None}), of("a")]
        first = await connection.register(events, "key")
        assert await connection.register(events, "key") == first
        assert len(await stored(connection, "*")) == 3 + len(await stored(connection, "event", "*"))
        assert await connection.register(events, "other key") != first
        assert await connection.register(events) != first


async def test_what_a_raw_peer_sees(path: Path | None) -> None:
    async with serving(path) as gateway, await RawPeer.init(gateway.mariner.port) as peer:
        first = await peer.request(keyed(1, "key", event("a")))
        assert first["success"]
        assert "repeated" not in first
        again = await peer.request(keyed(2, "key", event("a")))
        assert again == {**first, "register_id": 2, "repeated": True}
        other = await peer.request(keyed(3, "key", event("a", value=2)))
        assert other == {
            "msg_type": "register_res",
            "register_id": 3,
            "success": False,
            "error": "request_key 'key' was used before, with other events"
            " (JSON payloads are compared as they were written)",
        }
        for wrong in ("", "k" * 65):
            response = await peer.request(keyed(4, wrong, event("a")))
            assert not response["success"]
            assert "/request_key" in response["error"]


MESSAGE: Final = (
    b'{"msg_type":"register_req","register_id":%d,"register_events":[%s],"request_key":"key"}'
)
EVENT: Final = (
    b'{"type":["a","b"],"source_timestamp":{"s":1,"us":2},'
    b'"payload":{"payload_type":"json","data":{"x":1,"y":[2.5]}}}'
)


@pytest.mark.parametrize("is_packed", [True, False])
async def test_json_is_the_same_if_it_is_written_so(path: Path | None, is_packed: bool) -> None:
    async with serving(path) as gateway, await RawPeer.init(gateway.mariner.port) as peer:
        if is_packed:  # as types are that are known
            assert (await peer.request(register_req(1, event("a", "b"))))["success"]
        peer.send_raw(frame(MESSAGE % (2, EVENT)))
        first = await peer.receive()
        assert first["success"]
        # however it is written around them
        elsewhere = (
            b'{"payload": {"data":{"x":1,"y":[2.5]}, "payload_type":"json"},'
            b' "type": ["a", "\\u0062"], "source_timestamp": {"us":2, "s":1}}'
        )
        for number, same in enumerate((EVENT, elsewhere), 3):
            peer.send_raw(frame(MESSAGE % (number, same)))
            assert await peer.receive() == {**first, "register_id": number, "repeated": True}
        data = b'{"x":1,"y":[2.5]}'
        for other in (b'{"y":[2.5],"x":1}', b'{"x":1, "y":[2.5]}', b'{"x":1.0,"y":[2.5]}'):
            peer.send_raw(frame(MESSAGE % (9, EVENT.replace(data, other))))
            refused = await peer.receive()
            assert "compared as they were written" in refused["error"]


async def test_keys_of_other_clients_are_others(path: Path | None) -> None:
    async with (
        serving(path) as gateway,
        await connect(gateway) as one,
        await connect(gateway, "other") as two,
    ):
        assert await one.register([of("a")], "key") != await two.register([of("a")], "key")


async def test_many_at_once_store_one(path: Path | None) -> None:
    async with serving(path) as gateway, contextlib.AsyncExitStack() as stack:
        peers = [
            await stack.enter_async_context(await RawPeer.init(gateway.mariner.port))
            for _ in range(3)
        ]
        for peer in peers:
            for number in range(50):
                peer.send(keyed(number, f"key {number % 5}", event("a", value=number % 5)))
                peer.send(register_req(100 + number, event("b")))
        ids: dict[int, set[tuple[int, ...]]] = {}
        n_repeated = 0
        for peer in peers:
            for number in range(50):
                response = await peer.receive()
                assert response["register_id"] == number  # in the order of the requests
                n_repeated += response.get("repeated", False)
                (found,) = response["events"]
                ids.setdefault(number % 5, set()).add(tuple(found["id"].values()))
                assert (await peer.receive())["register_id"] == 100 + number
        assert {len(i) for i in ids.values()} == {1}
        assert n_repeated == 145
        async with await connect(gateway) as connection:
            assert len(await stored(connection, "a")) == 5


@pytest.mark.parametrize("n_events", [100, 3_000])
async def test_a_repeated_registration_of_many_events(path: Path | None, n_events: int) -> None:
    async with serving(path) as gateway, await connect(gateway) as connection:
        events = [of("a", value=i) for i in range(n_events)]
        both = await asyncio.gather(*(connection.register(events, "key") for _ in range(2)))
        assert both[0] == both[1]
        assert await connection.register(events, "key") == both[0]
        with pytest.raises(RegisterError, match="with other events"):
            await connection.register(events[1:], "key")
        assert await stored(connection, "a") == [*reversed(both[0])]


async def test_modules_do_not_disturb(path: Path | None) -> None:
    backend: dict[str, Any] = {"type": "memory"}
    if path is not None:
        backend = {"type": "rocksdb", "path": str(path / "store")}
    audit = {"module": "eventer_bridge.modules.audit", "subscriptions": [["a"]]}
    core = {"server_id": 1, "backend": backend, "modules": [audit]}
    async with running_gateway(event_core=core) as gateway, await connect(gateway) as connection:
        both = await asyncio.gather(*(connection.register([of("a")], "key") for _ in range(2)))
        assert both[0] == both[1] == await connection.register([of("a")], "key")
        assert len(await stored(connection, "a")) == 1


async def test_keys_outlive_the_gateway(tmp_path: Path) -> None:
    async with serving(tmp_path) as gateway, await connect(gateway) as connection:
        first = await connection.register([of("a")], "key")
        large = await connection.register([of("b")] * 3_000, "large")
    async with serving(tmp_path) as gateway, await connect(gateway) as connection:
        assert await connection.register([of("a")], "key") == first
        assert await connection.register([of("b")] * 3_000, "large") == large
        assert len(await stored(connection, "a")) == 1


async def test_a_retry_settles_an_unknown_outcome(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "STORE_RETRY_PERIOD_S", 0.02)
    async with serving(tmp_path) as gateway, await connect(gateway) as connection:
        assert isinstance(gateway.core, Engine)
        backend = gateway.backend
        assert isinstance(backend, RocksDbBackend)
        with failing_from(gateway.core, ("a",)):
            with pytest.raises(OutcomeUnknownError):
                await connection.register([of("a")], "key")
            with pytest.raises(UnavailableError):
                await connection.register([of("a")], "key")
        await recovered(backend)
        await connection.wait_status(Status.OPERATIONAL)
        events = await connection.register([of("a")], "key")
        assert await stored(connection, "a") == events


async def test_a_retry_while_the_first_is_synced(tmp_path: Path) -> None:
    async with (
        serving(tmp_path) as gateway,
        await connect(gateway) as connection,
        await connect(gateway) as other,
    ):
        with held_sync():
            first = asyncio.ensure_future(connection.register([of("a")], "key"))
            await being_synced(gateway.backend)
            again = asyncio.ensure_future(other.register([of("a")], "key"))
            await asyncio.sleep(0)
            await other.ping()
            assert not again.done()
        assert await first == await again
        assert len(await stored(other, "a")) == 1


async def test_retries_while_what_came_with_the_first_is_synced(tmp_path: Path) -> None:
    """It is stored, but under way until those that came with it are, too."""
    async with (
        serving(tmp_path) as gateway,
        await RawPeer.init(gateway.mariner.port) as peer,
        await RawPeer.init(gateway.mariner.port) as other,
    ):
        await peer.request(register_req(0, event("a")))
        with held_sync() as may_sync:
            new_types = [event("n", str(i)) for i in range(limits.MANY_NEW_TYPES + 1)]
            messages = keyed(1, "first", event("a")), keyed(2, "new types", *new_types)
            peer.send_together(messages)
            may_sync.release()
            first = await peer.receive()
            assert first["register_id"] == 1
            for i in range(3):
                again = await other.request(keyed(i, "first", event("a")))
                assert again == {**first, "register_id": i, "repeated": True}
        assert (await peer.receive())["register_id"] == 2


async def test_a_key_that_was_refused_and_used_again_is_known(tmp_path: Path) -> None:
    """Though those that came with the first use are stored, and forgotten, before."""
    ping = {"msg_type": "ping_req", "ping_id": 1}
    async with (
        serving(tmp_path) as gateway,
        await RawPeer.init(gateway.mariner.port) as peer,
        await RawPeer.init(gateway.mariner.port) as other,
    ):
        await peer.request(register_req(0, event("a")))
        with held_sync() as may_sync:
            messages = keyed(1, "key", event("?")), keyed(2, "other", event("a"))
            peer.send_together(messages)
            await being_synced(gateway.backend)
            peer.send(keyed(3, "key", event("a")))
            refused = await peer.receive()
            assert (refused["register_id"], refused["success"]) == (1, False)
            assert (await peer.request(ping))["ping_id"] == 1
            may_sync.release()
            assert (await peer.receive())["register_id"] == 2
            other.send(keyed(4, "key", event("a")))
            for _ in range(2):  # it waits
                assert (await other.request(ping))["ping_id"] == 1
        first = await peer.receive()
        assert first["register_id"] == 3
        assert await other.receive() == {**first, "register_id": 4, "repeated": True}


async def test_keys_are_forgotten_after_their_time(path: Path | None) -> None:
    async with (
        serving(path, request_keys={"duration": 1e-6}) as gateway,
        await connect(gateway) as connection,
    ):
        first = await connection.register([of("a")], "key")
        second = await connection.register([of("a", value=2)], "key")
        assert first[0].id != second[0].id


async def test_the_newest_keys_are_kept(path: Path | None) -> None:
    async with (
        serving(path, request_keys={"max_entries": 10}) as gateway,
        await connect(gateway) as connection,
    ):
        firsts = [await connection.register([of("a")], f"key {i}") for i in range(35)]
        for i in range(25, 35):
            assert await connection.register([of("a")], f"key {i}") == firsts[i]
        for i in range(15):
            assert await connection.register([of("a")], f"key {i}") != firsts[i]


async def test_what_keeps_no_keys_says_so() -> None:
    core = {"server_id": 1, "backend": {"type": "dummy"}}
    async with (
        running_gateway(event_core=core) as gateway,
        await RawPeer.init(gateway.mariner.port) as peer,
        await connect(gateway) as connection,
    ):
        response = await peer.request(keyed(1, "key", event("a")))
        assert response["error"] == "this server does not keep a request_key"
        assert connection.extensions == {"latest_paging"}
        with pytest.raises(UnsupportedError, match=r"the server does not know 'request_key'$"):
            await connection.register([of("a")], "key")


async def test_after_key(path: Path | None) -> None:
    async with serving(path) as gateway, await RawPeer.init(gateway.mariner.port) as peer:

        def after(number: int, key: str, before: str, *events: dict[str, Any]) -> dict[str, Any]:
            return {**keyed(number, key, *events), "after_key": before}

        refused = await peer.request(after(1, "b", "a", event("b")))
        assert refused == {
            "msg_type": "register_res",
            "register_id": 1,
            "success": False,
            "error": "request_key 'a', its after_key, is not stored",
            "outcome": "unavailable",
        }
        peer.send(after(2, "c", "b", event("c")))
        peer.send(keyed(3, "a", event("a")))
        peer.send(after(4, "b", "a", event("b")))
        peer.send(after(5, "c", "b", *[event("c")] * 3_000))
        peer.send(after(6, "d", "c", event("d")))
        peer.send(after(7, "d", "x", event("d")))
        assert [(await peer.receive())["success"] for _ in range(6)] == [False, *[True] * 5]
        assert (await peer.request(after(8, "e", "a", event("e"))))["success"]
        async with await connect(gateway) as connection:
            found = [i.type[0] for i in reversed(await stored(connection, "*")) if len(i.type) == 1]
            assert found == ["a", "b", *["c"] * 3_000, "d", "e"]


@pytest.mark.parametrize("payload_bytes", [1, 20_000, 40_000, 200_000])
async def test_an_after_key_alone_is_refused(path: Path | None, payload_bytes: int) -> None:
    # large ones are not explained by the schema, larger ones are decoded in slices
    async with serving(path) as gateway, await RawPeer.init(gateway.mariner.port) as peer:
        some = {"payload_type": "json", "data": ["x" * 1_000] * (payload_bytes // 1_000)}
        of_size = [{**event("a"), "payload": some}]
        for key in {}, {"request_key": None}:
            request = {"msg_type": "register_req", "register_id": 7, "register_events": of_size}
            response = await peer.request({**request, **key, "after_key": "before"})
            assert (response["register_id"], response["success"]) == (7, False)
            assert "after_key: expected with a request_key only" in response["error"]
            assert "outcome" not in response
        # two together are looked at together
        peer.send({**request, "after_key": "before"})
        peer.send({**request, "register_id": 8, "request_key": None, "after_key": None})
        assert [(await peer.receive())["success"] for _ in range(2)] == [False, True]
        async with await connect(gateway) as connection:
            assert len(await stored(connection, "a")) == 1
            with pytest.raises(LocalProtocolError, match=r"^after_key: expected with a request_"):
                await connection.register([of("a")], after_key="before")


async def test_those_after_one_that_fails_fail_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "STORE_RETRY_PERIOD_S", 0.02)
    async with serving(tmp_path) as gateway, await connect(gateway) as connection:
        backend = gateway.backend
        assert isinstance(backend, RocksDbBackend)
        with full_disk(), pytest.raises(OutcomeUnknownError):
            await connection.register([of("a")], "a")
        await recovered(backend)
        await connection.wait_status(Status.OPERATIONAL)
        # what was on its way when the client heard of the failure
        with pytest.raises(UnavailableError, match=r"^request_key 'a', its after_key, is not "):
            await connection.register([of("b")], "b", after_key="a")
        await connection.register([of("a")], "a")
        await connection.register([of("b")], "b", after_key="a")


async def test_a_relay_says_that_it_keeps_no_keys() -> None:
    core = {"server_id": 1, "backend": {"type": "memory"}, "eventer_server": LISTEN}
    async with running_gateway(event_core=core) as remote:
        assert remote.eventer_server is not None
        address = {"host": "127.0.0.1", "port": remote.eventer_server.address.port}
        async with (
            running_gateway(eventer=address) as gateway,
            await RawPeer.init(gateway.mariner.port) as peer,
        ):
            response = await peer.request(keyed(1, "key", event("a")))
            assert response["error"] == "this server does not keep a request_key"
