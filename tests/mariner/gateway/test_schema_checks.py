"""Costly payloads of clients with schemas: others go on meanwhile, and the order is kept."""

import asyncio
import functools
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest

from eventer_bridge import chatter, limits
from eventer_bridge.errors import RegisterError
from eventer_bridge.eventer import client as eventer
from eventer_bridge.model import JsonPayload, QueryLatestParams, RegisterEvent
from tests.support.gateway import gateway
from tests.support.inprocess import running_gateway
from tests.support.peer import RawPeer, event, register_req
from tests.support.schemas import ENDLESS, LARGE, NUMBERS, checkers

CLIENT = {
    "name": "app",
    "token": "secret",
    "subscriptions": [["*"]],
    "register_events": [
        {"subscriptions": [["numbers"]], "schema_id": NUMBERS["$id"]},
        {"subscriptions": [["endless"]], "schema_id": ENDLESS["$id"]},
        {"subscriptions": [["free"]]},
    ],
}
SCHEMAS = [NUMBERS, ENDLESS]
PING = {"msg_type": "ping_req", "ping_id": 1}


def eventer_core() -> dict[str, Any]:
    server = {"host": "127.0.0.1", "port": 0, "clients": [CLIENT]}
    return {"server_id": 1, "backend": {"type": "memory"}, "eventer_server": server}


def register_event(name: str, value: Any) -> RegisterEvent:
    return RegisterEvent((name,), None, JsonPayload.of(value))


async def one_checker(pid: int | None = None) -> psutil.Process:
    while not (found := checkers(pid)):
        await asyncio.sleep(0.01)
    return found[0]


async def test_answers_come_in_order() -> None:
    async with (
        running_gateway([CLIENT], schemas=SCHEMAS) as running,
        await RawPeer.init(running.mariner.port) as peer,
    ):
        peer.send(register_req(1, event("numbers", value=LARGE)))
        peer.send(register_req(2, event("numbers", value=[1])))
        peer.send(register_req(3, event("free"), event("numbers", value=[*LARGE, "secret"])))
        peer.send(register_req(4, event("numbers", value=["secret"])))
        peer.send(register_req(5, event("numbers", value=LARGE * 10)))
        answers = [await peer.receive() for _ in range(5)]
    assert [i["register_id"] for i in answers] == [1, 2, 3, 4, 5]
    assert [i["success"] for i in answers] == [True, True, False, False, True]
    reason = 'value is not of type "integer"'
    assert answers[2]["error"] == f"register_events[1]: 'numbers': payload/{len(LARGE)}: {reason}"
    assert answers[3]["error"] == f"register_events[0]: 'numbers': payload/0: {reason}"
    sessions = [i["events"][0]["id"]["session"] for i in answers if i["success"]]
    assert sessions == sorted(sessions)
    assert checkers() == []


async def test_small_payloads_and_clients_without_schemas_need_no_process() -> None:
    free = {**CLIENT, "name": "free", "register_events": [{"subscriptions": [["*"]]}]}
    async with (
        running_gateway([CLIENT, free], schemas=SCHEMAS) as running,
        await RawPeer.init(running.mariner.port) as peer,
        await RawPeer.init(running.mariner.port, client_name="free") as other,
    ):
        small = event("numbers", value=list(range(100)))
        assert (await peer.request(register_req(1, *[small] * 20)))["success"]
        assert (await peer.request(register_req(2, event("free", value=LARGE))))["success"]
        assert (await other.request(register_req(1, event("numbers", value="a" * 999_999))))[
            "success"
        ]
        assert checkers() == []


async def test_others_do_not_wait() -> None:
    async with (
        running_gateway([CLIENT], schemas=SCHEMAS) as running,
        await RawPeer.init(running.mariner.port) as peer,
        await RawPeer.init(running.mariner.port) as other,
    ):
        peer.send(register_req(1, event("endless", value=LARGE)))
        answer = asyncio.ensure_future(peer.receive())
        checker = await one_checker()
        while checker.cpu_times().user < 0.5:  # it is at it
            await other.request(PING)
        assert (await other.request(register_req(1, event("free"))))["success"]
        assert not answer.done()
        checker.kill()
        assert (await answer)["error"] == (
            "its schema check did not end: the process was ended by SIGKILL"
        )


async def test_one_that_takes_too_long_is_refused_and_the_next_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with (
        running_gateway([CLIENT], schemas=SCHEMAS) as running,
        await RawPeer.init(running.mariner.port) as peer,
    ):
        assert (await peer.request(register_req(1, event("numbers", value=LARGE))))["success"]
        [checker] = checkers()
        with monkeypatch.context() as patch:
            patch.setattr(limits, "SCHEMA_CHECK_TIMEOUT_S", 0.25)
            refused = await peer.request(register_req(2, event("endless", value=LARGE)))
        assert refused["error"] == "its schema check took longer than 0.25 s"
        assert not checker.is_running()
        assert (await peer.request(register_req(3, event("numbers", value=LARGE))))["success"]


async def test_the_same_for_eventer_clients() -> None:
    async with running_gateway([CLIENT], schemas=SCHEMAS, event_core=eventer_core()) as running:
        assert running.eventer_server is not None
        at: chatter.Address = running.eventer_server.address
        async with (
            await eventer.connect(at, "app", client_token="secret") as client,
            await eventer.connect(at, "app", client_token="secret") as other,
            await RawPeer.init(running.mariner.port) as peer,
        ):
            done: list[int] = []
            registrations = []
            for i, value in enumerate((LARGE, [1], [*LARGE, "a"], LARGE * 10)):
                registrations.append(client.register([register_event("numbers", value)]))
                noted = functools.partial(lambda i, _: done.append(i), i)
                registrations[-1].add_done_callback(noted)
            await asyncio.wait(registrations)
            assert done == [0, 1, 2, 3]
            assert isinstance(registrations[2].exception(), RegisterError)
            sessions = [registrations[i].result()[0].id.session for i in (0, 1, 3)]
            assert sessions == sorted(sessions)
            [checker] = checkers()  # it serves both wires
            assert (await peer.request(register_req(1, event("numbers", value=LARGE))))["success"]
            assert checkers() == [checker]

            slow = client.register([register_event("endless", LARGE)])
            before = checker.cpu_times().user
            while checker.is_running() and checker.cpu_times().user < before + 0.1:
                await other.query(QueryLatestParams([("free",)]))
            assert not slow.done()
            checker.kill()
            await asyncio.wait([slow])
            assert isinstance(slow.exception(), RegisterError)
    assert checkers() == []


@pytest.mark.parametrize("signal_", [signal.SIGTERM, signal.SIGKILL])
async def test_the_process_ends_with_the_gateway(tmp_path: Path, signal_: signal.Signals) -> None:
    async with (
        gateway(tmp_path, clients=[CLIENT], schemas=SCHEMAS) as running,
        await RawPeer.init(running.port) as peer,
    ):
        peer.send(register_req(1, event("endless", value=LARGE)))
        checker = await one_checker(running.pid)
        running.process.send_signal(signal_)
        assert await running.process.wait() == (0 if signal_ == signal.SIGTERM else -signal_)
        while checker.is_running() and checker.status() != psutil.STATUS_ZOMBIE:
            await asyncio.sleep(0.01)
