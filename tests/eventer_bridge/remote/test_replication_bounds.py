"""What a server would not take from a client it takes from no server, and says so."""

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hat.drivers import net
from hat.event import eventer as hat_eventer

from eventer_bridge import limits
from eventer_bridge.model import (
    BinaryPayload,
    JsonPayload,
    Payload,
    RegisterEvent,
    SourceType,
)
from eventer_bridge.net import limits as net_limits
from eventer_bridge.remote import limits as remote_limits
from mariner.gateway.gateway import Gateway
from tests.support.event_servers import event_server, eventer_port, events_of
from tests.support.inprocess import metrics_of, running_gateway
from tests.support.peer import INIT, RawPeer

GOOD = JsonPayload.of({"good": True})

BAD: tuple[Payload, ...] = (
    JsonPayload(msgspec.Raw(b"[" * 400 + b"]" * 400)),
    JsonPayload(msgspec.Raw(b"1" * 6_001)),
    BinaryPayload("image", bytes(100_001)),
)
"""What ends the connections of Hat's clients; and one that is too large."""

HTTP = {"host": "127.0.0.1", "port": 0}


@pytest.fixture(autouse=True)
def small_and_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_PAYLOAD_BYTES", 100_000)
    monkeypatch.setattr(net_limits, "RECONNECT_MAX_S", 0.2)
    monkeypatch.setattr(remote_limits, "LAG_PERIOD_S", 0.02)
    monkeypatch.setattr(remote_limits, "LEFT_OUT_REPORT_S", 0.0)


async def register_unchecked(server: Gateway, *sessions: Sequence[Payload]) -> None:
    """Store what no wire would take, as a server of another make may have done."""
    source = server.core.create_source(SourceType.CONNECTION)
    for session in sessions:
        events = [
            RegisterEvent(("good" if payload is GOOD else "bad",), None, payload)
            for payload in session
        ]
        await server.core.register(source, events).committed


async def register_all(server: Gateway) -> None:
    """Twice as many good ones as bad ones, and each of these in a session of its own, too."""
    await register_unchecked(server, *([GOOD, bad, GOOD] for bad in BAD), *([bad] for bad in BAD))
    await register_unchecked(server, [GOOD])


N_GOOD = 2 * len(BAD) + 1


async def told_of(server: Gateway) -> list[dict[str, Any]]:
    """What its replica told it."""
    return [
        event.payload.value()
        for event in await events_of(server, 1)
        if event.type == ("event", "2", "synced", "1") and isinstance(event.payload, JsonPayload)
    ]


async def until_kept(server: Gateway, n_good: int) -> None:
    """Wait until so many good ones are kept, and no bad one."""
    while True:
        types = [event.type for event in await events_of(server, 1)]
        assert ("bad",) not in types
        if types.count(("good",)) >= n_good:
            assert types.count(("good",)) == n_good
            return
        await asyncio.sleep(0.02)


