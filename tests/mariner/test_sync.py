"""The client without ``await``: against a gateway, in threads with and without a loop."""

import asyncio
import functools
import gc
import signal
import sys
import threading
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

import mariner
from tests.support.inprocess import running_gateway
from tests.support.shell import read_line

pytestmark = pytest.mark.asyncio(loop_scope="module")

connect = functools.partial(
    mariner.sync.connect, "127.0.0.1", client_name="app", client_token="secret"
)

INTERRUPTED = """\
import sys, mariner
port = int(sys.argv[1])
with mariner.sync.connect("127.0.0.1", port, client_name="app", client_token="secret") as client:
    events = client.subscribe("interrupted")
    try:
        print("waiting", flush=True)
        next(events)
    except KeyboardInterrupt:
        client.register("interrupted", "and goes on")
        print(next(events).payload.value())
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
    assert (printed, process.returncode) == (b"and goes on\n", 0)
