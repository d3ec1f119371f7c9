"""The end of a gateway: bounded in time whatever hangs, and told by an exit code."""

import asyncio
import signal
from pathlib import Path

import pytest

from mariner.gateway import stopping
from tests.mariner.gateway.faulty import BEGINS
from tests.support.gateway import gateway
from tests.support.peer import RawPeer, event, register_req
from tests.support.process import ChildError, tail


async def break_it(directory: Path, fault: str, number: signal.Signals | None = None) -> None:
    """Run a gateway that a fault ends, after a signal or by itself."""
    async with (
        gateway(directory, program="tests.mariner.gateway.faulty") as running,
        await RawPeer.init(running.port) as peer,
    ):
        peer.send(register_req(1, event("fault", fault)))
        while BEGINS not in tail(running.stderr_path):
            await asyncio.sleep(0.02)
        if number is not None:
            running.process.send_signal(number)
        await running.process.wait()


@pytest.mark.parametrize(
    ("fault", "waits_for", "thread", "number"),
    [
        ("loop-sleeps", "nothing", "MainThread", signal.SIGINT),
        ("sync-hangs", "engine", "store-writer", signal.SIGTERM),
    ],
)
async def test_a_signal_ends_it_whatever_hangs(
    tmp_path: Path, fault: str, waits_for: str, thread: str, number: signal.Signals
) -> None:
    with pytest.raises(ChildError, match=f"exit code {stopping.EXIT_STUCK}\n") as caught:
        await break_it(tmp_path, fault, number)
    log = str(caught.value)
    assert f'does not stop: ending it", "waited_s": 1.0, "waits_for": "{waits_for}"' in log
    assert f'"thread_name": "{thread}", "stack": "' in log
    assert "(faulty.py:" in log


@pytest.mark.parametrize(
    ("fault", "failed", "told"),
    [
        ("storage-thread-dies", "backend", "what nobody thought of"),
        ("thread-dies", "thread of-a-module", '"thread_name": "of-a-module"'),
    ],
)
async def test_a_thread_that_dies_ends_it_to_be_started_anew(
    tmp_path: Path, fault: str, failed: str, told: str
) -> None:
    with pytest.raises(ChildError, match="exit code 1\n") as caught:
        await break_it(tmp_path, fault)
    log = str(caught.value)
    assert f"mariner: error: {failed} failed, see the log" in log
    assert told in log
