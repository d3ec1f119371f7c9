"""A registration whose outcome is not known is told so on every wire, and so are relays'."""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import pytest
from hat.drivers import net
from hat.event import common
from hat.event import eventer as hat_eventer

from eventer_bridge import errors as core_errors
from eventer_bridge import limits
from eventer_bridge.backends.rocksdb import RocksDbBackend
from eventer_bridge.core.engine import Engine
from eventer_bridge.eventer import client as eventer
from eventer_bridge.model import JsonPayload, QueryLatestParams, RegisterEvent, Status
from mariner import client
from mariner.errors import OutcomeUnknownError, RegisterError
from mariner.gateway.gateway import Gateway
from tests.eventer_bridge.backends.faults import failing_from, full_disk, held_sync, recovered
from tests.support import proxy
from tests.support.inprocess import metrics_of_wire, running_gateway
from tests.support.peer import RawPeer, event, register_req
from tests.support.shell import Shell, lines
from tests.support.waiting import until

EVENT: Final = RegisterEvent(("a",), None, JsonPayload.of(1))
LISTEN: Final = {"host": "127.0.0.1", "port": 0}


@pytest.fixture(autouse=True)
def retry_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "STORE_RETRY_PERIOD_S", 0.02)


@contextlib.asynccontextmanager
async def serving(path: Path) -> AsyncIterator[Gateway]:
    """A gateway with a durable store, on both wires."""
    backend = {"type": "rocksdb", "path": str(path / "events")}
    core = {"server_id": 1, "backend": backend, "eventer_server": LISTEN}
    async with running_gateway(event_core=core, http=LISTEN) as gateway:
        yield gateway


@contextlib.asynccontextmanager
async def broken(gateway: Gateway) -> AsyncIterator[None]:
    """Its disk fails from the first event ``a`` on; afterwards it has recovered."""
    assert isinstance(gateway.core, Engine)
    assert isinstance(gateway.backend, RocksDbBackend)
    with failing_from(gateway.core, ("a",)):
        yield
        assert gateway.backend.failure is not None
    await recovered(gateway.backend)


def eventer_port(gateway: Gateway) -> int:
    assert gateway.eventer_server is not None
    return gateway.eventer_server.address.port


async def on_mariner(gateway: Gateway) -> None:
    async with await client.connect(
        "127.0.0.1", gateway.mariner.port, client_name="app", client_token="secret"
    ) as connection:
        async with broken(gateway):
            with pytest.raises(OutcomeUnknownError, match=r"^outcome unknown: .*While fdatasync"):
                await connection.register([EVENT])
            with pytest.raises(RegisterError):
                await connection.register([EVENT])
        await connection.wait_status(Status.OPERATIONAL)
        await connection.register([EVENT])


async def on_mariner_raw(gateway: Gateway) -> None:
    async with await RawPeer.init(gateway.mariner.port) as peer, broken(gateway):
        answers = []
        for number in (1, 2):
            peer.send(register_req(number, event("a")))
            while (answer := await peer.receive())["msg_type"] != "register_res":
                assert answer == {"msg_type": "status", "status": "STANDBY"}
            answers.append(answer)
    assert [(i["success"], i.get("outcome")) for i in answers] == [
        (False, "unknown"),
        (False, "unavailable"),
    ]
    assert answers[0]["error"].startswith("outcome unknown: ")


async def on_eventer(gateway: Gateway) -> None:
    address = gateway.eventer_server.address  # type: ignore[union-attr]  # it has one
    async with broken(gateway):
        async with await eventer.connect(address, "gui/1") as connection:
            with pytest.raises(core_errors.OutcomeUnknownError, match=r"^outcome unknown: .*peer"):
                await connection.register([EVENT])
        async with await eventer.connect(address, "gui/1") as connection:
            with pytest.raises(core_errors.RegisterError):
                await connection.register([EVENT])


async def on_eventer_without_answer(gateway: Gateway) -> None:
    server = gateway.eventer_server
    assert server is not None
    async with broken(gateway), await eventer.connect(server.address, "gui/1") as connection:
        connection.register_only([EVENT])
        await until(lambda: server.stats.outcome_unknown > 0)
        with pytest.raises(core_errors.RegisterError):
            await connection.register([EVENT])


