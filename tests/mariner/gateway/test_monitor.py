"""Active and standby: pairs of gateways in their own processes, with real Monitor Servers."""

import asyncio
import contextlib
import os
import re
import signal
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import hat.event.component
import pytest
from hat import aio
from hat.drivers import net
from hat.event import common
from hat.event import eventer as hat_eventer

from eventer_bridge import limits as core_limits
from eventer_bridge.backends.rocksdb.store import Store
from eventer_bridge.core.engine import Engine
from eventer_bridge.errors import StorageError
from eventer_bridge.model import QueryTimeseriesParams, Status
from eventer_bridge.remote import limits
from eventer_bridge.remote.group import ServerGroup
from tests.eventer_bridge.backends.faults import full_disk
from tests.support import proxy
from tests.support.gateway import gateway
from tests.support.hat_peers import HOST, hat_event_server, monitor_server
from tests.support.inprocess import running_gateway
from tests.support.pair import begin_store, core, pair
from tests.support.peer import INIT, RawPeer, event, register_req
from tests.support.process import ChildError
from tests.support.shifted import ShiftedClock

# Mariner clients are told STANDBY when it is STOPPING
REFUSALS = {f"server is {i}, not OPERATIONAL" for i in ("STOPPING", "STANDBY")}
EVERYTHING: dict[str, Any] = {
    "msg_type": "query_req",
    "query_id": 1,
    "query_type": "timeseries",
    "event_types": [["*"]],
    "order": "ASCENDING",
    "order_by": "TIMESTAMP",
}
POLL_INTERVAL_S = 0.02


async def told(peer: RawPeer, status: str) -> None:
    """Wait until the server tells its client of a status."""
    while (await peer.receive()).get("status") != status:
        pass


@contextlib.asynccontextmanager
async def client_of(port: int, status: str) -> AsyncIterator[RawPeer]:
    """A client of a gateway that has, or comes to, a status."""
    async with await RawPeer.connect(port) as peer:
        peer.send(INIT)
        await told(peer, status)
        yield peer


async def stored(peer: RawPeer) -> list[Any]:
    """All that a gateway stores, in natural order."""
    events: list[Any] = []
    while True:
        last = {"last_event_id": events[-1]["id"]} if events else {}
        result = await peer.request({**EVERYTHING, **last})
        events.extend(result["events"])
        if not result["more_follows"]:
            return events


async def both_have(first: RawPeer, second: RawPeer, acknowledged: list[Any]) -> list[Any]:
    """Wait until both store the same, and what was acknowledged is part of it."""
    while True:
        events = await stored(first)
        found = [e for e in events if e["type"] == ["a"]]
        if events == await stored(second) and len(found) >= len(acknowledged):
            return events
        await asyncio.sleep(POLL_INTERVAL_S)


async def write(peer: RawPeer, acknowledged: list[Any], n_sessions: int | None = None) -> str:
    """Register events, so many or until the server does not take them; why it did not."""
    number = 0
    while n_sessions is None or number < n_sessions:
        number += 1
        peer.send(register_req(number, event("a", value=number), event("a")))
        try:
            while (answer := await peer.receive())["msg_type"] != "register_res":
                assert answer == {"msg_type": "status", "status": "STANDBY"}
        except (asyncio.IncompleteReadError, ConnectionError):
            return "connection lost"
        if not answer["success"]:
            return str(answer["error"])
        acknowledged.extend(answer["events"])
    return ""


async def more_than(acknowledged: list[Any], count: int) -> None:
    while len(acknowledged) <= count:
        await asyncio.sleep(POLL_INTERVAL_S)


def engine_states(events: list[Any], server_id: int) -> list[str]:
    wanted = ["event", str(server_id), "engine"]
    return [e["payload"]["data"] for e in events if e["type"] == wanted]