async def test_a_replica_leaves_out_what_breaks_clients(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    heard: list[Any] = []
    async with event_server(tmp_path, 1) as first:
        await register_all(first)
        remotes = {1: eventer_port(first)}
        async with event_server(tmp_path, 2, remotes=remotes, http=HTTP) as second:
            subscriber = await hat_eventer.connect(
                net.TcpAddress("127.0.0.1", eventer_port(second)),
                "hat",
                subscriptions=[("good",), ("bad",)],
                events_cb=lambda _, events: heard.extend(events),
            )
            await until_kept(second, N_GOOD)  # with queries
            await register_all(first)
            await until_kept(second, 2 * N_GOOD)  # live
            # each bad one is left out at least twice; counted first, and told a little later
            told: dict[str, Any] = {}
            counted: dict[str, float] = {}
            while told.get("left_out", 0) < 4 * len(BAD) or counted != {
                '{server="server 1"}': told["left_out"]
            }:
                await asyncio.sleep(0.02)
                told = (await told_of(first) or [{}])[-1]
                counted = await metrics_of(second, "mariner_remote_events_refused_total")
            assert told == {"state": "SYNCED", "count": None, "left_out": told["left_out"]}
            while len(heard) < N_GOOD:
                await asyncio.sleep(0.02)
            assert {event.type for event in heard} == {("good",)}
            assert subscriber.is_open
            await subscriber.async_close()
    refused = [i for i in caplog.records if "are left out" in i.message]
    assert {i.levelno for i in refused} == {logging.ERROR}
    reasons = {vars(i)["reason"] for i in refused}
    assert reasons == {
        "payload: nested deeper than 128 levels",
        "payload: a number of more than 1000 digits in a row",
        "payload has 100006 bytes, at most 100000 are allowed",
    }


async def test_of_a_session_that_is_too_large_the_first_events_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(limits, "MAX_SESSION_BYTES", 100_000)
    sizes = (40_000, 50_000, 20_000, 10_000, 7)  # with a label of 7 bytes
    payloads = [BinaryPayload("image/x", bytes(i - 7)) for i in sizes]
    async with event_server(tmp_path, 1) as first:
        await register_unchecked(first, payloads, [GOOD])
        async with event_server(tmp_path, 2, remotes={1: eventer_port(first)}) as second:
            await register_unchecked(first, [GOOD])
            kept: list[int] = []
            while kept.count(0) < 2:
                events = [i for i in await events_of(second, 1) if i.type in (("bad",), ("good",))]
                kept = [
                    len(i.payload.data) + 7 if isinstance(i.payload, BinaryPayload) else 0
                    for i in events
                ]
                await asyncio.sleep(0.02)
            assert kept == [40_000, 50_000, 10_000, 0, 0]
            while (await told_of(first) or [{}])[-1].get("left_out", 0) < 2:
                await asyncio.sleep(0.02)
    [record] = [i for i in caplog.records if "are left out" in i.message][:1]
    assert vars(record)["events"] == 2
    assert vars(record)["reason"] == "the session has more than 100000 bytes"


async def test_readers_of_a_replica_are_told_of_what_it_leaves_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is not valid, and what is too large; also if that is all of a session, or its end."""
    monkeypatch.setattr(limits, "MAX_SESSION_BYTES", 100_000)
    too_large = [BinaryPayload("image/x", bytes(60_000))] * 2
    wanted: dict[str, Any] = {"subscriptions": [["good"]], "persisted": True, "start": []}
    async with event_server(tmp_path, 1) as first:
        await register_unchecked(first, [GOOD])
        remotes = {1: eventer_port(first)}
        async with contextlib.AsyncExitStack() as stack:
            second = await stack.enter_async_context(event_server(tmp_path, 2, remotes=remotes))
            await until_kept(second, 1)
            peer = await RawPeer.init(second.mariner.port, **wanted)
            reader = await stack.enter_async_context(peer)

            async def kinds() -> list[str]:
                """Of what it is told, up to some events."""
                found: list[str] = []
                while "events" not in found:
                    found.append((await reader.receive())["msg_type"])
                return [i for i in found if i != "up_to_date"]

            assert await kinds() == ["events"]
            for left_out in ([BAD[0]], too_large):
                await register_unchecked(first, left_out, [GOOD])
                assert await kinds() == ["gap", "events"]
                await register_unchecked(first, [GOOD])
                assert await kinds() == ["events"]
            await register_unchecked(first, [GOOD, BAD[0]])
            assert await kinds() == ["gap", "events"]


async def test_a_relay_leaves_out_what_breaks_clients(tmp_path: Path) -> None:
    query = {"msg_type": "query_req", "query_id": 1, "query_type": "latest", "event_types": None}
    series = {
        **query,
        "query_type": "timeseries",
        "event_types": [["good"], ["bad"]],
        "order": "ASCENDING",
        "order_by": "TIMESTAMP",
        "max_results": 1,
    }
    async with event_server(tmp_path, 1) as first:
        conf = {"host": "127.0.0.1", "port": eventer_port(first), "token": None}
        async with running_gateway(eventer=conf, http=HTTP) as relay:
            subscriptions = [["good"], ["bad"]]
            async with (
                await RawPeer.init(relay.mariner.port, subscriptions=subscriptions) as subscriber,
                await RawPeer.connect(relay.mariner.port) as peer,
            ):
                peer.send(INIT)
                while (await peer.receive())["status"] != "OPERATIONAL":
                    pass
                await register_all(first)
                heard: list[Any] = []
                while len(heard) < N_GOOD:
                    heard.extend((await subscriber.receive()).get("events", ()))
                assert [event["type"] for event in heard] == [["good"]] * N_GOOD
                latest = (await peer.request({**query, "event_types": subscriptions}))["events"]
                assert latest == heard[-1:]
                found: list[Any] = []
                more = True
                while more:  # pages that begin with, end with and are nothing but bad ones
                    last = {"last_event_id": found[-1]["id"]} if found else {}
                    page = await peer.request({**series, **last})
                    found.extend(page["events"])
                    more = page["more_follows"]
                assert found == heard
                metrics = await metrics_of(relay, "mariner_remote_events_refused_total")
                [n_refused] = metrics.values()
                assert n_refused >= 2 * len(BAD)
