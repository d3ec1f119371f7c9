"""Every event that is registered over any wire is told whole on every wire, whatever its session's
size: by answers, notifications, queries and replays, here, through a relay and at a replica."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Collection, Iterator, Mapping
from pathlib import Path
from typing import Final

import pytest
import pytest_asyncio

from eventer_bridge import limits, packed
from mariner.gateway.gateway import Gateway
from tests.support.event_servers import event_server, events_of
from tests.wires import asking, readers, world
from tests.wires.model import LARGE, LARGEST, SMALL, Case, MakeCase, difference
from tests.wires.world import World, eventer_port

in_module = pytest.mark.asyncio(loop_scope="module")

CASES: Final[dict[str, MakeCase]] = {**SMALL, **LARGE, **LARGEST}

DEALT_WITH_ALIKE: Final = {"255 events", "1024 events", "1025 events", "2047 events", "fewer bytes"}
"""Whose borders are those of answers, and who registers alone sees them."""

TO_EVERYBODY: Final = {
    "mariner": [i for i in (*SMALL, *LARGE) if i not in DEALT_WITH_ALIKE],
    "hat-event": ["1 events", "some binary", "together", "2049 events"],
    "relay": ["257 events", "together", "2049 events", "more bytes", "small ones around"],
}
TO_EVERYBODY_PLAIN: Final = {"mariner": ["1 events", "257 events", "some binary", "together"]}
ALONE: Final = {"mariner": [*SMALL, *LARGE], "eventer": [*SMALL, *LARGE, *LARGEST]}
ALONE_PLAIN: Final = {"mariner": SMALL, "eventer": SMALL}


def of_wires(
    compiled: Mapping[str, Collection[str]], plain: Mapping[str, Collection[str]]
) -> pytest.MarkDecorator:
    """Cases by the wires over which they are registered, where small ones are packed or not."""
    return pytest.mark.parametrize(
        ("how", "wire", "name"),
        [
            (how, wire, name)
            for how, wires in (("compiled", compiled), ("plain", plain))
            for wire, names in wires.items()
            for name in names
        ],
        indirect=["how"],
    )


def made(wire: str, name: str) -> Case:
    """A case, of which RSB is to know a scope as well."""
    return CASES[name](f"{wire}-{name}".replace(" ", "-").replace(",", ""))


@pytest.fixture(scope="module")
def how(request: pytest.FixtureRequest) -> Iterator[str]:
    """Whether requests and answers are read and written by compiled functions."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "plain":
            world.without_compiled(patch)
        elif not packed.IS_COMPILED:
            pytest.skip("eventer_bridge.packed is not compiled (no compiler)")
        yield request.param


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def everybody(how: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    """Everybody listens."""
    async with world.world(tmp_path_factory.mktemp("wires")) as it:
        assert packed.IS_COMPILED is (how == "compiled")
        yield it


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def nobody(how: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Gateway]:
    """Nobody listens."""
    async with world.one_gateway(tmp_path_factory.mktemp("wire")) as gateway:
        yield gateway


@in_module
@of_wires(TO_EVERYBODY, TO_EVERYBODY_PLAIN)
async def test_everybody_is_told_of_every_event(everybody: World, wire: str, name: str) -> None:
    case = made(wire, name)
    await everybody.play(case.name, world.register(everybody.gateways, wire, case))


@in_module
@pytest.mark.parametrize("how", ["compiled"], indirect=True)
@pytest.mark.parametrize("n_events", [1, 2 * limits.STEP_EVENTS + 1])
async def test_everybody_is_told_of_every_event_of_rsb(everybody: World, n_events: int) -> None:
    name = f"rsb-{n_events}"
    await everybody.play(name, world.by_rsb(everybody, name, n_events))


@in_module
@of_wires(ALONE, ALONE_PLAIN)
async def test_who_registers_alone_is_told_of_every_event(
    nobody: Gateway, wire: str, name: str
) -> None:
    case = made(wire, name)
    port = nobody.mariner.port
    if wire == "eventer":
        expected = await world.by_eventer(eventer_port(nobody), case)
    else:
        expected = await world.by_mariner(port, case)
    async with readers.mariner(port) as connected:
        asked = asking.queries(expected, expected.events[0].id, None)[1:3]
        await asking.check_queries("Mariner", connected.query, asked, expected)


@pytest.mark.timeout(600)  # 18 s of CPU: ten connections with 65,536 events each
@pytest.mark.parametrize("name", LARGEST)
async def test_everybody_is_told_of_the_largest(tmp_path: Path, name: str) -> None:
    case = made("mariner", name)
    async with world.world(tmp_path, is_short=True) as everybody:
        await everybody.play(case.name, world.register(everybody.gateways, "mariner", case))


async def test_all_of_it_without_the_compiled_part() -> None:
    """In a process that cannot import it, as where there was no compiler."""
    blocked = "import sys; sys.modules['eventer_bridge.packed._packed'] = None"
    script = f"{blocked}; import pytest; sys.exit(pytest.main(sys.argv[1:]))"
    arguments = ("-q", "-p", "no:cacheprovider", "-k", "plain", __file__)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", script, *arguments, stdout=subprocess.PIPE
    )
    output, _ = await process.communicate()
    assert process.returncode == 0, output.decode()


async def test_who_replicates_later_has_every_event(tmp_path: Path) -> None:
    """It reads pages, of which a session takes several."""
    async with world.one_gateway(tmp_path) as origin:
        for name in ("4097 events", "together", "3 times the bytes", "small ones around"):
            await world.by_mariner(origin.mariner.port, made("mariner", name))
        expected = await events_of(origin, 1)
        port = {1: eventer_port(origin)}
        async with event_server(tmp_path, 2, remotes=port) as replica:
            await world.until_replicated(replica, origin)
            found = await events_of(replica, 1)
    assert not (wrong := difference(found[: len(expected)], expected)), wrong
