"""Faults, chosen by chance and combined: each is done to a server for a while, and then undone."""

import asyncio
import contextlib
import random
import resource
import signal
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Final, TypeAlias

import psutil

from tests.support import proxy
from tests.torture.histories.record import Fault, History
from tests.torture.histories.servers import Server
from tests.torture.report import UnavailableError
from tests.torture.strace import attached, require_strace

MAX_AT_ONCE: Final = 3
"""Faults of a round."""

LONG: Final = 0.2
"""How often a fault takes longer than clients wait for anything."""

SHORT_S: Final = 1.5
LONG_S: Final = 5.0
"""How long the others take, and these, at most."""

AHEAD_S: Final = 3.0
BEHIND_S: Final = 3_600.0
"""Clocks go ahead and back by so much at most. A clock that was further ahead would stop a gateway
for as long afterwards."""

FREE_BYTES: Final = 4 << 20
FREE_FILES: Final = 4
"""What a process may still take at most, of memory and of files, while it has little."""

MAX_CUT_BYTES: Final = 200_000
"""Connections are cut after so many bytes at the most, while they are."""

_CALLS: Final = "fdatasync,fsync,openat"

FaultCb: TypeAlias = Callable[[Server, random.Random], AbstractAsyncContextManager[None]]
"""Begins a fault; on the way out it ends."""


@contextlib.asynccontextmanager
async def _killed(server: Server, chance: random.Random) -> AsyncIterator[None]:
    await server.again(is_kill=True, pause_s=chance.choice((0.0, chance.uniform(0, SHORT_S))))
    yield


@contextlib.asynccontextmanager
async def _ended(server: Server, chance: random.Random) -> AsyncIterator[None]:
    await server.again(is_kill=False, pause_s=chance.choice((0.0, chance.uniform(0, SHORT_S))))
    yield


@contextlib.asynccontextmanager
async def _stopped(server: Server, chance: random.Random) -> AsyncIterator[None]:
    server.signal(signal.SIGSTOP)
    try:
        yield
    finally:
        server.signal(signal.SIGCONT)


@contextlib.asynccontextmanager
async def _cut(server: Server, chance: random.Random) -> AsyncIterator[None]:
    server.link.cut()
    server.link.plans = proxy.by_chance(random.Random(chance.random()), MAX_CUT_BYTES)
    try:
        yield
    finally:
        server.link.plans = iter(lambda: proxy.PASS, None)


@contextlib.asynccontextmanager
async def _silent(server: Server, chance: random.Random) -> AsyncIterator[None]:
    server.link.hold(*chance.choice(((), (0,), (1,))))
    try:
        yield
        if chance.random() < 0.5:
            server.link.cut()
    finally:
        server.link.go_on()


@contextlib.asynccontextmanager
async def _refused(server: Server, chance: random.Random) -> AsyncIterator[None]:
    server.link.is_refusing = True
    if chance.random() < 0.7:
        server.link.cut()
    try:
        yield
    finally:
        server.link.is_refusing = False


@contextlib.asynccontextmanager
async def _clock(server: Server, chance: random.Random) -> AsyncIterator[None]:
    server.shift_clock(chance.choice((chance.uniform(0, AHEAD_S), -chance.uniform(0, BEHIND_S))))
    try:
        yield
    finally:
        server.shift_clock(0)


def _traced(injection: Callable[[random.Random], str]) -> FaultCb:
    """Faults of system calls."""

    @contextlib.asynccontextmanager
    async def fault(server: Server, chance: random.Random) -> AsyncIterator[None]:
        arguments = ("-e", f"trace={_CALLS}", "-e", f"inject={injection(chance)}")
        if server.pid is None:
            yield
            return
        async with contextlib.AsyncExitStack() as stack:
            stack.enter_context(server.starving())  # one that is to take over then, ends
            with contextlib.suppress(UnavailableError):  # it is being traced, or gone
                await stack.enter_async_context(attached(server.pid, *arguments))
            yield

    return fault


@contextlib.asynccontextmanager
async def _starved(server: Server, limit: int, most: int) -> AsyncIterator[None]:
    """Let a process take no more than so much."""
    pid, before = server.pid, (0, 0)
    with contextlib.suppress(ProcessLookupError, psutil.NoSuchProcess):
        if pid is not None:
            before = resource.prlimit(pid, limit)
            resource.prlimit(pid, limit, (most, before[1]))
    try:
        with server.starving():
            yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            if pid is not None:
                resource.prlimit(pid, limit, before)