async def test_take_over_and_hand_back(tmp_path: Path) -> None:
    acknowledged: list[Any] = []
    async with pair(tmp_path) as (start, monitors), contextlib.AsyncExitStack() as peers:
        first = await start(1)
        at_first = await peers.enter_async_context(client_of(first.port, "OPERATIONAL"))
        second = await start(2)
        at_second = await peers.enter_async_context(client_of(second.port, "STANDBY"))
        assert await write(at_second, []) in REFUSALS
        assert await write(at_first, acknowledged, 20) == ""
        await both_have(at_first, at_second, acknowledged)  # a standby answers queries

        # take-over, in the middle of registrations
        writing = asyncio.create_task(write(at_first, acknowledged))
        await more_than(acknowledged, 60)
        first.process.kill()
        assert await writing == "connection lost"
        await told(at_second, "OPERATIONAL")

        # hand-back, in the middle of registrations
        writing = asyncio.create_task(write(at_second, acknowledged))
        first = await start(1)
        at_first = await peers.enter_async_context(client_of(first.port, "OPERATIONAL"))
        assert await writing in REFUSALS
        assert await write(at_second, []) in REFUSALS
        assert await write(at_first, acknowledged, 20) == ""

        events = await both_have(at_first, at_second, acknowledged)
        by_id = {tuple(e["id"].values()): e for e in events}
        assert len(by_id) == len(events)
        assert all(by_id[tuple(e["id"].values())] == e for e in acknowledged)
        assert {e["id"]["server"] for e in acknowledged} == {1, 2}
        assert engine_states(events, 1) == ["STARTED", "STARTED"]
        assert engine_states(events, 2) == ["STARTED", "STOPPED"]
        places = [(*e["timestamp"].values(), *e["id"].values()) for e in events]
        assert places == sorted(places)

        # the second Monitor Server decides while the first is away
        monitors[0].process.kill()
        await told(at_first, "STANDBY")
        await told(at_second, "OPERATIONAL")


async def test_a_hat_component_follows(tmp_path: Path) -> None:
    found: asyncio.Queue[tuple[Any, Any]] = asyncio.Queue()
    operational = asyncio.Event()

    def on_client(_: Any, server: Any, client: Any) -> aio.Group:
        found.put_nowait((server, client))
        on_status(_, client, client.status)
        return aio.Group()

    def on_status(_: Any, client: Any, status: Any) -> None:
        if status is common.Status.OPERATIONAL:
            operational.set()
        else:
            operational.clear()

    async def register_at(server_id: int) -> list[Any]:
        """Wait for the component to find this server; register there, and query."""
        while True:
            server, client = await found.get()
            if server.server_id == server_id:
                break
        await operational.wait()
        payload = common.EventPayloadJson(server_id)
        wanted = [common.RegisterEvent(("a", str(server_id)), None, payload)]
        [registered] = await client.register(wanted, with_response=True)
        assert registered.id.server == server_id
        result = await client.query(common.QueryLatestParams([("a", "*")]))
        return sorted(e.payload.data for e in result.events)

    async with pair(tmp_path) as (start, monitors), contextlib.AsyncExitStack() as peers:
        first = await start(1)
        at_first = await peers.enter_async_context(client_of(first.port, "OPERATIONAL"))
        second = await start(2)
        at_second = await peers.enter_async_context(client_of(second.port, "STANDBY"))
        component = await hat.event.component.connect(
            net.TcpAddress(HOST, monitors[1].port),
            "gui",
            "guis",
            "gateways",
            "gui/1",
            on_client,
            status_cb=on_status,
            eventer_kwargs={"client_token": "pair"},
        )
        await component.set_ready(True)
        assert await register_at(1) == [1]
        await both_have(at_first, at_second, [])
        operational.clear()
        first.process.send_signal(signal.SIGTERM)
        assert await first.process.wait() == 0
        await told(at_second, "OPERATIONAL")
        assert await register_at(2) == [1, 2]
        await component.async_close()


