"""Syncs that fail (EIO), all of the disk that fails, and syncs that take long, by strace.

While nobody knows whether a request is stored, nobody may see it; afterwards everybody agrees.
"""

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator, Coroutine, Sequence
from pathlib import Path
from typing import Any, Final

from eventer_bridge.model import Event, Status
from mariner.client.client import Client
from mariner.gateway import gateway as gateways
from tests.support.event_servers import event_server, events_of
from tests.support.gateway import Gateway, gateway
from tests.support.hat_peers import HOST
from tests.support.peer import INIT, RawPeer
from tests.torture.clients import Load, connected, loaded
from tests.torture.hearing import Hearing
from tests.torture.ledger import OURS, SERVER_ID, Ledger, ViolationError, entry_of, read_store
from tests.torture.report import Progress
from tests.torture.strace import attached, require_strace, strace

AGREE_TIMEOUT_S: Final = 60.0
"""Until notifications and a replica have what is stored."""

DELAY_S: Final = 0.1
"""Of every sync, in the second scenario."""

_NEWEST: Final = {
    "msg_type": "query_req",
    "query_id": 1,
    "query_type": "timeseries",
    "event_types": [OURS],
    "order": "DESCENDING",
    "order_by": "TIMESTAMP",
    "max_results": 100,
}

_OF_THE_START: Final = 40
"""First syncs of each thread, which neither fail nor are delayed: those of the start."""

_FAILS_EVERY: Final = 60
"""Every so many syncs of a thread, two fail: the commit's, and the first try to go on."""

_MORE_ROUNDS: Final = 10
"""At most, until somebody looked while an outcome was unknown."""

_TRIED: Final = "the event store cannot be written"
"""What a client is told after the first try to go on failed."""


async def run_errors(
    directory: Path, rounds: int, chance: random.Random, progress: Progress
) -> str:
    """Let syncs fail until the store failed and went on ``rounds`` times.

    Raises:
        ViolationError: something acknowledged was lost, or whatever else must not happen.
        UnavailableError: there is no strace.
    """
    require_strace()
    ledger = Ledger()
    first = _OF_THE_START + chance.randrange(20)
    injection = f"inject=fdatasync:error=EIO:when={first}+{_FAILS_EVERY}"
    wrapper = strace(directory / "strace.txt", "-e", "trace=fdatasync", "-e", injection)
    async with contextlib.AsyncExitStack() as stack:
        core = {"eventer_server": {"host": HOST, "port": 0}}
        running = await stack.enter_async_context(gateway(directory, wrapper=wrapper, core=core))
        assert running.eventer_port is not None
        remotes = {SERVER_ID: running.eventer_port}
        replica = await stack.enter_async_context(event_server(directory, 2, remotes=remotes))
        hearing = await stack.enter_async_context(_hearing(running))
        async with loaded(running, ledger) as load, _looking(running, load) as looks:
            for n in range(1, rounds + 1):
                await _failed_and_went_on(load)
                progress(n, rounds)
            for _ in range(_MORE_ROUNDS):
                if not looks.count:  # it went on before anybody had an answer
                    await _failed_and_went_on(load)
        async with connected(running) as client:
            ledger.check(stored := await read_store(client))
        async with asyncio.timeout(AGREE_TIMEOUT_S):
            await hearing.until(stored[-1].id)
            await _until_kept(replica, stored)
        hearing.check(SERVER_ID, stored)
    await _check_again(directory, ledger)
    reasons = {i for i in load.refusals if "Input/output error" in i}
    if not reasons:
        raise ViolationError(f"nobody was told why: {set(load.refusals)}")
    found = load.unknown & {entry_of(event).request for event in stored}
    return (
        f"failed and went on {rounds} times without a restart: {len(load.refusals)} requests"
        f" refused, none of them stored; the outcome of {len(load.unknown)} unknown,"
        f" {len(found)} of them stored, and seen in none of {looks.count} answers before that was"
        f" known; {len(ledger.acknowledged)} events acknowledged, all of them stored; queries,"
        " notifications and a replica agree"
    )


@contextlib.asynccontextmanager
async def _hearing(running: Gateway) -> AsyncIterator[Hearing]:
    """What a subscriber hears of what is persisted."""
    hearing = Hearing("who waits for what is persisted")

    async def hear(client: Client) -> None:
        async for events in client.events():
            hearing.hear(events)

    async with connected(running, [OURS], persisted=True) as client, _task(hear(client)):
        yield hearing


@contextlib.asynccontextmanager
async def _task(coroutine: Coroutine[None, None, None]) -> AsyncIterator[None]:
    """Runs beside the body, until that ends; raises what it raised."""
    task = asyncio.create_task(coroutine)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])
    if not task.cancelled():
        task.result()


class _Looks:
    """Answers to queries, while nobody knows what is stored.

    Attributes:
        count: answers that were looked at then.
    """

    def __init__(self) -> None:
        self.count = 0
        self._decided: set[int] = set()  # requests of which the server knows by now

    async def look(self, running: Gateway, load: Load) -> None:
        """Query again and again.

        Raises:
            ViolationError: an answer holds what nobody knows to be stored.
        """
        while True:
            # a query that is under way when the store is opened again fails
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                async with await RawPeer.connect(running.port) as peer:
                    await self._look(peer, load)

    async def _look(self, peer: RawPeer, load: Load) -> None:
        """Statuses and answers come in their order: it may fail again before much else happens."""
        peer.send(INIT)
        self._note(await peer.receive(), load)
        while True:
            unknown = load.unknown - self._decided
            peer.send(_NEWEST)
            while (message := await peer.receive_answer())["msg_type"] != "query_res":
                self._note(message, load)
            self.count += bool(unknown - self._decided)
            found = {i["payload"]["data"]["request"] for i in message["events"]}
            if seen := found & unknown - self._decided:
                raise ViolationError(f"seen before anybody knows: {seen}")

    def _note(self, message: dict[str, Any], load: Load) -> None:
        """Note the status, which is told before what was decided can be seen."""
        if message["status"] == Status.OPERATIONAL.name:
            self._decided |= load.unknown


