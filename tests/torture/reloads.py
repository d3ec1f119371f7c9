"""Everything that a reload replaces is replaced, again and again, under load.

Each round brings another certificate of the server (files are links into a directory that is
swapped), another revocation list, another token, another client in place of one, and other rights.
Clients that are not meant notice nothing: every registration succeeds, no connection ends, and a
subscriber hears of every event once and in order. What is new works when ``reload`` answers; what
is gone is refused, always with the same words after the same time. Now and then the configuration
is wrong, and nothing changes.
"""

import asyncio
import contextlib
import itertools
import json
import random
import shutil
import ssl
import statistics
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

from eventer_bridge import tls
from eventer_bridge.control import client
from eventer_bridge.control.client import Addressee, Identity
from eventer_bridge.core import tokens
from eventer_bridge.errors import ConfigurationError
from mariner_certs import authority, files
from tests.support.certificates import issue_client, make_certificates, write_crl
from tests.support.gateway import gateway
from tests.support.peer import INIT, RawPeer, event, register_req
from tests.torture.ledger import ViolationError
from tests.torture.report import Progress

N_STEADY: Final = 3
IN_FLIGHT: Final = 8
LARGE_EVENTS: Final = 2_500
TIMEOUT_S: Final = 30.0
DECLINED: Final = "invalid client name or token"

N_GUESSES: int = 200
"""Of each kind, to compare their times."""

MAX_COMPARISONS: Final = 10

MAX_DIFFERENCE_S: float = 0.000_2
"""Between the fastest tenths of kinds of guesses: far below what a network adds, and what a busy
machine adds to the others; far above a hash."""

ALL: Final[dict[str, Any]] = {
    "subscriptions": [["*"]],
    "register_events": [{"subscriptions": [["*"]]}],
}


async def run(directory: Path, rounds: int, chance: random.Random, progress: Progress) -> str:
    """Reload ``rounds`` times.

    Raises:
        ViolationError: a registration failed, a connection ended that was not meant to, something
            new was not seen or something old was.
    """
    world = _World(directory, chance)
    world.write(0)
    conf = world.conf(0)
    async with gateway(directory, clients=conf["clients"], tls=conf["mariner"]["tls"]) as running:
        world.port = running.port
        async with _loaded(world) as load:
            for n in range(1, rounds + 1):
                await world.round(n)
                await load.check()
                progress(n, rounds)
        spread_s = await world.guess(rounds)
    return (
        f"{rounds} reloads and {world.n_refused} refused ones, {load.n_acknowledged} events"
        f" acknowledged, {load.n_heard} heard in order, none refused; {world.n_closed} connections"
        f" closed, all meant; guesses differ by {spread_s * 1e6:.0f} us"
    )