async def test_a_pair_with_hat_event_server(tmp_path: Path) -> None:
    async with contextlib.AsyncExitStack() as stack:
        monitor = await stack.enter_async_context(monitor_server(tmp_path / "1", rank=1))
        following = monitor_server(tmp_path / "2", rank=2, master_port=monitor.master_port)
        second = await stack.enter_async_context(following)

        component = core(1, monitor.port)["monitor"]
        # it has the monitor tell of the port that is configured: one that nobody else takes
        with socket.create_server(("127.0.0.3", 0)) as free:
            listen = free.getsockname()

        @contextlib.asynccontextmanager
        async def hat_client() -> AsyncIterator[tuple[Any, int]]:
            async with hat_event_server(
                tmp_path / "hat",
                server_token="pair",
                flush_period_s=0.1,
                listen=listen,
                monitor_component=component,
            ) as server:
                client = await hat_eventer.connect(net.TcpAddress(server.host, server.port), "x")
                yield client, server.pid
                await client.async_close()

        events = [common.RegisterEvent(("hat",), None, common.EventPayloadJson(1))]
        async with hat_client() as (client, pid):
            ours = await stack.enter_async_context(
                gateway(tmp_path / "ours", core=core(2, second.port))
            )
            peer = await stack.enter_async_context(client_of(ours.port, "STANDBY"))
            assert await client.register(events, with_response=True)
            while ["hat"] not in [e["type"] for e in await stored(peer)]:
                await asyncio.sleep(POLL_INTERVAL_S)
            os.kill(pid, signal.SIGKILL)
            await told(peer, "OPERATIONAL")
        assert await write(peer, [], 10) == ""
        async with hat_client() as (client, _):  # OPERATIONAL again
            await told(peer, "STANDBY")
            params = common.QueryTimeseriesParams([("a",)])
            while len((await client.query(params)).events) < 20:
                await asyncio.sleep(POLL_INTERVAL_S)


async def test_hat_event_server_keeps_the_events_of_the_active_one(tmp_path: Path) -> None:
    async with contextlib.AsyncExitStack() as stack:
        monitor = await stack.enter_async_context(monitor_server(tmp_path / "monitor"))
        with socket.create_server(("127.0.0.3", 0)) as free:
            listen = free.getsockname()
        await begin_store(tmp_path / "ours" / "events")
        ours = await stack.enter_async_context(
            gateway(tmp_path / "ours", core=core(1, monitor.port))
        )
        peer = await stack.enter_async_context(client_of(ours.port, "OPERATIONAL"))

        async def until_kept(hat: hat_eventer.Client, registered: list[Any]) -> None:
            """Wait until exactly these are kept there, in this order."""
            params = common.QueryServerParams(1)
            kept: list[Any] = []
            while len(kept) < len(registered):
                events = (await hat.query(params)).events
                kept = [e for e in events if e.type == ("a",)]
                ids = [e["id"] for e in registered[: len(kept)]]
                assert [e.id._asdict() for e in kept] == ids
                await asyncio.sleep(POLL_INTERVAL_S)
            assert [e.timestamp._asdict() for e in kept] == [e["timestamp"] for e in registered]
            values = [e["payload"]["data"] if e["payload"] else None for e in registered]
            assert [e.payload.data if e.payload else None for e in kept] == values

        registered: list[Any] = []
        assert await write(peer, registered, 20) == ""
        for _ in range(2):  # the second time it goes on where it was
            async with hat_event_server(
                tmp_path / "hat",
                server_id=2,
                server_token="pair",
                flush_period_s=0.1,
                listen=listen,
                monitor_component=core(2, monitor.port)["monitor"],
                status=common.Status.STANDBY,
            ) as server:
                hat = await hat_eventer.connect(net.TcpAddress(server.host, server.port), "x")
                await until_kept(hat, registered)
                assert await write(peer, registered, 20) == ""  # live
                await until_kept(hat, registered)
                await hat.async_close()
            assert await write(peer, registered, 20) == ""


async def is_started(
    stack: contextlib.AsyncExitStack, server: contextlib.AbstractAsyncContextManager[object]
) -> bool:
    """Start a server again; false: meanwhile a connection of another test has its port."""
    try:
        await stack.enter_async_context(server)
    except ChildError as e:
        if "address already in use" in str(e):
            return False
        raise
    return True


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
async def test_the_monitor_server_is_away(tmp_path: Path, number: signal.Signals) -> None:
    async with contextlib.AsyncExitStack() as stack:
        first = await stack.enter_async_context(monitor_server(tmp_path))
        await begin_store(tmp_path / "events")
        backend = {"type": "rocksdb", "path": str(tmp_path / "events")}
        event_core = {**core(1, first.port), "backend": backend}
        running = await stack.enter_async_context(running_gateway(event_core=event_core))
        peer = await stack.enter_async_context(client_of(running.mariner.port, "OPERATIONAL"))
        first.process.send_signal(number)
        await told(peer, "STANDBY")
        assert await write(peer, []) in REFUSALS
        await first.process.wait()
        async with asyncio.timeout(60):
            while not await is_started(stack, monitor_server(tmp_path / "again", port=first.port)):
                await asyncio.sleep(0.1)
        await told(peer, "OPERATIONAL")
        assert await write(peer, [], 1) == ""
        assert engine_states(await stored(peer), 1) == ["STARTED", "STOPPED", "STARTED"]
        # the gateway ends before the monitor that it uses
        await running.async_close()