@contextlib.asynccontextmanager
async def _looking(running: Gateway, load: Load) -> AsyncIterator[_Looks]:
    looks = _Looks()
    async with _task(looks.look(running, load)):
        yield looks
    if not looks.count:
        raise ViolationError("nobody looked while the outcome was unknown")


async def _until_kept(replica: gateways.Gateway, stored: Sequence[Event]) -> None:
    """Wait until the replica has the same events."""
    wanted = list(stored)
    kept: list[Event] = []
    while kept != wanted:
        if kept and kept[-1].id >= wanted[-1].id:
            raise ViolationError(f"the replica keeps {len(kept)} events of {len(wanted)}")
        await asyncio.sleep(0.02)
        kept = [i for i in await events_of(replica, SERVER_ID) if i.type[0] == OURS[0]]


async def run_outages(
    directory: Path, rounds: int, chance: random.Random, progress: Progress
) -> str:
    """Let every sync and every opening of a file or directory fail for a while, again and again.

    Raises:
        ViolationError: something acknowledged was lost, or whatever else must not happen.
        UnavailableError: there is no strace.
    """
    require_strace()
    ledger = Ledger()
    failing = ("-e", "trace=fdatasync,openat", "-e", "inject=fdatasync,openat:error=EIO")
    began = time.perf_counter()
    async with gateway(directory) as running:
        async with loaded(running, ledger) as load:
            for n in range(1, rounds + 1):
                async with attached(running.pid, *failing):
                    await _failed_and_failed_again(load)
                await load.until_acknowledged(1)
                progress(n, rounds)
        async with connected(running) as client:
            ledger.check(await read_store(client))
    await _check_again(directory, ledger)
    return (
        f"went on after {rounds} outages without a restart, {time.perf_counter() - began:.0f} s:"
        f" {len(load.refusals)} requests refused, {len(ledger.acknowledged)} events"
        " acknowledged, all of them stored"
    )


async def _failed_and_failed_again(load: Load) -> None:
    """A commit, and then the first try to go on."""
    n_refused = len(load.refusals)
    await load.until(lambda: any(_TRIED in i for i in load.refusals[n_refused:]))


async def _failed_and_went_on(load: Load) -> None:
    n_refused = len(load.refusals)
    await load.until(lambda: len(load.refusals) > n_refused)
    await load.until_acknowledged(1)


async def _check_again(directory: Path, ledger: Ledger) -> None:
    async with gateway(directory) as running, connected(running) as client:
        ledger.check(await read_store(client))


async def run_delays(
    directory: Path, rounds: int, chance: random.Random, progress: Progress
) -> str:
    """Let every sync take long; everything but acknowledgements goes on meanwhile.

    Raises:
        ViolationError: an acknowledgement did not wait, or something else did.
        UnavailableError: there is no strace.
    """
    require_strace()
    ledger = Ledger()
    injection = f"inject=fdatasync:delay_enter={round(DELAY_S * 1e6)}:when={_OF_THE_START}+"
    wrapper = strace(directory / "strace.txt", "-e", "trace=fdatasync", "-e", injection)
    async with gateway(directory, wrapper=wrapper) as running:
        acknowledged_s, ping_s = await _measure(running, ledger, rounds, progress)
    await _check_again(directory, ledger)
    if min(acknowledged_s) < DELAY_S:
        raise ViolationError(f"acknowledged after {min(acknowledged_s):.3f} s, before the sync")
    if sorted(ping_s)[len(ping_s) // 2] > DELAY_S / 2:
        raise ViolationError("pings wait for syncs")
    return (
        f"syncs of {DELAY_S} s: {len(ledger.acknowledged)} events acknowledged, the first"
        f" request after {min(acknowledged_s):.2f} s; {len(ping_s)} pings meanwhile, the"
        f" slowest {max(ping_s) * 1000:.0f} ms"
    )


async def _measure(
    running: Gateway, ledger: Ledger, rounds: int, progress: Progress
) -> tuple[list[float], list[float]]:
    acknowledged_s: list[float] = []
    ping_s: list[float] = []
    async with connected(running) as client:
        for _ in range(_OF_THE_START):
            ledger.acknowledge(await client.register(ledger.request()))
        for n in range(1, rounds + 1):
            began = time.perf_counter()
            requests = [
                asyncio.ensure_future(client.register(ledger.request())) for _ in range(100)
            ]
            while not all(i.done() for i in requests):
                ping_s.append(await client.ping())
                await asyncio.wait(requests, timeout=DELAY_S / 20)
                if any(i.done() for i in requests) and len(acknowledged_s) < n:
                    acknowledged_s.append(time.perf_counter() - began)
            for request in requests:
                ledger.acknowledge(await request)
            progress(n, rounds)
    return acknowledged_s, ping_s