@contextlib.asynccontextmanager
async def _few_files(server: Server, chance: random.Random) -> AsyncIterator[None]:
    n_files = 0
    with contextlib.suppress(psutil.NoSuchProcess):
        n_files = psutil.Process(server.pid).num_fds()
    async with _starved(server, resource.RLIMIT_NOFILE, n_files + chance.randint(0, FREE_FILES)):
        yield


@contextlib.asynccontextmanager
async def _little_memory(server: Server, chance: random.Random) -> AsyncIterator[None]:
    n_bytes = 0
    with contextlib.suppress(psutil.NoSuchProcess):
        n_bytes = psutil.Process(server.pid).memory_info().vms
    async with _starved(server, resource.RLIMIT_AS, n_bytes + chance.randint(0, FREE_BYTES)):
        yield


@contextlib.asynccontextmanager
async def _reloaded(server: Server, chance: random.Random) -> AsyncIterator[None]:
    server.reload(is_other=True)
    try:
        yield
    finally:
        server.reload(is_other=False)


@contextlib.asynccontextmanager
async def _backed_up(server: Server, chance: random.Random) -> AsyncIterator[None]:
    await server.back_up()
    yield


@contextlib.asynccontextmanager
async def _set_back(server: Server, chance: random.Random) -> AsyncIterator[None]:
    await server.set_back()
    yield


FAULTS: Final[Mapping[str, tuple[int, FaultCb]]] = {
    "kill": (6, _killed),
    "end": (2, _ended),
    "stop": (5, _stopped),
    "cut": (5, _cut),
    "silence": (3, _silent),
    "refuse": (3, _refused),
    "clock": (3, _clock),
    "reload": (2, _reloaded),
    "files": (2, _few_files),
    "memory": (2, _little_memory),
}
"""Each with how often it is chosen."""

OF_DISKS: Final[Mapping[str, tuple[int, FaultCb]]] = {
    "EIO": (2, _traced(lambda _: f"{_CALLS}:error=EIO")),
    "ENOSPC": (2, _traced(lambda _: f"{_CALLS}:error=ENOSPC")),
    "some-EIO": (
        2,
        _traced(lambda i: f"fdatasync:error=EIO:when={i.randint(1, 20)}+{i.randint(5, 40)}"),
    ),
    "slow-disk": (2, _traced(lambda i: f"fdatasync:delay_enter={i.randint(10_000, 200_000)}")),
}
"""Those for which strace is needed."""

OF_BACKUPS: Final[Mapping[str, tuple[int, FaultCb]]] = {
    "backup": (2, _backed_up),
    "restore": (1, _set_back),
}
"""Those of a store that no other server replicates."""


def available(*others: Mapping[str, tuple[int, FaultCb]]) -> dict[str, tuple[int, FaultCb]]:
    """What can be done here.

    Args:
        others: what is added to :data:`FAULTS`.
    """
    found = dict(FAULTS)
    for some in others:
        found |= some
    try:
        require_strace()
    except UnavailableError:
        return {name: i for name, i in found.items() if name not in OF_DISKS}
    return found


async def combined(
    servers: Sequence[Server],
    chance: random.Random,
    history: History,
    known: Mapping[str, tuple[int, FaultCb]],
) -> None:
    """Do some to servers at the same time, or nearly."""
    weights = [weight for weight, _ in known.values()]
    chosen = chance.choices([*known], weights, k=chance.randint(1, MAX_AT_ONCE))
    doing = []
    for name in dict.fromkeys(chosen):  # all that is random is decided now, of the seed alone
        most_s = LONG_S if chance.random() < LONG else SHORT_S
        which = name, chance.randrange(len(servers))
        when = chance.uniform(0, 0.5), chance.uniform(0.1, most_s)
        world = servers, random.Random(chance.random()), history
        doing.append(_do(known[name][1], which, when, world))
    await asyncio.gather(*doing)


async def _do(
    fault: FaultCb,
    which: tuple[str, int],
    when: tuple[float, float],
    world: tuple[Sequence[Server], random.Random, History],
) -> None:
    name, index = which
    servers, chance, history = world
    await asyncio.sleep(when[0])
    begin_s = time.monotonic()
    async with fault(servers[index], chance):
        await asyncio.sleep(when[1])
    history.faults.append(Fault(f"{name} {index + 1}", begin_s, time.monotonic()))
