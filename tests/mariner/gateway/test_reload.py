"""Reloading a running gateway: what its clients notice, and what they must not."""

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest

from eventer_bridge.core import tokens
from tests.mariner.gateway.reloaded import QUERY, client, registered, running
from tests.support.inprocess import APP
from tests.support.peer import RawPeer, event, register_req
from tests.support.schemas import LARGE, NUMBERS, checkers


async def found(peer: RawPeer) -> list[list[str]]:
    """Types of the latest events that it may see, without the gateway's own."""
    answer = await peer.request({**QUERY, "event_types": [["*"]]})
    return sorted(i["type"] for i in answer["events"] if i["type"][0] != "event")


# --- clients --------------------------------------------------------------------------------


async def test_what_did_not_change_is_not_touched(tmp_path: Path) -> None:
    async with running(tmp_path) as it, await RawPeer.init(it.port) as peer:
        schemas = it.gateway.access.schemas
        assert await it.reload() == {"changed": [], "needs_restart": []}
        assert await registered(peer, "a") is None
        assert it.gateway.access.schemas is schemas


async def test_clients_come_and_go(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with running(tmp_path) as it, await RawPeer.init(it.port) as peer:
        both = [APP, client(name="new", token=tokens.sha256_text("n"))]
        assert (await it.reload(clients=both))["changed"] == ["clients[new]: added"]
        assert await it.answer(client_name="new", client_token="n") is None
        assert await registered(peer, "a") is None
        assert (await it.reload(clients=both[1:]))["changed"] == ["clients[app]: removed"]
        await it.closed(peer)
        # as if it had never been there
        assert await it.answer() == "invalid client name or token"
        assert await it.answer(client_name="nobody") == "invalid client name or token"
        assert it.gateway.mariner.stats.closed["removed from the configuration"] == 1
    [line] = [i for i in caplog.records if getattr(i, "detail", "") == "the client"]
    assert line.__dict__["reason"] == "removed from the configuration"


async def test_a_token_replaces_another(tmp_path: Path) -> None:
    async with running(tmp_path) as it, await RawPeer.init(it.port) as old:
        hashed = tokens.sha256_text("secret")
        several = [{"value": hashed}, {"value": tokens.sha256_text("new")}]
        report = await it.reload(clients=[client(token=several)])
        assert report["changed"] == ["clients[app].token"]
        async with await RawPeer.init(it.port, client_token="new") as new:
            assert await registered(old, "a") is None  # its token is still there, as a hash
            several[0]["expires"] = "2020-01-01"
            await it.reload(clients=[client(token=several)])
            assert await it.answer() == "invalid client name or token"
            assert await registered(old, "a") is None  # it had logged in before
            await it.reload(clients=[client(token=several[1])])
            await it.closed(old)
            assert await registered(new, "a") is None


async def test_a_token_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("secret")
    async with running(tmp_path, clients=[client(token={"file": str(file)})]) as it:
        assert await it.answer() is None
        file.write_text("new")
        assert (await it.reload())["changed"] == ["clients[app].token"]
        assert await it.answer(client_token="new") is None
        assert await it.answer() is not None


async def test_new_rights_of_registrations_and_queries(tmp_path: Path) -> None:
    async with running(tmp_path) as it, await RawPeer.init(it.port) as peer:
        assert await registered(peer, "a") is None
        assert await registered(peer, "b") is None
        assert await found(peer) == [["a"], ["b"]]
        less = client(subscriptions=[["a"]], register_events=[{"subscriptions": [["b"]]}])
        report = await it.reload(clients=[less])
        assert report["changed"] == ["clients[app].register_events", "clients[app].subscriptions"]
        assert "no right to register 'a'" in (await registered(peer, "a") or "")
        assert await registered(peer, "b") is None
        assert await found(peer) == [["a"]]
        await it.reload(clients=[APP])
        assert await registered(peer, "a") is None
        assert await found(peer) == [["a"], ["b"]]


async def test_new_rights_of_notifications(tmp_path: Path) -> None:
    async with (
        running(tmp_path, clients=[APP, client(name="source")]) as it,
        await RawPeer.init(it.port, subscriptions=[["a", "*"], ["b"]]) as peer,
        await RawPeer.init(it.port, client_name="source") as source,
    ):

        async def heard() -> list[list[str]]:
            """What comes of an event of each type, up to the answer to a ping."""
            for i, name in enumerate(("a", "b", "c")):
                await source.request(register_req(i, event(name)))
            peer.send({"msg_type": "ping_req", "ping_id": 1})
            types = []
            while (message := await peer.receive())["msg_type"] == "events":
                types += [i["type"] for i in message["events"]]
            return types

        assert await heard() == [["a"], ["b"]]
        for subscriptions, expected in (
            ([["a"]], [["a"]]),
            ([["c"]], []),
            ([["b"], ["c"]], [["b"]]),
            ([], []),
            ([["*"]], [["a"], ["b"]]),  # what it asked for at first
        ):
            changed = client(subscriptions=subscriptions)
            await it.reload(clients=[changed, client(name="source")])
            assert await heard() == expected


async def test_an_answer_that_is_under_way_has_the_new_rights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path) as it, await RawPeer.init(it.port) as peer:
        for name in ("a", "b"):
            await registered(peer, name)
        answer, reached, go_on = it.gateway.core.answer, asyncio.Event(), asyncio.Event()

        async def held(*arguments: Any) -> Any:
            result = await answer(*arguments)
            reached.set()
            await go_on.wait()
            return result

        monkeypatch.setattr(it.gateway.core, "answer", held)
        asked = asyncio.create_task(found(peer))
        await reached.wait()
        await it.reload(clients=[client(subscriptions=[["b"]])])
        go_on.set()
        assert await asked == [["b"]]


