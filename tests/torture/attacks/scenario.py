"""One attack on one gateway: observed before, meanwhile and afterwards."""

import asyncio
import contextlib
import json
import os
import random
import signal
import ssl
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Final

from tests.support.certificates import make_certificates
from tests.support.gateway import Gateway, gateway
from tests.support.process import tail
from tests.torture.attacks import faults, ground, outcome
from tests.torture.attacks.attack import Attack, Facts, Target
from tests.torture.attacks.catalogue import ATTACKS
from tests.torture.attacks.meter import Meter, until_quiet
from tests.torture.attacks.observer import TYPE, Address, Honest, LostError, Observer
from tests.torture.attacks.outcome import RECOVERY_S, STOP_S, Outcome
from tests.torture.ledger import ViolationError
from tests.torture.report import Progress, no_progress

BASELINE_S: Final = 2.0
"""What is observed before the attack: how fast this machine is, whatever else it does."""

SPARE_FILES: Final = 40
"""Descriptors that a gateway may have more than before, afterwards: its store's."""


def scenario(
    name: str,
) -> Callable[[Path, int, random.Random, Progress], Coroutine[None, None, str]]:
    """The scenario of an attack."""
    attack = ATTACKS[name]

    async def run(directory: Path, rounds: int, chance: random.Random, progress: Progress) -> str:
        async with arena(directory, attack) as here:
            done = await here.attack(name, rounds=rounds, progress=progress)
            done.quiet_s = await here.settle()
            done.stopped_s = await here.stop()
        wrong = [
            *outcome.slowness(attack.limits, done),
            *outcome.violations(attack.limits, done),
            *outcome.ending(done),
        ]
        if wrong:
            raise ViolationError(f"{'; '.join(wrong)} ({done})")
        return str(done)

    return run


@contextlib.asynccontextmanager
async def arena(directory: Path, attack: Attack) -> AsyncIterator["Arena"]:
    """A gateway that can be attacked, and an honest client of it.

    Args:
        directory: where its store and log are.
        attack: tells what kind of gateway it has to be; others may come as well.

    Raises:
        UnavailableError: this machine does not allow it.
    """
    tls, context = _tls(directory) if attack.is_tls else (None, None)
    with _stderr(attack, directory) as stuck:
        limit = faults.descriptor_limit(attack.max_files) if attack.max_files else ()
        async with gateway(
            directory,
            clients=ground.CLIENTS,
            core=ground.CORE,
            schemas=ground.SCHEMAS,
            http=True,
            tls=tls,
            wrapper=[*(stuck.wrapper if stuck else ()), *limit],
        ) as running:
            address = Address(running.port, context)
            async with Observer.connected(address) as observer, _attacker(directory) as attacker:
                yield Arena(running, address, observer, attacker, stuck)


class Arena:
    """See :func:`arena`."""

    def __init__(
        self,
        running: Gateway,
        address: Address,
        observer: Observer,
        attacker: "_Attacker",
        stuck: faults.StuckStderr | None,
    ) -> None:
        self._running = running
        self._address = address
        self._observer = observer
        self._attacker = attacker
        self._stuck = stuck
        self._prepared: set[Callable[[Target], None]] = set()

    async def attack(
        self,
        name: str,
        *,
        progress: Progress = no_progress,
        rounds: int = 1,
        scale: float = 1.0,
        baseline_s: float = BASELINE_S,
    ) -> Outcome:
        """Attack, and see what it costs.

        Args:
            name: of the attack.
            progress: is told of the rounds.
            rounds: how often, one after the other.
            scale: see ``Target``.
            baseline_s: how long is observed before.
        """
        attack, running = ATTACKS[name], self._running
        target = Target(
            running.port,
            running.eventer_port or 0,
            running.rsb_port or 0,
            running.http_port or 0,
            scale,
        )
        if attack.prepare is not None and attack.prepare not in self._prepared:
            await self._attacker.do(name, "prepare", target)
            self._prepared.add(attack.prepare)
        async with self._observer.observing() as baseline:
            await asyncio.sleep(baseline_s)
        log = running.stderr_path
        meter = Meter(running.pid, log, log.parent / "events")
        done = Outcome({}, baseline)
        async with meter.measuring():
            if self._stuck is not None:
                self._stuck.stop_reading()
            for number in range(rounds):
                async with self._observer.observing(done.seen), _disk(attack, running):
                    done.facts = await self._attacker.do(name, "run", target)
                progress(number + 1, rounds)
            done.recovered_s = await _recover(self._address)
            if not await meter.until_files(meter.n_files_before + SPARE_FILES, RECOVERY_S):
                done.recovered_s = None
        meter.tell(done)
        return done

    async def settle(self) -> float:
        """Seconds until the gateway works for nobody any more; bounded."""
        return await until_quiet(self._running.pid, RECOVERY_S)

    async def stop(self) -> float | None:
        """Seconds from SIGTERM to the end; None if it did not end well, or had already."""
        process = self._running.process
        if process.returncode is not None:
            return None
        loop = asyncio.get_running_loop()
        began = loop.time()
        process.terminate()
        try:
            async with asyncio.timeout(STOP_S):
                code = await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()
            return None
        return loop.time() - began if code == 0 else None


class _Attacker:
    """See :mod:`tests.torture.attacks.attacker`."""

    def __init__(self, process: Process, errors: Path) -> None:
        self._process = process
        self._errors = errors

    async def do(self, name: str, step: str, target: Target) -> Facts:
        """Do a step of an attack.

        Raises:
            RuntimeError: it failed.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([name, step, target]).encode() + b"\n")
        async with asyncio.timeout(ATTACKS[name].timeout_s):
            answer = await self._process.stdout.readline()
        facts: Facts | None = json.loads(answer or b"null")
        if facts is None:
            raise RuntimeError(f"{name}: {step}: {tail(self._errors)}")
        return facts


@contextlib.asynccontextmanager
async def _attacker(directory: Path) -> AsyncIterator[_Attacker]:
    errors = directory / "attacker.log"
    with errors.open("wb") as sink:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.torture.attacks.attacker"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=sink,
            start_new_session=True,  # a step that is under way ends with it
        )
    try:
        yield _Attacker(process, errors)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


@contextlib.asynccontextmanager
async def _disk(attack: Attack, running: Gateway) -> AsyncIterator[None]:
    if attack.fault == "disk":
        async with faults.failing_disk(running.pid):
            yield
    else:
        yield


@contextlib.contextmanager
def _stderr(attack: Attack, directory: Path) -> Iterator[faults.StuckStderr | None]:
    if attack.fault == "stderr":
        with faults.stderr_of(directory) as stuck:
            yield stuck
    else:
        yield None


async def _recover(address: Address) -> float | None:
    """Seconds until a new client is served as if nothing had been; None if that takes too long."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(RECOVERY_S):
            while not await _is_serving(address):
                await asyncio.sleep(0.1)
            return loop.time() - began
    return None


async def _is_serving(address: Address) -> bool:
    try:
        async with Honest.connected(address) as client:
            await client.ping()
            await client.register("recovered", ["recovered", "type"])  # of a new type
            await client.register("recovered", TYPE)
            return client.status == "OPERATIONAL" and await client.newest() == "recovered"
    except LostError:
        return False


def _tls(directory: Path) -> tuple[dict[str, str], ssl.SSLContext]:
    certificates = make_certificates(directory / "certs")
    files = {"cert": str(certificates.server_cert), "key": str(certificates.server_key)}
    return files, ssl.create_default_context(cafile=str(certificates.ca))