class _World:
    """The configuration, its files, and the connections that come and go with them.

    Attributes:
        port: of the gateway.
        n_refused: reloads of wrong configurations.
        n_closed: connections that were closed as they had to be.
    """

    def __init__(self, directory: Path, chance: random.Random) -> None:
        self.port = self.n_refused = self.n_closed = 0
        self._directory, self._chance = directory, chance
        self._ca = make_certificates(directory / "ca").ca.parent
        self._tls = directory / "tls"
        self._tls.mkdir()
        self._tokens = [f"token-{i}" for i in range(2)]
        issue_client(self._ca, "steady")
        self._guest = issue_client(self._ca, "guest", uris=["spiffe://torture/guest"])
        self._short_lived: list[RawPeer] = []  # that the next reload closes
        self._rotating: RawPeer | None = None

    # --- configuration ------------------------------------------------------------------

    def conf(self, n: int) -> dict[str, Any]:
        """What a round changes of the configuration."""
        rights = [["*"]] if n % 2 else [["load", "*"], ["c", "?"]]
        clients = [
            {
                **ALL,
                "name": "steady",
                "token": tokens.sha256_text("steady"),
                "certificate": "steady",
            },
            {**ALL, "name": "watcher", "token": "watcher", "subscriptions": rights},
            {**ALL, "name": "rotating", "token": [*map(tokens.sha256_text, self._tokens[-2:])]},
            {**ALL, "name": "expired", "token": {"value": "expired", "expires": "2020-01-01"}},
            {**ALL, "name": "guest", "token": None, "certificate": "URI:spiffe://torture/guest"},
            {**ALL, "name": f"round-{n}", "token": "round"},
        ]
        names = {"cert": "server.pem", "key": "server.key", "client_ca": "ca.pem", "crl": "crl.pem"}
        keys = {key: str(self._tls / name) for key, name in names.items()}
        return {"clients": clients, "mariner": {"host": "127.0.0.1", "port": 0, "tls": keys}}

    def write(self, n: int) -> None:
        """Swap the files of the server, as Kubernetes does."""
        folder = self._tls / f"..{n}"
        folder.mkdir()
        ca = files.load_ca(self._ca)
        files.save(folder, "server", authority.make_server(ca, ["127.0.0.1"]))
        for name in ("ca.pem", "crl.pem"):
            if name == "crl.pem" and n == 0:
                write_crl(self._ca)
            shutil.copy(self._ca / name, folder / name)
        (self._tls / "..next").symlink_to(folder.name)
        (self._tls / "..next").rename(self._tls / "..data")
        if n == 0:
            for name in ("server.pem", "server.key", "ca.pem", "crl.pem"):
                (self._tls / name).symlink_to(f"..data/{name}")
        else:
            shutil.rmtree(self._tls / f"..{n - 1}")

    async def _reload(self, conf: dict[str, Any]) -> dict[str, Any]:
        path = self._directory / "gateway.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **conf}))
        socket = self._directory / "events" / "control.sock"
        to = Addressee(configuration=Identity.of(path))
        answer: dict[str, Any] = await asyncio.to_thread(
            client.request, socket, "reload", None, dict, to=to, what="it", timeout_s=TIMEOUT_S
        )
        return answer

    # --- a round ------------------------------------------------------------------------

    async def round(self, n: int) -> None:
        """Replace everything, and look."""
        guest_context, revoked = self.context("guest"), self._guest
        meant = [
            await self.init(f"round-{n - 1}", "round"),
            await self.init("whoever", None, guest_context),
        ]
        if self._rotating is not None:
            meant.append(self._rotating)
        self._rotating = await self.init("rotating", self._tokens[-1])
        if self._chance.random() < 0.1:
            await self._refused(n)
        serial = await self._serial()
        self._tokens.append(f"token-{n + 1}")
        write_crl(self._ca, revoked)
        self.write(n)
        self._guest = issue_client(self._ca, "guest", uris=["spiffe://torture/guest"])
        report = await self._reload(self.conf(n))
        if report["needs_restart"] or f"clients[round-{n}]: added" not in report["changed"]:
            raise ViolationError(f"round {n}: {report}")
        if await self._serial() == serial:
            raise ViolationError(f"round {n}: the old certificate is still there")
        for peer in meant:
            await self._until_closed(peer, n)
        for name, token in ((f"round-{n}", "round"), ("rotating", self._tokens[-1])):
            await self._leave(await self.init(name, token))
        await self._leave(await self.init("whoever", None, self.context("guest")))
        for name, token in (
            (f"round-{n - 1}", "round"),
            ("rotating", self._tokens[-3]),
            ("expired", "expired"),
            ("nobody", "round"),
        ):
            if (said := await self._declined(name, token)) != DECLINED:
                raise ViolationError(f"round {n}: {name} is told {said!r}")
        await self._check_revoked(guest_context, n)

    async def _refused(self, n: int) -> None:
        """A wrong configuration changes nothing."""
        conf = self.conf(n)
        wrong = self._chance.choice(["token", "file", "schema"])
        if wrong == "token":
            conf["clients"][0]["token"] = 5
        elif wrong == "file":
            conf["clients"][0]["token"] = {"file": str(self._directory / "none")}
        else:
            conf["schemas"] = [{"$id": "a:b", "type": "nothing"}]
        try:
            await self._reload(conf)
        except ConfigurationError:
            self.n_refused += 1
        else:
            raise ViolationError(f"round {n}: a wrong configuration was taken on ({wrong})")
        await self._reload({**self.conf(n - 1), "schemas": []})
        if await self._declined(f"round-{n}", "round") != DECLINED:
            raise ViolationError(f"round {n}: part of a wrong configuration was taken on")

    async def guess(self, n: int) -> float:
        """Compare the times of wrong logins; returns by how much they differ.

        A difference that is there once, and not again, is of the machine.
        """
        for _ in range(MAX_COMPARISONS):
            fast = await self._time_guesses(n)
            spread_s = max(fast) - min(fast)
            if spread_s <= MAX_DIFFERENCE_S:
                return spread_s
        raise ViolationError(f"guesses take {[f'{i * 1e6:.0f} us' for i in fast]}")

    async def _time_guesses(self, n: int) -> list[float]:
        """Seconds of the fastest tenth of each kind."""
        kinds = [
            ("nobody", "round"),
            ("rotating", "guess"),
            ("expired", "expired"),
            (f"round-{n - 1}", "round"),
        ]
        taken: list[list[float]] = [[] for _ in kinds]
        addresses = itertools.cycle(f"127.0.3.{i}" for i in range(1, 251))
        for _ in range(N_GUESSES):
            for number in self._chance.sample(range(len(kinds)), len(kinds)):
                # an address is answered at once a few times only
                seconds = await self._time_to_decline(*kinds[number], next(addresses))
                taken[number].append(seconds)
        return [statistics.quantiles(i, n=10)[0] for i in taken]

    # --- connections --------------------------------------------------------------------

    def context(self, name: str) -> ssl.SSLContext:
        """TLS of a client."""
        pair = self._ca / f"{name}.pem", self._ca / f"{name}.key"
        return tls.client_context(self._ca / "ca.pem", *pair)

    async def init(
        self, name: str, token: str | None, context: ssl.SSLContext | None = None, **keys: Any
    ) -> RawPeer:
        """A connection of a client that has to be let in."""
        context = context or self.context("steady")
        try:
            return await RawPeer.init(
                self.port, context, client_name=name, client_token=token, **keys
            )
        except (AssertionError, OSError, asyncio.IncompleteReadError) as e:
            raise ViolationError(f"{name} is not let in: {e}") from e

    async def _declined(self, name: str, token: str) -> str | None:
        async with await RawPeer.connect(self.port, self.context("steady")) as peer:
            answer = await peer.request({**INIT, "client_name": name, "client_token": token})
            return None if answer["success"] else str(answer["error"])

    async def _time_to_decline(self, name: str, token: str, address: str) -> float:
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", self.port, ssl=self.context("steady"), local_addr=(address, 0)
        )
        async with RawPeer(reader, writer) as peer:
            began_s = time.perf_counter()
            answer = await peer.request({**INIT, "client_name": name, "client_token": token})
            taken_s = time.perf_counter() - began_s
        if answer.get("error") != DECLINED:
            raise ViolationError(f"{name} is told {answer}")
        return taken_s

    async def _serial(self) -> str:
        async with await RawPeer.connect(self.port, self.context("steady")) as peer:
            return str(peer.writer.get_extra_info("peercert")["serialNumber"])

    async def _until_closed(self, peer: RawPeer, n: int) -> None:
        try:
            async with asyncio.timeout(TIMEOUT_S):
                if not await peer.is_closed_by_server():
                    raise ViolationError(f"round {n}: a message came, not the end")
        except TimeoutError:
            raise ViolationError(f"round {n}: a connection is still there") from None
        self.n_closed += 1
        peer.writer.close()

    async def _check_revoked(self, context: ssl.SSLContext, n: int) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            await self._leave(await RawPeer.init(self.port, context, client_token=None))
            raise ViolationError(f"round {n}: a revoked certificate is let in")

    @staticmethod
    async def _leave(peer: RawPeer) -> None:
        peer.writer.close()

    def leave(self) -> None:
        """Close what is left."""
        if self._rotating is not None:
            self._rotating.writer.close()