async def test_an_engine_that_cannot_start_ends_the_gateway(tmp_path: Path) -> None:
    broken = {"module": "tests.eventer_bridge.modules.scripted"}  # wants more than that
    await begin_store(tmp_path / "events")
    async with monitor_server(tmp_path) as monitor:
        backend = {"type": "rocksdb", "path": str(tmp_path / "events")}
        event_core = {**core(1, monitor.port), "backend": backend, "modules": [broken]}
        async with running_gateway(event_core=event_core) as running:
            await running.wait_closing()
            assert running.failed == "monitor"


@contextlib.contextmanager
def wrong_clock() -> Iterator[None]:
    """The clock of this process is set back, behind events that it has, by more than is allowed."""
    with pytest.MonkeyPatch.context() as patch:
        ShiftedClock(patch).seconds = -2 * 86_400
        yield


@contextlib.contextmanager
def hanging_disk() -> Iterator[None]:
    """The storage thread of this process does not answer."""
    goes_on = threading.Event()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Store, "ext_free_bytes", lambda _: 1 << 40 if goes_on.wait() else 0)
        try:
            yield
        finally:
            goes_on.set()


def fail_once(
    monkeypatch: pytest.MonkeyPatch, where: type, name: str, begin: Callable[[], object]
) -> None:
    """Have something fail when a method is called for the first time, just before."""
    method = getattr(where, name)

    async def call(called: Any) -> None:
        monkeypatch.setattr(where, name, method)
        begin()
        await method(called)

    monkeypatch.setattr(where, name, call)


@pytest.mark.parametrize(
    ("fault", "begin", "reason"),
    [
        (full_disk, (Engine, "start"), "."),
        (full_disk, (ServerGroup, "wait_others_standby"), "."),
        (wrong_clock, (ServerGroup, "wait_others_standby"), "are ahead of the clock"),
        (hanging_disk, (ServerGroup, "wait_others_standby"), "storage thread does not answer"),
    ],
)
async def test_who_cannot_register_lets_another_one_go_on(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    fault: Callable[[], contextlib.AbstractContextManager[None]],
    begin: tuple[type, str],
    reason: str,
) -> None:
    monkeypatch.setattr(core_limits, "LOOK_TIMEOUT_S", 0.5)
    monkeypatch.setattr(core_limits, "CLOCK_PERIOD_S", 0.05)
    with contextlib.ExitStack() as faults:
        fail_once(monkeypatch, *begin, lambda: faults.enter_context(fault()))
        async with pair(tmp_path) as (start, monitors):
            second = await start(2)
            async with client_of(second.port, "OPERATIONAL") as at_second:
                assert await write(at_second, [], 1) == ""
                backend = {"type": "rocksdb", "path": str(tmp_path / "1" / "events")}
                event_core = {**core(1, monitors[0].port), "backend": backend}
                async with running_gateway(event_core=event_core) as first:
                    await told(at_second, "STANDBY")
                    await told(at_second, "OPERATIONAL")
                    assert isinstance(first.core, Engine)
                    while not re.search(reason, first.core.waits_for or ""):
                        await asyncio.sleep(POLL_INTERVAL_S)
                    assert first.is_open
                    assert await write(at_second, [], 1) == ""
                    faults.close()
                    async with client_of(first.mariner.port, "OPERATIONAL") as at_first:
                        assert await write(at_first, [], 1) == ""
                        assert first.core.waits_for is None


