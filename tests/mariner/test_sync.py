"""The client without ``await``: against a gateway, in threads with and without a loop."""

import asyncio
import errno
import functools
import gc
import signal
import sys
import threading
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
import pytest_asyncio

import mariner
from eventer_bridge.resources import Resource, call_on_cancel
from mariner.sync import _Background
from tests.support.inprocess import running_gateway
from tests.support.shell import read_line

pytestmark = pytest.mark.asyncio(loop_scope="module")

connect = functools.partial(
    mariner.sync.connect, "127.0.0.1", client_name="app", client_token="secret"
)

INTERRUPTED = """\
import os, sys, mariner
port = int(sys.argv[1])
with mariner.sync.connect("127.0.0.1", port, client_name="app", client_token="secret") as client:
    events = client.subscribe("interrupted")
    try:
        print("waiting", flush=True)
        next(events)
    except KeyboardInterrupt:
        client.register("interrupted", "and goes on")
        print(next(events).payload.value(), flush=True)
    if not os.fork():
        for call in lambda: client.register("a"), lambda: next(events), client.subscribe:
            try:
                call()
            except mariner.ConnectionLostError as e:
                print(e, flush=True)
        events.close()
        client.close()
        os._exit(0)
    os.wait()
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def port() -> AsyncIterator[int]:
    async with running_gateway() as gateway:
        yield gateway.mariner.port


def threads() -> list[threading.Thread]:
    return [i for i in threading.enumerate() if i.name == "mariner.sync"]


def script(port: int) -> None:
    with connect(port) as client:
        events = client.subscribe("a/*")
        assert client.status is mariner.Status.OPERATIONAL
        one = client.register("a/1", {"x": 1})
        several = client.register([mariner.event("a/2", 2), mariner.event("b", 3)])
        assert [next(events), next(events)] == [one, several[0]]
        assert one in client.query(mariner.latest("a/?")).events
        found = client.query_all(mariner.timeseries("a/*", "b"), limit=2)
        assert sorted(i.id for i in found) == [i.id for i in several]
        many = client.register([mariner.event("many", i) for i in range(600)])
        ids = {i.id for i in client.query_all(mariner.timeseries("many"))}
        assert ids >= {i.id for i in many}
        with pytest.raises(mariner.InvalidEventError, match="payload: "):
            client.register("a/1", float("nan"))
        with pytest.raises(mariner.InvalidEventError, match=r"subscriptions\[0\]: "):
            client.subscribe(("a", 1))  # type: ignore[arg-type]  # that is the test
        [thread] = threads()
    assert [*events] == []  # it was closed with its client
    with pytest.raises(mariner.ConnectionLostError, match="closed by this client"):
        client.register("a/1")
    assert not thread.is_alive()


async def test_a_script(port: int) -> None:
    await asyncio.to_thread(script, port)


async def test_a_notebook_runs_a_loop_already(port: int) -> None:
    async def cell() -> None:
        script(port)

    await asyncio.to_thread(asyncio.run, cell())


async def test_errors_are_raised_at_once(port: int) -> None:
    def fail() -> None:
        with pytest.raises(mariner.InitError, match="invalid client name or token"):
            connect(port, client_token="wrong")
        with pytest.raises(mariner.ConnectError, match=r"127\.0\.0\.1:1: connection refused"):
            connect(1)
        for thread in threads():
            thread.join()

    await asyncio.to_thread(fail)


async def test_another_thread_closes_it(port: int) -> None:
    client = await asyncio.to_thread(connect, port)
    events = await asyncio.to_thread(client.subscribe, "nothing")
    waiting = asyncio.create_task(asyncio.to_thread(list, events))
    await asyncio.to_thread(client.close)
    assert await waiting == []


async def test_what_is_forgotten_ends(port: int) -> None:
    def forget() -> None:
        client = connect(port)
        events = client.subscribe("forgotten")
        client.register("forgotten")
        next(events)
        subscribed = events._client
        del events
        gc.collect()
        client._background.run(subscribed.wait_closed())
        [thread] = threads()
        del client
        gc.collect()
        thread.join()

    await asyncio.to_thread(forget)


async def test_ctrl_c_ends_a_call_and_nothing_else(port: int) -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", INTERRUPTED, str(port)), stdout=PIPE
    )
    assert await read_line(process.stdout) == "waiting\n"
    process.send_signal(signal.SIGINT)
    printed, _ = await process.communicate()
    forked = 3 * "the client's thread is gone; connect again after a fork\n"
    assert (printed.decode(), process.returncode) == ("and goes on\n" + forked, 0)


async def test_another_thread_takes_the_events(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def script() -> None:
        with connect(port) as client:
            events = client.subscribe("shared")
            receive = events._receive
            taken: list[mariner.Event] = []

            async def outrun() -> bool:
                goes_on = await receive()
                if not taken:
                    taken.append(events._events.popleft())  # as it does
                return goes_on

            monkeypatch.setattr(events, "_receive", outrun)
            registered = [client.register("shared", i) for i in range(2)]
            assert [*taken, next(events), *taken] == [registered[1], registered[0]]

    await asyncio.to_thread(script)


async def test_pages_are_there_when_the_next_one_fails(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def script() -> None:
        with connect(port) as client:
            query, pages = client._client._query, [2, 1]

            async def queried(params: mariner.QueryParams) -> Any:
                if not pages:
                    raise mariner.RemoteProtocolError("fails")
                return await query(msgspec.structs.replace(params, max_results=pages.pop(0)))

            monkeypatch.setattr(client._client, "_query", queried)
            client.register([mariner.event("paged", i) for i in range(4)])
            found = client.query_all(mariner.timeseries("paged"))
            next(found)
            assert pages == [1]
            next(found), next(found)
            with pytest.raises(mariner.RemoteProtocolError, match="fails"):
                next(found)

    await asyncio.to_thread(script)


async def test_a_call_in_its_own_thread(port: int) -> None:
    def script() -> None:
        with connect(port) as client:

            async def call() -> None:
                client.register("a")

            with pytest.raises(RuntimeError, match="it would wait for itself"):
                client._background.run(call())

    await asyncio.to_thread(script)


async def test_there_is_no_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise OSError(errno.EMFILE, "too many open files")

    monkeypatch.setattr(asyncio.events, "new_event_loop", fail)
    with pytest.raises(OSError, match="too many open files"):
        await asyncio.to_thread(connect, 1)


async def test_what_is_kept_while_it_ends_is_closed_too() -> None:
    background = _Background()

    async def keep() -> list[Resource]:
        kept = [background.keep(Resource()) for _ in range(2)]
        late = Resource()
        kept[1].async_group.spawn(call_on_cancel, background.keep, late)
        await asyncio.sleep(0)
        return [*kept, late]

    def script() -> list[Resource]:
        resources = background.run(keep())
        background.end()
        background.join()
        return resources

    assert all(i.is_closed for i in await asyncio.to_thread(script))
