"""The starter of child processes tells what went wrong with a child."""

import signal
from pathlib import Path

import pytest

from tests.support import process as processes
from tests.support.process import ChildError


async def test_listening_port_of_child_is_found(tmp_path: Path) -> None:
    output = tmp_path / "output"
    async with processes.child("http.server", "0", "--bind", "127.0.0.1", output=output) as child:
        port = await processes.wait_listening(child, output)
        assert port > 0
        child.send_signal(signal.SIGKILL)


async def test_child_that_dies_before_it_is_ready_is_told_with_its_output(tmp_path: Path) -> None:
    output = tmp_path / "output"
    with pytest.raises(ChildError, match=r"exit code 1\n(?s:.*)No module named no_such_module"):
        async with processes.child("no_such_module", output=output) as child:
            await processes.wait_listening(child, output)


async def test_exit_code_of_child_is_checked(tmp_path: Path) -> None:
    output = tmp_path / "output"
    with pytest.raises(ChildError, match=r"http\.server: exit code -15"):
        async with processes.child("http.server", "0", output=output) as child:
            await processes.wait_listening(child, output)


async def test_failure_of_the_body_is_not_hidden_and_child_is_gone(tmp_path: Path) -> None:
    output = tmp_path / "output"
    running = processes.child("http.server", "0", output=output)
    child = await running.__aenter__()
    await processes.wait_listening(child, output)

    failure = LookupError("body")
    assert not await running.__aexit__(LookupError, failure, None)
    assert child.returncode == -signal.SIGTERM