async def on_eventer_by_hat(gateway: Gateway) -> None:
    address = net.TcpAddress("127.0.0.1", eventer_port(gateway))
    wanted = [common.RegisterEvent(("a",), None, common.EventPayloadJson(1))]
    connection = await hat_eventer.connect(address, "gui/1")
    async with broken(gateway):
        with pytest.raises(ConnectionError):  # and not None, which is a refusal
            await connection.register(wanted, with_response=True)
        again = await hat_eventer.connect(address, "gui/1")
        assert await again.register(wanted, with_response=True) is None
    await again.async_close()
    await connection.async_close()


async def on_the_command_line(gateway: Gateway) -> None:
    variables = {"PORT": gateway.mariner.port, "NAME": "app", "TOKEN": "secret"}
    shell = Shell({f"MARINER_{key}": str(value) for key, value in variables.items()})
    async with broken(gateway):
        result = await shell.run("register", '{"type": "a"}')
        refused = await shell.run("register", '{"type": "a"}')
    assert result.code == 4
    assert result.stderr.startswith("mariner: error: argument 1: outcome unknown: ")
    assert refused.code == 1


async def on_the_command_line_of_eventer(gateway: Gateway) -> None:
    variables = {"PORT": eventer_port(gateway), "NAME": "gui/1"}
    shell = Shell({f"MARINER_EVENTER_{key}": str(value) for key, value in variables.items()})
    async with broken(gateway):
        result = await shell.run("eventer", "register", stdin=lines(1, event_type="a"))
    assert result.code == 4
    assert result.stderr.startswith("mariner: error: line 1: outcome unknown: ")


@pytest.mark.parametrize(
    ("check", "wire", "count"),
    [
        (on_mariner, "mariner", 1),
        (on_mariner_raw, "mariner", 1),
        (on_eventer, "eventer", 1),
        (on_eventer_without_answer, "eventer", 1),
        (on_eventer_by_hat, "eventer", 1),
        (on_the_command_line, "mariner", 1),
        (on_the_command_line_of_eventer, "eventer", 1),
    ],
)
async def test_it_is_told(
    tmp_path: Path, check: Callable[[Gateway], Awaitable[None]], wire: str, count: int
) -> None:
    async with serving(tmp_path) as gateway:
        await check(gateway)
        metrics = await metrics_of_wire(gateway, wire)
    assert metrics["registrations_outcome_unknown_total"] == count


async def test_a_relay_tells_of_an_answer_that_was_lost(tmp_path: Path) -> None:
    async with contextlib.AsyncExitStack() as stack:
        remote = await stack.enter_async_context(serving(tmp_path))
        link = await stack.enter_async_context(proxy.create(eventer_port(remote)))
        address: dict[str, Any] = {"host": proxy.HOST, "port": link.port, "token": None}
        relay = await stack.enter_async_context(running_gateway(eventer=address))
        connection = await stack.enter_async_context(
            await client.connect(
                "127.0.0.1", relay.mariner.port, client_name="app", client_token="secret"
            )
        )
        await connection.wait_status(Status.OPERATIONAL)
        await until(lambda: not remote.core.pending_events)  # that the relay connected
        with held_sync():
            request = asyncio.ensure_future(connection.register([EVENT]))
            await until(lambda: remote.core.pending_events > 0)
            link.plans = itertools.repeat(proxy.Plan(cut_after_bytes=0))
            link.cut()
            with pytest.raises(OutcomeUnknownError, match=f"^outcome unknown: .*:{link.port}"):
                await request
        await connection.wait_status(Status.STANDBY)
        never_sent = RegisterEvent(("never", "sent"), None, None)
        with pytest.raises(RegisterError, match="is not connected"):
            await connection.register([never_sent])
        found = await remote.core.query(QueryLatestParams([("a",), ("never", "?")]))
        assert [i.type for i in found.events] == [("a",)]


async def test_clients_do_not_hear_where_the_store_is(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = tmp_path / "store"
    async with (
        running_gateway(path=store) as gateway,
        await RawPeer.init(gateway.mariner.port) as peer,
    ):
        told = []
        with full_disk():
            for number in range(3):
                peer.send(register_req(number, event("a")))
                while (answer := await peer.receive())["msg_type"] != "register_res":
                    pass
                assert not answer["success"]
                told.append(answer["error"])
    assert told[0].startswith("outcome unknown: commit failed: IO error: ")
    assert ".log" in told[0]
    assert told[-1].startswith(("commit failed: ", "the event store cannot be written: ", "server"))
    assert str(tmp_path) not in "".join(told)
    logged = {str(vars(i).get("reason")) for i in caplog.records}
    assert any(i.startswith(f"{store}: commit failed: IO error: ") for i in logged)
