"""A TCP proxy that delays, splits and cuts connections, at any byte, by chance with a seed.

It works with plain sockets, so that what was passed on before a cut is known to the byte.
What is chosen depends on the seed only; when it happens depends on who sends.
"""

import asyncio
import contextlib
import itertools
import random
import socket
import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from eventer_bridge.resources import Resource, Tasks

HOST: Final = "127.0.0.1"
_READ_BYTES: Final = 1 << 16
_RESET: Final = struct.pack("ii", 1, 0)  # SO_LINGER: closing resets


class Plan(NamedTuple):
    """What is done to one connection.

    Attributes:
        cut_after_bytes: bytes, of both directions together, that are passed on before it is
            cut; None: it is not cut.
        is_reset: a cut is a reset (RST) and not an end (FIN).
        max_chunk_bytes: bytes that are passed on at a time, at most; None: what there is.
        max_delay_s: before each of these, at most.
        seed: of chunks and delays.
    """

    cut_after_bytes: int | None = None
    is_reset: bool = False
    max_chunk_bytes: int | None = None
    max_delay_s: float = 0.0
    seed: int = 0


PASS: Final = Plan()
"""Passes everything on."""


def by_chance(chance: random.Random, max_bytes: int) -> Iterator[Plan]:
    """Plans without end: cuts at any byte up to ``max_bytes``, early ones as often as late."""
    while True:
        cut_after_bytes = int(max_bytes ** chance.random())
        is_slow = chance.random() < 0.3
        yield Plan(
            cut_after_bytes,
            is_reset=chance.random() < 0.5,
            max_chunk_bytes=chance.choice((1, 7, 100)) if is_slow else None,
            max_delay_s=chance.choice((0.0, 0.0005)) if is_slow else 0.0,
            seed=chance.randrange(1 << 32),
        )


def create(target_port: int, plans: Iterable[Plan] = ()) -> "Proxy":
    """Listen on a free port of 127.0.0.1, for a server on the same machine.

    Args:
        target_port: the server's port.
        plans: one for each connection, in their order; then :data:`PASS` for all.
    """
    return Proxy(target_port, plans)


class Proxy(Resource):
    """See the module. Made by :func:`create`.

    Attributes:
        n_connections: connections that were accepted.
        n_cuts: connections that were cut.
        plans: of the next connections; may be replaced.
        is_refusing: whether new connections are reset.
    """

    def __init__(self, target_port: int, plans: Iterable[Plan]) -> None:
        self._target_port = target_port
        self.plans: Iterator[Plan] = itertools.chain(plans, itertools.repeat(PASS))
        self.n_connections = 0
        self.n_cuts = 0
        self._changed = asyncio.Event()
        self._links: set[Tasks] = set()
        self.is_refusing = False
        self._passing = [asyncio.Event(), asyncio.Event()]  # by direction
        self.go_on()
        self._listener = socket.create_server((HOST, 0), backlog=128)
        self._listener.setblocking(False)
        self.async_group.spawn(self._accept)

    @property
    def port(self) -> int:
        """What it listens on."""
        return int(self._listener.getsockname()[1])

    async def until_cuts(self, n_cuts: int) -> None:
        """Wait until so many connections were cut."""
        while self.n_cuts < n_cuts:
            self._changed.clear()
            await self._changed.wait()

    def cut(self) -> None:
        """Cut what is connected now."""
        self.n_cuts += len(self._links)
        for link in self._links:
            link.close()

    def hold(self, *ways: int) -> None:
        """Pass nothing on until :meth:`go_on`, and cut nothing.

        Args:
            ways: 0: to the server, 1: from it; both unless one is given.
        """
        for way in ways or (0, 1):
            self._passing[way].clear()

    def go_on(self) -> None:
        """Pass on again, what was held first."""
        for passing in self._passing:
            passing.set()

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while True:
                near, _ = await loop.sock_accept(self._listener)
                if self.is_refusing:
                    with near:
                        near.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                    continue
                self.n_connections += 1
                link = Tasks()
                self._links.add(link)
                link.spawn(self._serve, link, near, next(self.plans))
        finally:
            self._listener.close()
            for link in [*self._links]:
                await link.async_close()

    async def _serve(self, link: Tasks, near: socket.socket, plan: Plan) -> None:
        try:
            await self._pass_on(near, plan)
        finally:
            self._links.discard(link)
            self._changed.set()

    async def _pass_on(self, near: socket.socket, plan: Plan) -> None:
        with near, socket.socket() as far:
            for end in (near, far):
                end.setblocking(False)
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with contextlib.suppress(OSError):  # nobody listens there, or it is gone
                await asyncio.get_running_loop().sock_connect(far, (HOST, self._target_port))
                if await _Link(near, far, plan, self._passing).run():
                    self.n_cuts += 1
            if plan.is_reset:
                for end in (near, far):
                    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)


class _Link:
    """The two directions of a connection."""

    def __init__(
        self,
        near: socket.socket,
        far: socket.socket,
        plan: Plan,
        passing: Sequence[asyncio.Event],
    ) -> None:
        self._near = near
        self._far = far
        self._plan = plan
        self._passing = passing
        self._left_bytes = plan.cut_after_bytes

    async def run(self) -> bool:
        """Pass on until both ends have ended, or it is cut; whether it was.

        Raises:
            OSError: an end failed.
        """
        ways = ((self._near, self._far), (self._far, self._near))
        pumps = {asyncio.create_task(self._pump(*way, n)) for n, way in enumerate(ways)}
        try:
            while pumps:
                done, pumps = await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
                outcomes = await asyncio.gather(*done, return_exceptions=True)
                if True in outcomes:
                    return True
                for outcome in outcomes:
                    if isinstance(outcome, BaseException):
                        raise outcome
            return False
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)

    async def _pump(self, source: socket.socket, sink: socket.socket, way: int) -> bool:
        """Pass one direction on; whether it was cut."""
        loop = asyncio.get_running_loop()
        chance = random.Random(f"{self._plan.seed}:{way}")
        while data := await loop.sock_recv(source, _READ_BYTES):
            while data:
                size = len(data)
                await self._passing[way].wait()
                if self._plan.max_chunk_bytes is not None:
                    size = min(size, chance.randint(1, self._plan.max_chunk_bytes))
                if self._plan.max_delay_s:
                    await asyncio.sleep(chance.uniform(0, self._plan.max_delay_s))
                if self._left_bytes is not None:
                    size = min(size, self._left_bytes)
                    self._left_bytes -= size
                await loop.sock_sendall(sink, data[:size])
                if self._left_bytes == 0:
                    return True
                data = data[size:]
        sink.shutdown(socket.SHUT_WR)
        return False