async def test_a_login_that_is_under_way_is_of_the_new_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = tokens.scrypt_text("secret")
    async with running(tmp_path, clients=[client(token=chosen)]) as it:
        checks = it.gateway._checks
        find, reached, go_on = checks.find, asyncio.Event(), asyncio.Event()

        async def held(*arguments: Any) -> Any:
            index = await find(*arguments)
            reached.set()
            await go_on.wait()
            return index

        monkeypatch.setattr(checks, "find", held)
        asked = asyncio.create_task(it.answer())
        await reached.wait()
        await it.reload(clients=[client(token=tokens.scrypt_text("another"))])
        go_on.set()
        assert await asked == "invalid client name or token"
        # and who may still log in has the new rights
        await it.reload(clients=[client(token=chosen)])
        reached.clear()
        go_on.clear()
        logging_in = asyncio.create_task(RawPeer.init(it.port))
        await reached.wait()
        await it.reload(clients=[client(token=chosen, register_events=[])])
        go_on.set()
        async with await logging_in as peer:
            assert "no right to register 'a'" in (await registered(peer, "a") or "")


async def test_schemas_and_quotas(tmp_path: Path) -> None:
    numbers = [{"subscriptions": [["*"]], "schema_id": NUMBERS["$id"]}]
    checked = client(register_events=numbers)
    async with (
        running(tmp_path, clients=[checked], schemas=[NUMBERS]) as it,
        await RawPeer.init(it.port) as peer,
    ):
        assert await registered(peer, "a", value=LARGE) is None  # by a process of its own
        assert "not of type" in (await registered(peer, "a", value=["x"]) or "")
        texts = {**NUMBERS, "items": {"type": "string"}}
        assert (await it.reload(schemas=[texts]))["changed"] == ["schemas"]
        assert await registered(peer, "a", value=["x"]) is None
        assert "not of type" in (await registered(peer, "a", value=LARGE) or "")
        await it.reload(clients=[client(quota={"max_event_types": 0})])
        assert await registered(peer, "a") is None
        assert "max_event_types: 0" in (await registered(peer, "another") or "")


async def test_large_payloads_are_checked_by_a_process_from_then_on(tmp_path: Path) -> None:
    async with running(tmp_path) as it, await RawPeer.init(it.port) as peer:
        assert await registered(peer, "a", value=LARGE) is None
        assert checkers() == []
        numbers = [{"subscriptions": [["*"]], "schema_id": NUMBERS["$id"]}]
        await it.reload(clients=[client(register_events=numbers)], schemas=[NUMBERS])
        assert await registered(peer, "a", value=LARGE) is None
        assert len(checkers()) == 1
        await it.reload(clients=[APP], schemas=[])
        assert checkers() == []


async def test_large_registrations_are_answered_while_schemas_are_replaced(tmp_path: Path) -> None:
    numbers = [{"subscriptions": [["*"]], "schema_id": NUMBERS["$id"]}]
    clients = [client(register_events=numbers)]
    async with (
        running(tmp_path, clients=clients, schemas=[NUMBERS]) as it,
        await RawPeer.init(it.port) as peer,
    ):
        answers: list[str | None] = []

        async def register() -> None:
            while len(answers) < 5:
                answers.append(await registered(peer, "a", value=LARGE))

        registering = asyncio.create_task(register())
        for number in range(4):
            while len(answers) <= number:
                await asyncio.sleep(0.001)
            await it.reload(schemas=[{**NUMBERS, "description": str(number)}])
        await registering
        assert answers == [None] * 5
