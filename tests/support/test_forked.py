"""Forked processes begin and end as those of ``python -m``."""

import signal
from asyncio.subprocess import PIPE
from pathlib import Path

import psutil
import pytest

from tests.support import forked


async def test_output_arguments_and_exit_code() -> None:
    process = await forked.start("mariner", "--version", environment={})
    stdout, stderr = await process.communicate()
    assert (process.returncode, stderr) == (0, b"")
    assert stdout.startswith(b"mariner, version ")
    process = await forked.start("mariner", "query", "--nonsense", environment={})
    stdout, stderr = await process.communicate()
    assert (process.returncode, stdout) == (2, b"")
    assert b"--nonsense" in stderr


async def test_environment_and_folder_are_those_of_its_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "token").write_text("secret")
    variables = {"MARINER_NAME": "of-nobody", "MARINER_PORT": "1"}
    options = ("--token-file", "token")  # not found elsewhere, which is exit code 2
    process = await forked.start("mariner", "query", *options, environment=variables)
    assert await process.communicate() == (
        b"",
        b"mariner: error: 127.0.0.1:1: connection refused\n",
    )
    assert process.returncode == 1


async def test_signals_end_it() -> None:
    options = ("--name", "a", "--port", "1")
    process = await forked.start("mariner", "register", *options, environment={}, stdin=PIPE)
    process.kill()
    assert await process.communicate() == (b"", b"")
    assert await process.wait() == process.returncode == -signal.SIGKILL
    assert not psutil.pid_exists(process.pid)