class _Load:
    """Clients that register all the time, and one that hears of it.

    Attributes:
        n_acknowledged: events.
        n_heard: events.
    """

    def __init__(self, world: _World, chance: random.Random) -> None:
        self.n_acknowledged = self.n_heard = 0
        self._world, self._chance = world, chance
        self._is_stopping = False
        self._sent = [0] * N_STEADY
        self._heard = [0] * N_STEADY
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Begin."""
        watcher = await self._world.init("watcher", "watcher", subscriptions=[["*"]])
        peers = [await self._world.init("steady", "steady") for _ in range(N_STEADY)]
        self._tasks = [asyncio.create_task(self._watch(watcher))]
        self._tasks += [asyncio.create_task(self._register(i, p)) for i, p in enumerate(peers)]

    async def check(self) -> None:
        """Raise what went wrong, and let some more be registered."""
        target = self.n_acknowledged + 100
        async with asyncio.timeout(TIMEOUT_S):
            while self.n_acknowledged < target:
                for task in self._tasks:
                    if task.done():
                        task.result()
                        raise ViolationError("a client ended")
                await asyncio.sleep(0.005)

    async def stop(self) -> None:
        """Stop registering, and wait until everything is heard."""
        self._is_stopping = True
        await asyncio.gather(*self._tasks[1:])
        async with asyncio.timeout(TIMEOUT_S):
            while self._heard != self._sent and not self._tasks[0].done():
                await asyncio.sleep(0.01)
        self._tasks[0].cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._tasks[0]

    async def _register(self, number: int, peer: RawPeer) -> None:
        waiting = 0
        async with peer:
            while not self._is_stopping or waiting:
                while waiting < IN_FLIGHT and not self._is_stopping:
                    n_events = LARGE_EVENTS if self._chance.random() < 0.002 else 1
                    first = self._sent[number]
                    events = [event("load", str(number), value=first + i) for i in range(n_events)]
                    self._sent[number] += n_events
                    peer.send(register_req(n_events, *events))
                    waiting += 1
                answer = await peer.receive_answer()
                if not answer["success"]:
                    raise ViolationError(f"a registration failed: {answer['error']}")
                self.n_acknowledged += answer["register_id"]
                waiting -= 1

    async def _watch(self, peer: RawPeer) -> None:
        async with peer:
            while True:
                message = await peer.receive()
                if message["msg_type"] == "ping_req":
                    peer.send({"msg_type": "ping_res", "ping_id": message["ping_id"]})
                for i in message.get("events", ()):
                    if i["type"][0] != "load":
                        continue
                    number, value = int(i["type"][1]), i["payload"]["data"]
                    if value != self._heard[number]:
                        expected = self._heard[number]
                        raise ViolationError(f"heard {value} of {number}, expected {expected}")
                    self._heard[number] += 1
                    self.n_heard += 1


@contextlib.asynccontextmanager
async def _loaded(world: _World) -> AsyncIterator[_Load]:
    load = _Load(world, world._chance)
    await load.start()
    try:
        yield load
        await load.stop()
    finally:
        for task in load._tasks:
            task.cancel()
        await asyncio.wait(load._tasks)
        world.leave()