async def test_whose_disk_was_full_catches_up_before_it_is_active(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "TAKE_OVER_CATCH_UP_S", 0.0)
    answers: list[Any] = []
    with contextlib.ExitStack() as full:
        fail_once(monkeypatch, Engine, "start", lambda: full.enter_context(full_disk()))
        async with pair(tmp_path) as (start, monitors):
            second = await start(2)
            assert second.eventer_port is not None
            async with (
                proxy.create(second.eventer_port) as link,
                client_of(second.port, "OPERATIONAL") as at_second,
            ):
                source = {"server_id": 2, "host": proxy.HOST, "port": link.port, "token": "pair"}
                backend = {"type": "rocksdb", "path": str(tmp_path / "1" / "events")}
                event_core = {
                    **core(1, monitors[0].port),
                    "backend": backend,
                    "replication": [source],
                }
                async with running_gateway(event_core=event_core) as first:
                    await told(at_second, "STANDBY")
                    await told(at_second, "OPERATIONAL")
                    assert isinstance(first.core, Engine)
                    [replication] = first._replications
                    answers.append(await at_second.request(register_req(0, event("a"))))
                    while replication.state is not None:  # what comes cannot be kept
                        await asyncio.sleep(POLL_INTERVAL_S)
                    link.hold()
                    full.close()
                    while "registered meanwhile" not in (first.core.waits_for or ""):
                        await asyncio.sleep(POLL_INTERVAL_S)
                    for i in range(1, 50):  # it does not take over
                        answers.append(await at_second.request(register_req(i, event("a"))))
                        await asyncio.sleep(POLL_INTERVAL_S)
                    assert [i["msg_type"] for i in answers] == ["register_res"] * 50
                    link.go_on()
                    async with client_of(first.mariner.port, "OPERATIONAL"):
                        stored = (await first.core.query(QueryTimeseriesParams([("a",)]))).events
                        sessions = [i["events"][0]["id"]["session"] for i in reversed(answers)]
                        assert [i.id.session for i in stored] == sessions


def fail_starts(monkeypatch: pytest.MonkeyPatch, n_failures: int, *, retry_s: float) -> list[float]:
    """Have an engine of this process fail to start so often; when it was tried."""
    start_engine, tried_s = Engine.start, list[float]()

    async def start(engine: Engine) -> None:
        tried_s.append(asyncio.get_running_loop().time())
        if len(tried_s) <= n_failures:
            raise StorageError("read error")
        await start_engine(engine)

    monkeypatch.setattr(core_limits, "STORE_RETRY_PERIOD_S", retry_s)
    monkeypatch.setattr(Engine, "start", start)
    return tried_s


async def test_who_cannot_be_started_lets_another_one_go_on_for_longer_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried_s = fail_starts(monkeypatch, 4, retry_s=0.2)
    async with pair(tmp_path) as (start, monitors):
        second = await start(2)
        async with client_of(second.port, "OPERATIONAL"):
            backend = {"type": "rocksdb", "path": str(tmp_path / "1" / "events")}
            event_core = {**core(1, monitors[0].port), "backend": backend}
            async with (
                running_gateway(event_core=event_core) as first,
                client_of(first.mariner.port, "OPERATIONAL"),
            ):
                pass
    waits_s = [later - earlier for earlier, later in pairwise(tried_s)]
    assert len(waits_s) == 4
    assert all(wait_s > 0.2 * 2**i for i, wait_s in enumerate(waits_s))


async def test_who_cannot_be_started_and_is_alone_tries_again_soon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried_s = fail_starts(monkeypatch, 15, retry_s=0.01)  # or the last wait would take minutes
    await begin_store(tmp_path / "events")
    async with monitor_server(tmp_path) as monitor:
        backend = {"type": "rocksdb", "path": str(tmp_path / "events")}
        event_core = {**core(1, monitor.port), "backend": backend}
        async with (
            running_gateway(event_core=event_core) as running,
            client_of(running.mariner.port, "OPERATIONAL"),
        ):
            assert len(tried_s) == 16


async def test_not_a_monitor_server(caplog: pytest.LogCaptureFixture) -> None:
    attempts: asyncio.Queue[None] = asyncio.Queue()

    async def close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        attempts.put_nowait(None)
        writer.close()

    async with await asyncio.start_server(close, HOST, 0) as server:
        port = server.sockets[0].getsockname()[1]
        event_core = {**core(1, port), "backend": {"type": "memory"}}
        async with running_gateway(event_core=event_core) as running:
            for _ in range(3):
                await attempts.get()
            assert running.core.status is Status.STANDBY
            [reason] = {
                vars(i)["reason"]
                for i in caplog.records
                if i.message == "monitor server is not reachable"
            }
            assert running.core.hindrance == f"monitor server is not reachable: {reason}"
    address = f"tcp+sbs://{HOST}:{port}"
    assert reason == f"{address}: closed without an answer: is it a monitor server?"
