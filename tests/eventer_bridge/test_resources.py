"""Tasks that end together, and files: only regular ones, and not more than wanted."""

import asyncio
import os
import socket
from pathlib import Path

import pytest

from eventer_bridge.resources import Tasks, call_on_cancel, read_regular, uncancellable


async def fail() -> None:
    raise ValueError("broken")


async def test_a_task_that_fails_is_logged_and_the_others_go_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    ended: list[str] = []
    async with Tasks() as tasks:
        waiting = tasks.spawn(call_on_cancel, ended.append, "other")
        with pytest.raises(ValueError, match="broken"):
            await tasks.spawn(fail)
        assert [i.getMessage() for i in caplog.records] == ["a task failed: broken"]
        assert (tasks.is_open, tasks.is_closed, waiting.done()) == (True, False, False)
    assert (tasks.is_open, tasks.is_closed, ended) == (False, True, ["other"])
    with pytest.raises(RuntimeError, match="closed"):
        tasks.spawn(fail)


@pytest.mark.parametrize("raises", [True, False])
async def test_what_cannot_be_cancelled(raises: bool) -> None:
    go_on = asyncio.Event()
    results: list[bool] = []

    async def work() -> None:
        results.append(await go_on.wait())

    task = asyncio.create_task(uncancellable(work(), raises=raises))
    for _ in range(2):
        await asyncio.sleep(0)
        task.cancel()
    go_on.set()
    await asyncio.wait([task])
    assert (results, task.cancelled()) == ([True], raises)


def test_a_regular_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"12345")
    (tmp_path / "link").symlink_to(path)
    assert read_regular(path, 5) == read_regular(tmp_path / "link", 5) == b"12345"
    with pytest.raises(OSError, match="has 5 bytes, at most 4 are read") as caught:
        read_regular(path, 4)
    assert (caught.value.strerror, caught.value.filename) == (caught.value.args[1], str(path))


def test_a_huge_file_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "huge"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(OSError, match=f"has {1 << 40} bytes, at most 1000 are read"):
        read_regular(path, 1_000)


def test_others_are_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    os.mkfifo(tmp_path / "written")
    kept_open = os.open(tmp_path / "written", os.O_RDWR | os.O_NONBLOCK)
    try:
        for path, kind in (
            (tmp_path / "fifo", "a FIFO"),
            (tmp_path / "written", "a FIFO"),
            (tmp_path, "a directory"),
            (Path("/dev/zero"), "a character device"),
        ):
            with pytest.raises(OSError, match=f"is {kind}, expected a regular file"):
                read_regular(path, 1_000)
    finally:
        os.close(kept_open)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
        with pytest.raises(OSError, match="No such device or address"):
            read_regular(tmp_path / "socket", 1_000)
    with pytest.raises(FileNotFoundError):
        read_regular(tmp_path / "none", 1_000)


def test_a_file_that_does_not_tell_its_size() -> None:
    assert Path("/proc/self/status").stat().st_size == 0
    assert read_regular(Path("/proc/self/status"), 1 << 20).startswith(b"Name:")
    with pytest.raises(OSError, match="at most 10 are read"):
        read_regular(Path("/proc/self/status"), 10)
